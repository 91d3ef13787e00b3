"""The JSON of the post in `/v1`: how its values look on the wire, and how a client reads them back (DESIGN §9).

Times are RFC 3339 with milliseconds. A sender is `from` and the one it names is `to`, as in the swarm's own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.message import (
    AckMode,
    Admitted,
    Delivery,
    DeliveryState,
    InboxPage,
    Letter,
    Message,
    MessagePage,
    Posted,
    Priority,
    Reply,
)
from postroom.post import Channel, Occupant, Traffic
from postroom.wire import read_time, show_time

# Showing.


def message_view(message: Message) -> dict[str, Any]:
    """A message's content, without its deliveries."""
    return {
        "id": message.id,
        "from": message.sender,
        "to": message.addressed,
        "channel": message.channel,
        "kind": message.kind,
        "priority": str(message.priority),
        "reply_to": message.reply_to,
        "payload": message.payload,
        "ack_mode": str(message.ack_mode),
        "metadata": message.metadata,
        "client_id": message.client_id,
        "idempotency_key": message.idempotency_key,
        "correlation_id": message.correlation_id,
        "sender_repo": message.sender_repo,
        "target_repo": message.target_repo,
        "provenance": message.provenance,
        "created_by": message.created_by,
        "created_at": show_time(message.created_at),
        "expires_at": show_time(message.expires_at),
    }


def delivery_view(delivery: Delivery) -> dict[str, Any]:
    """A delivery; the lease id that a courier holds is never shown."""
    return {
        "id": delivery.id,
        "target": delivery.target_key,
        "carrier": str(delivery.carrier),
        "endpoint_id": delivery.endpoint_id,
        "mailbox": delivery.mailbox,
        "state": str(delivery.state),
        "ack_mode": str(delivery.ack_mode),
        "attempts": delivery.attempt_count,
        "max_attempts": delivery.max_attempts,
        "round": delivery.round,
        "next_attempt_at": show_time(delivery.next_attempt_at),
        "lease_expires_at": show_time(delivery.lease_expires_at),
        "ack_deadline": show_time(delivery.ack_deadline),
        "reason": delivery.reason,
        "last_failure_reason": delivery.last_failure_reason,
        "may_have_been_written": delivery.doubtful,
        "deferred_reason": delivery.deferred_reason,
        "deferred_since": show_time(delivery.deferred_since),
        "delivered_at": show_time(delivery.delivered_at),
        "seen_at": show_time(delivery.seen_at),
        "answered_at": show_time(delivery.answered_at),
        "acknowledged_at": show_time(delivery.acknowledged_at),
        "expires_at": show_time(delivery.expires_at),
        "created_at": show_time(delivery.created_at),
        "updated_at": show_time(delivery.updated_at),
    }


def posted_view(posted: Posted) -> dict[str, Any]:
    """A message with its `deliveries`, as `{message}` holds it."""
    return {**message_view(posted.message), "deliveries": [delivery_view(one) for one in posted.deliveries]}


def admitted_view(admitted: Admitted) -> dict[str, Any]:
    """The answer to a send; `message` is null for a repeat of one whose row is no longer kept."""
    return {
        "id": admitted.id,
        "message": None if admitted.posted is None else posted_view(admitted.posted),
        "deduplicated": admitted.deduplicated,
        "rebound": admitted.rebound,
    }


def reply_view(reply: Reply) -> dict[str, Any]:
    """What came back to a message, null while nothing did; the message itself; and whether nobody can answer it."""
    return {
        "reply": None if reply.answer is None else posted_view(reply.answer),
        "message": posted_view(reply.asked),
        "in_vain": reply.in_vain,
    }


def page_view(page: MessagePage) -> dict[str, Any]:
    """A page of messages with their deliveries, newest first."""
    return {"messages": [posted_view(one) for one in page.messages], "next_cursor": page.next_cursor}


def letter_view(letter: Letter) -> dict[str, Any]:
    """A message as its recipient's inbox shows it: with the recipient's own `delivery`, and whether it was read."""
    delivery = letter.delivery
    return {
        **message_view(letter.message),
        "delivery": delivery_view(delivery),
        "handed_off_at": show_time(handed_off_at(delivery)),
        "read": letter.read,
    }


def handed_off_at(delivery: Delivery) -> int | None:
    """When it came to its mailbox (ms UTC): by its first write, else by the acknowledgement of what was never written."""
    return delivery.delivered_at if delivery.delivered_at is not None else delivery.acknowledged_at


