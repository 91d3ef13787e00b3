"""The plans of the doorbell and of hand-overs: each goes by its indexes, at any size and with any statistics."""

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
QUEUE = {"queue": "q1", "most": 1000, "window": 8, "limit": 1000, "silent": 45_000}
ROW = {"queue": "q1", "endpoint_id": "ep_7", "endpoint_ids": ["ep_7", "ep_8"]}
SET = {**ROW, "message_id": "m1", "old": None, "wait": 300_000, "step": 0, "own": False}
AUTO = {
    "sqlite": {
        "ring": "sqlite_autoindex_rings_1",
        "attachment": "sqlite_autoindex_attachments_1",
        "attempt": "sqlite_autoindex_attempts_1",
        "target": "sqlite_autoindex_targets_1",
    },
    "postgres": {
        "ring": "rings_pkey",
        "attachment": "attachments_pkey",
        "attempt": "attempts_pkey",
        "target": "targets_pkey",
    },
}
WORK = ("todos_ready", "todos_assigned", "attempt", "todos_leased")
SEATS = (
    "attachment",
    "attachments_endpoint",
    "deliveries_ready",
    "deliveries_delayed",
    "deliveries_leased",
    "deliveries_inbox",
    "target",
    "todos_holder",
    "todos_assigned",
    "rings_endpoint",
)

# What a statement is asked with, and the indexes its plan must name.
HOT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ring_queues": (QUEUE, ("attachment", "ring")),
    "ring_work": (QUEUE, WORK),
    "rings_of": (QUEUE, ("ring", "deliveries_fan_out")),
    "ring_seats": (QUEUE, SEATS),
    "ring_end": (ROW, ("ring",)),
    "ring_forget": (ROW, ("ring",)),
    "handover_take": ({"limit": 50}, ()),
    "dead_letter_take": ({"limit": 50}, ()),
}
NO_PLAN = {"ring_lock", "ring_set", "ring_answer", "handover_due"}
"""They search nothing, or insert one row by its key."""

TABLES = ("todos", "rings", "deliveries", "attachments", "endpoints", "targets", "attempts", "messages")
NUMBERS = {
    Dialect.SQLITE: "(with recursive c(n) as (select 1 union all select n + 1 from c where n < {many}) select n from c)",
    Dialect.POSTGRES: "generate_series(1, {many}) numbers(n)",
}
FILL = (
    "insert into todos (id, queue, source, title, state, assignee, created_by, created_at, updated_at) "
    "select 'td_' || n, 'q' || (n % 90), 'api', 'x', 'pending', case when n % 3 = 0 then 'a' || (n % 50) end, 'root', n, n "
    "from {numbers}",
    "insert into todos (id, queue, source, title, state, owner, lease_id, claimed_at, lease_expires_at, created_by, "
    "created_at, updated_at) select 'tc_' || n, 'q' || (n % 90), 'api', 'x', 'claimed', 'a' || n || '/w', 'ls_' || n, n, "
    "{now} + n, 'root', n, n from {numbers}",
    "insert into todos (id, queue, source, title, state, owner, lease_id, claimed_at, completed_at, created_by, created_at, "
    "updated_at) select 'tf_' || n, 'q' || (n % 90), 'api', 'x', 'done', 'a' || n, 'ls_' || n, n, n, 'root', n, n "
    "from {numbers}",
    "insert into attempts (todo_id, lease_id, ended_at, outcome) select 'td_' || n, 'ls_' || n, n, 'released' "
    "from {numbers}",
    "insert into endpoints (id, name, carrier, address, target_key, reach, ack_mode, max_attempts, created_by, created_at, "
    "seen_at) select 'ep_' || n, 'a' || n, 'tmux', '{{}}', 'tmux:' || n, 'any', 'injected', 5, 'root', n, n "
    "from {numbers}",
    "insert into attachments (what, name, endpoint_id) select 'queue', 'q' || (n % 90), 'ep_' || n from {numbers}",
    "insert into attachments (what, name, endpoint_id) select 'channel', 'c' || (n % 90), 'ep_' || n from {numbers}",
    "insert into targets (target_key, carrier) select 'tmux:' || n, 'tmux' from {numbers}",
    "insert into messages (id, digest, sender, addressed, kind, priority, payload, ack_mode, created_by, created_at) "
    "select 'm' || n, 'd', 'postroom', 'x', 'queue.ring', 'low', 'text', 'injected', 'postroom', n from {numbers}",
    "insert into deliveries (id, message_id, target_key, carrier, endpoint_id, mailbox, reach, state, rank, ack_mode, "
    "max_attempts, handoff_seq, created_at, updated_at) select 'dl_' || n, 'm' || n, 'tmux:' || n, 'tmux', 'ep_' || n, "
    "'a' || n, 'any', case when n % 7 = 0 then 'pending' else 'injected' end, 2, 'injected', 5, "
    "case when n % 7 = 0 then null else n end, n, n from {numbers}",
    "insert into rings (queue, endpoint_id, message_id, rung_at, next_at) select 'q' || (n % 90), 'ep_' || n, 'm' || n, n, n "
    "from {numbers}",
)
FEW = ("ring", "attachment", "attempt", "target")
"""What there are few of until the database has counted them: any index will do."""


