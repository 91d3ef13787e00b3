"""Messages over HTTP: sent, looked at with their deliveries, waited for, acknowledged, and steered by their sender."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.fields import Asked, Cursor, Limit, Words, told
from postroom.doors.http.mail_fields import (
    CLIENT_PATTERN,
    LETTER,
    LINE_PATTERN,
    Acknowledging,
    Channel,
    ClientId,
    ClientKey,
    EndpointId,
    MessageId,
    MessageKind,
    MessagePriority,
    Text,
    Ttl,
    Wait,
    party,
)
from postroom.doors.http.polling import while_there
from postroom.doors.http.route import Call, Route
from postroom.doors.http.schemas import FLAG, TEXT, many, maybe, named, record
from postroom.errors import Invalid, NotFound
from postroom.mail_wire import admitted_view, page_view, posted_view, reply_view
from postroom.message import MessageFilter, NewMessage, Posted
from postroom.postage import DEFAULT_KIND, check_ack_mode, check_message_id, check_priority
from postroom.services.post import FILTER_STATES
from postroom.wire import seconds_ms

NOUN = "messages"
AWAITED = ("handed_off", "acknowledged")


class SendMessage(Asked):
    """A message to be admitted: to somebody, or to a channel."""

    to: Annotated[str, party("Whom it is for: a session, an endpoint's id, or a name.")] | None = None
    channel: Annotated[Channel, told("Instead of to: everybody who is subscribed to this channel now.")] | None = None
    sender: Annotated[str, party("Who says it: a name that the token may speak as; its own by default.")] | None = (
        Field(default=None, alias="from")
    )
    payload: Text
    kind: MessageKind | None = None
    priority: MessagePriority | None = None
    reply_to: Annotated[MessageId, told("The message that this one answers.")] | None = None
    msg_id: Annotated[MessageId, told("An id of your own: the same again is the first message.")] | None = None
    client_id: ClientId | None = None
    idempotency_key: ClientKey | None = None
    ack_mode: Acknowledging | None = None
    ttl_s: Ttl | None = None
    metadata: (
        Annotated[dict[str, Any], Field(description="A JSON object of at most 4 KiB, carried along unread.")] | None
    ) = None
    correlation_id: (
        Annotated[
            str, told("What it is about, by its id; a todo's puts the message into its trace.", pattern=LINE_PATTERN)
        ]
        | None
    ) = None

    def new(self) -> NewMessage:
        """The message as the services take it. Raises Invalid naming the field."""
        return NewMessage(
            payload=self.payload,
            to=self.to,
            channel=self.channel,
            sender=self.sender,
            kind=DEFAULT_KIND if self.kind is None else self.kind,
            priority=check_priority("normal" if self.priority is None else self.priority),
            reply_to=self.reply_to,
            msg_id=self.msg_id,
            client_id=self.client_id,
            idempotency_key=self.idempotency_key,
            ack_mode=None if self.ack_mode is None else check_ack_mode(self.ack_mode),
            ttl_ms=seconds_ms(self.ttl_s, "ttl_s"),
            metadata=self.metadata,
            correlation_id=self.correlation_id,
        )


class ListMessages(Asked):
    """Which messages a list shows."""

    sender: Annotated[str, party("Only from this one.")] | None = Field(default=None, alias="from")
    to: Annotated[str, party("Only to this one, as the sender named it.")] | None = None
    channel: Annotated[Channel, told("Only this channel's.")] | None = None
    state: (
        Annotated[
            str,
            told(
                "Only messages of which some delivery is in this state; cancelled is a kind of failed.",
                enum=list(FILTER_STATES),
            ),
        ]
        | None
    ) = None
    kind: Annotated[MessageKind, told("Only this kind.")] | None = None
    client_id: Annotated[str, told("Only this client's.", pattern=CLIENT_PATTERN)] | None = None
    target_repo: Annotated[str, told("Only for this repository.", pattern=LINE_PATTERN)] | None = None
    endpoint_id: Annotated[str, told("Only with a delivery to this endpoint.", pattern=LINE_PATTERN)] | None = None
    reply_to: Annotated[MessageId, told("Only answers to this message.")] | None = None
    cursor: Cursor | None = None
    limit: Limit | None = None


class GetMessage(Asked):
    """What a look at a message waits for."""

    until: (
        Annotated[
            str,
            told(
                "Wait until every delivery has come to this, or cannot any more.",
                enum=list(AWAITED),
            ),
        ]
        | None
    ) = None
    wait_s: Wait | None = None


class GetReply(Asked):
    """How long an answer is waited for."""

    wait_s: Wait | None = None


class AckMessage(Asked):
    """Which delivery is acknowledged."""

    endpoint: Annotated[EndpointId, told("Whose delivery; the caller's own by default, else the only one.")] | None = (
        None
    )


class RetryMessage(Asked):
    """Which delivery is tried anew."""

    endpoint: (
        Annotated[EndpointId, told("Whose delivery; the only one, or the only failed one, by default.")] | None
    ) = None


class CancelMessage(Asked):
    """Why a message is cancelled."""

    reason: Annotated[Words, told("Why, for whoever looks at it.")] | None = None


async def send(call: Call, asked: SendMessage) -> Answer:
    """Nothing -> admitted, with a delivery for each recipient."""
    admitted = await call.api.post.send(call.principal, asked.new(), call.request_id)
    shown = admitted_view(admitted)
    del shown["rebound"]
    return json_answer(shown, 202)


async def list_messages(call: Call, asked: ListMessages) -> Answer:
    """A page, newest first."""
    wanted = MessageFilter(
        sender=asked.sender,
        to=asked.to,
        channel=asked.channel,
        state=asked.state,
        kind=asked.kind,
        client_id=asked.client_id,
        target_repo=asked.target_repo,
        endpoint_id=asked.endpoint_id,
        reply_to=asked.reply_to,
        cursor=asked.cursor,
        limit=asked.limit,
    )
    return json_answer(page_view(await call.api.post.page(call.principal, wanted)))


async def get(call: Call, asked: GetMessage) -> Answer:
    """The message with its deliveries, at once or when they have come to what is awaited."""
    id_ = _id(call)
    wait = seconds_ms(asked.wait_s, "wait_s") or 0
    if asked.until is None:
        if wait:
            raise Invalid("wait_s without until: say what is waited for", field="until")
        return _shown(await call.api.post.get(call.principal, id_))
    looking = call.api.post.wait_for(call.principal, id_, asked.until, wait)
    return _shown(await (while_there(call.receive, looking) if wait > 0 else looking))


async def reply(call: Call, asked: GetReply) -> Answer:
    """The first answer to a message, at once or when it comes."""
    wait = seconds_ms(asked.wait_s, "wait_s") or 0
    looking = call.api.replies.first(call.principal, _id(call), wait)
    return json_answer(reply_view(await (while_there(call.receive, looking) if wait > 0 else looking)))


async def ack(call: Call, asked: AckMessage) -> Answer:
    """Any state -> acknowledged."""
    return _shown(await call.api.receipts.ack(call.principal, _id(call), asked.endpoint))


async def retry(call: Call, asked: RetryMessage) -> Answer:
    """Failed -> pending."""
    return _shown(await call.api.receipts.retry(call.principal, _id(call), asked.endpoint, call.request_id))


async def cancel(call: Call, asked: CancelMessage) -> Answer:
    """Under way -> failed, cancelled."""
    return _shown(await call.api.receipts.cancel(call.principal, _id(call), asked.reason, call.request_id))


def _id(call: Call) -> str:
    given = call.path["id"]
    try:
        return check_message_id(given, "id")
    except Invalid:
        raise NotFound(f"there is no message {given[:64]!r}", field="id") from None


def _shown(posted: Posted) -> Answer:
    return json_answer({"message": posted_view(posted)})


_MESSAGE = record({"message": named("Message")})

ROUTES = (
    Route(
        "POST",
        "/v1/messages",
        NOUN,
        "Send a message; it is admitted at once and delivered in its turn.",
        send,
        {202: record({"id": TEXT, "message": maybe(named("Message")), "deduplicated": FLAG})},
        body=SendMessage,
        refusals=(404, 409, 429),
        most=LETTER,
        keyed=True,
    ),
    Route(
        "GET",
        "/v1/messages",
        NOUN,
        "List the messages that the token may see with their deliveries, newest first.",
        list_messages,
        {200: record({"messages": many(named("Message")), "next_cursor": maybe(TEXT)})},
        query=ListMessages,
        refusals=(404,),
    ),
    Route(
        "GET",
        "/v1/messages/{id}",
        NOUN,
        "Get a message with its deliveries; with until and wait_s, once they have come to that.",
        get,
        {200: _MESSAGE},
        query=GetMessage,
    ),
    Route(
        "GET",
        "/v1/messages/{id}/reply",
        NOUN,
        "Get the first answer to a message of yours; with wait_s, once there is one or nobody can answer any more.",
        reply,
        {200: record({"reply": maybe(named("Message")), "message": named("Message"), "in_vain": FLAG})},
        query=GetReply,
    ),
    Route(
        "POST",
        "/v1/messages/{id}/ack",
        NOUN,
        "Acknowledge a message as its recipient; twice is the same, and late is not too late.",
        ack,
        {200: _MESSAGE},
        body=AckMessage,
        refusals=(409,),
    ),
    Route(
        "POST",
        "/v1/messages/{id}/retry",
        NOUN,
        "Try failed deliveries anew; for the sender and admins.",
        retry,
        {200: _MESSAGE},
        body=RetryMessage,
        refusals=(409,),
        keyed=True,
    ),
    Route(
        "POST",
        "/v1/messages/{id}/cancel",
        NOUN,
        "Cancel the deliveries that are under way; for the sender and admins.",
        cancel,
        {200: _MESSAGE},
        body=CancelMessage,
        refusals=(409,),
        keyed=True,
    ),
)
