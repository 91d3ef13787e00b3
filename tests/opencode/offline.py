"""Runs a command where nothing but loopback can be reached: `python -m tests.opencode.offline COMMAND …`.

It takes a network namespace of its own, where the system allows one; elsewhere it says so and runs the command as it is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

INSIDE = "POSTROOM_TEST_OFFLINE"

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_ALONE = ["unshare", "--map-root-user", "--net"]


def raise_loopback() -> None:
    """Down, as it is in a new namespace -> up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        name = b"lo".ljust(16, b"\0")
        answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, name + bytes(24))
        (flags,) = struct.unpack_from("h", answer, 16)
        fcntl.ioctl(asked, _SIOCSIFFLAGS, name + struct.pack("h", flags | _IFF_UP) + bytes(22))


def main(command: list[str]) -> None:
    """Become the command."""
    if os.environ.get(INSIDE):
        raise_loopback()
        os.execvp(command[0], command)
    possible = shutil.which("unshare") is not None
    if possible and subprocess.run([*_ALONE, "true"], capture_output=True, timeout=30, check=False).returncode == 0:
        os.environ[INSIDE] = "1"
        os.execvp(_ALONE[0], [*_ALONE, sys.executable, "-m", "tests.opencode.offline", *command])
    print(
        "no network namespace can be made here: nothing but their settings keeps the clients to loopback",
        file=sys.stderr,
    )
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
