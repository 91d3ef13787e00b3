"""The table of carriers: a further one is its own file and one line here. The daemon makes those that are configured."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from postroom.carriers.carrier import Carrier
from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.endpoint import CarrierKind


def make_carriers(
    opencode: Sequence[OpencodeServer] = (), *further: Carrier, agents: Path | None = None
) -> dict[CarrierKind, Carrier]:
    """The carriers of an installation by their kind; without a server no session is written to (P16).

    agents: where the user's own rules for programs in panes may be; with it panes are reached, where tmux is installed.
    """
    carriers: list[Carrier] = [*further]
    if opencode:
        carriers.append(OpencodeCarrier(opencode))
    if agents is not None and shutil.which("tmux") is not None:
        from postroom.carriers.tmux import TmuxCarrier
        from postroom.carriers.tmux_agent import load_agents

        carriers.append(TmuxCarrier(agents=load_agents(agents)))
    return {carrier.kind: carrier for carrier in carriers}
