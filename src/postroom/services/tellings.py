"""Tellings: what each transition is told as, and who may hear of it; made only while somebody listens.

Each takes the time (ms UTC) that stands where the rows have none of their own, and what its transition came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.endpoint import Endpoint
from postroom.event import Event, EventState, EventTodo, Received
from postroom.happening import Happening
from postroom.message import Delivery, DeliveryState, Message, Parcel, Posted, Written
from postroom.model import Outcome, OutcomeItem, Principal, Todo, TodoState, Verb
from postroom.services.sorting import Wanted
from postroom.store.deliveries import Touch
from postroom.text import cut, printable

MAX_WORDS: Final = 300
"""How much of a title, note or error a happening repeats, in bytes."""


@dataclass(frozen=True, slots=True)
class Told:
    """A happening, and who may hear of it: whoever may use one of the queues, or speaks as one of these.

    mailboxes: whose the deliveries are; a happening with several shows each reader its own. speakers: senders, and the
    names of endpoints. creators: principals that made what it tells of. queue_alone: even an admin must be one who may
    use the queue, as everywhere with todos.
    """

    happening: Happening
    queues: tuple[str, ...] = ()
    mailboxes: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()
    creators: tuple[str, ...] = ()
    queue_alone: bool = False


def words(*parts: str | None) -> str:
    """One line of what is there, safe to show and cut."""
    return cut(printable(": ".join(part for part in parts if part)), MAX_WORDS)


# Todos.


def _todo(
    at: int, what: str, id_: str, queue: str, who: str | None, said: str = "", event_id: str | None = None
) -> Told:
    about = () if event_id is None else (event_id,)
    return Told(Happening(at, f"todo.{what}", id_, queue, None, who, said, about), queues=(queue,), queue_alone=True)


def todos_created(at: int, todos: Iterable[Todo]) -> Iterator[Told]:
    """Nothing -> pending."""
    for todo in todos:
        yield _todo(todo.created_at, "created", todo.id, todo.queue, todo.created_by, words(todo.title), todo.event_id)


def todos_claimed(at: int, lease_id: str, todos: Iterable[Todo]) -> Iterator[Told]:
    """Claimable -> claimed under this lease; what an earlier call claimed under the same key was told then."""
    for todo in todos:
        if todo.lease_id != lease_id:
            continue
        now = todo.claimed_at or at
        last = todo.history[0] if todo.history else None
        if last is not None and last.outcome is Outcome.LAPSED and last.ended_at == now:
            # The claim itself took it from an owner whose lease was over: nobody else has told of that.
            yield _todo(now, "lapsed", todo.id, todo.queue, last.owner, words(todo.title), todo.event_id)
        said = words(f"{todo.title} (attempt {todo.attempt} of {todo.max_attempts})")
        yield _todo(now, "claimed", todo.id, todo.queue, todo.owner, said, todo.event_id)


def todo_ended(at: int, todo: Todo, principal: Principal, note: str | None) -> Iterator[Told]:
    """Claimed -> done, parked, dead or pending, by the holder of its lease."""
    yield _ended(todo.updated_at, todo.id, todo.queue, todo.state, todo.owner or principal.name, note, todo)


def todos_ended(at: int, principal: Principal, ended: Iterable[tuple[OutcomeItem, str, TodoState]]) -> Iterator[Told]:
    """The same for many at once: each item with its todo's queue and new state."""
    for item, queue, state in ended:
        note = item.note if item.verb is Verb.RELEASE else item.error
        yield _ended(at, item.id, queue, state, principal.name, note, None)


def _ended(at: int, id_: str, queue: str, state: TodoState, who: str, note: str | None, todo: Todo | None) -> Told:
    event_id = None if todo is None else todo.event_id
    if state is TodoState.DONE:
        return _todo(at, "done", id_, queue, who, "" if todo is None else words(todo.title), event_id)
    if state is TodoState.PENDING:
        return _todo(at, "released", id_, queue, who, words(note), event_id)
    if todo is not None and todo.dead:
        return _todo(at, "failed", id_, queue, who, words(f"dead letter, {todo.reason}", note), event_id)
    return _todo(at, "failed", id_, queue, who, words(note), event_id)


def todos_released(at: int, todos: Iterable[tuple[str, str]], who: str, note: str) -> Iterator[Told]:
    """Claimed -> pending, with nobody's doing of the owner's: id and queue of each."""
    for id_, queue in todos:
        yield _todo(at, "released", id_, queue, who, words(note))


