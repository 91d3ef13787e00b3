"""The page about webhooks says what is so: the settings, the keys, what is sent, and a receiver that runs as printed."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from postroom.carriers.webhook_body import event_body, signatures
from postroom.carriers.webhook_health import FIRST_PAUSE, MOST_PAUSE, STREAK, STREAK_MS
from postroom.config import load_settings
from postroom.config_webhook import _KEYS
from postroom.delivery import WEBHOOK_ATTEMPTS, WEBHOOK_DELAYS
from postroom.limits import HOUR, MINUTE, SECOND
from postroom.postage import MAX_PAYLOAD_BYTES
from postroom.services.handover import death_message
from postroom.store.handovers import DeadLetter
from postroom.store.rings import COUNTED
from tests.carriers.receiver import KEY, secret, to_webhook

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text("utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def table(heading: str) -> list[list[str]]:
    """The table that begins with this heading, cell by cell."""
    text = PAGE.split(f"\n{heading}", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[2:]]


def test_the_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "postroom.toml").write_text(block("toml"), "utf-8")
    (place,) = load_settings(data=str(tmp_path), environ={"OPS_WEBHOOK_SECRET": secret()}).webhooks
    assert (place.name, place.queues, place.channels) == ("ops", ("review",), ("dead-letters", "team/build"))
    assert place.keys == (KEY,)


def test_every_key_is_told() -> None:
    told = [name for row in table("| key") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(_KEYS)


@pytest.mark.parametrize("kind", ["todo.available", "todo.dead", "message"])
def test_what_each_event_has(kind: str) -> None:
    (row,) = [row for row in table("| `type`") if row[0].strip("` ") == kind]
    match kind:
        case "todo.available":
            metadata: Any = {"queue": "q", "todo_id": "td_1", "count": COUNTED}
            parcel = to_webhook(kind="queue.ring", created_by="postroom", metadata_json=json.dumps(metadata))
        case "todo.dead":
            metadata = death_message(DeadLetter(1, "td_1", "q", "t", "refused", "e", 1, 5, 0)).metadata
            parcel = to_webhook(kind="todo.dead", created_by="postroom", metadata_json=json.dumps(metadata))
        case _:
            parcel = to_webhook("x" * 20)
    data = json.loads(event_body(parcel, 10))["data"]
    said = re.findall(r"`(\w+)`", re.sub(r"\(`[^)]*\)", "", row[2]))
    assert said == list(data)


def test_the_example_is_one() -> None:
    assert set(json.loads(block("json").replace("…", ""))) == {"type", "timestamp", "data"}


def test_the_numbers_are_right() -> None:
    assert f"There are {WEBHOOK_ATTEMPTS} attempts, after 5 s, 5 min, 30 min, 2 h, 5 h, and then 10 h." in PAGE
    assert WEBHOOK_DELAYS == (5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR)
    assert f"After {STREAK} failures in a row over at least an hour" in PAGE
    assert (STREAK_MS, FIRST_PAUSE, MOST_PAUSE) == (HOUR, 10 * MINUTE, 24 * HOUR)
    assert f"| {MAX_PAYLOAD_BYTES}, as long as" in PAGE


def test_the_receiver_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code = block("python").replace("whsec_…", secret())
    there: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "webhooks.md", "exec"), there)
    there["Hook"].log_message = lambda *_: None
    server = HTTPServer(("127.0.0.1", 0), there["Hook"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    body = event_body(to_webhook("hello", msg_id="msg_1"), 100)

    def call(keys: list[bytes]) -> int:
        now = int(time.time())
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(now),
            "webhook-signature": signatures(keys, "msg_1", now, body),
        }
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("POST", "/", body, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    try:
        assert [call([b"x" * 32]), call([KEY]), call([b"x" * 32, KEY])] == [401, 204, 204]
    finally:
        server.shutdown()
        server.server_close()
    printed = capsys.readouterr().out
    assert printed.startswith("message {'id': 'msg_1', 'from': 'ann'")
    assert printed.count("\n") == 1, "a repeat is known by its id"
