"""The table of carriers: a further one is its own file and one line here. The daemon makes those that are configured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from postroom.carriers.carrier import Carrier
from postroom.carriers.channel import ChannelCarrier
from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.carriers.webhook_place import WebhookPlace
from postroom.endpoint import CarrierKind


def make_carriers(
    opencode: Sequence[OpencodeServer] = (),
    *further: Carrier,
    agents: Path | None = None,
    webhooks: Sequence[WebhookPlace] = (),
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> dict[CarrierKind, Carrier]:
    """The carriers of an installation by their kind; without a server no session is written to (P16).

    agents: where the user's own rules for programs in panes may be; with it panes are reached, where tmux is installed.
    clock: ms UTC, for what goes to webhooks.
    """
    carriers: list[Carrier] = [ChannelCarrier(), *further]
    if opencode:
        carriers.append(OpencodeCarrier(opencode))
    if agents is not None and shutil.which("tmux") is not None:
        from postroom.carriers.tmux import TmuxCarrier
        from postroom.carriers.tmux_agent import load_agents

        carriers.append(TmuxCarrier(agents=load_agents(agents)))
    if webhooks:
        from postroom.carriers.webhook import WebhookCarrier

        carriers.append(WebhookCarrier(webhooks, clock))
    return {carrier.kind: carrier for carrier in carriers}