def inbox_view(page: InboxPage) -> dict[str, Any]:
    """A page of an inbox in hand-off order, and from where the next one goes on."""
    return {
        "mailbox": page.mailbox,
        "messages": [letter_view(one) for one in page.letters],
        "next_since": page.next_since,
        "unread": page.unread,
    }


def endpoint_view(endpoint: Endpoint, live: bool | None = None) -> dict[str, Any]:
    """An endpoint; `live` is told by whoever knows the database's clock, and null where nobody asked."""
    return {
        "id": endpoint.id,
        "name": endpoint.name,
        "carrier": str(endpoint.carrier),
        "address": endpoint.address,
        "target": endpoint.target_key,
        "reach": endpoint.reach,
        "mailbox": endpoint.mailbox,
        "repositories": list(endpoint.repositories),
        "queues": list(endpoint.queues),
        "channels": list(endpoint.channels),
        "ack_mode": endpoint.ack_mode,
        "delivery_max_attempts": endpoint.max_attempts,
        "spill": endpoint.spill,
        "rings": endpoint.rings,
        "pid": endpoint.pid,
        "live": False if endpoint.ended_at is not None else live,
        "created_by": endpoint.created_by,
        "created_at": show_time(endpoint.created_at),
        "seen_at": show_time(endpoint.seen_at),
        "ended_at": show_time(endpoint.ended_at),
    }


def channel_view(channel: Channel) -> dict[str, Any]:
    """A channel and who gets what is sent to it."""
    return {
        "name": channel.name,
        "subscribers": [{"mailbox": mailbox, "endpoint_id": id_} for mailbox, id_ in channel.subscribers],
    }


def occupant_view(occupant: Occupant) -> dict[str, Any]:
    """Somebody who works here."""
    return {
        "name": occupant.name,
        "carrier": occupant.carrier,
        "endpoint_id": occupant.endpoint_id,
        "live": occupant.live,
        "repositories": list(occupant.repositories),
        "queues": list(occupant.queues),
        "channels": list(occupant.channels),
        "directory": occupant.directory,
        "branch": occupant.branch,
        "todo_id": occupant.todo_id,
        "todo_title": occupant.todo_title,
        "last_seen": show_time(occupant.last_seen),
    }


