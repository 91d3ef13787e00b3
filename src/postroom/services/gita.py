"""The gita registry: which repositories this machine knows, read from gita's own file and nothing else (T14).

gita keeps `repos.csv` in the first of $GITA_PROJECT_HOME, $XDG_CONFIG_HOME and ~/.config that is set, under `gita/`:
rows of path, name, type and flags, without a header. It shows no row whose path is no repository any more; neither do we.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from postroom.errors import Invalid, Unavailable

MAX_BYTES = 16 * 1024 * 1024
"""A larger file is no registry."""


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: tuple[int, int, int]
    paths: Mapping[str, str]


class GitaRegistry:
    """The registry as it stands now: read again whenever its file has changed, matched exactly and case for case."""

    def __init__(self, file: Path, *, required: bool = True) -> None:
        self.file = file
        self.required = required
        self._name = str(file)
        self._read: _Read | None = None

    def check(self, slug: str, field: str) -> None:
        """Pass a registered slug. Raises Unavailable for a registry that is missing or unreadable, Invalid for a stranger.

        Where the registry is not required anything passes: repositories are then those that endpoints declare.
        """
        if not self.required:
            return
        path = self._paths().get(slug)
        if path is None or not _is_repository(path):
            raise Invalid(
                f"{field} {slug[:64]!r} is not registered in {self.file}; `gita add PATH` registers a repository",
                field=field,
                reason="not_registered",
            )

    def slug_of(self, folder: Path) -> str | None:
        """The registered repository that this folder lies in, the innermost one; None where there is none.

        Raises Unavailable for a registry that is there and cannot be read.
        """
        try:
            paths = self._paths()
        except Unavailable as error:
            if error.details.get("reason") == "registry_missing":
                return None
            raise
        here = folder.resolve()
        found = {slug: Path(path).resolve() for slug, path in paths.items()}
        inside = {slug: path for slug, path in found.items() if here.is_relative_to(path)}
        return max(inside, key=lambda slug: len(inside[slug].parts), default=None)

    def _paths(self) -> Mapping[str, str]:
        try:
            found = os.stat(self._name)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._read is not None and self._read.stamp == stamp:
                return self._read.paths
            if found.st_size > MAX_BYTES:
                raise self._unreadable(f"it has {found.st_size} bytes")
            text = self.file.read_bytes().decode("utf-8")
            paths = {row[1]: row[0] for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row}
        except FileNotFoundError:
            raise Unavailable(
                f"there is no gita registry {self.file}; register repositories with `gita add PATH`, or set "
                "`[gita] required = false`",
                reason="registry_missing",
            ) from None
        except OSError as error:
            raise self._unreadable(error.strerror or "it cannot be opened") from None
        except UnicodeDecodeError:
            raise self._unreadable("it is not UTF-8") from None
        except (csv.Error, IndexError) as error:
            raise self._unreadable(f"it is no table of paths and names: {error}") from None
        self._read = _Read(stamp, paths)
        return paths

    def _unreadable(self, why: str) -> Unavailable:
        return Unavailable(f"the gita registry {self.file} cannot be read: {why}", reason="registry_unreadable")


def registry_file(environ: Mapping[str, str], home: Path) -> Path:
    """Where gita looks for its registry."""
    for variable in ("GITA_PROJECT_HOME", "XDG_CONFIG_HOME"):
        if environ.get(variable):
            return Path(environ[variable]) / "gita" / "repos.csv"
    return home / ".config" / "gita" / "repos.csv"


def _is_repository(path: str) -> bool:
    """A working tree, a worktree whose .git is a file, or a bare repository."""
    return os.path.exists(f"{path}/.git") or (os.path.isfile(f"{path}/HEAD") and os.path.isdir(f"{path}/objects"))
