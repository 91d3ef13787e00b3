"""The table of carriers: a further one is its own file and one line here. The daemon makes those that are configured."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from postroom.carriers.carrier import Carrier
from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.endpoint import CarrierKind


def make_carriers(
    opencode: Sequence[OpencodeServer] = (), *further: Carrier, tmux: bool = False
) -> dict[CarrierKind, Carrier]:
    """The carriers of an installation by their kind; without a server no session is written to (P16).

    tmux: whether this user's panes are reached as well, where tmux is installed.
    """
    carriers: list[Carrier] = [*further]
    if opencode:
        carriers.append(OpencodeCarrier(opencode))
    if tmux and shutil.which("tmux") is not None:
        from postroom.carriers.tmux import TmuxCarrier

        carriers.append(TmuxCarrier())
    return {carrier.kind: carrier for carrier in carriers}
