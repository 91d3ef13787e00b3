"""`postroom setup`: what a client needs to reach the daemon, put where that client looks for it, or taken away again."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroom.doors.cli.asking import AsJson, Data, refusing, usage
from postroom.doors.cli.plain import Verbs
from postroom.doors.cli.table import line, note, print_json
from postroom.errors import Conflict, Forbidden, Misconfigured, PostroomError, Unauthenticated

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon

app = Verbs("Set up a client, or take away what was set up.")

MARK: Final = "// Postroom's plugin for opencode."
"""The beginning of every plugin file that is ours."""

NAME: Final = "postroom.js"
PLACEHOLDER: Final = "const DATA = null "
KEPT: Final = "opencode.json"
SPEAKS_AS: Final = "ses_*"
PROBE: Final = "ses_setup"


@app.callback()
def _group() -> None:
    """Set up a client, or take away what was set up."""


@app.command("opencode")
def opencode(
    project: Annotated[
        Path | None, typer.Option("--project", metavar="DIR", help="For this project alone: DIR/.opencode/plugin.")
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--global", help="For every project of yours, which is the default.")
    ] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the plugin, and change nothing.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the plugin away; and for --global its token.")] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Install the plugin that gives opencode's sessions swarm_send and swarm_read under their own ids.

    While a daemon serves, the plugin gets a token of its own that speaks for sessions alone; it is kept in the data
    folder, readable by you alone. Running it again changes only what is out of date.
    """
    if project is not None and everywhere:
        raise usage("give --project or --global, not both", "--global")
    if only_print and remove:
        raise usage("give --print or --remove, not both", "--print")
    with refusing(as_json):
        folder = data_folder(data)
        plugin = _plugin(folder, data)
        place = _place(project)
        if only_print:
            print(plugin, end="")
            return
        if project is not None and not project.expanduser().is_dir():
            raise usage(f"{str(project)[:200]!r} is no folder", "--project")
        if remove:
            done = [_remove(place)]
            if project is None:
                done.append(_forget(folder, data))
        else:
            done = [_install(place, plugin), _keep_token(folder, data)]
    if as_json:
        print_json({"plugin": str(place), "token_file": str(folder / KEPT), "done": done})
        return
    for said in done:
        line(said)
    if not remove:
        note("opencode reads plugins when it starts: start it anew")


def data_folder(data: Path | None) -> Path:
    """The data folder: the option, POSTROOM_DATA, or the platform's user data folder."""
    chosen = data or os.environ.get("POSTROOM_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("postroom"))


def _plugin(folder: Path, data: Path | None) -> str:
    """The plugin's text; a data folder that opencode would not find by itself is written into it."""
    text = (files("postroom") / "clients" / "opencode_plugin.js").read_text("utf-8")
    named = data is not None or os.environ.get("POSTROOM_DATA")
    return text.replace(PLACEHOLDER, f"const DATA = {json.dumps(str(folder))} ", 1) if named else text


def _place(project: Path | None) -> Path:
    if project is not None:
        return project.expanduser().absolute() / ".opencode" / "plugin" / NAME
    # opencode keeps to the XDG folders on every platform.
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "opencode" / "plugin" / NAME


def _ours(place: Path) -> str | None:
    """The text of the plugin that is there, None for none. Raises Conflict when the file is somebody else's."""
    try:
        text = place.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{place} cannot be read: {error}", field="plugin") from None
    if not text.startswith(MARK):
        raise Conflict(
            f"{place} is not Postroom's, and is left as it is",
            field="plugin",
            hint="Move that file away, then run this again.",
        )
    return text


def _install(place: Path, plugin: str) -> str:
    from postroom.doors.cli.settings_file import write_private

    there = _ours(place)
    if there == plugin:
        return f"plugin: {place} is up to date"
    write_private(place, plugin.encode(), 0o644)
    return f"plugin: {'installed' if there is None else 'renewed'} {place}"


def _remove(place: Path) -> str:
    if _ours(place) is None:
        return f"plugin: there is none at {place}"
    try:
        place.unlink()
    except OSError as error:
        raise Misconfigured(f"{place} cannot be removed: {error.strerror}", field="plugin") from None
    return f"plugin: removed {place}"


def _keep_token(folder: Path, data: Path | None) -> str:
    """A token in the plugin's file that the daemon knows: the one that is there, or a new one."""
    from postroom.doors.cli.connection import Daemon, Unreachable
    from postroom.doors.cli.settings_file import write_private

    path = folder / KEPT
    kept = _kept(path)
    daemon = Daemon.find(data, os.environ)
    url = str(daemon.address)
    try:
        if kept.get("url") == url and _works(daemon, kept.get("token")):
            path.chmod(0o600)
            return f"token: {path} is up to date"
        made = daemon.ask(
            "POST",
            "/v1/tokens",
            {"name": f"opencode-{secrets.token_hex(4)}", "role": "agent", "speaks_as": [SPEAKS_AS]},
        )
    except Unreachable:
        return (
            f"token: no daemon answers at {url}; run this again while it serves, until then the admin's token is used"
        )
    except (Forbidden, Unauthenticated) as error:
        return f"token: none was made, since that takes an admin: {error.message}"
    token = made["token"]
    whole = {"url": url, "token": made["secret"], "token_id": token["id"]}
    try:
        write_private(path, json.dumps(whole).encode() + b"\n")
    except PostroomError:
        with suppress(PostroomError, Unreachable):
            daemon.ask("POST", f"/v1/tokens/{token['id']}/revoke", {})
        raise
    return f"token: {token['name']}, which speaks as {SPEAKS_AS} alone, is in {path}"


def _forget(folder: Path, data: Path | None) -> str:
    """Revoke the plugin's token where the daemon can be asked, and remove its file."""
    from postroom.doors.cli.connection import Daemon, Unreachable, segment

    path = folder / KEPT
    kept = _kept(path)
    if not kept:
        return f"token: there is none at {path}"
    said = "removed"
    try:
        Daemon.find(data, os.environ).ask("POST", f"/v1/tokens/{segment(str(kept.get('token_id')))}/revoke", {})
        said = "revoked and removed"
    except (Unreachable, PostroomError) as error:
        note(f"the token {kept.get('token_id')} was not revoked: {error}")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Misconfigured(f"{path} cannot be removed: {error.strerror}", field="token") from None
    return f"token: {said} {path}"


def _kept(path: Path) -> Mapping[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}", field="token") from None
    if not isinstance(kept, dict):
        raise Misconfigured(f"{path} holds no object; remove it, then run this again", field="token")
    return kept


def _works(daemon: Daemon, token: object) -> bool:
    """Whether the daemon knows the token, and lets it read a session's inbox."""
    if not isinstance(token, str) or not token:
        return False
    try:
        daemon.under(token).ask("GET", "/v1/inbox", query={"for": PROBE, "limit": 1})
    except (Forbidden, Unauthenticated):
        return False
    return True
