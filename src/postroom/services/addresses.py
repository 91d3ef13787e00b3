"""Addresses: whom a message goes to, named as session, endpoint, name, repository or channel (T10-T12)."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.delivery import attempts_of
from postroom.endpoint import ANY_REACH, CarrierKind, Endpoint
from postroom.errors import Ambiguous, Invalid, NotFound, Unavailable
from postroom.ids import Ids, Prefix
from postroom.message import AckMode, NewMessage
from postroom.store.admissions import Address
from postroom.store.endpoints import Attachment, EndpointTable
from postroom.store.engine import Tx

DEAD_LETTERS = "dead-letters"
"""The channel where dead letters are announced; the database's trigger knows it by the same name."""
SESSION = "ses_"
"""What a session's id begins with."""


def target_of(carrier: CarrierKind, name: str) -> str:
    """The canonical key of a session, or of an inbox (RULINGS 21)."""
    return f"{carrier.value}:{name}"


class AddressBook:
    """Finds where a message goes; one look-up at most."""

    def __init__(self, table: EndpointTable, ids: Ids) -> None:
        self._table = table
        self._ids = ids

    def check(self, new: NewMessage) -> None:
        """Pass a message that says whom it is for in one way alone. Raises Invalid."""
        if new.target_repo is not None and (new.to is not None or new.channel is not None):
            field = "to" if new.to is not None else "channel"
            raise Invalid(f"{field} and target_repo exclude each other; give one of them", field=field)
        if new.endpoint_id is not None and new.target_repo is None:
            raise Invalid("endpoint_id goes with target_repo; without it, name the endpoint in to", field="endpoint_id")

    async def look_up(self, tx: Tx, new: NewMessage, sender: str) -> list[Address]:
        """Where it goes now. Raises NotFound, Ambiguous, and Unavailable when nobody is there for a repository."""
        if new.channel is not None:
            return self.fan_out(await self.subscribers(tx, new.channel), new, sender)
        if new.target_repo is not None:
            return [self.at(await self._of_repository(tx, new.target_repo, new.endpoint_id), new)]
        to = str(new.to)
        if to.startswith(SESSION):
            return [self._plain(CarrierKind.OPENCODE, to, new)]
        if to.startswith(Prefix.ENDPOINT):
            endpoint = await self._table.get(tx, to)
            if endpoint is None or endpoint.ended_at is not None:
                raise NotFound(f"there is no endpoint {to[:64]!r}, or it has ended", field="to")
            return [self.at(endpoint, new)]
        named = await self._table.named(tx, to)
        if len(named) > 1:
            raise _ambiguous(f"{len(named)} live endpoints are named {to}; send to the id of one", "to", named)
        return [self.at(named[0], new) if named else self._plain(CarrierKind.INBOX, to, new)]

    async def _of_repository(self, tx: Tx, repository: str, endpoint_id: str | None) -> Endpoint:
        found = await self._table.attached(tx, Attachment.REPOSITORY, repository, live=True)
        if endpoint_id is not None:
            for endpoint in found:
                if endpoint.id == endpoint_id:
                    return endpoint
            raise Unavailable(
                f"endpoint {endpoint_id[:64]} is not live, or not attached to {repository}", field="endpoint_id"
            )
        if not found:
            raise Unavailable(f"no live endpoint is attached to {repository}", field="target_repo")
        if len(found) > 1:
            raise _ambiguous(
                f"{len(found)} live endpoints are attached to {repository}; name one", "endpoint_id", found
            )
        return found[0]

    async def subscribers(self, tx: Tx, channel: str) -> list[Endpoint]:
        """Who gets what is sent to a channel, in the order of their coming."""
        return await self._table.attached(tx, Attachment.CHANNEL, channel, live=False)

    def fan_out(self, found: Sequence[Endpoint], new: NewMessage, sender: str) -> list[Address]:
        """One address for each subscriber but the sender; an inbox shows a message once, whoever subscribed it."""
        addresses: list[Address] = []
        inboxes: set[str] = set()
        for endpoint in found:
            if sender in {endpoint.mailbox, endpoint.id}:
                continue
            if endpoint.carrier is CarrierKind.INBOX:
                if endpoint.mailbox in inboxes:
                    continue
                inboxes.add(endpoint.mailbox)
            addresses.append(self.at(endpoint, new))
        return addresses

    async def nearest(self, tx: Tx, name: str, new: NewMessage, token: str | None = None) -> Address:
        """Where a notice for this name goes: the live endpoint that was heard of last, its session, or its inbox.

        token: whose endpoint goes before those of others.
        """
        named = await self._table.named(tx, name)
        if named:
            return self.at(max(named, key=lambda one: (one.created_by == token, one.seen_at, one.seq)), new)
        return self._plain(CarrierKind.OPENCODE if name.startswith(SESSION) else CarrierKind.INBOX, name, new)

    def at(self, endpoint: Endpoint, new: NewMessage) -> Address:
        """The address of an endpoint, with the endpoint's policy where the message has none of its own."""
        return Address(
            self._ids.new(Prefix.DELIVERY),
            endpoint.target_key,
            endpoint.carrier,
            endpoint.id,
            endpoint.mailbox,
            endpoint.reach,
            new.ack_mode or AckMode(endpoint.ack_mode),
            endpoint.max_attempts,
        )

    def _plain(self, carrier: CarrierKind, name: str, new: NewMessage) -> Address:
        return Address(
            self._ids.new(Prefix.DELIVERY),
            target_of(carrier, name),
            carrier,
            None,
            name,
            ANY_REACH,
            new.ack_mode or AckMode.INJECTED,
            attempts_of(carrier),
        )


def _ambiguous(words: str, field: str, found: Sequence[Endpoint]) -> Ambiguous:
    return Ambiguous(words, field=field, endpoints=[endpoint.id for endpoint in found])
