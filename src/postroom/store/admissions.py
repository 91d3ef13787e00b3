"""Admission: a message becomes rows, once for each key, with its deliveries (RULINGS 15, 29, 33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.endpoint import CarrierKind
from postroom.message import AckMode, Delivery, DeliveryState, Message, Posted, Priority
from postroom.store.engine import Row, Tx
from postroom.store.statements import Dialect


@dataclass(frozen=True, slots=True)
class Address:
    """Where one delivery of a message goes, and under which policy; `id` is the delivery's own."""

    id: str
    target_key: str
    carrier: CarrierKind
    endpoint_id: str | None
    mailbox: str
    reach: str
    ack_mode: AckMode
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A message as it is about to be admitted, its metadata already text; ttl in ms.

    keys: (client_id, key) under which it may have been admitted before; the one of its own id has an empty client_id.
    """

    id: str
    keys: tuple[tuple[str, str], ...]
    client_id: str | None
    idempotency_key: str | None
    digest: str
    sender: str
    addressed: str | None
    channel: str | None
    kind: str
    priority: Priority
    reply_to: str | None
    payload: str
    ack_mode: AckMode
    metadata: str | None
    correlation_id: str | None
    sender_repo: str | None
    target_repo: str | None
    provenance: str | None
    created_by: str
    ttl: int | None

    def params(self) -> dict[str, object]:
        """What the statements are given of it."""
        return {
            "id": self.id,
            "client_id": self.client_id,
            "idempotency_key": self.idempotency_key,
            "digest": self.digest,
            "sender": self.sender,
            "addressed": self.addressed,
            "channel": self.channel,
            "kind": self.kind,
            "priority": self.priority.value,
            "reply_to": self.reply_to,
            "payload": self.payload,
            "ack_mode": self.ack_mode.value,
            "metadata": self.metadata,
            "correlation_id": self.correlation_id,
            "sender_repo": self.sender_repo,
            "target_repo": self.target_repo,
            "provenance": self.provenance,
            "created_by": self.created_by,
            "ttl": self.ttl,
        }

    def posted(self, row: Row, addresses: Sequence[Address], places: dict[str, tuple[int, int | None]]) -> Posted:
        """The message of what its row was given, with its deliveries: number and place in the mailbox by delivery id."""
        seq, now, expires_at = row[:3]
        message = Message(
            seq,
            self.id,
            self.client_id,
            self.idempotency_key,
            self.digest,
            self.sender,
            self.addressed,
            self.channel,
            self.kind,
            self.priority,
            self.reply_to,
            self.payload,
            self.ack_mode,
            self.metadata,
            self.correlation_id,
            self.sender_repo,
            self.target_repo,
            self.provenance,
            self.created_by,
            now,
            expires_at,
        )
        made = [_new_delivery(message, address, *places[address.id]) for address in addresses]
        return Posted(message, tuple(made))


def _new_delivery(message: Message, address: Address, seq: int, place: int | None) -> Delivery:
    inbox = address.carrier is CarrierKind.INBOX
    waits = address.ack_mode is AckMode.ACKNOWLEDGED
    there = DeliveryState.AWAITING_ACK if waits else DeliveryState.INJECTED
    return Delivery(
        seq=seq,
        id=address.id,
        message_id=message.id,
        target_key=address.target_key,
        carrier=address.carrier,
        endpoint_id=address.endpoint_id,
        mailbox=address.mailbox,
        reach=address.reach,
        state=there if inbox else DeliveryState.PENDING,
        rank=message.priority.rank,
        ack_mode=address.ack_mode,
        attempt_count=0,
        max_attempts=address.max_attempts,
        round=0,
        lease_id=None,
        lease_expires_at=None,
        doubtful=False,
        next_attempt_at=None,
        ack_deadline=None,
        reason=None,
        last_failure_reason=None,
        handoff_seq=place,
        delivered_at=message.created_at if inbox else None,
        seen_at=None,
        answered_at=None,
        acknowledged_at=None,
        expires_at=message.expires_at,
        created_at=message.created_at,
        updated_at=message.created_at,
    )


class AdmissionTable:
    """The statements of admission; `silent` is how long (ms) a live endpoint may give no sign."""

    def __init__(self, dialect: Dialect, silent: int) -> None:
        self._dialect = dialect
        self._silent = silent

    async def known(self, tx: Tx, draft: Draft) -> list[tuple[str, str]]:
        """What was admitted before under the draft's keys: message id and digest of each."""
        keys = dict(draft.keys)
        client_id = draft.client_id or None
        rows = await tx.rows(
            "admission_known",
            msg_id=keys.get(""),
            client_id=client_id,
            key=None if client_id is None else keys.get(client_id),
        )
        return [(row[0], row[1]) for row in rows]

    async def reply_known(self, tx: Tx, id_: str) -> bool:
        """Whether there is, or ever was under a sender's own id, a message of this id."""
        return bool(await tx.rows("reply_known", reply_to=id_))

    async def admit(self, tx: Tx, draft: Draft, addresses: Sequence[Address]) -> Posted | None:
        """Nothing -> admitted with its deliveries.

        None when it is known under one of its keys, or what it answers or goes to is not there (any more). The engine's
        Duplicate when that came to be in this very moment.
        """
        if self._dialect is Dialect.POSTGRES:
            return await self._admit_at_once(tx, draft, addresses)
        if draft.keys and await self.known(tx, draft):
            return None
        if draft.reply_to is not None and not await self.reply_known(tx, draft.reply_to):
            return None
        for client_id, key in draft.keys:
            await tx.rows("admission_insert", client_id=client_id, key=key, id=draft.id, digest=draft.digest)
        (row,) = await tx.rows("message_insert", **draft.params())
        made: dict[str, tuple[int, int | None]] = {}
        rank = draft.priority.rank
        for address in addresses:
            place: int | None = None
            if address.carrier is CarrierKind.INBOX:
                place = (await tx.rows("mailbox_place", mailbox=address.mailbox))[0][0]
            one = await tx.rows(
                "delivery_insert",
                id=address.id,
                message_id=draft.id,
                target_key=address.target_key,
                carrier=address.carrier.value,
                endpoint_id=address.endpoint_id,
                mailbox=address.mailbox,
                reach=address.reach,
                rank=rank,
                ack_mode=address.ack_mode.value,
                max_attempts=address.max_attempts,
                place=place,
                expires_at=row[2],
            )
            made[address.id] = (one[0][1], place)
        return draft.posted(row, addresses, made)

    async def _admit_at_once(self, tx: Tx, draft: Draft, addresses: Sequence[Address]) -> Posted | None:
        first, second = [*draft.keys, (None, None), (None, None)][:2]
        endpoints = [address.endpoint_id for address in addresses if address.endpoint_id is not None]
        rows = await tx.rows(
            "message_admit",
            **draft.params(),
            first_client=first[0],
            first_key=first[1],
            second_client=second[0],
            second_key=second[1],
            rank=draft.priority.rank,
            endpoints=endpoints,
            endpoint_count=len(endpoints) or None,
            deliveries=[
                {
                    "n": n,
                    "id": address.id,
                    "target_key": address.target_key,
                    "carrier": address.carrier.value,
                    "endpoint_id": address.endpoint_id,
                    "mailbox": address.mailbox,
                    "reach": address.reach,
                    "ack_mode": address.ack_mode.value,
                    "max_attempts": address.max_attempts,
                }
                for n, address in enumerate(addresses)
            ],
        )
        if not rows:
            return None
        return draft.posted(rows[0], addresses, {row[3]: (row[4], row[5]) for row in rows})

    async def rebind(self, tx: Tx, delivery: Delivery, endpoint_id: str) -> bool:
        """Not injected and with no courier, its endpoint dead -> the same for this live one, and the old ends for ever.

        False when one of these was not so (RULINGS 29; T46, T47).
        """
        rows = await tx.rows(
            "message_rebind", delivery=delivery.id, old=delivery.endpoint_id, new=endpoint_id, silent=self._silent
        )
        return bool(rows)
