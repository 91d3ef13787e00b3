"""`make fuzz`: the hooks' door of a real daemon under fire for as long as one likes, on each engine in turn."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.places import settings
from tests.postgres import PASSING, PostgresServer
from tests.processes import Processes
from tests.system.daemons import Daemon


@contextmanager
def daemon_on(engine: str) -> Iterator[Daemon]:
    """A daemon on an empty database of its own, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-"))
    processes = Processes(folder)
    server = PostgresServer(PASSING) if engine == "postgres" else None
    try:
        yield Daemon(processes, folder, settings(), database=None if server is None else server.url).start()
    finally:
        processes.end_all()
        if server is not None:
            server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Fuzz and print what was answered; the first answer that is wrong ends it with the request that caused it."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--engine", action="append", choices=["sqlite", "postgres"], help="both by default")
    options.add_argument("--seconds", type=float, default=60.0, help="how long on each engine")
    options.add_argument("--seed", type=int, default=random.randrange(2**32), help="what the requests are drawn from")
    chosen = options.parse_args()
    print(f"seed {chosen.seed}")
    for engine in chosen.engine or ["sqlite", "postgres"]:
        with daemon_on(engine) as daemon:
            campaign = Campaign(daemon, random.Random(chosen.seed))
            start = time.monotonic()
            campaign.run(chosen.seconds)
            took = time.monotonic() - start
            campaign.close()
        sent = ", ".join(f"{count:,} {kind}" for kind, count in campaign.counts.items())
        answered = ", ".join(f"{count:,} times {status}" for status, count in sorted(campaign.statuses.items()))
        print(f"{engine}: {took:.0f} s: {sent}; answered {answered}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
