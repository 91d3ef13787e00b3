"""The post: messages admitted once, looked at with their deliveries, and waited for (DESIGN §6, RULINGS 5, 15, 29, 33)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from postroom import limits, postage
from postroom.delivery import leased
from postroom.errors import Ambiguous, Conflict, Forbidden, Invalid, NotFound, PostroomError, Unavailable
from postroom.ids import Ids, Prefix
from postroom.limits import MAX_WAIT
from postroom.message import (
    AckMode,
    Admitted,
    Cause,
    Delivery,
    DeliveryState,
    MessageFilter,
    MessagePage,
    NewMessage,
    Posted,
)
from postroom.model import Principal
from postroom.services import tellings
from postroom.services.addresses import AddressBook
from postroom.services.allowed import Allowed
from postroom.services.pages import page_limit, read_cursor, show_cursor
from postroom.services.rates import Fare, Rates
from postroom.services.refusals import named_message
from postroom.services.requests import Answer, Requests
from postroom.services.wake import Wake
from postroom.services.watch import Watch
from postroom.store.admissions import Address, AdmissionTable, Draft
from postroom.store.deliveries import DeliveryTable
from postroom.store.endpoints import EndpointTable
from postroom.store.engine import Duplicate, Engine, Reader, Tx
from postroom.store.posted import PostedTable
from postroom.text import dump_json, store_json

LOOKS = 8
"""How often an admission looks again when what it had found changed in the very moment."""
HANDED_OFF = "handed_off"
ACKNOWLEDGED = "acknowledged"
FILTER_STATES = (*map(str, DeliveryState), str(Cause.CANCELLED))
AWAITED = (HANDED_OFF, ACKNOWLEDGED)

_THERE = {DeliveryState.INJECTED, DeliveryState.AWAITING_ACK, DeliveryState.ACKNOWLEDGED}


class _Again(Exception):
    """What a look had found was no longer so when it was acted on: undo everything, and look again."""


class PostService:
    """The verbs over messages for a principal; `clock` gives ms UTC, for the ids of messages alone."""

    def __init__(
        self,
        engine: Engine,
        admissions: AdmissionTable,
        table: PostedTable,
        deliveries: DeliveryTable,
        endpoints: EndpointTable,
        requests: Requests,
        wake: Wake,
        watch: Watch,
        ids: Ids,
        clock: Callable[[], int],
        allowed: Allowed,
        rates: Rates,
    ) -> None:
        self._engine = engine
        self._admissions = admissions
        self._table = table
        self._deliveries = deliveries
        self._endpoints = endpoints
        self._book = AddressBook(endpoints, ids)
        self._requests = requests
        self._wake = wake
        self._watch = watch
        self._ids = ids
        self._clock = clock
        self._allowed = allowed
        self._rates = rates
        self._reader = Reader(engine)

    # send

    async def send(self, principal: Principal, new: NewMessage, request_id: str | None = None) -> Admitted:
        """Nothing -> admitted, with a delivery for each recipient; the same content under a known key is the first message.

        Raises Invalid and TooLarge by field, Forbidden for a sender that the token may not speak as or whom the allow-list
        does not let write there, RateLimited, Conflict for a known key with other content, NotFound, Ambiguous and
        Unavailable for whom it is for; nothing is admitted then. A repeat is neither counted nor held up by the rate.
        """
        draft = self._draft(principal, new)
        with self._rates.one(principal, draft.sender) as fare:
            if fare.refusal is not None and not draft.keys and request_id is None:
                raise fare.refusal  # Nothing can show that it was admitted before.
            admitted = await self._send(principal, new, draft, request_id, fare)
            fare.due = not admitted.deduplicated
        self._tell(principal, admitted)
        return admitted

    async def _send(
        self, principal: Principal, new: NewMessage, draft: Draft, request_id: str | None, fare: Fare
    ) -> Admitted:
        surprised = fare.refusal is not None

        async def operation(tx: Tx) -> Admitted:
            return await self._admit(tx, principal, new, draft, fare.refusal, look_first=surprised)

        async def keyed(tx: Tx) -> tuple[Admitted, Answer]:
            admitted = await self._admit(tx, principal, new, draft, fare.refusal, look_first=surprised)
            return admitted, (admitted.id,)

        async def replay(tx: Tx, answer: Answer) -> Admitted:
            id_ = str(answer[0])
            found = await self._table.many(tx, [id_])
            return Admitted(id_, found[0] if found else None, deduplicated=True)

        for _ in range(LOOKS):
            try:
                if request_id is None:
                    # Without a look that must hold, PostgreSQL needs no transaction around its one writing statement.
                    return await self._engine.transact(operation, one=True)
                return await self._requests.once(principal, request_id, "send", _body(new, draft), keyed, replay)
            except (Duplicate, _Again):
                surprised = True
        raise Unavailable("where the message goes keeps changing; send it again")

    def _draft(self, principal: Principal, new: NewMessage) -> Draft:
        """Pass what may be sent by this principal, as it will be stored. Raises Invalid, TooLarge, Forbidden."""
        postage.check_message(new)
        self._book.check(new)
        sender = principal.name if new.sender is None else new.sender
        if not principal.may_speak_as(sender):
            raise Forbidden(f"{principal.name} may not send as {sender[:64]}", field="from")
        keys: list[tuple[str, str]] = []
        if new.msg_id is not None:
            keys.append(("", new.msg_id))
        if new.client_id is not None and new.idempotency_key is not None:
            keys.append((new.client_id, new.idempotency_key))
        metadata = None
        if new.metadata is not None:
            metadata = store_json(dict(new.metadata), "metadata", postage.MAX_METADATA_BYTES)
        return Draft(
            id=new.msg_id or self._ids.message(self._clock()),
            keys=tuple(keys),
            client_id=new.client_id,
            idempotency_key=new.idempotency_key,
            digest=_digest(new, sender),
            sender=sender,
            addressed=new.to,
            channel=new.channel,
            kind=new.kind,
            priority=new.priority,
            reply_to=new.reply_to,
            payload=new.payload,
            ack_mode=new.ack_mode or AckMode.INJECTED,
            metadata=metadata,
            correlation_id=new.correlation_id,
            sender_repo=new.sender_repo,
            target_repo=new.target_repo,
            provenance=new.provenance,
            created_by=principal.name,
            ttl=new.ttl_ms,
        )

    async def _admit(
        self,
        tx: Tx,
        principal: Principal,
        new: NewMessage,
        draft: Draft,
        barred: PostroomError | None,
        *,
        look_first: bool,
    ) -> Admitted:
        """Admit it, or give the first one; `barred` is why nothing new may be admitted."""
        refusal: PostroomError | None = None
        addresses: list[Address] = []
        try:
            addresses = await self._book.look_up(tx, new, draft.sender)
            self._allowed.check(principal, draft.sender, new, addresses)
        except (NotFound, Ambiguous, Unavailable, Forbidden) as error:
            refusal = error  # A message that is known already is told from one that nobody can get.
        known = await self._admissions.known(tx, draft) if look_first else []
        if refusal is None and barred is None and not known:
            if new.channel is None and addresses[0].ack_mode is not draft.ack_mode:
                draft = replace(draft, ack_mode=addresses[0].ack_mode)
            posted = await self._admissions.admit(tx, draft, addresses)
            if posted is not None:
                return Admitted(draft.id, posted)
        known = known or (await self._admissions.known(tx, draft) if draft.keys else [])
        if known:
            return await self._repeat(tx, new, draft, known, addresses, refusal)
        if (held := barred or refusal) is not None:
            raise held
        if draft.reply_to is not None and not await self._admissions.reply_known(tx, draft.reply_to):
            raise Invalid(f"reply_to {draft.reply_to} is no message that was ever here", field="reply_to")
        raise _Again

    async def _repeat(
        self,
        tx: Tx,
        new: NewMessage,
        draft: Draft,
        known: Sequence[tuple[str, str]],
        addresses: Sequence[Address],
        refusal: PostroomError | None,
    ) -> Admitted:
        """The first message under the draft's keys, at another endpoint when its own is dead (T19, T20, T46, T47)."""
        for id_, digest in known:
            if digest != draft.digest or id_ != known[0][0]:
                field = "msg_id" if id_ == new.msg_id else "idempotency_key"
                raise Conflict(f"{field} was used for {id_}, which is another message", field=field, message_id=id_)
        id_ = known[0][0]
        found = await self._table.many(tx, [id_])
        if not found:
            return Admitted(id_, None, deduplicated=True)
        again = Admitted(id_, found[0], deduplicated=True)
        delivery = found[0].delivery
        if delivery is None or delivery.endpoint_id is None or not _elsewhere(new, delivery, addresses):
            return again
        if await self._endpoints.living(tx, [delivery.endpoint_id]):
            if new.endpoint_id is not None:
                raise Conflict(
                    f"{id_} is at endpoint {delivery.endpoint_id}, which is live; it is not moved",
                    field="endpoint_id",
                    endpoint_id=delivery.endpoint_id,
                )
            return again
        if delivery.state in {DeliveryState.INJECTED, DeliveryState.ACKNOWLEDGED}:
            return again
        if isinstance(refusal, Ambiguous):
            raise refusal
        if refusal is not None or addresses[0].endpoint_id is None:
            return again  # Nobody has come in its place yet.
        if leased(delivery):
            raise Conflict(f"{id_} is being written", state="being_written")
        if not await self._admissions.rebind(tx, delivery, addresses[0].endpoint_id):
            raise _Again
        moved = await self._table.many(tx, [id_])
        return Admitted(id_, moved[0] if moved else None, deduplicated=True, rebound=True)

    def _tell(self, principal: Principal, admitted: Admitted) -> None:
        """Wake the couriers of what is new at a target, and those who wait for what came to an inbox."""
        if admitted.posted is None or (admitted.deduplicated and not admitted.rebound):
            return
        deliveries = admitted.posted.deliveries
        self._wake.post([one.target_key for one in deliveries if one.state is DeliveryState.PENDING])
        told = [admitted.id]
        if admitted.posted.message.reply_to is not None:
            told.append(admitted.posted.message.reply_to)
        self._wake.changed(told, [one.mailbox for one in deliveries if one.handoff_seq is not None])
        if admitted.rebound:
            self._wake.told(tellings.message_steered, "rebound", admitted.posted, principal.name)
        else:
            self._wake.told(tellings.admitted, [admitted.posted])

    # look

    async def get(self, principal: Principal, id_: str) -> Posted:
        """The message with its deliveries; NotFound for whom it does not concern: admins, senders and recipients may look."""
        found = await self._deliveries.receipts(self._reader, named_message(id_))
        if found is not None:
            message, receipts = found
            if (
                principal.may_speak_as(message.sender)
                or message.created_by == principal.name
                or any(
                    principal.may_speak_as(one.delivery.mailbox) or one.endpoint_creator == principal.name
                    for one in receipts
                )
            ):
                return Posted(message, tuple(one.delivery for one in receipts))
        raise NotFound(f"there is no message {id_[:64]!r}", field="id")

    async def page(self, principal: Principal, asked: MessageFilter) -> MessagePage:
        """A page with deliveries, newest first; an agent sees what it sent or got. A limit over 200 is 200."""
        _check_filter(asked)
        limit = page_limit(asked.limit)
        before = read_cursor(asked.cursor)
        viewer = None if principal.admin else principal.name
        names = (principal.name, *principal.speaks_as)
        found = await self._table.page(self._reader, asked, viewer, names, before, limit + 1)
        more = len(found) > limit
        return MessagePage(tuple(found[:limit]), show_cursor(found[limit - 1].message.seq) if more else None)

    async def wait_for(self, principal: Principal, id_: str, until: str, wait_ms: int) -> Posted:
        """The message once every delivery is `handed_off` or `acknowledged`, or when none can come to that, or time is up."""
        if until not in AWAITED:
            raise Invalid(f"until {until[:40]!r} is expected to be one of {', '.join(AWAITED)}", field="until")
        limits.check_seconds(wait_ms, 0, MAX_WAIT, "wait_s")
        if wait_ms == 0:
            return await self.get(principal, id_)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        with self._watch.message(named_message(id_)) as watcher:
            while True:
                watcher.clear()
                posted = await self.get(principal, id_)
                if all(_over(one, until) for one in posted.deliveries) or not await watcher.changed(deadline):
                    return posted


