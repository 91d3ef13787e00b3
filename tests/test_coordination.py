"""The coordination engine's adapter against services that speak otherwise, lack something, or answer nothing sensible."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom import (
    Ambiguous,
    Conflict,
    CoordinationEngineAdapter,
    Incompatible,
    Invalid,
    PostroomError,
    TooLarge,
    Unavailable,
    WakeRequest,
)
from postroom.coordination import REQUIRED

ENDPOINT = "ep_01890000-0000-7000-8000-000000000005"
PING = {"ok": True, "protocol": "0.1", "capabilities": [*REQUIRED, "something_new_v9"]}
SENT = {"ok": True, "message_id": "msg_1", "endpoint_id": ENDPOINT, "state": "pending", "deduplicated": False}
WAKE = WakeRequest("alpha", "lease-1", "trigger-1", "Wake up.", metadata={"more": [1]})


class Service:
    """A service whose every answer a test decides: a JSON value, bytes as they are, or None for none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Any] = {
            "ping": PING,
            "endpoints": {"ok": True, "endpoints": [{"endpoint_id": ENDPOINT}]},
            "send": SENT,
        }
        self.asked: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as lines:
            try:
                request = json.loads(lines.readline())
            except ValueError:
                return
            self.asked.append(request)
            answer = self.answers.get(
                request["op"], {"ok": False, "error": {"code": "invalid", "message": "no such op"}}
            )
            if callable(answer):
                answer(peer)
            elif answer is None:
                self._over.wait(60)
            else:
                peer.sendall(answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n")

    def ops(self) -> list[str]:
        return [one["op"] for one in self.asked]

    def close(self) -> None:
        self._over.set()
        # Closing alone does not wake a thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="pr-"))
    made = Service(folder / "s")
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture
def adapter(service: Service) -> CoordinationEngineAdapter:
    return CoordinationEngineAdapter(service.path, timeout=20)


# T5 # T8 # T10 # T13
def test_a_wake_is_a_ping_a_look_and_a_send(service: Service, adapter: CoordinationEngineAdapter) -> None:
    receipt = adapter.wake(WAKE)
    assert (receipt.message_id, receipt.endpoint_id, receipt.state) == ("msg_1", ENDPOINT, "pending")
    assert (receipt.lease_id, receipt.trigger_id, receipt.deduplicated) == ("lease-1", "trigger-1", False)
    ping, look, send = service.asked
    assert ping == {"op": "ping", "protocol": "0.1"}
    assert look == {"op": "endpoints", "protocol": "0.1", "live": True, "target_repo": "alpha"}
    assert send == {
        "op": "send",
        "protocol": "0.1",
        "client_id": "coordination-engine",
        "idempotency_key": "lease-1",
        "correlation_id": "trigger-1",
        "sender_repo": "coordination-engine",
        "target_repo": "alpha",
        "endpoint_id": ENDPOINT,
        "provenance": "coordination_engine",
        "metadata": {"more": [1], "lease_id": "lease-1", "trigger_id": "trigger-1"},
        "body": "Wake up.",
    }


# T12
def test_a_named_endpoint_is_not_looked_for(service: Service, adapter: CoordinationEngineAdapter) -> None:
    adapter.wake(WakeRequest("alpha", "lease-1", "trigger-1", "Wake up.", endpoint_id="ep_other"))
    assert service.ops() == ["ping", "send"]
    assert service.asked[-1]["endpoint_id"] == "ep_other"


# T6 # T7
@pytest.mark.parametrize(
    ("ping", "kind"),
    [
        ({**PING, "protocol": "1.0"}, Incompatible),
        ({**PING, "protocol": "00.1"}, Incompatible),
        ({**PING, "protocol": 0.1}, None),
        ({**PING, "protocol": None}, Incompatible),
        ({key: value for key, value in PING.items() if key != "protocol"}, Incompatible),
        ({**PING, "capabilities": ["idempotent_send_v1"]}, Incompatible),
        ({**PING, "capabilities": ["bounded_delivery_ack_v1"]}, Incompatible),
        ({**PING, "capabilities": []}, Incompatible),
        ({**PING, "capabilities": None}, Incompatible),
        ({**PING, "capabilities": dict.fromkeys(REQUIRED)}, Incompatible),
        ({**PING, "capabilities": " ".join(REQUIRED)}, Incompatible),
        ({"ok": True}, Incompatible),
        ({"ok": False}, Incompatible),
        ({}, Incompatible),
        ({"ok": "yes", **{k: v for k, v in PING.items() if k != "ok"}}, Incompatible),
        ({"ok": False, "error": "no"}, Incompatible),
        ({"ok": False, "error": {"code": "unsupported_protocol", "message": "1.0 alone"}}, Incompatible),
        ({"ok": False, "error": {"code": "who_knows", "message": "no", "self": 1}}, Incompatible),
        ({"ok": False, "error": {"code": "invalid", "message": "no such op"}}, Incompatible),
        ({"ok": False, "error": {"code": "unavailable", "message": "starting"}}, Unavailable),
        ([], Incompatible),
        (7, Incompatible),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Incompatible),
        (b"\xff\xfe\n", Incompatible),
        (b"[" * 100_000 + b"\n", Incompatible),
        (b'{"ok": true', Unavailable),
        (b"", Unavailable),
    ],
)
def test_nothing_is_admitted_where_the_ping_fails(
    service: Service, adapter: CoordinationEngineAdapter, ping: Any, kind: type[PostroomError] | None
) -> None:
    service.answers["ping"] = ping
    if kind is None:
        assert adapter.wake(WAKE).message_id == "msg_1"
        return
    with pytest.raises(PostroomError) as caught:
        adapter.wake(WAKE)
    assert type(caught.value) is kind
    assert service.ops() == ["ping"]