def todos_lapsed(at: int, todos: Iterable[tuple[str, str, str]]) -> Iterator[Told]:
    """Claimed with its lease over -> pending or dead: id, queue and new state of each."""
    for id_, queue, state in todos:
        said = "" if state == TodoState.PENDING else "dead letter, exhausted"
        yield _todo(at, "lapsed", id_, queue, None, said)


def todos_due(at: int, todos: Iterable[tuple[str, str, str]]) -> Iterator[Told]:
    """Parked or delayed, and its time come -> claimable: id, queue and state of each."""
    for id_, queue, _ in todos:
        yield _todo(at, "due", id_, queue, None)


def todo_steered(at: int, what: str, todo: Todo, principal: Principal) -> Iterator[Told]:
    """Retried, cancelled or updated, by an admin or its creator."""
    yield _todo(todo.updated_at, what, todo.id, todo.queue, principal.name, words(todo.title), todo.event_id)


def queue_changed(at: int, queue: str, who: str | None) -> Iterator[Told]:
    """A queue's settings were set; or, by nobody known, another daemon did something in it."""
    told = Happening(at, "queue.changed", queue, queue, None, who)
    yield Told(told, queues=(queue,), queue_alone=True)


# Events.


def event_received(at: int, received: Received, wanted: Sequence[Wanted]) -> Iterator[Told]:
    """A delivery -> an event and its todos; or one more delivery of an event that was there."""
    event = received.event
    if received.duplicate:
        said = words(event.title, f"delivery {event.deliveries}")
        yield _event(event.last_delivery_at, "duplicate", event, received.todos, event.source, said)
        return
    held = event.state is EventState.HELD
    said = words(event.title, event.reason if held else None)
    yield _event(event.received_at, "held" if held else "received", event, received.todos, event.source, said)
    yield from _made(event.received_at, event, received.todos, wanted)


def event_steered(
    at: int, what: str, event: Event, todos: Sequence[EventTodo], principal: Principal, wanted: Sequence[Wanted]
) -> Iterator[Told]:
    """Replayed, released or discarded, by an admin; a rule that breaks holds it all the same."""
    held = event.state is EventState.HELD
    said = words(event.title, event.reason if held else str(event.state))
    yield _event(at, "held" if held else what, event, todos, principal.name, said)
    yield from _made(at, event, todos, wanted)


def _event(at: int, what: str, event: Event, todos: Sequence[EventTodo], who: str, said: str) -> Told:
    queues = tuple(dict.fromkeys(link.queue for link in todos))
    return Told(Happening(at, f"event.{what}", event.id, None, None, who, said), queues=queues)


def _made(at: int, event: Event, todos: Sequence[EventTodo], wanted: Sequence[Wanted]) -> Iterator[Told]:
    for link, one in zip(todos, wanted, strict=False):
        if link.created:
            who = f"source:{event.source}"
            yield _todo(at, "created", link.todo_id, link.queue, who, words(one.new.title), event.id)


# Messages and deliveries. What a message says is not told.


def admitted(at: int, posts: Iterable[Posted]) -> Iterator[Told]:
    """Nothing -> admitted; and what an inbox shows at once is there already."""
    for posted in posts:
        message = posted.message
        to = message.addressed or message.target_repo or "nobody"
        said = words(f"{message.kind} to {to if message.channel is None else f'channel {message.channel}'}")
        yield _message(message.created_at, "message.admitted", message, posted.deliveries, message.sender, said)
        for one in posted.deliveries:
            if one.handoff_seq is not None:
                yield _delivery(message.created_at, str(one.state), message, one, f"by {one.carrier}")


def message_steered(at: int, what: str, posted: Posted, who: str) -> Iterator[Told]:
    """Rebound, retried or cancelled."""
    yield _message(at, f"message.{what}", posted.message, posted.deliveries, who, "")


def acknowledged(at: int, message: Message, delivery: Delivery, principal: Principal) -> Iterator[Told]:
    """Any state -> acknowledged."""
    now = delivery.acknowledged_at or at
    yield _message(now, "message.acknowledged", message, (delivery,), principal.name, f"by {delivery.mailbox}")


