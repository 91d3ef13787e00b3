"""The moment at which a sample is made, and the shop that all samples are about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Value = dict[str, Any]
Made = Mapping[str, tuple[dict[str, str], Value]]
"""By kind: the headers that tell it, and the value of the body."""

REPOSITORY = "acme/shop"
BOT = "shop-bot"
TITLE = "Checkout fails when the cart is empty"


@dataclass(frozen=True, slots=True)
class Moment:
    """When a sample is made (ms UTC), and the id that tells it from every other."""

    now_ms: int
    id: str

    @property
    def time(self) -> str:
        """The time as RFC 3339 in UTC."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def seconds(self) -> int:
        """The time in whole seconds."""
        return self.now_ms // 1000

    @property
    def hash(self) -> str:
        """Sixty-four hex digits that follow from the id."""
        return hashlib.sha256(self.id.encode()).hexdigest()

    @property
    def number(self) -> int:
        """A number from 1 to 65536 that follows from the id."""
        return int(self.hash[:4], 16) + 1
