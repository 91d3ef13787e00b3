"""Owners: whose name the owner of a claim or of a todo goes by, and whether it could come to its work (RULINGS 17)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from postroom.errors import Invalid
from postroom.store.engine import Tx
from postroom.store.tokens import TokenTable


class Owners:
    """Looks up what the tokens behind owners may; names without a token, as the operator's own, may everything."""

    def __init__(self, tokens: TokenTable) -> None:
        self._tokens = tokens

    async def name_of(self, tx: Tx, owner: str) -> str:
        """Whose inbox a notice for this owner goes to: its worker's where its token may speak as that, else the token's."""
        name, _, worker = owner.partition("/")
        if not worker:
            return name
        token = await self._tokens.by_name(tx, name)
        return worker if token is None or token.principal.may_speak_as(worker) else name

    async def shut_out(self, tx: Tx, owner: str, queue: str) -> bool:
        """Whether the token of this owner may not use the queue, so that it could never claim there."""
        return bool(await self.barred(tx, [owner.partition("/")[0]], queue))

    async def barred(self, tx: Tx, names: Iterable[str], queue: str) -> frozenset[str]:
        """Which of these tokens may not use the queue."""
        return await self._tokens.barred(tx, names, queue)

    async def check_assignee(self, tx: Tx, assignee: str | None, queue: str) -> None:
        """Pass whoever could claim what is given to them. Raises Invalid."""
        if assignee is not None and await self.shut_out(tx, assignee, queue):
            raise Invalid(f"{assignee} could never claim this: its token may not use queue {queue}", field="assignee")

    async def check_assignees(self, tx: Tx, given: Sequence[tuple[str | None, str]]) -> dict[int, Invalid]:
        """The same for many, each an assignee and a queue, asking once for each pair; which are refused, and why."""
        refused: dict[int, Invalid] = {}
        known: dict[tuple[str | None, str], str | None] = {}
        for n, pair in enumerate(given):
            if pair not in known:
                try:
                    await self.check_assignee(tx, *pair)
                    known[pair] = None
                except Invalid as error:
                    known[pair] = error.message
            if (why := known[pair]) is not None:
                refused[n] = Invalid(why, field="assignee")
        return refused
