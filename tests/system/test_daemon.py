"""The daemon's own life: one a file, how it stops, what it guards, and what it does when its database or disk is away."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import psycopg
import pytest

from postroom.client import Client
from postroom.errors import Unavailable
from postroom.model import TodoState
from tests.postgres import PostgresServer
from tests.processes import Processes, until, wait_until
from tests.sources.signing import PAYLOADS, SECRET
from tests.system.daemons import GITHUB, Answer, Daemon, signed

pytestmark = pytest.mark.system

NewDaemon = Callable[..., Daemon]


def listeners(pid: int) -> set[str]:
    """The local addresses of every TCP socket that a process listens on or talks over, as /proc writes them."""
    targets = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since it was listed
            targets.append(os.readlink(handle))
    inodes = {target[8:-1] for target in targets if target.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                found.add(fields[1].rsplit(":", 1)[0])
    return found


def mode(path: Path) -> int:
    """A path's permission bits."""
    return stat.S_IMODE(path.lstat().st_mode)


def unavailable(answer: Answer) -> bool:
    """Whether this is the answer of a daemon that cannot use its database now."""
    return answer.status == 503 and answer.code == "unavailable" and int(answer.headers["retry-after"]) > 0


def waiting(daemon: Daemon, count: int) -> Callable[[], Awaitable[bool]]:
    """The condition that so many claims wait in a daemon."""

    async def holds() -> bool:
        return await asyncio.to_thread(daemon.waiting) == count

    return holds


# One daemon a file.


def test_a_second_daemon_on_one_file_is_refused(
    new_daemon: NewDaemon, processes: Processes, tmp_path: Path, daemon: Daemon
) -> None:
    elsewhere = tmp_path / "d"
    elsewhere.mkdir()
    options = ("--socket", str(daemon.folder / "second.sock"))
    url = f"sqlite:///{daemon.folder / 'postroom.db'}"
    second = Daemon(processes, elsewhere, database=url, options=options)
    second.launch()
    assert second.ended() == 1
    assert str(daemon.pid) in second.output
    assert "Client" in second.output
    assert "postroom serves" not in second.output
    same = new_daemon()
    same.launch()
    assert same.ended() == 1
    assert "another daemon answers" in same.output
    daemon.create()


