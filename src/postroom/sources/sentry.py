"""Sentry's integration platform: bare hex over the raw body, keyed with the integration's client secret."""

from __future__ import annotations

import re
from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import Hmac
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, first_line, whole, words

_ADDRESS = re.compile(r"/projects/[^/]+/([^/]+)/")


def make(options: Options) -> Sender:
    """The sender; it has no options of its own."""
    return Sender(
        provider="sentry",
        scheme=Hmac("sentry-hook-signature"),
        describe=describe,
        id_headers=("request-id",),
        once=("sentry-hook-resource", "sentry-hook-timestamp"),
    )


def describe(headers: Headers, data: Any) -> Reading:
    """The kind is the resource in the header: issue, event_alert, metric_alert, error, comment, installation."""
    kind = headers.text("sentry-hook-resource", 128) or "unknown"
    if not isinstance(data, dict):
        return Reading(kind, f"sentry: {kind}", unparsed="expected a JSON object")
    action = words(data, "action")
    told = at(data, "data")
    thing = at(told, "issue") or at(told, "event") or at(told, "error") or at(told, "metric_alert") or told
    level = words(thing, "level")
    facts = Facts(
        repository=words(thing, "project", "slug")
        or words(told, "project_slug")
        or _project(words(thing, "url"))
        or words(thing, "project"),
        title=first_line(told, "description_title") or first_line(thing, "title") or first_line(told, "comment"),
        url=words(thing, "web_url") or words(told, "web_url") or words(thing, "permalink"),
        author=words(data, "actor", "name"),
        labels=(level,) if level else (),
        label=None,
        ref=words(thing, "shortId") or words(thing, "release") or words(thing, "event_id"),
        outcome=words(thing, "status") or (action if kind == "metric_alert" else None),
        target=(words(thing, "assignedTo", "email") or words(thing, "assignedTo", "name"))
        if action == "assigned"
        else None,
        item=_item(thing, "issue_id") or _item(thing, "id") or _item(told, "issue_id"),
    )
    what = " ".join(word for word in (kind, action) if word)
    title = f"{facts.repository or 'sentry'}: {facts.title or what}"
    ignored = f"installation: the integration was {action or 'changed'}" if kind == "installation" else None
    return Reading(kind, title, action, facts, ignored=ignored)


def _project(url: str | None) -> str | None:
    """The project in the address that the API has for an event, which itself names it by a number alone."""
    found = _ADDRESS.search(url or "")
    return found.group(1) if found else None


def _item(value: Any, key: str) -> str | None:
    """An id, which Sentry writes as text here and as a number there."""
    number = whole(value, key)
    return words(value, key) if number is None else str(number)
