"""The table of senders: a further one is its own short file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from postroom.sources import generic, github
from postroom.sources.options import Options
from postroom.sources.source import Sender

SENDERS: Mapping[str, Callable[[Options], Sender]] = MappingProxyType(
    {
        "github": github.make,
        "generic": generic.make,
    }
)
