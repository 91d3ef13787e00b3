"""A stand-in for an agent's terminal program, as agents behave: plain Python, so that it runs as whatever it is called.

It takes bracketed pastes, shows a long one as a placeholder, swallows a submission that comes too soon after a paste,
asks for permission in a dialog that Enter answers, works with a spinner, starts slowly, and leaves its shell behind.
What is submitted or answered goes to a log of JSON lines; orders come through a FIFO, one a line.

Usage: agent_tui.py LOG FIFO [--slow]
"""

import codecs
import json
import os
import select
import sys
import termios
import time
import tty

SWALLOWED_S = 0.12
FEW_LINES = 3
FEW_CHARACTERS = 400
RULE = "─"
START, END = "\x1b[200~", "\x1b[201~"


class Tui:
    def __init__(self, log: str, fifo: str, slow: bool) -> None:
        self.log = log
        self.orders = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""
        self.paste: str | None = None
        self.pasted_at = 0.0
        self.pastes: dict[str, str] = {}
        self.draft = ""
        self.transcript: list[str] = ["Welcome to the stand-in"]
        self.working = False
        self.works_after = False
        self.dialog = False
        self.slow = slow
        self.deaf = False
        self.running = True

    def note(self, **fact: object) -> None:
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(fact) + "\n")

    def run(self) -> None:
        before = termios.tcgetattr(0)
        tty.setraw(0)
        self.write("\x1b[?1049h")
        try:
            if not self.slow:
                self.begin()
            self.draw()
            while self.running:
                readable, _, _ = select.select([self.orders] if self.deaf else [0, self.orders], [], [], 1.0)
                if self.orders in readable:
                    for order in os.read(self.orders, 4096).decode().splitlines():
                        self.obey(order)
                if 0 in readable:
                    data = os.read(0, 65536)
                    if not data:
                        return
                    self.take(self.decoder.decode(data))
                self.draw()
        finally:
            self.write("\x1b[?2004l\x1b[?1049l")
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    def begin(self) -> None:
        self.slow = False
        self.write("\x1b[?2004h")

    def obey(self, order: str) -> None:
        word, _, rest = order.partition(" ")
        if word == "begin":
            self.begin()
        elif word == "work":
            self.working = True
        elif word == "rest":
            self.working = False
        elif word == "work-after":
            self.works_after = True
        elif word == "dialog":
            self.dialog = True
        elif word == "no-dialog":
            self.dialog = False
        elif word == "draft":
            self.draft = rest
        elif word == "say":
            self.transcript.append(rest)
        elif word == "deaf":
            self.deaf = True
        elif word == "hear":
            self.deaf = False
        elif word == "exit":
            self.running = False
        self.note(obeyed=order)

    def take(self, text: str) -> None:
        text = self.rest + text
        self.rest = ""
        while text:
            if self.paste is not None:
                inside, end, text = text.partition(END)
                if not end:
                    kept = next((n for n in range(len(END) - 1, 0, -1) if inside.endswith(END[:n])), 0)
                    self.paste += inside[: len(inside) - kept]
                    self.rest = inside[len(inside) - kept :]
                    return
                self.pasted(self.paste + inside)
                self.paste = None
            elif text.startswith(START):
                text = text[len(START) :]
                self.paste = ""
            elif START.startswith(text):
                self.rest = text
                return
            else:
                self.key(text[0])
                text = text[1:]

    def pasted(self, text: str) -> None:
        if self.dialog or self.slow:
            self.note(dropped=text)
            return
        text = text.replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines > FEW_LINES or len(text) > FEW_CHARACTERS:
            name = f"[Pasted text #{len(self.pastes) + 1} +{lines} lines]"
            self.pastes[name] = text
            self.draft += name
        else:
            self.draft += text
        self.pasted_at = time.monotonic()

    def key(self, key: str) -> None:
        if key < " " and key != "\r":
            self.note(control=key)
        if self.dialog:
            if key == "\r":
                self.dialog = False
                self.note(answered="yes")
            return
        if key != "\r":
            self.draft += key
        elif time.monotonic() - self.pasted_at < SWALLOWED_S or self.slow:
            self.draft += "\n"
            self.note(swallowed=True)
        else:
            self.submit()

    def submit(self) -> None:
        text = self.draft
        for name, paste in self.pastes.items():
            text = text.replace(name, paste)
        self.note(submitted=text)
        self.transcript.append(f"❯ {self.draft}")
        self.draft = ""
        self.working = self.works_after

    def draw(self) -> None:
        columns, height = os.get_terminal_size()
        below: list[str] = []
        if self.slow:
            below = ["Starting…"]
        elif self.dialog:
            below = [RULE * columns, "Do you want to proceed?", "❯ 1. Yes", "  2. No", "Esc to cancel"]
        else:
            if self.working:
                below.append("✻ Thinking… (3s · esc to interrupt)")
            typed = self.draft.split("\n") if self.draft else ['\x1b[2mTry "fix the tests"\x1b[22m']
            below += ["", RULE * columns, f"❯ {typed[0]}", *(f"  {line}" for line in typed[1:])]
            below += [RULE * columns, "  ? for shortcuts"]
        above = [line for entry in self.transcript for line in entry.split("\n")]
        rows: list[str] = []
        for line in [*above, *below]:
            if "\x1b" in line:
                rows.append(line)
            else:
                rows += [line[place : place + columns] for place in range(0, max(len(line), 1), columns)]
        rows = rows[-height:]
        self.write("\x1b[?25l\x1b[H\x1b[2J" + "\r\n".join(rows))

    def write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    Tui(sys.argv[1], sys.argv[2], "--slow" in sys.argv).run()
