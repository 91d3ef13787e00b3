"""One webhook as the settings name it: where it is called, with which secrets, and what it listens to."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.postage import MAX_PAYLOAD_BYTES

BY_SETTINGS = "a webhook is named by the daemon's settings alone: a table [[webhook]] with name, url and a secret"
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WebhookPlace:
    """A webhook's settings; `keys` are the secrets' bytes, each of which signs. Times in seconds.

    allow_private: whether it may be at an address that is not of the public internet. max_payload: up to how many bytes
    of a payload it is sent.
    """

    name: str
    url: str
    keys: tuple[bytes, ...] = field(repr=False)
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    allow_private: bool = False
    timeout_s: float = 15.0
    max_payload: int = MAX_PAYLOAD_BYTES

    @property
    def parts(self) -> SplitResult:
        """The URL in its parts."""
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        """The host's name or address, without brackets."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        """The port, the scheme's own where the URL has none."""
        return self.parts.port or DEFAULT_PORTS[self.parts.scheme]

    @property
    def shown(self) -> str:
        """The URL as people may see it: without its query, which may hold a secret."""
        return self.parts._replace(query="").geturl()

    @property
    def reach(self) -> str:
        """The reach of what goes there: only daemons whose settings name it can carry it (RULINGS 31)."""
        return f"webhook:{self.name}"

    @property
    def target_key(self) -> str:
        """What its place is called (RULINGS 21)."""
        return f"webhook:{self.name}"

    def said(self) -> str:
        """Its settings in a line, secrets out."""
        listens = "".join(
            f", {what} {' '.join(names)}"
            for what, names in (("queues", self.queues), ("channels", self.channels))
            if names
        )
        private = ", private addresses allowed" if self.allow_private else ""
        many = "1 secret" if len(self.keys) == 1 else f"{len(self.keys)} secrets"
        return f"{self.shown} with {many}{listens}{private}"

    def endpoint(self) -> NewEndpoint:
        """The endpoint that stands for it: messages to its name go there, and what its queues and channels have."""
        return NewEndpoint(
            CarrierKind.WEBHOOK,
            {"url": self.shown},
            self.target_key,
            reach=self.reach,
            name=self.name,
            queues=self.queues,
            channels=self.channels,
        )
