"""A client's configuration file as it was found: shown as a difference, replaced whole or not at all, kept beside it."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from postroom.doors.cli.settings_file import unwritable
from postroom.errors import Conflict, Misconfigured
from postroom.text import printable

BACKUP: Final = ".postroom-backup"
MAX_BYTES: Final = 64 * 1024 * 1024
SHOWN: Final = 300
"""How much of a line a difference shows; some clients keep all they have in one."""

_SECRET: Final = re.compile(r"tk_[A-Za-z0-9_-]{8,}")


class ConfigFile:
    """One file as it was when it was read; one that is not there has no text.

    Raises Misconfigured for what is no readable text file, naming it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw, self._status = _read(path)
        try:
            self.text = "" if self._raw is None else self._raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise Misconfigured(
                f"{path} line {line}: expected UTF-8 text; the file is left as it is", field="config"
            ) from None

    @property
    def there(self) -> bool:
        """Whether there is such a file."""
        return self._raw is not None

    @property
    def backup(self) -> Path:
        """Where the file goes, as it was, before it is changed."""
        return self.path.with_name(self.path.name + BACKUP)

    def open_to_others(self) -> int | None:
        """The mode of a file that others than its owner may read, None where it is the owner's alone or not there."""
        mode = None if self._status is None else stat.S_IMODE(self._status.st_mode)
        return mode if mode is not None and mode & 0o077 else None

    def broken(self, why: object) -> Misconfigured:
        """The error for a text that cannot be edited."""
        return Misconfigured(f"{self.path} {why}; the file is left as it is", field="config")

    def difference(self, text: str | None) -> str:
        """What a new text changes, in the form that `diff -U0` gives; secrets are masked, long lines cut."""
        old = _lines(self.text) if self.there else []
        new = [] if text is None else _lines(text)
        first = 0
        while first < min(len(old), len(new)) and old[first] == new[first]:
            first += 1
        last = 0
        while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
            last += 1
        gone, come = old[first : len(old) - last], new[first : len(new) - last]
        if not gone and not come:
            return ""
        head = [
            f"--- {self.path if self.there else '/dev/null'}",
            f"+++ {'/dev/null' if text is None else self.path}",
            f"@@ -{_span(first, gone)} +{_span(first, come)} @@",
        ]
        return "\n".join([*head, *(f"-{_shown(one)}" for one in gone), *(f"+{_shown(one)}" for one in come)])

    def write(self, text: str | None, mode: int, *, keep: bool = True) -> Path | None:
        """The text that was read -> this one; gives where the former is kept, None for nowhere, as without `keep`.

        None is for no file any more, which is for one that holds nothing but what is taken away: it is not kept. A file
        that is there keeps its mode, its owner and its place behind a link; `mode` is for a new one. Raises Conflict when the
        file is no longer what was read, Misconfigured when it cannot be written.
        """
        target = Path(os.path.realpath(self.path))
        try:
            if self._status is None:
                if text is not None:
                    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    self._create(target, text, mode)
                return None
            if text is None:
                self._unchanged()
                target.unlink()
                return None
            if keep:
                self._place(self.backup, self._raw or b"", check=False)
            self._place(target, text.encode("utf-8"), check=True)
        except OSError as error:
            raise unwritable(self.path, error, "config", why=_why(error)) from None
        return self.backup if keep else None

    def _unchanged(self) -> None:
        if _read(self.path)[0] != self._raw:
            raise Conflict(
                f"{self.path} was changed by another program meanwhile, and is left as it is",
                field="config",
                hint="Run this again.",
            )

    def _create(self, target: Path, text: str, mode: int) -> None:
        temporary = _temporary(target, text.encode("utf-8"), mode, None)
        try:
            # Unlike a rename, a link never takes the place of a file that came to be meanwhile.
            os.link(temporary, target)
        except FileExistsError:
            self._unchanged()
            raise
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}:
                raise
            # A file system without links: the moment between looking and renaming stays.
            self._unchanged()
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, target: Path, content: bytes, *, check: bool) -> None:
        assert self._status is not None
        temporary = _temporary(target, content, stat.S_IMODE(self._status.st_mode), self._status)
        try:
            if check:
                self._unchanged()
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def masked(text: str) -> str:
    """The text with every token's secret hidden."""
    return _SECRET.sub("tk_…", text)


def _read(path: Path) -> tuple[bytes | None, os.stat_result | None]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no ordinary file"
            raise Misconfigured(f"{path} is {kind}; expected a file", field="config")
        if status.st_size > MAX_BYTES:
            raise Misconfigured(f"{path} has {status.st_size} bytes; expected at most {MAX_BYTES}", field="config")
        return path.read_bytes(), status
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {_why(error)}", field="config") from None


def _temporary(target: Path, content: bytes, mode: int, like: os.stat_result | None) -> Path:
    """A file with this content beside the target, on the disk, with the mode and the owner it is to have."""
    path = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if like is not None and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "its symbolic links lead in a circle"
    return error.strerror or str(error)


def _span(first: int, lines: list[str]) -> str:
    # An empty side names the line before it, as diff does.
    return f"{first + 1 if lines else first},{len(lines)}"


def _lines(text: str) -> list[str]:
    # Not splitlines: a string of JSON may hold what Unicode calls a line's end.
    return text.removesuffix("\n").split("\n") if text else []


def _shown(line: str) -> str:
    line = printable(masked(line).removesuffix("\r"))
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"
