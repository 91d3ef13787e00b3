"""The webhooks of the settings: tables [[webhook]], each with where it is called and what it listens to (DESIGN §6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from postroom.carriers.webhook_place import WebhookPlace
from postroom.config_post import Wrong
from postroom.errors import Invalid, Misconfigured
from postroom.limits import check_name, check_queue
from postroom.postage import MAX_PAYLOAD_BYTES

_KEYS = (
    "allow_private",
    "channels",
    "max_payload_bytes",
    "name",
    "queues",
    "secret_env",
    "secret_file",
    "secrets",
    "timeout_s",
    "url",
)
_SECRETS = ("secret_env", "secret_file", "secrets")
_URL = re.compile(r"[!-~]{1,2048}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_MEANS_ANOTHER = ("ses_", "ep_")
"""What a name may not begin with: a message to such a name goes to a session, or to an endpoint by its id."""
_TAKEN = "postroom"
MOST_SECRETS = 4
MOST_NAMES = 64
MIN_KEY, MAX_KEY = 24, 64
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 1, 15
DEFAULT_TIMEOUT_S = 15.0


def read_webhooks(
    table: Mapping[str, Any], environ: Mapping[str, str], folder: Path, wrong: Wrong
) -> tuple[WebhookPlace, ...]:
    """The tables [[webhook]]; a secret's file is looked for from `folder`. Raises Misconfigured naming file, line, key."""
    given = table.get("webhook", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise wrong("webhook", "tables [[webhook]]")
    places: list[WebhookPlace] = []
    for n, one in enumerate(given):
        place = _Reading(one, f"webhook[{n}]", environ, folder, wrong).place()
        if any(place.name == other.name for other in places):
            raise wrong(f"webhook[{n}].name", f"a name that no other webhook has; {place.name!r} is there twice")
        places.append(place)
    return tuple(places)


class _Reading:
    """One table being read; no error shows a secret."""

    def __init__(
        self, table: Mapping[str, Any], at: str, environ: Mapping[str, str], folder: Path, wrong: Wrong
    ) -> None:
        self._table = table
        self._at = at
        self._environ = environ
        self._folder = folder
        self._make = wrong

    def _wrong(self, key: str, expected: str) -> Misconfigured:
        return self._make(f"{self._at}.{key}", expected)

    def place(self) -> WebhookPlace:
        """The whole table as a webhook."""
        for key in self._table:
            if key not in _KEYS:
                raise self._wrong(key, f"one of {', '.join(_KEYS)}")
        name = self._name()
        private = self._flag("allow_private")
        return WebhookPlace(
            name=name,
            url=self._url(private=private),
            keys=self._keys(),
            queues=self._names("queues"),
            channels=self._names("channels"),
            allow_private=private,
            timeout_s=self._timeout(),
            max_payload=self._payload(),
        )

    def _name(self) -> str:
        name = self._table.get("name")
        if not isinstance(name, str):
            raise self._wrong("name", "a name: messages to it go there")
        try:
            check_name(name, "name")
        except Invalid as error:
            raise self._wrong("name", f"another one: {error.message}") from None
        if name.startswith(_MEANS_ANOTHER) or name == _TAKEN:
            raise self._wrong("name", f"a name that stands for nothing else, not {name[:64]!r}")
        return name

    def _url(self, *, private: bool) -> str:
        url = self._table.get("url")
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise self._wrong("url", "https:// with a host, in ASCII (a host of other letters in its xn-- form)")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise self._wrong("url", "https:// with a host, and a port from 1 to 65535 where it has one") from None
        if parts.username is not None or parts.password is not None:
            raise self._wrong("url", "an address without user and password: the signature proves who calls")
        if parts.scheme not in {"https", "http"} or not host or not _HOST.fullmatch(host) or port == 0:
            raise self._wrong("url", "https:// with a host, and a port from 1 to 65535 where it has one")
        if parts.fragment:
            raise self._wrong("url", "an address without #")
        if parts.scheme == "http" and not private:
            raise self._wrong("url", "https://; http:// is for private addresses, with allow_private = true")
        return url

    def _keys(self) -> tuple[bytes, ...]:
        """The bytes of each secret, whichever of the three keys says where they are."""
        said = [key for key in self._table if key in _SECRETS]
        if len(said) != 1:
            raise self._wrong(said[1] if said else "secrets", f"one of {', '.join(_SECRETS)}, and only one")
        (key,) = said
        secrets = self._secrets(key, self._table[key])
        if not 1 <= len(secrets) <= MOST_SECRETS:
            raise self._wrong(key, f"1 to {MOST_SECRETS} secrets, found {len(secrets)}")
        return tuple(self._key_of(key, secret) for secret in secrets)

    def _secrets(self, key: str, value: object) -> list[str]:
        match key, value:
            case "secrets", list() if all(isinstance(one, str) for one in value):
                return list(value)
            case "secret_env", str() if self._environ.get(value):
                return self._environ[value].split()
            case "secret_env", _:
                raise self._wrong(key, f"the name of a variable that is set; {str(value)[:64]!r} is not")
            case "secret_file", str():
                try:
                    return (self._folder / Path(value).expanduser()).read_text("utf-8").split()
                except (OSError, UnicodeDecodeError):
                    raise self._wrong(key, f"a file that can be read; {value[:200]!r} cannot") from None
            case "secret_file", _:
                raise self._wrong(key, "the path of a file")
            case _:
                raise self._wrong(key, "a list of secrets, each whsec_ and base64")

    def _key_of(self, key: str, secret: str) -> bytes:
        from postroom.sources.standard import PREFIX, key_of

        expected = f"{PREFIX} and {MIN_KEY} to {MAX_KEY} bytes in base64, as `openssl rand -base64 32` makes them"
        if not secret.startswith(PREFIX):
            raise self._wrong(key, expected)
        try:
            made = key_of(secret)
        except Invalid:
            raise self._wrong(key, expected) from None
        if not MIN_KEY <= len(made) <= MAX_KEY:
            raise self._wrong(key, f"{expected}; this one has {len(made)}")
        return made

    def _names(self, key: str) -> tuple[str, ...]:
        given = self._table.get(key, [])
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise self._wrong(key, "a list of names")
        if len(given) > MOST_NAMES:
            raise self._wrong(key, f"at most {MOST_NAMES} names")
        for one in given:
            try:
                check_queue(one, key)
            except Invalid as error:
                raise self._wrong(key, f"other names: {error.message}") from None
        return tuple(dict.fromkeys(given))

    def _flag(self, key: str) -> bool:
        value = self._table.get(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def _timeout(self) -> float:
        value = self._table.get("timeout_s", DEFAULT_TIMEOUT_S)
        if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_TIMEOUT_S <= value <= MAX_TIMEOUT_S:
            raise self._wrong("timeout_s", f"a number of seconds from {MIN_TIMEOUT_S} to {MAX_TIMEOUT_S}")
        return float(value)

    def _payload(self) -> int:
        value = self._table.get("max_payload_bytes", MAX_PAYLOAD_BYTES)
        if type(value) is not int or not 0 <= value <= MAX_PAYLOAD_BYTES:
            raise self._wrong("max_payload_bytes", f"a whole number from 0 to {MAX_PAYLOAD_BYTES}")
        return value
