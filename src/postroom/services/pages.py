"""Pages: how long one is, and the cursor that leads to the next; a cursor is the store's own order, never an id."""

from __future__ import annotations

import re

from postroom import limits
from postroom.errors import Invalid

_CURSOR = re.compile(r"c[0-9a-f]{1,16}")


def page_limit(limit: int | None) -> int:
    """How many a page holds: 50 by default, 200 at the most, less than 1 refused."""
    if limit is None:
        return limits.DEFAULT_LIST
    if isinstance(limit, bool) or limit < 1:
        raise Invalid(f"limit is {limit}; expected 1 to {limits.MAX_LIST}", field="limit")
    return min(limit, limits.MAX_LIST)


def show_cursor(seq: int) -> str:
    """A cursor: the place after which the next page begins, as an opaque string."""
    return f"c{seq:x}"


def read_cursor(cursor: str | None) -> int | None:
    """The place a cursor names. Raises Invalid for what no page has given."""
    if cursor is None:
        return None
    if not _CURSOR.fullmatch(cursor):
        raise Invalid(f"cursor {cursor[:40]!r} is none that a page has given", field="cursor")
    return limits.check_range(int(cursor[1:], 16), 1, 2**62, "cursor")
