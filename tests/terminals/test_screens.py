"""How the screens of the known programs are read: who waits, who works, who asks, and what was typed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from postroom.carriers.tmux_agent import Manner, load_agents
from postroom.carriers.tmux_look import LOGGED, all_noted, just_pasted, step_of
from postroom.carriers.tmux_pane import Front, Probe
from postroom.carriers.tmux_screen import Screen, read_screen
from postroom.errors import Misconfigured

AGENTS = load_agents()
PROBE = Probe("%1", "2", "3", "4", "$0", False, False, False, False, (0, 0), 80, None, "ab" * 8, (), "", "claude")
RULE = "─" * 40


def screen(text: str, cursor: tuple[int, int] | None = None) -> Screen:
    """A screen with these rows; the cursor stands after the last unless it is given."""
    rows = text.split("\n")
    return read_screen([row.encode() for row in rows], cursor or (len(rows[-1]), len(rows) - 1), 80)


CLAUDE = {
    "● Done.\n\n" + RULE + "\n❯ \n" + RULE + "\n  ? for shortcuts": Manner.WAITING,
    "● Done.\n\n" + RULE + '\n❯ \x1b[2mTry "edit app.py"\x1b[0m\n' + RULE + "\n  ? for shortcuts": Manner.WAITING,
    "╭────╮\n│ > fix the\n│ build\n╰────╯": Manner.DRAFT,
    "❯ earlier words\n● Yes.\n" + RULE + "\n❯ half a though\n" + RULE: Manner.DRAFT,
    "✻ Simmering… (12s · ↑ 1.2k tokens · esc to interrupt)\n" + RULE + "\n❯ \n" + RULE: Manner.WORKING,
    "● Bash(rm -rf build)\n  Do you want to proceed?\n❯ 1. Yes\n  2. No": Manner.DIALOG,
    " Do you trust the files in this folder?\n\n ❯ 1. Yes, proceed\n Enter to confirm · Esc to exit": Manner.DIALOG,
    "❯ hello\n  Do you want to proceed?\n  > 1. Yes\n● No.\n" + RULE + "\n❯ \n" + RULE: Manner.WAITING,
    "❯ hello\n● No.\n\n Press Enter to continue": Manner.DIALOG,
    "Loading": Manner.STARTING,
    "● It says: the words esc to interrupt stop it.\n" + RULE + "\n❯ \n" + RULE: Manner.WAITING,
}


@pytest.mark.parametrize(("text", "expected"), CLAUDE.items())
def test_claude(text: str, expected: Manner) -> None:  # I17, I19, I26
    assert AGENTS.by_name["claude"].manner(screen(text)) is expected


CODEX = {
    "• Ready.\n\n› \x1b[2mExplain this codebase\x1b[0m\n\n  gpt-5 · ~/src": Manner.WAITING,
    "• Working (3s • esc to interrupt)\n\n› \x1b[2mExplain this\x1b[0m": Manner.WORKING,
    "› write the te\n\n  gpt-5 · ~/src": Manner.DRAFT,
    "  Would you like to run the following command?\n\n› 1. Yes\n  2. No": Manner.DIALOG,
}


@pytest.mark.parametrize(("text", "expected"), CODEX.items())
def test_codex(text: str, expected: Manner) -> None:
    assert AGENTS.by_name["codex"].manner(screen(text)) is expected


SHELLS = {
    "user@host:~$ ": Manner.WAITING,
    "~/src main ❯ ": Manner.WAITING,
    "user@host:~$ git sta": Manner.DRAFT,
    "➜  src ": Manner.WAITING,
    "(venv) ➜  ~ git:(main) ✗ ": Manner.WAITING,
    "➜  src git:(a/b) ": Manner.WAITING,
    "➜  src l": Manner.DRAFT,
    "➜  src ls ": Manner.DRAFT,
    "➜  src git:(main) ✗ git sta": Manner.DRAFT,
    "user@host:~$ for x in 1 2\n> ": Manner.DRAFT,
    "user@host:~$ echo 'a\nquote> ": Manner.DRAFT,
    "[sudo] password for user: ": Manner.DIALOG,
    "Proceed? [Y/n] ": Manner.DIALOG,
    "Proceed? [Y/n]\n~$ ": Manner.WAITING,
}


@pytest.mark.parametrize(("text", "expected"), SHELLS.items())
def test_shells(text: str, expected: Manner) -> None:
    assert AGENTS.by_name["shell"].manner(screen(text)) is expected


def test_words_behind_the_cursor_are_a_draft_unless_they_are_faint() -> None:  # I19
    shell = AGENTS.by_name["shell"]
    assert shell.manner(screen("$ git push", (2, 0))) is Manner.DRAFT
    assert shell.manner(screen("$ \x1b[90mgit push\x1b[39m", (2, 0))) is Manner.WAITING
    assert shell.manner(screen("ściąga 界 $ ", (len("ściąga 界 $ ") + 1, 0))) is Manner.WAITING


def test_what_was_put_out_last_ends_with_its_line() -> None:  # I20, I28
    assert screen("> one two").ends_before_cursor("onetwo")
    assert screen("> one two\n> ").ends_before_cursor("onetwo") is False
    assert screen("> one two\n", (0, 1)).ends_before_cursor("onetwo") is False
    full = "> " + "x" * 72 + "onetwo"
    assert screen(f"{full}\n", (0, 1)).ends_before_cursor("onetwo")


def test_who_is_in_front_is_known_by_any_of_its_names() -> None:
    assert AGENTS.known(Front(1, ("claude", "node"))).name == "claude"
    assert AGENTS.known(Front(1, ("node", "codex"))).name == "codex"
    assert AGENTS.known(Front(1, ("zsh",))).quoted
    assert AGENTS.known(Front(1, ("fish",))).quoted
    for shell in ("nu", "xonsh", "pwsh", "elvish", "tcsh"):
        known = AGENTS.known(Front(1, (shell, "python3")))
        assert (known.shell, known.quoted) == (True, False)
    assert AGENTS.known(Front(1, ("vim",))).name == "generic"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quiet_ms = 'long'", "quiet_ms is expected to be a number"),
        ("busy = ['(']", "busy is expected to be regular expressions"),
        ("busy = 3", "busy is expected to be a list of texts"),
        ("submit = 'Enter; kill-server'", "submit is expected to be tmux's name of a key"),
        ("sumbit = 'Enter'", "sumbit is unknown"),
        ("quoted = 1", "quoted is expected to be true or false"),
        ("title = [", "odd.toml"),
    ],
)
def test_a_wrong_file_names_its_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(Misconfigured, match=says.replace("'", ".")):
        load_agents(tmp_path)


def test_a_further_folder_adds_and_replaces(tmp_path: Path) -> None:
    (tmp_path / "claude.toml").write_text("processes = ['claude']\nsubmit = 'C-m'\n")
    (tmp_path / "aider.toml").write_text("processes = ['aider']\n")
    agents = load_agents(tmp_path)
    assert agents.by_name["claude"].submit == "C-m"  # I5
    assert agents.known(Front(1, ("aider",))).name == "aider"


BOX = "  ┃{}\n  ┃  {}\n  ┃{}\n  ┃  Build · fake-1 fake{}\n  ╹▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀\n"


def box(text: str, foot: str = "   ~/src   2 (0%)  ctrl+p commands", aside: str = "") -> str:
    """opencode's composer, with its sidebar when there is one."""
    return BOX.format(f"{' ' * 48}{aside}", f"{text:<46}{aside}", f"{' ' * 48}{aside}", f"{' ' * 27}{aside}") + foot


