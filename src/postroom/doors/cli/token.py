"""`postroom token`: who may come in, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from postroom.doors.cli.asking import AsJson, Data, asking, given, usage
from postroom.doors.cli.plain import Verbs
from postroom.doors.cli.table import line, note, short_time, table, tell

app = Verbs("Create, list and revoke bearer tokens.")

Role = Literal["agent", "admin"]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; claims carry this name.")],
    role: Annotated[Role, typer.Option("--role", help="An agent works; an admin also manages.")] = "agent",
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="GLOB", help="A queue, or a pattern as ci/*; may be repeated; all by default."),
    ] = None,
    speaks_as: Annotated[
        list[str] | None,
        typer.Option("--speaks-as", metavar="GLOB", help="A name it may send as and read for, as ses_*; repeatable."),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Create a token and print its secret, this once."""
    body = given(name=name, role=role, queues=queues or None, speaks_as=speaks_as or None)
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", "/v1/tokens", body)
    tell(answer, as_json, _show_secret)


@app.command("list")
def list_tokens(
    everything: Annotated[bool, typer.Option("--all", help="The revoked ones too.")] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List the tokens that open something; secrets are never shown again."""
    with asking(as_json, data) as daemon:
        answer = daemon.ask("GET", "/v1/tokens")
    if not everything:
        answer = {**answer, "tokens": [token for token in answer["tokens"] if token["revoked_at"] is None]}
    tell(answer, as_json, _show_list)


@app.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's whole id, tk_...")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Revoke a token: it opens nothing any more, and what it had claimed goes back to the queue."""
    from postroom.doors.cli.connection import segment

    if not id:
        raise usage("an empty id names nothing; expected tk_<uuid>", "ID")
    with asking(as_json, data) as daemon:
        answer = daemon.ask("POST", f"/v1/tokens/{segment(id)}/revoke", {})
    tell(answer, as_json, _show_revoked)


def _show_secret(answer: Mapping[str, Any]) -> None:
    token = answer["token"]
    note(f"{token['role']} {token['name']} ({token['id']}); the secret is shown only now:")
    line(answer["secret"])


def _show_revoked(answer: Mapping[str, Any]) -> None:
    token = answer["token"]
    line(token["id"], token["name"], "is revoked")


def _show_list(answer: Mapping[str, Any]) -> None:
    table(
        ("id", "name", "role", "queues", "speaks as", "created", "revoked"),
        [
            (
                token["id"],
                token["name"],
                token["role"],
                token["queues"],
                token.get("speaks_as") or None,
                short_time(token["created_at"]),
                short_time(token["revoked_at"]),
            )
            for token in answer["tokens"]
        ],
    )
