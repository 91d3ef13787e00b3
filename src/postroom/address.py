"""Where a daemon is: found from arguments, the environment, or the data folder, without opening anything."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from postroom.errors import Invalid


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens, and the token to show it: a base URL, and the socket when it is reached by one."""

    base: str
    socket: str | None
    token: str | None = field(repr=False)

    def __str__(self) -> str:
        return self.base if self.socket is None else f"unix://{self.socket}"


def data_folder(given: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """The data folder: the one given, POSTROOM_DATA, or the platform's user data folder."""
    chosen = given or environ.get("POSTROOM_DATA")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_data_dir("postroom"))


def find(
    url: str | None = None, token: str | None = None, socket: str | Path | None = None, *, environ: Mapping[str, str]
) -> Address:
    """The daemon that the arguments, else the environment, else the data folder name.

    The folder's own admin token goes to a daemon of this machine only. Raises Invalid for an address of another kind,
    and for a token that would travel over plain HTTP beyond loopback.
    """
    if url is not None and socket is not None:
        raise Invalid("give url or socket, not both", field="socket")
    data = data_folder(None, environ)
    if url is None and socket is None:
        url = environ.get("POSTROOM_URL") or f"unix://{data / 'postroom.sock'}"
    if socket is not None:
        url = f"unix://{Path(socket).absolute()}"
    assert url is not None
    given = token or environ.get("POSTROOM_TOKEN") or None
    if url.startswith("unix://"):
        path = url.removeprefix("unix://")
        if not path.startswith("/"):
            raise Invalid(f"url {url[:200]!r} has no absolute path; expected unix:///path/to.sock", field="url")
        return Address("http://postroom", path, given or _admin_token(data))
    try:
        parsed = urlsplit(url)
        host, port = parsed.hostname, parsed.port
    except ValueError:
        parsed, host, port = urlsplit(""), None, None
    plain = parsed.path in {"", "/"} and not parsed.query and not parsed.fragment and "@" not in parsed.netloc
    if parsed.scheme not in {"http", "https"} or not host or not plain:
        raise Invalid(
            f"url {url[:200]!r} is no daemon's; expected http://127.0.0.1:7373 or unix:///path/to.sock", field="url"
        )
    if _loopback(host):
        given = given or _admin_token(data)
    elif given is not None and parsed.scheme == "http":
        raise Invalid(f"url {url[:200]!r} would carry the token in the clear; expected loopback or https", field="url")
    shown = f"[{host}]" if ":" in host else host
    return Address(f"{parsed.scheme}://{shown}" + ("" if port is None else f":{port}"), None, given)


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _admin_token(data: Path) -> str | None:
    try:
        return (data / "admin-token").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeError):
        return None
