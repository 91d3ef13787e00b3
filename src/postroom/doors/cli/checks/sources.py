"""Checks of the sources: their secrets, what came by them, and the way by which senders get here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from postroom.doors.cli.checks.call import NoAnswer, call
from postroom.doors.cli.checks.check import Check, side_by_side
from postroom.doors.cli.checks.found import Findings, Found, fail, ok, skip, warn
from postroom.doors.cli.checks.scene import NO_DAEMON, Scene, Skip
from postroom.doors.cli.table import short_time

LOOKED_AT: Final = 20
"""Of how many sources it is asked what ever came by them."""
ASK_S: Final = 2.5
ADD: Final = "postroom source add NAME --provider github --queue inbox"
HOOKS_PORT: Final = 7374
TUNNEL: Final = "cloudflared tunnel --url"
CURES: Final[Mapping[str, str]] = {
    "too_large": "raise max_bytes in its [[source]] table, or have the sender send less",
    "clock": "set this host's clock by NTP, or ask for the sender's, or a proxy's delay",
    "afar": "public = true in its [[source]] table, if others than this machine's programs are to send",
}
"""What to do about each cause that deliveries are refused for, but a wrong proof."""
SELF_HOSTED: Final = frozenset({"gitea", "forgejo"})


def secrets(scene: Scene) -> Findings:
    """Whether each source has secrets, or is for this machine alone."""
    return [_secret(one) for one in _sources(scene)]


def _secret(source: Mapping[str, Any]) -> Found:
    name = source["name"]
    if source["insecure"] and not source["local"]:
        return warn(
            "it has no secret and is public: whoever finds its address makes work",
            f"postroom source rotate {name}, and take insecure and public out of the settings",
            about=name,
        )
    if source["insecure"]:
        return ok("no secret, and for programs on this machine alone", about=name)
    if not source["secrets"]:
        return fail("it has no secret: every delivery is refused", f"postroom source rotate {name}", about=name)
    matched = source["matched"]
    proved = f"; {matched['secret']} proved the latest delivery" if matched else ""
    return ok(f"{len(source['secrets'])} set: {', '.join(source['secrets'])}{proved}", about=name)


def deliveries(scene: Scene) -> Findings:
    """What ever came by each source, and what was refused since the daemon's start."""
    sources = _sources(scene)[:LOOKED_AT]
    counts = scene.status().get("hooks") or {}
    events = side_by_side([partial(_latest, scene, one["name"]) for one in sources], ASK_S)
    return [_came(one, counts.get(one["name"]) or {}, found or []) for one, found in zip(sources, events, strict=True)]


def _came(source: Mapping[str, Any], counts: Mapping[str, Any], events: list[Mapping[str, Any]]) -> Found:
    name, refused = source["name"], sum((counts.get("refused") or {}).values())
    if refused and not counts.get("accepted") and not counts.get("duplicates"):
        return fail(
            f"every delivery since the daemon's start ({refused}) was refused, the last one: {counts['last_refusal']}",
            _cure(counts, f"compare its secret with the sender's; `postroom source test {name}` tries it from here"),
            about=name,
        )
    said = f"the latest event came {short_time(events[0]['received_at'])}" if events else "nothing ever came"
    if refused:
        return warn(
            f"{said}; {refused} refused since the daemon's start, the last one: {counts['last_refusal']}",
            _cure(counts, "compare its secret with the sender's; who else knows the address?"),
            about=name,
        )
    if not events:
        return skip(f"{said} by it", f"postroom source test {name}; then have the sender redeliver", about=name)
    return ok(said, about=name)


def _cure(counts: Mapping[str, Any], proof: str) -> str:
    """What to do about the cause of the last refusal, which is shown; `proof` is for a proof that is not right."""
    return CURES.get(str(counts.get("last_cause")), proof)


def _latest(scene: Scene, name: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = scene.ask("/v1/events", source=name, limit=1)["events"]
    return found


def hooks(scene: Scene) -> Findings:
    """Whether there is a port with the webhooks alone, and the line that puts a tunnel before it."""
    base, answers = _hooks_base(scene)
    if base is None:
        said = "webhooks are taken on the main port alone, which is not to be put behind a tunnel"
        raise Skip(said, f"postroom serve --hooks-port {HOOKS_PORT}, then {TUNNEL} http://127.0.0.1:{HOOKS_PORT}")
    if not answers:
        return fail(
            f"nothing answers at {base}, where webhooks alone are to be taken", "restart the daemon; see its log"
        )
    return ok(f"webhooks alone at {base}; from elsewhere: {TUNNEL} {base}")


def _hooks_base(scene: Scene) -> tuple[str | None, bool]:
    """Where the hooks-only port is, by the daemon or the settings; and whether something answers there."""
    if not scene.reached():
        raise Skip(NO_DAEMON)
    told = scene.told_places().get("addresses")
    settings = scene.settings_or_none()
    if told is not None:
        base = str(told[0]) if len(told) > 1 else None
    elif settings is not None and settings.hooks_port:
        base = f"http://127.0.0.1:{settings.hooks_port}"
    else:
        base = None
    if base is None:
        return None, False
    try:
        return base, call(base, "GET", "/health").status == 200
    except NoAnswer:
        return base, False


def hosts(scene: Scene) -> Findings:
    """Which names besides loopback the daemon answers to."""
    settings = scene.settings_or_none()
    if settings is None:
        raise Skip("the settings cannot be read")
    listed = settings.http_hosts
    if "*" in listed:
        return warn(
            "[http] hosts has *: any page in a browser here may reach the daemon under a name of its own",
            'name the hosts instead: [http] hosts = ["postroom.example"]',
        )
    if not listed:
        return ok("[http] hosts names none: only loopback, and /hooks by any name")
    return ok(f"[http] hosts: {', '.join(listed)}, and loopback")


def self_hosted(scene: Scene) -> Findings:
    """Whether a Gitea or Forgejo beside us is likely to be allowed to call here."""
    sources = [one for one in _sources(scene) if one["provider"] in SELF_HOSTED]
    if not sources:
        raise Skip("no source of Gitea or Forgejo")
    found: list[Found] = []
    for one in sources:
        name, kind = one["name"], one["provider"].capitalize()
        if _latest(scene, name):
            found.append(ok(f"{kind}'s deliveries arrive", about=name))
        else:
            found.append(
                skip(
                    f"nothing ever came: {kind} calls no loopback or private address unless it is told to",
                    f"in {kind}'s app.ini: [webhook] ALLOWED_HOST_LIST = loopback,private; then restart it",
                    about=name,
                )
            )
    return found


def _sources(scene: Scene) -> list[Mapping[str, Any]]:
    """The daemon's sources; Skip where there are none."""
    found: list[Mapping[str, Any]] = list(scene.ask("/v1/sources")["sources"])
    if not found:
        raise Skip("no source is set up", ADD)
    return found


CHECKS: Final = (
    Check("sources.secrets", secrets),
    Check("sources.deliveries", deliveries),
    Check("sources.hooks_port", hooks),
    Check("sources.hosts", hosts),
    Check("sources.gitea", self_hosted),
)
