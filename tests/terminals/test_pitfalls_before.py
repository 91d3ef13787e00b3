"""Panes that take no message now, and are left alone: nothing is pasted, nothing pressed, and the reason is told."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from postroom.carriers.carrier import Look, Standing
from postroom.carriers.tmux import TmuxCarrier
from postroom.errors import Invalid
from postroom.message import Written
from tests.processes import until
from tests.terminals.rig import HERE, Reader, Terminals, agent, bash, endpoint, endpoint_at, parcel
from tests.terminals.test_whole import ready


async def refused(carrier: TmuxCarrier, reader: Reader, standing: Standing, reason: str, to: object = None) -> None:
    """Hold that the pane is looked at so, and that a write leaves it as it is."""
    sent = parcel(to or endpoint(carrier, reader), "never to be seen")  # type: ignore[arg-type]
    found: list[Look] = []

    async def looked() -> bool:
        found.append(await carrier.look(sent))
        return found[-1].standing is standing and reason in found[-1].reason

    try:
        await until(looked, f"{standing}: {reason}")
    except AssertionError:
        raise AssertionError(f"{found[-1]} where {standing}: {reason} was expected") from None
    before = reader.facts()
    written = await carrier.write(sent)
    assert written.outcome in {Written.BUSY, Written.REFUSED}
    assert reason in (written.reason or "")
    assert reader.facts() == before


async def free(carrier: TmuxCarrier, reader: Reader) -> None:
    """Hold that the pane takes a message again, and takes it once."""
    to = endpoint(carrier, reader)
    sent = await ready(carrier, reader, to)
    before = len(reader.submitted())
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await until(lambda: len(reader.submitted()) == before + 1, "the submission")


async def test_a_dialog_is_waited_for_and_never_answered(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I17
    reader = agent(terminals)
    reader.order("dialog")
    await refused(carrier, reader, Standing.BUSY, "blocked")
    assert "Do you want to proceed?" in terminals.screen(reader.pane)
    assert not [fact for fact in reader.facts() if "answered" in fact]
    reader.order("no-dialog")
    await free(carrier, reader)
    assert not [fact for fact in reader.facts() if "answered" in fact]


async def test_what_the_user_types_is_waited_for_and_left(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I19
    reader = agent(terminals)
    terminals.tmux("send-keys", "-t", reader.pane, "-l", "half a thought")
    await refused(carrier, reader, Standing.BUSY, "typed and not sent")
    terminals.tmux("send-keys", "-t", reader.pane, "Enter")
    await until(lambda: reader.submitted() == ["half a thought"], "the user's own submission")
    await free(carrier, reader)


async def test_a_half_typed_command_is_waited_for(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I19
    reader = bash(terminals)
    await ready(carrier, reader, endpoint(carrier, reader))
    terminals.tmux("send-keys", "-t", reader.pane, "-l", "false hope")
    await refused(carrier, reader, Standing.BUSY, "typed and not sent")
    terminals.shows(reader.pane, "bash$ false hope")


async def test_work_is_waited_for(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader = agent(terminals)
    reader.order("work")
    await refused(carrier, reader, Standing.BUSY, "Claude Code is working")
    reader.order("rest")
    await free(carrier, reader)


async def test_copy_mode_is_waited_for(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I11
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    terminals.tmux("copy-mode", "-t", reader.pane)
    await refused(carrier, reader, Standing.BUSY, "copy mode")
    told: list[str] = []
    carrier.on_change(told.append)
    terminals.tmux("send-keys", "-t", reader.pane, "-X", "cancel")
    await until(lambda: told, "word that the mode changed")
    assert set(told) == {to.target_key}
    await free(carrier, reader)


async def test_a_quiet_pane_tells_that_it_is(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I19
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    sent = await ready(carrier, reader, to)
    told: list[str] = []
    carrier.on_change(told.append)
    reader.order("say something")
    await until(lambda: told, "word that the pane fell silent")
    assert told[0] == to.target_key
    assert (await carrier.look(sent)).standing is Standing.FREE


async def test_slow_start(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I26
    reader = agent(terminals, slow=True)
    await refused(carrier, reader, Standing.BUSY, "not ready yet")
    reader.order("begin")
    await free(carrier, reader)
    assert not [fact for fact in reader.facts() if "dropped" in fact or "swallowed" in fact]


async def test_pastes_that_are_off_or_not_known_on(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I7
    reader = bash(terminals)
    await refused(carrier, reader, Standing.BUSY, "not yet seen to take pasted text")
    await ready(carrier, reader, endpoint(carrier, reader))
    terminals.tmux("send-keys", "-t", reader.pane, "read -r line", "Enter")
    await refused(carrier, reader, Standing.BUSY, "takes no pasted text now")
    terminals.tmux("send-keys", "-t", reader.pane, "Enter")
    await free(carrier, reader)


async def test_a_reader_of_whole_lines_gets_nothing(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I25
    pane = terminals.open(["cat"])
    reader = Reader(terminals, pane, terminals.folder / "none.jsonl")
    await refused(carrier, reader, Standing.BUSY, "not yet seen to take pasted text")
    assert terminals.screen(pane).strip() == ""


async def test_pastes_are_remembered_by_a_later_carrier(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I7
    reader = bash(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    await carrier.close()
    later = TmuxCarrier(private=terminals.folder / "private", reach="host:test:0")
    try:
        sent = parcel(to, "hello")

        async def looked() -> bool:
            return (await later.look(sent)).standing is Standing.FREE

        await until(looked, "free, with nothing pressed in the pane")
        assert (await later.write(sent)).outcome is Written.WRITTEN
    finally:
        await later.close()
    await until(lambda: len(reader.submitted()) == 1, "the submission")


@pytest.mark.parametrize(
    ("command", "undo", "says"),
    [
        (["select-pane", "-d"], ["select-pane", "-e"], "input is turned off"),
        (
            ["set-option", "-w", "synchronize-panes", "on"],
            ["set-option", "-w", "synchronize-panes", "off"],
            "all panes",
        ),
    ],
)
async def test_panes_that_would_pass_it_wrongly_on(
    terminals: Terminals, carrier: TmuxCarrier, command: list[str], undo: list[str], says: str
) -> None:
    reader = agent(terminals)
    terminals.split(reader.pane, ["cat"])
    await ready(carrier, reader, endpoint(carrier, reader))
    terminals.tmux(command[0], "-t", reader.pane, *command[1:])
    await refused(carrier, reader, Standing.FAULT, says)
    terminals.tmux(undo[0], "-t", reader.pane, *undo[1:])
    await free(carrier, reader)


async def test_a_dead_pane_is_gone_and_the_server_survives(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I12
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    terminals.tmux("set-option", "-p", "-t", reader.pane, "remain-on-exit", "on")
    reader.order("exit")
    await until(lambda: terminals.show(reader.pane, "pane_dead") == "1", "a dead pane")
    await refused(carrier, reader, Standing.GONE, "has ended", to)
    assert await carrier.live(to) is False
    assert terminals.runs
    with pytest.raises(Invalid, match="has ended"):
        endpoint(carrier, reader)


async def test_a_closed_pane_is_gone(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I13
    reader, other = agent(terminals), agent(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    await ready(carrier, other, endpoint(carrier, other))
    terminals.tmux("kill-pane", "-t", reader.pane)
    await refused(carrier, reader, Standing.GONE, reader.pane, to)
    assert await carrier.live(to) is False
    assert await carrier.seen(parcel(to, "x")) is None
    await free(carrier, other)


async def test_a_shell_where_an_agent_was_runs_nothing(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I16
    reader = agent(terminals, in_shell=True)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    assert await carrier.live(to) is True
    reader.order("exit")
    await refused(carrier, reader, Standing.GONE, "the pane is back at bash", to)
    assert await carrier.live(to) is None
    assert "postroom" not in terminals.screen(reader.pane)


async def test_a_shell_whose_keys_are_commands_runs_nothing(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I16
    reader = bash(terminals)
    to = endpoint(carrier, reader)
    # In vi's command mode bash does not know a paste for one.
    terminals.tmux("send-keys", "-t", reader.pane, "set -o vi; bind 'set show-mode-in-prompt on'", "Enter")
    terminals.shows(reader.pane, "(ins)bash$")
    await ready(carrier, reader, to)
    terminals.tmux("send-keys", "-t", reader.pane, "Escape")
    terminals.shows(reader.pane, "(cmd)bash$")
    text = "it's\nrun me\n'/etc/passw\t; run me too\nthe end"
    assert (await carrier.write(parcel(to, text, id="msg_vi"))).outcome is Written.WRITTEN
    await until(lambda: bool(reader.submitted()), "a submission")
    assert not [fact for fact in reader.facts() if "ran" in fact]
    assert reader.submitted()[-1].partition("\n")[2] == text.expandtabs(4)


async def test_another_program_in_front_of_an_agent_is_waited_for(
    terminals: Terminals, carrier: TmuxCarrier
) -> None:  # I16
    reader = agent(terminals, in_shell=True)
    to = endpoint(carrier, reader)
    reader.order("exit")
    terminals.shows(reader.pane, "bash$")
    terminals.tmux("send-keys", "-t", reader.pane, "sleep 3600", "Enter")
    await refused(carrier, reader, Standing.BUSY, "sleep is in front of claude", to)
    assert await carrier.live(to) is True


async def test_a_shell_is_no_agent_whatever_its_attachment_says(
    terminals: Terminals, carrier: TmuxCarrier
) -> None:  # I16
    reader = bash(terminals)
    await ready(carrier, reader, endpoint(carrier, reader))
    address, key, _ = carrier.check_address({"socket": terminals.socket, "pane": reader.pane, "agent": "claude"})
    terminals.tmux("send-keys", "-t", reader.pane, "PS1='❯ '", "Enter")
    await refused(carrier, reader, Standing.GONE, "claude is not there", endpoint_at(address, key))


async def test_a_pane_attached_at_its_shell_serves_the_agent_started_in_it(
    terminals: Terminals, carrier: TmuxCarrier
) -> None:  # I16
    reader = bash(terminals)
    to = endpoint(carrier, reader)
    terminals.tmux("send-keys", "-t", reader.pane, "cat", "Enter")
    await refused(carrier, reader, Standing.BUSY, "cat is running in the pane", to)


async def test_a_shell_that_nothing_can_be_quoted_for_gets_nothing(
    terminals: Terminals, carrier: TmuxCarrier
) -> None:  # I16
    command = ["bash", "-c", f"exec -a nu bash --rcfile {HERE / 'shell.rc'} -i"]
    pane = terminals.open(command, {"READ_LOG": str(terminals.folder / "log.nul")})
    terminals.shows(pane, "bash$")
    reader = Reader(terminals, pane, terminals.folder / "log.nul")
    to = endpoint(carrier, reader)
    assert to.address["agent"] is None
    await refused(carrier, reader, Standing.BUSY, "nu would run it", to)
    assert await carrier.live(to) is True
    there = endpoint_at({**to.address, "agent": "claude", "program": "claude"}, to.target_key)
    await refused(carrier, reader, Standing.GONE, "claude is not there: the pane is back at nu", there)
    assert await carrier.live(there) is None
    assert "postroom" not in terminals.screen(reader.pane)


LAUNCHER = "import subprocess, sys; subprocess.call(['sh', '-c', 'echo $$ > \"$0\"; exec cat', sys.argv[1]])"


async def test_what_only_started_the_attachment_is_not_what_is_attached(
    terminals: Terminals, carrier: TmuxCarrier
) -> None:
    """As of `uv run postroom attach`: what started it is in front with it, and goes with it."""
    reader, file = bash(terminals), terminals.folder / "pid"
    launcher = [sys.executable, "-S", "-c", LAUNCHER, str(file)]
    terminals.tmux("send-keys", "-t", reader.pane, shlex.join(launcher), "Enter")
    await until(lambda: file.exists() and file.read_text().strip(), "the process that attaches")

    def attached(caller: int, **more: str) -> tuple[object, object]:
        asked = {"socket": terminals.socket, "pane": reader.pane, "caller": caller, **more}
        address = carrier.check_address(asked)[0]
        assert "caller" not in address
        return address["agent"], address["program"]

    inside, outside, front = int(file.read_text()), os.getpid(), f"{Path(sys.executable).name} -c"
    assert attached(inside) == (None, "bash")
    assert attached(outside) == ("generic", front)
    assert attached(inside, agent="generic") == ("generic", front)


async def test_an_agent_that_attaches_itself_is_what_is_attached(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader = agent(terminals, in_shell=True)
    shell = Path(f"/proc/{terminals.show(reader.pane, 'pane_pid')}/stat").read_text()
    front = int(shell.rpartition(")")[2].split()[5])
    address = carrier.check_address({"socket": terminals.socket, "pane": reader.pane, "caller": front})[0]
    assert (address["agent"], address["program"]) == ("claude", "claude")


async def test_the_pane_id_of_a_new_server_is_another_pane(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I15
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    terminals.end_server()
    again = agent(terminals)
    assert again.pane == reader.pane
    assert again.terminals.socket == to.address["socket"]
    await refused(carrier, again, Standing.GONE, "restarted", to)
    assert await carrier.live(to) is False
    await free(carrier, again)


async def test_a_respawned_pane_is_another_one(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I15
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    terminals.tmux("respawn-pane", "-k", "-t", reader.pane, "cat")
    await refused(carrier, reader, Standing.GONE, "something else was started", to)


async def test_no_server_at_all_is_gone(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    terminals.end_server()
    assert (await carrier.look(parcel(to, "x"))).standing is Standing.GONE
    assert await carrier.live(to) is False
    assert not terminals.runs


@pytest.mark.parametrize("pane", ["main:%5", "0", "%", "%1;kill-server", "@1", "%999", 5, None])
def test_only_a_bare_pane_id_is_an_address(
    terminals: Terminals, carrier: TmuxCarrier, pane: object
) -> None:  # I13, I14
    reader = agent(terminals)
    with pytest.raises(Invalid) as refusal:
        carrier.check_address({"socket": terminals.socket, "pane": pane})
    assert refusal.value.field == "address.pane"
    assert terminals.show(reader.pane, "@postroom_endpoint") == ""


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ({"pane": "%0"}, "address.socket"),
        ({"socket": "relative", "pane": "%0"}, "address.socket"),
        ({"socket": "/nowhere/at/all", "pane": "%0"}, "address.socket"),
        ({"socket": __file__, "pane": "%0"}, "address.socket"),
        ({"socket": "SOCKET", "pane": "%0", "agent": "emacs"}, "address.agent"),
        ({"socket": "SOCKET", "pane": "%0", "sockte": "x"}, "address.sockte"),
        ({"socket": "SOCKET", "pane": "%0", "caller": 0}, "address.caller"),
        ({"socket": "SOCKET", "pane": "%0", "caller": "1"}, "address.caller"),
    ],
)
def test_a_wrong_address_names_its_field(
    terminals: Terminals, carrier: TmuxCarrier, address: dict[str, object], field: str
) -> None:
    agent(terminals)
    given = {name: terminals.socket if value == "SOCKET" else value for name, value in address.items()}
    with pytest.raises(Invalid) as refusal:
        carrier.check_address(given)
    assert refusal.value.field == field


def test_an_address_is_canonical_and_its_pane_keeps_its_mark(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I15
    reader = agent(terminals)
    first, second = endpoint(carrier, reader), endpoint(carrier, reader)
    stored = first.address
    assert first.target_key == second.target_key
    assert stored == second.address
    assert stored["agent"] == "claude"
    assert stored["mark"] == terminals.show(reader.pane, "@postroom_endpoint")
    server = f"{terminals.show(reader.pane, 'pid')}:{terminals.show(reader.pane, 'start_time')}"
    assert first.target_key == f"tmux:{terminals.socket}:{server}:{reader.pane}"
    link = Path(terminals.folder / "link")
    os.symlink(terminals.socket, link)
    assert carrier.check_address({"socket": str(link), "pane": reader.pane, "agent": "codex"})[0]["agent"] == "codex"
