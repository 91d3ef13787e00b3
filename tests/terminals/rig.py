"""A tmux server of a test's own, with programs in its panes, and parcels for them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from postroom.carriers.tmux import TmuxCarrier
from postroom.endpoint import CarrierKind, Endpoint
from postroom.message import AckMode, Delivery, DeliveryState, Message, Parcel, Priority, Target
from tests.processes import wait_until

HERE = Path(__file__).parent


class Terminals:
    """One tmux server on a socket of its own; `close` ends it and whatever runs in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pr-tmux-"))
        self.name = f"postroom-test-{uuid.uuid4().hex[:12]}"
        self._panes = 0

    def tmux(self, *arguments: str) -> str:
        """One tmux command on this server -> what it printed."""
        done = subprocess.run(
            ["tmux", "-u", "-f", "/dev/null", "-L", self.name, *arguments],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("TMUX")},
                "TMUX_TMPDIR": str(self.folder),
                "LC_ALL": "C.UTF-8",
                "TERM": "xterm-256color",
            },
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("utf-8", "replace").rstrip("\n")

    @property
    def socket(self) -> str:
        """The server's socket."""
        return str(self.folder / f"tmux-{os.geteuid()}" / self.name)

    def open(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        session: str | None = None,
        size: tuple[int, int] = (100, 40),
    ) -> str:
        """A pane that runs this command, in a session of its own -> its id; `size` in columns and rows."""
        self._panes += 1
        settings = [part for name, value in (env or {}).items() for part in ("-e", f"{name}={value}")]
        begin = (
            "new-session",
            "-d",
            "-x",
            str(size[0]),
            "-y",
            str(size[1]),
            "-s",
            session or f"s{self._panes}",
            *settings,
        )
        return self._begun(begin, command)

    def split(self, pane: str, command: Sequence[str]) -> str:
        """A further pane in the same window -> its id."""
        return self._begun(("split-window", "-d", "-t", pane), command)

    def _begun(self, begin: Sequence[str], command: Sequence[str]) -> str:
        """The new pane's id, once the shell that tmux starts a command with has become that command."""
        line = f"exec {shlex.join(command)}"
        pane, _, pid = self.tmux(*begin, "-P", "-F", "#{pane_id} #{pane_pid}", line).partition(" ")

        def begun() -> bool:
            try:
                return line not in Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
            except OSError:
                return True  # It has ended already.

        wait_until(begun, f"{line} begins")
        return pane

    def screen(self, pane: str, *, all_of_it: bool = False) -> str:
        """What the pane shows, or with its scrollback."""
        return self.tmux("capture-pane", "-p", "-J", "-t", pane, *(["-S", "-"] if all_of_it else []))

    def show(self, pane: str, name: str) -> str:
        """A format's value for the pane."""
        return self.tmux("display-message", "-p", "-t", pane, f"#{{{name}}}")

    def shows(self, pane: str, text: str) -> None:
        """Wait until the pane shows this text."""
        wait_until(lambda: text in self.screen(pane), f"{text!r} on the pane")

    def buffers(self) -> list[str]:
        """The paste buffers that are left over."""
        return self.tmux("list-buffers", "-F", "#{buffer_name}").splitlines()

    @property
    def runs(self) -> bool:
        """Whether the server is there."""
        try:
            return bool(self.tmux("list-sessions"))
        except AssertionError:
            return False

    def end_server(self) -> None:
        """The server -> ended, its process too, with whatever runs in it."""
        try:
            pid = int(self.tmux("display-message", "-p", "#{pid}"))
            self.tmux("kill-server")
        except AssertionError:
            return
        wait_until(lambda: _ended(pid), "the end of the tmux server")

    def close(self) -> None:
        """The server and its folder -> gone."""
        self.end_server()
        shutil.rmtree(self.folder, ignore_errors=True)


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@dataclass
class Reader:
    """A program in a pane that notes what is submitted to it."""

    terminals: Terminals
    pane: str
    log: Path
    fifo: Path | None = None

    def facts(self) -> list[dict[str, Any]]:
        """What it has noted whole, oldest first."""
        if not self.log.exists():
            return []
        raw = self.log.read_bytes()
        if self.log.suffix == ".nul":
            words = [entry.decode().partition(" ") for entry in raw.split(b"\0")[:-1]]
            return [{{"quoted": "submitted", "ran": "ran"}[how]: text} for how, _, text in words]
        return [json.loads(line) for line in raw.split(b"\n")[:-1]]

    def submitted(self) -> list[str]:
        """Every text that was submitted to it; an Enter at an empty prompt is none."""
        return [fact["submitted"] for fact in self.facts() if fact.get("submitted")]

    def order(self, text: str) -> None:
        """Tell the stand-in to do something, and wait until it has."""
        assert self.fifo is not None
        before = len([fact for fact in self.facts() if "obeyed" in fact])
        with self.fifo.open("wb", buffering=0) as fifo:
            fifo.write(f"{text}\n".encode())
        wait_until(lambda: len([fact for fact in self.facts() if "obeyed" in fact]) > before, f"obeyed: {text}")


