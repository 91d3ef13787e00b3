"""`postroom rules`: a source's own rules, edited while the daemon serves, and what they would make of a delivery."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from postroom.doors.cli.asking import MAX_INPUT_BYTES, AsJson, Data, asking, given, read_json, usage
from postroom.doors.cli.plain import Verbs, seconds
from postroom.doors.cli.table import block, cell, fields, line, note, table, tell
from postroom.text import many

app = Verbs("See, edit and try the rules that make todos of events.")

EVENT: Final = "ev_"
UNKNOWN: Final = "unknown"
FACTS: Final = ("label", "author", "repository", "branch", "outcome", "target", "changed", "mention")

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="The source's name.")]
Rule = Annotated[str, typer.Argument(metavar="NAME", help="The rule's name.")]
Values = list[str] | None


def _fact(flag: str) -> Any:
    return typer.Option(flag, metavar="VALUE|GLOB", help="Asked of the event; several are alternatives.")


@app.command("list")
def list_rules(source: Source, as_json: AsJson = False, data: Data = None) -> None:
    """List a source's rules in the order in which they are asked."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", _path(source))
    tell(answer, as_json, _show_all)


@app.command("add")
def add(
    source: Source,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="JSON|@FILE|-", help="The whole rule as JSON, instead of options.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What it is called; made up where it is left out.")] = None,
    kind: Annotated[Values, _fact("--kind")] = None,
    action: Annotated[Values, _fact("--action")] = None,
    label: Annotated[Values, _fact("--label")] = None,
    author: Annotated[Values, _fact("--author")] = None,
    repository: Annotated[Values, _fact("--repository")] = None,
    branch: Annotated[Values, _fact("--branch")] = None,
    outcome: Annotated[Values, _fact("--outcome")] = None,
    target: Annotated[Values, _fact("--target")] = None,
    changed: Annotated[Values, _fact("--changed")] = None,
    mention: Annotated[Values, _fact("--mention")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Where its todos go; the source's by default.")] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEMPLATE", help="The todo's title.")] = None,
    todo_kind: Annotated[str | None, typer.Option("--todo-kind", metavar="KIND", help="The todo's kind.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="-100 to 100.")] = None,
    assignee: Annotated[str | None, typer.Option("--assignee", metavar="NAME", help="Who alone may claim it.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEMPLATE", help="Events with one key share one live todo.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", parser=seconds, metavar="DURATION", help="Not claimable before.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", metavar="N", help="1 to 100.")] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="What matches makes no todo, and no later rule is asked.")
    ] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="Ask the later rules too.")] = False,
    at: Annotated[int | None, typer.Option("--at", metavar="PLACE", help="Before the rule there; at the end.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Add a rule to a source's own, which are asked before those of its settings and preset."""
    facts: dict[str, Values] = {"kind": kind, "action": action, "label": label, "author": author}
    facts |= {"repository": repository, "branch": branch, "outcome": outcome}
    facts |= {"target": target, "changed": changed, "mention": mention}
    match = {fact: values for fact, values in facts.items() if values}
    made = given(name=name, match=match or None, queue=queue, title=title, kind=todo_kind, priority=priority)
    made |= given(assignee=assignee, key=key, delay_s=delay, max_attempts=max_attempts, drop=drop or None)
    made |= {"continue": True} if go_on else {}
    if (rule is None) == (not made):
        raise usage("give options such as --kind and --queue, or --rule with the whole as JSON; not both")
    asked = made if rule is None else read_json(rule, "--rule")
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"{_path(source)}/add", {"rule": asked, **given(at=at)})
    tell(answer, as_json, _show_rules)


@app.command("move")
def move(
    source: Source,
    name: Rule,
    at: Annotated[int, typer.Argument(metavar="PLACE", help="Its new place among the source's own, from 0.")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Move a rule to another place."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"{_path(source)}/move", {"name": name, "at": at})
    tell(answer, as_json, _show_rules)


@app.command("remove")
def remove(source: Source, name: Rule, as_json: AsJson = False, data: Data = None) -> None:
    """Remove a rule."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"{_path(source)}/remove", {"name": name})
    tell(answer, as_json, _show_rules)


@app.command("test")
def try_rules(
    source: Source,
    what: Annotated[str, typer.Argument(metavar="FILE|EVENT", help="A body in a file (- is stdin), or an event's id.")],
    kind: Annotated[
        str | None, typer.Option("--kind", help="What the sender's header says, or a sample's name; for a file.")
    ] = None,
    header: Annotated[
        Values, typer.Option("--header", metavar="'NAME: VALUE'", help="A header beside the file; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Say what would become of an event or a body, and why; nothing is changed."""
    asked: dict[str, Any]
    if what.startswith(EVENT):
        if kind is not None or header:
            raise usage("an event has its own kind and headers; give --kind and --header with a file", "FILE|EVENT")
        asked = {"event_id": what}
    else:
        headers = dict(_header(one) for one in header or ())
        asked = {"body": _read(what), **given(kind=kind, headers=headers or None)}
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"{_path(source)}/test", asked)
    tell(answer, as_json, _show_trial)
    if answer["trial"]["kind"] == UNKNOWN and kind is None and not as_json:
        note("nothing in the file tells its kind, since the sender's header does: give it with --kind")


def _path(source: str) -> str:
    from postroom.doors.cli.connection import segment

    if not source:
        raise usage("an empty name names no source", "SOURCE")
    return f"/v1/sources/{segment(source)}/rules"


def _header(word: str) -> tuple[str, str]:
    name, colon, value = word.partition(":")
    if not colon or not name.strip():
        raise usage(f"{word[:80]!r} is no header; expected 'Name: value'", "--header")
    return name.strip(), value.strip()


def _read(word: str) -> str:
    try:
        if word == "-":
            raw = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with Path(word).open("rb") as file:
                raw = file.read(MAX_INPUT_BYTES + 1)
        if len(raw) > MAX_INPUT_BYTES:
            raise usage(f"more than {MAX_INPUT_BYTES} bytes", "FILE|EVENT")
        return raw.decode()
    except (OSError, ValueError) as error:
        raise usage(f"{word[:200]!r} cannot be read: {error}", "FILE|EVENT") from None


def _show_all(answer: Mapping[str, Any]) -> None:
    _show_rules(answer, whole=True)


def _show_rules(answer: Mapping[str, Any], *, whole: bool = False) -> None:
    rules = answer["rules"]
    if rules["version"]:
        line(rules["source"], f"has rules of its own in version {rules['version']}, by {rules['created_by']}")
    else:
        line(rules["source"], "has no rules of its own")
    if rules["broken"]:
        note(f"warning: they cannot be read, and what comes is held: {rules['broken']}")
    rows: list[tuple[str, Mapping[str, Any]]] = [(str(place), rule) for place, rule in enumerate(rules["rules"])]
    if whole:
        rows += [("settings", rule) for rule in rules["settings"]]
    elif rules["settings"]:
        follow = "follows" if len(rules["settings"]) == 1 else "follow"
        note(f"{many(len(rules['settings']), 'rule')} of its settings and preset {follow}")
    if rows:
        table(
            ("place", "rule", "match", "gives"),
            [(place, rule["name"], _match(rule), _gives(rule)) for place, rule in rows],
        )


def _match(rule: Mapping[str, Any]) -> str:
    asked = rule.get("match") or {}
    return ", ".join(f"{fact} {cell(value)}" for fact, value in asked.items()) or "everything"


def _gives(rule: Mapping[str, Any]) -> str:
    said = [
        f"{name} {cell(value)}" for name, value in rule.items() if name not in {"name", "match", "drop", "continue"}
    ]
    said += [word for word in ("drop", "continue") if rule.get(word)]
    return ", ".join(said) or "a todo"


def _show_trial(answer: Mapping[str, Any]) -> None:
    trial = answer["trial"]
    kind = f"{trial['kind']}.{trial['action']}" if trial["action"] else trial["kind"]
    fields(
        [
            ("would be", trial["state"]),
            ("reason", trial["reason"]),
            ("kind", kind),
            ("title", trial["title"]),
            ("rules version", trial["rules_version"]),
            *(("asked", told) for told in trial["trace"]),
        ]
    )
    for todo in trial["todos"]:
        line()
        fields([(name, value) for name, value in todo.items() if name != "payload"])
        block("payload", todo["payload"])
