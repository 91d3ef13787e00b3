"""Checks of the daemon: where it is, whether it can work, what its sweeps say, and whether the clocks agree."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any, Final

from postroom import __version__
from postroom.doors.cli.checks.call import NoAnswer
from postroom.doors.cli.checks.check import Check
from postroom.doors.cli.checks.found import Findings, fail, ok, warn
from postroom.doors.cli.checks.scene import NO_DAEMON, Scene, Skip
from postroom.doors.cli.table import span
from postroom.errors import Forbidden, Invalid, Unauthenticated
from postroom.text import many

SWEEP_LATE_S: Final = 10.0
SWEEP_DEAD_S: Final = 60.0
SKEW_S: Final = 2.0
SKEW_BAD_S: Final = 60.0


def reached(scene: Scene) -> Findings:
    """Whether a daemon answers, where it was looked for, and why there."""
    try:
        address = scene.daemon().address
    except Invalid as error:
        return fail(error.message, f"correct {_origin(scene)}, or unset it")
    start = "postroom serve" if scene.data is None else f"postroom serve --data {scene.data}"
    try:
        scene.health()
    except NoAnswer as silent:
        return fail(f"no daemon answers at {address} (by {_origin(scene)}): {silent}", f"{start}; or set POSTROOM_URL")
    return ok(f"{address} (by {_origin(scene)})")


def _origin(scene: Scene) -> str:
    if scene.data is not None:
        return "--data"
    for name in ("POSTROOM_URL", "POSTROOM_DATA"):
        if scene.environ.get(name):
            return name
    return "the user's data folder"


def token(scene: Scene) -> Findings:
    """Whether the daemon knows the token, and whose it is."""
    try:
        scene.status()
    except Unauthenticated as error:
        named = "POSTROOM_TOKEN" if scene.environ.get("POSTROOM_TOKEN") else "the data folder's admin-token"
        return fail(f"{named}: {error.message}", "set POSTROOM_TOKEN to one that `postroom token create` made")
    try:
        scene.ask("/v1/sources")
    except Forbidden:
        return ok("an agent's token: what takes an admin's is skipped below")
    address = scene.daemon().address
    if address.token is not None:
        return ok("an admin's token")
    if address.socket is not None:
        return ok("an admin by the socket, without a token")
    return warn("the daemon asks for no token: whoever reaches it is admin", "restart it without --open")


def version(scene: Scene) -> Findings:
    """Whether the daemon is of this program's version."""
    told = str(_health(scene)["version"])
    if told != __version__:
        return warn(f"the daemon is {told}, this program {__version__}", "restart the older of the two")
    return ok(told)


def ready(scene: Scene) -> Findings:
    """Whether the daemon can use its database."""
    _health(scene)
    try:
        reply = scene.call("GET", "/ready")
    except NoAnswer as silent:
        return fail(f"/ready: {silent}", "see the daemon's log")
    if reply.status == http.client.OK:
        return ok("its database can be used")
    error = reply.table().get("error")
    why = error.get("message") if isinstance(error, dict) else f"status {reply.status}"
    return fail(f"not ready: {why}", "start the database, or correct `database` in the settings; it keeps trying")


def engine(scene: Scene) -> Findings:
    """Which database the daemon works on."""
    told = scene.status()
    return ok(f"{told['engine']} {told.get('engine_version') or 'of unknown version'}")


def place(scene: Scene) -> Findings:
    """Whether the daemon's data folder is the one that this command line and environment name."""
    told = scene.ask("/v1/sources")["data"]
    if not scene.near():
        raise Skip("the daemon is on another machine")
    own = scene.own_folder()
    if own.resolve() != type(own)(str(told)).resolve():
        return warn(f"the daemon's data folder is {told}, this program's {own}", f"export POSTROOM_DATA={told}")
    return ok(str(told))


def sweep(scene: Scene) -> Findings:
    """Whether lapsed leases, due todos and what is too old are still seen to."""
    status = scene.status()
    told = status["sweep"]
    if told["last_run_at"] is None:
        return warn("it has not swept yet", "ask again in a few seconds; else see the daemon's log")
    age = _now(scene, status) - _seconds(told["last_run_at"])
    said = f"last {span(round(max(age, 0.0), 1))} ago, {many(told['failures'], 'failure')} since the start"
    if age > SWEEP_LATE_S:
        worded = fail if age > SWEEP_DEAD_S else warn
        return worded(f"{said}: leases do not lapse meanwhile", "see the daemon's log; restart it")
    return ok(said)


