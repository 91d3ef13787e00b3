"""Receipts: acknowledging, retrying and cancelling what was sent, decided by the database (RULINGS 30; T25, T36, T37)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from postroom.delivery import leased
from postroom.errors import Ambiguous, Conflict, Forbidden, NotFound
from postroom.limits import MAX_NOTE_BYTES
from postroom.message import Delivery, DeliveryState, Message, Posted
from postroom.model import Principal
from postroom.services import tellings
from postroom.services.refusals import named_message
from postroom.services.requests import Answer, Requests
from postroom.services.wake import Wake
from postroom.store import steps
from postroom.store.deliveries import DeliveryTable, Receipt
from postroom.store.engine import Engine, Once, Reader, Tx
from postroom.text import cut


class ReceiptService:
    """The verbs over deliveries that people and agents have; each names its message, and an endpoint where that is needed."""

    def __init__(self, engine: Engine, deliveries: DeliveryTable, requests: Requests, wake: Wake) -> None:
        self._engine = engine
        self._deliveries = deliveries
        self._requests = requests
        self._wake = wake
        self._once = Once(engine)
        self._reader = Reader(engine)

    async def ack(self, principal: Principal, id_: str, endpoint: str | None = None) -> Posted:
        """Any state -> acknowledged, for the caller's own delivery, or that of `endpoint`; twice is the same.

        A courier's lease is left to it. Raises NotFound, Forbidden for somebody who is no recipient, and Ambiguous when
        several deliveries could be meant.
        """
        message, receipts = await self._visible(self._reader, principal, id_)
        chosen = _choose(principal, message, receipts, endpoint)
        if not _receives(principal, chosen):
            raise Forbidden(f"{id_} went to {chosen.delivery.mailbox}; only its recipient acknowledges it", field="id")
        if chosen.delivery.state is DeliveryState.ACKNOWLEDGED:
            return _posted(message, receipts, chosen.delivery)
        acknowledged = await self._deliveries.ack(self._once, chosen.delivery.id)
        if acknowledged is None:
            # Somebody else was first, or it was deleted: as it stands now.
            stands = _posted(*await self._visible(self._reader, principal, id_))
            return replace(stands, chosen=chosen.delivery.id)
        self._wake.changed([id_], [acknowledged.mailbox])
        self._wake.told(tellings.acknowledged, message, acknowledged, principal)
        return _posted(message, receipts, acknowledged)

    async def retry(
        self, principal: Principal, id_: str, endpoint: str | None = None, request_id: str | None = None
    ) -> Posted:
        """Failed, unless it expired -> pending with its attempts anew (T37); for admins and the sender.

        Without `endpoint` the only delivery is meant, or the only one that failed. Raises Conflict for any other state.
        """

        async def run(tx: Tx) -> Posted:
            message, receipts = await self._sent(tx, principal, id_)
            chosen = _choose(principal, message, receipts, endpoint, failed=True).delivery
            again = await self._deliveries.retry(tx, chosen.id)
            if again is None:
                stands = chosen.reason or chosen.state
                raise Conflict(
                    f"the delivery of {id_} to {chosen.mailbox} is {stands}; only a failed one is retried, unless it expired",
                    state=str(chosen.state),
                    hint="Send it anew where it has to be read once more.",
                )
            await steps.note(tx, id_, steps.RETRIED, f"to {again.mailbox} by {principal.name}")
            return _posted(message, receipts, again)

        body = {"id": id_, "endpoint": endpoint}
        return await self._steer(principal, id_, "message.retry", "retried", body, run, request_id)

    async def cancel(
        self, principal: Principal, id_: str, reason: str | None = None, request_id: str | None = None
    ) -> Posted:
        """Under way -> failed, cancelled, for each delivery that no courier holds; for admins and the sender.

        Raises Conflict when there is none: `being_written` when a courier holds what is under way.
        """
        why = cut(reason, MAX_NOTE_BYTES) if reason else f"cancelled by {principal.name}"

        async def run(tx: Tx) -> Posted:
            await self._sent(tx, principal, id_)
            cancelled = await self._deliveries.cancel(tx, id_, why)
            message, receipts = await self._visible(tx, principal, id_)
            if not cancelled:
                raise _not_cancelled(id_, receipts)
            said = f": {why}" if reason else ""
            await steps.note(tx, id_, steps.CANCELLED, f"by {principal.name}{said}")
            return _posted(message, receipts)

        body = {"id": id_, "reason": reason}
        return await self._steer(principal, id_, "message.cancel", "cancelled", body, run, request_id)

    async def _steer(
        self,
        principal: Principal,
        id_: str,
        verb: str,
        past: str,
        body: object,
        run: Callable[[Tx], Awaitable[Posted]],
        request_id: str | None,
    ) -> Posted:
        repeated = False
        if request_id is None:
            posted = await self._engine.transact(run)
        else:

            async def keyed(tx: Tx) -> tuple[Posted, Answer]:
                return await run(tx), (id_,)

            async def replay(tx: Tx, answer: Answer) -> Posted:
                nonlocal repeated
                repeated = True
                return _posted(*await self._visible(tx, principal, str(answer[0])))

            posted = await self._requests.once(principal, request_id, verb, body, keyed, replay)
        self._wake.changed([id_])
        self._wake.post(delivery.target_key for delivery in posted.deliveries)
        if not repeated:
            self._wake.told(tellings.message_steered, past, posted, principal.name)
        return posted

    async def _visible(self, tx: Tx, principal: Principal, id_: str) -> tuple[Message, list[Receipt]]:
        """A message with its receipts, for those who may know of it: admins, its sender, its recipients."""
        found = await self._deliveries.receipts(tx, named_message(id_))
        if found is not None:
            message, receipts = found
            if _sends(principal, message) or any(_receives(principal, receipt) for receipt in receipts):
                return message, receipts
        raise NotFound(f"there is no message {id_[:64]!r}", field="id")

    async def _sent(self, tx: Tx, principal: Principal, id_: str) -> tuple[Message, list[Receipt]]:
        message, receipts = await self._visible(tx, principal, id_)
        if not _sends(principal, message):
            raise Forbidden(f"only an admin or its sender, {message.sender}, may do that with {id_}")
        return message, receipts


def _sends(principal: Principal, message: Message) -> bool:
    return principal.may_speak_as(message.sender) or message.created_by == principal.name


def _receives(principal: Principal, receipt: Receipt) -> bool:
    """Whether it is the one the delivery goes to: it reads that mailbox, or has attached that endpoint."""
    return principal.may_speak_as(receipt.delivery.mailbox) or receipt.endpoint_creator == principal.name


def _choose(
    principal: Principal, message: Message, receipts: Sequence[Receipt], endpoint: str | None, *, failed: bool = False
) -> Receipt:
    """The delivery that is meant: that of `endpoint`, else the caller's own, else the only one (RULINGS 30).

    `failed` looks for the only failed one besides. An endpoint is named by its id, its mailbox, or its target.
    """
    if not receipts:
        raise Conflict(
            f"{message.id} has no delivery: nobody was subscribed to {message.channel}", reason="no_delivery"
        )
    if endpoint is not None:
        looks: list[list[Receipt]] = [
            [one for one in receipts if endpoint in {one.delivery.endpoint_id, one.delivery.target_key}],
            [one for one in receipts if one.delivery.mailbox == endpoint],
        ]
        if not any(looks):
            raise NotFound(f"{message.id} has no delivery to {endpoint[:64]!r}", field="endpoint")
    else:
        looks = [
            [one for one in receipts if one.delivery.mailbox == principal.name],
            [] if principal.admin else [one for one in receipts if _receives(principal, one)],
            list(receipts),
        ]
        if failed:
            looks.append([one for one in receipts if one.delivery.state is DeliveryState.FAILED])
    for found in looks:
        if len(found) == 1:
            return found[0]
    raise Ambiguous(
        f"{message.id} has {len(receipts)} deliveries; name the endpoint of the one that is meant",
        field="endpoint",
        endpoints=[one.delivery.endpoint_id or one.delivery.mailbox for one in receipts],
    )


def _not_cancelled(id_: str, receipts: Sequence[Receipt]) -> Conflict:
    if any(one.delivery.state is DeliveryState.PENDING and leased(one.delivery) for one in receipts):
        return Conflict(f"{id_} is being written", state="being_written")
    states = sorted({str(one.delivery.state) for one in receipts})
    stands = " and ".join(states) if states else "sent to nobody"
    return Conflict(f"{id_} is {stands}; only what is under way is cancelled", state=states[0] if states else None)


def _posted(message: Message, receipts: Sequence[Receipt], chosen: Delivery | None = None) -> Posted:
    """The message as its receipts have it, but for the delivery that was chosen as it is here."""
    deliveries = [one.delivery for one in receipts]
    if chosen is None:
        return Posted(message, tuple(deliveries))
    return Posted(message, tuple(chosen if one.id == chosen.id else one for one in deliveries), chosen.id)
