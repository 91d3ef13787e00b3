"""The coordination engine's adapter against a real daemon that is killed and started again between any two calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import (
    Ambiguous,
    Conflict,
    CoordinationEngineAdapter,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    WakeRequest,
)
from tests.system.daemons import Daemon
from tests.system.reference_client import Client
from tests.system.registry import Gita

pytestmark = pytest.mark.system

NewDaemon = Callable[..., Daemon]


@pytest.fixture
def served(new_daemon: NewDaemon, tmp_path: Path) -> Daemon:
    """A daemon that knows gita's registry, with the engine in it."""
    gita = Gita(tmp_path)
    for slug in ("alpha", "beta", "coordination-engine"):
        gita.repository(slug)
    return new_daemon(env=gita.env).start()


def session(client: Client, number: int, *repositories: str) -> str:
    """A session that takes messages, though nobody carries them here: its endpoint."""
    asked = {"carrier": "opencode", "address": {"session": f"ses_{number}"}, "repositories": list(repositories)}
    return str(client.done("register", **asked)["endpoint_id"])


def wake(**changes: Any) -> WakeRequest:
    return WakeRequest(
        **{"target_repo": "alpha", "lease_id": "l-1", "trigger_id": "t-1", "body": "Wake up.", **changes}
    )


# T4 # T10 # T41 # T42 # T45 # T46
def test_a_daemon_killed_between_any_two_calls_is_not_noticed(served: Daemon) -> None:
    adapter = CoordinationEngineAdapter(served.socket, timeout=30)
    client = Client(str(served.socket))
    endpoint = session(client, 1, "alpha")
    receipts: list[Any] = []

    def again(call: Callable[[], Any]) -> Any:
        """The call, by the same adapter, after the daemon was killed and started."""
        served.kill()
        with pytest.raises(Unavailable):
            call()
        served.start()
        receipts.append(call())
        return receipts[-1]

    again(adapter.ping)
    first = again(lambda: adapter.wake(wake()))
    assert (first.endpoint_id, first.state, first.deduplicated) == (endpoint, "pending", False)
    repeat = again(lambda: adapter.wake(wake()))
    assert (repeat.message_id, repeat.deduplicated) == (first.message_id, True)
    shown = again(lambda: adapter.receipt(first.message_id))
    assert (shown.lease_id, shown.trigger_id, shown.details["metadata"]) == (
        "l-1",
        "t-1",
        {"lease_id": "l-1", "trigger_id": "t-1"},
    )
    page = again(adapter.history)
    assert [one.message_id for one in page.receipts] == [first.message_id]
    client.done("unregister", endpoint_id=endpoint)
    new = session(client, 2, "alpha")
    moved = again(lambda: adapter.wake(wake()))
    assert (moved.message_id, moved.endpoint_id, moved.deduplicated) == (first.message_id, new, True)
    acked = again(lambda: adapter.ack(first.message_id))
    assert acked.state == "acknowledged"
    assert len(adapter.history().receipts) == 1


# T11 # T12 # T14 # T15 # T16 # T20 # T37 # T44 # T47
def test_each_refusal_is_of_its_kind_and_admits_nothing(served: Daemon) -> None:
    adapter = CoordinationEngineAdapter(served.socket, timeout=30)
    client = Client(str(served.socket))
    with pytest.raises(Unavailable):
        adapter.wake(wake())
    endpoint = session(client, 1, "alpha")
    with pytest.raises(Invalid) as stranger:
        adapter.wake(wake(target_repo="gamma", endpoint_id=endpoint))
    assert stranger.value.field == "target_repo"
    with pytest.raises(Unavailable):
        adapter.wake(wake(target_repo="beta", endpoint_id=endpoint))
    for change in ({"body": "x" * 8193}, {"metadata": {"a": "x" * 4096}}):
        with pytest.raises(TooLarge):
            adapter.wake(wake(**change))
    with pytest.raises(NotFound):
        adapter.receipt("msg_none")
    assert adapter.history().receipts == ()
    first = adapter.wake(wake())
    second = session(client, 2, "alpha")
    with pytest.raises(Ambiguous) as several:
        adapter.wake(wake(lease_id="l-2"))
    assert set(several.value.details["endpoints"]) == {endpoint, second}  # type: ignore[call-overload]
    with pytest.raises(Conflict):
        adapter.wake(wake(endpoint_id=second))
    with pytest.raises(Conflict):
        adapter.wake(wake(endpoint_id=endpoint, body="Other words."))
    with pytest.raises(Conflict):
        adapter.retry(first.message_id)
    assert adapter.wake(wake(endpoint_id=endpoint)).message_id == first.message_id
    assert [one.message_id for one in adapter.history().receipts] == [first.message_id]


# T37 # T43
def test_a_failed_wake_is_retried_on_request(served: Daemon) -> None:
    adapter = CoordinationEngineAdapter(served.socket, timeout=30)
    client = Client(str(served.socket))
    session(client, 1, "alpha")
    first = adapter.wake(wake())
    served.ask("POST", f"/v1/messages/{first.message_id}/cancel", {})
    failed = adapter.receipt(first.message_id)
    assert (failed.state, failed.details["last_failure_reason"]) == ("failed", "cancelled")
    assert adapter.wake(wake()).state == "failed"
    assert adapter.history(state="failed").receipts[0].message_id == first.message_id
    served.kill()
    served.start()
    assert adapter.retry(first.message_id).state == "pending"


# T41
def test_the_history_is_walked_by_its_cursor(served: Daemon) -> None:
    adapter = CoordinationEngineAdapter(served.socket, timeout=30)
    session(Client(str(served.socket)), 1, "alpha", "beta")
    ids = [adapter.wake(wake(lease_id=f"l-{n}", target_repo="beta" if n % 2 else "alpha")).message_id for n in range(7)]
    found: list[str] = []
    cursor = None
    while True:
        page = adapter.history(limit=3, cursor=cursor)
        found += [one.message_id for one in page.receipts]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == ids[::-1]
    assert [one.message_id for one in adapter.history(target_repo="beta").receipts] == ids[1::2][::-1]
