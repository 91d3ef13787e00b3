"""The entry named postroom in a client's configuration: what it says, whose it is, and how it gets into a text."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from postroom.errors import Conflict, Misconfigured

NAME: Final = "postroom"
"""What the server is called in every client."""

_URL: Final = "--url"
_TOKEN_FILE: Final = "--token-file"

UNKNOWN: Final = "tk_..."
"""What is shown in the place of a token that is not made yet."""


class Via(StrEnum):
    """How a client reaches Postroom: by a process of its own, or by the daemon's own port."""

    STDIO = "stdio"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an entry has to say.

    daemon: the address that the process on stdio gets; base: the daemon's on HTTP. token: the secret, None before it is
    made. project: the folder for which alone the entry is, None for every one. channel: whether a process pushes too; one
    that does already goes on.
    """

    via: Via
    project: Path | None
    program: str
    daemon: str
    base: str
    token_file: Path
    token: str | None
    variable: str
    channel: bool = False

    @property
    def endpoint(self) -> str:
        """The URL of MCP on HTTP."""
        return f"{self.base}/mcp"

    @property
    def export(self) -> str:
        """The line that gives a shell the variable with the token."""
        return f'export {self.variable}="$(cat {shlex.quote(str(self.token_file))})"'


class Client(ABC):
    """One client: where its configuration is, and its entry as a text has it.

    What reads a text raises ValueError, which says where it is broken and what was expected.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    executable: ClassVar[str]
    at: ClassVar[str]
    """The entry's place, as people write it."""
    empty: ClassVar[frozenset[str]] = frozenset({"", "{}"})
    """What a text without spaces says that says nothing."""

    @abstractmethod
    def places(self, project: Path | None) -> Sequence[Path]:
        """The files that the client reads there, the one that wins last."""

    @abstractmethod
    def entry(self, text: str) -> Mapping[str, Any] | None:
        """The entry of this name, None for none. Raises ValueError."""

    @abstractmethod
    def describe(self, wanted: Wanted, text: str) -> dict[str, Any]:
        """The entry as this text is to have it. Raises Misconfigured for what this client cannot be told."""

    @abstractmethod
    def put(self, text: str, entry: Mapping[str, Any]) -> str:
        """The text with the entry; keys that are not Postroom's are kept. Raises ValueError."""

    @abstractmethod
    def take(self, text: str) -> str:
        """The text without the entry, nor what it leaves empty. Raises ValueError."""

    @abstractmethod
    def command(self, entry: Mapping[str, Any]) -> object:
        """The words that the entry starts a process with, as they are there."""

    def place(self, project: Path | None) -> Path:
        """The file that an entry goes into: the one that has it, else the last that is there, else the first."""
        places = self.places(project)
        for path in reversed(places):
            if os.path.isfile(path) and self._has_entry(path):
                return path
        return next((path for path in reversed(places) if os.path.lexists(path)), places[0])

    def _has_entry(self, path: Path) -> bool:
        try:
            return self.entry(path.read_text("utf-8")) is not None
        except (OSError, ValueError):
            return False

    def alone(self, text: str) -> bool:
        """Whether a text holds the entry and nothing else, not even a comment. Raises ValueError."""
        if self.entry(text) is None:
            return False
        return "".join(self.take(text).removeprefix("\ufeff").split()) in self.empty

    def folders(self, project: Path | None) -> Sequence[Path]:
        """The folders that are made for its files in a project, the inner one first."""
        return ()

    def holds_secret(self, wanted: Wanted) -> bool:
        """Whether the entry has the token in clear, so that nobody else may read the file."""
        return False

    @abstractmethod
    def after(self, wanted: Wanted) -> list[str]:
        """What there is to do once the entry is there."""

    def kind(self, entry: Mapping[str, Any]) -> str | None:
        """How an entry that is Postroom's reaches it, None for somebody else's."""
        words = self.command(entry)
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            started = any(Path(one).name == NAME and two == "mcp" for one, two in pairwise(words))
            return Via.STDIO if started else None
        url = entry.get("url")
        if words is None and isinstance(url, str) and _is_ours(url, entry):
            return Via.HTTP
        return None

    def arguments(self, wanted: Wanted, text: str) -> list[str]:
        """The words after the program's name, with those that its user added to what is there. Raises ValueError."""
        entry = self.entry(text)
        words = None if entry is None else self.command(entry)
        added = list(words[1:]) if isinstance(words, list) and "mcp" in words[1:] else []
        added = added[added.index("mcp") + 1 :] if added else []
        pushes = ["--channel"] if wanted.channel or "--channel" in added else []
        return ["mcp", *pushes, _URL, wanted.daemon, _TOKEN_FILE, str(wanted.token_file), *_without_ours(added)]

    def own(self, text: str, path: Path) -> Mapping[str, Any] | None:
        """The entry that is Postroom's, None for none. Raises Misconfigured, and Conflict for somebody else's."""
        try:
            entry = self.entry(text)
        except ValueError as error:
            raise broken(path, error) from None
        if entry is not None and self.kind(entry) is None:
            raise Conflict(
                f"{path}: {self.at} is there and starts something else than Postroom; it is left as it is",
                field="config",
                hint=f"Rename or remove {self.at} in that file, then run this again.",
            )
        return entry


def _without_ours(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in {_URL, _TOKEN_FILE}:
            next(rest, None)
        elif word != "--channel" and not word.startswith((f"{_URL}=", f"{_TOKEN_FILE}=")):
            kept.append(word)
    return kept


def broken(path: Path, error: ValueError) -> Misconfigured:
    """The error for a text that cannot be edited, which names the file and what is wrong with it."""
    return Misconfigured(
        f"{path}, {error}; the file is left as it is",
        field="config",
        hint="Mend that file, then run this again.",
    )


def _is_ours(url: str, entry: Mapping[str, Any]) -> bool:
    try:
        parts = urlsplit(url)
        here = parts.hostname in {"localhost", "::1"} or (parts.hostname or "").startswith("127.")
    except ValueError:
        return False
    shown = str([value for key, value in entry.items() if key != "url"])
    return parts.path.rstrip("/") == "/mcp" and (here or "POSTROOM_" in shown or "tk_" in shown)


def program() -> str:
    """The absolute path of `postroom`, to be started by others. Raises Misconfigured when there is none."""
    beside = Path(sys.executable).with_name("postroom")
    found = shutil.which("postroom")
    # The one on the path may be a link that outlives this environment's next upgrade.
    if found is not None and (not beside.exists() or os.path.realpath(found) == os.path.realpath(beside)):
        return os.path.abspath(found)
    if beside.exists():
        return str(beside)
    raise Misconfigured(
        f"there is no postroom command beside {sys.executable}, nor on the path",
        field="command",
        hint="Install Postroom as a package, so that the command is there.",
    )
