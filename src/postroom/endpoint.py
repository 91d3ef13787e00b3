"""The words of the places that messages go to, as frozen values: endpoints, and who sits at them (DESIGN §6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CarrierKind(StrEnum):
    """How a message gets to a target."""

    OPENCODE = "opencode"
    TMUX = "tmux"
    CHANNEL = "channel"
    INBOX = "inbox"
    WEBHOOK = "webhook"


ANY_REACH = "any"
"""The reach of what every daemon can carry (RULINGS 31)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place that takes messages: one instance, from its attachment to its end. Times are ms UTC, address JSON text.

    repositories, queues, channels: what it is attached to. seen_at: its last heartbeat or successful probe.
    ack_mode, max_attempts: its delivery policy. rings: whether its queues' work rings it. ended_at: it never lives again.
    """

    seq: int
    id: str
    name: str | None
    carrier: CarrierKind
    address_json: str
    target_key: str
    reach: str
    ack_mode: str
    max_attempts: int
    spill: bool
    rings: bool
    pid: int | None
    created_by: str
    created_at: int
    seen_at: int
    ended_at: int | None
    repositories: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()

    @property
    def address(self) -> Mapping[str, Any]:
        """Where it is, in its carrier's own words, parsed anew at each call."""
        parsed: Mapping[str, Any] = json.loads(self.address_json)
        return parsed

    @property
    def mailbox(self) -> str:
        """Whose inbox shows what was sent to it."""
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What `attach` is asked for. address: the carrier's own words for the place, as its `check_address` has them.

    target_key and reach follow from carrier and address and are the carrier's to say; a door passes them on.
    spill: long bodies are put into a private file and a line points there.
    """

    carrier: CarrierKind
    address: Mapping[str, Any]
    target_key: str
    reach: str = ANY_REACH
    name: str | None = None
    repositories: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    ack_mode: str = "injected"
    max_attempts: int | None = None
    spill: bool = False
    rings: bool = True
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointFilter:
    """Which endpoints are wanted; `live` None is both."""

    target_repo: str | None = None
    queue: str | None = None
    channel: str | None = None
    name: str | None = None
    live: bool | None = None
    ended: bool = False
