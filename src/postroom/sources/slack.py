"""Slack: `v0:timestamp:body`; events, commands and interactions, and a challenge that is answered once it is proved."""

from __future__ import annotations

from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.options import Options
from postroom.sources.scheme import Hmac
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, first_line, items, words

MAX_CHALLENGE = 1024

# A message's kind is the name under which one subscribes to it.
_PLACES = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim", "app_home": "app_home"}


def make(options: Options) -> Sender:
    """The sender; `tolerance_s` is how far the signed time may lie from now."""
    return Sender(
        provider="slack",
        scheme=Hmac(
            "x-slack-signature",
            prefix="v0=",
            signed="v0:{timestamp}:{body}",
            timestamp_header="x-slack-request-timestamp",
            tolerance_s=options.tolerance(),
        ),
        describe=describe,
        form_field="payload",
        form_rest=True,
    )


def describe(headers: Headers, data: Any) -> Reading:
    """An event of the Events API, a slash command, an interaction, or a handshake."""
    if not isinstance(data, dict):
        return Reading("unknown", "slack: unknown", unparsed="expected a JSON object or a form")
    kind = words(data, "type")
    if kind == "url_verification":
        return _verification(data)
    if words(data, "ssl_check") is not None and words(data, "command") is None:
        return Reading("ssl_check", "slack: ssl_check", ignored="ssl_check: the address was looked at", answer="")
    if isinstance(data.get("event"), dict):
        return _event(data, data["event"])
    if words(data, "command") is not None:
        return _command(data)
    if kind is not None:
        return _interaction(kind, data)
    return Reading("unknown", "slack: unknown", unparsed="expected an event, a command or an interaction")


def _verification(data: dict[str, Any]) -> Reading:
    challenge = data.get("challenge")
    if not isinstance(challenge, str) or not 0 < len(challenge) <= MAX_CHALLENGE:
        return Reading("url_verification", "slack: url_verification", unparsed="expected a challenge of 1 to 1024")
    return Reading(
        "url_verification",
        "slack: url_verification",
        ignored="url_verification: the request URL was confirmed",
        answer=challenge,
    )


def _event(data: dict[str, Any], event: dict[str, Any]) -> Reading:
    name = words(event, "type") or "event"
    place = words(event, "channel_type")
    kind = f"message.{_PLACES.get(place, place)}" if name == "message" and place else name
    talk = name in {"message", "app_mention"}
    action = words(event, "subtype") or ("bot_message" if words(event, "bot_id") else "posted" if talk else None)
    message = event["message"] if isinstance(event.get("message"), dict) else event
    channel = words(event, "channel") or words(event, "item", "channel") or words(event, "channel", "id")
    text = first_line(message, "text")
    facts = Facts(
        repository=channel,
        title=text,
        author=words(event, "user") or words(message, "user") or words(event, "user", "id") or words(event, "bot_id"),
        ref=words(message, "thread_ts"),
        item=words(message, "ts") or words(event, "item", "ts") or words(event, "event_ts"),
        outcome=words(event, "reaction"),
    )
    title = f"slack {channel or words(data, 'team_id') or ''}".strip() + f": {text or kind}"
    return Reading(kind, title, action, facts, key=words(data, "event_id"))


def _command(data: dict[str, Any]) -> Reading:
    command, text = words(data, "command"), first_line(data, "text")
    facts = Facts(
        repository=words(data, "channel_id"),
        title=" ".join(part for part in (command, text) if part),
        author=words(data, "user_id"),
        item=words(data, "trigger_id"),
    )
    # An empty 200 is what Slack takes for "heard": it would show anything else to whoever typed the command.
    return Reading("command", f"slack: {facts.title}", command, facts, key=words(data, "trigger_id"), answer="")


def _interaction(kind: str, data: dict[str, Any]) -> Reading:
    actions = items(data, "actions")
    action = (
        (words(actions[0], "action_id") if actions else None)
        or words(data, "callback_id")
        or words(data, "view", "callback_id")
    )
    facts = Facts(
        repository=words(data, "channel", "id"),
        title=(words(actions[0], "text", "text") if actions else None) or words(data, "view", "title", "text"),
        author=words(data, "user", "id"),
        ref=words(data, "message", "thread_ts"),
        item=words(data, "message", "ts") or words(data, "view", "id"),
        outcome=(words(actions[0], "value") if actions else None) or words(at(data, "view"), "hash"),
    )
    title = f"slack: {kind}{f' {action}' if action else ''}"
    return Reading(kind, title, action, facts, key=words(data, "trigger_id"), answer="")
