"""The post's part of the settings: opencode servers, the gita registry, and how long a delivery's steps take (DESIGN §9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.delivery import Policy
from postroom.errors import Misconfigured
from postroom.services.allowed import Allowance

Wrong = Callable[[str, str], Misconfigured]
"""Makes the error of a key: where it stands, and what was expected."""

_URL = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?/?")
_POLICY = {"lease_s": ("lease", 5, 600), "ack_s": ("ack", 1, 3600), "unknown_s": ("unknown", 1, 3600)}


_SENDING = {"allow", "rate_per_minute"}
_SENDERS = re.compile(r"[A-Za-z0-9*?\[][A-Za-z0-9*?\[\]!._:/@-]{0,127}")
_RECIPIENTS = re.compile(r"#?[A-Za-z0-9*?\[][A-Za-z0-9*?\[\]!._:/@-]{0,127}")

RATE_PER_MINUTE = 600
"""How many messages one sender may send by default: more than anybody has to say, and less than a loop that runs away."""
MOST_PER_MINUTE = 1_000_000


@dataclass(frozen=True, slots=True)
class OpencodePlace:
    """One opencode server: its loopback address without a slash at the end, and its password where it wants one."""

    url: str
    password: str | None = None


@dataclass(frozen=True, slots=True)
class PostSettings:
    """What the post is told at its start; `gita_required`: whether a socket's send needs a gita registry (RULINGS 35).

    gita_asked: whether the settings say so themselves.
    allow: who may write to whom, everybody to everybody when there is none. rate_per_minute: how many messages one sender
    of an agent's token may send, 0 any number.
    """

    opencode: tuple[OpencodePlace, ...] = ()
    gita_required: bool = True
    policy: Policy = field(default_factory=Policy)
    allow: tuple[Allowance, ...] = ()
    rate_per_minute: int = RATE_PER_MINUTE
    gita_asked: bool = False


def read_post(table: Mapping[str, Any], environ: Mapping[str, str], wrong: Wrong) -> PostSettings:
    """The tables [[opencode]], [gita] and [post]. Raises Misconfigured naming file, line and key."""
    return PostSettings(
        _opencode(table, environ, wrong),
        _gita(table, wrong),
        _policy(table, wrong),
        _allow(table, wrong),
        _rate(table, wrong),
        gita_asked="required" in table.get("gita", {}),
    )


def _opencode(table: Mapping[str, Any], environ: Mapping[str, str], wrong: Wrong) -> tuple[OpencodePlace, ...]:
    given = table.get("opencode", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise wrong("opencode", "tables [[opencode]]")
    places: list[OpencodePlace] = []
    for n, one in enumerate(given):
        for key in one:
            if key not in {"url", "password_env", "password_file"}:
                raise wrong(f"opencode[{n}].{key}", "one of password_env, password_file, url")
        url = one.get("url")
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise wrong(f"opencode[{n}].url", "http:// with a loopback host and a port, as http://127.0.0.1:4096")
        if any(place.url == url.rstrip("/") for place in places):
            raise wrong(f"opencode[{n}].url", "a server that is not named twice")
        places.append(OpencodePlace(url.rstrip("/"), _password(one, f"opencode[{n}]", environ, wrong)))
    return tuple(places)


def _password(one: Mapping[str, Any], at: str, environ: Mapping[str, str], wrong: Wrong) -> str | None:
    variable, file = one.get("password_env"), one.get("password_file")
    if variable is not None and file is not None:
        raise wrong(f"{at}.password_file", "password_env or password_file, not both")
    if variable is not None:
        if not isinstance(variable, str) or not environ.get(variable):
            raise wrong(f"{at}.password_env", f"the name of a variable that is set; {str(variable)[:64]!r} is not")
        return environ[variable]
    if file is None:
        return None
    if not isinstance(file, str):
        raise wrong(f"{at}.password_file", "the path of a file")
    try:
        password = Path(file).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise wrong(f"{at}.password_file", f"a file that can be read; {file[:200]!r} cannot") from None
    if not password:
        raise wrong(f"{at}.password_file", f"a password in {file[:200]!r}; it is empty")
    return password


def _gita(table: Mapping[str, Any], wrong: Wrong) -> bool:
    given = table.get("gita", {})
    if not isinstance(given, dict):
        raise wrong("gita", "a table [gita]")
    for key in given:
        if key != "required":
            raise wrong(f"gita.{key}", "required")
    required = given.get("required", True)
    if not isinstance(required, bool):
        raise wrong("gita.required", "true or false")
    return required


def _policy(table: Mapping[str, Any], wrong: Wrong) -> Policy:
    given = table.get("post", {})
    if not isinstance(given, dict):
        raise wrong("post", "a table [post]")
    changes: dict[str, int] = {}
    for key, value in given.items():
        if key in _SENDING:
            continue
        if key not in _POLICY:
            raise wrong(f"post.{key}", f"one of {', '.join(sorted({*_POLICY, *_SENDING}))}")
        name, least, most = _POLICY[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise wrong(f"post.{key}", f"a number of seconds from {least} to {most}")
        changes[name] = round(value * 1000)
    return Policy(**changes)


def _rate(table: Mapping[str, Any], wrong: Wrong) -> int:
    value = table.get("post", {}).get("rate_per_minute", RATE_PER_MINUTE)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_PER_MINUTE:
        raise wrong("post.rate_per_minute", f"a whole number from 0 (no cap) to {MOST_PER_MINUTE}")
    return value


def _allow(table: Mapping[str, Any], wrong: Wrong) -> tuple[Allowance, ...]:
    given = table.get("post", {}).get("allow", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise wrong("post.allow", 'a list of entries {from = "NAME", to = ["NAME", …]}, or tables [[post.allow]]')
    entries: list[Allowance] = []
    for n, one in enumerate(given):
        for key in one:
            if key not in {"from", "to"}:
                raise wrong(f"post.allow[{n}].{key}", "one of from, to")
        entries.append(
            Allowance(
                _globs(one.get("from"), f"post.allow[{n}].from", _SENDERS, "a sender's name or glob", wrong),
                _globs(
                    one.get("to"),
                    f"post.allow[{n}].to",
                    _RECIPIENTS,
                    "a recipient's name or glob, #CHANNEL or repo:NAME",
                    wrong,
                ),
            )
        )
    return tuple(entries)


def _globs(given: object, key: str, pattern: re.Pattern[str], what: str, wrong: Wrong) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise wrong(key, f"{what}, or a list of them")
    for name in names:
        if not pattern.fullmatch(name):
            raise wrong(key, f"{what}; {name[:64]!r} is none")
    return tuple(names)
