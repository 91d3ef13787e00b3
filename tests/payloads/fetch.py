"""All of GitHub's example payloads, from the npm package that publishes them: pinned by hash, fetched once, kept."""

from __future__ import annotations

import fcntl
import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INDEX = HERE / "node_modules/@octokit/webhooks-examples/api.github.com/index.json"
COUNT = 329
DEADLINE_S = 180


@dataclass(frozen=True, slots=True)
class Example:
    """One published payload: the event's name, its place among that event's examples, and the value."""

    kind: str
    number: int
    value: dict[str, Any]

    @property
    def body(self) -> bytes:
        """The value as a sender would post it."""
        return json.dumps(self.value, ensure_ascii=False, separators=(",", ":")).encode()


@cache
def examples() -> tuple[Example, ...]:
    """Every example. Fetches them with npm when they are not there yet; RuntimeError says what to do when it cannot."""
    if not INDEX.exists():
        _fetch()
    found = tuple(
        Example(event["name"], number, value)
        for event in json.loads(INDEX.read_bytes())
        for number, value in enumerate(event["examples"])
    )
    if len(found) != COUNT:
        raise RuntimeError(f"{INDEX} has {len(found)} payloads, expected {COUNT}: remove node_modules and run again")
    return found


def _fetch() -> None:
    """Install the pinned package, one process at a time."""
    place = HERE.parents[1] / ".cache"
    place.mkdir(exist_ok=True)
    with (place / "payloads.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if INDEX.exists():
            return
        try:
            done = subprocess.run(
                ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
                cwd=HERE,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        except FileNotFoundError:
            raise RuntimeError("the example payloads come as an npm package; install Node.js with npm") from None
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"npm did not fetch the example payloads within {DEADLINE_S} s") from None
        if done.returncode:
            raise RuntimeError(f"npm could not fetch the example payloads: {done.stderr.strip()}")


if __name__ == "__main__":
    print(f"{len(examples())} payloads in {INDEX}")
