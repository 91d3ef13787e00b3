"""Settings: defaults < postroom.toml < environment < flags, each remembered with where it came from (DESIGN §9)."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from postroom.address import data_folder
from postroom.carriers.webhook_place import WebhookPlace
from postroom.config_post import RATE_PER_MINUTE, PostSettings, read_post
from postroom.config_webhook import read_webhooks
from postroom.errors import Invalid, Misconfigured
from postroom.limits import check_settings
from postroom.model import QueueSettings

DEFAULT_PORT = 7373

_TOP = {"data", "database", "host", "port", "socket", "hooks_port", "open"}
_TABLES = {"http", "source", "queue", "opencode", "gita", "post", "webhook"}
_QUEUE = {
    "lease_s": "lease_ms",
    "max_attempts": "max_attempts",
    "backoff_s": "backoff_ms",
    "backoff_cap_s": "backoff_cap_ms",
    "max_in_flight": "max_in_flight",
    "keep_done_s": "keep_done_ms",
    "keep_dead_s": "keep_dead_ms",
    "paused": "paused",
}
_WHOLE = {"max_attempts", "max_in_flight"}
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_HEADER = re.compile(r"^\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?$")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a daemon is told at its start. `queues` holds the changed settings (ms) of each named queue."""

    data: Path
    database: str
    host: str
    port: int
    socket: Path
    hooks_port: int | None
    open: bool
    http_hosts: tuple[str, ...] = ()
    sources: tuple[Mapping[str, Any], ...] = ()
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    post: PostSettings = field(default_factory=PostSettings)
    webhooks: tuple[WebhookPlace, ...] = ()
    file: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def token_file(self) -> Path:
        """Where the first start writes the admin's token."""
        return self.data / "admin-token"

    def shown(self) -> list[tuple[str, str, str]]:
        """Each setting with its value, secrets out, and where it came from."""
        rows = [
            ("data", str(self.data)),
            ("database", _without_password(self.database)),
            ("host", self.host),
            ("port", str(self.port)),
            ("socket", str(self.socket)),
            ("hooks_port", "-" if self.hooks_port is None else str(self.hooks_port)),
            ("open", str(self.open).lower()),
            ("http.hosts", ", ".join(self.http_hosts) or "-"),
        ]
        shown = [(key, value, self.origins.get(key, "default")) for key, value in rows]
        for source in self.sources:
            name = f"source.{source.get('name', '?')}"
            said = ", ".join(
                f"{key}={'[set]' if key == 'secrets' else value}" for key, value in source.items() if key != "name"
            )
            shown.append((name, said, str(self.file)))
        for n, place in enumerate(self.post.opencode):
            shown.append((f"opencode[{n}]", place.url + (" with a password" if place.password else ""), str(self.file)))
        rate = self.post.rate_per_minute
        shown.append(("post.rate_per_minute", str(rate), "default" if rate == RATE_PER_MINUTE else str(self.file)))
        for n, entry in enumerate(self.post.allow):
            said = f"{', '.join(entry.senders)} to {', '.join(entry.recipients)}"
            shown.append((f"post.allow[{n}]", said, str(self.file)))
        shown += [(f"webhook.{one.name}", one.said(), str(self.file)) for one in self.webhooks]
        for name, changes in self.queues.items():
            said = ", ".join(f"{key}={value}" for key, value in changes.items())
            shown.append((f"queue.{name}", said, str(self.file)))
        return shown


