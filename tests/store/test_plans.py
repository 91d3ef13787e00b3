"""The plans: each hot statement goes by the index that was made for it, at any size and with any statistics."""

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
CLAIM = {
    "queues": ["q1", "q2"],
    "queue": "q1",
    "rooms": [None, None],
    "capped": False,
    "owner": "ann/w",
    "name": "ann",
    "called": "w",
    "by_name": 1,
    "ttl": None,
    "limit": 20,
    "window": 28,
    "due_window": 28,
    "new_lease": "ls_new",
    "claim_key": None,
}
ENDING = {
    "id": "td_1",
    "owner": "ann",
    "ended_by": "ann",
    "lease_id": "ls_1",
    "verb": "fail",
    "whole": 1,
    "brief": None,
}
WORDS = {"result": None, "note": None, "retry": True, "delay": None, "jitter": 0.0}
SWEEP = {"queues": ["q1", "q2"], "limit": 200, "queue": "q1", "keep": 1000}
ID = {"sqlite": "sqlite_autoindex_todos_1", "postgres": "todos_id_key"}
SCAN_ARMS = ("todos_ready", "todos_assigned", "todos_delayed", "todos_parked", "todos_leased")

# What a statement is asked with, and the indexes its plan must name; `id` is the primary way to one todo.
HOT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "todo_claim": (CLAIM, (*SCAN_ARMS, "id")),
    "todo_complete_claim": ({**CLAIM, **ENDING, **WORDS}, (*SCAN_ARMS, "id")),
    "claim_candidates": (CLAIM, SCAN_ARMS),
    "claim_take": ({**CLAIM, "ids": ["td_1", "td_2"]}, ("id",)),
    "claim_lapsed": ({"ids": ["td_1", "td_2"]}, ("id",)),
    "todo_claim_one": ({**CLAIM, "id": "td_1"}, ("id",)),
    "claims_by_key": ({"owner": "ann", "claim_key": "c1"}, ("todos_claim_key",)),
    "caps_used": (SWEEP, ("todos_leased",)),
    "todo_bury_spent": (SWEEP, ("todos_leased",)),
    "claim_next_due": (SWEEP, ("todos_delayed", "todos_parked", "todos_leased")),
    "claim_assignees": ({"queue": "q1"}, ("todos_assigned",)),
    "todo_by_key": ({"queue": "q1", "idempotency_key": "k1"}, ("todos_dedupe",)),
    "todo_get": ({"id": "td_1"}, ("id",)),
    "todo_whole": ({"ids": ["td_1", "td_2"]}, ("id",)),
    "todo_heartbeat": ({**ENDING, "ttl": None}, ("id",)),
    "todo_complete": ({**ENDING, "result": None}, ("id",)),
    "todo_end": ({**ENDING, **WORDS}, ("id",)),
    "todo_end_many": (
        {**ENDING, "items": [{"id": "td_1", "lease_id": "ls_1", "verb": "fail", "retry": True}]},
        ("id",),
    ),
    "todo_complete_many": ({**ENDING, "items": [{"id": "td_1", "lease_id": "ls_1", "result": None}]}, ("id",)),
    "todo_key_rival": ({"id": "td_1"}, ("id", "todos_dedupe")),
    "todo_retry": ({"id": "td_1", "creator": None}, ("id",)),
    "todo_steered": ({"id": "td_1", "state": "failed", "creator": None}, ("id",)),
    "todo_cancel": ({"id": "td_1", "creator": None, "entry": "ls_2", "note": None}, ("id",)),
    "queue_names": ({"all_of": 1}, (*SCAN_ARMS, "todos_dead", "todos_done")),
    "queue_depths": (SWEEP, (*SCAN_ARMS, "todos_dead")),
    "sweep_lapsed": (SWEEP, ("todos_leased", "id")),
    "sweep_parked": (SWEEP, ("todos_parked", "id")),
    "sweep_delayed": (SWEEP, ("todos_delayed", "id")),
    "sweep_done_ids": (SWEEP, ("todos_done",)),
    "sweep_dead_ids": (SWEEP, ("todos_dead",)),
    "sweep_todos_delete": ({"ids": ["td_1", "td_2"]}, ("id",)),
}
KINDS = {
    "done": ("done", "owner, lease_id, claimed_at, completed_at", "'ann', 'ls_' || n, {now}, {now}"),
    "ready": ("pending", "assignee", "null"),
    "assigned": ("pending", "assignee", "'ann'"),
    "delayed": ("pending", "available_at", "{now} + n"),
    "parked": ("failed", "next_retry_at", "{now} + n"),
    "claimed": (
        "claimed",
        "owner, lease_id, claimed_at, lease_expires_at, claim_key",
        "'ann', 'ls_' || n, {now}, {now} + n, case when n % 2 = 0 then 'c' || n end",
    ),
    "dead": ("failed", "reason, completed_at", "'refused', {now}"),
}
NUMBERS = {
    Dialect.SQLITE: "(with recursive c(n) as (select {first} union all select n + 1 from c where n < {last}) "
    "select n from c)",
    Dialect.POSTGRES: "generate_series({first}, {last}) numbers(n)",
}


