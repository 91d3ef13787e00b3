"""Checks of the post: opencode's servers, tmux and its panes, the gita registry, and what waits to be delivered."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from postroom.doors.cli.checks.call import NoAnswer, Reply, call
from postroom.doors.cli.checks.check import Check, side_by_side
from postroom.doors.cli.checks.found import Findings, Found, fail, ok, skip, warn
from postroom.doors.cli.checks.scene import NO_DAEMON, Scene, Skip
from postroom.doors.cli.table import short_time, span
from postroom.errors import PostroomError
from postroom.text import many

WATCHED: Final = "/session/status"
NO_CARRIER: Final = "no_carrier"
NO_ROUTE: Final = frozenset({404, 405, 501})
SERVERS: Final = '[[opencode]] url = "http://127.0.0.1:4096" in postroom.toml, beside `opencode serve --port 4096`'
SET_UP: Final = f"set up {SERVERS}, and restart the daemon; or postroom detach NAME"
PEERS_S: Final = 2.8
PEER_S: Final = 1.3
TMUX_S: Final = 2.0
LONG_S: Final = 300.0
"""For how long something may wait before it is worth a warning."""

OLDEST_TMUX: Final = (3, 2)
CRASHES: Final = (3, 4)
"""Before this version a paste into a dead pane ends the tmux server."""
TELLS_PASTES: Final = (3, 7)
"""From this version on tmux tells whether a program takes pastes."""


def opencode(scene: Scene) -> Findings:
    """Whether each opencode server answers, takes the password, and shows its turns."""
    known = _seen_by_daemon(scene)
    settings = scene.settings_or_none()
    places = settings.post.opencode if settings is not None and scene.near() else ()
    if not places and not known:
        if settings is None and not scene.reached():
            raise Skip(f"{NO_DAEMON}, and the settings cannot be read")
        if sessions := _sessions(scene):
            return warn(f"no opencode server is set up: nothing carries to {sessions}", SET_UP)
        raise Skip("no opencode server is set up: sessions get no messages", SERVERS)
    if not scene.near():
        return [_by_daemon(url, seen) for url, seen in known.items()]
    passwords = {place.url: place.password for place in places}
    urls = list(dict.fromkeys([*passwords, *known]))
    asked = side_by_side([partial(_ask_opencode, url, passwords.get(url)) for url in urls], PEERS_S)
    daemon = bool(known) or scene.reached()
    return [
        _judge(url, url in passwords, found, known.get(url), daemon) for url, found in zip(urls, asked, strict=True)
    ]


def _sessions(scene: Scene) -> str:
    """The sessions that are attached, where a daemon tells of them."""
    with suppress(Skip, PostroomError):
        found = [one for one in _endpoints(scene) if one["carrier"] == "opencode"]
        return ", ".join(str(one["name"] or one["id"]) for one in found)
    return ""


def _seen_by_daemon(scene: Scene) -> dict[str, Mapping[str, Any]]:
    """Each server as the daemon's carrier sees it; empty where no daemon tells."""
    try:
        carriers = scene.status()["post"]["carriers"]
    except (Skip, PostroomError, KeyError):
        return {}
    return {one["url"]: one for one in carriers.get("opencode", {}).get("servers", [])}


Answers = tuple[Reply | NoAnswer, Reply | NoAnswer]
"""What its health and its sessions' status answered."""


def _ask_opencode(url: str, password: str | None) -> Answers:
    headers = {}
    if password is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"opencode:{password}".encode()).decode()
    answers: list[Reply | NoAnswer] = []
    for path in ("/global/health", WATCHED):
        try:
            answers.append(call(url, "GET", path, headers=headers, seconds=PEER_S))
        except NoAnswer as silent:
            answers.append(silent)
            if not answers[1:]:
                answers.append(silent)
                break
    return answers[0], answers[1]


