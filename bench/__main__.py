"""`make bench`: every measurement in one run, as a table with its ratios; the exit code counts what missed its bound."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys

from bench import backlog, intake, latency, mcp, memory, post, process, protocol, terminals, throughput, waking
from bench.places import postgres_place, sqlite_place
from bench.table import Table


async def _measure(chosen: list[str], engines: list[str], scale: float, table: Table) -> None:
    for engine in engines:
        with sqlite_place() if engine == "sqlite" else postgres_place() as place:
            if "throughput" in chosen:
                await throughput.run(place, table, scale)
            if "backlog" in chosen:
                await backlog.run(place, table, scale)
            if "latency" in chosen:
                await latency.run(place, table, scale)
            if "intake" in chosen:
                await intake.run(place, table, scale)
            if "post" in chosen:
                await post.run(place, table, scale)
            if "socket" in chosen:
                await protocol.run(place, table, scale)
            if "waking" in chosen:
                await waking.run(place, table, scale)
            if "mcp" in chosen:
                await mcp.run(place, table, scale)
            if "memory" in chosen:
                await memory.run(place, table, scale)
    if "terminals" in chosen:
        await terminals.run(table, scale)
    if "process" in chosen:
        await process.run(table, scale)


def main() -> int:
    """Measure and print: 0 when every bound was kept."""
    parts = [
        "throughput",
        "backlog",
        "latency",
        "intake",
        "post",
        "socket",
        "waking",
        "mcp",
        "memory",
        "terminals",
        "process",
    ]
    options = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    options.add_argument("parts", nargs="*", default=parts, help=f"of {', '.join(parts)}; all by default")
    options.add_argument("--engine", action="append", choices=["sqlite", "postgres"], help="both by default")
    options.add_argument("--scale", type=float, default=1.0, help="how large, 1.0 being the figures of the README")
    chosen = options.parse_args()
    if unknown := set(chosen.parts) - set(parts):
        options.error(f"no such part: {', '.join(sorted(unknown))}")
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}; ratios are of pairs in turn")
    table = Table()
    asyncio.run(_measure(chosen.parts, chosen.engine or ["sqlite", "postgres"], chosen.scale, table))
    print(f"\n{table.rows - table.missed} of {table.rows} bounds kept")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
