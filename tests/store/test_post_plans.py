"""The plans of the post: admission, receipts, inboxes and endpoints go by their indexes, at any size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from postroom.store.migrate import migrations
from postroom.store.postgres import SESSION
from postroom.store.statements import Dialect, Statements
from tests.postgres import Databases

NOW = 1_700_000_000_000
MESSAGE: dict[str, Any] = {
    **dict.fromkeys(("id", "digest", "sender", "addressed", "kind", "payload", "created_by"), "x"),
    **dict.fromkeys(("client_id", "idempotency_key", "channel", "metadata", "correlation_id", "sender_repo")),
    **dict.fromkeys(("target_repo", "provenance", "ttl", "second_client", "second_key")),
    "priority": "normal",
    "ack_mode": "injected",
    "reply_to": "m7",
    "first_client": "",
    "first_key": "x",
    "rank": 1,
    "endpoints": ["ep_1"],
    "endpoint_count": 1,
    "deliveries": [],
}
REBIND = {"delivery": "dl_7", "old": "ep_1", "new": "ep_2", "silent": 45_000}
INBOX = {"mailbox": "box1", "after": 17, "limit": 50, "since_id": "m1"}
ENDPOINTS = {"silent": 45_000, "limit": 10, "name": "name7", "what": "repository"}
SWEEP = {"keep": 1000, "limit": 500}
AUTO = {
    "sqlite": {
        "message": "sqlite_autoindex_messages_1",
        "delivery": "sqlite_autoindex_deliveries_1",
        "endpoint": "sqlite_autoindex_endpoints_1",
        "admission": "sqlite_autoindex_admissions_1",
        "mailbox": "sqlite_autoindex_mailboxes_1",
        "attachment": "sqlite_autoindex_attachments_1",
    },
    "postgres": {
        "message": "messages_id_key",
        "delivery": "deliveries_id_key",
        "endpoint": "endpoints_id_key",
        "admission": "admissions_pkey",
        "mailbox": "mailboxes_pkey",
        "attachment": "attachments_pkey",
    },
}

# What a statement is asked with, and the indexes its plan must name.
HOT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "message_admit": (MESSAGE, ("message", "endpoint", "admission")),
    "admission_known": ({"msg_id": "m1", "client_id": "c", "key": "k"}, ("admission", "message")),
    "reply_known": ({"reply_to": "m1"}, ("message", "admission")),
    "messages_whole": ({"ids": ["m1", "m2"]}, ("message",)),
    "deliveries_of": ({"message_ids": ["m1", "m2"]}, ("deliveries_fan_out",)),
    "message_rebind": (REBIND, ("delivery", "endpoint")),
    "reply_first": (
        {"id": "m7", "after": 7, "sender": "s7", "viewer": "ann", "names": ["ann"], "writers": ["bob"]},
        ("messages_reply", "deliveries_fan_out", "endpoint"),
    ),
    "reply_senders": ({"id": "m7", "after": 7, "sender": "s7"}, ("messages_reply",)),
    "message_list": ({"sender": "s7", "limit": 50}, ("messages_sender",)),
    "inbox_page": (INBOX, ("deliveries_inbox", "message")),
    "inbox_after_id": (INBOX, ("deliveries_inbox", "message")),
    "inbox_place": ({"id": "m7", "mailbox": "box1"}, ("deliveries_fan_out",)),
    "mailbox_get": ({"name": "box1", "most": 1000}, ("mailbox", "deliveries_inbox")),
    "mailbox_read": ({"name": "box1", "place": 7}, ("mailbox",)),
    "mailbox_places": ({"names": ["box1", "box2"]}, ("mailbox",)),
    "endpoint_get": ({"id": "ep_1"}, ("endpoint", "attachments_endpoint")),
    "endpoint_standing": ({"target_key": "tmux:7"}, ("endpoints_target",)),
    "endpoints_named": (ENDPOINTS, ("endpoints_name",)),
    "endpoints_attached": (ENDPOINTS, ("attachment", "endpoint")),
    "endpoints_live": ({"ids": ["ep_1"], "silent": 45_000}, ("endpoint",)),
    "endpoint_touch": ({"ids": ["ep_1"]}, ("endpoint",)),
    "endpoint_end": ({"id": "ep_1"}, ("endpoint",)),
    "attachments_clear": ({"ids": ["ep_1"]}, ("attachments_endpoint",)),
    "channel_list": ({"channel": "ch7", "limit": 10}, ("attachment", "endpoint")),
    "sweep_messages": (SWEEP, ("messages_created", "deliveries_fan_out")),
    "sweep_admissions": (SWEEP, ("admissions_created",)),
    "sweep_endpoints": (SWEEP, ("endpoints_ended", "deliveries_endpoint")),
}
TABLES = ("messages", "deliveries", "endpoints", "admissions", "mailboxes", "attachments")
NUMBERS = {
    Dialect.SQLITE: "(with recursive c(n) as (select 1 union all select n + 1 from c where n < {many}) select n from c)",
    Dialect.POSTGRES: "generate_series(1, {many}) numbers(n)",
}
FILL = (
    "insert into messages (id, digest, sender, addressed, kind, priority, reply_to, payload, ack_mode, created_by, "
    "created_at) select 'm' || n, 'd', 's' || (n % 90), 'x', 'chat', 'normal', 'm' || (n % 900), 'text', 'injected', "
    "'root', n from {numbers}",
    "insert into deliveries (id, message_id, target_key, carrier, endpoint_id, mailbox, reach, state, rank, ack_mode, "
    "max_attempts, handoff_seq, created_at, updated_at) select 'dl_' || n, 'm' || n, 't' || (n % 90), 'tmux', "
    "'ep_' || (n % 500), 'box' || (n % 3), 'any', 'injected', 1, 'injected', 5, n, n, n from {numbers}",
    "insert into endpoints (id, name, carrier, address, target_key, reach, ack_mode, max_attempts, created_by, created_at, "
    "seen_at, ended_at) select 'ep_' || n, 'name' || n, 'tmux', '{{}}', 'tmux:' || n, 'any', 'injected', 5, 'root', n, n, "
    "case when n % 2 = 0 then n end from {numbers}",
    "insert into attachments (what, name, endpoint_id) select 'channel', 'ch' || (n % 90), 'ep_' || n from {numbers}",
    "insert into admissions (client_id, key, message_id, digest, created_at) select '', 'm' || n, 'm' || n, 'd', n "
    "from {numbers}",
    "insert into mailboxes (name, handoff_seq, read_seq) select 'box' || n, n, 0 from {numbers}",
)


FEW = ("endpoint", "attachment")
"""What there are few of at any time: until the database has counted them, any index will do."""


def _wrong(dialect: Dialect, name: str, plan: str, many: int) -> list[str]:
    few = dialect is Dialect.POSTGRES and many == 0
    wanted = [AUTO[dialect].get(index, index) for index in HOT[name][1] if not (few and index.startswith(FEW))]
    return [f"{name}: {index} is not in\n{plan}" for index in wanted if index not in plan]


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("many", [0, 20_000])
def test_postgres_goes_by_the_indexes(databases: Databases, known: str, many: int) -> None:
    # P7
    url = databases.create()
    statements = Statements(Dialect.POSTGRES)
    wrong: list[str] = []
    with psycopg.connect(url, autocommit=True, options=SESSION) as connection:
        for table in TABLES:
            connection.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
        for text in FILL if many else ():
            connection.execute(text.format(numbers=NUMBERS[Dialect.POSTGRES].format(many=many)).encode())
        if known == "everything":
            connection.execute("vacuum analyze")
        for name in sorted(set(HOT) & set(statements)):
            given = frozenset(key for key in statements.optional(name) if HOT[name][0].get(key) is not None)
            text = statements.get(name, given).steps[0]
            rows = (
                psycopg.RawCursor(connection).execute(f"explain (costs off, generic_plan) {text}".encode()).fetchall()
            )
            plan = "\n".join(row[0] for row in rows)
            wrong += _wrong(Dialect.POSTGRES, name, plan, many)
            found = re.search(rf"Seq Scan on ({'|'.join(TABLES)})\b", plan)
            if found:
                wrong.append(f"{name} reads {found.group(1)} whole:\n{plan}")
    databases.drop(url)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("many", [0, 20_000])
def test_sqlite_goes_by_the_indexes(tmp_path: Path, known: str, many: int) -> None:
    # P7
    connection = apsw.Connection(str(tmp_path / "plans.db"))
    connection.execute("pragma synchronous = off")
    for step in migrations(Dialect.SQLITE):
        connection.execute(step.sql)
    for text in FILL if many else ():
        connection.execute(text.format(numbers=NUMBERS[Dialect.SQLITE].format(many=many)))
    if known == "everything":
        connection.execute("analyze")
    statements = Statements(Dialect.SQLITE)
    wrong: list[str] = []
    for name in sorted(set(HOT) & set(statements)):
        params = HOT[name][0]
        given = frozenset(key for key in statements.optional(name) if params.get(key) is not None)
        statement = statements.get(name, given)
        values = {**params, "now": NOW}
        for key in statement.lists:
            values[key] = json.dumps(values[key])
        plan = "\n".join(
            row[3] for step in statement.steps for row in connection.execute(f"explain query plan {step}", values)
        )
        wrong += _wrong(Dialect.SQLITE, name, plan, many)
        made = re.findall(r"MATERIALIZE (\w+)", plan)
        scanned = re.findall(r"SCAN (m|d|e|k|b|o|n|\w+s)\b(?! USING (?:COVERING )?INDEX)(?! VIRTUAL)", plan)
        if set(scanned) - set(made):
            wrong.append(f"{name} reads a table whole:\n{plan}")
    assert not wrong, "\n\n".join(wrong)