def _judge(url: str, ours: bool, answers: Answers | None, seen: Mapping[str, Any] | None, daemon: bool) -> Found:
    """What a server's answers mean. ours: our settings name it; seen: as the daemon sees it, where there is a daemon."""
    start = f"start it: opencode serve --port {url.rpartition(':')[2]}"
    if answers is None:
        return fail(f"it did not answer within {PEERS_S:g} s", start, about=url)
    health, watched = answers
    if isinstance(health, NoAnswer):
        return fail(f"it cannot be reached: {health}", start, about=url)
    if isinstance(watched, NoAnswer):
        return fail(f"{WATCHED} gets no answer: {watched}", "restart that opencode", about=url)
    if 401 in {health.status, watched.status} or 403 in {health.status, watched.status}:
        if not ours:
            return ok("it answers, and its password is the daemon's alone", about=url)
        return fail(
            "it refuses the password",
            "set password_env or password_file of that [[opencode]] to its OPENCODE_SERVER_PASSWORD",
            about=url,
        )
    version = health.table().get("version") if health.status == 200 else None
    said = f"version {version}" if isinstance(version, str) else "of unknown version"
    basic = watched.status in NO_ROUTE or not isinstance(watched.value(), dict) or bool(seen and seen["basic"])
    if seen is None and daemon:
        return warn(f"{said}; the daemon does not carry to it yet", "restart the daemon", about=url)
    if seen is not None and seen["problem"]:
        return warn(f"{said}; the daemon says: {seen['problem']}", "see whether it hangs under load", about=url)
    if basic:
        return warn(
            f"{said}, basic: it does not show its turns, so one message at a time is all that is kept to",
            "npm install -g opencode-ai@latest",
            about=url,
        )
    return ok(f"{said}, full: its turns are watched", about=url)


def _by_daemon(url: str, seen: Mapping[str, Any]) -> Found:
    """A server on another machine, as the daemon there sees it."""
    if seen["problem"]:
        return fail(f"the daemon says: {seen['problem']}", "start that opencode", about=url)
    return ok(f"the daemon reaches it, {'basic' if seen['basic'] else 'full'}", about=url)


def tmux(scene: Scene) -> Findings:
    """Whether tmux is there, its version, and which of its traps that one has."""
    binary = scene.which("tmux")
    if binary is None:
        raise Skip("tmux is not installed: no pane gets messages", "apt install tmux, or brew install tmux")
    told = _run(binary, "-V")
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None:
        return ok(f"{told or 'a tmux that tells no version'}: taken for a new one")
    version = (int(found[1]), int(found[2]))
    if version < OLDEST_TMUX:
        return warn(f"{told} lacks what panes are watched by", "install tmux 3.2 or newer")
    return ok("; ".join([told, *_traps(version)]))


def _traps(version: tuple[int, int]) -> list[str]:
    traps = []
    if version < CRASHES:
        traps.append("a paste into a dead pane would end its server: each is guarded")
    if version < TELLS_PASTES:
        traps.append("does not tell who takes pastes: a pane's output is watched for it")
    else:
        traps.append("shows control characters in pastes: tmux itself marks them")
    return traps


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=TMUX_S, check=False)
    except subprocess.TimeoutExpired:
        raise Skip(f"{' '.join(words)} did not end within {TMUX_S:g} s") from None
    return done.stdout.decode("utf-8", "replace").strip()


def tmux_servers(scene: Scene) -> Findings:
    """Whether each tmux server with attached panes answers."""
    panes = [one for one in _endpoints(scene) if one["carrier"] == "tmux"]
    if not panes:
        raise Skip("no pane is attached", "in a pane: postroom attach --name NAME")
    if not scene.near():
        raise Skip("the panes are on the daemon's machine")
    binary = scene.which("tmux")
    if binary is None:
        return fail("panes are attached, and tmux is not installed here", "apt install tmux, or brew install tmux")
    sockets = sorted({str(one["address"]["socket"]) for one in panes})
    asked = side_by_side(
        [partial(_run, binary, "-S", path, "display-message", "-p", "#{pid} #{version}") for path in sockets], PEERS_S
    )
    return [_server(path, told, panes) for path, told in zip(sockets, asked, strict=True)]


def _server(path: str, told: str | None, panes: list[Mapping[str, Any]]) -> Found:
    here = [one for one in panes if one["address"]["socket"] == path]
    names = ", ".join(f"{one['name'] or one['id']} at {one['address']['pane']}" for one in here)
    if told is None:
        return fail(f"it does not answer; its panes: {names}", f"tmux -S {path} kill-server, if it hangs", about=path)
    if not told:
        if not Path(path).exists():
            return warn(f"it is gone, and with it {names}", "attach again in the new panes", about=path)
        return warn(f"no server runs there; its panes were {names}", "attach again in the new panes", about=path)
    silent = [one for one in here if not one["live"]]
    if silent:
        names = ", ".join(f"{one['name'] or one['id']} at {one['address']['pane']}" for one in silent)
        return warn(f"not heard of lately: {names}", "bring the agent to the front of that pane", about=path)
    return ok(f"it answers; attached: {names}", about=path)


def panes(scene: Scene) -> Findings:
    """Which panes hold their messages up, and why."""
    return _held(scene, panes=True)


def deliveries(scene: Scene) -> Findings:
    """Which other places hold their messages up, and why."""
    return _held(scene, panes=False)


