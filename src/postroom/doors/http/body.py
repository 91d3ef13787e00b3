"""Bodies and queries: read within a size and a time, parsed strictly, and held against what a route takes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.types import Receive

from postroom.doors.http.errors import Gone, TooSlow, WrongEncoding
from postroom.doors.http.fields import Asked
from postroom.doors.http.inflate import codings, gzipped
from postroom.errors import Invalid, TooLarge
from postroom.text import check_text, clean, parse_json

READ_SECONDS = 30.0
"""A body that has not arrived within this time is given up."""
LARGE = 1024 * 1024
"""Bodies above this are parsed in a thread, one at a time, so that the other callers go on and memory stays bounded."""
MAX_FIELD = 200
MAX_QUERY_FIELDS = 50

AskedT = TypeVar("AskedT", bound=Asked)


async def read_body(
    headers: Sequence[tuple[bytes, bytes]], receive: Receive, most: int, *, gzip: bool = False
) -> bytes:
    """The whole body of a request, as it is sent. Raises TooLarge before more than `most` bytes are held, TooSlow, Gone.

    gzip: whether it may be encoded so, for whoever asks to inflate it.
    """
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and (len(value) > 15 or int(value) > most):
            raise _too_large(most)
    encoded = codings(headers)
    if encoded and not (gzip and gzipped(headers)):
        shown = b", ".join(encoded).decode("latin-1")[:40]
        expected = "plain or gzip" if gzip else "plain, without Content-Encoding"
        raise WrongEncoding(f"the body is encoded as {shown!r}; expected it {expected}", gzip=gzip)
    # It hands its one buffer over: joined pieces would stand beside their whole for a moment.
    held = io.BytesIO()
    size = 0
    try:
        async with asyncio.timeout(READ_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    if size == len(chunk):
                        return bytes(chunk)
                    held.write(chunk)
                    return held.getvalue()
                held.write(chunk)
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {READ_SECONDS:.0f} s", field="body") from None


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is over {most} bytes", field="body")


def parse_body(raw: bytes, model: type[AskedT]) -> AskedT:
    """A JSON object as what the route takes; an empty body is an empty object. Raises Invalid naming the field."""
    return _validated(model, parse_json(raw) if raw else {}, "body")


def fitted(value: object, model: type[AskedT]) -> AskedT:
    """A JSON object that is parsed already, as what the route takes. Raises Invalid naming the field."""
    return _validated(model, value, "body")


def parse_query(raw: bytes, model: type[AskedT]) -> AskedT:
    """A query string as what the route takes. Raises Invalid naming the parameter."""
    given: dict[str, Any] = {}
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise Invalid("the query is expected to be name=value pairs in percent-encoded UTF-8", field="query") from None
    for name, value in pairs:
        if name in model.repeated:
            given.setdefault(name, []).append(check_text(value, _shown(name)))
            continue
        if name in given:
            raise Invalid(f"{_shown(name)} is given twice in the query", field=_shown(name))
        given[name] = check_text(value, _shown(name))
    return _validated(model, given, "query")


def _validated(model: type[AskedT], value: object, whole: str) -> AskedT:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # Only the first is told, without the input: one thing to correct at a time, and nothing secret echoed.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise _refusal(model, first["type"], first["loc"], first["msg"], whole) from None


def _refusal(model: type[Asked], kind: str, place: tuple[int | str, ...], said: str, whole: str) -> Invalid:
    field = _path(place) or whole
    match kind:
        case "missing":
            return Invalid(f"{field} is missing", field=field)
        case "extra_forbidden":
            names = ", ".join(field.alias or name for name, field in model.model_fields.items())
            known = f"; expected only {names or 'nothing'}" if len(place) == 1 else ""
            return Invalid(f"{field} is not known here{known}", field=field)
        case "model_type" | "model_attributes_type":
            return Invalid(f"{field} is expected to be a JSON object", field=field)
        case "string_unicode":
            return Invalid(f"{field} holds a lone surrogate; expected plain Unicode text", field=field)
    if said.startswith("Input should be "):
        return Invalid(f"{field}: expected {said.removeprefix('Input should be ')}", field=field)
    return Invalid(f"{field}: expected {said[:1].lower()}{said[1:].replace(' should ', ' to ', 1)}", field=field)


def _path(place: tuple[int | str, ...]) -> str:
    """`todos[3].priority` for ("todos", 3, "priority")."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return _shown(text)


def _shown(name: str) -> str:
    return clean(name)[:MAX_FIELD]
