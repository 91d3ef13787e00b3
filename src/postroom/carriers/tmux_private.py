"""The private folder of this user's terminal writers: one lock a pane, and files that only this user reads."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from postroom.errors import Unavailable

KEEP_LETTERS_S: Final = 14 * 24 * 3600
_POLL_S: Final = 0.02


def private_folder() -> Path:
    """Where every writer of this user on this host looks for a pane's lock, whatever its settings are."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "postroom"
    return Path(tempfile.gettempdir()) / f"postroom-{os.geteuid()}"


class PrivateFolder:
    """A folder that only this user may enter, made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """A place in the folder. Raises Unavailable when it is not this user's alone."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.lstat()
        except OSError as error:
            raise Unavailable(f"the folder {self.folder} cannot be made: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Unavailable(f"the folder {self.folder} is expected to be this user's alone, with mode 0700")
        return self.folder / name

    def put(self, name: str, data: bytes) -> Path:
        """A new file of mode 0600 with this content; one that stands there is replaced. Raises Unavailable."""
        path = self.path(name)
        fresh = path.with_name(f"{name}.{os.getpid()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            fresh.rename(path)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error.strerror}") from None
        return path

    def sweep(self) -> None:
        """Letters and pastes that nobody needs any more -> removed; what cannot be is left.

        Raises Unavailable when the folder is not this user's alone: nothing can be written to a pane either.
        """
        if not self.folder.is_dir():
            return
        oldest = time.time() - KEEP_LETTERS_S
        try:
            files = list(self.path("").iterdir())
        except OSError as error:
            raise Unavailable(f"the folder {self.folder} cannot be read: {error.strerror}") from None
        for file in files:
            with contextlib.suppress(OSError):
                if file.name.startswith(("letter-", "paste-")) and file.lstat().st_mtime < oldest:
                    file.unlink()

    @contextlib.asynccontextmanager
    async def lock(self, key: str, seconds: float) -> AsyncIterator[bool]:
        """Nobody's -> held by this writer alone, among all processes of this user; False when it is not to be had."""
        path = self.path(f"lock-{hashlib.sha256(key.encode()).hexdigest()[:32]}")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"{path} cannot be opened: {error.strerror}") from None
        try:
            yield await _locked(handle, seconds)
        finally:
            os.close(handle)


async def _locked(handle: int, seconds: float) -> bool:
    end = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(_POLL_S)
        else:
            return True
