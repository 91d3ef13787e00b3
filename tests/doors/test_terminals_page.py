"""The page about terminals says what is so: operations and their fields, error codes, options, and an agent's file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from postroom import errors
from postroom.carriers.tmux_agent import load_agents
from postroom.config import load_settings
from postroom.doors.cli.main import build
from postroom.doors.socket.operations import OPERATIONS
from tests.doors.test_socket_operations import MESSAGE_FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "terminals.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """The table that begins with this heading, cell by cell."""
    table = PAGE.split(f"\n{heading}", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def block(begin: str) -> str:
    found = re.search(rf"```toml\n({re.escape(begin)}.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_every_operation_with_its_fields() -> None:
    told = {row[0].strip("` "): row[1] for row in rows("| op | asks")}
    assert set(told) == set(OPERATIONS)
    for op, (model, _) in OPERATIONS.items():
        fields = {name: bool(optional) for name, optional in re.findall(r"`(\w+)`(\?)?", told[op])}
        known = {name: not field.is_required() for name, field in model.model_fields.items()}
        assert fields == known, op


def test_every_field_of_a_message() -> None:
    text = PAGE.split("A `message` has", 1)[1].split("`reason` says", 1)[0]
    assert set(re.findall(r"`(\w+)`", text)) == {*MESSAGE_FIELDS, "reason", "last_failure"}


def test_every_code_is_one_of_the_family() -> None:
    told = {row[0].strip("` ") for row in rows("| code | means")}
    family = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    assert told == family - {"unauthenticated", "rate_limited", "misconfigured"}


def test_every_option_of_attach() -> None:
    command = build("attach").commands["attach"]
    known = {option for parameter in command.params for option in parameter.opts}
    table = rows("| option |")
    named = {word for row in table for word in re.findall(r"--[a-z-]+", row[0])}
    assert named <= known
    also = {word for row in table for word in re.findall(r"--[a-z-]+", row[1])}
    assert known - named - also == {"--json", "--data"}


def test_its_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "postroom.toml").write_text(block("[gita]"))
    assert load_settings(data=str(tmp_path), environ={}).post.gita_required is False


@pytest.mark.parametrize(
    ("name", "taken"), [("title", "Aider"), ("processes", frozenset({"aider"})), ("quiet", 400), ("enter", 300)]
)
def test_its_agent_is_read(tmp_path: Path, name: str, taken: object) -> None:
    (tmp_path / "aider.toml").write_text(block("# agents/aider.toml"))
    assert getattr(load_agents(tmp_path).by_name["aider"], name) == taken