def _wrong(dialect: Dialect, name: str, plan: str, *, empty: bool) -> list[str]:
    unsure = dialect is Dialect.POSTGRES and empty
    wanted = [AUTO[dialect].get(index, index) for index in HOT[name][1] if not (unsure and index.startswith(FEW))]
    return [f"{name}: {index} is not in\n{plan}" for index in wanted if index not in plan]


def _statement(dialect: Dialect, name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    statement = Statements(dialect).get(name)
    values = {**HOT[name][0], "now": NOW}
    for key in statement.lists:
        values[key] = json.dumps(values[key])
    return statement.steps, values


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("many", [0, 20_000])
def test_postgres_goes_by_the_indexes(databases: Databases, known: str, many: int) -> None:
    url = databases.create()
    wrong: list[str] = []
    with psycopg.connect(url, autocommit=True, options=SESSION) as connection:
        for table in TABLES:
            connection.execute(f"alter table {table} set (autovacuum_enabled = off)".encode())
        for text in FILL if many else ():
            connection.execute(text.format(numbers=NUMBERS[Dialect.POSTGRES].format(many=many), now=NOW).encode())
        if known == "everything":
            connection.execute("vacuum analyze")
        for name in sorted(set(HOT) & set(Statements(Dialect.POSTGRES))):
            (text,), _ = _statement(Dialect.POSTGRES, name)
            cursor = psycopg.RawCursor(connection).execute(f"explain (costs off, generic_plan) {text}".encode())
            plan = "\n".join(row[0] for row in cursor.fetchall())
            wrong += _wrong(Dialect.POSTGRES, name, plan, empty=many == 0)
            found = re.search(rf"Seq Scan on ({'|'.join(TABLES)})\b", plan)
            if found:
                wrong.append(f"{name} reads {found.group(1)} whole:\n{plan}")
    databases.drop(url)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("many", [0, 20_000])
def test_sqlite_goes_by_the_indexes(tmp_path: Path, known: str, many: int) -> None:
    connection = apsw.Connection(str(tmp_path / "plans.db"))
    connection.execute("pragma synchronous = off")
    for step in migrations(Dialect.SQLITE):
        connection.execute(step.sql)
    for text in FILL if many else ():
        connection.execute(text.format(numbers=NUMBERS[Dialect.SQLITE].format(many=many), now=NOW))
    if known == "everything":
        connection.execute("analyze")
    wrong: list[str] = []
    for name in sorted(set(HOT) & set(Statements(Dialect.SQLITE))):
        steps, values = _statement(Dialect.SQLITE, name)
        plan = "\n".join(row[3] for step in steps for row in connection.execute(f"explain query plan {step}", values))
        wrong += _wrong(Dialect.SQLITE, name, plan, empty=many == 0)
        if re.search(r"SCAN (w|c|d|p|k|e|g|a|r|q|todos|rings)\b(?! USING (?:COVERING )?INDEX)", plan):
            wrong.append(f"{name} reads a table whole:\n{plan}")
    assert not wrong, "\n\n".join(wrong)


def test_every_statement_of_a_ring_has_a_plan_or_a_reason() -> None:
    named = {
        name for dialect in Dialect for name in Statements(dialect) if re.match("rings?_|handover|dead_letter", name)
    }
    assert named - set(HOT) == NO_PLAN
