"""The plans of what stands where: counts and stories go by their indexes, however much is finished or was sent."""

from __future__ import annotations

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
SEQ = {"sqlite": "INTEGER PRIMARY KEY", "postgres": "deliveries_pkey"}
MESSAGE = {"sqlite": "sqlite_autoindex_messages_1", "postgres": "messages_id_key"}
NAMES = {"seq": SEQ, "message": MESSAGE}

# What a statement is asked with, and the indexes its plan must name.
HOT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "traffic_counts": (
        {},
        (
            "deliveries_ready",
            "deliveries_delayed",
            "deliveries_leased",
            "deliveries_unacknowledged",
            "deliveries_dead",
            "seq",
            "message",
        ),
    ),
    "traffic_deferred": (
        {"limit": 20, "most": 1000},
        ("targets_busy", "deliveries_ready", "deliveries_delayed"),
    ),
    "traffic_endpoints": ({"silent": 45_000}, ("endpoints_target",)),
    "messages_about": ({"about": "td_7", "limit": 50}, ("messages_about",)),
    "notices_of": ({"about": "td_7", "limit": 50}, ("messages_notices",)),
}
TABLES = ("messages", "deliveries", "endpoints", "targets")
NUMBERS = {
    Dialect.SQLITE: "(with recursive c(n) as (select 1 union all select n + 1 from c where n < {many}) select n from c)",
    Dialect.POSTGRES: "generate_series(1, {many}) numbers(n)",
}
FILL = (
    "insert into messages (id, digest, sender, addressed, kind, priority, payload, ack_mode, created_by, created_at, "
    "correlation_id) select 'm' || n, 'd', 's', 'x', 'queue.ring', 'low', 'text', 'injected', "
    "case when n % 9 = 0 then 'postroom' else 'root' end, n, 'td_' || n from {numbers}",
    "insert into deliveries (id, message_id, target_key, carrier, mailbox, reach, state, rank, ack_mode, max_attempts, "
    "handoff_seq, reason, created_at, updated_at) select 'dl_' || n, 'm' || n, 'tmux:' || n, 'tmux', 'box' || n, 'any', "
    "case n % 20 when 0 then 'pending' when 1 then 'failed' when 2 then 'awaiting_ack' else 'injected' end, 1, 'injected', "
    "5, n, case n % 20 when 1 then 'exhausted' end, n, n from {numbers}",
    "insert into endpoints (id, name, carrier, address, target_key, reach, ack_mode, max_attempts, created_by, created_at, "
    "seen_at, ended_at) select 'ep_' || n, 'a' || n, 'tmux', '{{}}', 'tmux:' || n, 'any', 'injected', 5, 'root', n, n, "
    "case when n % 50 > 0 then n end from {numbers}",
    "insert into targets (target_key, carrier, busy_reason, busy_since) select 'tmux:' || n, 'tmux', "
    "case when n % 100 = 0 then 'busy' end, case when n % 100 = 0 then n end from {numbers}",
)


def _wrong(dialect: Dialect, name: str, plan: str) -> list[str]:
    wanted = [NAMES[index][dialect] if index in NAMES else index for index in HOT[name][1]]
    return [f"{name}: {index} is not in\n{plan}" for index in wanted if index not in plan]


@pytest.mark.parametrize("known", ["nothing", "everything"])
@pytest.mark.parametrize("many", [0, 20_000])
def test_postgres_goes_by_the_indexes(databases: Databases, known: str, many: int) -> None:
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
        for name in sorted(HOT):
            text = statements.get(name).steps[0]
            cursor = psycopg.RawCursor(connection).execute(f"explain (costs off, generic_plan) {text}".encode())
            plan = "\n".join(row[0] for row in cursor.fetchall())
            wrong += _wrong(Dialect.POSTGRES, name, plan)
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
        connection.execute(text.format(numbers=NUMBERS[Dialect.SQLITE].format(many=many)))
    if known == "everything":
        connection.execute("analyze")
    statements = Statements(Dialect.SQLITE)
    wrong: list[str] = []
    for name in sorted(HOT):
        text = statements.get(name).steps[0]
        values = {**HOT[name][0], "now": NOW}
        plan = "\n".join(row[3] for row in connection.execute(f"explain query plan {text}", values))
        wrong += _wrong(Dialect.SQLITE, name, plan)
        if re.search(r"SCAN (d|m|e|t|f|messages|deliveries|endpoints|targets)\b(?! USING (?:COVERING )?INDEX)", plan):
            wrong.append(f"{name} reads a table whole:\n{plan}")
    connection.close()
    assert not wrong, "\n\n".join(wrong)


def test_every_statement_of_the_traffic_has_a_plan() -> None:
    ours = re.compile("traffic_|notices_|messages_about")
    named = {name for dialect in Dialect for name in Statements(dialect) if ours.match(name)}
    assert named == set(HOT)
