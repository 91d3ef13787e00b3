"""The operations of protocol 0.1: one JSON object in, one out, whatever comes of it (seed 003, T1-T55)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from postroom import __version__
from postroom.doors.http.body import fitted
from postroom.doors.socket import asked
from postroom.doors.socket.shown import endpoint_shown, message_shown
from postroom.endpoint import EndpointFilter
from postroom.errors import Incompatible, Invalid, PostroomError, Unavailable
from postroom.message import Admitted, MessageFilter, NewMessage
from postroom.model import Principal, Role
from postroom.postage import check_line, check_party, check_payload
from postroom.services.attaching import Place, attach
from postroom.services.gita import GitaRegistry
from postroom.services.post import PostService
from postroom.services.receipts import ReceiptService
from postroom.services.registry import Registry
from postroom.text import dump_json, parse_json, printable

PROTOCOL = "0.1"
CAPABILITIES = ("bounded_delivery_ack_v1", "idempotent_send_v1")
MAX_BODY_BYTES = 8 * 1024
SECONDS = 30.0
"""An operation that has not answered by then is given up; what it began is whole or undone."""
LOCAL = "local"
"""The sender that is the person at this machine (T14)."""

OPERATOR = Principal("local", Role.ADMIN)
"""Whoever opens the socket: only its own user can."""

log = logging.getLogger("postroom.socket")

_NO_NAME = re.compile(r"[^A-Za-z0-9._:/@-]+")

Answer = dict[str, Any]


class Captures(Protocol):
    """Where what was said is written down."""

    def note(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Write one exchange down, if it is of a kind that is kept; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class SocketDoor:
    """Answers requests of protocol 0.1. `place` tells an endpoint's address, target key and reach.

    away: why the database cannot be asked, where that is known.
    """

    post: PostService
    receipts: ReceiptService
    registry: Registry
    gita: GitaRegistry
    place: Place
    capture: Captures | None = None
    away: Callable[[], str | None] = lambda: None

    async def answer(self, line: bytes) -> bytes:
        """The answer to one line, with its line end; every fault is an answer (B28)."""
        request: dict[str, Any] = {}
        try:
            async with asyncio.timeout(SECONDS):
                parsed = parse_json(line, "request")
                if not isinstance(parsed, dict):
                    raise Invalid("the request is expected to be a JSON object", field="request")
                request = parsed
                told = {"ok": True, **await self._operate(request)}
        except PostroomError as error:
            told = refusal(error)
        except TimeoutError:
            told = refusal(Unavailable(f"no answer within {SECONDS:g} s; ask again"))
        except Exception:
            log.exception("the operation %s failed", printable(str(request.get("op"))[:40]))
            told = refusal(PostroomError("the operation failed; the daemon's log has the trace"))
        if self.capture is not None:
            self.capture.note(request, told)
        return dump_json(told).encode("utf-8", "replace") + b"\n"

    async def _operate(self, request: Mapping[str, Any]) -> Answer:
        op = request.get("op")
        if not isinstance(op, str):
            raise Invalid(f"op is expected to be one of {', '.join(OPERATIONS)}", field="op")
        if op not in OPERATIONS:
            raise Invalid(f"op {op[:40]!r} is expected to be one of {', '.join(OPERATIONS)}", field="op")
        spoken = request.get("protocol", PROTOCOL)
        if not isinstance(spoken, str):
            raise Invalid(f"protocol is expected to be text, as {PROTOCOL!r}", field="protocol")
        if spoken.split(".", 1)[0] != PROTOCOL.split(".", 1)[0]:
            raise Incompatible(f"protocol {spoken[:40]!r} is not spoken here; expected {PROTOCOL}", field="protocol")
        away = self.away()
        if away is not None and op != "ping":
            raise Unavailable(away)
        model, run = OPERATIONS[op]
        try:
            return await run(self, fitted(request, model))
        except PostroomError as error:
            if error.field == "id":
                error.field = "message_id" if issubclass(model, asked.OfDelivery) else "endpoint_id"
            raise

    async def ping(self, _: asked.Ping) -> Answer:
        """Who answers, which protocol, and what it can do (T5, T7)."""
        return {
            "protocol": PROTOCOL,
            "capabilities": list(CAPABILITIES),
            "service": "postroom",
            "version": __version__,
        }

    async def endpoints(self, given: asked.Endpoints) -> Answer:
        """The endpoints, of a repository or all, live, silent or both (T9, T38)."""
        wanted = EndpointFilter(target_repo=given.target_repo, live=given.live)
        found = await self.registry.find(OPERATOR, wanted)
        living = await self.registry.living(found)
        return {"endpoints": [endpoint_shown(one, live=one.id in living) for one in found]}

    async def send(self, given: asked.Send) -> Answer:
        """Nothing -> admitted, or the first message under the key (T13-T20, T39)."""
        check_payload(given.body, "body", MAX_BODY_BYTES)
        for slug, field in ((given.target_repo, "target_repo"), (given.sender_repo, "sender_repo")):
            if slug is not None and not (field == "sender_repo" and slug == LOCAL):
                self.gita.check(slug, field)
        admitted = await self.post.send(
            OPERATOR,
            NewMessage(
                payload=given.body,
                sender=_sender(given),
                client_id=given.client_id,
                idempotency_key=given.idempotency_key,
                correlation_id=given.correlation_id,
                sender_repo=given.sender_repo,
                target_repo=given.target_repo,
                endpoint_id=given.endpoint_id,
                provenance=given.provenance,
                metadata=given.metadata,
            ),
        )
        return _admission(admitted)

    async def message(self, given: asked.OfDelivery) -> Answer:
        """One receipt (T40)."""
        posted = await self.post.get(OPERATOR, given.message_id)
        return {"message": message_shown(posted, endpoint_id=given.endpoint_id)}

    async def history(self, given: asked.History) -> Answer:
        """A page of receipts, newest first (T41)."""
        page = await self.post.page(
            OPERATOR,
            MessageFilter(
                state=given.state,
                client_id=given.client_id,
                target_repo=given.target_repo,
                endpoint_id=given.endpoint_id,
                cursor=given.cursor,
                limit=given.limit,
            ),
        )
        shown = [message_shown(one, endpoint_id=given.endpoint_id, state=given.state) for one in page.messages]
        return {"messages": shown, "next_cursor": page.next_cursor}

    async def ack(self, given: asked.OfDelivery) -> Answer:
        """Any state -> acknowledged (T36, T42)."""
        return {"message": message_shown(await self.receipts.ack(OPERATOR, given.message_id, given.endpoint_id))}

    async def retry(self, given: asked.OfDelivery) -> Answer:
        """Failed -> pending (T37, T43)."""
        return {"message": message_shown(await self.receipts.retry(OPERATOR, given.message_id, given.endpoint_id))}

    async def register(self, given: asked.Register) -> Answer:
        """Nothing -> a live endpoint; what stood at its place ends."""
        for repository in given.repositories or ():
            self.gita.check(repository, "repositories")
        endpoint = await attach(
            self.registry,
            self.place,
            OPERATOR,
            given.carrier,
            given.address,
            name=given.name,
            repositories=given.repositories,
            queues=given.queues,
            channels=given.channels,
            ack_mode=given.ack_mode,
            max_attempts=given.delivery_max_attempts,
            spill=given.spill,
            rings=given.rings,
            pid=given.pid,
        )
        return {"endpoint_id": endpoint.id, "endpoint": endpoint_shown(endpoint, live=True)}

    async def heartbeat(self, given: asked.OfEndpoint) -> Answer:
        """Live or silent -> seen now."""
        endpoint = await self.registry.heartbeat(OPERATOR, given.endpoint_id)
        return {"endpoint_id": endpoint.id, "endpoint": endpoint_shown(endpoint, live=True)}

    async def unregister(self, given: asked.OfEndpoint) -> Answer:
        """Attached -> ended; twice is the same."""
        endpoint = await self.registry.detach(OPERATOR, given.endpoint_id)
        return {"endpoint_id": endpoint.id, "endpoint": endpoint_shown(endpoint, live=False)}


Run = Callable[[SocketDoor, Any], Awaitable[Answer]]

OPERATIONS: Mapping[str, tuple[type[asked.Operation], Run]] = {
    "ping": (asked.Ping, SocketDoor.ping),
    "endpoints": (asked.Endpoints, SocketDoor.endpoints),
    "send": (asked.Send, SocketDoor.send),
    "message": (asked.OfDelivery, SocketDoor.message),
    "history": (asked.History, SocketDoor.history),
    "ack": (asked.OfDelivery, SocketDoor.ack),
    "retry": (asked.OfDelivery, SocketDoor.retry),
    "register": (asked.Register, SocketDoor.register),
    "heartbeat": (asked.OfEndpoint, SocketDoor.heartbeat),
    "unregister": (asked.OfEndpoint, SocketDoor.unregister),
}


def refusal(error: PostroomError) -> Answer:
    """An error as the socket tells it; what it repeats of a request acts on nobody's terminal."""
    told = error.as_dict()
    return {
        "ok": False,
        "error": {**told, **{key: printable(str(told[key])) for key in ("message", "field") if key in told}},
    }


def _sender(given: asked.Send) -> str:
    """Who the message says it is from: the repository, or the person here (T14).

    A repository whose name nobody could have is told in the signs that a name has; two are never told the same (T20).
    """
    if given.sender_repo is None:
        return LOCAL
    check_line(given.sender_repo, "sender_repo")
    try:
        return check_party(given.sender_repo, "sender_repo")
    except Invalid:
        plain = _NO_NAME.sub("-", given.sender_repo).lstrip("-._:/@")[:96]
        return f"{plain or 'repository'}:{hashlib.sha256(given.sender_repo.encode()).hexdigest()[:16]}"


def _admission(admitted: Admitted) -> Answer:
    delivery = admitted.posted.delivery if admitted.posted is not None else None
    return {
        "message_id": admitted.id,
        "endpoint_id": delivery.endpoint_id if delivery else None,
        "state": str(delivery.state) if delivery else None,
        "deduplicated": admitted.deduplicated,
    }
