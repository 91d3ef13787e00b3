"""`python -m bench.pane_peer SOCKET`: a program in a pane that takes bracketed pastes, and tells when one came.

For each paste a datagram with the moment of its first byte (ns, by the clock that all processes of a machine share) goes
to the Unix socket; Enter empties its line again.
"""

from __future__ import annotations

import os
import socket
import sys
import termios
import time
import tty

START, END = b"\x1b[200~", b"\x1b[201~"
PROMPT = b"\x1b[?2004h\r\x1b[J> "


def main(place: str) -> None:
    """Read until the pane ends."""
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.connect(place)
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        os.write(1, PROMPT)
        held = b""
        while data := os.read(0, 65536):
            came = time.perf_counter_ns()
            if START in data:
                told.send(b"%d" % came)
            held += data
            if START in held and END not in held:
                continue
            if held.endswith(b"\r"):
                os.write(1, PROMPT)
            else:
                os.write(1, held.replace(START, b"").replace(END, b"").replace(b"\r", b"\r\n").replace(b"\n", b"\r\n"))
            held = b""
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


if __name__ == "__main__":
    main(sys.argv[1])
