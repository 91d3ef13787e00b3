"""Sources on real daemons: set up while one serves, deliveries racing over two of them, and secrets that stay secret."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.processes import Processes, wait_until
from tests.sources.signing import SECRET
from tests.system.daemons import GITHUB, Answer, Daemon, command, signed

pytestmark = pytest.mark.system

BODY = json.dumps(
    {"action": "opened", "issue": {"number": 7, "title": "x"}, "repository": {"full_name": "a/b"}}
).encode()
TOKENS = {
    "github": SECRET,
    "bearer": "the-bearer-token-of-the-test",
    "gitlab": "the-gitlab-token-of-the-test",
    "query": "the-query-token-of-the-test",
}
MANY = f"""\
[[source]]
name = "github"
provider = "github"
secrets = ["{TOKENS["github"]}"]
queue = "inbox"

[[source]]
name = "bearer"
provider = "generic"
scheme = "bearer"
secrets_env = "BEARER"
queue = "inbox"

[[source]]
name = "gitlab"
provider = "gitlab"
secrets_file = "gitlab.secret"
queue = "inbox"

[[source]]
name = "query"
provider = "generic"
query_token = "t"
secrets = ["{TOKENS["query"]}"]
queue = "inbox"
"""


def say(daemon: Daemon, *words: str, code: int = 0, given: str = "") -> Any:
    """What a verb of the command prints as JSON."""
    done = subprocess.run(
        [command(), *words, "--json"],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "", **daemon.environment},
        check=False,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout if code in {0} else done.stderr)


def test_a_source_is_set_up_tried_and_rotated_while_a_daemon_serves(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon().start()
    made = say(daemon, "source", "add", "hub", "--provider", "github", "--queue", "inbox", "--preset", "github")
    assert made["source"]["url"] == f"{daemon.url}/hooks/hub"
    assert made["source"]["daemon"] == "reloaded"
    tried = say(daemon, "source", "test", "hub", "issues.opened")
    assert (tried["status"], tried["event"]["state"], len(tried["answer"]["todos"])) == (202, "routed", 1)
    say(daemon, "rules", "add", "hub", "--kind", "push", "--queue", "pushes", "--name", "pushes")
    push = say(daemon, "fire", "hub", "push")
    assert [link["queue"] for link in push["answer"]["todos"]] == ["pushes"]
    trial = say(daemon, "rules", "test", "hub", tried["event"]["id"])["trial"]
    assert trial["trace"][0] == "pushes: no match, kind is issues, not push"
    assert {one["event_id"] for one in say(daemon, "event", "replay", "--since", "1h")["results"]} == {
        tried["event"]["id"],
        push["event_id"],
    }
    rotated = say(daemon, "source", "rotate", "hub")["source"]
    for secret in (rotated["secret"], made["source"]["secret"]):
        assert deliver(daemon, "hub", secret, f"by {secret[:4]}").status == 202
    say(daemon, "source", "rotate", "hub", "--drop-old")
    assert deliver(daemon, "hub", made["source"]["secret"], "late").status == 401
    # It is all there after a restart.
    daemon.terminate()
    daemon.start()
    assert [rule["name"] for rule in say(daemon, "rules", "list", "hub")["rules"]["rules"]] == ["pushes"]
    assert deliver(daemon, "hub", rotated["secret"], "after").status == 202


def deliver(daemon: Daemon, source: str, secret: str, id_: str, body: bytes = BODY) -> Answer:
    """A delivery of GitHub's to a source, under a secret."""
    from tests.sources.signing import github_headers

    headers = {name.decode(): value.decode("latin-1") for name, value in github_headers(body, "issues", id_, secret)}
    return daemon.ask_port("POST", f"/hooks/{source}", body, headers)


def test_a_mistake_in_the_settings_keeps_the_old_sources(new_daemon: Callable[..., Daemon], folder: Path) -> None:
    daemon = new_daemon(GITHUB).start()
    file = folder / "postroom.toml"
    for wrong, where in (
        (GITHUB + '\n[[source]]\nname = "x"\nprovider = "nobody"\n', "postroom.toml:10"),
        (GITHUB + "x = \n", "postroom.toml:7"),
        (GITHUB + "source = 5\n", "postroom.toml"),
    ):
        file.write_text(wrong)
        answer = daemon.ask("POST", "/v1/reload", {})
        assert (answer.status, answer.code) == (400, "invalid")
        assert where in answer.value["error"]["message"]
        assert daemon.deliver(BODY).status == 202
    file.unlink()
    assert daemon.ask("POST", "/v1/reload", {}).status == 400
    file.write_text("")
    assert daemon.ask("POST", "/v1/reload", {}).value["sources"] == []
    assert daemon.deliver(BODY).status == 404
    assert daemon.ask("POST", "/v1/reload", {"x": 1}).status == 400


