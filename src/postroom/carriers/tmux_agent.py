"""The programs that sit in panes, as data: how each is known, when it takes a message, and how a message is submitted."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from postroom.carriers.terminal_text import Envelope, squeeze
from postroom.carriers.tmux_pane import Front
from postroom.carriers.tmux_screen import Screen
from postroom.errors import Misconfigured

GENERIC: Final = "generic"
SHELL: Final = "shell"
_SUBMIT: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,15}")
_NOTHING: Final = re.compile(r"(?!)")


class Manner(StrEnum):
    """What a screen shows of its program."""

    WAITING = "waiting"
    WORKING = "working"
    DIALOG = "dialog"
    DRAFT = "draft"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class Agent:
    """The rules for one program. Times in ms; the patterns are searched row by row in the last `rows` rows.

    processes: the names it is known by. shell: it runs what it is given, and an agent that left it in front has ended;
    quoted: a message is quoted for it. always: it takes bracketed pastes whenever it is in front.
    ready, busy, dialog: patterns, any of which says so; no `ready` needs none.
    replaced: dialogs take the composer's place. composer: what begins the row where it is written to, up to
    `composer_end`; or each row of the box that stands on `box_end`, its last `box_foot` rows left out. Without either
    the cursor stands after `prompt`, and `continued` is a prompt in the middle of something. hint: what an empty composer
    shows. pasted: what stands for a long paste, blanks left out. submit: tmux's name of the key. enter: the pause before
    it, and so much more for each line.
    """

    name: str
    title: str
    processes: frozenset[str]
    shell: bool
    quoted: bool
    always: bool
    rows: int
    ready: re.Pattern[str] | None
    busy: re.Pattern[str]
    dialog: re.Pattern[str]
    replaced: bool
    composer: re.Pattern[str] | None
    composer_end: re.Pattern[str]
    box_end: re.Pattern[str] | None
    box_foot: int
    hint: re.Pattern[str]
    pasted: re.Pattern[str]
    prompt: re.Pattern[str]
    continued: re.Pattern[str]
    submit: str
    quiet: int
    enter: int
    enter_a_line: int
    enter_most: int

    def pause(self, lines: int) -> float:
        """How long to wait between a paste of so many lines and its submission, in seconds."""
        return min(self.enter + self.enter_a_line * lines, self.enter_most) / 1000

    def manner(self, screen: Screen) -> Manner:
        """What the screen shows: a dialog before all, for it must never be answered."""
        bottom = screen.bottom(self.rows)
        if self.asks(screen):
            return Manner.DIALOG
        if any(self.busy.search(row) for row in bottom):
            return Manner.WORKING
        if self.ready is not None and not any(self.ready.search(row) for row in bottom):
            return Manner.STARTING
        if self.composer is not None:
            draft = self.draft(screen)
            if draft is None:
                return Manner.STARTING
            return Manner.DRAFT if draft else Manner.WAITING
        before = screen.before_cursor
        if self.continued.search(before) or screen.after_cursor:
            return Manner.DRAFT
        return Manner.WAITING if self.prompt.search(before) else Manner.DRAFT

    def asks(self, screen: Screen) -> bool:
        """Whether a dialog is open; where dialogs take the composer's place, words above a composer are no dialog."""
        rows: Sequence[str] = screen.bottom(self.rows)
        if self.replaced and self.composer is not None:
            begin = _last(screen, self.composer)
            rows = rows if begin is None else screen.rows[begin:]
        return any(self.dialog.search(row) for row in rows)

    def draft(self, screen: Screen) -> str | None:
        """What stands in the composer, squeezed, faint text left out; None where none is on the screen."""
        if self.composer is None:
            return None
        text = _row(screen, self.composer, self.composer_end) if self.box_end is None else self._boxed(screen)
        return None if text is None else squeeze(self.hint.sub("", text))

    def _boxed(self, screen: Screen) -> str | None:
        """What stands in the box that is drawn last, no wider than the line it stands on."""
        assert self.composer is not None
        assert self.box_end is not None
        number = _last(screen, self.box_end)
        found = None if number is None else self.box_end.search(screen.rows[number])
        if number is None or found is None:
            return None
        top = number
        while top and self.composer.search(screen.rows[top - 1]):
            top -= 1
        inside = screen.bright[top : max(number - self.box_foot, top)]
        return "".join(row[found.start() : found.end()] for row in inside)

    def unsent(self, screen: Screen, envelope: Envelope) -> bool:
        """Whether this very message lies there, pasted and not submitted."""
        draft = self.draft(screen)
        if draft is None:
            return self.composer is None and screen.ends_before_cursor(envelope.tail)
        return envelope.beginning in draft or envelope.tail in draft or self.pasted.search(draft) is not None


