"""Sources over HTTP: which there are, a signed sample fired at one, and the settings file read again; for admins."""

from __future__ import annotations

from typing import Annotated, Any

from postroom.doors.http.answers import Answer, json_answer
from postroom.doors.http.api import Api
from postroom.doors.http.fields import Asked, Nothing, told
from postroom.doors.http.route import Call, Route, Who
from postroom.doors.http.schemas import ANY, TEXT, WHOLE, many, maybe, named, record
from postroom.errors import Invalid
from postroom.sources.samples import kinds
from postroom.sources.source import Source
from postroom.text import parse_json
from postroom.wire import show_time

NOUN = "sources"

_LIST = {
    "sources": many(named("Source")),
    "warnings": many(TEXT),
    "settings_file": maybe(TEXT),
    "data": TEXT,
    "addresses": many(TEXT),
}


class Fire(Asked):
    """Which sample to fire."""

    kind: Annotated[str, told("One of the source's samples; the most telling one by default.")] | None = None


def _view(api: Api, source: Source) -> dict[str, Any]:
    matched = api.roster.matched(source.name)
    return {
        "name": source.name,
        "provider": source.provider,
        "queue": source.queue,
        "path": f"/hooks/{source.name}",
        "rules": len(source.rules),
        "ignore_authors": list(source.ignore_authors),
        "insecure": source.insecure,
        "local": source.local,
        "max_bytes": source.max_bytes,
        "secrets": [secret.label for secret in source.secrets],
        "matched": None if matched is None else {"secret": matched.label, "at": show_time(matched.at)},
        "samples": list(kinds(source.provider)),
    }


def _list(api: Api) -> Answer:
    shown = [_view(api, source) for source in api.roster]
    return json_answer({"sources": shown, "warnings": list(api.roster.warnings), **api.installation.places()})


async def list_sources(call: Call, _: None) -> Answer:
    """Every source, and where the settings are that name them."""
    return _list(call.api)


async def reload(call: Call, _: Nothing) -> Answer:
    """The settings file's sources -> in force, all or none."""
    await call.api.installation.reload()
    return _list(call.api)


async def fire(call: Call, asked: Fire) -> Answer:
    """A sample, signed as its sender would sign it, through the daemon's own port; its secrets stay here."""
    fired = await call.api.installation.fire(call.path["source"], asked.kind)
    try:
        answer: Any = parse_json(fired.answer, "answer")
    except Invalid:
        answer = fired.answer.decode("utf-8", "replace")
    return json_answer({"path": fired.path, "bytes": fired.size, "status": fired.status, "answer": answer})


ROUTES = (
    Route(
        "GET",
        "/v1/sources",
        NOUN,
        "List the sources that are set up, with where their secrets stand and which proved the latest delivery.",
        list_sources,
        {200: record(_LIST)},
        who=Who.ADMIN,
    ),
    Route(
        "POST",
        "/v1/sources/{source}/fire",
        NOUN,
        "Post a realistic sample, signed under the source's first secret, through the daemon's own port.",
        fire,
        {200: record({"path": TEXT, "bytes": WHOLE, "status": WHOLE, "answer": ANY})},
        who=Who.ADMIN,
        body=Fire,
        refusals=(404,),
    ),
    Route(
        "POST",
        "/v1/reload",
        NOUN,
        "Read the settings file's sources again; a mistake names file, line and key, and keeps the old ones.",
        reload,
        {200: record(_LIST)},
        who=Who.ADMIN,
        body=Nothing,
    ),
)