def loops(scene: Scene) -> Findings:
    """Whether the courier and the doorbell are at work."""
    status = scene.status()
    post, bell = status.get("post") or {}, status.get("doorbell") or {}
    if not post.get("running"):
        return fail("the courier does not run: no message is carried", "see the daemon's log; restart it")
    for name, told in (("courier", post), ("doorbell", bell)):
        if told.get("problem"):
            return warn(f"the {name} is held up: {told['problem']}", "see to the database; it keeps trying")
    return ok(
        f"courier with {many(post.get('lanes', 0), 'lane')} at work, {many(bell.get('rung', 0), 'ring')} since the start"
    )


def warnings(scene: Scene) -> Findings:
    """What the daemon itself warns of."""
    told = [str(one) for one in scene.status().get("warnings") or ()]
    if not told:
        return ok("none")
    return [warn(one, _cure(one), about=None if len(told) == 1 else str(n)) for n, one in enumerate(told, 1)]


def _cure(warning: str) -> str:
    if "snapshot" in warning:
        return "end the transaction that is open so long: select pid, xact_start, query from pg_stat_activity"
    if "clock" in warning:
        return "keep the host's clock by NTP: timedatectl set-ntp true"
    if "source" in warning:
        return "docs/senders says what each key of a source opens"
    return "see the daemon's log"


def clock_daemon(scene: Scene) -> Findings:
    """Whether this host and the daemon's agree on the time."""
    status = scene.status()
    if "now" not in status:
        raise Skip("the daemon does not tell its time")
    off = _seconds(status["now"]) - scene.asked_at["/v1/status"]
    return _agree(off, "the daemon's clock", "keep both machines' clocks by NTP: timedatectl set-ntp true")


def clock_database(scene: Scene) -> Findings:
    """Whether the daemon's host and its database agree on the time."""
    skew = scene.status().get("clock_skew_ms")
    if not isinstance(skew, int):
        raise Skip("the daemon does not tell its database's time")
    return _agree(skew / 1000, "the database's clock", "keep the clocks of both hosts by NTP: timedatectl set-ntp true")


def _agree(off: float, whose: str, fix: str) -> Findings:
    said = f"{whose} is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}"
    if abs(off) <= SKEW_S:
        return ok(f"{whose} agrees within {SKEW_S:g} s")
    return fail(said, fix) if abs(off) > SKEW_BAD_S else warn(said, fix)


def clock_senders(scene: Scene) -> Findings:
    """Whether deliveries are refused because their signed times lie too far from now."""
    counts = _hooks(scene)
    late = {name: one for name, one in counts.items() if one["refused"].get("clock")}
    if not late:
        return ok("no delivery was refused for its time since the daemon's start")
    fix = "set this host's clock by NTP (timedatectl set-ntp true); if it is right, ask for the sender's, or a proxy's delay"
    found = []
    for name, one in late.items():
        refused = sum(one["refused"].values())
        every = refused == one["refused"]["clock"] and not one["accepted"]
        said = f"{one['refused']['clock']} of {refused} refusals of source {name} are timestamps: {one['last_refusal']}"
        if every:
            said = f"all rejections of source {name} are timestamps: clock skew ({one['last_refusal']})"
        found.append((fail if every else warn)(said, fix, about=name))
    return found


def _hooks(scene: Scene) -> Mapping[str, Any]:
    """The counts of deliveries by source."""
    scene.ask("/v1/sources")  # only an admin is told of them
    counts = scene.status().get("hooks")
    if not isinstance(counts, dict):
        raise Skip("the daemon does not count deliveries")
    return counts


def _health(scene: Scene) -> Mapping[str, Any]:
    if not scene.reached():
        raise Skip(NO_DAEMON)
    return scene.health()


def _now(scene: Scene, status: Mapping[str, Any]) -> float:
    return _seconds(status["now"]) if status.get("now") else scene.clock()


def _seconds(time: object) -> float:
    from postroom.wire import read_time

    return read_time(str(time), "time") / 1000


CHECKS: Final = (
    Check("daemon.reached", reached),
    Check("daemon.token", token),
    Check("daemon.version", version),
    Check("daemon.ready", ready),
    Check("daemon.engine", engine),
    Check("daemon.place", place),
    Check("daemon.sweep", sweep),
    Check("daemon.loops", loops),
    Check("daemon.warnings", warnings),
    Check("clock.daemon", clock_daemon),
    Check("clock.database", clock_database),
    Check("clock.senders", clock_senders),
)
