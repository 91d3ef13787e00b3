"""One process for one SQLite file: the lock beside it (RULINGS 18)."""

from __future__ import annotations

import os
from pathlib import Path

from postroom.errors import Misconfigured
from postroom.lock import FileLock


def database_lock(database: Path) -> FileLock:
    """The lock `<database>.lock`, wherever the path leads; Misconfigured names the holder's pid when it is held."""
    path = Path(f"{Path(os.path.realpath(database))}.lock")

    def held(holder: str) -> Misconfigured:
        return Misconfigured(
            f"{path} is held by process {holder}: one process at a time opens an SQLite file; "
            "reach that daemon with postroom.Client, or stop it first",
            field="database",
            pid=holder,
        )

    return FileLock(path, held)
