"""The tests' own ground: stores that are separate and empty, and a server that keeps its word across a kill."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from postroom.errors import Unavailable
from postroom.store.postgres import PostgresEngine
from tests.conftest import Store
from tests.postgres import Databases, PostgresServer
from tests.processes import Processes, until, wait_until


async def test_store_is_open_and_reopens(store: Store, new_engine: Callable[[], Store]) -> None:
    await store.close()
    again = new_engine()
    await again.open()
    await again.close()


def test_databases_are_separate_and_can_be_emptied(databases: Databases) -> None:
    first, second = databases.create(), databases.create()
    insert = "insert into queues (name, paused) values ('q', false)"
    count = "select count(*) from queues"
    with psycopg.connect(first, autocommit=True) as one, psycopg.connect(second, autocommit=True) as two:
        one.execute(insert)
        assert one.execute(count).fetchone() == (1,)
        assert two.execute(count).fetchone() == (0,)
    databases.empty(first)
    with psycopg.connect(first) as one:
        assert one.execute(count).fetchone() == (0,)
    databases.drop(first)
    databases.drop(second)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(first)


async def test_a_killed_server_keeps_what_it_answered(private_postgres: PostgresServer) -> None:
    engine = PostgresEngine(private_postgres.url)
    await engine.open()
    with psycopg.connect(private_postgres.url, autocommit=True) as connection:
        connection.execute("create table kept (n integer)")
        connection.execute("insert into kept values (7)")
    first = private_postgres.pid
    private_postgres.kill_immediate()
    with pytest.raises(Unavailable):
        await PostgresEngine(private_postgres.url).open()
    private_postgres.start()
    assert private_postgres.pid != first
    with psycopg.connect(private_postgres.url) as connection:
        assert connection.execute("select n from kept").fetchall() == [(7,)]
    await engine.close()


async def test_processes_are_ended_by_their_own_pid(processes: Processes) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    stubborn = processes.python("-c", deaf)
    quiet = processes.python("-c", "import time; print('on', flush=True); time.sleep(600)")
    wait_until(lambda: "on" in processes.output(quiet), "the process speaks")
    await until(lambda: "on" in processes.output(stubborn), "the process speaks")
    assert processes.end(quiet) == -15
    assert stubborn.poll() is None
    stubborn.kill()
    assert processes.end(stubborn) == -9
