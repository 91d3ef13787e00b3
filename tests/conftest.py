"""What every test may ask for: an opened store on each engine, databases and servers of its own, and processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from postroom.store.postgres import PostgresEngine
from postroom.store.sqlite import SqliteEngine
from tests.postgres import LASTING, PASSING, Databases, PostgresServer
from tests.processes import Processes

Store = SqliteEngine | PostgresEngine

# A shell makes what it runs in the background deaf to the keyboard, and whatever the tests start would inherit that.
for _signal, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)

# `dev` is for the minutes between two edits, `ci` for a verdict on the code that is there, with the same examples each
# time, and `hunt` for examples that nobody has seen yet; none of them counts how long an example takes.
_PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "dev", max_examples=25, stateful_step_count=30, deadline=None, print_blob=True, suppress_health_check=_PATIENT
)
for _name, _derandomize in (("ci", True), ("hunt", False)):
    settings.register_profile(
        _name,
        max_examples=200,
        stateful_step_count=50,
        deadline=None,
        derandomize=_derandomize,
        print_blob=True,
        suppress_health_check=_PATIENT,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


APART = ("opencode", "clients")
"""The marks of the tests against the clients' own programs, which take 350 MB each and are run when they are asked for."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the clients' own programs out where they were not asked for."""
    asked = str(config.getoption("-m"))
    apart = [mark for mark in APART if mark not in asked]
    left_out = [item for item in items if any(item.get_closest_marker(mark) is not None for mark in apart)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have counted (`record_property("counted", …)`), whichever process ran them."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name == "counted":
                        terminalreporter.write_line(str(value))


@pytest.fixture(scope="session")
def clock() -> Callable[[], int]:
    """The host's clock in ms UTC; tests move time with the engine's `skew`."""
    return lambda: time.time_ns() // 1_000_000


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Databases on a PostgreSQL that serves the whole run: POSTROOM_TEST_POSTGRES_URL, else a server of this run's own."""
    given = os.environ.get("POSTROOM_TEST_POSTGRES_URL")
    server = None if given else PostgresServer(PASSING)
    try:
        made = Databases(given or (server.url if server else ""), f"postroom_test_{os.getpid()}")
        try:
            yield made
        finally:
            made.close()
    finally:
        if server is not None:
            server.remove()


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """The URL of a migrated, empty PostgreSQL database of this test's own."""
    url = databases.create()
    yield url
    databases.drop(url)


@pytest.fixture
def private_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test's own, to be killed and started again; its database is empty, without schema."""
    server = PostgresServer(LASTING)
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def new_engine(request: pytest.FixtureRequest, tmp_path: Path, clock: Callable[[], int]) -> Callable[[], Store]:
    """Makes an engine over this test's own database, not yet opened; each call is as another process would see it."""
    if request.param == "sqlite":
        return lambda: SqliteEngine(tmp_path / "postroom.db", clock)
    url: str = request.getfixturevalue("postgres_url")
    return lambda: PostgresEngine(url)


@pytest.fixture
async def store(new_engine: Callable[[], Store]) -> AsyncIterator[Store]:
    """An opened engine on an empty database of this test's own; the test runs once on each engine."""
    engine = new_engine()
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes for the test and ends those that still run after it."""
    started = Processes(tmp_path)
    yield started
    started.end_all()