@pytest.mark.slow
def test_one_delivery_racing_over_two_daemons_is_one_event(
    processes: Processes, folder: Path, postgres_url: str
) -> None:
    daemons = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        daemons.append(Daemon(processes, folder / name, GITHUB, database=postgres_url).start())
    rounds, each = 10, 16

    def post(job: tuple[int, int]) -> tuple[int, dict[str, Any], int]:
        turn, number = job
        answer = daemons[number % 2].deliver(issue(turn), id_=f"d{turn}")
        assert answer.status == 202, (answer.body, daemons[number % 2].output)
        # Whoever was answered finds the event committed, whichever daemon stored it.
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            rows = connection.execute(
                "select count(*) from events where id = %s", (answer.value["event_id"],)
            ).fetchone()
        return answer.status, answer.value, 0 if rows is None else rows[0]

    with ThreadPoolExecutor(each) as pool:
        for turn in range(rounds):
            told = list(pool.map(post, [(turn, number) for number in range(each)]))
            assert [status for status, _, _ in told] == [202] * each
            assert [committed for _, _, committed in told] == [1] * each
            assert len({answer["event_id"] for _, answer, _ in told}) == 1
            assert sorted(answer["duplicate"] for _, answer, _ in told) == [False] + [True] * (each - 1)
            assert len({json.dumps(answer["todos"]) for _, answer, _ in told}) == 1
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        counts = connection.execute(
            "select (select count(*) from events), (select sum(deliveries) from events), (select count(*) from todos), "
            "(select count(*) from event_todos), (select count(*) from events where suspected_replay)"
        ).fetchone()
    assert counts == (rounds, rounds * each, rounds, rounds, 0)


def issue(number: int) -> bytes:
    """An issue that was opened."""
    told = {"action": "opened", "issue": {"number": number, "title": "x"}, "repository": {"full_name": "a/b"}}
    return json.dumps(told).encode()


def test_secrets_reach_no_log_no_row_and_no_answer(new_daemon: Callable[..., Daemon], folder: Path) -> None:
    (folder / "gitlab.secret").write_text(TOKENS["gitlab"])
    (folder / "gitlab.secret").chmod(0o600)
    daemon = new_daemon(MANY, env={"BEARER": TOKENS["bearer"]}).start()
    json_ = {"Content-Type": "application/json"}
    asked: list[Answer] = []

    def post(path: str, body: bytes, headers: dict[str, str]) -> Answer:
        asked.append(daemon.ask_port("POST", path, body, {**json_, **headers}))
        return asked[-1]

    proofs = {
        "/hooks/github": signed(BODY),
        "/hooks/bearer": {"Authorization": f"Bearer {TOKENS['bearer']}", "X-Copy": f"again {TOKENS['bearer']}"},
        "/hooks/gitlab": {"X-Gitlab-Token": TOKENS["gitlab"], "X-Gitlab-Event": "Issue Hook"},
        f"/hooks/query?t={TOKENS['query']}": {"Cookie": "session=the-cookie-of-the-test", "X-Api-Key": "the-key-here"},
    }
    for path, headers in proofs.items():
        assert post(path, BODY, headers).status == 202, path
        assert post(path, b"\xff", headers).status in {202, 401}
        assert post(path, b"x" * 6_000_000, headers).status == 413
    # Refused ones, which carry the secret in the wrong place or one of another source.
    for path in ("/hooks/github", "/hooks/bearer", "/hooks/gitlab", "/hooks/query", "/hooks/nobody"):
        for secret in TOKENS.values():
            wrong = {"Authorization": secret, "X-Hub-Signature-256": secret, "X-Gitlab-Token": f"{secret}x"}
            assert post(f"{path}?t={quote(secret)}x", BODY, wrong).status in {401, 404}
    for name in TOKENS:
        asked.append(daemon.ask("POST", f"/v1/sources/{name}/fire", {}))
        assert asked[-1].value["status"] == 202
    (folder / "postroom.toml").write_text(MANY.replace('scheme = "bearer"', 'scheme = "nope"'))
    asked.append(daemon.ask("POST", "/v1/reload", {}))
    assert asked[-1].status == 400
    for path in ("/v1/sources", "/v1/status", "/v1/events", "/v1/todos", "/v1/sources/github/rules"):
        asked.append(daemon.ask("GET", path))
    for event in daemon.ask("GET", "/v1/events").value["events"]:
        for path in (f"/v1/events/{event['id']}", f"/v1/trace/{event['id']}"):
            asked.append(daemon.ask("GET", path))
        asked.append(daemon.ask("POST", f"/v1/events/{event['id']}/replay", {}))
    wait_until(lambda: "is refused" in daemon.output, "the refusals are logged")
    daemon.terminate()
    kept = b"".join(path.read_bytes() for path in folder.glob("postroom.db*"))
    hidden = [*TOKENS.values(), "the-cookie-of-the-test", "the-key-here", signed(BODY)["x-hub-signature-256"]]
    for secret in hidden:
        assert secret not in daemon.output
        assert secret.encode() not in kept
        assert all(secret.encode() not in answer.body for answer in asked)
