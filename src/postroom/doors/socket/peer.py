"""Who is at the other end of a Unix socket: the kernel's word for it, not the peer's (T2)."""

from __future__ import annotations

import socket
import struct
import sys

_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_UCRED = struct.Struct("3i")
_XUCRED = struct.Struct("2I")


def peer_uid(connection: socket.socket) -> int | None:
    """The user that the peer's process runs as; None where the platform does not tell."""
    try:
        if sys.platform == "darwin" or "bsd" in sys.platform:
            _, uid = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)[: _XUCRED.size])
            return int(uid)
        _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return int(uid)
    except (AttributeError, OSError, struct.error):
        return None
