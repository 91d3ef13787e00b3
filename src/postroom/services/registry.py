"""The registry: endpoints from attachment to end, what they listen to, and who works here (RULINGS 29, 31, 35; T9-T12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from postroom import limits, postage
from postroom.delivery import attempts_of
from postroom.endpoint import CarrierKind, Endpoint, EndpointFilter, NewEndpoint
from postroom.errors import Ambiguous, Conflict, Forbidden, NotFound, Unavailable
from postroom.ids import Ids, Prefix, check_id
from postroom.model import Principal
from postroom.post import Channel, Occupant
from postroom.services import tellings
from postroom.services.addresses import DEAD_LETTERS, SESSION, target_of
from postroom.services.wake import Wake
from postroom.services.workplaces import Directory, Workplace, Workplaces
from postroom.store.endpoints import Attachment, EndpointTable, Occupation
from postroom.store.engine import Duplicate, Engine, Once, Operation, Reader, T, Tx
from postroom.text import store_json

MAX_ADDRESS_BYTES = 4096
RIVALS = 20
"""How often an attachment begins again when another comes to the same place in the very moment."""


class Registry:
    """The verbs over endpoints and subscriptions for a principal, and those that carriers and the daemon have.

    directory: tells in which directory an endpoint's place is; without it that is not told.
    """

    def __init__(
        self, engine: Engine, table: EndpointTable, wake: Wake, ids: Ids, directory: Directory | None = None
    ) -> None:
        self._engine = engine
        self._table = table
        self._wake = wake
        self._ids = ids
        self._workplaces = None if directory is None else Workplaces(directory)
        self._once = Once(engine)
        self._reader = Reader(engine)

    # Endpoints.

    async def attach(self, principal: Principal, new: NewEndpoint) -> Endpoint:
        """Nothing -> a live endpoint; what stood at its place ends in the same transaction.

        A session's endpoint without a name has the session's. Raises Invalid by field, NotFound for a queue that the
        principal may not use, and Forbidden for a name or session that it may not speak as, and for a place where
        somebody else's endpoint stands that it may not detach.
        """
        postage.check_endpoint(new)
        for queue in new.queues:
            if not principal.may_use(queue):
                raise NotFound(f"there is no queue {queue!r} for {principal.name}", field="queues")
        name = new.name
        if new.carrier is CarrierKind.OPENCODE:
            session = new.target_key.partition(":")[2]
            if not principal.may_speak_as(session):
                raise Forbidden(f"{principal.name} may not attach {session}", field="address.session")
            name = name or session or None
        if name is not None and not principal.may_speak_as(name):
            raise Forbidden(f"{principal.name} may not attach an endpoint as {name}", field="name")
        address = store_json(dict(new.address), "address", MAX_ADDRESS_BYTES)
        attempts = new.max_attempts if new.max_attempts is not None else attempts_of(new.carrier)

        async def operation(tx: Tx) -> tuple[Endpoint, list[Endpoint | None]]:
            id_ = self._ids.new(Prefix.ENDPOINT)
            placed = _placed(new, id_)
            there = await self._table.standing(tx, placed.target_key)
            if there is not None:
                if not _may_end(principal, there):
                    raise Forbidden(
                        f"{there.id} of {there.created_by} stands there; {principal.name} may not end it",
                        field="address",
                    )
                # This one alone: where another has come meanwhile, all begins again.
                await self._table.end(tx, there.id)
            await self._table.insert(tx, id_, placed, name, address, attempts, principal.name)
            ended = [await self._table.get(tx, there.id)] if there is not None and self._wake.heard else []
            return _there(await self._table.get(tx, id_), id_), ended

        endpoint, ended = await self._with_rivals(operation)
        self._wake.told(tellings.endpoints_ended, ended)
        self._wake.told(tellings.endpoint_attached, endpoint)
        # What waits there for this name may go.
        self._wake.post([endpoint.target_key])
        if endpoint.rings:
            self._wake.arrived(endpoint.queues, endpoint.id)
        return endpoint

    async def get(self, principal: Principal, id_: str) -> Endpoint:
        """The endpoint, ended or not. Raises NotFound."""
        check_id(id_, Prefix.ENDPOINT, "endpoint")
        return _there(await self._table.get(self._reader, id_), id_)

    async def process_of(self, principal: Principal, id_: str) -> Endpoint:
        """The channel's endpoint whose messages go through the principal's own process, who attached it (RULINGS 31).

        Raises NotFound, Forbidden for everybody else, admins too, and Conflict for what is no channel or has ended.
        """
        endpoint = await self.get(principal, id_)
        if endpoint.created_by != principal.name:
            raise Forbidden(f"{id_} was attached by another than {principal.name}", field="id")
        if endpoint.carrier is not CarrierKind.CHANNEL:
            raise Conflict(f"{id_} is carried to by {endpoint.carrier}; only a channel's process waits for parcels")
        if endpoint.ended_at is not None:
            raise Conflict(f"endpoint {id_} has ended; attach again", state="ended")
        return endpoint

    async def find(self, principal: Principal, asked: EndpointFilter) -> list[Endpoint]:
        """The endpoints that fit, oldest first, 1000 at the most."""
        if asked.target_repo is not None:
            postage.check_line(asked.target_repo, "target_repo")
        if asked.queue is not None:
            limits.check_queue(asked.queue)
        if asked.channel is not None:
            limits.check_queue(asked.channel, "channel")
        if asked.name is not None:
            postage.check_party(asked.name, "name")
        return await self._table.find(self._reader, asked)

    async def living(self, endpoints: Sequence[Endpoint]) -> frozenset[str]:
        """The ids of those that are live now, by the database's clock."""
        return await self._table.living(self._reader, [endpoint.id for endpoint in endpoints])

    async def heartbeat(self, principal: Principal, id_: str) -> Endpoint:
        """Live or silent -> seen now. Raises NotFound, and Conflict for one that has ended."""
        endpoint = await self._own(principal, id_)
        touched = endpoint.ended_at is None and await self._table.touch(self._once, [id_])
        if not touched:
            raise Conflict(f"endpoint {id_} has ended; attach again", state="ended")
        return _there(await self._table.get(self._reader, id_), id_)

    async def detach(self, principal: Principal, id_: str) -> Endpoint:
        """Attached -> ended, for ever; twice is the same. Raises NotFound."""
        await self._own(principal, id_)
        await self.end(id_)
        return _there(await self._table.get(self._reader, id_), id_)

    async def _own(self, principal: Principal, id_: str) -> Endpoint:
        """An endpoint that the principal attached, or whose name it speaks as; another one is as if it were not there."""
        endpoint = await self.get(principal, id_)
        if not _may_end(principal, endpoint):
            raise NotFound(f"there is no endpoint {id_} of {principal.name}", field="id")
        return endpoint

    # What carriers and the daemon know by looking.

    async def touch(self, ids: Sequence[str]) -> None:
        """Standing -> seen now, after a look that found them there."""
        if ids:
            await self._table.touch(self._once, ids)

    async def end(self, id_: str) -> None:
        """Attached -> ended for ever; what waits for it waits on."""

        async def operation(tx: Tx) -> Endpoint | None:
            return await self._table.get(tx, id_) if await self._table.end(tx, id_) else None

        ended = await self._engine.transact(operation)
        if ended is not None:
            self._wake.told(tellings.endpoints_ended, [ended])
            self._wake.post([ended.target_key])

    # Channels.

    async def subscribe(self, principal: Principal, channel: str, subscriber: str) -> Channel:
        """Not subscribed -> subscribed: a session, an endpoint's id, or a name; twice is the same.

        A session or name that has no endpoint gets one. Raises Forbidden for somebody the principal does not speak as, and
        where dead letters of queues that it may not use would come to what another attached.
        """
        limits.check_queue(channel, "channel")
        await self._check_subscriber(principal, subscriber)

        async def operation(tx: Tx) -> Endpoint | None:
            endpoint = await self._endpoint_of(tx, subscriber)
            if endpoint is None:
                new = _listener(subscriber)
                id_ = self._ids.new(Prefix.ENDPOINT)
                attempts = attempts_of(new.carrier)
                await self._table.insert(tx, id_, new, subscriber, "{}", attempts, principal.name)
            else:
                if channel == DEAD_LETTERS and not principal.uses_all and endpoint.created_by != principal.name:
                    raise Forbidden(
                        f"{principal.name} may not subscribe {endpoint.id} of {endpoint.created_by} to {channel}",
                        field="subscriber",
                    )
                id_ = endpoint.id
            await self._table.attach(tx, id_, Attachment.CHANNEL, [channel])
            return await self._table.get(tx, id_) if endpoint is None and self._wake.heard else None

        made = await self._with_rivals(operation)
        if made is not None:
            self._wake.told(tellings.endpoint_attached, made)
        return await self._channel(channel)

    async def unsubscribe(self, principal: Principal, channel: str, subscriber: str) -> Channel:
        """Subscribed -> not subscribed; twice is the same. An endpoint that was there for this alone ends."""
        limits.check_queue(channel, "channel")
        await self._check_subscriber(principal, subscriber)

        async def operation(tx: Tx) -> list[Endpoint | None]:
            ended: list[Endpoint | None] = []
            for endpoint in await self._table.attached(tx, Attachment.CHANNEL, channel, live=False):
                if subscriber not in {endpoint.id, endpoint.mailbox}:
                    continue
                await self._table.let_go(tx, endpoint.id, Attachment.CHANNEL, channel)
                if _only_listens(endpoint, channel):
                    await self._table.end(tx, endpoint.id)
                    ended.append(endpoint)
            return ended

        self._wake.told(tellings.endpoints_ended, await self._engine.transact(operation))
        return await self._channel(channel)

    async def channels(self, principal: Principal) -> list[Channel]:
        """Every channel that somebody is subscribed to, by name."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, mailbox, id_ in await self._table.channels(self._reader):
            found.setdefault(name, []).append((mailbox, id_))
        return [Channel(name, tuple(subscribers)) for name, subscribers in found.items()]

    async def _channel(self, name: str) -> Channel:
        found = await self._table.channels(self._reader, name)
        return Channel(name, tuple((mailbox, id_) for _, mailbox, id_ in found))

    async def _check_subscriber(self, principal: Principal, subscriber: str) -> None:
        if subscriber.startswith(Prefix.ENDPOINT):
            await self._own(principal, subscriber)
            return
        limits.check_name(subscriber, "subscriber")
        if not principal.may_speak_as(subscriber):
            raise Forbidden(f"{principal.name} may not subscribe {subscriber}", field="subscriber")

    async def _endpoint_of(self, tx: Tx, subscriber: str) -> Endpoint | None:
        """The endpoint of a session, id or name that has not ended; None when one is to be made."""
        if subscriber.startswith(Prefix.ENDPOINT):
            endpoint = await self._table.get(tx, subscriber)
            if endpoint is None or endpoint.ended_at is not None:
                raise NotFound(f"there is no endpoint {subscriber}, or it has ended", field="subscriber")
            return endpoint
        if not subscriber.startswith(SESSION):
            named = await self._table.named(tx, subscriber)
            if len(named) > 1:
                ids = [endpoint.id for endpoint in named]
                raise Ambiguous(
                    f"{len(named)} live endpoints are named {subscriber}; subscribe the id of one",
                    field="subscriber",
                    endpoints=ids,
                )
            if named:
                return named[0]
        return await self._table.standing(tx, _listener(subscriber).target_key)

    async def _with_rivals(self, operation: Operation[T]) -> T:
        for _ in range(RIVALS):
            try:
                return await self._engine.transact(operation)
            except Duplicate:
                continue
        raise Unavailable("others keep attaching to the same place; ask again")

    # Who works here.

    async def who(self, principal: Principal) -> list[Occupant]:
        """Endpoints that have not ended, and owners of claims that the principal may see; last heard of first."""
        endpoints = await self._table.find(self._reader, EndpointFilter())
        living = await self.living(endpoints)
        claims = [one for one in await self._table.occupied(self._reader) if principal.may_use(one.queue)]
        at_work: dict[str, Occupation] = {}
        for claim in claims:
            at_work.setdefault(claim.owner, claim)
            at_work.setdefault(claim.owner.partition("/")[0], claim)
        seated = {
            name for endpoint in endpoints for name in (endpoint.mailbox, f"{endpoint.created_by}/{endpoint.name}")
        }
        there = [endpoint for endpoint in endpoints if endpoint.id in living]
        places = {} if self._workplaces is None else await self._workplaces.of(there)
        found = [
            _occupant(endpoint, endpoint.id in living, _work_of(endpoint, at_work), places.get(endpoint.id))
            for endpoint in endpoints
        ]
        for claim in claims:
            if claim.owner in seated or claim.owner.partition("/")[0] in seated:
                continue
            seated.add(claim.owner)
            found.append(_worker(claim))
        return sorted(found, key=lambda one: one.last_seen or 0, reverse=True)


def _may_end(principal: Principal, endpoint: Endpoint) -> bool:
    """Whether it is the principal's to end: it attached it, or speaks as it, or is an admin."""
    named = endpoint.name is not None and principal.may_speak_as(endpoint.name)
    return principal.admin or named or endpoint.created_by == principal.name


