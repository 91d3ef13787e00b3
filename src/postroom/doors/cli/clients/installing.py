"""Setting one client up: all of it or none, shown first, and taken away so that the files are as they were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom.address import data_folder
from postroom.doors.cli.clients.claude import Claude
from postroom.doors.cli.clients.codex import Codex
from postroom.doors.cli.clients.config_file import ConfigFile
from postroom.doors.cli.clients.entry import Client, Via, Wanted, broken, program
from postroom.doors.cli.clients.opencode import Opencode
from postroom.doors.cli.clients.plugin import Plugin
from postroom.doors.cli.clients.token import ClientToken
from postroom.errors import Misconfigured, PostroomError

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon, Unreachable

CLIENTS: Final[tuple[type[Client], ...]] = (Claude, Codex, Opencode)
SPEAKS_AS: Final = ("ses_*",)
"""Whom opencode speaks as: its sessions."""

PORT: Final = "7373"
PRIVATE: Final = 0o600
SHARED: Final = 0o644


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one configuration file: `text` is the new one, None for no file."""

    file: ConfigFile
    action: str
    text: str | None
    leftover: Path | None = None
    """A backup that holds nothing but our own entry, and goes with it."""

    @property
    def difference(self) -> str:
        """The lines that change, "" for none."""
        return self.file.difference(self.text) if self.action != "none" else ""


@dataclass(slots=True)
class Done:
    """What was done, or without `written` would be: a line for each thing, and what there is to do next."""

    client: str
    written: bool
    changes: list[Change] = field(default_factory=list)
    backups: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    token_file: str | None = None
    plugin: str | None = None
    fault: PostroomError | Unreachable | None = None
    """Why the token was not revoked, when everything else was done."""

    def as_dict(self) -> dict[str, Any]:
        """All of it, for programs."""
        files = [
            {
                "file": str(change.file.path),
                "action": change.action,
                "difference": change.difference,
                "backup": self.backups.get(str(change.file.path)),
            }
            for change in self.changes
        ]
        return {
            "client": self.client,
            "written": self.written,
            "files": files,
            "token_file": self.token_file,
            "plugin": self.plugin,
            "done": self.said,
            "next": self.next,
        }


