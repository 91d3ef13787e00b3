"""The tools before a desk in memory, through the SDK's own client, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from postroom.doors.mcp import tools
from postroom.doors.mcp.greeting import INSTRUCTIONS
from postroom.errors import Conflict, PostroomError, Unavailable
from postroom.model import Attempt, Outcome, TodoState
from tests.doors.mcp_rig import ERAS, at_desk, filled, good, new_desk, refused, until
from tests.doors.memory_desk import MemoryDesk

NAMES = [
    *("list_todos", "get_todo", "claim_next", "claim", "heartbeat", "complete", "fail", "release", "create_for"),
    *("send_message", "swarm_read", "ack_message", "who"),
]
READ_ONLY = {"list_todos", "get_todo", "swarm_read", "who"}

pytestmark = pytest.mark.parametrize("era", ERAS)


# S23
async def test_the_tools_are_listed_with_schemas_and_hints(era: str) -> None:
    async with at_desk(new_desk(), era) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == NAMES
        for tool in listed:
            assert tool.title
            assert tool.description
            assert tool.input_schema["additionalProperties"] is False
            assert all(field["description"] for field in tool.input_schema["properties"].values())
            assert tool.output_schema is not None
            assert tool.output_schema["type"] == "object"
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is (tool.name in READ_ONLY)
            assert tool.annotations.destructive_hint is False
            assert tool.annotations.open_world_hint is False
        by_name = {tool.name: tool for tool in listed}
        for verb in ("complete", "fail", "release"):
            assert {"id", "lease_id"} <= set(by_name[verb].input_schema["required"])
            hints = by_name[verb].annotations
            assert hints is not None
            assert hints.idempotent_hint is True
        wait = by_name["claim_next"].input_schema["properties"]["wait_s"]
        assert (wait["minimum"], wait["maximum"], wait["default"]) == (0, 50, 20)


async def test_the_era_is_the_one_asked_for(era: str) -> None:
    async with at_desk(new_desk(), era) as client:
        assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[era]


async def test_the_instructions_teach_the_loop_briefly(era: str) -> None:
    async with at_desk(new_desk(), era) as client:
        told = client.instructions
    assert told == INSTRUCTIONS
    assert len(told) < 1200
    for word in (
        "claim_next",
        "heartbeat",
        "complete",
        "fail",
        "release",
        "lease_id",
        "swarm_read",
        "queue://",
        "inbox://",
    ):
        assert word in told
    for word in ("information from a peer", "no authority"):
        assert word in told


# S23
async def test_the_loop(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        made = await good(client, "create_for", queue="inbox", title="mend it", payload={"n": None, "of": [1, 2.5]})
        assert made["created"] is True
        todo_id = made["todo"]["id"]
        (todo,) = (await good(client, "claim_next", queues=["inbox"], worker="w1"))["todos"]
        assert (todo["id"], todo["state"], todo["owner"], todo["attempt"]) == (todo_id, "claimed", "agent/w1", 1)
        assert todo["payload"] == {"n": None, "of": [1, 2.5]}
        assert todo["history"] == []
        lease = todo["lease_id"]
        kept = (await good(client, "heartbeat", id=todo_id, lease_id=lease, ttl_s=600))["todo"]
        assert kept["lease_expires_at"] > todo["lease_expires_at"]
        assert "lease_id" not in kept
        assert (await good(client, "get_todo", id=todo_id))["todo"]["lease_id"] == lease
        done = await good(client, "complete", id=todo_id, lease_id=lease, result={"ok": True})
        assert done["todo"]["state"] == "done"
        assert done["replayed"] is False
        assert (await good(client, "complete", id=todo_id, lease_id=lease, result="other"))["replayed"] is True
        assert (await good(client, "get_todo", id=todo_id))["todo"]["result"] == {"ok": True}


# S9, S24
async def test_failing_parks_and_releasing_hands_back(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        (todo_id,) = await filled(desk)
        lease = (await good(client, "claim", id=todo_id))["todo"]["lease_id"]
        back = await good(client, "release", id=todo_id, lease_id=lease, note="not mine")
        assert (back["todo"]["state"], back["todo"]["attempt"]) == ("pending", 0)
        assert (await good(client, "release", id=todo_id, lease_id=lease))["replayed"] is True
        claimed = (await good(client, "claim", id=todo_id))["todo"]
        assert claimed["history"][0]["note"] == "not mine"
        parked = await good(client, "fail", id=todo_id, lease_id=claimed["lease_id"], error="boom", retry_in_s=60)
        assert parked["todo"]["state"] == "failed"
        assert parked["todo"]["next_retry_at"]
        (other,) = await filled(desk)
        lease = (await good(client, "claim", id=other))["todo"]["lease_id"]
        dead = await good(client, "fail", id=other, lease_id=lease, error="never", retry=False)
        assert dead["todo"]["reason"] == "refused"
        assert "next_retry_at" not in dead["todo"]


async def test_every_mutating_tool_can_be_asked_again(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        first = await good(client, "create_for", queue="q", title="t", idempotency_key="k", request_id="r1")
        again = await good(client, "create_for", queue="q", title="t", idempotency_key="k", request_id="r1")
        assert again["replayed"] is True
        other = await good(client, "create_for", queue="q", title="t", idempotency_key="k")
        assert (other["created"], other["todo"]["id"]) == (False, first["todo"]["id"])
        one = await good(client, "claim_next", claim_key="c1")
        assert await good(client, "claim_next", claim_key="c1") == one
        assert (await good(client, "claim", id=first["todo"]["id"], claim_key="c1"))["todo"] == one["todos"][0]


# S18
async def test_no_work_is_an_empty_list_that_says_when_to_ask_again(era: str) -> None:
    async with at_desk(new_desk(), era) as client:
        assert await good(client, "claim_next", wait_s=0) == {"todos": [], "retry_after_ms": tools.RETRY_LATER_MS}
        assert await good(client, "claim_next", wait_s=1) == {"todos": [], "retry_after_ms": tools.RETRY_SOON_MS}


# S18
async def test_a_waiting_claim_gets_what_comes(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        waiting = asyncio.create_task(good(client, "claim_next", wait_s=50))
        await until(lambda: desk.shelf.waiting)
        (todo_id,) = await filled(desk)
        assert [todo["id"] for todo in (await waiting)["todos"]] == [todo_id]


async def test_a_call_given_up_does_not_claim(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        waiting = asyncio.create_task(good(client, "claim_next", wait_s=50))
        await until(lambda: desk.shelf.waiting)
        waiting.cancel()
        await until(lambda: not desk.shelf.waiting)
        (todo_id,) = await filled(desk)
        assert desk.shelf.todos[todo_id].state == TodoState.PENDING


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("create_for", {"title": "t"}, "queue"),
        ("create_for", {"queue": "q"}, "title"),
        ("create_for", {"queue": "q", "title": 5}, "title"),
        ("create_for", {"queue": "q", "title": "t", "bogus": 1}, "bogus"),
        ("create_for", {"queue": "Q!", "title": "t"}, "queue"),
        ("create_for", {"queue": "q", "title": "t\x00"}, "title"),
        ("create_for", {"queue": "q", "title": "t", "payload": {"a": ["b\x00"]}}, "payload.a[0]"),
        ("create_for", {"queue": "q", "title": "t", "priority": "5"}, "priority"),
        ("create_for", {"queue": "q", "title": "t", "priority": 101}, "priority"),
        ("create_for", {"queue": "q", "title": "t", "priority": True}, "priority"),
        ("create_for", {"queue": "q", "title": "t", "priority": 1.5}, "priority"),
        ("create_for", {"queue": "q", "title": "t", "delay_s": -1}, "delay_s"),
        ("create_for", {"queue": "q", "title": "t", "max_attempts": 0}, "max_attempts"),
        ("create_for", {"queue": "q", "title": "t", "available_at": "soon"}, "available_at"),
        ("create_for", {"queue": "q", "title": "t", "available_at": "2026-01-31T12:00:00"}, "available_at"),
        ("create_for", {"queue": "q", "title": "t", "idempotency_key": ""}, "idempotency_key"),
        ("create_for", {"queue": "q", "title": "t", "assignee": "a b"}, "assignee"),
        ("claim_next", {"wait_s": 51}, "wait_s"),
        ("claim_next", {"wait_s": "20"}, "wait_s"),
        ("claim_next", {"limit": 0}, "limit"),
        ("claim_next", {"limit": 11}, "limit"),
        ("claim_next", {"queues": "inbox"}, "queues"),
        ("claim_next", {"queues": []}, "queues"),
        ("claim_next", {"queues": [5]}, "queues.0"),
        ("claim_next", {"ttl_s": 0.5}, "ttl_s"),
        ("claim_next", {"worker": "a/b"}, "worker"),
        ("list_todos", {"limit": -1}, "limit"),
        ("list_todos", {"state": "asleep"}, "state"),
        ("complete", {"id": "td_x"}, "lease_id"),
        ("fail", {"id": "td_x", "lease_id": "ls_x", "retry": "no"}, "retry"),
        ("heartbeat", {"lease_id": "ls_x"}, "id"),
    ],
)
async def test_a_bad_argument_is_named(era: str, tool: str, arguments: dict[str, Any], field: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        error = await refused(client, tool, **arguments)
    assert (error["code"], error["field"]) == ("invalid", field)
    assert desk.shelf.todos == {}


async def test_a_title_too_long_is_too_large(era: str) -> None:
    async with at_desk(new_desk(), era) as client:
        error = await refused(client, "create_for", queue="q", title="x" * 501)
        assert (error["code"], error["field"]) == ("too_large", "title")
        error = await refused(client, "create_for", queue="q", title="x", payload="y" * (1024 * 1024))
        assert (error["code"], error["field"]) == ("too_large", "payload")


async def test_deep_payloads_are_refused_and_deep_results_are_cut(era: str) -> None:
    deep: Any = 0
    for _ in range(70):
        deep = [deep]
    desk = new_desk()
    async with at_desk(desk, era) as client:
        assert (await refused(client, "create_for", queue="q", title="t", payload=deep))["field"] == "payload"
        (todo_id,) = await filled(desk)
        lease = (await good(client, "claim", id=todo_id))["todo"]["lease_id"]
        ended = await good(client, "complete", id=todo_id, lease_id=lease, result={"deep": deep, "nul": "a\x00b"})
        assert ended["todo"]["state"] == "done"
        assert desk.shelf.todos[todo_id].result["nul"] == "a�b"


# S12, S22
async def test_domain_errors_are_results_that_tell_where_things_stand(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        (todo_id,) = await filled(desk)
        missing = await refused(client, "get_todo", id="td_00000000-0000-7000-8000-000000000000")
        assert missing["code"] == "not_found"
        assert (await refused(client, "get_todo", id="nonsense"))["code"] == "not_found"
        await MemoryDesk(desk.shelf, "other").claim(todo_id)
        conflict = await refused(client, "claim", id=todo_id)
        assert (conflict["code"], conflict["state"], conflict["owner"]) == ("conflict", "claimed", "other")
        assert (await refused(client, "complete", id=todo_id, lease_id="ls_stale"))["code"] == "conflict"
        assert "lease_id" not in (await good(client, "get_todo", id=todo_id))["todo"]


async def test_a_fault_is_a_result_without_its_insides(era: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryDesk):
        async def get(self, id: str) -> Any:
            raise RuntimeError("the password is hunter2")

        async def claim(self, id: str, **_: Any) -> Any:
            raise Unavailable("the database is away", retry_after_s=1)

    desk = Broken(new_desk().shelf)
    async with at_desk(desk, era) as client:
        error = await refused(client, "get_todo", id="td_x")
        assert error["code"] == "internal"
        assert "hunter2" not in json.dumps(error)
        assert "hunter2" in caplog.text
        error = await refused(client, "claim", id="td_x")
        assert (error["code"], error["retry_after_s"]) == ("unavailable", 1)


async def test_an_error_with_long_details_still_fits(era: str) -> None:
    class Wordy(MemoryDesk):
        async def get(self, id: str) -> Any:
            raise Conflict("no", because="x" * 100_000, odd=object())

    async with at_desk(Wordy(new_desk().shelf), era) as client:
        assert await refused(client, "get_todo", id="td_x") == {
            "code": "conflict",
            "message": "no",
            "hint": Conflict("no").advice,
            "cut": True,
        }


async def test_an_unknown_tool_is_an_error_of_the_protocol(era: str) -> None:
    async with at_desk(new_desk(), era) as client:
        with pytest.raises(MCPError, match="Unknown tool: drop_all"):
            await client.call_tool("drop_all", {})


async def test_a_large_payload_is_cut_and_says_where_the_rest_is(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        (todo_id,) = await filled(desk, payload={"body": 'quote " and \\ ' * 50_000})
        todo = (await good(client, "claim", id=todo_id))["todo"]
        assert todo["payload_truncated"] is True
        assert todo["payload"].startswith('{"body":"quote')
        assert len(todo["payload"]) > 10_000
        assert todo_id in todo["whole"]
        assert todo["payload_bytes"] > 600_000
        await good(client, "complete", id=todo_id, lease_id=todo["lease_id"], result=["r" * 900_000])
        todo = (await good(client, "get_todo", id=todo_id))["todo"]
        assert todo["result_truncated"] is True
        assert todo["payload_truncated"] is True
        assert len(todo["result"]) > 5_000


async def test_a_small_result_is_not_cut_for_a_large_payload(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        (todo_id,) = await filled(desk, payload="p" * 100_000)
        lease = (await good(client, "claim", id=todo_id))["todo"]["lease_id"]
        await good(client, "complete", id=todo_id, lease_id=lease, result={"small": 1})
        todo = (await good(client, "get_todo", id=todo_id))["todo"]
        assert todo["result"] == {"small": 1}
        assert todo["payload_truncated"] is True
        assert "result_truncated" not in todo


async def test_a_long_history_keeps_its_newest(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        (todo_id,) = await filled(desk)
        desk.add_history(todo_id, [Attempt("agent", n, n, Outcome.FAILED, f"{n} " + "é" * 1000) for n in range(50)])
        todo = (await good(client, "claim", id=todo_id))["todo"]
        assert todo["history_truncated"] is True
        assert 1 <= len(todo["history"]) < 50
        assert todo["history"][0]["note"].startswith("0 ")


async def test_a_batch_with_the_longest_words_still_fits(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        for n in range(10):
            await desk.create(
                "q" * 128,
                "\x01" * 500,
                kind="k" * 128,
                payload="\x01" * 1000,
                assignee=f"{'a' * 64}/{'b' * 64}",
                idempotency_key=f"{n}" + "\U0001f600" * 255,
            )
        desk = MemoryDesk(desk.shelf, "a" * 64)
    async with at_desk(desk, era) as client:
        todos = (await good(client, "claim_next", limit=10, worker="b" * 64))["todos"]
        assert len(todos) == 10
        assert all(todo["lease_id"] and todo["rest"] and todo["whole"] for todo in todos)
        assert any("title" in todo["cut"] for todo in todos)


async def test_a_page_too_long_ends_sooner_and_goes_on(era: str) -> None:
    desk = new_desk()
    ids = await filled(desk, 150, payload={"not": "shown"}, idempotency_key=None)
    async with at_desk(desk, era) as client:
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await good(client, "list_todos", limit=200, **({"cursor": cursor} if cursor else {}))
            assert all("payload" not in todo and "lease_id" not in todo for todo in page["todos"])
            seen += [todo["id"] for todo in page["todos"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == ids[::-1]


async def test_integers_that_clients_would_round_are_text(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        (todo_id,) = await filled(
            desk, payload={"exact": 2**53 - 1, "more": [2**53, -(2**60)], "text": "1" * 20, "b": True}
        )
        payload = (await good(client, "get_todo", id=todo_id))["todo"]["payload"]
        assert payload == {"exact": 2**53 - 1, "more": [str(2**53), str(-(2**60))], "text": "1" * 20, "b": True}


async def test_null_is_the_same_as_nothing(era: str) -> None:
    desk = new_desk()
    async with at_desk(desk, era) as client:
        await good(client, "create_for", queue="q", title="t", assignee=None, delay_s=None, request_id=None)
        await good(client, "list_todos", queue=None, cursor=None)
        assert len((await good(client, "claim_next", queues=None, wait_s=0, ttl_s=1))["todos"]) == 1


async def test_every_error_of_the_family_has_a_hint(era: str) -> None:
    kinds: list[type[PostroomError]] = [PostroomError, *PostroomError.__subclasses__()]
    assert all(kind.hint for kind in kinds)
