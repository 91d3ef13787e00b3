"""The OpenAPI 3.1 document, made from the route table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from postroom import __version__
from postroom.doors.http.answers import Answer
from postroom.doors.http.fields import NAME_PATTERN, QUEUE_PATTERN, Asked
from postroom.doors.http.mail_schemas import MAIL_COMPONENTS
from postroom.doors.http.route import Call, Route, Schema, Who
from postroom.doors.http.schemas import COMPONENTS, named
from postroom.happening_wire import MEDIA

KEY_HEADER = "Idempotency-Key"
KEY_PATTERN = r"^[!-~]{1,256}$"

_JSON = "application/json"
# An id of another shape names nothing, which is no fault in the asking; a queue is what it is called.
_PARTS: Mapping[str, Schema] = {
    "name": {"type": "string", "pattern": QUEUE_PATTERN},
    "subscriber": {"type": "string", "pattern": NAME_PATTERN},
}
SHAPES: Mapping[str, Schema] = {**COMPONENTS, **MAIL_COMPONENTS}
"""What answers are made of, by name."""
_MODE: Literal["validation"] = "validation"


class Document:
    """The document of a table and of its own route; made at the first request for it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.route = Route(
            "GET",
            "/v1/openapi.json",
            "standing",
            "Get this interface as an OpenAPI 3.1 document.",
            self._openapi,
            {200: {"type": "object"}},
        )
        self._routes = (*routes, self.route)
        self._text: bytes | None = None

    async def _openapi(self, _call: Call, _: None) -> Answer:
        if self._text is None:
            self._text = json.dumps(document(self._routes), ensure_ascii=False).encode()
        return Answer(self._text)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The table as OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.shown_path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Postroom",
            "version": __version__,
            "description": "A durable post room for coding agents. Times are RFC 3339 with milliseconds, durations are "
            'seconds, and every error is told as {"error": {code, message, field?}}.',
        },
        "tags": [{"name": noun} for noun in dict.fromkeys(route.noun for route in routes)],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**SHAPES, **_bodies(routes)},
        },
    }


def refusals_of(route: Route) -> list[int]:
    """The statuses of the errors that a route may answer."""
    found = set(route.refusals)
    if route.who is not Who.PUBLIC:
        found |= {400, 401, 403, 503}
    if route.body:
        found |= {408, 413, 415}
    if route.parameters:
        found.add(404 if "id" in route.parameters else 400)
    return sorted(found)


def _operation(route: Route) -> dict[str, Any]:
    replies: dict[str, Any] = {}
    for status, schema in route.replies.items():
        content = {"application/octet-stream": {}} if schema is None else {_JSON: {"schema": schema}}
        if route.streams:
            # No schema of this version tells of a stream; what each event's data is stands beside it.
            content = {MEDIA: {"schema": {"type": "string"}, "x-event-data": schema or {}}}
        replies[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    for status in refusals_of(route):
        replies[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {_JSON: {"schema": named("Error")}},
        }
    operation: dict[str, Any] = {
        "operationId": f"{route.noun}_{route.handler.__name__.strip('_')}",
        "tags": [route.noun],
        "summary": route.summary,
        "responses": replies,
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PARTS.get(name, {"type": "string"})}
        for name in route.parameters
    ]
    if route.query is not None:
        parameters += _query(route.query)
    if route.keyed:
        parameters.append(
            {
                "name": KEY_HEADER,
                "in": "header",
                "description": "The same request under the same key again gives the same answer, for 24 h.",
                "schema": {"type": "string", "pattern": KEY_PATTERN},
            }
        )
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        needed = any(field.is_required() for field in route.body.model_fields.values())
        operation["requestBody"] = {"required": needed, "content": {_JSON: {"schema": named(route.body.__name__)}}}
    if route.who is Who.PUBLIC:
        operation["security"] = []
    if route.who is Who.ADMIN:
        operation["description"] = "For admins."
    return operation


def _query(model: type[Asked]) -> list[dict[str, Any]]:
    properties = plain(model.model_json_schema(mode=_MODE))["properties"]
    found: list[dict[str, Any]] = []
    for name, schema in properties.items():
        # In a query, what is not given is absent: there is no null to send.
        told = next((one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"), schema)
        parameter = {"name": name, "in": "query", "schema": {k: v for k, v in told.items() if k != "description"}}
        if "description" in told:
            parameter["description"] = told["description"]
        found.append(parameter)
    return found


def _bodies(routes: Sequence[Route]) -> dict[str, Any]:
    models: list[tuple[type[Asked], JsonSchemaMode]] = [
        (model, _MODE) for model in dict.fromkeys(route.body for route in routes if route.body is not None)
    ]
    _, made = models_json_schema(models, ref_template="#/components/schemas/{model}")
    return {name: plain(schema) for name, schema in made["$defs"].items()}


def plain(schema: Any) -> Any:
    """A schema of pydantic's without the titles it makes up and the defaults that only mean absence."""
    if isinstance(schema, list):
        return [plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: plain(inner) for name, inner in value.items()}
        elif (key == "title" and isinstance(value, str)) or (key == "default" and value is not True):
            continue
        else:
            kept[key] = plain(value)
    return kept
