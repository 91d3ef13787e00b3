"""The page on clients shows what `postroom setup` writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from postroom.doors.cli.clients.claude import Claude
from postroom.doors.cli.clients.codex import Codex
from postroom.doors.cli.clients.entry import Client, Via, Wanted
from postroom.doors.cli.clients.opencode import Opencode
from postroom.doors.cli.setup import claude, codex, opencode

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text("utf-8")
DATA = Path("/home/ann/.local/share/postroom")


def wanted(client: Client, via: Via) -> Wanted:
    return Wanted(
        via=via,
        project=None,
        program="/usr/local/bin/postroom",
        daemon=f"unix://{DATA}/postroom.sock",
        base="http://127.0.0.1:7373",
        token_file=DATA / "clients" / f"{client.name}.token",
        token=None,
        variable=f"POSTROOM_{client.name.upper()}_TOKEN",
    )


@pytest.mark.parametrize(
    ("client", "via"), [(Claude(), Via.STDIO), (Codex(), Via.STDIO), (Codex(), Via.HTTP), (Opencode(), Via.STDIO)]
)
def test_the_page_shows_what_is_written(client: Client, via: Via, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # whichever opencode is here
    text = client.put("", client.describe(wanted(client, via), ""))
    assert text in re.findall(r"^```(?:json|toml)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_names_the_lines_to_copy() -> None:
    for client in (Claude(), Codex()):
        assert wanted(client, Via.HTTP).export.replace("/home/ann", "~") in PAGE
    for word in ("${POSTROOM_CLAUDE_TOKEN}", "{env:POSTROOM_OPENCODE_TOKEN}", "server:postroom"):
        assert word in PAGE


@pytest.mark.parametrize("verb", [claude, codex, opencode])
def test_the_page_names_every_option(verb: object) -> None:
    notes: dict[str, str] = verb.__annotations__
    flags = {"everywhere": "global", "only_print": "print", "as_json": "json", "folder": "project"}
    for name in notes:
        if name != "return":
            assert f"`--{flags.get(name, name)}" in PAGE
