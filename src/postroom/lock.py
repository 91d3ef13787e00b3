"""One process at a time: an exclusive lock on a file that names its holder (RULINGS 18, B26)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from postroom.errors import PostroomError


class FileLock:
    """The lock of a file, held by flock from `acquire` to `release`; the kernel frees it when its holder dies.

    held: the refusal, made from the holder's pid as text.
    """

    def __init__(self, path: Path, held: Callable[[str], PostroomError]) -> None:
        self.path = path
        self._held = held
        self._handle: int | None = None

    def acquire(self) -> None:
        """Free -> held by this process. Raises the refusal when another holds it, OSError when there can be no lock."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise self._held(holder) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle

    def release(self) -> None:
        """Held -> free."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
