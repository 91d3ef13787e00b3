"""The plans over deliveries and targets: each goes by its index, however many others and finished ones there are."""

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
MANY = 100_000
KEY = "opencode:t7"
TARGET = {"target_key": KEY, "reaches": ["any"]}
LEASE = {**TARGET, "lease_id": "ls_new", "lease": 30_000}
LAPSE = {"target_key": KEY, "why": "lapsed", "unknown": 60_000, "limit": 200}
SETTLE = {
    "id": "dl_7",
    "lease_id": "ls_7",
    "target_key": KEY,
    "outcome": "written",
    "reason": None,
    "turn": True,
    "once": True,
    "ack": 30_000,
    "unknown": 60_000,
}
TURN = {"turn_most": 7_200_000, "limit": 200}
ID = {"sqlite": "sqlite_autoindex_deliveries_1", "postgres": "deliveries_id_key"}
MESSAGE = {"sqlite": "sqlite_autoindex_messages_1", "postgres": "messages_id_key"}
PLACE = {"sqlite": "sqlite_autoindex_targets_1", "postgres": "targets_pkey"}
NAMES = {"id": ID, "message": MESSAGE, "target": PLACE}
ARMS = ("deliveries_ready", "deliveries_delayed", "deliveries_leased", "target")

# What a statement is asked with, and the indexes its plan must name.
HOT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "target_ready": ({"reaches": ["any"], "limit": 100, "after": ""}, ARMS),
    "target_next_due": (
        {**TARGET, "turn_most": 1},
        ("deliveries_ready", "deliveries_delayed", "deliveries_leased", "target"),
    ),
    "target_seated": ({"target_key": KEY, "silent": 45_000}, ("endpoints_target",)),
    "target_bereft": ({"target_key": KEY}, ("deliveries_ready", "deliveries_delayed")),
    "target_defer": ({"target_key": KEY, "reason": "busy"}, ("target",)),
    "target_pause": ({"target_key": KEY, "wait": 1000}, ("target",)),
    "target_turns": ({"reaches": ["any"], "limit": 100}, ("targets_turn", "id", "message")),
    "target_end_turn": ({"target_key": KEY, "id": "dl_7", "answered": True, "reason": None}, ("target", "id")),
    "delivery_head": (TARGET, (*ARMS, "id", "message")),
    "delivery_head_id": (TARGET, ARMS),
    "delivery_lease": ({**LEASE, "id": "dl_7"}, ("id",)),
    "delivery_parcel": ({"id": "dl_7"}, ("id", "message", "target")),
    "delivery_attached": ({"id": "dl_7"}, ("id", "endpoints_target")),
    "delivery_lapse": (LAPSE, ("deliveries_leased",)),
    "delivery_lapse_all": (LAPSE, ("deliveries_lapse",)),
    "delivery_settle": (SETTLE, ("id", "target")),
    "delivery_ack": ({"id": "dl_7"}, ("id",)),
    "delivery_retry": ({"id": "dl_7"}, ("id",)),
    "delivery_cancel": ({"message_id": "msg_7", "why": "x"}, ("deliveries_fan_out", "id")),
    "delivery_read": ({"mailbox": "t7", "place": 7, "ack": 30_000}, ("deliveries_inbox", "id")),
    "delivery_seen": ({"id": "dl_7"}, ("id",)),
    "delivery_receipts": ({"id": "msg_7"}, ("message", "deliveries_fan_out")),
    "deliveries_of": ({"message_ids": ["msg_7", "msg_8"]}, ("deliveries_fan_out",)),
    "post_due": (TURN, ("deliveries_lapse", "deliveries_ack", "deliveries_expiry", "targets_turn")),
    "post_lapsed": (LAPSE, ("deliveries_lapse", "id")),
    "post_overdue": (LAPSE, ("deliveries_ack", "id")),
    "post_expired": (LAPSE, ("deliveries_expiry", "id")),
    "post_turns_over": (TURN, ("targets_turn", "target")),
}
# How many rows of each kind, and what tells them from a finished delivery.
LIVE = 500
KINDS = {
    "injected": ("injected", "handoff_seq, delivered_at", "n, {now}"),
    "ready": ("pending", "expires_at", "case when n % 3 = 0 then {now} + n end"),
    "delayed": ("pending", "next_attempt_at", "{now} + n"),
    "leased": ("pending", "lease_id, lease_expires_at", "'ls_' || n, {now} + n"),
    "waiting": ("awaiting_ack", "handoff_seq, ack_deadline", "n, {now} + n"),
    "failed": ("failed", "reason", "'exhausted'"),
}
NUMBERS = {
    Dialect.SQLITE: "(with recursive c(n) as (select {first} union all select n + 1 from c where n < {last}) "
    "select n from c)",
    Dialect.POSTGRES: "generate_series({first}, {last}) numbers(n)",
}


