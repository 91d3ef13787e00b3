"""A pane: what makes it the one that was attached, what stands in front in it, and how it is found so the first time."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from postroom.carriers.tmux_control import DEADLINE_S, command, environment
from postroom.errors import Invalid, Unavailable

MARK: Final = "@postroom_endpoint"
LOG: Final = "@postroom_log"
PASTE: Final = "@postroom_paste"
_PANE: Final = re.compile(r"%\d{1,9}")
_MARK: Final = re.compile(r"[0-9a-f]{16,64}")
_FIELDS: Final = (
    "pane_id",
    "pid",
    "start_time",
    "pane_pid",
    "session_id",
    "pane_dead",
    "pane_in_mode",
    "pane_input_off",
    "pane_synchronized",
    "cursor_x",
    "cursor_y",
    "pane_width",
    "bracket_paste_flag",
)
FORMAT: Final = (
    " ".join(f"#{{{name}}}" for name in _FIELDS) + f" #{{{MARK}}} #{{{LOG}}} #{{{PASTE}}} #{{pane_current_command}}"
)
_INTERPRETERS: Final = re.compile(r"(python|pypy|node|bun|deno|ruby|perl|(ba|da|z|k|a|fi|mk|c|tc)?sh$)")
_ENDING: Final = re.compile(r"\.(py|js|mjs|cjs|rb|pl|sh|exe)$")
_WITH_VALUE: Final = frozenset({"-O", "+O", "-o", "+o", "--rcfile", "--init-file", "-W", "-X", "-r", "--require"})
_FISH_WITH_VALUE: Final = frozenset(
    {"-C", "--init-command", "-D", "--debug-stack-frames", "-d", "--debug", "--debug-output"}
    | {"-f", "--features", "-p", "--profile", "--profile-startup"}
)
_OWN: Final = "postroom"


@dataclass(frozen=True, slots=True)
class Place:
    """A pane's identity, as an endpoint's address stores it. server_start: seconds, as tmux tells it.

    mark: what stands in the pane's own option since it was attached. agent: which rules it is read by, None for whatever
    known program is in front. program: what was in front when it was attached.
    """

    socket: str
    pane: str
    server_pid: int
    server_start: int
    pane_pid: int
    mark: str
    agent: str | None
    program: str

    @property
    def key(self) -> str:
        """The canonical target key."""
        return f"tmux:{self.socket}:{self.server_pid}:{self.server_start}:{self.pane}"

    def as_address(self) -> dict[str, Any]:
        """The address as it is stored."""
        return asdict(self)


def place_of(address: Mapping[str, Any]) -> Place:
    """A stored address as the place it is; raises Invalid for one that no attachment has made."""
    try:
        return Place(
            str(address["socket"]),
            str(address["pane"]),
            int(address["server_pid"]),
            int(address["server_start"]),
            int(address["pane_pid"]),
            str(address["mark"]),
            None if address["agent"] is None else str(address["agent"]),
            str(address["program"]),
        )
    except (KeyError, TypeError, ValueError):
        raise Invalid("address is none of an attached pane", field="address") from None


@dataclass(frozen=True, slots=True)
class Probe:
    """A pane as tmux tells of it at one moment. log: what was written there, newest last, as `id/round/step/time`."""

    pane: str
    server_pid: str
    server_start: str
    pane_pid: str
    session: str
    dead: bool
    in_mode: bool
    input_off: bool
    synchronized: bool
    cursor: tuple[int, int]
    width: int
    takes_paste: bool | None
    mark: str
    log: tuple[str, ...]
    paste: str
    command: str


def parse_probe(line: str) -> Probe | None:
    """The answer to FORMAT; None where there is no such pane."""
    values = line.split(" ", len(_FIELDS) + 3)
    if len(values) < len(_FIELDS) + 4 or not values[0]:
        return None
    on = [value not in {"", "0"} for value in values]
    return Probe(
        pane=values[0],
        server_pid=values[1],
        server_start=values[2],
        pane_pid=values[3],
        session=values[4],
        dead=on[5],
        in_mode=on[6],
        input_off=on[7],
        synchronized=on[8],
        cursor=(int(values[9] or 0), int(values[10] or 0)),
        width=int(values[11] or 0),
        takes_paste=on[12] if values[12] else None,
        mark=values[13],
        log=tuple(entry for entry in values[14].split(",") if entry),
        paste=values[15],
        command=values[16],
    )


@dataclass(frozen=True, slots=True)
class Front:
    """The program in a pane's foreground. names: what it may be known by, the most telling first."""

    pid: int
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.names[0]

    @property
    def paste_mark(self) -> str:
        """What says that this very program was heard to take bracketed pastes."""
        return f"on/{self.pid}"


def front_of(pane_pid: int, told: str) -> Front:
    """The program in front of a pane. told: its name as tmux has it, which is all there is where there is no /proc."""
    pid = pane_pid
    try:
        pid = _stat(pane_pid)[5] or pane_pid
        return Front(pid, _names(pid))
    except (OSError, ValueError, IndexError):
        return Front(pid, (_plain(told),))


def front_attached(pane_pid: int, told: str, caller: int | None, stands: Callable[[Front], bool]) -> Front:
    """The program in front of a pane that is being attached: behind this one, where it attaches the pane it runs in.

    caller: the process that asks for it. What stands in front with it, as `uv run` does, only started it and goes with
    it, unless the program `stands`.
    """
    front = front_of(pane_pid, told)
    try:
        group = _stat(pane_pid)[5]
        inside = caller is not None and _stat(caller)[2] == group
        while front.name.startswith(_OWN) or (inside and _stat(front.pid)[2] == group and not stands(front)):
            pid = _stat(front.pid)[1]
            front = Front(pid, _names(pid))
    except (OSError, ValueError, IndexError):
        return front
    return front


