"""The one family of errors, each with a stable code that every door maps once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class PostroomError(Exception):
    """A refusal or fault with a stable `code`, a message for people, and details for programs."""

    code: ClassVar[str] = "internal"
    hint: ClassVar[str] = "This is a fault of the server; its log has the trace."

    def __init__(self, message: str, *, field: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.details: Mapping[str, object] = details

    @property
    def advice(self) -> str:
        """What to do about this one: what it brings along, else what fits where it stands, else its kind's hint."""
        return str(self.details.get("hint") or self._fitting() or self.hint)

    def _fitting(self) -> str | None:
        return None

    def as_dict(self) -> dict[str, object]:
        """The error as every door shows it: code, message, the field when there is one, and the details."""
        shown: dict[str, object] = {"code": self.code, "message": self.message}
        if self.field is not None:
            shown["field"] = self.field
        shown.update(self.details)
        return shown


class Invalid(PostroomError):
    """The input breaks a rule; `field` names the place and the message says what was expected."""

    code = "invalid"
    hint = "Correct the named field and call again."


class Unauthenticated(PostroomError):
    """No token, or one that is unknown or revoked."""

    code = "unauthenticated"
    hint = "Give a valid token: Authorization: Bearer tk_..."


class Forbidden(PostroomError):
    """The token is known, but its role may not do this."""

    code = "forbidden"
    hint = "Ask an admin, or use a token whose role allows it."


class NotFound(PostroomError):
    """There is no such thing for this principal."""

    code = "not_found"
    hint = "Check the id; list what there is to see."


class Conflict(PostroomError):
    """The thing exists, but its state or holder forbids the transition; the details say where it stands."""

    code = "conflict"
    hint = "Somebody else was first, or the lease is over: read the state, and claim again if it is yours to do."

    def _fitting(self) -> str | None:
        """The advice for what holds it up; the kind's hint is for a lease, whose owner is told."""
        if self.field in _TAKEN:
            return _TAKEN[self.field]
        if "assignee" in self.details:
            return "Leave it to the one it is assigned to, or have its assignee changed."
        held = str(self.details.get("reason") or self.details.get("state"))
        if held in _HELD:
            return _HELD[held]
        return None if "owner" in self.details else "Read how it stands; the same request will be refused again."


_TAKEN: Mapping[str | None, str] = {
    "name": "Take another name, or change or remove the one that is there.",
    "request_id": "Take a new request id: this one belongs to another request.",
    "msg_id": "Give another message another id.",
    "idempotency_key": "Give another message another key.",
}
"""What to do where something stands in this field that another one has."""

_HELD: Mapping[str, str] = {
    "paused": "Wait until the queue is resumed, or have an admin resume it.",
    "max_in_flight": "Wait until one of the queue's that are under way is ended.",
    "no_delivery": "Have somebody subscribe to the channel, then send anew.",
    "being_written": "Wait a moment: it is settled when the write is over; then repeat it if it is still wanted.",
    "ended": "Attach again.",
}
"""What to do where this reason, or state, is in the way."""


class Ambiguous(Conflict):
    """Several endpoints fit, and none is ever picked; the details name them (T12)."""

    code = "ambiguous_endpoint"
    hint = "Name one of the endpoints."

    def _fitting(self) -> str | None:
        return None


class Incompatible(PostroomError):
    """The two sides speak different versions of a protocol, or one lacks what the other needs (T6, T7)."""

    code = "unsupported_protocol"
    hint = "Bring the older side up to date."


class TooLarge(PostroomError):
    """The input is over a stated size."""

    code = "too_large"
    hint = "Send less: keep bulk data elsewhere and put a reference in the payload."


class RateLimited(PostroomError):
    """Too many requests from this principal for now."""

    code = "rate_limited"
    hint = "Wait, then call again."


class Unavailable(PostroomError):
    """The database or a peer cannot answer now; nothing was half done, and the same request may be repeated."""

    code = "unavailable"
    hint = "Repeat the same request shortly."


class Misconfigured(PostroomError):
    """A setting is wrong; start-up stops and names file and key."""

    code = "misconfigured"
    hint = "Correct what is named, then run it again."


_CODES: Mapping[str, type[PostroomError]] = {
    kind.code: kind
    for kind in (
        Invalid,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        Ambiguous,
        Incompatible,
        TooLarge,
        RateLimited,
        Unavailable,
        Misconfigured,
        PostroomError,
    )
}


def from_dict(shown: Mapping[str, object]) -> PostroomError:
    """The error that a door has shown, as the exception it was; an unknown code is the family's base."""
    details = {key: value for key, value in shown.items() if key not in {"code", "message", "field"}}
    field = shown.get("field")
    kind = _CODES.get(str(shown.get("code")), PostroomError)
    return kind(str(shown.get("message", "")), field=str(field) if field is not None else None, **details)
