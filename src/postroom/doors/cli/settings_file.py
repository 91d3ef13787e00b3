"""The settings file as an editor finds it: a source appended or taken out, all else kept, and never a broken file left."""

from __future__ import annotations

import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from postroom.errors import Conflict, Misconfigured, NotFound

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SOURCE = re.compile(r"\s*\[\[\s*source\s*\]\]")
_BELOW = re.compile(r"\s*\[{1,2}\s*source\s*\.")
_IDLE = re.compile(r"\s*(#.*)?\s*")


class SettingsFile:
    """One file as it was when it was read; a file that is not there is empty. Raises Misconfigured when it is no TOML."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.there = path.exists()
            self._raw = path.read_bytes() if self.there else b""
            self.text = self._raw.decode()
            self.table = tomllib.loads(self.text)
        except OSError as error:
            raise Misconfigured(f"{path} cannot be read: {error.strerror}", field="config") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise Misconfigured(f"{path} is not TOML, and is left as it is: {error}", field="config") from None

    def source(self, name: str) -> Mapping[str, Any] | None:
        """The table of the source of this name."""
        tables = self.table.get("source", [])
        found = [one for one in tables if isinstance(one, dict) and one.get("name") == name]
        return found[0] if found else None

    def add_source(self, source: Mapping[str, Any]) -> None:
        """A [[source]] table more at the end, the file as it was beside it in NAME.bak. Raises Conflict, Misconfigured."""
        if self.source(str(source["name"])) is not None:
            raise Conflict(f"{self.path} has a source {source['name']} already", field="name")
        gap = "" if not self.text else "\n" if self.text.endswith("\n") else "\n\n"
        lines = ["[[source]]", *(f"{_key(key)} = {_value(value)}" for key, value in source.items())]
        text = self.text + gap + "\n".join(lines) + "\n"
        try:
            right = tomllib.loads(text)["source"][-1] == source
        except (tomllib.TOMLDecodeError, LookupError, TypeError):
            right = False
        if not right:
            raise Misconfigured(
                f"{self.path}: a [[source]] table cannot be appended to what is there; write it in by hand",
                field="source",
            )
        self._write(text)

    def remove_source(self, name: str) -> None:
        """A [[source]] table less, what stands above it kept, the old file in NAME.bak. Raises NotFound, Misconfigured."""
        source = self.source(name)
        if source is None:
            raise NotFound(f"{self.path} has no source {name[:64]!r}", field="name")
        tables = list(self.table["source"])
        tables.remove(source)
        wanted = {key: value for key, value in self.table.items() if key != "source"} | (
            {"source": tables} if tables else {}
        )
        for text in _shorter(self.text):
            with suppress(tomllib.TOMLDecodeError):
                if tomllib.loads(text) == wanted:
                    return self._write(text)
        raise Misconfigured(
            f"{self.path}: the table of {name} does not stand by itself there; take it out by hand, then postroom reload",
            field="source",
        )

    def _write(self, text: str) -> None:
        if self.there:
            write_private(self.path.with_name(self.path.name + ".bak"), self._raw, _mode(self.path))
        write_private(self.path, text.encode(), _mode(self.path))

    def restore(self) -> None:
        """The file as it was when it was read."""
        if self.there:
            write_private(self.path, self._raw, _mode(self.path))
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None


def _shorter(text: str) -> Iterator[str]:
    """The text without what may be one [[source]] table, for each one and for each place where it may end."""
    lines = text.splitlines(keepends=True)
    heads = [n for n, line in enumerate(lines) if line.lstrip().startswith("[")]
    for first in heads:
        if not _SOURCE.match(lines[first]):
            continue
        for after in (*(n for n in heads if n > first and not _BELOW.match(lines[n])), len(lines)):
            end = after
            # What stands above the next table belongs to that one.
            while after < len(lines) and end > first + 1 and _IDLE.fullmatch(lines[end - 1]):
                end -= 1
            kept = "".join(lines[:first]).rstrip("\n")
            rest = "".join(lines[end:]).lstrip("\n")
            yield (f"{kept}\n" if kept else "") + ("\n" if kept and rest else "") + rest


def _mode(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    return 0o600


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(one) for one in value)}]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """The whole content under this name at once, or not at all; what it replaces is never half there."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):  # it may never have come to be
            temporary.unlink()
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError, field: str = "file", *, why: str | None = None) -> Misconfigured:
    """The error for a file, or the folder it is to be in, that cannot be made or changed."""
    folder = next((one for one in path.parents if os.path.lexists(one)), path.parent)
    said = why or error.strerror or str(error)
    return Misconfigured(
        f"{path} cannot be written: {said}",
        field=field,
        hint=f"Make sure that {folder} is a folder on a disk that can be written to, and that you may write there.",
    )
