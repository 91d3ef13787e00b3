"""Bodies: from a program's arguments to the JSON and the headers that a daemon takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from postroom.errors import Invalid
from postroom.limits import MAX_NOTE_BYTES, check_key
from postroom.text import check_json, cut, dump_json


class Calls(Protocol):
    """One call of a daemon: the JSON object that a 2xx answers; any other answer is raised as the error it is."""

    async def __call__(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        key: str | None = None,
        again: bool = False,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """`again`: repeating is harmless; `wait_s` lengthens the deadline; `key` goes as Idempotency-Key."""
        ...


def given(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {field: value for field, value in fields.items() if value is not None}


def query_of(**fields: Any) -> dict[str, str]:
    """The fields that are not None as a query's text. Raises Invalid by field for what no query can hold."""
    found: dict[str, str] = {}
    for field, value in fields.items():
        check_json(value, field)
        if value is not None:
            found[field] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def names(queues: Sequence[str] | None, field: str = "queues") -> list[str] | None:
    """A list of names; a single text would be taken for its letters. Raises Invalid."""
    if isinstance(queues, str):
        raise Invalid(f"{field} is the text {queues[:64]!r}; expected a list of names", field=field)
    return None if queues is None else list(queues)


def words(said: str | None) -> str | None:
    """Words cut as the desk would, or a long one would be refused for its size."""
    return None if said is None else cut(said, MAX_NOTE_BYTES)


def header(key: str) -> str:
    """A request key as a header's value. Raises Invalid."""
    check_key(key, "request_id")
    if not key.isascii():
        raise Invalid("request_id is expected to be ASCII: it travels as a header", field="request_id")
    return key


def encode(body: Mapping[str, Any]) -> bytes:
    """A body's JSON. Raises Invalid naming the field that is none."""
    try:
        return dump_json(body).encode()
    except (ValueError, TypeError, RecursionError) as error:
        for field, value in body.items():
            check_json(value, field)
        raise Invalid(f"the body is no JSON: {error}") from None
