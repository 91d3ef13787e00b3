"""`python -m bench.unstored`: the daemon as it is, but that its intake answers each delivery without the store.

It reads, verifies, parses and sorts what is posted, in the same server and behind the same doors: what it lacks is the
transaction alone, so that the daemon's own rate beside this one tells what storing costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

from postroom import daemon
from postroom.config import load_settings
from postroom.event import Event, EventTodo, Incoming, Received
from postroom.ids import Ids, Prefix, RandomIds
from postroom.services.rulesets import RuleSet, Sorting, judge


class Unstored:
    """An intake that decides what it would store, and answers."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    async def receive(self, delivery: Incoming, source: Sorting) -> Received:
        """A delivery -> the answer it would get."""
        id_ = self._ids.new(Prefix.EVENT)
        decision, version = judge(source, RuleSet(source.name), delivery, id_)
        now = time.time_ns() // 1_000_000
        event = Event(
            0,
            id_,
            delivery.source,
            delivery.provider,
            delivery.delivery_key,
            delivery.kind,
            delivery.action,
            delivery.title,
            decision.state,
            decision.reason,
            delivery.verification,
            delivery.digest,
            1,
            now,
            now,
            len(delivery.body),
            None,
            None,
            rules_version=version,
        )
        todos = tuple(
            EventTodo(id_, self._ids.new(Prefix.TODO), one.new.queue, one.rule, True) for one in decision.todos
        )
        return Received(event, False, todos)


def main() -> int:
    """Serve until told to stop."""
    options = argparse.ArgumentParser(prog="python -m bench.unstored", description=__doc__)
    for name in ("--data", "--database"):
        options.add_argument(name)
    options.add_argument("--port", type=int, default=0)
    chosen = options.parse_args()
    compose = daemon.compose

    def without_store(*given: Any, **more: Any) -> daemon.Office:
        intake: Any = Unstored(RandomIds())
        return dataclasses.replace(compose(*given, **more), intake=intake)

    # Whatever else the daemon's start does, this one does too.
    daemon.compose = without_store
    return daemon.serve(load_settings(data=chosen.data, database=chosen.database, port=chosen.port))


if __name__ == "__main__":
    sys.exit(main())
