"""Codex's TOML edited in place: the entry alone changes, however it is written, and every other line stays as it was."""

from __future__ import annotations

import tomllib
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.doors.cli.clients.codex import Codex
from postroom.doors.cli.clients.toml_text import NotToml

STDIO = {"command": "/bin/postroom", "args": ["mcp", "--url", "u # no comment"]}
HTTP = {"url": "http://127.0.0.1:7373/mcp", "bearer_token_env_var": "POSTROOM_CODEX_TOKEN"}

# Lines that are nobody's but the user's: before the first table, and whole tables.
TOP = st.sampled_from(
    ["\n", "# top\n", 'model = "m" # best\n', "x = nan\n", "y = [ # list\n  [1], # one\n]\n", "z = -inf # z\n"]
)
TABLES = st.sampled_from(
    [
        "[profiles.prod]\n",
        "[tui] # tui\n",
        "# Never remove\n[keep]\nv = 1.50\n",
        "[text]\na = '''\n[mcp_servers.postroom]\ncommand = \"#\"\n'''\n",
        '[more]\nb = """\n# not a comment\n\\"""[mcp_servers.postroom]"""  # real\n',
        "[mcp_servers.other]\ncommand = 'x' # other\n",
        '["mcp_servers.postroom"]\nurl = "no"\n',
        "[[list]]\nn = nan\n",
        "\n# between\n\n",
    ]
)
SECTIONS = [
    '[mcp_servers.postroom]\ncommand = "/old/postroom"\nargs = ["mcp"]\n',
    '[mcp_servers.postroom]\nargs = [ # a\n  "mcp",\n]\ncommand = "/old/postroom"\ntool_timeout_sec = nan\n',
    '[mcp_servers.postroom]\ncommand = "/old/postroom"\nargs = ["mcp"]\n[mcp_servers.postroom.env]\nA = "1"\n',
    '[ mcp_servers . "postroom" ]\ncommand = "p"\n\n[mcp_servers.postroom.tools.a]\nx = 1\n\n'
    "[mcp_servers.postroom.env]\nB = 'b'\n",
    '[mcp_servers.postroom]\nurl = "http://127.0.0.1:1/mcp"\nhttp_headers.A = "1"\nhttp_headers.B = "2"\n',
    '[mcp_servers.postroom]\nurl = "http://127.0.0.1:1/mcp"\n[mcp_servers.postroom.http_headers]\nA = "#"\n',
]
AROUND = [
    '[mcp_servers]\npostroom.command = "/old/postroom"\npostroom.args = ["mcp"]\nmine.x = 1\n',
    "[mcp_servers]\npostroom = { command = 'p', args = ['mcp'] }\n",
    "[mcp_servers]\nmine = { x = 1 }\n",
]
DOTTED = [
    'mcp_servers.postroom.command = "/old/postroom"\nmcp_servers.postroom.args = ["mcp"]\n',
    'mcp_servers.postroom.env.A = "1"\nmcp_servers . postroom . "command" = "p"\n',
    'mcp_servers.postroom.url = "http://127.0.0.1:1/mcp"\n',
    "mcp_servers.postroom = { command = 'p', args = ['mcp'], env = { A = '1' } }\n",
    "mcp_servers = { postroom = { command = 'p', args = ['mcp'] } }\n",
    "mcp_servers = { a = { x = 1 }, postroom = { url = 'u' }, b = { x = 2 } }\n",
    "mcp_servers = { a = { x = 1 } }\n",
]


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the lines in it that are the user's."""
    top, tables = draw(st.lists(TOP, max_size=4, unique=True)), draw(st.lists(TABLES, max_size=4, unique=True))
    where = draw(st.sampled_from(["none", "section", "around", "dotted"]))
    ours = []
    if where == "dotted":
        ours = [draw(st.sampled_from(DOTTED))]
        top.insert(draw(st.integers(0, len(top))), ours[0])
        tables = [one for one in tables if not one.startswith("[mcp_servers.")]
    elif where != "none":
        ours = [draw(st.sampled_from(SECTIONS if where == "section" else AROUND))]
        # What follows a header belongs to it: never in the midst of another table's lines.
        tables.insert(draw(st.integers(0, len(tables))), ours[0])
    text = "".join([*top, *tables])
    lines = [line for one in [*top, *tables] if one not in ours for line in one.splitlines() if line]
    lines += [line for one in ours for line in one.splitlines() if "mine" in line or line == "[mcp_servers]"]
    if draw(st.booleans()):
        text = text.rstrip("\n")
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\ufeff"])) + text, lines


def read(text: str) -> Any:
    return tomllib.loads(text.removeprefix("\ufeff"), parse_float=str)


@given(documents(), st.sampled_from([(STDIO, HTTP), (HTTP, STDIO)]))
@example(
    (
        "".join([SECTIONS[2], "\n# Never remove the profile below.\n\n[profiles.prod]\nmodel = 'm'\n"]),
        ["# Never remove the profile below.", "[profiles.prod]", "model = 'm'"],
    ),
    (HTTP, STDIO),
)
@example(("mcp_servers.postroom.command = 'p'\nmcp_servers.postroom.args = ['mcp'] # x\n", []), (HTTP, STDIO))
def test_an_entry_comes_changes_and_goes_alone(
    document: tuple[str, list[str]], entries: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    text, lines = document
    client, before = Codex(), read(text)
    servers = before.get("mcp_servers", {})
    for entry in entries:
        gone = ("url", "bearer_token_env_var", "http_headers") if entry is STDIO else ("command", "args", "env")
        after = client.put(text, entry)
        kept = read(text).get("mcp_servers", {}).get("postroom", {})
        wanted = {key: one for key, one in kept.items() if key not in gone} | entry
        assert read(after) == {**before, "mcp_servers": {**servers, "postroom": wanted}}
        assert client.put(after, entry) == after
        assert_kept(lines, text, after)
        text = after
    taken = client.take(text)
    left = {key: one for key, one in servers.items() if key != "postroom"}
    rest = {key: one for key, one in before.items() if key != "mcp_servers"}
    assert read(taken) == (rest | {"mcp_servers": left} if left else rest)
    assert_kept([line for line in lines if left or line != "[mcp_servers]"], text, taken)
    assert client.take(taken) == taken


def assert_kept(lines: list[str], before: str, after: str) -> None:
    """Each of these lines is there still, and the text is of the same make."""
    assert after.startswith("\ufeff") == before.startswith("\ufeff")
    assert not Counter(lines) - Counter(after.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"))
    if "\n" in before:
        assert after.count("\r\n") == (after.count("\n") if "\r\n" in before else 0)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n[mcp_servers.postroom.env]\nA = '1'\n", "line 2"),
        ("[mcp_servers.postroom.url]\nx = 1\n", "line 1"),
    ],
)
def test_what_cannot_be_edited_is_refused_with_its_line(text: str, line: str) -> None:
    with pytest.raises(NotToml, match=rf"{line}: expected mcp_servers\.postroom .*by hand"):
        Codex().put(text, HTTP)
