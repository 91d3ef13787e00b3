"""Headers as they came, a multimap of bytes in which a name may stand on several lines; and the query beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote_to_bytes

from postroom.text import cut

MAX_SHOWN = 100
MAX_SHOWN_BYTES = 1024
MAX_PARAMETERS = 100
REDACTED = "[redacted]"

_TELLING = re.compile("signature|token|secret|key|auth|cookie")


class Headers:
    """The header lines of one request, looked up by name in any case; built from the pairs and the query that ASGI gives.

    The query may hold a secret: it is read by name alone, and never shown.
    """

    def __init__(self, lines: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> None:
        self._lines: list[tuple[str, bytes]] = [(name.decode("latin-1").lower(), value) for name, value in lines]
        self._query = query
        self._values: dict[str, list[bytes]] = {}
        for name, value in self._lines:
            self._values.setdefault(name, []).append(value.strip(b" \t"))

    def all(self, name: str) -> list[bytes]:
        """Every value under a name, without the blanks around it, in the order of the lines."""
        return list(self._values.get(name.lower(), ()))

    def conflicting(self, name: str) -> bool:
        """Whether a name stands on several lines that disagree, so that no reading of it can be trusted."""
        values = self._values.get(name.lower(), ())
        return len(values) > 1 and len(set(values)) > 1

    def text(self, name: str, limit_bytes: int = 256) -> str | None:
        """The first value under a name as clean, cut text; None when there is none or it is empty."""
        values = self.all(name)
        if not values or not values[0]:
            return None
        try:
            value = values[0].decode("utf-8")
        except UnicodeDecodeError:
            value = values[0].decode("latin-1")
        if not value.isprintable():
            value = "".join(char if char.isprintable() else "�" for char in value)
        return cut(value, limit_bytes)

    def parameter(self, name: str) -> list[bytes]:
        """Every value of a query parameter, decoded, in order."""
        wanted = name.encode()
        found: list[bytes] = []
        for part in self._query.split(b"&", MAX_PARAMETERS)[:MAX_PARAMETERS]:
            key, _, value = part.partition(b"=")
            if unquote_to_bytes(key.replace(b"+", b" ")) == wanted:
                found.append(unquote_to_bytes(value.replace(b"+", b" ")))
        return found

    def has_prefix(self, prefix: str) -> bool:
        """Whether some line's name begins so; the prefix is in lower case."""
        return any(name.startswith(prefix) for name in self._values)

    def shown(self, hidden: Sequence[str] = (), secrets: Sequence[bytes] = ()) -> tuple[tuple[str, str], ...]:
        """The lines to keep beside an event: cleaned, cut, and with every value that may be a secret left out.

        A value goes when the name is in `hidden` or sounds like a credential, or when it holds one of `secrets`.
        """
        names = {name.lower() for name in hidden}
        lines: list[tuple[str, str]] = []
        for name, value in self._lines[:MAX_SHOWN]:
            secret = name in names or _TELLING.search(name) is not None or any(map(value.__contains__, secrets))
            text = REDACTED if secret else cut(value.decode("latin-1"), MAX_SHOWN_BYTES)
            lines.append((cut(name, MAX_SHOWN_BYTES), text))
        return tuple(lines)
