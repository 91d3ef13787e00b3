"""PagerDuty's webhooks v3: a comma list of `v1=hex` over the raw body, the event's id within it."""

from __future__ import annotations

from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import Hmac
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, items, whole, words


def make(options: Options) -> Sender:
    """The sender; it has no options of its own."""
    return Sender(
        provider="pagerduty",
        scheme=Hmac("x-pagerduty-signature", prefix="v1=", separator=","),
        describe=describe,
    )


def describe(headers: Headers, data: Any) -> Reading:
    """`incident.triggered` is kind and action; what is told of an incident's part belongs to the incident."""
    event = at(data, "event")
    name = words(event, "event_type")
    if name is None:
        return Reading("unknown", "pagerduty: unknown", unparsed="expected a JSON object with an event and its type")
    kind, _, action = name.partition(".")
    key = words(event, "id")
    if name == "pagey.ping":
        return Reading(kind, "pagerduty: ping", action, key=key, ignored="ping: the subscription was tried")
    thing = at(event, "data")
    incident = thing if at(thing, "type") == "incident" else at(thing, "incident") or thing
    people = [name for entry in items(thing, "assignees")[:100] if (name := words(entry, "summary")) is not None]
    marks = (words(thing, "urgency"), words(thing, "priority", "summary"))
    facts = Facts(
        repository=words(thing, "service", "summary") or words(thing, "service", "id"),
        number=whole(incident, "number"),
        title=words(thing, "title") or words(incident, "title") or words(incident, "summary"),
        url=words(thing, "html_url") or words(incident, "html_url"),
        author=words(event, "agent", "summary") or words(event, "agent", "id"),
        labels=tuple(mark for mark in marks if mark is not None),
        outcome=words(thing, "status"),
        target=people[0] if people else None,
        targets=tuple(people) if len(people) > 1 else (),
        item=words(incident, "id"),
    )
    place = f"{facts.repository or 'pagerduty'}{f' #{facts.number}' if facts.number is not None else ''}"
    return Reading(kind, f"{place}: {facts.title or name}", action or None, facts, key=key)
