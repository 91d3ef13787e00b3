"""The fields of requests: their types, which are checked here, and their bounds, which are told here and kept below.

Bounds belong to the services, whose words name the field and what was expected; the schema only repeats them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from postroom import limits
from postroom.limits import SECOND
from postroom.text import clean

_WHOLE = re.compile(r"-?[0-9]{1,400}")

QUEUE_PATTERN = r"^[a-z0-9][a-z0-9._/-]{0,127}$"
GLOB_PATTERN = r"^[a-z0-9*?][a-z0-9*?._/-]{0,127}$"
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
OWNER_PATTERN = r"^[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64})?$"
KEY_PATTERN = r"^[^\u0000-\u001f\u007f]{1,256}$"
KIND_PATTERN = r"^([A-Za-z0-9][A-Za-z0-9._:/-]{0,127})?$"
CURSOR_PATTERN = r"^c[1-9a-f][0-9a-f]{0,14}$"
LEASE_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"


class Asked(BaseModel):
    """What a request asks: strict, so that no text stands for a number, and nothing unknown is passed over."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    repeated: ClassVar[frozenset[str]] = frozenset()
    """The lists that a query has by giving one name several times."""


class Nothing(Asked):
    """An object without fields."""


def told(description: str, **schema: Any) -> Any:
    """A field's description, and the bounds that the services keep."""
    return Field(description=description, json_schema_extra=schema or None)


def seconds(description: str, low_ms: int, high_ms: int) -> Any:
    """A duration's description; the bounds in ms are told in seconds."""
    return told(f"{description}, in seconds.", minimum=low_ms / SECOND, maximum=high_ms / SECOND)


def _cleaned(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


def _integral(value: object) -> object:
    # JSON has one kind of number: 2.0 is the whole number 2.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


Whole = Annotated[int, BeforeValidator(_integral)]
Queue = Annotated[str, told("The queue's name.", pattern=QUEUE_PATTERN)]
Queues = Annotated[
    list[Annotated[str, told("A queue's name.", pattern=QUEUE_PATTERN)]],
    told("The queues to take from; all that the token may use by default.", minItems=1, maxItems=limits.MAX_QUEUES),
]
Title = Annotated[
    str, told("What there is to do, in a line.", minLength=1, maxLength=limits.MAX_TITLE, pattern=r"[^ \t\r\n]")
]
Kind = Annotated[str, told("What sort of work it is.", pattern=KIND_PATTERN)]
Payload = Annotated[Any, told("Any JSON value of at most 1 MiB.")]
Result = Annotated[Any, told("What came of it: any JSON value; over 1 MiB it is cut, never refused.")]
Priority = Annotated[
    Whole,
    told("Higher is claimed first; 0 by default.", minimum=-limits.MAX_PRIORITY, maximum=limits.MAX_PRIORITY),
]
Assignee = Annotated[
    str, told("The only owner that may claim it: a token's name, or name/worker.", pattern=OWNER_PATTERN)
]
IdempotencyKey = Annotated[
    str, told("While a todo with this key lives in the queue, it is given instead of a new one.", pattern=KEY_PATTERN)
]
MaxAttempts = Annotated[Whole, told("How many attempts it has.", minimum=1, maximum=limits.MAX_MAX_ATTEMPTS)]
Moment = Annotated[str, told("Not claimable before this time, RFC 3339 with a zone.", format="date-time")]
Delay = Annotated[float, seconds("Not claimable before so long from now", 0, limits.MAX_DELAY)]
Lease = Annotated[
    float, seconds("How long the lease holds; the queue's by default", limits.MIN_LEASE, limits.MAX_LEASE)
]
# The one bound kept here: a lease id is only ever compared, and must still be text that a database can be asked for.
LeaseId = Annotated[
    str, StringConstraints(pattern=LEASE_PATTERN), Field(description="The lease_id that the claim was answered with.")
]
ClaimKey = Annotated[str, told("The same key again gives the same claim while it lives.", pattern=KEY_PATTERN)]
Worker = Annotated[str, told("The owner is then the token's name/worker.", pattern=NAME_PATTERN)]
Words = Annotated[str, BeforeValidator(_cleaned)]
"""Text that is cleaned and cut, never refused for what it says."""

Limit = Annotated[
    int, BeforeValidator(_whole), told(f"How many at most; 50 by default, never over {limits.MAX_LIST}.", minimum=1)
]
Cursor = Annotated[str, told("The next_cursor of the page before.", pattern=CURSOR_PATTERN)]
