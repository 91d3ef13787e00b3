"""Bodies: the value in a verified request's bytes, or the reason why there is none."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from postroom.errors import Invalid
from postroom.sources.headers import Headers
from postroom.text import clean_json, cut, parse_json

FORM = "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 1000

_DOUBTFUL = re.compile(rb"\\u(0000|[dD][89a-fA-F])")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body's value, cleaned so that any database takes it; or None and why."""

    data: Any
    unparsed: str | None = None


def parse(headers: Headers, body: bytes, form_field: str | None = None, *, form_rest: bool = False) -> Parsed:
    """Read a body as JSON in UTF-8, with or without a byte order mark; never raises.

    A form gives the JSON in its `form_field`, or all its fields by name when the sender has no such field; with
    `form_rest` also when this one form lacks it. What the Content-Type says of the charset is not believed.
    """
    raw = body.removeprefix(codecs.BOM_UTF8)
    if not raw.strip():
        return Parsed(None, "the body is empty")
    kind = (headers.text("content-type") or "").split(";", 1)[0].strip().lower()
    try:
        if kind == FORM:
            return Parsed(_form(raw, form_field, form_rest))
        return Parsed(_value(raw, "body"))
    except Invalid as refused:
        return Parsed(None, cut(refused.message, 512))


def _value(raw: bytes, field: str) -> object:
    """The JSON value, copied to be cleaned only where an escape can have made a character that no database holds."""
    value = parse_json(raw, field)
    return clean_json(value) if _DOUBTFUL.search(raw) else value


def _form(raw: bytes, form_field: str | None, form_rest: bool) -> object:
    if form_field is None:
        # curl -d calls any body a form: what reads as JSON is JSON.
        try:
            return _value(raw, "body")
        except Invalid:
            pass
    try:
        pairs = parse_qsl(
            raw.decode("utf-8"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FORM_FIELDS,
        )
    except ValueError as refused:
        raise Invalid(f"body is no form in UTF-8: {refused}", field="body") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields:
            raise Invalid(f"body has the form field {cut(name, 64)!r} twice", field="body")
        fields[name] = value
    if form_field is None or (form_rest and form_field not in fields):
        return clean_json(fields)
    if form_field not in fields:
        raise Invalid(f"body is a form without the field {form_field!r}", field="body")
    return _value(fields[form_field].removeprefix("\ufeff").encode(), form_field)
