"""`postroom source` and `postroom fire`: the senders that are set up, one more or less, their secrets, and samples."""

from __future__ import annotations

import secrets
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroom.doors.cli.asking import REFUSED, AsJson, Data, asking, given, refusing, usage
from postroom.doors.cli.place import Place
from postroom.doors.cli.plain import Verbs
from postroom.doors.cli.source_shown import show_sources
from postroom.doors.cli.table import fields, line, note, print_json, table, tell
from postroom.errors import Conflict, Invalid, Misconfigured, NotFound, PostroomError

if TYPE_CHECKING:
    from postroom.doors.cli.connection import Daemon
    from postroom.doors.cli.settings_file import SettingsFile

app = Verbs("See, add, try, rotate and remove the sources of events.")

THEIRS: Final = ("slack", "stripe", "linear", "sentry", "pagerduty", "standard")
"""Senders that make the secret themselves and show it once."""
PLACEHOLDER: Final = "whsec_" + "A" * 43 + "="

FLAGS: Final = {
    "name": "NAME",
    "provider": "--provider",
    "queue": "--queue",
    "preset": "--preset",
    "secrets_env": "--secret-env",
    "secrets_file": "--secret-file",
}
"""The options that a source's keys are typed as."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source's name; it is the end of /hooks/NAME.")]
Kind = Annotated[str | None, typer.Argument(metavar="KIND", help="Which sample; the most telling one by default.")]
Config = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The settings file; else the daemon's own.")
]
SecretStdin = Annotated[bool, typer.Option("--secret-stdin", help="Read the secret from stdin, on one line.")]


@app.command("list")
def list_sources(as_json: AsJson = False, data: Data = None) -> None:
    """List the sources, where their secrets stand, and which of those proved the latest delivery."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/sources")
    tell(answer, as_json, show_sources)


