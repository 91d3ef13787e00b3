"""Linear: bare hex over the raw body, which tells when it was sent; the delivery id in a header is not signed."""

from __future__ import annotations

from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import Hmac
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, first_line, items, whole, words


def make(options: Options) -> Sender:
    """The sender; `tolerance_s` is how far the time in the body may lie from now."""
    return Sender(
        provider="linear",
        scheme=Hmac("linear-signature"),
        describe=describe,
        id_headers=("linear-delivery",),
        once=("linear-event", "linear-timestamp"),
        tolerance_s=options.tolerance(),
    )


def describe(headers: Headers, data: Any) -> Reading:
    """The kind is the body's type, such as `Issue`; changed names what an update set, without the `Id` of its field."""
    if not isinstance(data, dict):
        kind = headers.text("linear-event", 128) or "unknown"
        return Reading(kind, f"linear: {kind}", unparsed="expected a JSON object")
    kind = words(data, "type") or headers.text("linear-event", 128) or "unknown"
    action = words(data, "action")
    thing = at(data, "data") or at(data, "notification") or at(data, "agentSession")
    issue = thing if kind == "Issue" else at(thing, "issue") or {}
    changed = _changed(action, data, thing)
    assigned = kind == "Issue" and (action == "create" or "assignee" in changed)
    number = whole(issue, "number")
    facts = Facts(
        repository=words(issue, "team", "key") or words(thing, "team", "key") or _team(words(issue, "identifier")),
        number=number,
        title=words(issue, "title") or words(thing, "title") or words(thing, "name") or first_line(thing, "body"),
        url=words(data, "url") or words(thing, "url") or words(issue, "url"),
        author=words(data, "actor", "name") or words(thing, "user", "name"),
        labels=tuple(name for entry in items(issue, "labels")[:100] if (name := words(entry, "name")) is not None),
        outcome=words(issue, "state", "name"),
        target=(words(issue, "assignee", "name") or words(issue, "assigneeId")) if assigned else None,
        changed=changed,
        item=words(thing, "id"),
    )
    name = words(issue, "identifier") or (f"{facts.repository}-{number}" if facts.repository and number else "linear")
    return Reading(
        kind,
        f"{name}: {facts.title or kind}",
        action,
        facts,
        sent_ms=whole(data, "webhookTimestamp"),
    )


def _team(identifier: str | None) -> str | None:
    return identifier.rpartition("-")[0] or None if identifier else None


def _changed(action: str | None, data: dict[str, Any], thing: Any) -> tuple[str, ...]:
    """What an update set to something: a field that was emptied is not told."""
    before = data.get("updatedFrom")
    if action != "update" or not isinstance(before, dict):
        return ()
    names = [name for name in list(before)[:100] if name not in {"updatedAt", "sortOrder"}]
    plain = [name.removesuffix("Id") for name in names]
    found = [short for name, short in zip(names, plain, strict=True) if _told(thing, name) or _told(thing, short)]
    return tuple(short for name in found if (short := words(name)) is not None)


def _told(thing: Any, name: str) -> bool:
    return at(thing, name) not in (None, [])