def load_settings(
    *,
    config: str | None = None,
    data: str | None = None,
    database: str | None = None,
    host: str | None = None,
    port: int | None = None,
    socket: str | None = None,
    hooks_port: int | None = None,
    open_: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a start; the named arguments are the flags. Raises Misconfigured naming file, line and key."""
    env = os.environ if environ is None else environ
    folder = data_folder(data, env)
    file = _find_file(config or env.get("POSTROOM_CONFIG"), folder)
    text, table = _read_file(file)
    origins: dict[str, str] = {}

    def wrong(key: str, expected: str) -> Misconfigured:
        return Misconfigured(f"{_place(file, text, key)}: {key}: expected {expected}", field=key)

    for key in table:
        if key not in _TOP | _TABLES:
            raise wrong(key, f"one of {', '.join(sorted(_TOP | _TABLES))}")

    def chosen(key: str, kind: type, default: Any, variable: str | None, flag: Any) -> Any:
        # What is malformed is told even where a flag or the environment wins over it.
        if key in table and type(table[key]) is not kind:
            raise wrong(key, {str: "text", int: "a whole number", bool: "true or false"}[kind])
        if flag is not None:
            origins[key] = "flag"
            return flag
        if variable is not None and env.get(variable):
            origins[key] = f"environment {variable}"
            value: Any = env[variable]
            if kind is int:
                if not value.isdigit():
                    raise Misconfigured(f"{variable}: {value[:40]!r}: expected a whole number", field=variable)
                value = int(value)
            return value
        if key in table:
            origins[key] = str(file)
            return table[key]
        return default

    if "data" in table and data is None and not env.get("POSTROOM_DATA"):
        folder = Path(str(chosen("data", str, "", None, None))).expanduser().absolute()
    elif data or env.get("POSTROOM_DATA"):
        origins["data"] = "flag" if data else "environment POSTROOM_DATA"
    url = str(chosen("database", str, f"sqlite:///{folder / 'postroom.db'}", "POSTROOM_DATABASE_URL", database))
    if not url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        raise wrong("database", "sqlite:///FILE or postgresql://…")
    bound = str(chosen("host", str, "127.0.0.1", "POSTROOM_HOST", host))
    number = chosen("port", int, DEFAULT_PORT, "POSTROOM_PORT", port)
    hooks = chosen("hooks_port", int, None, "POSTROOM_HOOKS_PORT", hooks_port)
    for key, value in (("port", number), ("hooks_port", hooks)):
        if value is not None and not 0 <= value <= 65535:
            raise wrong(key, "0 to 65535")
    opened = bool(chosen("open", bool, False, None, open_))
    if bound not in _LOOPBACK:
        if opened:
            raise wrong("open", f"a loopback host with --open, not {bound}: without tokens anybody there is admin")
        raise wrong("host", "a loopback address (127.0.0.1, ::1): reach it from elsewhere through a tunnel or a proxy")
    return Settings(
        data=folder,
        database=url,
        host=bound,
        port=int(number),
        socket=Path(str(chosen("socket", str, folder / "postroom.sock", "POSTROOM_SOCKET", socket)))
        .expanduser()
        .absolute(),
        hooks_port=hooks,
        open=opened,
        http_hosts=_hosts(table, wrong),
        sources=_sources(table, wrong),
        queues=_queues(table, wrong),
        post=read_post(table, env, wrong),
        webhooks=read_webhooks(table, env, file.parent if file is not None else folder, wrong),
        file=file,
        origins=origins,
    )


def with_sources_of_file(settings: Settings) -> Settings:
    """The settings with the sources that the file names now; one that was made since the start is found.

    Raises Misconfigured naming file, line and key. Everything else stays as it was at the start.
    """
    file = settings.file if settings.file is not None else _find_file(None, settings.data)
    text, table = _read_file(file)

    def wrong(key: str, expected: str) -> Misconfigured:
        return Misconfigured(f"{_place(file, text, key)}: {key}: expected {expected}", field=key)

    return replace(settings, sources=_sources(table, wrong), file=file)


def settings_path(config: str | None, folder: Path, environ: Mapping[str, str]) -> Path:
    """The settings file that a start with this flag and data folder reads; where none is yet, the one to make."""
    chosen = config or environ.get("POSTROOM_CONFIG")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _find_file(None, folder) or folder / "postroom.toml"


def place_of(settings: Settings, key: str) -> str:
    """`file:line` of a key of the settings' file, to name it in an error; `source[1].name` is in the second source."""
    if settings.file is None:
        return "the settings"
    return _place(settings.file, settings.file.read_text("utf-8", "replace"), key)


def _find_file(given: str | None, folder: Path) -> Path | None:
    if given:
        path = Path(given).expanduser()
        if not os.path.isfile(path):
            raise Misconfigured(f"there is no settings file {path}", field="config")
        return path
    import platformdirs

    for path in (folder / "postroom.toml", Path(platformdirs.user_config_dir("postroom")) / "postroom.toml"):
        if os.path.isfile(path):
            return path
    return None


def _read_file(file: Path | None) -> tuple[str, dict[str, Any]]:
    if file is None:
        return "", {}
    try:
        text = file.read_text("utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise Misconfigured(f"{file} cannot be read: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = re.search(r"at line (\d+)", str(error))
        line = f":{where.group(1)}" if where else ""
        raise Misconfigured(f"{file}{line}: not TOML: {error}", field="config") from None


def _place(file: Path | None, text: str, key: str) -> str:
    line = _line(text.splitlines(), key)
    return f"{file or 'the settings'}" if line is None else f"{file}:{line}"


def _line(lines: Sequence[str], key: str) -> int | None:
    """The line of a dotted key: in its table where that has a header of its own, else wherever it first stands."""
    table, _, last = key.rpartition(".")
    name = rf"\"?{re.escape(last)}\"?"
    assigned = re.compile(rf"(^|[\s\[.,{{]){name}\s*=")
    begin = _header(lines, table)
    if begin is not None:
        for number in range(begin, len(lines)):
            if _HEADER.match(lines[number]):
                break
            if assigned.search(lines[number]):
                return number + 1
        return begin
    headed = re.compile(rf"^\s*\[+\s*([\w.\"-]+\.)?{name}\s*\]")
    for number, line in enumerate(lines, 1):
        if headed.search(line) or assigned.search(line):
            return number
    return None


def _header(lines: Sequence[str], table: str) -> int | None:
    """The line of a table's header; `source[1]` is the second of its name."""
    name, _, index = table.removesuffix("]").partition("[")
    left = int(index or 0)
    for number, line in enumerate(lines, 1):
        found = _HEADER.match(line)
        if found and re.sub(r"[\s\"']", "", found.group(1)) == re.sub(r"\s", "", name):
            if not left:
                return number
            left -= 1
    return None


def _hosts(table: Mapping[str, Any], wrong: Any) -> tuple[str, ...]:
    http = table.get("http", {})
    if not isinstance(http, dict):
        raise wrong("http", "a table [http]")
    for key in http:
        if key != "hosts":
            raise wrong(f"http.{key}", "hosts")
    hosts = http.get("hosts", [])
    if not isinstance(hosts, list) or not all(isinstance(host, str) and host for host in hosts):
        raise wrong("http.hosts", "a list of host names")
    return tuple(hosts)


def _sources(table: Mapping[str, Any], wrong: Any) -> tuple[Mapping[str, Any], ...]:
    sources = table.get("source", [])
    if not isinstance(sources, list) or not all(isinstance(source, dict) for source in sources):
        raise wrong("source", "tables [[source]]")
    return tuple(sources)


def _queues(table: Mapping[str, Any], wrong: Any) -> dict[str, dict[str, Any]]:
    queues = table.get("queue", {})
    if not isinstance(queues, dict):
        raise wrong("queue", "tables [queue.NAME]")
    made: dict[str, dict[str, Any]] = {}
    for name, given in queues.items():
        if not isinstance(given, dict):
            raise wrong(f"queue.{name}", "a table [queue.NAME]")
        changes: dict[str, Any] = {}
        for key, value in given.items():
            if key not in _QUEUE:
                raise wrong(f"queue.{name}.{key}", f"one of {', '.join(sorted(_QUEUE))}")
            if key == "paused":
                if not isinstance(value, bool):
                    raise wrong(f"queue.{name}.{key}", "true or false")
                changes[key] = value
            elif key in _WHOLE and type(value) is not int:
                raise wrong(f"queue.{name}.{key}", "a whole number")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not -1e12 < value < 1e12:
                raise wrong(f"queue.{name}.{key}", "a number")
            else:
                changes[_QUEUE[key]] = round(value * 1000) if key.endswith("_s") else value
        try:
            check_settings(QueueSettings(name, **changes))
        except Invalid as error:
            place = f"queue.{name}.{error.field}" if error.field in _QUEUE else f"queue.{name}"
            raise wrong(place, f"another value: {error.message}") from None
        made[name] = changes
    return made


def _without_password(url: str) -> str:
    return re.sub(r"(?<=://)([^/@]*?):[^/@]*@", r"\1:[set]@", url)