class Setup:
    """One client at one place, for one project or for all; `data` is the folder that the command line names."""

    def __init__(self, client: Client, project: Path | None, daemon: Daemon, data: Path | None) -> None:
        self._client = client
        self._project = project
        self._daemon = daemon
        folder = data_folder(data, os.environ)
        self._token = client_token(client, folder)
        self._plugin = Plugin.for_environment(project, folder, data) if isinstance(client, Opencode) else None

    def add(self, via: Via, *, channel: bool, write: bool) -> Done:
        """Whatever is there -> the client has its entry, with a token that the daemon knows; or what that would be.

        Raises Conflict for somebody else's entry, Misconfigured for a file that cannot be edited, Forbidden and
        Unreachable where no token can be made. Nothing is left half done.
        """
        file = ConfigFile(self._client.place(self._project))
        wanted = Wanted(
            via=via,
            project=self._project,
            program=program(),
            daemon=str(self._daemon.address),
            base=self._base(write) if via is Via.HTTP else "",
            token_file=self._token.path,
            token=self._token.secret(),
            variable=f"POSTROOM_{self._client.name.upper()}_TOKEN",
            channel=channel,
        )
        change = self._addition(file, wanted)
        done = Done(self._client.name, write, [change], token_file=str(self._token.path), plugin=self._plugin_path)
        done.next = self._client.after(wanted)
        if not write:
            done.said = [*self._would_add(), _told(change, self._client.at, write)]
            return done
        self._write(done, file, wanted)
        return done

    def remove(self, note: Callable[[str], None], *, write: bool) -> Done:
        """Set up -> as it was before; the token goes with its last use. Raises as `add` does."""
        changes = []
        for path in self._client.places(self._project):
            file = ConfigFile(path)
            if file.there and self._client.own(file.text, path) is not None:
                changes.append(self._removal(file))
        done = Done(self._client.name, write, changes, token_file=str(self._token.path), plugin=self._plugin_path)
        users = list(self._client.places(self._project))
        if self._plugin is not None:
            users.append(self._plugin.path)
            if write:
                done.said.append(self._plugin.remove())
            else:
                there = "would be removed" if self._plugin.there else "is not there"
                done.said.append(f"plugin: {self._plugin.path} {there}")
        for change in changes:
            self._apply(done, change)
        if not changes:
            done.said.append(f"config: there is no {self._client.at} in {', '.join(map(str, self._places()))}")
        said, done.fault = self._token.leave(self._daemon, users, note, write=write)
        done.said.append(said)
        if write:
            for folder in self._client.folders(self._project):
                with suppress(OSError):  # somebody else's files are in it, or it was never there
                    folder.rmdir()
        return done

    def _places(self) -> list[Path]:
        places = list(self._client.places(self._project))
        return [path for path in places if os.path.exists(path)] or places[:1]

    @property
    def _plugin_path(self) -> str | None:
        return None if self._plugin is None else str(self._plugin.path)

    def _write(self, done: Done, file: ConfigFile, wanted: Wanted) -> None:
        users = [file.path] if self._plugin is None else [file.path, self._plugin.path]
        with ExitStack() as undo:
            undo.callback(self._token.undo, self._daemon)
            kept = self._token.keep(self._daemon, users)
            if self._plugin is not None:
                undo.callback(self._plugin.undo)
                done.said.append(self._plugin.install())
            done.changes = [self._addition(file, replace(wanted, token=self._token.secret()))]
            self._apply(done, done.changes[0])
            done.said.append(kept)
            undo.pop_all()

    def _apply(self, done: Done, change: Change) -> None:
        if done.written and change.action != "none":
            backup = change.file.write(
                change.text, PRIVATE if self._project is None else SHARED, keep=not self._alone(change.file)
            )
            if change.leftover is not None:
                with suppress(OSError):
                    change.leftover.unlink()
            elif change.action == "remove" and os.path.lexists(change.file.backup):
                backup = change.file.backup
            if backup is not None:
                done.backups[str(change.file.path)] = str(backup)
        done.said.append(_told(change, self._client.at, done.written, done.backups.get(str(change.file.path))))

    def _addition(self, file: ConfigFile, wanted: Wanted) -> Change:
        there = self._client.own(file.text, file.path)
        if self._client.holds_secret(wanted) and (mode := file.open_to_others()) is not None:
            raise Misconfigured(
                f"{file.path} would hold the token in clear, and others than you may read it (mode {mode:o})",
                field="config",
                hint=f"chmod 600 {file.path}, or take --stdio, which keeps the token in a file of its own.",
            )
        try:
            text = self._client.put(file.text, self._client.describe(wanted, file.text))
        except ValueError as error:
            raise broken(file.path, error) from None
        action = "none" if file.there and text == file.text else "add" if there is None else "renew"
        return Change(file, action, text)

    def _removal(self, file: ConfigFile) -> Change:
        try:
            text, leftover = self._before(file)
        except ValueError as error:
            raise broken(file.path, error) from None
        return Change(file, "remove", text, leftover)

    def _before(self, file: ConfigFile) -> tuple[str | None, Path | None]:
        """The file without the entry, byte for byte what it was where nothing else was changed since; the leftover."""
        entry = self._client.entry(file.text)
        assert entry is not None
        leftover = None
        try:
            kept = ConfigFile(file.backup)
            if self._alone(kept):
                leftover = kept.path
            if kept.there and leftover is None:
                if self._client.entry(kept.text) is None and self._client.put(kept.text, entry) == file.text:
                    return kept.text, None
            elif self._client.put("", entry) == file.text or self._alone(file):
                return None, leftover
        except (Misconfigured, ValueError):
            pass  # what is kept is no help: the entry alone is taken out
        return self._client.take(file.text), leftover

    def _alone(self, file: ConfigFile) -> bool:
        """Whether a file holds nothing but our entry; nobody needs to have that kept."""
        try:
            entry = self._client.entry(file.text) if file.there else None
            return entry is not None and self._client.kind(entry) is not None and self._client.alone(file.text)
        except ValueError:
            return False

    def _would_add(self) -> list[str]:
        said = []
        if self._plugin is not None:
            said.append(f"plugin: {self._plugin.path} {self._plugin.would}")
        kept = "is kept, if the daemon knows it" if self._token.secret() else "would be made, readable by you alone"
        return [*said, f"token: {self._token.path} {kept}"]

    def _base(self, write: bool) -> str:
        """The daemon's own address on HTTP; without `write` a guess is good enough."""
        from postroom.doors.cli.connection import Unreachable

        if self._daemon.address.socket is None:
            return self._daemon.address.base
        try:
            addresses = self._daemon.ask("GET", "/v1/sources")["addresses"]
        except (PostroomError, Unreachable):
            if write:
                raise
            return f"http://127.0.0.1:{os.environ.get('POSTROOM_PORT') or PORT}"
        if not addresses:
            raise Misconfigured("the daemon listens on no port; take --stdio", field="http")
        return str(addresses[-1])