# T10 # T11 # T12
def test_no_endpoint_and_several_admit_nothing(service: Service, adapter: CoordinationEngineAdapter) -> None:
    service.answers["endpoints"] = {"ok": True, "endpoints": []}
    with pytest.raises(Unavailable) as gone:
        adapter.wake(WAKE)
    assert gone.value.field == "target_repo"
    service.answers["endpoints"] = {"ok": True, "endpoints": [{"endpoint_id": "ep_1"}, {"endpoint_id": "ep_2"}]}
    with pytest.raises(Ambiguous) as several:
        adapter.wake(WAKE)
    assert several.value.details["endpoints"] == ["ep_1", "ep_2"]
    assert "send" not in service.ops()


@pytest.mark.parametrize("found", [None, {}, [1], [{}], [{"endpoint_id": 7}], "ep_1"])
def test_a_look_that_makes_no_sense_admits_nothing(
    service: Service, adapter: CoordinationEngineAdapter, found: Any
) -> None:
    service.answers["endpoints"] = {"ok": True, "endpoints": found}
    with pytest.raises(Incompatible):
        adapter.wake(WAKE)
    assert "send" not in service.ops()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("conflict", Conflict),
        ("ambiguous_endpoint", Ambiguous),
        ("unavailable", Unavailable),
        ("invalid", Invalid),
        ("too_large", TooLarge),
        ("of_a_later_version", PostroomError),
    ],
)
def test_a_refusal_is_the_error_it_says(
    service: Service, adapter: CoordinationEngineAdapter, code: str, kind: type[PostroomError]
) -> None:
    service.answers["send"] = {"ok": False, "error": {"code": code, "message": "why", "field": "body", "extra": [1]}}
    with pytest.raises(kind) as caught:
        adapter.wake(WAKE)
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.field, caught.value.details["extra"]) == ("why", "body", [1])


@pytest.mark.parametrize(
    "answer", [{"ok": True}, {"ok": True, "message_id": 7, "state": "pending"}, {"ok": True, "message_id": "m"}]
)
def test_an_answer_without_its_fields_is_incompatible(
    service: Service, adapter: CoordinationEngineAdapter, answer: dict[str, Any]
) -> None:
    for op in ("send", "message", "ack", "retry", "history"):
        service.answers[op] = answer
    calls: list[Callable[[], Any]] = [
        lambda: adapter.wake(WAKE),
        lambda: adapter.receipt("m"),
        lambda: adapter.ack("m"),
        lambda: adapter.retry("m"),
        adapter.history,
    ]
    for call in calls:
        with pytest.raises(Incompatible):
            call()