def _stat(pid: int) -> list[int]:
    """A process's numbers as Linux has them: 1 its parent, 2 its process group, 5 the group in front of its terminal."""
    after = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return [0, *(int(value) for value in after[1:6])]


def _names(pid: int) -> tuple[str, ...]:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    called = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    program = _plain(arguments[0].split(" ")[0])
    script = _script(program, arguments[1:])
    # A shell with a script, or with a command to run, does not wait at a prompt: it is called by what it runs.
    if script is not None and program.endswith("sh"):
        return (script,)
    return tuple(dict.fromkeys(name for name in (script, program, called) if name)) or (called,)


def _script(program: str, arguments: list[str]) -> str | None:
    if not _INTERPRETERS.match(program):
        return None
    shell = program.endswith("sh")
    values = _WITH_VALUE | _FISH_WITH_VALUE if program == "fish" else _WITH_VALUE
    skip = False
    for number, argument in enumerate(arguments):
        if skip:
            skip = False
        elif argument == "-c" or (re.fullmatch(r"-[a-z]*c[a-z]*", argument) if shell else argument == "-e"):
            return f"{program} -c"
        elif shell and re.fullmatch(r"-[a-z]*s[a-z]*", argument):
            return None
        elif argument == "-m" and number + 1 < len(arguments):
            return arguments[number + 1].split(".")[0]
        elif argument in values:
            skip = True
        elif argument and not argument.startswith(("-", "+")):
            return _plain(argument)
    return None


def _plain(path: str) -> str:
    """A program's name from its path or title: without folders, a login shell's dash, a hidden file's dot, an ending."""
    return _ENDING.sub("", path.rsplit("/", 1)[-1].lstrip("-.")) or "unknown"


def find_place(
    binary: str,
    address: Mapping[str, Any],
    agents: Mapping[str, object],
    token: Callable[[], str],
    stands: Callable[[Front], bool],
) -> tuple[Place, Front]:
    """The pane that an address names -> marked as attached; one attached before keeps its mark.

    address: socket, pane, agent where the rules to read it by are to be others than its program's, and caller, the process
    that attaches it, so that nothing which only started that is taken for its program; see `front_attached` for `stands`.
    Takes 5 s at most. Raises Invalid by field, Unavailable when tmux does not answer.
    """
    for name in address:
        if name not in {*Place.__dataclass_fields__, "caller"}:
            raise Invalid(
                f"address.{name[:64]} is unknown; expected socket, pane, agent and caller", field=f"address.{name[:64]}"
            )
    socket, pane, agent = address.get("socket"), address.get("pane"), address.get("agent")
    caller = address.get("caller")
    if not isinstance(socket, str) or not socket.startswith("/") or not socket.isprintable():
        raise Invalid(
            "address.socket is expected to be the absolute path of a tmux server's socket", field="address.socket"
        )
    if not isinstance(pane, str) or not _PANE.fullmatch(pane):
        raise Invalid("address.pane is expected to be a pane's id like %3", field="address.pane")
    if agent is not None and (not isinstance(agent, str) or agent not in agents):
        raise Invalid(f"address.agent is expected to be one of {', '.join(sorted(agents))}", field="address.agent")
    if caller is not None and (type(caller) is not int or not 0 < caller < 2**31):
        raise Invalid("address.caller is expected to be the number of a process", field="address.caller")
    _check_owner(socket)

    show = ("display-message", "-p", "-t", pane)
    path, _, line = _ask(binary, socket, *show, "#{socket_path}", ";", *show, FORMAT).partition("\n")
    probe = parse_probe(line.rstrip("\n"))
    if probe is None or probe.pane != pane:
        raise Invalid(f"address.pane: there is no pane {pane} on the tmux server at {socket}", field="address.pane")
    if probe.dead:
        raise Invalid(f"address.pane: the program in {pane} has ended", field="address.pane")
    mark = probe.mark
    if not _MARK.fullmatch(mark):
        mark = token()
        _ask(binary, socket, "set-option", "-p", "-t", pane, MARK, mark)
    front = front_attached(int(probe.pane_pid), probe.command, caller, lambda front: agent is not None or stands(front))
    place = Place(
        socket=path,
        pane=pane,
        server_pid=int(probe.server_pid),
        server_start=int(probe.server_start),
        pane_pid=int(probe.pane_pid),
        mark=mark,
        agent=agent,
        program=front.name,
    )
    return place, front


def _check_owner(socket: str) -> None:
    try:
        found = os.stat(socket)
    except OSError as error:
        raise Invalid(f"address.socket {socket}: {error.strerror}", field="address.socket") from None
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise Invalid(f"address.socket {socket} is no socket of this user", field="address.socket")


def _ask(binary: str, socket: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            command(binary, socket, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S / 2,
            env=environment(),
            check=False,
        )
    except FileNotFoundError:
        raise Unavailable("tmux is not installed here, or not on the path") from None
    except (OSError, subprocess.TimeoutExpired):
        raise Unavailable(f"the tmux server at {socket} does not answer") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise Invalid(f"address.socket {socket}: tmux says: {said}", field="address.socket")
    return done.stdout.decode("utf-8", "replace")
