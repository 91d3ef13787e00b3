"""Ids: a prefix and a UUIDv7, always strings; and secrets from the system's randomness."""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import StrEnum
from typing import Protocol

import uuid_utils

from postroom.errors import NotFound


class Prefix(StrEnum):
    """What an id names, as its first three characters."""

    EVENT = "ev_"
    TODO = "td_"
    LEASE = "ls_"
    TOKEN = "tk_"
    DELIVERY = "dl_"
    ENDPOINT = "ep_"


class Ids(Protocol):
    """Where new ids come from; tests pass their own."""

    def new(self, prefix: Prefix) -> str:
        """A fresh id with this prefix."""
        ...

    def message(self, at_ms: int) -> str:
        """A fresh message id of this moment (P2)."""
        ...


class RandomIds:
    """Ids from UUIDv7: unique everywhere, and in the order of their making within a process."""

    def new(self, prefix: Prefix) -> str:
        """A fresh id with this prefix."""
        return f"{prefix.value}{uuid_utils.uuid7()}"

    def message(self, at_ms: int) -> str:
        """A fresh message id of this moment (P2)."""
        return message_id(at_ms, secrets.token_hex(4))


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def message_id(at_ms: int, tail: str) -> str:
    """`msg_`, the moment in base 36, and eight characters that tell it from others of the same millisecond (P2)."""
    text = ""
    while at_ms:
        at_ms, digit = divmod(at_ms, 36)
        text = _DIGITS[digit] + text
    return f"msg_{text or '0'}_{tail}"


_SHAPE = re.compile(r"(ev|td|ls|tk|dl|ep)_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_id(value: str, prefix: Prefix) -> bool:
    """Whether this has the shape of an id with this prefix."""
    return value.startswith(prefix) and _SHAPE.fullmatch(value) is not None


def check_id(value: str, prefix: Prefix, noun: str) -> str:
    """The id itself when its shape is this prefix's; anything else names nothing. Raises NotFound."""
    if not is_id(value, prefix):
        raise NotFound(f"no {noun} {value[:64]!r}: {noun} ids look like {prefix.value}<uuid>", field="id")
    return value


def new_secret() -> str:
    """A bearer token: `tk_` and 256 random bits, URL-safe (RULINGS 37)."""
    return "tk_" + secrets.token_urlsafe(32)


def secret_digest(secret: str) -> str:
    """The SHA-256 of a bearer token in hex: what is stored instead of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
