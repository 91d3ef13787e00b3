"""Checks of the clients: which of their settings name Postroom, whether what they name works, and their tokens."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from postroom.doors.cli.checks.call import NoAnswer, call
from postroom.doors.cli.checks.check import Check
from postroom.doors.cli.checks.found import Findings, Found, fail, ok, skip, warn
from postroom.doors.cli.checks.scene import Scene, Skip

if TYPE_CHECKING:
    from postroom.doors.cli.clients.entry import Client

PEER_S: Final = 1.2
TOKEN: Final = re.compile(r"tk_[A-Za-z0-9_-]{8,}")
TOKEN_FILE: Final = "--token-file"
NAMED_FILE: Final = re.compile(r"\{file:([^{}]+)\}")
VARIABLE: Final = re.compile(r"\$\{(\w+)\}|\{env:(\w+)\}")
DATA_LINE: Final = "const DATA = "
PLUGIN_TOKEN: Final = "opencode.json"
TOKENS: Final = "clients"


def claude(scene: Scene) -> Findings:
    """Whether Claude Code's settings name Postroom, and rightly."""
    from postroom.doors.cli.clients.claude import Claude

    return _client(scene, Claude())


def codex(scene: Scene) -> Findings:
    """Whether Codex's settings name Postroom, and rightly."""
    from postroom.doors.cli.clients.codex import Codex

    return _client(scene, Codex())


def opencode(scene: Scene) -> Findings:
    """Whether opencode's settings name Postroom, and rightly."""
    from postroom.doors.cli.clients.opencode import Opencode

    return _client(scene, Opencode())


def _client(scene: Scene, client: Client) -> Findings:
    again = f"postroom setup {client.name} --write"
    places = dict.fromkeys([*client.places(None), *client.places(scene.here)])
    there = [place for place in places if place.is_file()]
    if not there:
        raise Skip(f"{client.title} has no settings for you or this folder", f"{again}, once it is installed")
    found: list[Found] = []
    for file in there:
        try:
            text = file.read_text("utf-8")
            entry = client.entry(text) or _of_this_folder(client, text, scene.here)
        except (OSError, ValueError) as error:
            found.append(fail(f"{file}, {error}", "mend that file by hand: it is left as it is"))
            continue
        if entry is not None:
            found.append(_judge(scene, client, file, entry, again))
    if found:
        return [_numbered(one, n) for n, one in enumerate(found, 1)] if len(found) > 1 else found[0]
    return skip(f"{', '.join(map(str, there))} does not name Postroom", again)


def _of_this_folder(client: Client, text: str, here: Path) -> Mapping[str, Any] | None:
    """The entry that Claude Code's own `mcp add` makes for one folder alone."""
    from postroom.doors.cli.clients import jsonc
    from postroom.doors.cli.clients.entry import NAME

    if client.name != "claude" or jsonc.blank(text):
        return None
    found = jsonc.find(text, ("projects", str(here), "mcpServers", NAME))
    return found if isinstance(found, dict) else None


def _numbered(found: Found, n: int) -> Found:
    return Found(found.state, found.words, found.fix, str(n))


def _judge(scene: Scene, client: Client, file: Path, entry: Mapping[str, Any], again: str) -> Found:
    kind = client.kind(entry)
    if kind is None:
        return warn(f"{file}: {client.at} is something else than Postroom", f"rename that entry, then {again}")
    if entry.get("enabled") is False or entry.get("disabled") is True:
        return warn(f"{file} has Postroom switched off", f"switch {client.at} on there")
    words = client.command(entry)
    if isinstance(words, list):
        return _judge_command(scene, file, [str(word) for word in words], again)
    return _judge_url(scene, file, entry, again)


def _judge_command(scene: Scene, file: Path, words: Sequence[str], again: str) -> Found:
    found = words[0] if os.path.isabs(words[0]) else scene.which(words[0])
    if found is None:
        return fail(f"{file} starts {words[0]}, which is not on the PATH", again)
    if not os.path.isfile(found):
        return fail(f"{file} starts {found}, which is not there", again)
    if not os.access(found, os.X_OK):
        return fail(f"{file} starts {found}, which cannot be run", f"chmod +x {found}; or {again}")
    if TOKEN_FILE in words[:-1]:
        token = Path(words[words.index(TOKEN_FILE) + 1])
        if (wrong := _token_in(scene, token, again)) is not None:
            return wrong
    return ok(f"{file} starts {found}")


