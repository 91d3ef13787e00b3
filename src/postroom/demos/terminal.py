"""The stand-in's screen: what was said, what goes on, and a prompt at its foot that takes keys and bracketed pastes."""

from __future__ import annotations

import asyncio
import codecs
import os
import termios
import textwrap
import tty
from typing import Any, Final

PROMPT: Final = "❯ "
RULE: Final = "─"
BEGIN, END = "\x1b[200~", "\x1b[201~"
_ENTER: Final = "\r"
_ERASE: Final = "\x7f"


class Terminal:
    """The terminal on stdin and stdout, taken raw while it is entered; what is submitted waits in `submitted`."""

    def __init__(self, title: str) -> None:
        self.submitted: asyncio.Queue[str] = asyncio.Queue()
        self.ended = asyncio.Event()
        self._transcript = [title]
        self._doing: str | None = "Starting"
        self._ready = False
        self._draft = ""
        self._paste: str | None = None
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[Any] = []

    def __enter__(self) -> Terminal:
        self._before = termios.tcgetattr(0)
        tty.setraw(0)
        asyncio.get_running_loop().add_reader(0, self._read)
        _write("\x1b[?1049h")
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(0)
        _write("\x1b[?2004l\x1b[?1049l")
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def begin(self) -> None:
        """Starting -> at its prompt, taking pastes."""
        self._ready = True
        _write("\x1b[?2004h")
        self.doing(None)

    def doing(self, what: str | None) -> None:
        """Show what goes on, or with None that nothing does."""
        self._doing = what
        self._draw()

    def say(self, text: str) -> None:
        """A further line, or several, above the prompt."""
        self._transcript += text.split("\n")
        self._draw()

    def _read(self) -> None:
        try:
            data = os.read(0, 65536)
        except OSError:
            data = b""
        if not data:
            self.ended.set()
            asyncio.get_running_loop().remove_reader(0)
            return
        self._take(self._rest + self._decoder.decode(data))
        self._draw()

    def _take(self, text: str) -> None:
        """Keys, and pastes between their marks; a mark that is not whole yet waits for its rest."""
        self._rest = ""
        while text:
            mark = BEGIN if self._paste is None else END
            if text.startswith(mark):
                text = text[len(mark) :]
                if self._paste is None:
                    self._paste = ""
                else:
                    self._draft += self._paste.replace(_ENTER, "\n")
                    self._paste = None
            elif mark.startswith(text):
                self._rest = text
                return
            elif self._paste is None:
                self._key(text[0])
                text = text[1:]
            else:
                inside, escape, after = text[1:].partition("\x1b")
                self._paste += text[0] + inside
                text = escape + after

    def _key(self, key: str) -> None:
        if key == _ENTER:
            text, self._draft = self._draft, ""
            if text:
                self._transcript += ["", *_indented(text, "> ")]
                self.submitted.put_nowait(text)
        elif key == _ERASE:
            self._draft = self._draft[:-1]
        elif key.isprintable():
            self._draft += key

    def _draw(self) -> None:
        columns, height = os.get_terminal_size(1)
        foot = [""]
        if self._doing is not None:
            foot = ["", f"* {self._doing}…"]
        if self._ready:
            foot += [RULE * columns, *_indented(self._draft, PROMPT), RULE * columns]
        rows = [row for line in [*self._transcript, *foot] for row in _cut(line, columns)][-height:]
        _write("\x1b[?25l\x1b[H" + "\r\n".join(f"{row}\x1b[K" for row in rows) + "\x1b[J")


def _indented(text: str, first: str) -> list[str]:
    begin, *others = text.split("\n")
    return [first + begin, *(" " * len(first) + line for line in others)]


def _cut(line: str, columns: int) -> list[str]:
    """The rows that a line fills; what could act on the terminal is shown as a dot."""
    line = "".join(character if character.isprintable() else "·" for character in line)
    return textwrap.wrap(line, columns, subsequent_indent="  ", break_on_hyphens=False) or [""]


def _write(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]