def test_a_repeat_of_a_wake_that_is_kept_no_longer_has_no_state(
    service: Service, adapter: CoordinationEngineAdapter
) -> None:
    service.answers["send"] = {**SENT, "state": None, "endpoint_id": None, "deduplicated": True}
    receipt = adapter.wake(WAKE)
    assert (receipt.message_id, receipt.state, receipt.deduplicated) == ("msg_1", None, True)


@pytest.mark.parametrize("op", ["ping", "endpoints", "send"])
def test_a_service_that_hangs_is_unavailable_in_time(service: Service, op: str) -> None:
    service.answers[op] = None
    adapter = CoordinationEngineAdapter(service.path, timeout=0.2)
    with pytest.raises(Unavailable, match="no answer within"):
        adapter.wake(WAKE)
    assert service.ops()[-1] == op


def test_an_answer_that_trickles_is_bounded_too(service: Service) -> None:
    def trickle(peer: socket.socket) -> None:
        try:
            while True:
                peer.sendall(b" ")
        except OSError:
            return

    service.answers["ping"] = trickle
    with pytest.raises((Unavailable, Incompatible)):
        CoordinationEngineAdapter(service.path, timeout=0.5).ping()


def test_an_answer_to_a_line_that_was_not_read_whole_is_read(service: Service) -> None:
    class Curt(Service):
        def _answer(self, peer: socket.socket) -> None:
            with peer:
                peer.recv(10)
                peer.sendall(b'{"ok":false,"error":{"code":"too_large","message":"no"}}\n')
                peer.shutdown(socket.SHUT_RDWR)

    curt = Curt(service.path.with_name("c"))
    try:
        with pytest.raises(TooLarge):
            CoordinationEngineAdapter(curt.path, timeout=20).receipt("x" * 3_000_000)
    finally:
        curt.close()


def test_nobody_there_is_unavailable(service: Service, tmp_path: Path) -> None:
    for path in (service.path.with_name("none"), tmp_path, f"/tmp/{'x' * 200}", "nul\x00"):
        with pytest.raises(Unavailable, match="nobody answers"):
            CoordinationEngineAdapter(path).ping()
    stale = service.path.with_name("stale")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(stale))
    with pytest.raises(Unavailable, match="nobody answers"):
        CoordinationEngineAdapter(stale).wake(WAKE)


def test_what_is_no_json_is_refused_here(service: Service, adapter: CoordinationEngineAdapter) -> None:
    for metadata in ({"a": object()}, {"a": float("nan")}, {"a": "\ud800"}):
        with pytest.raises(Invalid):
            adapter.wake(WakeRequest("alpha", "lease-1", "trigger-1", "x", metadata=metadata))
    assert "send" not in service.ops()


# T21
def test_what_identifies_a_wake_cannot_be_overwritten(service: Service, adapter: CoordinationEngineAdapter) -> None:
    adapter.wake(WakeRequest("alpha", "lease-1", "trigger-1", "x", metadata={"lease_id": "other", "trigger_id": 1}))
    assert service.asked[-1]["metadata"] == {"lease_id": "lease-1", "trigger_id": "trigger-1"}


# T41
def test_history_asks_for_the_engines_own_alone(service: Service, adapter: CoordinationEngineAdapter) -> None:
    view = {
        "message_id": "m",
        "state": "failed",
        "endpoint_id": ENDPOINT,
        "idempotency_key": "l",
        "correlation_id": "t",
    }
    service.answers["history"] = {"ok": True, "messages": [view], "next_cursor": "c1"}
    page = adapter.history(target_repo="alpha", state="failed", cursor="c2", limit=3)
    assert service.asked[-1] == {
        "op": "history",
        "protocol": "0.1",
        "client_id": "coordination-engine",
        "target_repo": "alpha",
        "state": "failed",
        "cursor": "c2",
        "limit": 3,
    }
    assert page.next_cursor == "c1"
    assert [(one.message_id, one.lease_id, one.trigger_id, one.state) for one in page.receipts] == [
        ("m", "l", "t", "failed")
    ]