def test_a_stale_socket_is_replaced(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    id_ = daemon.create()
    daemon.kill()
    assert daemon.socket.is_socket()
    daemon.start()
    assert daemon.get(id_)["state"] == "pending"
    assert daemon.terminate() == 0
    assert not daemon.socket.exists()
    daemon.socket.write_text("no socket")
    daemon.launch()
    assert daemon.ended() == 1
    assert "no socket" in daemon.output
    assert daemon.socket.read_text() == "no socket"


def test_a_port_in_use_is_refused(daemon: Daemon, processes: Processes, tmp_path: Path) -> None:
    second = Daemon(processes, tmp_path)
    second.port = daemon.port
    second.launch()
    assert second.ended() == 1
    assert f"127.0.0.1:{daemon.port}" in second.output
    assert "a Postroom answers there" in second.output


# How it stops.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_answers_who_waits_and_ends_it(new_daemon: NewDaemon, number: signal.Signals) -> None:
    daemon = await asyncio.to_thread(new_daemon().start)
    async with daemon.client() as client:
        polls = [asyncio.create_task(client.claim_next([f"q{place}"], wait_s=45)) for place in range(20)]
        await until(waiting(daemon, 20), "all claims wait")
        assert daemon.process is not None
        daemon.process.send_signal(number)
        async with asyncio.timeout(30):
            assert await asyncio.gather(*polls) == [[]] * 20
        assert await asyncio.to_thread(daemon.ended) == 0
    assert "Traceback" not in daemon.output
    assert not daemon.socket.exists()


async def test_who_asks_again_at_once_does_not_keep_it_up(new_daemon: NewDaemon) -> None:
    daemon = await asyncio.to_thread(new_daemon().start)

    async def ask_for_ever(client: Client) -> None:
        while True:
            assert await client.claim_next(["inbox"], wait_s=45) == []

    async with daemon.client() as client:
        agents = [asyncio.create_task(ask_for_ever(client)) for _ in range(20)]
        await until(waiting(daemon, 20), "all claims wait")
        # Whoever still held it up would be cut off after the grace, and that is logged.
        assert await asyncio.to_thread(daemon.terminate) == 0
        told = await asyncio.gather(*agents, return_exceptions=True)
    assert {type(error) for error in told} == {Unavailable}
    assert "Traceback" not in daemon.output


# What it guards.


def test_what_it_writes_is_for_its_user_alone(processes: Processes, folder: Path) -> None:
    before = os.umask(0)
    try:
        data = folder / "deep" / "data"
        daemon = Daemon(processes, data).start()
    finally:
        os.umask(before)
    assert mode(data) == 0o700
    assert mode(data / "admin-token") == 0o600
    assert mode(daemon.socket) == 0o600
    for path in data.iterdir():
        assert mode(path) & 0o077 == 0, path
    first = daemon.token
    assert first.startswith("tk_")
    daemon.kill()
    daemon.start()
    assert daemon.token == first
    assert daemon.ask_port("GET", "/v1/todos", token=first).status == 200


def test_daemons_on_one_database_have_each_their_own_admin(
    new_daemon: NewDaemon, processes: Processes, postgres_url: str
) -> None:
    first = new_daemon(database=postgres_url).start()
    second = Daemon(processes, first.folder / "second", database=postgres_url).start()
    assert first.token != second.token
    for _ in range(2):
        for daemon, other in ((first, second), (second, first)):
            assert daemon.ask_port("GET", "/v1/todos", token=daemon.token).status == 200
            assert daemon.ask_port("GET", "/v1/todos", token=other.token).status == 401
        first.kill()
        first.start()
    id_ = first.create()
    assert second.get(id_)["state"] == "pending"
    taken = first.ask("POST", "/v1/tokens", {"name": "admin"})
    assert (taken.status, taken.code) == (409, "conflict")
    made = first.ask("POST", "/v1/tokens", {"name": "ann"}).value["secret"]
    assert second.ask_port("GET", "/v1/todos", token=made).status == 200


def test_an_admins_token_that_cannot_be_read_ends_it(new_daemon: NewDaemon, folder: Path) -> None:
    (folder / "admin-token").mkdir()
    daemon = new_daemon()
    daemon.launch()
    assert daemon.ended() == 1
    assert str(folder / "admin-token") in daemon.output


def test_it_listens_on_loopback_alone(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(GITHUB, options=("--hooks-port", "0")).start()
    assert listeners(daemon.pid) == {"0100007F"}


def test_without_a_token_nearly_nothing_answers(daemon: Daemon) -> None:
    for method, path in (("GET", "/v1/todos"), ("POST", "/v1/todos"), ("GET", "/v1/none"), ("POST", "/mcp")):
        refused = daemon.ask_port(method, path, {} if method == "POST" else None)
        assert (refused.status, refused.code) == (401, "unauthenticated"), path
        assert refused.headers["www-authenticate"] == "Bearer"
    wrong = daemon.ask_port("GET", "/v1/todos", token="tk_" + "x" * 43)
    assert (wrong.status, wrong.code) == (401, "unauthenticated")
    assert daemon.ask_port("GET", "/v1/todos", token=daemon.token).status == 200
    assert daemon.ask_port("GET", "/health").value["status"] == "ok"


def test_hosts_and_origins_are_checked(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(GITHUB + '[http]\nhosts = ["room.example"]\n').start()
    token = daemon.token

    def status(**headers: str) -> int:
        return daemon.ask_port("GET", "/v1/todos", headers=headers, token=token).status

    assert status(Host="evil.example") == 403
    assert status(Host=f"evil.example:{daemon.port}") == 403
    assert status(Host=f"localhost:{daemon.port}") == 200
    assert status(Host="room.example") == 200
    assert status(Origin="http://evil.example") == 403
    assert status(Origin="null") == 403
    assert status(Origin=f"http://127.0.0.1:{daemon.port}") == 200
    assert daemon.ask_port("POST", "/mcp", {}, headers={"Host": "evil.example"}, token=token).status == 403
    assert daemon.ask_port("POST", "/mcp", {}, headers={"Origin": "http://evil.example"}, token=token).status == 403
    # A tunnel's host name must not stop a sender.
    body = (PAYLOADS / "issues.opened.json").read_bytes()
    assert daemon.ask_port("POST", "/hooks/github", body, {"Host": "tunnel.example", **signed(body)}).status == 202
    assert daemon.ask_port("GET", "/health", headers={"Host": "tunnel.example"}).status == 200


def test_the_hooks_port_has_the_webhooks_alone(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(GITHUB, options=("--hooks-port", "0")).start()
    port = daemon.hooks_port
    assert port is not None
    body = (PAYLOADS / "issues.opened.json").read_bytes()
    taken = daemon.ask_port("POST", "/hooks/github", body, {"Host": "tunnel.example", **signed(body)}, port=port)
    assert taken.status == 202
    assert [todo["queue"] for todo in taken.value["todos"]] == ["inbox"]
    assert daemon.ask_port("GET", "/health", port=port).status == 200
    for method, path in (
        ("GET", "/v1/todos"),
        ("POST", "/v1/todos/claim"),
        ("GET", "/v1/status"),
        ("POST", "/mcp"),
        ("GET", "/ready"),
        ("GET", "/"),
        ("POST", "/hooks/none"),
        ("POST", "/hooks/../v1/todos"),
    ):
        answer = daemon.ask_port(method, path, {} if method == "POST" else None, token=daemon.token, port=port)
        assert answer.status == 404, path


def test_an_open_daemon_asks_for_no_token(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(options=("--open",)).start()
    made = daemon.ask_port("POST", "/v1/todos", {"queue": "inbox", "title": "t"})
    assert made.status == 201
    assert made.value["todo"]["created_by"] == "admin"
    assert daemon.ask_port("GET", "/v1/todos", headers={"Host": "evil.example"}).status == 403
    assert daemon.ask_port("GET", "/v1/todos", headers={"Origin": "http://evil.example"}).status == 403
    assert daemon.ask_port("GET", "/v1/todos", token="tk_wrong").status == 401


@pytest.mark.parametrize("options", [("--open", "--host", "0.0.0.0"), ("--host", "0.0.0.0"), ("--host", "::")])
def test_a_host_beyond_loopback_is_refused(new_daemon: NewDaemon, options: tuple[str, ...]) -> None:
    daemon = new_daemon(options=options)
    daemon.launch()
    assert daemon.ended() == 1
    assert "loopback" in daemon.output
    assert "serves" not in daemon.output


# Wrong settings stop the start.


@pytest.mark.parametrize(
    ("settings", "line", "key"),
    [
        ('port = 0\nhost = "127.0.0.1\n', 2, "not TOML"),
        ("# a comment\nprot = 7373\n", 2, "prot"),
        ('host = "127.0.0.1"\nport = "7373"\n', 2, "port: expected a whole number"),
        ("hooks_port = 70000\n", 1, "hooks_port"),
        ('\ndatabase = "mysql://x"\n', 2, "database"),
        ('[http]\nhosts = "room.example"\n', 2, "hosts"),
        ("[http]\nhost = []\n", 2, "host"),
        ("[queue.review]\nlease_s = 30\nleese_s = 30\n", 3, "leese_s"),
        ('[queue.review]\nlease_s = "30"\n', 2, "lease_s: expected a number"),
        ("[queue.review]\nlease_s = 0.2\n", 2, "lease"),
        ("[queue.review]\nmax_attempts = 1000\n", 2, "max_attempts"),
        ("[queue.review]\nmax_in_flight = 2.5\n", 2, "max_in_flight"),
        ('[queue."Not A Queue"]\nlease_s = 30\n', 1, "Not A Queue"),
        (GITHUB.replace(f'secrets = ["{SECRET}"]', 'secrets_env = ["NOWHERE_SET"]'), 4, "NOWHERE_SET"),
        (GITHUB.replace('preset = "github"', 'preset = "gitbuh"'), 6, "preset"),
        (GITHUB.replace('provider = "github"', 'provider = "githup"'), 3, "provider"),
        (GITHUB + 'color = "red"\n', 7, "color"),
        (GITHUB + GITHUB, 8, "name"),
    ],
)
def test_malformed_settings_stop_the_start(new_daemon: NewDaemon, settings: str, line: int, key: str) -> None:
    daemon = new_daemon(settings)
    daemon.launch()
    assert daemon.ended() == 1, daemon.output
    assert f"{daemon.folder / 'postroom.toml'}:{line}" in daemon.output
    assert key in daemon.output
    assert "Traceback" not in daemon.output
    assert not daemon.socket.exists()


def test_a_settings_file_that_is_not_there_stops_the_start(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(options=("--config", "/nowhere/postroom.toml"))
    daemon.launch()
    assert daemon.ended() == 1
    assert "/nowhere/postroom.toml" in daemon.output


# The database is away, or of another time.


def test_it_waits_for_its_database(new_daemon: NewDaemon, private_postgres: PostgresServer) -> None:
    private_postgres.stop()
    daemon = new_daemon(GITHUB, database=private_postgres.url).start(ready=False)
    body = (PAYLOADS / "issues.opened.json").read_bytes()
    assert unavailable(daemon.ask("GET", "/ready"))
    assert unavailable(daemon.ask("POST", "/v1/todos", {"queue": "inbox", "title": "t"}))
    assert unavailable(daemon.ask_port("GET", "/v1/todos", token="tk_any"))
    assert unavailable(daemon.deliver(body))
    assert daemon.ask("GET", "/health").status == 200
    private_postgres.start()
    daemon.wait_ready()
    assert daemon.deliver(body).value["duplicate"] is False
    assert daemon.get(daemon.create())["state"] == "pending"


async def test_it_outlives_its_database(new_daemon: NewDaemon, private_postgres: PostgresServer) -> None:
    daemon = await asyncio.to_thread(new_daemon(database=private_postgres.url).start)
    first = daemon.create()
    async with daemon.client() as client:
        waiter = asyncio.create_task(client.claim_next(["later"], wait_s=50))
        await until(waiting(daemon, 1), "a claim waits")
        await asyncio.to_thread(private_postgres.kill_immediate)
        asked: list[tuple[str, str, object]] = [
            ("POST", "/v1/todos", {"queue": "inbox", "title": "t"}),
            ("GET", "/v1/todos", None),
            ("POST", "/v1/todos/claim", {}),
            ("POST", f"/v1/todos/{first}/claim", {}),
        ]
        answers = await asyncio.gather(*(asyncio.to_thread(daemon.ask, *one) for one in asked))
        assert all(map(unavailable, answers))
        assert (await asyncio.to_thread(daemon.ask, "GET", "/health")).status == 200

        async def away() -> bool:
            return unavailable(await asyncio.to_thread(daemon.ask, "GET", "/ready"))

        await until(away, "it says that it is not ready")
        assert not waiter.done()
        await asyncio.to_thread(private_postgres.start)

        async def back() -> bool:
            made = await asyncio.to_thread(daemon.ask, "POST", "/v1/todos", {"queue": "later", "title": "t"})
            return made.status == 201

        await until(back, "it serves again by itself")
        async with asyncio.timeout(30):
            (todo,) = await waiter
        assert todo.state is TodoState.CLAIMED
        assert (await client.claim(first)).id == first
    await until(lambda: asyncio.to_thread(daemon.ready), "it says that it is ready")


def newer(run: Callable[[str], object]) -> None:
    """Make a schema look as if a later program had changed it."""
    run("insert into schema_migrations values (9999, 'later', 0)")


def test_a_newer_schema_ends_it_on_sqlite(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    assert daemon.terminate() == 0
    connection = apsw.Connection(str(daemon.folder / "postroom.db"))
    newer(lambda text: connection.execute(text).fetchall())
    connection.close()
    daemon.launch()
    assert daemon.ended() == 1
    assert "schema 9999" in daemon.output
    assert "Traceback" not in daemon.output


def test_a_newer_schema_ends_it_on_postgres(new_daemon: NewDaemon, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        newer(connection.execute)
    daemon = new_daemon(database=postgres_url)
    daemon.launch()
    assert daemon.ended() == 1
    assert "schema 9999" in daemon.output


def test_a_file_that_is_no_database_ends_it(new_daemon: NewDaemon, folder: Path) -> None:
    (folder / "postroom.db").write_text("this is a diary " * 1000)
    daemon = new_daemon()
    daemon.launch()
    assert daemon.ended() == 1
    assert "no SQLite database" in daemon.output
    assert (folder / "postroom.db").read_text() == "this is a diary " * 1000


# The disk is full.


def fill(daemon: Daemon) -> list[str]:
    """Create large todos until it says that it cannot; gives the ids of those that were answered."""
    made: list[str] = []
    for number in range(200):
        answer = daemon.ask("POST", "/v1/todos", {"queue": "q", "title": f"{number}", "payload": "x" * 500_000})
        if answer.status != 201:
            assert unavailable(answer), answer.body
            return made
        made.append(answer.value["todo"]["id"])
    raise AssertionError("the disk never became full")


def check_full(daemon: Daemon, make_room: Callable[[], object]) -> None:
    """Nothing is half done on a full disk, what can be read is, and with room again all goes on."""
    made = fill(daemon)
    batch = {"todos": [{"queue": "q", "title": f"b{n}", "payload": "x" * 200_000} for n in range(10)]}
    assert unavailable(daemon.ask("POST", "/v1/todos/batch", batch))
    assert daemon.ask("GET", "/health").status == 200
    listed = daemon.ask("GET", "/v1/todos?queue=q&limit=200")
    assert listed.status == 200
    assert sorted(todo["id"] for todo in listed.value["todos"]) == sorted(made)
    make_room()

    def again() -> bool:
        return daemon.ask("POST", "/v1/todos/batch", batch).status == 200

    wait_until(again, "it writes again by itself")
    listed = daemon.ask("GET", "/v1/todos?queue=q&limit=200")
    assert len(listed.value["todos"]) == len(made) + 10
    taken = daemon.ask("POST", "/v1/todos/claim", {"queues": ["q"]}).value["todos"]
    done = daemon.ask("POST", f"/v1/todos/{taken[0]['id']}/complete", {"lease_id": taken[0]["lease_id"]})
    assert done.value["todo"]["state"] == "done"
    daemon.kill()
    daemon.start()
    assert len(daemon.ask("GET", "/v1/todos?queue=q&limit=200").value["todos"]) == len(made) + 10
    connection = apsw.Connection(str(daemon.folder / "postroom.db"))
    assert connection.execute("pragma integrity_check").get == "ok"
    connection.close()


def test_files_that_may_not_grow(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    before = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (4 << 20, before[1]))
    check_full(daemon, lambda: resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, before))


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A folder on a file system of 24 MiB where one may be mounted, else a plain one."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "postroom-test", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield place
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def test_a_full_disk(processes: Processes, small_disk: Path) -> None:
    daemon = Daemon(processes, small_disk).start()
    ballast = small_disk / "ballast"
    if not os.path.ismount(small_disk):
        before = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (6 << 20, before[1]))
        check_full(daemon, lambda: resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, before))
        return
    ballast.write_bytes(b"x" * (16 << 20))
    check_full(daemon, ballast.unlink)