def traffic_view(traffic: Traffic) -> dict[str, Any]:
    """How the post stands: counts, what waits and why. Ages are seconds."""
    return {
        "pending": traffic.pending,
        "awaiting_ack": traffic.awaiting_ack,
        "failed": traffic.failed,
        "oldest_pending_age_s": _seconds(traffic.oldest_pending_age),
        "carriers": [
            {
                "carrier": str(one.carrier),
                "pending": one.pending,
                "retrying": one.retrying,
                "being_written": one.being_written,
                "awaiting_ack": one.awaiting_ack,
                "failed": one.failed,
                "oldest_pending_age_s": _seconds(one.oldest_pending_age),
            }
            for one in traffic.carriers
        ],
        "deferred": [
            {
                "target": one.target_key,
                "mailbox": one.mailbox,
                "carrier": str(one.carrier),
                "reason": one.reason,
                "since": show_time(one.since),
                "waiting": one.waiting,
            }
            for one in traffic.deferred
        ],
        "endpoints": {"live": traffic.live_endpoints, "standing": traffic.standing_endpoints},
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


# Reading back. What is the store's own and not on the wire (places, digests, lease ids) is empty in what is read.


def _ms(view: Mapping[str, Any], key: str) -> int | None:
    value = view.get(key)
    return None if value is None else read_time(str(value), key)


def _text(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def message_of(view: Mapping[str, Any]) -> Message:
    """The message of a view."""
    return Message(
        seq=0,
        id=view["id"],
        client_id=view["client_id"],
        idempotency_key=view["idempotency_key"],
        digest="",
        sender=view["from"],
        addressed=view["to"],
        channel=view["channel"],
        kind=view["kind"],
        priority=Priority(view["priority"]),
        reply_to=view["reply_to"],
        payload=view["payload"],
        ack_mode=AckMode(view["ack_mode"]),
        metadata_json=_text(view["metadata"]),
        correlation_id=view["correlation_id"],
        sender_repo=view["sender_repo"],
        target_repo=view["target_repo"],
        provenance=view["provenance"],
        created_by=view["created_by"],
        created_at=_ms(view, "created_at") or 0,
        expires_at=_ms(view, "expires_at"),
    )


def delivery_of(view: Mapping[str, Any], message: Message) -> Delivery:
    """The delivery of a view, of this message."""
    return Delivery(
        seq=0,
        id=view["id"],
        message_id=message.id,
        target_key=view["target"],
        carrier=CarrierKind(view["carrier"]),
        endpoint_id=view["endpoint_id"],
        mailbox=view["mailbox"],
        reach=ANY_REACH,
        state=DeliveryState(view["state"]),
        rank=message.priority.rank,
        ack_mode=AckMode(view["ack_mode"]),
        attempt_count=view["attempts"],
        max_attempts=view["max_attempts"],
        round=view["round"],
        lease_id=None,
        lease_expires_at=_ms(view, "lease_expires_at"),
        doubtful=view["may_have_been_written"],
        next_attempt_at=_ms(view, "next_attempt_at"),
        ack_deadline=_ms(view, "ack_deadline"),
        reason=view["reason"],
        last_failure_reason=view["last_failure_reason"],
        handoff_seq=None,
        delivered_at=_ms(view, "delivered_at"),
        seen_at=_ms(view, "seen_at"),
        answered_at=_ms(view, "answered_at"),
        acknowledged_at=_ms(view, "acknowledged_at"),
        expires_at=_ms(view, "expires_at"),
        created_at=_ms(view, "created_at") or 0,
        updated_at=_ms(view, "updated_at") or 0,
        deferred_reason=view["deferred_reason"],
        deferred_since=_ms(view, "deferred_since"),
    )


def posted_of(view: Mapping[str, Any]) -> Posted:
    """The message and deliveries of a view."""
    message = message_of(view)
    return Posted(message, tuple(delivery_of(one, message) for one in view["deliveries"]))


def admitted_of(view: Mapping[str, Any]) -> Admitted:
    """The answer to a send, of its view."""
    posted = view["message"]
    return Admitted(
        view["id"], None if posted is None else posted_of(posted), view["deduplicated"], view.get("rebound", False)
    )


def reply_of(view: Mapping[str, Any]) -> Reply:
    """What came back to a message, of its view."""
    answer = view["reply"]
    return Reply(posted_of(view["message"]), None if answer is None else posted_of(answer))


def page_of(view: Mapping[str, Any]) -> MessagePage:
    """The page of a view."""
    return MessagePage(tuple(posted_of(one) for one in view["messages"]), view["next_cursor"])


def inbox_of(view: Mapping[str, Any]) -> InboxPage:
    """The inbox page of a view."""
    letters = []
    for one in view["messages"]:
        message = message_of(one)
        letters.append(Letter(message, delivery_of(one["delivery"], message), one["read"]))
    return InboxPage(view["mailbox"], tuple(letters), view["next_since"], view["unread"])


def endpoint_of(view: Mapping[str, Any]) -> Endpoint:
    """The endpoint of a view."""
    return Endpoint(
        seq=0,
        id=view["id"],
        name=view["name"],
        carrier=CarrierKind(view["carrier"]),
        address_json=_text(view["address"]) or "{}",
        target_key=view["target"],
        reach=view["reach"],
        ack_mode=view["ack_mode"],
        max_attempts=view["delivery_max_attempts"],
        spill=view["spill"],
        rings=view["rings"],
        pid=view["pid"],
        created_by=view["created_by"],
        created_at=_ms(view, "created_at") or 0,
        seen_at=_ms(view, "seen_at") or 0,
        ended_at=_ms(view, "ended_at"),
        repositories=tuple(view["repositories"]),
        queues=tuple(view["queues"]),
        channels=tuple(view["channels"]),
    )


def channel_of(view: Mapping[str, Any]) -> Channel:
    """The channel of a view."""
    return Channel(view["name"], tuple((one["mailbox"], one["endpoint_id"]) for one in view["subscribers"]))


def occupant_of(view: Mapping[str, Any]) -> Occupant:
    """The occupant of a view."""
    return Occupant(
        name=view["name"],
        carrier=view["carrier"],
        endpoint_id=view["endpoint_id"],
        live=view["live"],
        repositories=tuple(view["repositories"]),
        queues=tuple(view["queues"]),
        channels=tuple(view["channels"]),
        directory=view["directory"],
        branch=view["branch"],
        todo_id=view["todo_id"],
        todo_title=view["todo_title"],
        last_seen=_ms(view, "last_seen"),
    )