OPENCODE = {
    box('Ask anything… "What is the tech stack?"   '): Manner.WAITING,
    "  ┃\n  ┃  my own words\n  ┃\n\n     Done.\n\n" + box(""): Manner.WAITING,
    "  ┃\n  ┃  my own words\n  ┃\n\n" + box("", aside="Context 2 tokens"): Manner.WAITING,
    box("second draft"): Manner.DRAFT,
    box("[Pasted ~4 lines]"): Manner.DRAFT,
    box("", foot="   ⬝⬝⬝⬝  esc interrupt          ctrl+p commands"): Manner.WORKING,
    "  ┃\n  ┃  △ Permission required\n  ┃  $ ls\n  ┃   Allow once   Allow always   Reject": Manner.DIALOG,
    "     $ ls -la\n     Loading": Manner.STARTING,
}


@pytest.mark.parametrize(("text", "expected"), OPENCODE.items())
def test_opencode(text: str, expected: Manner) -> None:
    assert AGENTS.by_name["opencode"].manner(screen(text)) is expected


def test_a_pane_tells_of_its_newest_writes_only() -> None:  # I28
    few = replace(PROBE, log=("msg_1/0/submitted/1000",))
    many = replace(PROBE, log=tuple(f"msg_{n}/0/submitted/{1000 + n}" for n in range(LOGGED)))
    assert step_of(few, "msg_1/0") == "submitted"
    assert step_of(few, "msg_1/1") is None
    assert step_of(many, "msg_99/0") is None
    assert all_noted(few, 500)
    assert not all_noted(many, 1003)
    assert all_noted(many, 1006)
    assert just_pasted(replace(PROBE, log=("msg_1/0/submitted/1000", "msg_2/0/pasted/1000")), 1005)
    assert not just_pasted(replace(PROBE, log=("msg_2/0/pasted/1000",)), 1011)
    assert not just_pasted(few, 1000)
    assert not just_pasted(PROBE, 1000)