def client_token(client: Client, folder: Path) -> ClientToken:
    """The token of a client; opencode's plugin reads the record of its own."""
    if isinstance(client, Opencode):
        record = folder / "opencode.json"
        return ClientToken(folder, client.name, speaks_as=SPEAKS_AS, record=record, readable=True)
    return ClientToken(folder, client.name)


def standing(data: Path | None, project: Path | None = None) -> list[dict[str, Any]]:
    """What is there of each client: its program, its files for the user and for a project, and the entry in each.

    `entry` is stdio or http, None for none; `problem` says why a file cannot be used. The project is this folder by
    default, and is listed where it has such a file.
    """
    folder = data_folder(data, os.environ)
    told = []
    for kind in CLIENTS:
        client = kind()
        configs = [_config(client, None, "global")]
        here = project or Path.cwd()
        own = set(client.places(None))  # whose home is no project
        if any(os.path.lexists(path) and path not in own for path in client.places(here)):
            configs.append(_config(client, here, "project"))
        told.append(
            {
                "client": client.name,
                "program": shutil.which(client.executable),
                "configs": configs,
                "token_file": _if_there(client_token(client, folder).path),
                "plugin": _plugin_there(folder, data) if isinstance(client, Opencode) else None,
            }
        )
    return told


def _config(client: Client, project: Path | None, scope: str) -> dict[str, Any]:
    path = client.place(project)
    shown: dict[str, Any] = {"scope": scope, "file": str(path), "there": False, "entry": None, "problem": None}
    try:
        file = ConfigFile(path)
        shown["there"] = file.there
        entry: Mapping[str, Any] | None = client.own(file.text, path) if file.there else None
    except PostroomError as error:
        shown["there"] = True
        shown["problem"] = error.message
    else:
        shown["entry"] = None if entry is None else client.kind(entry)
    return shown


def _plugin_there(folder: Path, data: Path | None) -> str | None:
    try:
        plugin = Plugin.for_environment(None, folder, data)
    except PostroomError:
        return None
    return str(plugin.path) if plugin.there else None


def _if_there(path: Path) -> str | None:
    return str(path) if os.path.exists(path) else None


def _told(change: Change, at: str, written: bool, backup: str | None = None) -> str:
    path = change.file.path
    if change.action == "none":
        return f"config: {path} is up to date"
    kept = f" (as it was: {backup})" if backup else ""
    if change.text is None:
        return f"config: {path} {'is' if written else 'would be'} removed, since it held {at} alone{kept}"
    verb = {"add": "added", "renew": "renewed", "remove": "removed"}[change.action]
    where = f"{'from' if change.action == 'remove' else 'in'} {path}{kept}"
    return f"config: {at} {'' if written else 'would be '}{verb} {where}"