@app.command("add")
def add(
    name: Name,
    provider: Annotated[str, typer.Option("--provider", help="Who sends: github, gitlab, slack, generic, ...")],
    queue: Annotated[str | None, typer.Option("--queue", help="Where its todos go.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="A ready list of rules; it needs a queue.")] = None,
    secret_env: Annotated[
        list[str] | None, typer.Option("--secret-env", metavar="VAR", help="The daemon's variable with the secret.")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", metavar="FILE", help="A file with the secret, one a line.")
    ] = None,
    secret_stdin: SecretStdin = False,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A further key of its table, as scheme=bearer; repeatable."),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Add a source to the settings file and have the daemon read it; a secret is made where none is named.

    The file as it was stays beside it, with `.bak` at its end.
    """
    if sum(map(bool, (secret_env, secret_file, secret_stdin))) > 1:
        raise usage("give one of --secret-env, --secret-file and --secret-stdin")
    wanted = {"name": name, "provider": provider, **given(queue=queue, preset=preset), **_options(options or [])}
    secret = None
    if not secret_env and secret_file is None and not wanted.get("insecure"):
        secret = _secret(provider, secret_stdin)
    with refusing(as_json):
        place = Place(config, data)
        file = place.settings_file()
        kept = place.data / "secrets" / name if secret is not None else None
        if secret_env:
            wanted["secrets_env"] = secret_env
        elif secret_file is not None:
            wanted["secrets_file"] = str(secret_file.expanduser().absolute())
        elif kept is not None:
            wanted["secrets_file"] = _beside(kept, file.path)
        local = _check(wanted, file.path.parent, secret)
        if file.source(name) is not None:
            raise Conflict(f"{file.path} has a source {name} already", field="name")
        _keep(kept, secret)
        try:
            file.add_source(wanted)
        except PostroomError:
            _forget(kept)
            raise
        try:
            state = place.reload(name)
        except PostroomError:
            file.restore()
            _forget(kept)
            raise
    _tell_secret(name, place, state, None if secret_stdin or provider in THEIRS else secret, file, as_json)
    if as_json:
        return
    if queue is None and preset is None:
        note("it has no queue: its events are kept, and make no todo before a rule names one")
    if wanted.get("query_token"):
        note(f"the secret goes into the address: ?{wanted['query_token']}=SECRET")
    if local:
        note(
            "it is for programs on this machine alone: such a proof is a weak one; public = true in its table opens it"
        )


@app.command("rotate")
def rotate(
    name: Name,
    drop_old: Annotated[bool, typer.Option("--drop-old", help="Keep the newest secret alone.")] = False,
    secret_stdin: SecretStdin = False,
    config: Config = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Put a new secret first in a source's secrets file; the old ones stay good until --drop-old."""
    if drop_old and secret_stdin:
        raise usage("--drop-old takes no new secret", "--drop-old")
    with refusing(as_json):
        place = Place(config, data)
        file = place.settings_file()
        path, provider = _secrets_file(file, name)
        before = _lines(path)
        secret = None if drop_old else _secret(provider, secret_stdin)
        after = before[:1] if secret is None else [secret, *before]
        if secret is None and len(before) < 2:
            raise Conflict(
                f"{path} has one secret alone: there is no old one to drop",
                field="name",
                hint=f"postroom source rotate {name}",
            )
        if secret is not None and secret in before:
            raise Conflict("this secret is there already", field="name", hint="Give another secret.")
        from postroom.doors.cli.settings_file import write_private

        write_private(path, "".join(f"{one}\n" for one in after).encode())
        try:
            state = place.reload(name)
        except PostroomError:
            write_private(path, "".join(f"{one}\n" for one in before).encode())
            raise
    shown = None if secret_stdin or provider in THEIRS else secret
    _tell_secret(name, place, state, shown, file, as_json, left=len(after))


@app.command("remove")
def remove(name: Name, config: Config = None, as_json: AsJson = False, data: Data = None) -> None:
    """Take a source out of the settings file and have the daemon read it; its events and their todos stay.

    The file as it was stays beside it, with `.bak` at its end; so does a file with the source's secrets.
    """
    if not name:
        raise usage("an empty name names no source", "NAME")
    with refusing(as_json):
        place = Place(config, data)
        file = place.settings_file()
        secrets_file = (file.source(name) or {}).get("secrets_file")
        file.remove_source(name)
        try:
            state = place.reload(name, gone=True)
        except PostroomError:
            file.restore()
            raise
    if as_json:
        print_json({"source": {"name": name, "settings_file": str(file.path), "daemon": state}})
        return
    line(name, "is removed; what it sends is refused from now on" if state == "reloaded" else "is removed")
    _tell_state(state, file)
    if isinstance(secrets_file, str):
        note(f"its secrets stay in {file.path.parent / Path(secrets_file).expanduser()}")


@app.command("test")
def try_source(name: Name, kind: Kind = None, as_json: AsJson = False, data: Data = None) -> None:
    """Post a signed sample to the source through the daemon's own port, and say what came of it.

    It is a delivery like any other: it makes an event, and the todos that the rules ask for.
    """
    with asking(as_json, data) as daemon:
        answer = _fire(daemon, name, kind)
        answer["event"] = None
        if answer["event_id"] is not None:
            answer["event"] = daemon.ask("GET", f"/v1/events/{answer['event_id']}")["event"]
    _tell_fired(answer, as_json)


def fire(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The source's name.")],
    kind: Kind = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Post a realistic, signed sample to a source, to try things out; `source list --json` has the kinds."""
    with asking(as_json, data) as daemon:
        answer = _fire(daemon, source, kind)
    _tell_fired(answer, as_json)


def _options(words: list[str]) -> dict[str, Any]:
    """Further keys: a TOML value where it is one, else text."""
    made: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise usage(f"{word[:80]!r} is no setting; expected KEY=VALUE", "--set")
        try:
            read = tomllib.loads(f"value = {value}")
        except tomllib.TOMLDecodeError:
            read = {"value": value}
        made[key] = read["value"] if set(read) == {"value"} else value
    return made


def _secret(provider: str, from_stdin: bool) -> str:
    """The sender's own secret, or a new one of 256 random bits where the sender takes one."""
    if not from_stdin and provider not in THEIRS:
        return secrets.token_hex(32)
    if from_stdin:
        given_ = sys.stdin.readline(4096)
    elif sys.stdin.isatty():
        from getpass import getpass

        given_ = getpass(f"The secret that {provider} shows: ")
    else:
        raise usage(f"{provider} makes the secret itself: give it with --secret-stdin, --secret-file or --secret-env")
    if not given_.strip():
        raise usage("the secret is empty", "--secret-stdin")
    return given_.strip()


def _check(wanted: Mapping[str, Any], folder: Path, secret: str | None) -> bool:
    """Pass when the table is right, whatever the daemon's environment holds: whether it is for this machine alone.

    Raises Misconfigured naming the key.
    """
    from postroom.sources.settings import build_sources

    tried = dict(wanted)
    if secret is not None:
        tried.pop("secrets_file", None)
        tried["secrets"] = [secret]
    stand_ins = dict.fromkeys(wanted.get("secrets_env", []), PLACEHOLDER)
    try:
        return build_sources([tried], stand_ins, folder).by_name[wanted["name"]].local
    except Misconfigured as error:
        key = str(error.field).rpartition(".")[2]
        flag = FLAGS.get(key, key)
        raise Misconfigured(
            error.message.replace(f'source "{wanted["name"]}": {key}:', f"{flag}:"),
            field=flag,
            hint="Correct that option, then run this again: nothing was written.",
        ) from None


def _beside(path: Path, settings: Path) -> str:
    """The path as the settings file may name it: from its own folder on where it lies below that."""
    return str(path.relative_to(settings.parent)) if path.is_relative_to(settings.parent) else str(path)


def _keep(path: Path | None, secret: str | None) -> None:
    if path is None or secret is None:
        return
    from postroom.doors.cli.settings_file import write_private

    if path.exists():
        raise Conflict(
            f"{path} is there already: name it with --secret-file, or remove it",
            field="secret",
            hint="Nothing was changed.",
        )
    write_private(path, f"{secret}\n".encode())


def _forget(path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)


def _secrets_file(file: SettingsFile, name: str) -> tuple[Path, str]:
    table_ = file.source(name)
    if table_ is None:
        raise NotFound(f"{file.path} has no source {name[:64]!r}", field="name")
    path = table_.get("secrets_file")
    if not isinstance(path, str):
        raise Invalid(
            f"the secrets of {name} stand in its secrets_env or secrets: set the new one there beside the old one, "
            "then postroom reload",
            field="secrets_file",
        )
    return file.path.parent / Path(path).expanduser(), str(table_.get("provider"))


def _lines(path: Path) -> list[str]:
    try:
        return [one for one in path.read_text("utf-8").splitlines() if one]
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}", field="secrets_file") from None


def _fire(daemon: Daemon, name: str, kind: str | None) -> dict[str, Any]:
    from postroom.doors.cli.connection import segment

    if not name:
        raise usage("an empty name names no source", "NAME")
    answer = daemon.ask("POST", f"/v1/sources/{segment(name)}/fire", given(kind=kind))
    told = answer["answer"]
    return {**answer, "event_id": told.get("event_id") if isinstance(told, dict) else None}


def _tell_fired(answer: Mapping[str, Any], as_json: bool) -> None:
    tell(answer, as_json, _show_fired)
    if answer["status"] >= 300:
        raise typer.Exit(REFUSED)


def _show_fired(answer: Mapping[str, Any]) -> None:
    told = answer["answer"]
    line(
        f"posted {answer['bytes']} bytes to {answer['path']}: {answer['status']}",
        "" if isinstance(told, dict) else told,
    )
    if not isinstance(told, dict):
        return
    error, event = told.get("error"), answer.get("event")
    if error:
        note(f"refused: {error['message']}; the daemon's log has the reason")
        return
    fields([("event", told["event_id"]), ("duplicate", told["duplicate"] or None)])
    if event is not None:
        fields(
            [
                ("verified", event["verification"]),
                ("state", event["state"]),
                ("reason", event["reason"]),
                *(("decided", one) for one in event["trace"] or ()),
            ]
        )
    if told["todos"]:
        table(
            ("todo", "queue", "rule", "new"),
            [(link["todo_id"], link["queue"], link["rule"], link["created"]) for link in told["todos"]],
        )
    else:
        line("no todo")


def _tell_secret(
    name: str,
    place: Place,
    state: str,
    secret: str | None,
    file: SettingsFile,
    as_json: bool,
    left: int | None = None,
) -> None:
    """What to give to the sender: the address, and this once the secret, where it was made here."""
    path = f"/hooks/{name}"
    url = f"{place.addresses[0]}{path}" if place.addresses else path
    if as_json:
        told = {"name": name, "url": url, "secret": secret, "settings_file": str(file.path), "daemon": state}
        print_json({"source": told if left is None else {**told, "secrets": left}})
        return
    fields([("source", name), ("address", url), ("secret", secret), ("settings", str(file.path)), ("secrets", left)])
    _tell_state(state, file)
    if secret is not None:
        note("the secret is shown only now")


def _tell_state(state: str, file: SettingsFile) -> None:
    if state == "not running":
        note("no daemon runs here: it will read this when it starts")
    elif state != "reloaded":
        note(f"the daemon reads {state}, not this file: start it again with --config {file.path}")
