"""The Unix socket at its path: bound so that it never stands there with another mode, one daemon's at a time (T1, B26)."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from postroom.errors import Misconfigured
from postroom.lock import FileLock

MAX_PATH = 103
"""A Unix socket's path is at most 107 bytes on Linux and 103 on BSD."""


class BoundSocket:
    """A listening socket of mode 0600 at a path, and the lock beside it that says whose the path is.

    It is bound under a name of its own, listens there, and is renamed into place: whoever finds the path gets an answer,
    and nobody finds it open to others. A stale socket is replaced, a live one never.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._lock = FileLock(path.with_name(f"{path.name}.lock"), self._held_by)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        path = self.path
        temporary = path.with_name(f".{os.getpid():x}")
        for name in (path, temporary):
            if len(os.fsencode(name)) > MAX_PATH:
                raise Misconfigured(f"socket: {name} is longer than {MAX_PATH} bytes", field="socket")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = path.parent.stat()
            if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
                raise Misconfigured(f"socket: others may write to the folder {path.parent}", field="socket")
            self._lock.acquire()
            self._look()
            # What a process of this number left behind when it was killed is of no use to anybody.
            temporary.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                self.listener.bind(str(temporary))
            finally:
                os.umask(before)
            self.listener.listen(1024)
            self.listener.setblocking(False)
            os.replace(temporary, path)
        except OSError as error:
            raise Misconfigured(f"socket: cannot bind {path}: {error.strerror or error}", field="socket") from None
        self._identity = _identity(path)

    def _held_by(self, holder: str) -> Misconfigured:
        words = f"socket: another daemon answers on {self.path}: process {holder}"
        return Misconfigured(words, field="socket", pid=holder)

    def _look(self) -> None:
        """Pass a path where nothing stands, or a socket that nobody answers on."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise Misconfigured(f"socket: {self.path} is there and is no socket", field="socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.path))
            except (ConnectionRefusedError, FileNotFoundError):
                return
            except (BlockingIOError, TimeoutError):
                pass
            except OSError as error:
                words = f"socket: something else may listen on {self.path}: {error.strerror or error}"
                raise Misconfigured(words, field="socket") from None
        raise Misconfigured(f"socket: another daemon answers on {self.path}", field="socket")

    def close(self) -> None:
        """Let go of the socket, of the path when it is still ours, and of the lock."""
        if self._identity is not None and _identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)
        self._identity = None
        self.listener.close()
        self._lock.release()


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path is now; another daemon may have put its own there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
