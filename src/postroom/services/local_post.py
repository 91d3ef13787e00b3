"""The post over services in this process, for one principal: seconds in, values out (post.Post)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroom.endpoint import Endpoint, EndpointFilter
from postroom.errors import Invalid
from postroom.message import Admitted, InboxPage, MessageFilter, MessagePage, NewMessage, Posted, Reply
from postroom.model import Principal
from postroom.post import Channel, Occupant
from postroom.postage import check_ack_mode, check_priority
from postroom.services.attaching import Place, attach
from postroom.services.inbox import InboxService
from postroom.services.post import PostService
from postroom.services.receipts import ReceiptService
from postroom.services.registry import Registry
from postroom.services.replies import ReplyService
from postroom.wire import seconds_ms

"""An endpoint's address as it is stored, its target key and its reach, by carrier, address and name. Raises Invalid."""


class LocalPost:
    """Every verb of the post for one principal, straight to the services; without `place` nothing can be attached."""

    def __init__(
        self,
        principal: Principal,
        post: PostService,
        replies: ReplyService,
        receipts: ReceiptService,
        inbox: InboxService,
        registry: Registry,
        place: Place | None = None,
    ) -> None:
        self.principal = principal
        self._post = post
        self._replies = replies
        self._receipts = receipts
        self._inbox = inbox
        self._registry = registry
        self._place = place

    # Messages.

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
        """Nothing -> admitted, with a delivery for each recipient."""
        new = NewMessage(
            payload=payload,
            to=to,
            channel=channel,
            sender=sender,
            kind=kind,
            priority=check_priority(priority),
            reply_to=reply_to,
            msg_id=msg_id,
            client_id=client_id,
            idempotency_key=idempotency_key,
            ack_mode=None if ack_mode is None else check_ack_mode(ack_mode),
            ttl_ms=seconds_ms(ttl_s, "ttl_s"),
            metadata=metadata,
            correlation_id=correlation_id,
        )
        return await self._post.send(self.principal, new)

    async def message(self, id: str, *, until: str | None = None, wait_s: float = 0.0) -> Posted:
        """The message with its deliveries, at once or when they have come to what is awaited."""
        wait = seconds_ms(wait_s, "wait_s") or 0
        if until is not None:
            return await self._post.wait_for(self.principal, id, until, wait)
        if wait:
            raise Invalid("wait_s without until: say what is waited for", field="until")
        return await self._post.get(self.principal, id)

    async def reply(self, id: str, *, wait_s: float = 0.0) -> Reply:
        """The first message that answers this one, at once or when it comes."""
        return await self._replies.first(self.principal, id, seconds_ms(wait_s, "wait_s") or 0)

    async def messages(self, asked: MessageFilter) -> MessagePage:
        """A page of messages, newest first."""
        return await self._post.page(self.principal, asked)

    async def inbox(
        self, mailbox: str | None = None, *, since: str | None = None, limit: int | None = None, wait_s: float = 0.0
    ) -> InboxPage:
        """What was handed off to a mailbox, in hand-off order."""
        return await self._inbox.page(self.principal, mailbox, since, limit, seconds_ms(wait_s, "wait_s") or 0)

    async def mark_read(self, mailbox: str | None, since: str) -> InboxPage:
        """Unread -> read, up to where `since` points."""
        return await self._inbox.mark_read(self.principal, mailbox, since)

    async def ack(self, id: str, endpoint: str | None = None) -> Posted:
        """Any state -> acknowledged."""
        return await self._receipts.ack(self.principal, id, endpoint)

    async def retry_message(self, id: str, endpoint: str | None = None, *, request_id: str | None = None) -> Posted:
        """Failed -> pending with attempts anew."""
        return await self._receipts.retry(self.principal, id, endpoint, request_id)

    async def cancel_message(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Posted:
        """Under way -> failed, cancelled."""
        return await self._receipts.cancel(self.principal, id, reason, request_id)

    # Endpoints and channels.

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
        """Nothing -> a live endpoint; what stood at the same place ends."""
        if self._place is None:
            raise Invalid("nothing can be attached here: no carrier is set up in this process", field="carrier")
        return await attach(
            self._registry,
            self._place,
            self.principal,
            carrier,
            address,
            name=name,
            repositories=repositories,
            queues=queues,
            channels=channels,
            ack_mode=ack_mode,
            max_attempts=max_attempts,
            spill=spill,
            rings=rings,
            pid=pid,
        )

    async def heartbeat_endpoint(self, id: str) -> Endpoint:
        """Live or silent -> seen now."""
        return await self._registry.heartbeat(self.principal, id)

    async def detach(self, id: str) -> Endpoint:
        """Attached -> ended, for ever."""
        return await self._registry.detach(self.principal, id)

    async def endpoints(self, asked: EndpointFilter) -> list[Endpoint]:
        """The endpoints that fit, oldest first."""
        return await self._registry.find(self.principal, asked)

    async def subscribe(self, channel: str, subscriber: str) -> Channel:
        """Not subscribed -> subscribed."""
        return await self._registry.subscribe(self.principal, channel, subscriber)

    async def unsubscribe(self, channel: str, subscriber: str) -> Channel:
        """Subscribed -> not subscribed."""
        return await self._registry.unsubscribe(self.principal, channel, subscriber)

    async def channels(self) -> list[Channel]:
        """Every channel that somebody is subscribed to."""
        return await self._registry.channels(self.principal)

    async def who(self) -> list[Occupant]:
        """Who works here, whoever was last heard of first."""
        return await self._registry.who(self.principal)