def settled(at: int, parcel: Parcel, delivery: Delivery, outcome: Written, reason: str | None) -> Iterator[Told]:
    """Leased -> what its write came to; one that was acknowledged meanwhile only lost its lease."""
    match delivery.state:
        case DeliveryState.ACKNOWLEDGED:
            return
        case DeliveryState.PENDING:
            what = {Written.BUSY: "deferred", Written.UNKNOWN: "unknown"}.get(outcome, "attempt_failed")
            said = words(f"attempt {delivery.attempt_count} of {delivery.max_attempts}", reason or str(outcome))
        case DeliveryState.FAILED:
            what, said = "failed", words(delivery.reason, reason)
        case _:
            what, said = str(delivery.state), f"by {delivery.carrier}"
    creators = () if parcel.endpoint is None else (parcel.endpoint.created_by,)
    yield _delivery(delivery.updated_at, what, parcel.message, delivery, said, creators)


def deferred(at: int, target_key: str, reason: str | None, parcel: Parcel | None) -> Iterator[Told]:
    """Nothing of a target is tried now, for a new reason: its first delivery waits, where it is known."""
    if parcel is None:
        yield Told(Happening(at, "delivery.deferred", target_key, words=words(reason)))
        return
    creators = () if parcel.endpoint is None else (parcel.endpoint.created_by,)
    yield _delivery(at, "deferred", parcel.message, parcel.delivery, words(reason), creators)


def swept(at: int, what: str, touched: Iterable[Touch]) -> Iterator[Told]:
    """A lease, a deadline or a life is over -> pending or failed, by itself."""
    for one in touched:
        if one.message_id and one.state == DeliveryState.FAILED:
            yield _touched(at, "failed", one, words(one.reason))
        elif one.message_id and one.state != DeliveryState.ACKNOWLEDGED:
            yield _touched(at, what, one, "")


def arrived(at: int, touched: Iterable[Touch]) -> Iterator[Told]:
    """Pushed to a channel, and known to have arrived now."""
    for one in touched:
        yield _touched(at, one.state, one, "read")


def _touched(at: int, what: str, one: Touch, said: str) -> Told:
    told = Happening(at, f"delivery.{what}", one.message_id, None, one.mailbox, one.sender, said)
    return Told(told, mailboxes=(one.mailbox,), speakers=(one.sender,), creators=(one.created_by,))


def recalled(at: int, message_ids: Iterable[str], why: str) -> Iterator[Told]:
    """Rings that need not be written any more -> cancelled."""
    for id_ in message_ids:
        yield Told(Happening(at, "message.cancelled", id_, words=words(why)))


def mailbox_changed(at: int, mailbox: str) -> Iterator[Told]:
    """An inbox shows something new that this daemon did not put there, or has told of already."""
    yield Told(Happening(at, "mailbox.changed", mailbox, None, mailbox), mailboxes=(mailbox,))


def _message(at: int, what: str, message: Message, deliveries: Sequence[Delivery], who: str, said: str) -> Told:
    return Told(
        Happening(at, what, message.id, None, None, who, said, _about(message)),
        mailboxes=tuple(dict.fromkeys(one.mailbox for one in deliveries)),
        speakers=(message.sender,),
        creators=(message.created_by,),
    )


def _delivery(
    at: int, what: str, message: Message, delivery: Delivery, said: str, creators: tuple[str, ...] = ()
) -> Told:
    return Told(
        Happening(at, f"delivery.{what}", message.id, None, delivery.mailbox, message.sender, said, _about(message)),
        mailboxes=(delivery.mailbox,),
        speakers=(message.sender,),
        creators=(message.created_by, *creators),
    )


def _about(message: Message) -> tuple[str, ...]:
    return tuple(id_ for id_ in (message.correlation_id, message.reply_to) if id_ is not None)


# Endpoints.


def endpoint_attached(at: int, endpoint: Endpoint) -> Iterator[Told]:
    """Nothing -> a live endpoint."""
    yield _endpoint(endpoint.created_at, "attached", endpoint)


def endpoints_ended(at: int, endpoints: Iterable[Endpoint | None]) -> Iterator[Told]:
    """Attached -> ended for ever."""
    for endpoint in endpoints:
        if endpoint is not None:
            yield _endpoint(endpoint.ended_at or at, "ended", endpoint)


def _endpoint(at: int, what: str, endpoint: Endpoint) -> Told:
    said = words(f"{endpoint.carrier} at {endpoint.target_key}")
    return Told(
        Happening(at, f"endpoint.{what}", endpoint.id, None, endpoint.mailbox, endpoint.created_by, said),
        mailboxes=(endpoint.mailbox,),
        creators=(endpoint.created_by,),
    )
