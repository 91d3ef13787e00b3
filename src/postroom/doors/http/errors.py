"""Errors over HTTP: each kind of the family has its status here, once, and everything is told in one shape."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from postroom.doors.http.answers import Answer, Header, json_answer
from postroom.errors import (
    Ambiguous,
    Conflict,
    Forbidden,
    Incompatible,
    Invalid,
    Misconfigured,
    NotFound,
    PostroomError,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

RETRY_AFTER_S = 2

STATUS: Mapping[type[PostroomError], int] = MappingProxyType(
    {
        Invalid: HTTPStatus.BAD_REQUEST,
        Unauthenticated: HTTPStatus.UNAUTHORIZED,
        Forbidden: HTTPStatus.FORBIDDEN,
        NotFound: HTTPStatus.NOT_FOUND,
        Conflict: HTTPStatus.CONFLICT,
        Ambiguous: HTTPStatus.CONFLICT,
        Incompatible: HTTPStatus.BAD_REQUEST,
        TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        RateLimited: HTTPStatus.TOO_MANY_REQUESTS,
        Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
        Misconfigured: HTTPStatus.INTERNAL_SERVER_ERROR,
        PostroomError: HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)

_LATER: Header = (b"retry-after", str(RETRY_AFTER_S).encode())
_HEADERS: Mapping[type[PostroomError], tuple[Header, ...]] = MappingProxyType(
    {Unauthenticated: ((b"www-authenticate", b"Bearer"),), Unavailable: (_LATER,), RateLimited: (_LATER,)}
)


class WrongMethod(Invalid):
    """The path is there, but not for this method."""

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{method[:20]} is not for this path; expected {', '.join(allowed)}", field="method")
        self.allowed = allowed


class TooSlow(Invalid):
    """The body did not arrive in time."""


class WrongEncoding(Invalid):
    """The body is encoded in a way that is not taken."""

    def __init__(self, message: str, *, gzip: bool) -> None:
        super().__init__(message, field="body")
        self.accepted = b"gzip, identity" if gzip else b"identity"


class Gone(Exception):
    """The client went away before its request was whole: there is nobody to answer."""


def error_answer(error: PostroomError) -> Answer:
    """The error as its status and `{"error": {"code", "message", "field"?, …}}`."""
    shown = {"error": error.as_dict()}
    match error:
        case WrongMethod():
            return json_answer(shown, 405, ((b"allow", ", ".join(error.allowed).encode()),))
        case TooSlow():
            # What is left of the body must not be read as the next request.
            return json_answer(shown, 408, ((b"connection", b"close"),))
        case WrongEncoding():
            return json_answer(shown, 415, ((b"accept-encoding", error.accepted),))
    kind = next(kind for kind in type(error).__mro__ if kind in STATUS)
    headers = _HEADERS.get(kind, ())
    if kind is RateLimited and isinstance(after := error.details.get("retry_after_s"), int):
        headers = ((b"retry-after", str(after).encode()),)
    return json_answer(shown, STATUS[kind], headers)


def fault_answer() -> Answer:
    """A fault of ours: it says nothing of what broke, the log does."""
    return error_answer(PostroomError(PostroomError.hint))