def agent(terminals: Terminals, *, in_shell: bool = False, slow: bool = False, session: str | None = None) -> Reader:
    """The stand-in under the name of an agent whose rules are known; `in_shell` leaves a shell behind when it ends."""
    number = uuid.uuid4().hex[:8]
    folder = terminals.folder / number
    folder.mkdir()
    program, log, fifo = folder / "claude", folder / "log.jsonl", folder / "fifo"
    program.symlink_to(HERE / "agent_tui.py")
    os.mkfifo(fifo)
    command = [sys.executable, "-S", str(program), str(log), str(fifo), *(["--slow"] if slow else [])]
    if in_shell:
        pane = terminals.open(["bash", "--rcfile", str(HERE / "shell.rc"), "-i"], {"READ_LOG": "/dev/null"}, session)
        terminals.shows(pane, "bash$")
        terminals.tmux("send-keys", "-t", pane, shlex.join(command), "Enter")
    else:
        pane = terminals.open(command, session=session)
    terminals.shows(pane, "Starting" if slow else "? for shortcuts")
    return Reader(terminals, pane, log, fifo)


def bash(terminals: Terminals) -> Reader:
    """A bash that notes what is submitted, and would note what a message made it run."""
    log = terminals.folder / f"{uuid.uuid4().hex[:8]}.nul"
    pane = terminals.open(["bash", "--rcfile", str(HERE / "shell.rc"), "-i"], {"READ_LOG": str(log)})
    terminals.shows(pane, "bash$")
    return Reader(terminals, pane, log)


def python(terminals: Terminals) -> Reader:
    """`python3 -q`, reading at its prompt."""
    log = terminals.folder / f"{uuid.uuid4().hex[:8]}.jsonl"
    env = {"READ_LOG": str(log), "PYTHONSTARTUP": str(HERE / "python_startup.py"), "PYTHON_BASIC_REPL": "1"}
    pane = terminals.open([_with_readline(), "-q"], env)
    terminals.shows(pane, ">>>")
    return Reader(terminals, pane, log)


def prompt_toolkit(terminals: Terminals) -> Reader:
    """A prompt_toolkit program."""
    log = terminals.folder / f"{uuid.uuid4().hex[:8]}.jsonl"
    pane = terminals.open([sys.executable, str(HERE / "line_reader.py"), str(log)])
    terminals.shows(pane, ">")
    return Reader(terminals, pane, log)


def _with_readline() -> str:
    """A Python whose line editing is GNU's: others know no bracketed paste."""
    test = "import readline; raise SystemExit('libedit' in (readline.__doc__ or ''))"
    for candidate in (sys.executable, "/usr/bin/python3", "python3"):
        if shutil.which(candidate) and subprocess.run([candidate, "-c", test], check=False).returncode == 0:
            return candidate
    raise AssertionError("no Python here has GNU readline; on Debian: apt-get install python3")


READERS = {"bash": bash, "python": python, "prompt_toolkit": prompt_toolkit, "agent": agent}


def endpoint(carrier: TmuxCarrier, reader: Reader, **changes: Any) -> Endpoint:
    """The reader's pane, attached."""
    address, key, reach = carrier.check_address({"socket": reader.terminals.socket, "pane": reader.pane})
    return endpoint_at(address, key, reach, **changes)


def endpoint_at(address: Mapping[str, Any], key: str, reach: str = "host:test:0", **changes: Any) -> Endpoint:
    """An endpoint with this stored address."""
    return replace(
        Endpoint(
            seq=1,
            id="ep_00000000-0000-7000-8000-000000000001",
            name="worker",
            carrier=CarrierKind.TMUX,
            address_json=json.dumps(address),
            target_key=key,
            reach=reach,
            ack_mode=AckMode.INJECTED,
            max_attempts=5,
            spill=False,
            rings=True,
            pid=None,
            created_by="tester",
            created_at=0,
            seen_at=0,
            ended_at=None,
        ),
        **changes,
    )


def parcel(to: Endpoint, payload: str, id: str = "", round: int = 0, **changes: Any) -> Parcel:
    """A message on its way to the endpoint."""
    message_id = id or f"msg_{uuid.uuid4().hex[:8]}_{uuid.uuid4().hex[:8]}"
    message = Message(
        seq=1,
        id=message_id,
        client_id=None,
        idempotency_key=None,
        digest="",
        sender="planner",
        addressed="worker",
        channel=None,
        kind="chat",
        priority=Priority.NORMAL,
        reply_to=None,
        payload=payload,
        ack_mode=AckMode.INJECTED,
        metadata_json=None,
        correlation_id=None,
        sender_repo=None,
        target_repo=None,
        provenance=None,
        created_by="planner",
        created_at=0,
        expires_at=None,
    )
    delivery = Delivery(
        seq=1,
        id="dl_00000000-0000-7000-8000-000000000001",
        message_id=message_id,
        target_key=to.target_key,
        carrier=CarrierKind.TMUX,
        endpoint_id=to.id,
        mailbox=to.mailbox,
        reach=to.reach,
        state=DeliveryState.PENDING,
        rank=1,
        ack_mode=AckMode.INJECTED,
        attempt_count=1,
        max_attempts=5,
        round=round,
        lease_id="ls_00000000-0000-7000-8000-000000000001",
        lease_expires_at=None,
        doubtful=False,
        next_attempt_at=None,
        ack_deadline=None,
        reason=None,
        last_failure_reason=None,
        handoff_seq=None,
        delivered_at=None,
        seen_at=None,
        answered_at=None,
        acknowledged_at=None,
        expires_at=None,
        created_at=time.time_ns() // 1_000_000,
        updated_at=0,
    )
    return Parcel(delivery, replace(message, **changes), Target(to.target_key, CarrierKind.TMUX), to)