def _fill(dialect: Dialect, finished: int, live: int) -> list[str]:
    """SQL that makes this many done todos, and this many of each other kind."""
    texts = []
    first = 1
    for kind, (state, columns, values) in KINDS.items():
        last = first + (finished if kind == "done" else live) - 1
        numbers = NUMBERS[dialect].format(first=first, last=last)
        texts.append(
            "insert into todos (id, queue, source, title, state, idempotency_key, payload, created_by, created_at, "
            f"updated_at, {columns}) select 'td_' || n, 'q' || (n % 4), 'api', 'work', '{state}', 'k' || n, "
            f"'some payload of a usual length', 'root', {NOW} + n, {NOW}, {values.format(now=NOW)} from {numbers}"
        )
        first = last + 1
    return texts


def _wrong(dialect: Dialect, name: str, plan: str, indexes: tuple[str, ...]) -> list[str]:
    missing = [ID[dialect] if index == "id" else index for index in indexes]
    return [f"{name}: {index} is not in\n{plan}" for index in missing if index not in plan]


# PostgreSQL.


def _explain(connection: psycopg.Connection[Any], statements: Statements, name: str, *, generic: bool) -> str:
    params, _ = HOT[name]
    given = frozenset(key for key in statements.optional(name) if params.get(key) is not None)
    statement = statements.get(name, given)
    values = {**params, "skew": 0}
    for key in statement.lists:
        values[key] = json.dumps(values[key])
    cursor = psycopg.RawCursor(connection)
    if generic:
        cursor.execute(f"explain (costs off, generic_plan) {statement.steps[0]}".encode())
    else:
        cursor.execute(f"explain (costs off) {statement.steps[0]}".encode(), [values[key] for key in statement.params])
    return "\n".join(row[0] for row in cursor.fetchall())


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("finished", [0, 50_000])
def test_postgres_goes_by_the_indexes(databases: Databases, known: str, finished: int) -> None:
    # S14
    url = databases.create()
    statements = Statements(Dialect.POSTGRES)
    wrong: list[str] = []
    with psycopg.connect(url, autocommit=True, options=SESSION) as connection:
        connection.execute("alter table todos set (autovacuum_enabled = off)")
        for text in _fill(Dialect.POSTGRES, finished, 500) if finished else ():
            connection.execute(text.encode())
        if known == "everything":
            connection.execute("vacuum analyze")
        for name in sorted(set(HOT) & set(statements)):
            for generic in (False, True):
                plan = _explain(connection, statements, name, generic=generic)
                wrong += _wrong(Dialect.POSTGRES, f"{name} generic={generic}", plan, HOT[name][1])
                if "Seq Scan on todos" in plan:
                    wrong.append(f"{name} generic={generic} reads the table:\n{plan}")
    databases.drop(url)
    assert not wrong, "\n\n".join(wrong)


# SQLite.


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("finished", [0, 50_000])
def test_sqlite_goes_by_the_indexes(tmp_path: Path, known: str, finished: int) -> None:
    # S14
    connection = apsw.Connection(str(tmp_path / "plans.db"))
    connection.execute("pragma synchronous = off")
    for step in migrations(Dialect.SQLITE):
        connection.execute(step.sql)
    if finished:
        for text in _fill(Dialect.SQLITE, finished, 500):
            connection.execute(text)
    if known == "everything":
        connection.execute("analyze")
    statements = Statements(Dialect.SQLITE)
    wrong: list[str] = []
    for name in sorted(set(HOT) & set(statements)):
        params, indexes = HOT[name]
        given = frozenset(key for key in statements.optional(name) if params.get(key) is not None)
        statement = statements.get(name, given)
        values = {**params, "now": NOW}
        for key in statement.lists:
            values[key] = json.dumps(values[key])
        plan = "\n".join(
            row[3] for step in statement.steps for row in connection.execute(f"explain query plan {step}", values)
        )
        wrong += _wrong(Dialect.SQLITE, name, plan, indexes)
        if re.search(r"SCAN (todos|t|n)\b(?! USING (COVERING )?INDEX)", plan):
            wrong.append(f"{name} reads the table:\n{plan}")
    assert not wrong, "\n\n".join(wrong)


def test_every_statement_over_todos_has_a_plan_or_a_reason() -> None:
    named = {name for dialect in Dialect for name in Statements(dialect) if re.search("todo|claim|caps|sweep", name)}
    assert named - set(HOT) == NO_PLAN


NO_PLAN = {
    "caps_lock",
    "claim_barriers",
    "claim_key_lock",
    "event_ids_of_todo",
    "event_todo_insert",
    "event_todos_of",
    "sweep_admissions",
    "sweep_endpoints",
    "sweep_events",
    "sweep_lock",
    "sweep_messages",
    "sweep_requests",
    "todo_insert",
    "todo_insert_many",
    "todo_list",
    "todo_update",
    "token_release_claims",
}
"""They do not search todos (the plans over messages have tests of their own), or are asked by people, by number or id."""