def _judge_url(scene: Scene, file: Path, entry: Mapping[str, Any], again: str) -> Found:
    url = str(entry["url"])
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    try:
        call(base, "GET", "/health", seconds=PEER_S)
    except NoAnswer as silent:
        return fail(f"{file} asks {url}, where nothing answers: {silent}", f"postroom serve; or {again}")
    headers = entry.get("headers")
    shown = str(headers.get("Authorization", "")) if isinstance(headers, dict) else ""
    named = VARIABLE.search(shown)
    variable = entry.get("bearer_token_env_var") or (named and (named[1] or named[2]))
    if variable and not scene.environ.get(str(variable)):
        return warn(f"{file} takes the token from {variable}, which is not set here", "set it where the client starts")
    kept = NAMED_FILE.search(shown)
    if kept is not None and (wrong := _token_in(scene, Path(kept[1]).expanduser(), again)) is not None:
        return wrong
    written = TOKEN.search(shown)
    if written is None:
        return ok(f"{file} asks {url}")
    if not _known(base, written.group()):
        return fail(f"{file} shows {url} a token that it does not know", again)
    if file.stat().st_mode & 0o077:
        return warn(f"{file} has a token in it, and others may read it", f"chmod 600 {file}")
    return ok(f"{file} asks {url} under a token that it knows")


def _known(base: str, token: str) -> bool:
    """Whether the daemon there knows the token; one that says nothing of it is not held against it."""
    try:
        return call(base, "GET", "/v1/who", headers={"Authorization": f"Bearer {token}"}, seconds=PEER_S).status != 401
    except NoAnswer:
        return True


def tokens(scene: Scene) -> Findings:
    """Whether the clients' own tokens are kept privately, and the daemon knows them."""
    folder = scene.folder()
    there = [path for path in (*sorted((folder / TOKENS).glob("*.token")), folder / PLUGIN_TOKEN) if path.is_file()]
    if not there:
        raise Skip("no client has a token of its own", "postroom setup CLIENT --write, while the daemon serves")
    return [_kept(scene, path) for path in there]


def _kept(scene: Scene, path: Path) -> Found:
    wrong = _token_in(scene, path, "postroom setup CLIENT --write makes another")
    if wrong is not None:
        return Found(wrong.state, wrong.words, wrong.fix, path.name)
    return ok(f"{path} is private{', and known' if scene.reached() else ''}", about=path.name)


def _token_in(scene: Scene, file: Path, again: str) -> Found | None:
    """What is wrong with a file that holds a token; None when nothing is."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return fail(f"the token's file {file} cannot be read: {error}", again)
    if mode & 0o077:
        return fail(f"the token's file {file} has mode {mode:04o}", f"chmod 600 {file}")
    written = TOKEN.search(_secret_of(text) if file.suffix == ".json" else text)
    if written is None:
        return fail(f"the file {file} holds no token", again)
    if not scene.reached():
        return None
    with suppress(NoAnswer):
        if scene.call("GET", "/v1/who", Authorization=f"Bearer {written.group()}").status == 401:
            return fail(f"the daemon does not know the token in {file}", again)
    return None


def _secret_of(text: str) -> str:
    """The secret in what is kept of a token, where its id begins alike."""
    try:
        kept = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(kept.get("token") or "") if isinstance(kept, dict) else ""


def plugin(scene: Scene) -> Findings:
    """Whether opencode's plugin is there, and this version's."""
    from postroom.doors.cli.clients.plugin import MARK

    there = [place for place in _plugins(scene) if place.is_file()]
    if not there:
        raise Skip("opencode's plugin is not installed", "postroom setup opencode --write")
    own = _but_data((files("postroom") / "clients" / "opencode_plugin.js").read_text("utf-8"))
    for place in there:
        text = place.read_text("utf-8", "replace")
        if not text.startswith(MARK):
            return warn(f"{place} is not Postroom's", "move it away, then postroom setup opencode --write")
        if _but_data(text) != own:
            return warn(f"{place} is not this version's", "postroom setup opencode --write, and start opencode anew")
    return ok(f"{', '.join(map(str, there))} is up to date")


def _plugins(scene: Scene) -> Iterator[Path]:
    from postroom.doors.cli.clients.opencode import config_folder
    from postroom.doors.cli.clients.plugin import FILE

    for folder in (config_folder(), scene.here / ".opencode"):
        for kind in ("plugin", "plugins"):
            yield folder / kind / FILE


def _but_data(text: str) -> list[str]:
    """The plugin's lines without the one that names a data folder."""
    return [line for line in text.splitlines() if not line.startswith(DATA_LINE)]


CHECKS: Final = (
    Check("clients.claude", claude),
    Check("clients.codex", codex),
    Check("clients.opencode", opencode),
    Check("clients.plugin", plugin),
    Check("clients.tokens", tokens),
)