def _last(screen: Screen, pattern: re.Pattern[str]) -> int | None:
    """The number of the last row that holds the pattern."""
    return next((number for number in reversed(range(len(screen.rows))) if pattern.search(screen.rows[number])), None)


def _row(screen: Screen, begin: re.Pattern[str], end: re.Pattern[str]) -> str | None:
    """What follows the last row that begins so, down to a row that ends it."""
    number = _last(screen, begin)
    found = None if number is None else begin.search(screen.rows[number])
    if number is None or found is None:
        return None
    text = screen.bright[number][found.end() :]
    for row, clear in zip(screen.rows[number + 1 :], screen.bright[number + 1 :], strict=True):
        if end.search(row):
            break
        text += clear
    return text


class Agents:
    """All that are known, by name."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        self.by_name = agents
        self._by_process = {process: agent for agent in agents.values() for process in agent.processes}

    def known(self, front: Front) -> Agent:
        """The rules for the program in front; those of `generic` when it is none of the known."""
        for name in front.names:
            found = self._by_process.get(name)
            if found is not None:
                return found
        return self.by_name[GENERIC]


def load_agents(*folders: Path) -> Agents:
    """One file a program, from the package and then from these folders; a later one wins. Raises Misconfigured."""
    found: dict[str, Agent] = {}
    for folder in (Path(__file__).with_name("agents"), *folders):
        for file in sorted(folder.glob("*.toml")):
            found[file.stem] = _read(file)
    return Agents(found)


def _read(file: Path) -> Agent:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{file}: {error}", field=str(file)) from None
    take = _Table(file, table)
    submit = take.text("submit", "Enter")
    if not _SUBMIT.fullmatch(submit):
        raise Misconfigured(f"{file}: submit is expected to be tmux's name of a key", field="submit")
    agent = Agent(
        name=file.stem,
        title=take.text("title", file.stem),
        processes=frozenset(take.texts("processes")),
        shell=take.flag("shell") or file.stem == SHELL,
        quoted=take.flag("quoted"),
        always=take.flag("always_takes_pastes"),
        rows=take.number("rows", 24),
        ready=take.pattern("ready"),
        busy=take.pattern("busy") or _NOTHING,
        dialog=take.pattern("dialog") or _NOTHING,
        replaced=take.flag("dialogs_replace_composer"),
        composer=take.pattern("composer"),
        composer_end=take.pattern("composer_end") or _NOTHING,
        box_end=take.pattern("box_end"),
        box_foot=take.number("box_foot", 0),
        hint=take.pattern("hint") or _NOTHING,
        pasted=take.pattern("pasted") or _NOTHING,
        prompt=take.pattern("prompt") or _NOTHING,
        continued=take.pattern("continued") or _NOTHING,
        submit=submit,
        quiet=take.number("quiet_ms", 300),
        enter=take.number("enter_ms", 200),
        enter_a_line=take.number("enter_ms_per_line", 10),
        enter_most=take.number("enter_most_ms", 1500),
    )
    take.all_taken()
    return agent


class _Table:
    """A file's table, read key by key, each by its type."""

    def __init__(self, file: Path, table: dict[str, Any]) -> None:
        self._file = file
        self._left = table

    def text(self, key: str, default: str) -> str:
        value = self._left.pop(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts")
        return value

    def flag(self, key: str) -> bool:
        value = self._left.pop(key, False)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def number(self, key: str, default: int) -> int:
        value = self._left.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10_000:
            raise self._wrong(key, "a number of 0 to 10000")
        return value

    def pattern(self, key: str) -> re.Pattern[str] | None:
        texts = self.texts(key)
        try:
            return re.compile("|".join(f"(?:{text})" for text in texts)) if texts else None
        except re.error as error:
            raise self._wrong(key, f"regular expressions: {error}") from None

    def all_taken(self) -> None:
        for key in self._left:
            raise Misconfigured(f"{self._file}: {key} is unknown", field=key)

    def _wrong(self, key: str, expected: str) -> Misconfigured:
        return Misconfigured(f"{self._file}: {key} is expected to be {expected}", field=key)