def _over(delivery: Delivery, until: str) -> bool:
    """Whether a delivery has come to what is awaited, or cannot unless somebody retries it."""
    if delivery.state is DeliveryState.FAILED:
        return True
    if until == ACKNOWLEDGED:
        return delivery.state is DeliveryState.ACKNOWLEDGED
    # What was pushed to a channel shows in its mailbox, and is handed off only once it was read there.
    return delivery.state in _THERE or delivery.delivered_at is not None


def _elsewhere(new: NewMessage, delivery: Delivery, addresses: Sequence[Address]) -> bool:
    """Whether a repeat may be meant for another endpoint than the one that the first message went to."""
    if new.endpoint_id is not None:
        return new.endpoint_id != delivery.endpoint_id
    if new.to is not None and new.to.startswith(Prefix.ENDPOINT):
        return False
    return not addresses or addresses[0].endpoint_id != delivery.endpoint_id


def _digest(new: NewMessage, sender: str) -> str:
    """The SHA-256 of what makes two messages the same: whom it is from and for, and its content; not its endpoint."""
    content = [sender, new.to, new.channel, new.target_repo, new.kind, new.priority.value, new.reply_to, new.payload]
    return hashlib.sha256(dump_json(content).encode()).hexdigest()


def _body(new: NewMessage, draft: Draft) -> dict[str, object]:
    return {
        "digest": draft.digest,
        "msg_id": new.msg_id,
        "client_id": new.client_id,
        "idempotency_key": new.idempotency_key,
        "endpoint_id": new.endpoint_id,
        "ack_mode": None if new.ack_mode is None else new.ack_mode.value,
        "ttl_ms": new.ttl_ms,
        "metadata": draft.metadata,
        "correlation_id": new.correlation_id,
        "sender_repo": new.sender_repo,
        "provenance": new.provenance,
    }


def _check_filter(asked: MessageFilter) -> None:
    if asked.state is not None and asked.state not in FILTER_STATES:
        raise Invalid(f"state {asked.state[:40]!r} is expected to be one of {', '.join(FILTER_STATES)}", field="state")
    if asked.sender is not None:
        postage.check_party(asked.sender, "from")
    if asked.to is not None:
        postage.check_party(asked.to, "to")
    if asked.channel is not None:
        limits.check_queue(asked.channel, "channel")
    if asked.kind is not None:
        postage.check_kind(asked.kind)
    if asked.reply_to is not None:
        postage.check_message_id(asked.reply_to, "reply_to")
    if asked.client_id is not None:
        postage.check_line(asked.client_id, "client_id", 128)
    if asked.target_repo is not None:
        postage.check_line(asked.target_repo, "target_repo")
    if asked.endpoint_id is not None:
        postage.check_line(asked.endpoint_id, "endpoint_id")
