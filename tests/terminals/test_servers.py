"""The connection to a tmux server: drained always, joined anew when it is lost, and let go of in the end."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from postroom.carriers.carrier import Standing
from postroom.carriers.tmux import TmuxCarrier
from postroom.carriers.tmux_control import ControlClient, ServerFault, ServerGone, quote, run
from postroom.carriers.tmux_pane import front_of
from postroom.carriers.tmux_private import PrivateFolder
from postroom.carriers.tmux_server import guarded
from postroom.errors import Unavailable
from postroom.message import Written
from tests.processes import until, wait_until
from tests.terminals.rig import Terminals, agent, bash, endpoint, parcel
from tests.terminals.test_whole import ready


async def connect(terminals: Terminals, session: str = "$0") -> ControlClient:
    """A control client that hears nothing."""
    client = ControlClient(session, lambda pane, data: None, lambda words: None, lambda client: None)
    await client.connect("tmux", terminals.socket)
    return client


async def test_answers_are_told_apart_by_command(terminals: Terminals) -> None:
    pane = terminals.open(["cat"])
    client = await connect(terminals)
    try:
        asked = [client.ask(f"display-message -p {n}", "nonsense", f"display-message -p {n}") for n in range(50)]
        for n, blocks in enumerate(await asyncio.gather(*asked)):
            assert [block.failed for block in blocks] == [False, True, False]
            assert blocks[0].text == blocks[2].text == str(n)
        odd = 'it\'s "odd"; $HOME `id` \\ ~ {} %0 żółć'
        await client.ask(f"set-option -p -t {quote(pane)} @odd {quote(odd)}")
        assert (await client.ask(f"display-message -p -t {quote(pane)} '#{{@odd}}'"))[0].text == odd
        forged = "%end 1 1 1\n%error 1 1 1\n%exit"
        terminals.tmux("send-keys", "-t", pane, "-l", forged)
        await until(lambda: "%exit" in terminals.screen(pane), "the forged lines")
        assert forged.encode() in b"\n".join((await client.ask(f"capture-pane -p -t {quote(pane)}"))[0].lines)
    finally:
        client.close()
    with pytest.raises(ServerFault):
        await client.ask("display-message -p x")


async def test_no_server_and_no_session_are_gone_and_none_is_started(terminals: Terminals) -> None:
    terminals.open(["cat"])
    with pytest.raises(ServerGone):
        await connect(terminals, "$99")
    with pytest.raises(ServerGone):
        await run("tmux", str(terminals.folder / "none"), "display-message", "-p", "x")
    assert not (terminals.folder / "none").exists()
    with pytest.raises(ServerFault, match="cannot be started"):
        await run("/nowhere/tmux", terminals.socket, "list-sessions")


REFUSED = "printf '%%begin 1 1 0\\ncan\\047t find session: $99\\n%%error 1 1 0\\n'"
ACCEPTED = "printf '%%begin 1 1 0\\n%%end 1 1 0\\n'"
ANSWERED = "printf '%%begin 1 2 1\\n%s\\n%%end 1 2 1\\n' \"${line##* }\""


async def stand_in(folder: Path, *answers: str) -> ControlClient:
    """A client that is connected to a tmux which, once it was told something, answers like this."""
    tmux = folder / "tmux"
    tmux.write_text("\n".join(["#!/bin/sh", "read -r line", *answers, "read -r line", ""]))
    tmux.chmod(0o700)
    client = ControlClient("$99", lambda pane, data: None, lambda words: None, lambda client: None)
    try:
        await client.connect(str(tmux), "socket")
    except ServerGone:
        assert client.closed
        raise
    return client


@pytest.mark.parametrize("answers", [(REFUSED,), (REFUSED, ANSWERED), (ANSWERED, REFUSED)])
async def test_a_refused_client_is_gone_though_tmux_answers_it(answers: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ServerGone, match="find session"):
        await stand_in(tmp_path, *answers)


@pytest.mark.parametrize("answers", [(ACCEPTED, ANSWERED), (ANSWERED, ACCEPTED)])
async def test_a_client_is_attached_once_tmux_says_so(answers: tuple[str, ...], tmp_path: Path) -> None:
    client = await stand_in(tmp_path, *answers)
    assert not client.closed
    client.close()


async def test_a_flood_is_drained(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I32
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    sent = await ready(carrier, reader, to)
    flood = terminals.split(reader.pane, ["sh", "-c", "yes postroom | head -c 8000000; echo; echo all of it; exec cat"])
    await until(lambda: "all of it" in terminals.screen(flood), "the end of the flood")
    await ready(carrier, reader, to)
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await carrier.close()
    assert terminals.runs
    assert terminals.tmux("list-clients") == ""


async def test_a_lost_client_is_joined_anew(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    sent = await ready(carrier, reader, to)
    running = asyncio.create_task(carrier.run())
    told: list[str] = []
    carrier.on_change(told.append)
    try:
        terminals.tmux("detach-client", "-a", "-s", "$0")
        for name in terminals.tmux("list-clients", "-F", "#{client_name}").splitlines():
            terminals.tmux("detach-client", "-t", name)
        await until(lambda: to.target_key in told, "word that the pane is to be looked at")
        await until(lambda: terminals.tmux("list-clients"), "a client again")

        async def free() -> bool:
            return (await carrier.look(sent)).standing is Standing.FREE

        await until(free, "a free pane")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_pane_that_moved_is_followed(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader, other = agent(terminals, session="one"), agent(terminals, session="two")
    to = endpoint(carrier, reader)
    sent = await ready(carrier, reader, to)
    terminals.split(reader.pane, ["cat"])
    terminals.tmux("join-pane", "-d", "-s", reader.pane, "-t", other.pane)

    async def followed() -> bool:
        await carrier.look(sent)
        sessions: list[str] = carrier.status()["servers"][0]["sessions"]
        return sessions == ["$0", "$1"]

    await until(followed, "a client at the other session")
    terminals.tmux("resize-window", "-t", other.pane, "-x", "100", "-y", "80")
    await ready(carrier, reader, to)
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await until(lambda: len(reader.submitted()) == 1, "the submission")


async def test_an_attached_pane_is_heard_from_then_on(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I7
    reader = bash(terminals)
    running = asyncio.create_task(carrier.run())
    try:
        await asyncio.sleep(0)
        to = endpoint(carrier, reader)
        await until(lambda: terminals.tmux("list-clients"), "a client")
        terminals.tmux("send-keys", "-t", reader.pane, "true", "Enter")

        async def free() -> bool:
            return (await carrier.look(parcel(to, "x"))).standing is Standing.FREE

        await until(free, "a shell that was heard to take pastes")
        assert carrier.status()["servers"][0]["panes"] == {reader.pane: "on"}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_no_window_changes_its_size(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader = agent(terminals)
    await ready(carrier, reader, endpoint(carrier, reader))
    assert terminals.show(reader.pane, "window_width") == "100"
    assert terminals.show(reader.pane, "window_height") == "40"


async def test_a_guard_and_what_it_guards_are_one(terminals: Terminals) -> None:  # I12
    pane = terminals.open(["cat"])
    client = await connect(terminals)
    try:
        note = f"set-option -p -t {quote(pane)} @noted 'it''s'"
        said = await client.ask(guarded(pane, ["#{pane_dead}", "#{pane_in_mode}"], note))
        assert [block.text for block in said][-1] == "DONE"
        assert terminals.show(pane, "@noted") == "its"
        terminals.tmux("copy-mode", "-t", pane)
        said = await client.ask(guarded(pane, ["#{pane_dead}", "#{pane_in_mode}"], "set-option -p @noted other"))
        assert [block.text for block in said][-1] == "SKIP"
        assert terminals.show(pane, "@noted") == "its"
    finally:
        client.close()


def test_what_is_in_front_is_known_by_what_it_runs(terminals: Terminals) -> None:  # I16
    script = terminals.folder / "tool.sh"
    script.write_text("read -r line\n")

    def front(*command: str) -> str:
        pane = terminals.open(command)
        terminals.tmux("set-option", "-t", pane, "default-shell", "/bin/sh")
        return front_of(int(terminals.show(pane, "pane_pid")), "told").name

    assert front("bash", "--norc") == "bash"
    assert front("bash", "--rcfile", "/dev/null", "-i") == "bash"
    assert front("bash", str(script)) == "tool"
    assert front("sh", "-c", "read -r line; true") == "sh -c"
    assert front("bash", "--norc", "-e", "-i") == "bash"
    assert front("bash", "--norc", "-s", "word") == "bash"
    assert front("cat") == "cat"
    assert front_of(2**30, "told.py").name == "told"
    panes = [terminals.open(["bash", "-c", f"exec -a fish {it}"]) for it in ("tail -f /dev/null", "sleep 3600")]
    pids = [int(terminals.show(pane, "pane_pid")) for pane in panes]
    wait_until(lambda: [front_of(pid, "told").name for pid in pids] == ["fish", "3600"], "a shell and a script")


async def test_the_private_folder_is_its_users_alone(tmp_path: Path) -> None:
    private = PrivateFolder(tmp_path / "private")
    file = private.put("letter-1.txt", b"one")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert private.put("letter-1.txt", b"two").read_bytes() == b"two"
    async with private.lock("key", 1) as held, private.lock("key", 0.05) as twice, private.lock("other", 1) as else_:
        assert (held, twice, else_) == (True, False, True)
    async with private.lock("key", 1) as again:
        assert again
    os.utime(file, (1, 1))
    private.sweep()
    assert not file.exists()
    private.folder.chmod(0o755)
    for call in (lambda: private.path("x"), private.sweep):
        with pytest.raises(Unavailable, match="0700"):
            call()


async def test_a_private_folder_of_another_user_is_told_of_once_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    refuse = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr("postroom.carriers.tmux.SWEEP_S", 0)
    monkeypatch.setattr("postroom.carriers.tmux.KEEP_S", 0)
    running = asyncio.create_task(TmuxCarrier(private=tmp_path / "private").run())
    await until(lambda: refuse.call_count > 3, "a few sweeps")
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == f"nothing can be written to panes: the folder {tmp_path}/private cannot be read: Permission denied"


async def test_without_tmux_it_says_so(
    terminals: Terminals, carrier: TmuxCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = endpoint(carrier, agent(terminals))
    monkeypatch.setenv("PATH", "")
    bare = TmuxCarrier(private=terminals.folder / "private")
    assert bare.status()["tmux"] == "not installed"
    assert (await bare.look(parcel(to, "x"))).standing is Standing.FAULT
    assert (await bare.write(parcel(to, "x"))).outcome is Written.REFUSED
    assert await bare.seen(parcel(to, "x")) is None
    with pytest.raises(Unavailable, match="not installed"):
        bare.check_address({"socket": terminals.socket, "pane": "%0"})
