"""The swarm's two routes, `POST /swarm/send` and `GET /swarm/inbox`, with their own words and shapes (P3-P5, P11, P23).

Times are ms UTC. What is refused is told as `{"error": "text"}`. Fields and parameters that are not known are passed
over, and null is as absent: whoever spoke to the first daemon of this wire is understood here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.api import Api
from postroom.doors.http.body import MAX_QUERY_FIELDS, read_body
from postroom.doors.http.errors import Gone, WrongMethod, error_answer, fault_answer
from postroom.doors.http.mail_fields import LETTER
from postroom.errors import Invalid, NotFound, PostroomError
from postroom.limits import MAX_LIST
from postroom.mail_wire import handed_off_at
from postroom.message import Letter, NewMessage, Priority
from postroom.model import Principal
from postroom.postage import DEFAULT_KIND, check_party, check_priority
from postroom.text import check_text, dump_json, parse_json, printable

_DIGITS = 9
MAX_NAMED = 20

Enter = Callable[[Scope], Awaitable[Principal]]

log = logging.getLogger("postroom.swarm")


class SwarmDoor:
    """Answers what is asked under `/swarm/`; `enter` lets a request in and tells who asks."""

    def __init__(self, api: Api, enter: Enter) -> None:
        self._api = api
        self._enter = enter

    async def answer(self, scope: Scope, receive: Receive) -> Answer:
        """The answer to one request, whatever comes of it. Raises Gone."""
        try:
            principal = await self._enter(scope)
            match scope["path"]:
                case "/swarm/send":
                    _method(scope, "POST")
                    return await self._send(principal, scope, receive)
                case "/swarm/inbox":
                    _method(scope, "GET", "HEAD")
                    return await self._inbox(principal, scope)
                case path:
                    raise NotFound(f"there is nothing at {path[:100]!r}", field="path")
        except Gone:
            raise
        except PostroomError as error:
            return _told(error_answer(error), _words(error))
        except Exception:
            log.exception("%s %s failed", scope["method"], printable(scope["path"][:100]))
            return _told(fault_answer(), PostroomError.hint)

    async def _send(self, principal: Principal, scope: Scope, receive: Receive) -> Answer:
        given = parse_json(await read_body(scope["headers"], receive, LETTER))
        if not isinstance(given, dict):
            raise Invalid("the body is expected to be a JSON object", field="body")
        admitted = await self._api.post.send(principal, _message(given), None)
        return json_answer({"accepted": True, "msg_id": admitted.id}, 202)

    async def _inbox(self, principal: Principal, scope: Scope) -> Answer:
        asked = _query(scope["query_string"])
        session = asked.get("session")
        if not session:
            raise Invalid("session is missing; expected ?session=ses_…", field="session")
        check_party(session, "session")
        since, limit = asked.get("since") or None, _limit(asked.get("limit"))
        page = await self._api.inbox.page(principal, session, since, limit)
        return json_answer({"messages": [_shown(letter) for letter in page.letters]})


def _method(scope: Scope, *allowed: str) -> None:
    if scope["method"] not in allowed:
        raise WrongMethod(scope["method"], allowed)


def _words(error: PostroomError) -> str:
    """What a refusal says where there is room for words alone."""
    among = error.details.get("endpoints")
    return f"{error.message}: {', '.join(map(str, among[:MAX_NAMED]))}" if isinstance(among, list) else error.message


def _message(given: Mapping[str, Any]) -> NewMessage:
    """The message of a body; the services check its words. Raises Invalid naming the field."""
    sender, payload = _text(given, "from"), _text(given, "payload")
    if not sender:
        raise Invalid("from is missing; expected the sender's session id", field="from")
    if payload is None:
        raise Invalid("payload is missing; expected text", field="payload")
    kind, priority = _text(given, "kind"), _text(given, "priority")
    return NewMessage(
        payload=payload,
        to=_text(given, "to") or None,
        channel=_text(given, "channel") or None,
        sender=sender,
        kind=DEFAULT_KIND if kind is None else kind,
        priority=Priority.NORMAL if priority is None else check_priority(priority),
        reply_to=_text(given, "reply_to") or None,
        msg_id=_text(given, "msg_id") or None,
    )


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"{name} is expected to be text", field=name)
    return None if value is None else check_text(value, name)


def _query(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise Invalid("the query is expected to be name=value pairs in percent-encoded UTF-8", field="query") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        # The first of two, as the first daemon had it.
        found.setdefault(name, check_text(value, "query"))
    return found


def _limit(given: str | None) -> int:
    if not given:
        return MAX_LIST
    if not given.isdecimal() or not given.isascii() or len(given) > _DIGITS or int(given) < 1:
        raise Invalid(f"limit {given[:20]!r} is expected to be a whole number from 1 to {MAX_LIST}", field="limit")
    return min(int(given), MAX_LIST)


def _shown(letter: Letter) -> dict[str, Any]:
    message = letter.message
    return {
        "msg_id": message.id,
        "from": message.sender,
        "to": message.addressed,
        "channel": message.channel,
        "kind": message.kind,
        "priority": str(message.priority),
        "reply_to": message.reply_to,
        "payload": message.payload,
        "created_at": message.created_at,
        "handed_off_at": handed_off_at(letter.delivery),
    }


def _told(answer: Answer, said: str) -> Answer:
    return replace(answer, body=dump_json({"error": said}).encode("utf-8", "replace"))
