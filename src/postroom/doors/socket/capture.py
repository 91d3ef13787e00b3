"""Protocol capture: what was asked of the socket and changed something, one JSON line each (T55; replayed by T49-T51).

Bodies stand in it, as they do in the database, so the file is its user's alone; what looks like a secret is left out.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from postroom.text import dump_json
from postroom.wire import show_time

KEPT = frozenset({"send", "ack", "retry", "register", "unregister"})
MAX_BYTES = 16 * 1024 * 1024
MOST_FILES = 3
LEFT_OUT = "[left out]"

_SECRET = re.compile(
    r"(?:signature|secrets?|passwords?|passwd|passphrase|authorization|cookies?|credentials?|api_?keys?|private_?keys?)"
    r"(?:_|$)"
)
_TOKEN = re.compile(r"token(?:_|$)|tokens$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BETWEEN = re.compile(r"[^a-z0-9]+")
_SHAPED = re.compile(
    r"\b(?:tk_|sk-|[sr]k_(?:live|test)_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|whsec_)[A-Za-z0-9_-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|\b(?i:bearer)\s+(?=\S*[0-9])[A-Za-z0-9._~+/-]{12,}=*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)

_SIGNS = (
    *("signature", "token", "secret", "passw", "passphrase", "authorization", "cookie", "credential", "apikey"),
    *("api_key", "api-key", "private", "bearer", "tk_", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_"),
    *("ghr_", "github_pat_", "glpat-", "xox", "whsec_", "akia", "asia", "aiza", "eyj"),
)
"""What a line has that holds a secret of any of these kinds: one that has none of it is not looked at any further."""

log = logging.getLogger("postroom.socket")


class Capture:
    """Writes exchanges to a 0600 file that is rotated at 16 MiB, with two older ones kept; `clock` gives ms UTC."""

    def __init__(self, path: Path, clock: Callable[[], int], *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self._handle: int | None = None
        self._size = 0
        self._failed = False

    def note(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Write one exchange down, if it is of a kind that is kept; a disk that refuses is told once and passed over."""
        op = request.get("op")
        if not isinstance(op, str) or op not in KEPT:
            return
        entry: dict[str, Any] = {"at": show_time(self._clock()), "request": request, "answer": answer}
        text = dump_json(entry)
        lowered = text.lower()
        if any(sign in lowered for sign in _SIGNS):
            shown = _without(request)
            entry |= {"request": shown, "answer": _without(answer)}
            left_out = [name for name, value in request.items() if shown.get(name) != value]
            if left_out:
                entry["left_out"] = left_out
            text = dump_json(entry)
        line = text.encode("utf-8", "replace") + b"\n"
        try:
            if self._handle is not None and self._size + len(line) > self._max_bytes:
                self._rotate()
            if self._handle is None:
                self._open()
            assert self._handle is not None
            written = os.write(self._handle, line)
            if written < len(line):
                # Half a line would spoil the next one as well.
                os.ftruncate(self._handle, self._size)
                raise OSError(errno.ENOSPC, "no space is left")
            self._size += written
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("the protocol capture %s cannot be written: %s", self.path, error.strerror)
            self._failed = True
            self.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._handle = os.open(self.path, flags, 0o600)
        os.fchmod(self._handle, 0o600)
        self._size = os.fstat(self._handle).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(MOST_FILES - 1, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                os.replace(older, self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        """Let go of the file; the next exchange opens it again."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _without(value: Any, key: str = "") -> Any:
    """The value without what looks like a secret, by its name or by its shape."""
    if value is not None and not isinstance(value, bool) and _secret(key, value):
        return LEFT_OUT
    if isinstance(value, Mapping):
        return {_SHAPED.sub(LEFT_OUT, name): _without(inner, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without(inner) for inner in value]
    return _SHAPED.sub(LEFT_OUT, value) if isinstance(value, str) else value


def _secret(name: str, value: Any) -> bool:
    """Whether what has this name is one: a word of the name ends as one is called. A number of tokens is a count."""
    words = _BETWEEN.sub("_", _CAMEL.sub("_", name).lower())
    return _SECRET.search(words) is not None or (
        _TOKEN.search(words) is not None and not isinstance(value, int | float)
    )
