"""The facts of a delivery: what a source read out of a sender's body, in words that every sender shares."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules match and todos carry; a fact the sender does not tell is None or empty.

    repository: where the thing belongs: a repository, or what a sender without those has: project, team, channel.
    author: who or what acted (for checks the service that ran them, not who pushed).
    label: the one label an event adds or removes; labels: all that the thing bears.
    branch: where a push or check happened; for a pull request the branch it wants to enter.
    outcome: how a check, review or deployment ended. target: who was asked to review, was assigned, or had their work
    reviewed; targets: all of those, where one event asks several. changed: what an update set or added to, by the
    sender's names.
    mentions: the accounts that a comment calls, in lower case. item: the own id of the comment, review or run.
    """

    repository: str | None = None
    number: int | None = None
    title: str | None = None
    url: str | None = None
    author: str | None = None
    labels: tuple[str, ...] = ()
    label: str | None = None
    branch: str | None = None
    ref: str | None = None
    outcome: str | None = None
    target: str | None = None
    targets: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    item: str | None = None

    def words(self) -> dict[str, str]:
        """The facts that are told, by name, as text for templates; lists are joined by a comma and a space."""
        told: dict[str, str] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value in (None, (), ""):
                continue
            told[spec.name] = ", ".join(value) if isinstance(value, tuple) else str(value)
        return told


NO_FACTS = Facts()
NAMES: frozenset[str] = frozenset(spec.name for spec in fields(Facts))