def _held(scene: Scene, *, panes: bool) -> Findings:
    status = scene.status()
    told = status["deliveries"]
    held = [one for one in told["deferred"] if (one["carrier"] == "tmux") is panes]
    from postroom.wire import read_time

    now = scene.clock() if not status.get("now") else read_time(status["now"], "now") / 1000
    found: list[Found] = []
    for one in held:
        age = now - read_time(one["since"], "since") / 1000
        wait = "waits" if one["waiting"] == 1 else "wait"
        said = f"{one['waiting']} {wait} since {short_time(one['since'])}: {one['reason']}"
        reason = str(one["reason"])
        if age > LONG_S or reason == NO_CARRIER:
            # A ring ends before it has waited for long, and this does not end by itself.
            found.append(warn(said, _cure(reason, str(one["carrier"])), about=one["target"]))
        else:
            found.append(ok(f"{said} ({span(round(max(age, 0.0), 1))})", about=one["target"]))
    if not held and panes:
        return ok("no pane holds its messages up")
    if not panes and told["failed"]:
        words = f"{told['failed']} failed for good"
        found.append(warn(words, "postroom history --state failed; postroom retry ID", about="failed"))
    return found or ok(f"{told['pending']} pending, none held up")


def _cure(reason: str, carrier: str) -> str:
    """What ends the waiting, by the words of docs/terminals."""
    if NO_CARRIER in reason:
        if carrier == "opencode":
            return SET_UP
        missing = "install tmux" if carrier == "tmux" else f"set up what carries by {carrier}"
        return f"{missing}, and restart the daemon"
    for word, cure in (
        ("blocked", "answer the dialog in the pane"),
        ("copy mode", "leave copy mode with q"),
        ("typed and not sent", "send or delete the draft in the pane"),
        ("press Enter", "press Enter once in the pane"),
        ("endpoint_gone", "attach again and send again, or postroom message cancel ID"),
        ("out_of_reach", "run a daemon on that machine, as that user"),
        ("is running in the pane", "attach with --agent if that program is an agent"),
    ):
        if word in reason:
            return cure
    return "look at the pane or the session; postroom history --state pending shows the messages"


def gita(scene: Scene) -> Findings:
    """Whether the gita registry can be read, where the socket's senders need it."""
    from postroom.services.gita import GitaRegistry, registry_file

    try:
        told = scene.status().get("gita") or {}
    except (Skip, PostroomError):
        told = {}
    settings = scene.settings_or_none()
    file = Path(told["file"]) if told and scene.near() else registry_file(scene.environ, scene.home)
    required = told["required"] if told else settings is None or settings.post.gita_required
    off = "without gita: [gita] required = false in postroom.toml, and restart the daemon"
    if not required:
        return ok("not required: repositories are those that endpoints name")
    if told and not scene.near():
        raise Skip("the registry is on the daemon's machine")
    if not file.exists():
        asked = told.get("asked", settings is not None and settings.post.gita_asked)
        # Whoever never set it may never send to a repository over the socket either.
        say = warn if asked else skip
        return say(f"there is no {file}: a send over the socket to a repository is refused", f"gita add PATH; {off}")
    try:
        GitaRegistry(file).slug_of(Path("/"))
    except PostroomError as error:
        return fail(error.message, f"correct that file; {off}")
    return ok(f"{file} can be read")


def webhooks(scene: Scene) -> Findings:
    """Whether each webhook that messages go out by takes them."""
    told = scene.status()["post"]["carriers"].get("webhook")
    if not told:
        raise Skip("the daemon calls no webhooks")
    return [_webhook(str(name), one) for name, one in told.items()]


def _webhook(name: str, told: Mapping[str, Any]) -> Found:
    if told["state"] == "disabled":
        words = told["waits"] or f"since {short_time(told['disabled_since'])}: {told['last_failure']}"
        return fail(
            f"{told['url']} is disabled: {words}", "set its receiver right: it comes back by itself", about=name
        )
    if told["state"] == "failing":
        words = f"{told['url']} failed {many(told['failures'], 'time')}, at last: {told['last_failure']}"
        return warn(words, "look at its receiver", about=name)
    return ok(f"{told['url']} takes what is sent", about=name)


def _endpoints(scene: Scene) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = scene.ask("/v1/endpoints")["endpoints"]
    return found


CHECKS: Final = (
    Check("post.opencode", opencode),
    Check("post.tmux", tmux),
    Check("post.tmux_servers", tmux_servers),
    Check("post.panes", panes),
    Check("post.deliveries", deliveries),
    Check("post.gita", gita),
    Check("post.webhooks", webhooks),
)