def _fill(dialect: Dialect, finished: int) -> list[str]:
    """SQL that makes this many finished deliveries, some of each other kind, and their messages and targets."""
    texts = []
    first = 1
    for kind, (state, columns, values) in KINDS.items():
        last = first + (finished if kind == "injected" else LIVE) - 1
        numbers = NUMBERS[dialect].format(first=first, last=last)
        texts.append(
            "insert into deliveries (id, message_id, target_key, carrier, mailbox, reach, state, rank, ack_mode, "
            f"max_attempts, created_at, updated_at, {columns}) select 'dl_' || n, 'msg_' || n, "
            f"'opencode:t' || (n % {LIVE}), 'opencode', 't' || (n % {LIVE}), 'any', '{state}', 1, 'injected', 10, "
            f"{NOW}, {NOW}, {values.format(now=NOW)} from {numbers}"
        )
        first = last + 1
    everyone = NUMBERS[dialect].format(first=1, last=first - 1)
    texts.append(
        "insert into messages (id, digest, sender, addressed, kind, priority, payload, ack_mode, created_by, created_at) "
        f"select 'msg_' || n, 'd', 's', 't', 'chat', 'normal', 'hello', 'injected', 'root', {NOW} from {everyone}"
    )
    places = NUMBERS[dialect].format(first=0, last=LIVE - 1)
    texts.append(
        "insert into targets (target_key, carrier, turn_delivery, turn_since) select 'opencode:t' || n, 'opencode', "
        f"case when n % 5 = 0 then 'dl_' || n end, case when n % 5 = 0 then {NOW} + n end from {places}"
    )
    return texts


def _wrong(dialect: Dialect, name: str, plan: str, indexes: tuple[str, ...]) -> list[str]:
    missing = [NAMES[index][dialect] if index in NAMES else index for index in indexes]
    return [f"{name}: {index} is not in\n{plan}" for index in missing if index not in plan]


def _given(statements: Statements, name: str) -> frozenset[str]:
    return frozenset(key for key in statements.optional(name) if HOT[name][0].get(key) is not None)


def _explain(connection: psycopg.Connection[Any], statements: Statements, name: str, *, generic: bool) -> str:
    statement = statements.get(name, _given(statements, name))
    values: dict[str, Any] = {**HOT[name][0], "skew": 0}
    cursor = psycopg.RawCursor(connection)
    if generic:
        cursor.execute(f"explain (costs off, generic_plan) {statement.steps[0]}".encode())
    else:
        cursor.execute(f"explain (costs off) {statement.steps[0]}".encode(), [values[key] for key in statement.params])
    return "\n".join(row[0] for row in cursor.fetchall())


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("finished", [0, MANY])
def test_postgres_goes_by_the_indexes(databases: Databases, known: str, finished: int) -> None:
    # P7
    url = databases.create()
    statements = Statements(Dialect.POSTGRES)
    wrong: list[str] = []
    with psycopg.connect(url, autocommit=True, options=SESSION) as connection:
        for table in ("deliveries", "messages", "targets"):
            connection.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
        for text in _fill(Dialect.POSTGRES, finished) if finished else ():
            connection.execute(text.encode())
        if known == "everything":
            connection.execute("vacuum analyze")
        for name in sorted(set(HOT) & set(statements)):
            for generic in (False, True):
                plan = _explain(connection, statements, name, generic=generic)
                wrong += _wrong(Dialect.POSTGRES, f"{name} generic={generic}", plan, HOT[name][1])
                if re.search("Seq Scan on (deliveries|messages)", plan):
                    wrong.append(f"{name} generic={generic} reads the table:\n{plan}")
    databases.drop(url)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("finished", [0, MANY])
def test_sqlite_goes_by_the_indexes(tmp_path: Path, known: str, finished: int) -> None:
    # P7
    connection = apsw.Connection(str(tmp_path / "plans.db"))
    connection.execute("pragma synchronous = off")
    for step in migrations(Dialect.SQLITE):
        connection.execute(step.sql)
    for text in _fill(Dialect.SQLITE, finished) if finished else ():
        connection.execute(text)
    if known == "everything":
        connection.execute("analyze")
    statements = Statements(Dialect.SQLITE)
    wrong: list[str] = []
    for name in sorted(set(HOT) & set(statements)):
        statement = statements.get(name, _given(statements, name))
        values: dict[str, Any] = {**HOT[name][0], "now": NOW}
        for key in statement.lists:
            values[key] = json.dumps(values[key])
        plan = "\n".join(
            row[3] for step in statement.steps for row in connection.execute(f"explain query plan {step}", values)
        )
        wrong += _wrong(Dialect.SQLITE, name, plan, HOT[name][1])
        scanned = set(re.findall(r"SCAN (deliveries|messages|targets|d|m|t|g)\b(?! USING (?:COVERING )?INDEX)", plan))
        if scanned - set(re.findall(r"MATERIALIZE (\w+)", plan)):
            wrong.append(f"{name} reads the table:\n{plan}")
    connection.close()
    assert not wrong, "\n\n".join(wrong)


def test_every_statement_over_deliveries_has_a_plan() -> None:
    named = {name for dialect in Dialect for name in Statements(dialect)}
    assert {name for name in named if re.match("delivery_|deliveries_|target_|post_", name)} - {
        "delivery_insert"
    } == set(HOT)
