"""The words of every verb: what is given twice, and what lacks its value, is refused before anything is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.exceptions import TyperException

from postroom.doors.cli.main import build
from tests.doors.command import leave

Output = pytest.CaptureFixture[str]


def _verbs(command: Any, name: str = "postroom") -> Iterator[tuple[str, Any]]:
    """Every verb under a command, with the words that name it."""
    found = getattr(command, "commands", None)
    if found is None:
        yield name, command
    for word, inner in (found or {}).items():
        yield from _verbs(inner, f"{name} {word}")


def _options(command: Any) -> list[tuple[str, bool]]:
    """The options of a verb that take a value, and whether they may be given several times."""
    context = command.context_class(command, info_name="x")
    return [
        (param.opts[0], param.multiple)
        for param in command.get_params(context)
        if param.param_type_name == "option" and not param.is_flag and not param.count
    ]


def _wrong(command: Any, words: list[str]) -> str:
    """What is wrong with a verb's words; nothing when all can be read."""
    try:
        command.make_context("x", words)
    except TyperException as error:
        return f"{type(error).__name__}: {error.format_message()}"
    return ""


def test_an_option_of_one_value_is_given_once_in_every_verb() -> None:
    checked = 0
    for name, command in _verbs(build()):
        for option, several in _options(command):
            wrong = _wrong(command, [option, "1", f"{option}=2"])
            refused = wrong.startswith("BadParameter: ") and wrong.endswith(": given 2 times; expected once")
            assert refused is not several, f"{name} {option} twice: {wrong or 'taken'}"
            assert not refused or f"'{option}'" in wrong
            checked += 1
    assert checked > 100


def test_a_missing_value_is_told_with_what_it_may_be() -> None:
    for name, command in _verbs(build()):
        for option, _ in _options(command):
            wrong = _wrong(command, [option])
            assert ": a value is missing: expected " in wrong, f"{name}: {wrong}"
            assert f"'{option}'" in wrong


def test_nobody_is_dropped_from_those_a_message_is_for(capsys: Output) -> None:
    assert leave("send", "--to", "bob", "--to", "ann", "hi") == 2
    assert "'--to': given 2 times; expected once" in capsys.readouterr().err
    assert leave("send", "--to", "bob", "hi", "--wait") == 2
    assert "'--wait': a value is missing: expected one of handed_off, acknowledged" in capsys.readouterr().err


def test_a_flag_may_be_said_twice(capsys: Output) -> None:
    assert leave("config", "--json", "--json") == 0
    assert capsys.readouterr().err == ""
