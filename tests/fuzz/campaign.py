"""A campaign against one daemon: requests of three kinds, every answer judged, and what is stored counted at the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.places import samples
from tests.fuzz.shots import NAMES, Shot, dressed, encode, shots, twin
from tests.fuzz.wire import Answer, Wire, broken, exchange, written
from tests.system.daemons import Daemon

ROUND: Final = 200
"""How many requests of a kind are drawn before the next kind's turn."""
TWINS: Final = 6
"""How many more are made of each by chance."""
LOOKED_AT: Final = 1000
"""How many of the stored events are looked at whole."""
GOOD: Final = frozenset({200, 202, 400, 401, 404, 405, 413, 415})
"""What a request that HTTP allows may be answered with."""
WIRE: Final = GOOD | {403, 408, 431}
"""What bytes that are no such request may be answered with, if they are at all."""


class Campaign:
    """Posts to a daemon, counts what it answers, and remembers which events it was told of.

    A failed check raises AssertionError with the request, which Hypothesis has made as small as it could.
    """

    def __init__(self, daemon: Daemon, dice: random.Random) -> None:
        self.daemon = daemon
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.told: set[str] = set()
        self._dice = dice
        self._pool = ThreadPoolExecutor(TWINS)
        self._cases = _schema()

    def run(self, seconds: float) -> None:
        """Rounds of every kind until the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.round(ROUND, end)

    def round(self, examples: int, end: float | None = None) -> None:
        """So many requests of each kind; those that come after `end` are not sent."""
        for kind in (self._bent, self._wire, self._schemathesis):
            kind(examples, lambda: end is not None and time.monotonic() > end)
        assert self.daemon.process is not None
        assert self.daemon.process.poll() is None, f"the daemon ended:\n{self.daemon.output[-4000:]}"

    def close(self) -> None:
        """Hold what is stored against what was told: an event that was told of is there, and each has its own body."""
        self._pool.shutdown()
        assert "Traceback" not in self.daemon.output, self.daemon.output[-8000:]
        stored = self._stored()
        assert self.told <= stored, "told of, but not stored"
        self.counts["events stored"] = len(stored)
        for id_ in sorted(stored)[-LOOKED_AT:]:
            shown = self.daemon.ask("GET", f"/v1/events/{id_}")
            assert shown.status == 200, (id_, shown.body, self.daemon.output[-4000:])
            event, raw = shown.value["event"], self.daemon.ask("GET", f"/v1/events/{id_}/raw").body
            assert (event["digest"], event["body_bytes"]) == (hashlib.sha256(raw).hexdigest(), len(raw)), id_

    def _stored(self) -> set[str]:
        found: set[str] = set()
        cursor = ""
        while True:
            page = self.daemon.ask("GET", f"/v1/events?limit=200{cursor}").value
            found |= {event["id"] for event in page["events"]}
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    # Judging.

    def _judge(self, answers: list[Answer], allowed: frozenset[int], said: str) -> None:
        for answer in answers:
            self.statuses[answer.status] += 1
            assert answer.status in allowed, (answer, said)
            if answer.status == 202:
                told = json.loads(answer.body)
                assert set(told) == {"event_id", "duplicate", "todos"}, told
                self.told.add(told["event_id"])

    def _shoot(self, shot: Shot, kind: str) -> None:
        self._settle(shot, self._sent(shot), kind)

    def _sent(self, shot: Shot) -> list[Answer]:
        return exchange(self.daemon.port, written(shot))

    def _settle(self, shot: Shot, answers: list[Answer], kind: str) -> None:
        self.counts[kind] += 1
        assert len(answers) == 1, ("expected one answer", answers, shot)
        self._judge(answers, GOOD, repr(shot))

    # The three kinds of requests.

    def _bent(self, examples: int, over: Callable[[], bool]) -> None:
        now_ms = _now()

        @self._each(examples)
        @given(shots(now_ms), st.integers(0, 2**64))
        def bent(shot: Shot, chance: int) -> None:
            if over():
                return
            self._shoot(shot, "bent deliveries")
            dice = random.Random(chance)
            twins = [twin(shot, dice, now_ms) for _ in range(TWINS)]
            # All at once: what comes together may be stored together.
            for one, answers in zip(twins, self._pool.map(self._sent, twins), strict=True):
                self._settle(one, answers, "twins of them, all at once")

        bent()

    def _wire(self, examples: int, over: Callable[[], bool]) -> None:
        @self._each(examples)
        @given(shots(_now()).map(written).flatmap(broken))
        def wire(made: Wire) -> None:
            if over():
                return
            self.counts["broken wires"] += 1
            self._judge(exchange(self.daemon.port, made.sent, hang_up=made.hang_up), WIRE, repr(made))

        wire()

    def _schemathesis(self, examples: int, over: Callable[[], bool]) -> None:
        names = sorted(self._cases)
        name = names[self._dice.randrange(len(names))]
        now_ms = _now()

        @self._each(examples)
        @given(self._cases[name].as_strategy(), st.data())
        def by_schema(case: schemathesis.Case[Any], data: st.DataObject) -> None:
            headers = [(key, str(value)) for key, value in (case.headers or {}).items()]
            kept = [(key, value) for key, value in headers if _sendable(key) and _sendable(value)]
            body = encode(case.body) if isinstance(case.body, dict | list | str | int | float | bool | None) else b""
            shot = data.draw(dressed(name, now_ms, "d-1", kept, body))
            if not over():
                self._shoot(shot, "cases of schemathesis")

        by_schema()

    def _each(self, examples: int) -> Callable[[Any], Any]:
        """Settings for one kind's turn: a seed of its own, nothing kept for another run."""

        def wrap(test: Any) -> Any:
            plain = settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=False,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )
            return seed(self._dice.getrandbits(64))(plain(test))

        return wrap


def _sendable(value: str) -> bool:
    return value.isascii() and value.isprintable()


def _now() -> int:
    return time.time_ns() // 1_000_000


def _schema() -> dict[str, Any]:
    """For every source an operation whose body and headers are described as the provider's samples have them."""
    paths = {f"/hooks/{name}": {"post": _operation(name)} for name in NAMES}
    document = {"openapi": "3.1.0", "info": {"title": "hooks", "version": "1"}, "paths": paths}
    config = schemathesis.Config.from_dict({"generation": {"allow-x00": True, "mode": "all"}})
    loaded = schemathesis.openapi.from_dict(document, config=config)
    return {path.removeprefix("/hooks/"): loaded[path]["POST"] for path in paths}


def _operation(name: str) -> dict[str, Any]:
    made = samples(name, 1_700_000_000_000)
    values: list[Any] = []
    for one in made:
        # Slack's commands are forms.
        with contextlib.suppress(ValueError):
            values.append(json.loads(one.body))
    headers = sorted({key for one in made for key, _ in one.headers if key not in {"content-type"}})
    return {
        "parameters": [{"name": key, "in": "header", "schema": {"type": "string"}} for key in headers],
        "requestBody": {
            "content": {"application/json": {"schema": {"anyOf": [_described(value) for value in values]}}}
        },
        "responses": {"202": {"description": "stored"}},
    }


def _described(value: Any) -> dict[str, Any]:
    """The schema of one value: its own keys and kinds, texts of the same or any other content."""
    match value:
        case dict():
            return {
                "type": "object",
                "properties": {key: _described(inner) for key, inner in value.items()},
                "required": list(value)[:3],
            }
        case list():
            return {"type": "array", "items": _described(value[0]) if value else {}}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"anyOf": [{"const": value}, {"type": "string"}]}
        case _:
            return {}
