"""Checks of the work: what has waited longest in each queue and who should have heard of it, and what died lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from postroom.doors.cli.checks.check import Check, side_by_side
from postroom.doors.cli.checks.found import Findings, Found, ok, warn
from postroom.doors.cli.checks.scene import Scene
from postroom.doors.cli.table import short_time, span
from postroom.errors import PostroomError
from postroom.text import many
from postroom.wire import read_time

LONG_S: Final = 300.0
DAY_S: Final = 86400.0
LOOKED_AT: Final = 20
"""How many queues with old work are looked at."""
PAGE: Final = 200
RINGS: Final = 50
FEW: Final = 5
QUEUE_S: Final = 2.8


def queues(scene: Scene) -> Findings:
    """Each queue whose oldest pending work waits for more than five minutes, and who is there for it."""
    status = scene.status()
    told = status["queues"]
    old = [one for one in told if (one["oldest_pending_age_s"] or 0) > LONG_S][:LOOKED_AT]
    if not old:
        pending = sum(one["pending"] for one in told)
        return ok(f"{pending} pending in {many(len(told), 'queue')}, none for more than {span(LONG_S)}")
    now = read_time(status["now"], "now") / 1000 if status.get("now") else scene.clock()
    looks = side_by_side([partial(_waiting, scene, one, now) for one in old], QUEUE_S)
    found = [
        look if look is not None else warn("it could not be looked at in time", None, about=one["name"])
        for one, look in zip(old, looks, strict=True)
    ]
    return [one for one in found if one.words] or ok(f"what is pending is not due yet in {_names(old, 'name')}")


def _waiting(scene: Scene, queue: Mapping[str, Any], now: float) -> Found:
    """One queue's oldest work; without words where none of it is due yet."""
    name = queue["name"]
    page = scene.ask("/v1/todos", queue=name, state="pending", limit=PAGE)
    due = [one for one in page["todos"] if one["available_at"] is None or _at(one["available_at"]) <= now]
    whole = page["next_cursor"] is None
    if whole and (not due or now - _at(due[-1]["created_at"]) <= LONG_S):
        return ok("", about=name)
    age = now - _at(due[-1]["created_at"]) if whole else float(queue["oldest_pending_age_s"])
    oldest = f"{due[-1]['id']}, " if whole else ""
    said = f"{oldest}the oldest of {queue['pending']} pending, waits for {span(round(age))}"
    if queue["paused"]:
        return warn(f"{said}: the queue is paused", f"postroom queue resume {name}", about=name)
    if whole and due[-1]["assignee"]:
        who = str(due[-1]["assignee"])
        return warn(f"{said} for {who} alone, {_heard_of(scene, who)}", _assigned(due[-1]["id"]), about=name)
    seats = scene.ask("/v1/endpoints", queue=name)["endpoints"]
    heard = [_heard(scene, name, one) for one in seats]
    if not heard:
        words = f"{said}; no endpoint hears of it, {_claimers(scene, name)}"
        return warn(words, f"postroom attach --queue {name} in an agent's pane", about=name)
    fix = f"look at {_names(seats, 'name')}: is it busy, or shown a dialog? postroom who"
    if not any(one["live"] for one in seats):
        fix = f"postroom attach --queue {name} in an agent's pane: none of them lives"
    return warn(f"{said}; subscribed: {'; '.join(heard[:FEW])}; {_claimers(scene, name)}", fix, about=name)


def _assigned(id_: str) -> str:
    return f"start that agent, or clear the assignee: postroom todo show {id_}"


def _heard(scene: Scene, queue: str, endpoint: Mapping[str, Any]) -> str:
    """An endpoint that subscribes to the queue: whether it lives, and when it was rung last."""
    name = f"{endpoint['name'] or endpoint['id']} ({'live' if endpoint['live'] else 'silent'}"
    if not endpoint["rings"]:
        return f"{name}, attached without rings)"
    rings = scene.ask("/v1/messages", kind="queue.ring", endpoint_id=endpoint["id"], limit=RINGS)["messages"]
    for one in rings:
        if (one["metadata"] or {}).get("queue") == queue:
            state = one["deliveries"][0]["state"] if one["deliveries"] else "gone"
            return f"{name}, rung {short_time(one['created_at'])}: {state})"
    return f"{name}, never rung for it)"


def _claimers(scene: Scene, queue: str) -> str:
    """Who claimed from the queue lately."""
    owners: dict[str, str] = {}
    for state in ("claimed", "done"):
        for one in scene.ask("/v1/todos", queue=queue, state=state, limit=20)["todos"]:
            if one["owner"]:
                owners.setdefault(str(one["owner"]), str(short_time(one["updated_at"])))
    if not owners:
        return "and nobody claimed from it lately"
    return "claimed from it lately: " + ", ".join(f"{who} {at}" for who, at in list(owners.items())[:FEW])


def _heard_of(scene: Scene, who: str) -> str:
    """When an assignee was last seen."""
    try:
        seated: Sequence[Mapping[str, Any]] = scene.ask("/v1/who")["who"]
    except PostroomError:
        return "of whom nothing is known"
    for one in seated:
        if one["name"] in {who, who.partition("/")[0]}:
            live = "live" if one["live"] else "silent"
            return f"who is {live} and was last heard of {short_time(one['last_seen'])}"
    return "who is not seen here"


def dead(scene: Scene) -> Findings:
    """How many todos died within a day."""
    status = scene.status()
    now = read_time(status["now"], "now") / 1000 if status.get("now") else scene.clock()
    page = scene.ask("/v1/todos", state="dead", limit=PAGE)
    fresh = [one for one in page["todos"] if now - _at(one["updated_at"]) <= DAY_S]
    if not fresh:
        return ok(f"none within a day, {sum(one['dead'] for one in status['queues'])} in all")
    more = "or more " if page["next_cursor"] is not None else ""
    where = ", ".join(sorted({str(one["queue"]) for one in fresh})[:FEW])
    return warn(
        f"{len(fresh)} {more}died within a day, in {where}; the last one: {fresh[0]['error'] or fresh[0]['reason']}",
        "postroom todo list --state dead; postroom todo retry ID",
    )


def _names(items: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join(str(one[key] or one.get("id")) for one in items[:FEW])


def _at(time: object) -> float:
    return read_time(str(time), "time") / 1000


CHECKS: Final = (
    Check("work.queues", queues),
    Check("work.dead", dead),
)
