"""The plans over events: a body seen before, and what is held, are found by their indexes at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from postroom.store.migrate import migrations
from postroom.store.postgres import SESSION
from postroom.store.statements import Dialect, Statements
from tests.postgres import Databases

EVENT: dict[str, Any] = dict.fromkeys(
    ("id", "source", "provider", "delivery_key", "kind", "action", "title", "reason", "verification", "digest"), "x"
)
EVENT |= {"state": "routed", "headers": "[]", "body_json": None, "body": b"{}", "signed_key": False, "trace": "[]"}
HELD = {"held": 1, "limit": 50}
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "event_insert": ({**EVENT, "rules_version": None}, "events_digest"),
    "event_list": (HELD, "events_held"),
    "event_seqs": (HELD, "events_held"),
    "steps_of": ({"ids": '["td_1", "ev_1"]', "limit": 100}, "steps_about"),
    "steps_forget": ({"ids": '["td_1", "ev_1"]'}, "steps_about"),
    "rule_set_current": ({"source": "x"}, "rule_sets"),
}
KEPT = (
    "insert into events (id, source, provider, delivery_key, kind, title, state, verification, digest, received_at, "
    "last_delivery_at, headers, body) select 'ev_' || n, 'x', 'x', 'k' || n, 'push', 't', 'ignored', 'v', 'd' || n, n, n, "
    "'[]', {body} from {numbers}"
)


@pytest.mark.parametrize("name", ASKED)
def test_sqlite_finds_events_by_their_indexes(tmp_path: Path, name: str) -> None:
    connection = apsw.Connection(str(tmp_path / "plans.db"))
    for step in migrations(Dialect.SQLITE):
        connection.execute(step.sql)
    numbers = "with recursive c(n) as (select 1 union all select n + 1 from c where n < 2000) "
    connection.execute(numbers + KEPT.format(body="x''", numbers="c"))
    connection.execute("analyze")
    params, index = ASKED[name]
    statement = Statements(Dialect.SQLITE).get(name, frozenset(params) & Statements(Dialect.SQLITE).optional(name))
    rows = connection.execute(f"explain query plan {statement.steps[0]}", {**params, "now": 1}).fetchall()
    plan = "\n".join(str(row[3]) for row in rows)
    assert index in plan, plan


@pytest.mark.parametrize("name", ASKED)
def test_postgres_finds_events_by_their_indexes(databases: Databases, name: str) -> None:
    url = databases.create()
    params, index = ASKED[name]
    statements = Statements(Dialect.POSTGRES)
    statement = statements.get(name, frozenset(params) & statements.optional(name))
    with psycopg.connect(url, autocommit=True, options=SESSION) as connection:
        connection.execute(KEPT.format(body="''", numbers="generate_series(1, 2000) numbers(n)").encode())
        connection.execute("vacuum analyze events")
        rows = psycopg.RawCursor(connection).execute(f"explain (generic_plan) {statement.steps[0]}".encode()).fetchall()
    databases.drop(url)
    plan = "\n".join(str(row[0]) for row in rows)
    assert index in plan, plan
    assert "Seq Scan on events" not in plan, plan


def test_postgres_takes_deliveries_in_by_its_indexes_from_the_first_one_on(databases: Databases) -> None:
    # A plan that is made while the tables are empty is kept: it must not look through all events of a source.
    url = databases.create()
    statement = Statements(Dialect.POSTGRES).get("event_take_in")
    with psycopg.connect(url, autocommit=True, options=SESSION) as connection:
        rows = psycopg.RawCursor(connection).execute(f"explain (generic_plan) {statement.steps[0]}".encode()).fetchall()
    databases.drop(url)
    plan = "\n".join(str(row[0]) for row in rows)
    assert "Seq Scan" not in plan, plan
    assert "Index Cond: ((source = c" in plan, plan
    assert "AND (digest = c" in plan, plan
    assert "Index Cond: ((queue = a" in plan, plan
    assert "AND (idempotency_key = a" in plan, plan