def _there(endpoint: Endpoint | None, id_: str) -> Endpoint:
    if endpoint is None:
        raise NotFound(f"there is no endpoint {id_}", field="id")
    return endpoint


def _placed(new: NewEndpoint, id_: str) -> NewEndpoint:
    """The endpoint at its place: a process is no place that others could name, and goes by the endpoint's own id."""
    if new.carrier is not CarrierKind.CHANNEL:
        return new
    return replace(new, target_key=f"channel:{id_}", reach=f"process:{id_}")


def _listener(subscriber: str) -> NewEndpoint:
    """The endpoint of a session or a name that only listens to channels."""
    carrier = CarrierKind.OPENCODE if subscriber.startswith(SESSION) else CarrierKind.INBOX
    return NewEndpoint(carrier, {}, target_of(carrier, subscriber), name=subscriber, rings=False)


def _only_listens(endpoint: Endpoint, channel: str) -> bool:
    """Whether nothing is left of an endpoint that a subscription made, once it leaves this channel."""
    return not endpoint.rings and (endpoint.repositories, endpoint.queues, endpoint.channels) == ((), (), (channel,))


def _occupant(endpoint: Endpoint, live: bool, claim: Occupation | None, place: Workplace | None) -> Occupant:
    seen = endpoint.seen_at if claim is None else max(endpoint.seen_at, claim.updated_at)
    return Occupant(
        name=endpoint.mailbox,
        carrier=endpoint.carrier.value,
        endpoint_id=endpoint.id,
        live=live,
        repositories=endpoint.repositories,
        queues=endpoint.queues,
        channels=endpoint.channels,
        directory=None if place is None else place.directory,
        branch=None if place is None else place.branch,
        todo_id=None if claim is None else claim.todo_id,
        todo_title=None if claim is None else claim.title,
        last_seen=seen,
    )


def _work_of(endpoint: Endpoint, at_work: Mapping[str, Occupation]) -> Occupation | None:
    """What is claimed under the endpoint's own name: a worker's of who attached it, or a token's."""
    return at_work.get(f"{endpoint.created_by}/{endpoint.name}") or at_work.get(endpoint.mailbox)


def _worker(claim: Occupation) -> Occupant:
    """Somebody who is known by a claim alone."""
    return Occupant(claim.owner, None, None, True, (), (), (), None, None, claim.todo_id, claim.title, claim.updated_at)
