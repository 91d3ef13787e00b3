"""Allow-lists: which sender may write to whom, where the settings say so (`[post] allow`).

Without an entry everybody may write to everybody. With one, an agent's message is admitted only when some entry covers
its sender and one of the words for its recipient: the name that the sender gave, the name or id of the endpoint that it
goes to, `#channel`, or `repo:NAME`. Admins, and what Postroom itself sends, are held by no list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from postroom.errors import Forbidden
from postroom.message import NewMessage
from postroom.model import Principal
from postroom.store.admissions import Address

SHOWN: Final = 20
"""How many names of a list a refusal tells."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """One entry: senders and recipients, as names or globs."""

    senders: tuple[str, ...]
    recipients: tuple[str, ...]


class Allowed:
    """The entries in force."""

    def __init__(self, entries: Sequence[Allowance] = ()) -> None:
        self._entries = tuple(entries)

    @property
    def limits(self) -> bool:
        """Whether there is any entry."""
        return bool(self._entries)

    def lets(self, sender: str, name: str) -> bool:
        """Whether an agent may write as `sender` to whoever goes by this name."""
        return not self._entries or any(
            _covers(one.senders, sender) and _covers(one.recipients, name) for one in self._entries
        )

    def check(self, principal: Principal, sender: str, new: NewMessage, addresses: Sequence[Address]) -> None:
        """Pass a message that this sender may write where it goes. Raises Forbidden naming the field and the list."""
        if not self._entries or principal.admin:
            return
        globs = [glob for one in self._entries if _covers(one.senders, sender) for glob in one.recipients]
        words = _words(new, addresses)
        if any(_covers(globs, word) for word in words):
            return
        field = "to" if new.to is not None else "target_repo" if new.target_repo is not None else "channel"
        listed = ", ".join(dict.fromkeys(globs)) if len(globs) <= SHOWN else f"{', '.join(globs[:SHOWN])}, …"
        raise Forbidden(
            f"{sender} may not write to {words[0]}: [post] allow lets it write to {listed or 'nobody'}", field=field
        )


def _words(new: NewMessage, addresses: Sequence[Address]) -> list[str]:
    """What its recipient goes by, first as the sender named it; a channel goes by its name alone."""
    if new.channel is not None:
        return [f"#{new.channel}"]
    words = [new.to if new.to is not None else f"repo:{new.target_repo}"]
    for address in addresses:
        words += [address.mailbox] if address.endpoint_id is None else [address.mailbox, address.endpoint_id]
    return words


def _covers(globs: Sequence[str], name: str) -> bool:
    return any(glob == name or fnmatchcase(name, glob) for glob in globs)
