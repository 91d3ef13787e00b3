"""The coordination engine's side of protocol 0.1: a wake becomes a message to the one live endpoint of a repository.

Each call opens a connection of its own and asks nothing of an earlier one, so a daemon may restart between any two (T4).
Source: seed 003. It works against whatever speaks 0.1 on a Unix socket.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from postroom.errors import Ambiguous, Incompatible, Invalid, PostroomError, Unavailable
from postroom.exchange import PROTOCOL, ask

REQUIRED = frozenset({"bounded_delivery_ack_v1", "idempotent_send_v1"})
CLIENT_ID = "coordination-engine"
PROVENANCE = "coordination_engine"


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """What the engine wants said to whom: one lease of its own is one wake, however often it is asked for.

    target_repo: the exact slug of the gita registry. body: at most 8 KiB of UTF-8. endpoint_id: which of several live
    endpoints of the repository is meant. metadata: further keys beside lease_id and trigger_id, 4 KiB in all.
    """

    target_repo: str
    lease_id: str
    trigger_id: str
    body: str
    endpoint_id: str | None = None
    sender_repo: str = CLIENT_ID
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WakeReceipt:
    """Where a wake stands: the message and endpoint that identify it, its state, and what it was asked for.

    `details` is the whole answer: attempts, deadlines, reasons. No state says that an agent did the work (T54).
    state: None for the repeat of a wake so old that the daemon keeps only its id.
    """

    message_id: str
    endpoint_id: str | None
    state: str | None
    deduplicated: bool
    lease_id: str | None
    trigger_id: str | None
    details: Mapping[str, Any]

    @classmethod
    def of(cls, view: Mapping[str, Any], *, deduplicated: bool = False) -> Self:
        """The receipt of a message as the socket shows it. Raises Incompatible for a view that has no id or state."""
        forgotten = deduplicated and view.get("state") is None
        return cls(
            message_id=_text(view, "message_id"),
            endpoint_id=view.get("endpoint_id"),
            state=None if forgotten else _text(view, "state"),
            deduplicated=deduplicated,
            lease_id=view.get("idempotency_key"),
            trigger_id=view.get("correlation_id"),
            details=view,
        )


@dataclass(frozen=True, slots=True)
class WakeHistory:
    """One page of receipts, newest first, and the cursor of the next one."""

    receipts: tuple[WakeReceipt, ...]
    next_cursor: str | None


class CoordinationEngineAdapter:
    """The verbs of the contract over a socket's path; it holds no connection and no state between calls.

    Raises Unavailable (nobody answers, or nobody live has the repository), Ambiguous (several have it), Incompatible
    (another major version, or a capability is missing), Conflict (the lease was used for another wake), and the other
    errors of the family as the daemon tells them. `timeout` in seconds bounds each call, connection and answer together.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        self.path = os.fspath(path)
        self.timeout = timeout

    def ping(self) -> Mapping[str, Any]:
        """The service as it tells of itself, once it is one this adapter can work with (T5-T8)."""
        try:
            answer = self._call({"op": "ping", "protocol": PROTOCOL})
        except PostroomError as error:
            if type(error) in {PostroomError, Invalid}:
                raise Incompatible(f"the service refuses protocol {PROTOCOL}: {error.message}") from None
            raise
        spoken = str(answer.get("protocol", ""))
        if spoken.split(".", 1)[0] != PROTOCOL.split(".", 1)[0]:
            raise Incompatible(f"the service speaks protocol {spoken[:40]!r}; expected {PROTOCOL}", field="protocol")
        offered = answer.get("capabilities")
        missing = REQUIRED - {str(one) for one in offered} if isinstance(offered, list) else REQUIRED
        if missing:
            raise Incompatible(f"the service lacks {', '.join(sorted(missing))}", field="capabilities")
        return answer

    def endpoints(self, target_repo: str | None = None) -> list[Mapping[str, Any]]:
        """The live endpoints, or those that have this repository."""
        asked: dict[str, Any] = {"op": "endpoints", "protocol": PROTOCOL, "live": True}
        if target_repo is not None:
            asked["target_repo"] = target_repo
        return _views(self._call(asked), "endpoints")

    def wake(self, request: WakeRequest) -> WakeReceipt:
        """Nothing -> an admitted message for the one live endpoint of the repository; the same wake again is the first one.

        The service is checked before anything is admitted (T6). After its endpoint ended, the same wake moves the
        message to the one that came in its place (T46).
        """
        self.ping()
        endpoint_id = request.endpoint_id or self._resolve(request.target_repo)
        sent = self._call(
            {
                "op": "send",
                "protocol": PROTOCOL,
                "client_id": CLIENT_ID,
                "idempotency_key": request.lease_id,
                "correlation_id": request.trigger_id,
                "sender_repo": request.sender_repo,
                "target_repo": request.target_repo,
                "endpoint_id": endpoint_id,
                "provenance": PROVENANCE,
                "metadata": {**request.metadata, "lease_id": request.lease_id, "trigger_id": request.trigger_id},
                "body": request.body,
            }
        )
        told = {"idempotency_key": request.lease_id, "correlation_id": request.trigger_id, **sent}
        return WakeReceipt.of(told, deduplicated=bool(sent.get("deduplicated")))

    def receipt(self, message_id: str) -> WakeReceipt:
        """Where a message stands."""
        return self._receipt("message", message_id)

    def ack(self, message_id: str) -> WakeReceipt:
        """Any state -> acknowledged, on the recipient's behalf; a pending repeat is off (T36)."""
        return self._receipt("ack", message_id)

    def retry(self, message_id: str) -> WakeReceipt:
        """Failed -> pending with its attempts anew (T37)."""
        return self._receipt("retry", message_id)

    def history(
        self,
        *,
        target_repo: str | None = None,
        endpoint_id: str | None = None,
        state: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> WakeHistory:
        """The engine's own messages, newest first: what there was before either side restarted (T41)."""
        asked = {
            "op": "history",
            "protocol": PROTOCOL,
            "client_id": CLIENT_ID,
            "target_repo": target_repo,
            "endpoint_id": endpoint_id,
            "state": state,
            "cursor": cursor,
            "limit": limit,
        }
        answer = self._call({key: value for key, value in asked.items() if value is not None})
        return WakeHistory(tuple(WakeReceipt.of(one) for one in _views(answer, "messages")), answer.get("next_cursor"))

    def _resolve(self, target_repo: str) -> str:
        found = [_text(one, "endpoint_id") for one in self.endpoints(target_repo)]
        if not found:
            raise Unavailable(f"no live endpoint has {target_repo[:64]!r}", field="target_repo")
        if len(found) > 1:
            raise Ambiguous(
                f"{len(found)} live endpoints have {target_repo[:64]!r}; name one", field="endpoint_id", endpoints=found
            )
        return found[0]

    def _receipt(self, op: str, message_id: str) -> WakeReceipt:
        answer = self._call({"op": op, "protocol": PROTOCOL, "message_id": message_id})
        view = answer.get("message")
        if not isinstance(view, dict):
            raise Incompatible("the service's answer has no message", field="message")
        return WakeReceipt.of(view)

    def _call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return ask(self.path, request, self.timeout)


def _text(view: Mapping[str, Any], name: str) -> str:
    value = view.get(name)
    if not isinstance(value, str):
        raise Incompatible(f"the service's answer has no {name}", field=name)
    return value


def _views(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = answer.get(name)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Incompatible(f"the service's answer has no list of {name}", field=name)
    return value
