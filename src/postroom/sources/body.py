"""Bodies: the value in a verified request's bytes, or the reason why there is none."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from postroom.errors import Invalid
from postroom.event import AS_IT_CAME
from postroom.sources.headers import Headers
from postroom.sources.skim import FROM_BYTES, is_dense, skim_json
from postroom.text import clean_escapes, clean_json, cut, dump_json, parse_json

FORM = "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 1000

_DOUBTFUL = re.compile(rb"\\u(0000|[dD][89a-fA-F])")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body's value, cleaned so that any database takes it, and its JSON text; or None and why.

    text: AS_IT_CAME where the body is that text itself. Of a large body's very many values, data may lack some.
    """

    data: Any
    text: str | None = None
    unparsed: str | None = None


def parse(headers: Headers, body: bytes, form_field: str | None = None, *, form_rest: bool = False) -> Parsed:
    """Read a body as JSON in UTF-8, with or without a byte order mark; never raises.

    A form gives the JSON in its `form_field`, or all its fields by name when the sender has no such field; with
    `form_rest` also when this one form lacks it. What the Content-Type says of the charset is not believed.
    """
    raw = body.removeprefix(codecs.BOM_UTF8)
    if not raw.strip():
        return Parsed(None, unparsed="the body is empty")
    kind = (headers.text("content-type") or "").split(";", 1)[0].strip().lower()
    try:
        parsed = _form(raw, form_field, form_rest) if kind == FORM else _value(raw, "body")
        if parsed.text == AS_IT_CAME and len(raw) < len(body):
            return Parsed(parsed.data, raw.decode())
        return parsed
    except Invalid as refused:
        return Parsed(None, unparsed=cut(refused.message, 512))


def _value(raw: bytes, field: str) -> Parsed:
    """The JSON value, cleaned only where an escape can have made a character that no database holds."""
    read = skim_json if is_dense(raw) else parse_json
    value = read(raw, field)
    if not _DOUBTFUL.search(raw):
        return Parsed(value, AS_IT_CAME)
    if len(raw) < FROM_BYTES:
        cleaned = clean_json(value)
        return Parsed(cleaned, dump_json(cleaned))
    # A large one is cleaned as text, and never stands in memory as two trees of values.
    del value
    text = clean_escapes(raw.decode())
    return Parsed(read(text.encode(), field), text)


def _form(raw: bytes, form_field: str | None, form_rest: bool) -> Parsed:
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
        cleaned = clean_json(fields)
        return Parsed(cleaned, dump_json(cleaned))
    if form_field not in fields:
        raise Invalid(f"body is a form without the field {form_field!r}", field="body")
    text = fields.pop(form_field).removeprefix("\ufeff")
    parsed = _value(text.encode(), form_field)
    return Parsed(parsed.data, text) if parsed.text == AS_IT_CAME else parsed
