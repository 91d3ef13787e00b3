"""One process for one SQLite file: an exclusive lock beside it that names its holder (RULINGS 18)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from postroom.errors import Misconfigured


class FileLock:
    """The lock `<database>.lock`, held by flock from `acquire` to `release`; the kernel frees it when its holder dies."""

    def __init__(self, database: Path) -> None:
        self.path = Path(f"{Path(os.path.realpath(database))}.lock")
        self._handle: int | None = None

    def acquire(self) -> None:
        """Free -> held by this process; raises Misconfigured naming the holder's pid when it is held."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise Misconfigured(
                f"{self.path} is held by process {holder}: one process at a time opens an SQLite file; "
                "reach that daemon with postroom.Client, or stop it first",
                field="database",
                pid=holder,
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle

    def release(self) -> None:
        """Held -> free."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
