"""The post as one caller has it, whether the store is in this process or behind a daemon; see desk.Desk for the queue.

Durations are seconds, as on the wire. Each verb raises errors of the family in `postroom.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter
from postroom.message import Admitted, InboxPage, MessageFilter, MessagePage, Posted, Reply


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel and who gets what is sent to it: endpoints, by mailbox and id."""

    name: str
    subscribers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Occupant:
    """Somebody who works here: where they sit, what they hold, and when they were last heard of (ms UTC).

    directory, branch: of the place they sit in, where its carrier can tell.
    """

    name: str
    carrier: str | None
    endpoint_id: str | None
    live: bool
    repositories: tuple[str, ...]
    queues: tuple[str, ...]
    channels: tuple[str, ...]
    directory: str | None
    branch: str | None
    todo_id: str | None
    todo_title: str | None
    last_seen: int | None


@dataclass(frozen=True, slots=True)
class CarrierTraffic:
    """How many deliveries one carrier has under way, and how many failed; cancelled ones and unheard rings are left out.

    pending holds retrying (an attempt failed, the next one has its time) and being_written. oldest_pending_age: ms.
    """

    carrier: CarrierKind
    pending: int
    retrying: int
    being_written: int
    awaiting_ack: int
    failed: int
    oldest_pending_age: int | None


@dataclass(frozen=True, slots=True)
class Deferral:
    """A target whose deliveries wait without an attempt: why, since when (ms UTC), and how many, counted to 1000 a kind.

    mailbox: the name that it goes by.
    """

    target_key: str
    carrier: CarrierKind
    reason: str
    since: int
    waiting: int
    mailbox: str = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """How the post stands: by carrier where there is anything to tell, what waits the longest and why, and endpoints."""

    carriers: tuple[CarrierTraffic, ...]
    deferred: tuple[Deferral, ...]
    live_endpoints: int
    standing_endpoints: int

    @property
    def pending(self) -> int:
        """How many deliveries wait or are being written."""
        return sum(one.pending for one in self.carriers)

    @property
    def awaiting_ack(self) -> int:
        """How many were written and wait for their acknowledgement."""
        return sum(one.awaiting_ack for one in self.carriers)

    @property
    def failed(self) -> int:
        """How many failed for good and are still kept."""
        return sum(one.failed for one in self.carriers)

    @property
    def oldest_pending_age(self) -> int | None:
        """The age (ms) of the oldest one that waits; None when none does."""
        return max(
            (one.oldest_pending_age for one in self.carriers if one.oldest_pending_age is not None), default=None
        )


class Post(Protocol):
    """The verbs of DESIGN §6 for one principal."""

    async def send(
        self,
        payload: str,
        *,
        to: str | None = None,
        channel: str | None = None,
        sender: str | None = None,
        kind: str = "chat",
        priority: str = "normal",
        reply_to: str | None = None,
        msg_id: str | None = None,
        client_id: str | None = None,
        idempotency_key: str | None = None,
        ack_mode: str | None = None,
        ttl_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> Admitted:
        """Nothing -> admitted, with a delivery for each recipient; the same msg_id again is the first message."""
        ...

    async def message(self, id: str, *, until: str | None = None, wait_s: float = 0.0) -> Posted:
        """The message with its deliveries; waits up to wait_s (50 s at most) until it is `handed_off` or `acknowledged`.

        It also returns as soon as no delivery can come to that any more. Raises NotFound.
        """
        ...

    async def reply(self, id: str, *, wait_s: float = 0.0) -> Reply:
        """The first message that answers this one; waits up to wait_s (50 s at most) for it. Its sender and admins may ask.

        It also returns, without one, as soon as nobody can answer any more. Raises NotFound.
        """
        ...

    async def messages(self, asked: MessageFilter) -> MessagePage:
        """A page of messages, newest first."""
        ...

    async def inbox(
        self, mailbox: str | None = None, *, since: str | None = None, limit: int | None = None, wait_s: float = 0.0
    ) -> InboxPage:
        """What was handed off to this mailbox (the principal's own when None) after `since`, in hand-off order."""
        ...

    async def mark_read(self, mailbox: str | None, since: str) -> InboxPage:
        """Unread -> read, up to where `since` (a page's next_since, or a message's id) points; never back."""
        ...

    async def ack(self, id: str, endpoint: str | None = None) -> Posted:
        """Any state -> acknowledged, for the delivery that is the caller's, or the one of `endpoint`."""
        ...

    async def retry_message(self, id: str, endpoint: str | None = None, *, request_id: str | None = None) -> Posted:
        """Failed -> pending with attempts anew; for admins and the sender."""
        ...

    async def cancel_message(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Posted:
        """Under way -> failed, cancelled, for each delivery that no courier holds; for admins and the sender."""
        ...

    async def attach(
        self,
        carrier: str,
        address: Mapping[str, Any],
        *,
        name: str | None = None,
        repositories: Sequence[str] = (),
        queues: Sequence[str] = (),
        channels: Sequence[str] = (),
        ack_mode: str | None = None,
        max_attempts: int | None = None,
        spill: bool = False,
        rings: bool = True,
        pid: int | None = None,
    ) -> Endpoint:
        """Nothing -> a live endpoint; one that stands at the same place already ends."""
        ...

    async def heartbeat_endpoint(self, id: str) -> Endpoint:
        """Live or silent -> seen now. Raises NotFound, and Conflict for one that has ended."""
        ...

    async def detach(self, id: str) -> Endpoint:
        """Attached -> ended, for ever; what waits for it waits on."""
        ...

    async def endpoints(self, asked: EndpointFilter) -> list[Endpoint]:
        """The endpoints that fit, oldest first."""
        ...

    async def subscribe(self, channel: str, subscriber: str) -> Channel:
        """Not subscribed -> subscribed: a session, an endpoint's id, or a name; twice is the same."""
        ...

    async def unsubscribe(self, channel: str, subscriber: str) -> Channel:
        """Subscribed -> not subscribed; twice is the same."""
        ...

    async def channels(self) -> list[Channel]:
        """Every channel that somebody is subscribed to."""
        ...

    async def who(self) -> list[Occupant]:
        """Who works here, whoever was last heard of first."""
        ...
