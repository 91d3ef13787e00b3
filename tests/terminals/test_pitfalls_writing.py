"""What may happen while a message is being written: it is submitted once, or it is told that nobody knows."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.carriers import tmux_control, tmux_write
from postroom.carriers.carrier import Standing, Writing
from postroom.carriers.tmux import TmuxCarrier
from postroom.carriers.tmux_agent import load_agents
from postroom.carriers.tmux_write import Step
from postroom.endpoint import Endpoint
from postroom.message import Parcel, Written
from tests.processes import until
from tests.terminals.rig import READERS, Reader, Terminals, agent, endpoint, parcel, prompt_toolkit
from tests.terminals.test_whole import long_text, ready


def carrier_that(terminals: Terminals, at: Step, act: Callable[[], object], **options: Any) -> TmuxCarrier:
    """A carrier with which something happens when a step of a write is done, the first time."""
    done: list[Step] = []

    def at_step(step: Step) -> None:
        if step is at and step not in done:
            done.append(step)
            act()

    return TmuxCarrier(private=terminals.folder / "private", reach="host:test:0", at_step=at_step, **options)


async def start(carrier: TmuxCarrier, reader: Reader, text: str = "hello there") -> tuple[Endpoint, Parcel, Writing]:
    """Write one message to the reader, once it takes one."""
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    sent = parcel(to, text)
    return to, sent, await carrier.write(sent)


async def once(carrier: TmuxCarrier, reader: Reader, sent: Parcel) -> None:
    """Hold that a later attempt finds the message, or puts it there, and that it was submitted once."""

    async def free() -> bool:
        look = await carrier.look(sent)
        return look.standing is Standing.FREE

    await until(free, "the pane to be free for the message")
    if not await carrier.seen(sent):
        assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await until(reader.submitted, "the submission")
    assert await carrier.seen(sent) is True
    assert [text.partition(":")[0] for text in reader.submitted()] == [f"[postroom {sent.message.id}"]
    assert not [fact for fact in reader.facts() if "control" in fact]  # I18
    assert reader.terminals.buffers() == []


async def test_enter_too_soon_is_pressed_again_and_no_more(terminals: Terminals) -> None:  # I3, I4, I34
    (terminals.folder / "rules").mkdir()
    here = Path(tmux_write.__file__).with_name("agents") / "claude.toml"
    rules = here.read_text().replace("enter_ms = 350", "enter_ms = 0").replace("per_line = 15", "per_line = 0")
    (terminals.folder / "rules" / "claude.toml").write_text(rules)
    carrier = TmuxCarrier(
        private=terminals.folder / "private", reach="host:test:0", agents=load_agents(terminals.folder / "rules")
    )
    try:
        reader = agent(terminals)
        _, sent, written = await start(carrier, reader, long_text(8192, 1))
        assert written.outcome is Written.WRITTEN
        assert len(reader.submitted()) == 1
        assert len([fact for fact in reader.facts() if "swallowed" in fact]) <= 1
        assert sent.message.payload in reader.submitted()[0]
    finally:
        await carrier.close()


async def test_an_enter_that_was_swallowed_by_the_program(terminals: Terminals) -> None:  # I3, I20
    reader = agent(terminals)
    # The placeholder of the paste is followed by a line that a swallowed key left, as agents do it.
    carrier = carrier_that(terminals, Step.PASTED, lambda: None)
    try:
        to = endpoint(carrier, reader)
        await ready(carrier, reader, to)
        sent = parcel(to, long_text(8192, 2))
        assert (await carrier.write(sent)).outcome is Written.WRITTEN
        await once(carrier, reader, sent)
    finally:
        await carrier.close()


async def test_another_submit_key(terminals: Terminals) -> None:  # I5
    (terminals.folder / "rules").mkdir()
    here = Path(tmux_write.__file__).with_name("agents") / "claude.toml"
    (terminals.folder / "rules" / "claude.toml").write_text(f"submit = 'C-m'\n{here.read_text()}")
    carrier = TmuxCarrier(
        private=terminals.folder / "private", reach="host:test:0", agents=load_agents(terminals.folder / "rules")
    )
    try:
        reader = agent(terminals)
        _, sent, written = await start(carrier, reader)
        assert written.outcome is Written.WRITTEN
        await once(carrier, reader, sent)
    finally:
        await carrier.close()


async def test_nothing_in_a_message_acts_as_a_key(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I9, I10, I18
    reader = agent(terminals)
    text = "end\x1b[201~\rrm -rf /\x03\x04\x15\x1a\x00\x7f\x9b201~\u202eback"
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    sent = parcel(to, text, sender="evil\x1b[201~\x03", reply_to="msg_\x9b")
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await once(carrier, reader, sent)
    header, *below = reader.submitted()[0].split("\n")
    assert "from evil␛[201~␃ about msg_\ufffd;" in header
    assert below == ["end␛[201~", "rm -rf /␃␄␕␚␀␡\ufffd201~\ufffdback"]
    assert sent.message.payload == text


@pytest.mark.parametrize("kind", ["agent", "bash"])
@pytest.mark.parametrize(
    "text", ["/exit", "!rm -rf /", "-R", "ends with;", "trailing\n\n\n", "'; touch /tmp/x; '", "#{pid} %0"]
)
async def test_bodies_that_would_be_commands(
    terminals: Terminals, carrier: TmuxCarrier, kind: str, text: str
) -> None:  # I2, I23, I30
    reader = READERS[kind](terminals)
    _, sent, written = await start(carrier, reader, text)
    assert written.outcome is Written.WRITTEN
    await once(carrier, reader, sent)
    assert reader.submitted()[0].partition("\n")[2] == text.rstrip("\n")
    assert not [fact for fact in reader.facts() if "ran" in fact]


async def test_the_longest_message(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I22
    reader = agent(terminals)
    _, sent, written = await start(carrier, reader, long_text(64 * 1024, 3))
    assert written.outcome is Written.WRITTEN
    await once(carrier, reader, sent)
    assert reader.submitted()[0].endswith(sent.message.payload)


async def test_a_long_body_is_spilled_where_the_endpoint_says_so(
    terminals: Terminals, carrier: TmuxCarrier
) -> None:  # I24
    reader = agent(terminals)
    to = endpoint(carrier, reader, spill=True)
    await ready(carrier, reader, to)
    sent = parcel(to, long_text(8192, 4))
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await once(carrier, reader, sent)
    _, pointer = reader.submitted()[0].split("\n")
    file = Path(pointer.partition("in the file ")[2].partition(";")[0])
    assert file.read_text() == sent.message.payload
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_text_is_whole_whatever_the_locale_is(
    terminals: Terminals, carrier: TmuxCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:  # I29
    monkeypatch.setenv("LC_ALL", "C")
    reader = prompt_toolkit(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    before = len(reader.submitted())
    sent = parcel(to, "żółć 漢字 😀 ünïcödé")
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    await until(lambda: len(reader.submitted()) > before, "the submission")
    assert reader.submitted()[-1].endswith("\nżółć 漢字 😀 ünïcödé")


async def test_a_pane_that_dies_under_the_write(terminals: Terminals) -> None:  # I12
    reader = agent(terminals)

    def die() -> None:
        terminals.tmux("set-option", "-p", "-t", reader.pane, "remain-on-exit", "on")
        os.kill(int(terminals.show(reader.pane, "pane_pid")), signal.SIGKILL)
        while terminals.show(reader.pane, "pane_dead") != "1":
            pass

    carrier = carrier_that(terminals, Step.LOADED, die)
    try:
        to, sent, written = await start(carrier, reader)
        assert written.outcome is Written.BUSY
        assert (await carrier.look(sent)).standing is Standing.GONE
        assert await carrier.live(to) is False
        assert terminals.runs
        await until(lambda: terminals.buffers() == [], "no buffer left over")
    finally:
        await carrier.close()


async def test_copy_mode_between_look_and_paste(terminals: Terminals) -> None:  # I11
    reader = agent(terminals)
    carrier = carrier_that(terminals, Step.LOADED, lambda: terminals.tmux("copy-mode", "-t", reader.pane))
    try:
        _, sent, written = await start(carrier, reader)
        assert written == Writing(Written.BUSY, "the pane changed just now")
        assert await carrier.seen(sent) is False
        await until(lambda: terminals.buffers() == [], "no buffer left over")
        terminals.tmux("send-keys", "-t", reader.pane, "-X", "cancel")
        await once(carrier, reader, sent)
    finally:
        await carrier.close()


async def test_copy_mode_between_paste_and_enter_is_waited_for(terminals: Terminals) -> None:  # I11
    reader = agent(terminals)
    carrier = carrier_that(terminals, Step.PASTED, lambda: terminals.tmux("copy-mode", "-t", reader.pane))
    try:
        to = endpoint(carrier, reader)
        await ready(carrier, reader, to)
        sent = parcel(to, "hello")
        writing = asyncio.create_task(carrier.write(sent))
        await until(lambda: terminals.show(reader.pane, "pane_in_mode") == "1", "copy mode")
        await until(lambda: "[postroom" in terminals.screen(reader.pane), "the paste")
        assert reader.submitted() == []
        terminals.tmux("send-keys", "-t", reader.pane, "-X", "cancel")
        assert (await writing).outcome is Written.WRITTEN
        await once(carrier, reader, sent)
    finally:
        await carrier.close()


async def test_copy_mode_that_stays_leaves_it_unknown(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:  # I11, I28
    monkeypatch.setattr(tmux_write, "HOLD_S", 0.5)
    reader = agent(terminals)
    carrier = carrier_that(terminals, Step.PASTED, lambda: terminals.tmux("copy-mode", "-t", reader.pane))
    try:
        _, sent, written = await start(carrier, reader)
        assert written == Writing(Written.UNKNOWN, "it was pasted, but not submitted: the pane is in copy mode")
        assert await carrier.seen(sent) is False
        terminals.tmux("send-keys", "-t", reader.pane, "-X", "cancel")
        monkeypatch.undo()
        await once(carrier, reader, sent)
    finally:
        await carrier.close()


async def test_a_dialog_that_opens_under_the_write(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:  # I17, I28
    monkeypatch.setattr(tmux_write, "HOLD_S", 0.5)
    reader = agent(terminals)
    carrier = carrier_that(terminals, Step.PASTED, lambda: reader.order("dialog"))
    try:
        _, sent, written = await start(carrier, reader)
        assert written.outcome is Written.UNKNOWN
        assert "blocked" in (written.reason or "")
        assert not [fact for fact in reader.facts() if "answered" in fact]
        assert (await carrier.look(sent)).reason.startswith("blocked")
        reader.order("no-dialog")
        monkeypatch.undo()
        await once(carrier, reader, sent)
    finally:
        await carrier.close()


async def test_a_program_that_does_not_read_leaves_it_unknown(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:  # I20, I28
    monkeypatch.setattr(tmux_write, "HOLD_S", 0.5)
    monkeypatch.setattr(tmux_write, "SHOWN_S", 0.3)
    reader = agent(terminals)
    carrier = carrier_that(terminals, Step.LOADED, lambda: reader.order("deaf"))
    try:
        to, sent, written = await start(carrier, reader, long_text(3000, 5))
        assert written == Writing(Written.UNKNOWN, "it was pasted, but not submitted: the program does not show it")
        reader.order("hear")
        terminals.shows(reader.pane, "[Pasted text #1")
        assert await carrier.seen(sent) is False
        other = parcel(to, "another one")
        assert (await carrier.look(other)).standing is Standing.BUSY
        monkeypatch.undo()
        await once(carrier, reader, sent)
        assert len([fact for fact in reader.facts() if "submitted" in fact]) == 1
    finally:
        await carrier.close()


async def test_a_round_is_found_and_the_next_is_written(terminals: Terminals, carrier: TmuxCarrier) -> None:
    reader = agent(terminals)
    to, sent, written = await start(carrier, reader)
    assert written.outcome is Written.WRITTEN
    assert await carrier.seen(sent) is True
    assert (await carrier.write(sent)).outcome is Written.WRITTEN
    assert len(reader.submitted()) == 1
    again = parcel(to, sent.message.payload, id=sent.message.id, round=1)
    assert await carrier.seen(again) is False

    async def free() -> bool:
        return (await carrier.look(again)).standing is Standing.FREE

    await until(free, "a free pane")
    assert (await carrier.write(again)).outcome is Written.WRITTEN
    await until(lambda: len(reader.submitted()) == 2, "the second round")
    assert reader.submitted()[1].startswith(f"[postroom {sent.message.id}, again 1: ")


async def test_what_was_pasted_and_submitted_by_the_user_is_found_on_the_pane(terminals: Terminals) -> None:
    reader = agent(terminals)
    stopped = asyncio.Event()
    carrier = carrier_that(terminals, Step.PASTED, stopped.set)
    try:
        to = endpoint(carrier, reader)
        await ready(carrier, reader, to)
        sent = parcel(to, "hello")
        writing = asyncio.create_task(carrier.write(sent))
        await stopped.wait()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert await carrier.seen(sent) in {False, None}
        terminals.shows(reader.pane, "hello")
        await asyncio.sleep(0.15)
        terminals.tmux("send-keys", "-t", reader.pane, "Enter")
        await until(lambda: len(reader.submitted()) == 1, "the user's Enter")

        async def seen() -> bool:
            return await carrier.seen(sent) is True

        await until(seen, "the message found on the pane")
    finally:
        await carrier.close()


async def test_tmux_that_hangs_is_a_fault_and_nothing_waits_for_it(
    terminals: Terminals, carrier: TmuxCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:  # I31
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    sent = await ready(carrier, reader, to)
    monkeypatch.setattr(tmux_control, "DEADLINE_S", 0.3)
    server = int(terminals.show(reader.pane, "pid"))
    os.kill(server, signal.SIGSTOP)
    try:
        look = await carrier.look(sent)
        assert (look.standing, look.reason) == (Standing.FAULT, "tmux did not answer in 0.3 s")
        assert await carrier.live(to) is None
    finally:
        os.kill(server, signal.SIGCONT)
    monkeypatch.undo()
    await once(carrier, reader, sent)


async def test_tmux_that_hangs_under_the_paste_leaves_it_unknown(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:  # I31
    reader = agent(terminals)
    stopped: list[int] = []

    def hang() -> None:
        stopped.append(int(terminals.show(reader.pane, "pid")))
        os.kill(stopped[0], signal.SIGSTOP)
        monkeypatch.setattr(tmux_control, "DEADLINE_S", 0.3)

    carrier = carrier_that(terminals, Step.LOADED, hang)
    try:
        _, sent, written = await start(carrier, reader)
        assert written == Writing(Written.UNKNOWN, "it was pasted, and then: tmux did not answer in 0.3 s")
        os.kill(stopped[0], signal.SIGCONT)
        monkeypatch.undo()
        await once(carrier, reader, sent)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        await carrier.close()


async def test_two_writers_do_not_mix(terminals: Terminals, carrier: TmuxCarrier) -> None:  # I21
    reader = agent(terminals)
    to = endpoint(carrier, reader)
    await ready(carrier, reader, to)
    other = TmuxCarrier(private=terminals.folder / "private", reach="host:test:0")
    texts = {f"msg_mixed_{n}": long_text(2000, n) for n in range(6)}

    async def send(by: TmuxCarrier, id: str) -> None:
        sent = parcel(to, texts[id], id=id)

        async def written() -> bool:
            return (await by.write(sent)).outcome is Written.WRITTEN

        await until(written, f"{id} written", 60)

    try:
        await asyncio.gather(*(send((carrier, other)[n % 2], name) for n, name in enumerate(texts)))
    finally:
        await other.close()
    await until(lambda: len(reader.submitted()) == len(texts), "all of them")
    found = {one.partition(":")[0].removeprefix("[postroom "): one.partition("\n")[2] for one in reader.submitted()}
    assert found == texts
