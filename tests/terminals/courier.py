"""A process that writes one message to a pane and is killed, by its own hand, when a step is done.

Usage: python -m tests.terminals.courier PRIVATE STEP FILE; FILE holds the pickled parcel.
"""

import asyncio
import os
import pickle
import signal
import sys
from pathlib import Path

from postroom.carriers.tmux import TmuxCarrier
from postroom.carriers.tmux_write import Step


def main(private: str, last: str, file: str) -> None:
    """Write, and die at this step."""

    def at_step(step: Step) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    carrier = TmuxCarrier(private=Path(private), reach="host:test:0", at_step=at_step)
    asyncio.run(carrier.write(pickle.loads(Path(file).read_bytes())))


if __name__ == "__main__":
    main(*sys.argv[1:])
