"""The OpenAPI document and the reference page are true: made from the table, and held against the door that serves it."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

from postroom.doors.http.openapi import KEY_HEADER, KEY_PATTERN, document
from postroom.doors.http.reference import page
from postroom.doors.http.route import Route, Who
from postroom.doors.http.routes import route_table
from postroom.store.sqlite import SqliteEngine
from tests.doors.http_rig import CI_TOKEN, Rig, get, post

PAGE = Path(__file__).parent.parent.parent / "docs" / "http.md"
ROUTES = route_table()


def test_the_page_is_what_is_served() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(ROUTES), (
        "run: python -m postroom.doors.http.reference > docs/http.md"
    )


def test_every_route_is_on_the_page() -> None:
    shown = page(ROUTES)
    for route in ROUTES:
        assert f"\n### {route.method} {route.shown_path}\n" in shown


async def test_the_document_is_served_and_holds_every_route(rig: Rig) -> None:
    served = await get(rig, "ann", "/v1/openapi.json")
    assert served == document(ROUTES)
    assert served["openapi"] == "3.1.0"
    told = {(method.upper(), path) for path, methods in served["paths"].items() for method in methods}
    assert told == {(route.method, route.shown_path) for route in ROUTES}
    names = [one["operationId"] for methods in served["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    assert await get(rig, "ann", "/v1/openapi.json") == served


def test_the_document_resolves_every_reference() -> None:
    made = document(ROUTES)

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    for reference in walk(made):
        target: Any = made
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.shown_path}")
def test_a_route_says_who_may_ask(route: Route) -> None:
    operation = document(ROUTES)["paths"][route.shown_path][route.method.lower()]
    assert ("security" in operation) == (route.who is Who.PUBLIC)
    assert ("401" in operation["responses"]) == (route.who is not Who.PUBLIC)


@dataclass
class Served:
    """A door that a server of its own thread answers for; `url` is where, `secret` an admin's token."""

    url: str
    secret: str
    ids: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, clock: Any) -> Iterator[Served]:
    """The door on a loopback port, over a store that holds a few things already."""
    place = tmp_path_factory.mktemp("openapi") / "postroom.db"
    started: list[Served] = []
    ready = threading.Event()
    stop = threading.Event()

    async def main() -> None:
        engine = SqliteEngine(place, clock)
        await engine.open()
        try:
            rig = await Rig(engine).fill()
            todo = await rig.create("inbox", payload={"a": 1})
            held = await rig.claimed("root")
            message = (await post(rig, "root", "/v1/messages", {"to": "bob", "payload": "hello"}, 202))["message"]
            box = {"carrier": "inbox", "address": {}, "name": "bob", "channels": ["ops"]}
            endpoint = (await post(rig, "root", "/v1/endpoints", box, 201))["endpoint"]
            event = await post(rig, None, "/hooks/ci", b'{"title":"x"}', 202, authorization=f"Bearer {CI_TOKEN}")
            config = uvicorn.Config(rig.app, port=0, lifespan="off", log_level="critical", access_log=False)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            ids = {"todo": todo["id"], "held": held["id"], "event": event["event_id"]}
            ids |= {"message": message["id"], "endpoint": endpoint["id"]}
            started.append(Served(f"http://127.0.0.1:{port}", rig.secrets["root"], ids))
            ready.set()
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving
            await rig.office.waiting.close()
        finally:
            ready.set()
            await engine.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait(30)
    try:
        yield started[0]
    finally:
        stop.set()
        thread.join(30)


def accepted(ctx: Any, response: Any, case: Any) -> bool | None:
    """What fits the schema is taken, but for rules between fields or on times, which no schema can tell."""
    if response.status_code == 400:
        field = response.json()["error"]["field"]
        if field.endswith(("available_at", "backoff_cap_s", "since", "until")):
            return None
        # What else holds between the parts of a rule, or what its words may name.
        if "/rules" in case.path and field.startswith(("rule", "at", "body", "headers", "kind", "event_id")):
            return None
        if (case.path, field) in BETWEEN:
            return None
    return positive_data_acceptance(ctx, response, case)


NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
MANY = {"/v1/todos/batch", "/v1/todos/outcomes", "/v1/events/replay"}
BETWEEN = {
    *(("/v1/messages", name) for name in ("to", "idempotency_key", "client_id", "reply_to", "cursor")),
    ("/v1/messages/{id}", "until"),
    *(("/v1/endpoints", name) for name in ("carrier", "name", "address", "address.session")),
    ("/v1/sources/{source}/fire", "kind"),
    *(("/v1/events/replay", name) for name in ("ids", "source", "kind", "action", "state", "cursor")),
}


def rejected(ctx: Any, response: Any, case: Any) -> bool | None:
    """What does not fit the schema is refused; where many are asked for together each has its own refusal."""
    if response.status_code == 413 or (response.status_code == 200 and case.path in MANY):
        return None
    if a_hair_off(case.body) or a_hair_off(case.query):
        return None
    key = (case.headers or {}).get(KEY_HEADER, "")
    # White space around a header's value is no part of it.
    if key != key.strip(" \t") and re.fullmatch(KEY_PATTERN, key.strip(" \t")):
        return None
    return negative_data_rejection(ctx, response, case)


def a_hair_off(asked: Any) -> bool:
    """Whether a duration is less than half a millisecond off a whole second: it is rounded to it, and every bound is one."""
    if isinstance(asked, list):
        return any(map(a_hair_off, asked))
    if not isinstance(asked, dict):
        return False
    for name, value in asked.items():
        number = float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
        if not isinstance(number, float) or not math.isfinite(number) or not name.endswith("_s"):
            continue
        if 0 < abs(number - round(number)) <= 0.0005:
            return True
    return any(map(a_hair_off, asked.values()))


def schema() -> Any:
    """The document as it is tried: every call has its token, so that what is refused is refused for its content."""
    made = document(ROUTES)
    del made["security"], made["components"]["securitySchemes"]
    generation = {"allow-x00": False, "codec": "utf-8", "mode": "all"}
    config = schemathesis.Config.from_dict({"generation": generation})
    return schemathesis.openapi.from_dict(made, config=config)


def known(case: schemathesis.Case[Any]) -> str:
    """What a path's id may be of, and is there."""
    for noun in ("event", "message", "endpoint"):
        if f"/{noun}s/" in case.path:
            return noun
    return "todo" if case.method != "POST" else "held"


def impatient(wait: Any) -> Any:
    """The same wait, or one of a moment where it is a good one: a query has it as text too."""
    number = float(wait) if isinstance(wait, str) and NUMBER.fullmatch(wait) else wait
    # A bool is an int to Python alone: it stays the nonsense it was made as.
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number < 50.001:
        return wait
    short = 51.0 if number > 50 else min(number, 0.01)
    return str(short) if isinstance(wait, str) else short


def hold(case: schemathesis.Case[Any], served: Served) -> None:
    """Ask the door what the case asks, and hold its answer against the document."""
    # Half of the calls meet something that is there; else every id would be one of nothing.
    path = case.path_parameters or {}
    if "id" in path and len(str(path["id"])) % 2:
        path["id"] = served.ids[known(case)]
    if "source" in path and len(str(path["source"])) % 2:
        path["source"] = "ci"
    for place in (case.body, case.query):
        if isinstance(place, dict) and "wait_s" in place:
            place["wait_s"] = impatient(place["wait_s"])
    case.call_and_validate(
        base_url=served.url,
        headers={"authorization": f"Bearer {served.secret}"},
        checks=[
            schemathesis.checks.not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            accepted,
            rejected,
        ],
    )


SCHEMA = schema()


# A stream does not end: its own tests ask for it.
@SCHEMA.exclude(path="/stream").parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_door_answers_as_the_document_says(case: schemathesis.Case[Any], served: Served) -> None:
    hold(case, served)
