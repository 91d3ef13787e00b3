"""The commands on the pages about senders: tried as they stand there, they set up what the page's own table sets up."""

from __future__ import annotations

import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from postroom.doors.cli import settings_file
from postroom.sources.options import Options
from postroom.sources.rule_tables import rules_of
from postroom.sources.settings import build_sources
from postroom.sources.table import SENDERS
from tests.doors.command import leave
from tests.sources.signing import secret_for

PAGES = Path(__file__).parents[2] / "docs/senders"
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Every `postroom …` line of a page, in words."""
    said = "\n".join(SHELL.findall(page)).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in said.splitlines() if line.startswith("postroom ")]


def tables(page: str) -> dict[str, dict[str, Any]]:
    """Every source of a page's tables, without its secrets."""
    found = {table["name"]: table for block in TOML.findall(page) for table in tomllib.loads(block)["source"]}
    return {name: {key: value for key, value in table.items() if key != "secrets_env"} for name, table in found.items()}


@pytest.mark.parametrize("provider", SENDERS)
def test_the_commands_of_a_page_do_what_its_table_says(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PAGES / f"{provider}.md").read_text("utf-8")
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("POSTROOM_DATA", str(data))
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    said = commands(page)
    added = [words for words in said if words[:2] == ["source", "add"]]
    for words in added:
        # Where it asks for the sender's own secret, the pipe answers.
        asks = provider in {"slack", "stripe", "linear", "sentry", "pagerduty", "standard"}
        monkeypatch.setattr("sys.stdin", io.StringIO(secret_for(provider) + "\n"))
        assert leave(*words, *(["--secret-stdin"] if asks else [])) == 0
    file = settings_file.SettingsFile(data / "postroom.toml")
    told = tables(page)
    assert added
    for words in added:
        name = words[2]
        written = file.source(name)
        assert written is not None
        kept = {key: value for key, value in written.items() if key != "secrets_file"}
        wanted = {key: value for key, value in told[name].items() if key != "rule"}
        assert {**DEFAULTS, **_listed(kept)} == {**DEFAULTS, **_listed(wanted)}
        assert ["source", "test", name] in said
    build_sources(file.table["source"], {}, data)


DEFAULTS = {"scheme": "hmac", "algorithm": "sha256", "encoding": "hex", "tolerance_s": 300}


def _listed(table: dict[str, Any]) -> dict[str, Any]:
    """A text and a list of that one text are the same here."""
    return {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in table.items()}


@pytest.mark.parametrize("provider", ["stripe", "standard"])
def test_the_rules_that_a_page_adds_are_those_of_its_table(provider: str) -> None:
    page = (PAGES / f"{provider}.md").read_text("utf-8")
    (name, table) = next(iter(tables(page).items()))
    wanted = rules_of(Options(name, table), table, provider, table["queue"])
    added = [words[3:] for words in commands(page) if words[:3] == ["rules", "add", name]]
    assert len(added) == len(wanted)
    for words, rule in zip(added, wanted, strict=True):
        made: dict[str, Any] = {"name": rule.name, "match": {}}
        for flag, value in _flags(words):
            if flag in {"kind", "label"}:
                made["match"].setdefault(flag, []).append(value)
            else:
                made[flag] = value
        (same,) = rules_of(Options(name, {"rule": [made]}), {"rule": [made]}, provider, table["queue"])
        assert same == rule


def _flags(words: list[str]) -> list[tuple[str, str | bool]]:
    made: list[tuple[str, str | bool]] = []
    for place, word in enumerate(words):
        if word == "--drop":
            made.append(("drop", True))
        elif word.startswith("--"):
            made.append((word.removeprefix("--"), words[place + 1]))
    return made
