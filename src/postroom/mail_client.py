"""The post of a daemon: every verb of post.Post over HTTP `/v1`, on the connection of its client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from postroom import mail_wire
from postroom.bodies import Calls, encode, given, names, query_of, words
from postroom.endpoint import Endpoint, EndpointFilter
from postroom.errors import Invalid, NotFound
from postroom.ids import Prefix, check_id
from postroom.limits import check_queue
from postroom.message import Admitted, InboxPage, MessageFilter, MessagePage, Posted, Reply
from postroom.post import Channel, Occupant
from postroom.postage import check_message_id, check_party
from postroom.text import check_json

MOST_WAIT_S = 60.0
"""The longest that an answer is waited for besides the client's own deadline; a daemon waits 50 s at most."""


class ClientPost:
    """A post over a daemon; `call` makes one call. A call whose repetition is harmless is repeated, as the client does."""

    def __init__(self, call: Calls) -> None:
        self._call = call

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
        body = {
            "payload": payload,
            **given(to=to, channel=channel, kind=kind, priority=priority, reply_to=reply_to, msg_id=msg_id),
            **given(client_id=client_id, idempotency_key=idempotency_key, ack_mode=ack_mode, ttl_s=ttl_s),
            **given(metadata=None if metadata is None else dict(metadata), correlation_id=correlation_id),
        }
        if sender is not None:
            body["from"] = sender
        again = msg_id is not None or idempotency_key is not None
        return mail_wire.admitted_of(await self._call("POST", "/v1/messages", _body(body), again=again))

    async def message(self, id: str, *, until: str | None = None, wait_s: float = 0.0) -> Posted:
        """The message with its deliveries, once they have come to `until` or cannot any more. Raises NotFound."""
        query = query_of(until=until, wait_s=wait_s or None)
        answer = await self._call("GET", _message_path(id), query=query, again=True, wait_s=_wait(wait_s))
        return mail_wire.posted_of(answer["message"])

    async def reply(self, id: str, *, wait_s: float = 0.0) -> Reply:
        """The first message that answers this one, once there is one or nobody can answer any more. Raises NotFound."""
        query = query_of(wait_s=wait_s or None)
        answer = await self._call("GET", _message_path(id, "reply"), query=query, again=True, wait_s=_wait(wait_s))
        return mail_wire.reply_of(answer)

    async def messages(self, asked: MessageFilter) -> MessagePage:
        """A page of messages, newest first."""
        query = query_of(
            **{
                "from": asked.sender,
                "to": asked.to,
                "channel": asked.channel,
                "state": asked.state,
                "kind": asked.kind,
                "client_id": asked.client_id,
                "target_repo": asked.target_repo,
                "endpoint_id": asked.endpoint_id,
                "reply_to": asked.reply_to,
                "cursor": asked.cursor,
                "limit": asked.limit,
            }
        )
        return mail_wire.page_of(await self._call("GET", "/v1/messages", query=query, again=True))

    async def inbox(
        self, mailbox: str | None = None, *, since: str | None = None, limit: int | None = None, wait_s: float = 0.0
    ) -> InboxPage:
        """What was handed off to this mailbox after `since`, in hand-off order."""
        query = query_of(**{"for": mailbox, "since": since, "limit": limit, "wait_s": wait_s or None})
        answer = await self._call("GET", "/v1/inbox", query=query, again=True, wait_s=_wait(wait_s))
        return mail_wire.inbox_of(answer)

    async def mark_read(self, mailbox: str | None, since: str) -> InboxPage:
        """Unread -> read, up to where `since` points; never back."""
        body = {**given(**{"for": mailbox}), "since": since}
        return mail_wire.inbox_of(await self._call("POST", "/v1/inbox/read", _body(body), again=True))

    async def ack(self, id: str, endpoint: str | None = None) -> Posted:
        """Any state -> acknowledged."""
        answer = await self._call("POST", _message_path(id, "ack"), _body(given(endpoint=endpoint)), again=True)
        return mail_wire.posted_of(answer["message"])

    async def retry_message(self, id: str, endpoint: str | None = None, *, request_id: str | None = None) -> Posted:
        """Failed -> pending with attempts anew; for admins and the sender."""
        return await self._steer(_message_path(id, "retry"), given(endpoint=endpoint), request_id)

    async def cancel_message(self, id: str, *, reason: str | None = None, request_id: str | None = None) -> Posted:
        """Under way -> failed, cancelled; for admins and the sender."""
        return await self._steer(_message_path(id, "cancel"), given(reason=words(reason)), request_id)

    async def _steer(self, path: str, body: Mapping[str, Any], request_id: str | None) -> Posted:
        answer = await self._call("POST", path, _body(body), key=request_id, again=request_id is not None)
        return mail_wire.posted_of(answer["message"])

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
        body = {
            "carrier": carrier,
            "address": dict(address),
            "spill": spill,
            "rings": rings,
            **given(name=name, ack_mode=ack_mode, delivery_max_attempts=max_attempts, pid=pid),
            "repositories": names(repositories, "repositories"),
            "queues": names(queues, "queues"),
            "channels": names(channels, "channels"),
        }
        return mail_wire.endpoint_of((await self._call("POST", "/v1/endpoints", _body(body)))["endpoint"])

    async def heartbeat_endpoint(self, id: str) -> Endpoint:
        """Live or silent -> seen now. Raises NotFound, and Conflict for one that has ended."""
        answer = await self._call("POST", f"{_endpoint_path(id)}/heartbeat", {}, again=True)
        return mail_wire.endpoint_of(answer["endpoint"])

    async def detach(self, id: str) -> Endpoint:
        """Attached -> ended, for ever."""
        return mail_wire.endpoint_of((await self._call("DELETE", _endpoint_path(id), again=True))["endpoint"])

    async def parcel(self, endpoint_id: str, wait_s: float) -> Mapping[str, Any] | None:
        """The next message of a channel's endpoint that this program attached, as `GET …/parcels` gives it; None for none.

        A wait is a sign of life besides. Raises NotFound, and Conflict for an endpoint that has ended.
        """
        query, path = query_of(wait_s=wait_s), f"{_endpoint_path(endpoint_id)}/parcels"
        parcel: Mapping[str, Any] | None = (await self._call("GET", path, query=query, wait_s=_wait(wait_s)))["parcel"]
        return parcel

    async def answer_parcel(self, endpoint_id: str, delivery_id: str, outcome: str, reason: str | None = None) -> None:
        """Handed over -> `pushed`, or `refused`. Raises Conflict for a message that is not out any more."""
        path = f"{_endpoint_path(endpoint_id)}/parcels/{check_id(delivery_id, Prefix.DELIVERY, 'delivery_id')}"
        await self._call("POST", path, {"outcome": outcome, **given(reason=words(reason))})

    async def endpoints(self, asked: EndpointFilter) -> list[Endpoint]:
        """The endpoints that fit, oldest first."""
        query = query_of(
            target_repo=asked.target_repo,
            queue=asked.queue,
            channel=asked.channel,
            name=asked.name,
            live=asked.live,
            ended=asked.ended or None,
        )
        answer = await self._call("GET", "/v1/endpoints", query=query, again=True)
        return [mail_wire.endpoint_of(one) for one in answer["endpoints"]]

    async def subscribe(self, channel: str, subscriber: str) -> Channel:
        """Not subscribed -> subscribed; twice is the same."""
        answer = await self._call("PUT", _subscription_path(channel, subscriber), {}, again=True)
        return mail_wire.channel_of(answer["channel"])

    async def unsubscribe(self, channel: str, subscriber: str) -> Channel:
        """Subscribed -> not subscribed; twice is the same."""
        answer = await self._call("DELETE", _subscription_path(channel, subscriber), again=True)
        return mail_wire.channel_of(answer["channel"])

    async def channels(self) -> list[Channel]:
        """Every channel that somebody is subscribed to."""
        answer = await self._call("GET", "/v1/channels", again=True)
        return [mail_wire.channel_of(one) for one in answer["channels"]]

    async def who(self) -> list[Occupant]:
        """Who works here, whoever was last heard of first."""
        answer = await self._call("GET", "/v1/who", again=True)
        return [mail_wire.occupant_of(one) for one in answer["who"]]


def _body(body: Mapping[str, Any]) -> bytes:
    for field, value in body.items():
        check_json(value, field)
    return encode(body)


def _wait(wait_s: float) -> float:
    return min(max(wait_s, 0.0), MOST_WAIT_S)


def _message_path(id: str, verb: str = "") -> str:
    try:
        check_message_id(id, "id")
    except Invalid:
        raise NotFound(f"there is no message {id[:64]!r}", field="id") from None
    # A path's part of dots alone leads elsewhere unless they are spelled out.
    path = f"/v1/messages/{quote(id, safe='') if id.strip('.') else id.replace('.', '%2E')}"
    return f"{path}/{verb}" if verb else path


def _endpoint_path(id: str) -> str:
    return f"/v1/endpoints/{check_id(id, Prefix.ENDPOINT, 'endpoint')}"


def _subscription_path(channel: str, subscriber: str) -> str:
    name, who = check_queue(channel, "channel"), check_party(subscriber, "subscriber")
    return f"/v1/channels/{quote(name, safe='')}/subscribers/{quote(who, safe='')}"
