"""Resources over a real store, through the SDK's own client, in both eras: lists, readings, and notices of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import TextResourceContents

from postroom.client import Client as Program
from postroom.doors.mcp.notices import MOST_PLACES
from postroom.doors.mcp.resources import Kind, Place, place_of, uri_of
from postroom.errors import Invalid, NotFound
from postroom.model import Principal, Role
from tests.doors.http_rig import HOST, ROOT, Rig, get
from tests.doors.mcp_rig import ERAS, at_desk, good, subscribe, until

WHO = {
    "root": Principal("root", Role.ADMIN),
    "ann": Principal("ann", speaks_as=("ses_*",)),
    "bob": Principal("bob"),
    "eve": Principal("eve", queues=("lab/*",)),
}
NOT_FOUND = {"auto": -32602, "legacy": -32002}
each_era = pytest.mark.parametrize("era", ERAS)


@asynccontextmanager
async def agent(rig: Rig, era: str, who: str = "ann", heard: list[str] | None = None) -> AsyncIterator[Client]:
    """A client of `who`, as the daemon's own `/mcp` serves it."""
    office, principal = rig.office, WHO[who]
    desk, post, view = office.desk(principal, "mcp"), office.mail(principal), office.view(principal)
    async with at_desk(desk, era, name=who, post=post, view=view, heard=heard) as client:
        yield client


async def said(client: Client, uri: str) -> dict[str, Any]:
    """What a resource says; never more than an answer may hold."""
    (content,) = (await client.read_resource(uri)).contents
    assert content.mime_type == "application/json"
    assert str(content.uri) == uri
    assert isinstance(content, TextResourceContents)
    text = content.text
    assert len(text.encode()) <= 24 * 1024
    value: dict[str, Any] = json.loads(text)
    return value


async def refusal(call: Any) -> MCPError:
    """The error of the protocol that a call ends in."""
    with pytest.raises(MCPError) as caught:
        await call
    return caught.value


@asynccontextmanager
async def told(client: Client, era: str, *uris: str, heard: list[str]) -> AsyncIterator[list[str]]:
    """While inside, the addresses of which notices come: by listening in the newer era, by subscribing in the older."""
    if era == "legacy":
        for uri in uris:
            await subscribe(client, uri)
        yield heard
        for uri in uris:
            await subscribe(client, uri, end=True)
        return
    came: list[str] = []
    async with client.listen(resource_subscriptions=uris) as subscription:
        assert subscription.honored.resource_subscriptions == list(uris)
        assert subscription.honored.tools_list_changed is None

        async def follow() -> None:
            async for event in subscription:
                assert isinstance(event, ResourceUpdated)
                came.append(event.uri)

        task = asyncio.create_task(follow())
        try:
            yield came
        finally:
            task.cancel()


@each_era
async def test_a_queue_says_how_it_stands(rig: Rig, era: str) -> None:
    first = await rig.create("lab/one", "the older", payload={"secret": "x" * 100})
    second = await rig.create("lab/one", "the newer")
    await rig.create("lab/one", "not yet", delay_s=3600)
    async with agent(rig, era, "eve") as eve:
        shown = await said(eve, "queue://lab/one")
        assert [todo["id"] for todo in shown["claimable"]] == [second["id"], first["id"]]
        assert all("payload" not in todo and "lease_id" not in todo for todo in shown["claimable"])
        assert (shown["queue"], shown["paused"], shown["pending"], shown["claimed"]) == ("lab/one", False, 3, 0)
        assert shown["oldest_pending_age_s"] >= 0
        assert shown["rest"] == "list_todos with queue=lab/one and state=pending"
        (todo,) = (await good(eve, "claim_next", queues=["lab/one"]))["todos"]
        await good(eve, "fail", id=todo["id"], lease_id=todo["lease_id"], retry=False)
        await rig.office.queues.pause(ROOT, "lab/one", paused=True)
        shown = await said(eve, "queue://lab/one")
        assert (shown["paused"], shown["pending"], shown["dead"], len(shown["claimable"])) == (True, 2, 1, 1)
        empty = await said(eve, "queue://lab%2Fnever.used")
        assert (empty["pending"], empty["claimable"], empty["oldest_pending_age_s"]) == (0, [], None)
        assert "rest" not in empty


@each_era
async def test_an_inbox_shows_the_newest_of_what_is_unread(rig: Rig, era: str) -> None:
    mail = rig.office.mail(WHO["bob"])
    async with agent(rig, era) as ann:
        assert await said(ann, "inbox://ann") == {"mailbox": "ann", "unread": 0, "messages": [], "next_since": "s.0"}
        for n in range(4):
            await mail.send(f"letter {n}", to="ann")
        await rig.office.mail(WHO["ann"]).mark_read(None, "s.1")
        shown = await said(ann, "inbox://ann")
        assert [one["payload"] for one in shown["messages"]] == ["letter 1", "letter 2", "letter 3"]
        assert (shown["unread"], shown["next_since"]) == (3, "s.4")
        assert "rest" not in shown
        assert (await good(ann, "swarm_read", since=shown["next_since"]))["messages"] == []
        assert len((await good(ann, "swarm_read", since="latest", limit=2))["messages"]) == 2


@each_era
async def test_a_long_inbox_and_a_long_queue_say_how_to_get_the_rest(rig: Rig, era: str) -> None:
    mail = rig.office.mail(WHO["bob"])
    async with agent(rig, era) as ann:
        for n in range(7):
            await mail.send(f"{n}" + '"' * 6000, to="ann")
        shown = await said(ann, "inbox://ann")
        assert [one["payload"][0] for one in shown["messages"]] == ["6"] or len(shown["messages"]) < 7
        assert shown["messages"][-1]["payload"][0] == "6"
        assert shown["unread"] == 7
        assert "swarm_read with for=ann" in shown["rest"]
        sent = await mail.send("\x01" * (64 * 1024), to="ann")
        letter = (await said(ann, "inbox://ann"))["messages"][-1]
        assert letter["payload_truncated"] is True
        text, offset = letter["payload"][:-1], letter["rest"]
        assert len(text) == offset
        while offset is not None:
            part = (await good(ann, "swarm_read", id=sent.id, offset=offset))["part"]
            text, offset = text + part["text"], part["next_offset"]
        assert text == "\x01" * (64 * 1024)
        for n in range(60):
            await rig.create("inbox", f"{n} " + "é" * 450)
        shown = await said(ann, "queue://inbox")
        assert 0 < len(shown["claimable"]) < 50
        assert shown["claimable"][0]["title"].startswith("59 ")
        assert shown["rest"]


@each_era
async def test_a_list_names_the_own_inbox_and_the_queues_one_may_use(rig: Rig, era: str) -> None:
    await rig.create("inbox")
    await rig.create("lab/one")
    async with agent(rig, era, "eve") as eve, agent(rig, era, "ann") as ann:
        assert [str(one.uri) for one in (await eve.list_resources()).resources] == ["inbox://eve", "queue://lab/one"]
        assert [str(one.uri) for one in (await ann.list_resources()).resources] == [
            "inbox://ann",
            "queue://inbox",
            "queue://lab/one",
        ]
        templates = (await ann.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["queue://{+name}", "inbox://{+name}"]
        for n in range(120):
            await rig.create(f"many/{n:03d}-" + "x" * 100)
        names: list[str] = []
        cursor: str | None = None
        pages = 0
        while True:
            page = await ann.list_resources(cursor=cursor)
            assert len(page.model_dump_json(by_alias=True, exclude_none=True).encode()) <= 24 * 1024
            names += [one.name for one in page.resources]
            cursor, pages = page.next_cursor, pages + 1
            if cursor is None:
                break
        assert pages > 1
        assert len(names) == len(set(names)) == 123
        assert all([(await said(ann, uri_of(Kind.QUEUE, name)))["pending"] == 1 for name in names[-3:]])


@each_era
@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("file:///etc/passwd", "expected queue://NAME or inbox://NAME"),
        ("queue:inbox", "expected queue://NAME"),
        ("", "expected queue://NAME"),
        ("queue://", "is no queue name"),
        ("queue://Inbox", "is no queue name"),
        ("queue://in%00box", "is no queue name"),
        ("queue://%ff", "does not decode to UTF-8"),
        ("queue://a?b", "is no queue name"),
        ("inbox://%20", "is nobody's name"),
        ("inbox://a#b", "is nobody's name"),
        ("queue://" + "a" * 2000, "expected queue://NAME"),
    ],
)
async def test_an_address_that_is_none_is_named(rig: Rig, era: str, uri: str, expected: str) -> None:
    async with agent(rig, era) as ann:
        for call in _readings(ann, era, uri):
            error = (await refusal(call)).error
            assert error.code == -32602
            assert "uri" in error.message
            assert expected in error.message
            assert error.data["uri"] == uri[:200]
    assert rig.office.happenings.listening == 0


def _readings(client: Client, era: str, *uris: str) -> list[Any]:
    """Every way in which the last of these is asked for."""
    if era == "legacy":
        return [client.read_resource(uris[-1]), subscribe(client, uris[-1])]
    return [client.read_resource(uris[-1]), _enter(client.listen(resource_subscriptions=uris))]


async def _enter(context: AbstractAsyncContextManager[Any]) -> None:
    async with context:
        raise AssertionError("it was let in")


@each_era
async def test_others_queues_and_inboxes_are_not_there(rig: Rig, era: str) -> None:
    await rig.create("inbox")
    async with agent(rig, era, "eve") as eve:
        for uri, code in (("queue://inbox", "not_found"), ("queue://none", "not_found"), ("inbox://ann", "forbidden")):
            for call in _readings(eve, era, "queue://lab/x", uri):
                error = (await refusal(call)).error
                assert error.code == NOT_FOUND[era]
                assert (error.data["uri"], error.data["code"]) == (uri, code)
    assert rig.office.happenings.listening == 0


@each_era
async def test_who_follows_a_queue_and_an_inbox_is_told_and_reads(rig: Rig, era: str) -> None:
    heard: list[str] = []
    async with agent(rig, era, heard=heard) as ann:
        async with told(ann, era, "queue://lab%2Fone", "inbox://ann", heard=heard) as came:
            await rig.create("lab/other")
            await rig.office.mail(WHO["bob"]).send("not for you", to="eve")
            todo = await rig.create("lab/one")
            await until(lambda: came)
            assert came == ["queue://lab%2Fone"]
            assert [one["id"] for one in (await said(ann, came[0]))["claimable"]] == [todo["id"]]
            await rig.office.mail(WHO["bob"]).send("for you", to="ann")
            await until(lambda: "inbox://ann" in came)
            assert (await said(ann, "inbox://ann"))["messages"][0]["payload"] == "for you"
            came.clear()
            await good(ann, "claim_next", queues=["lab/one"])
            await until(lambda: came)
            assert set(came) == {"queue://lab%2Fone"}
        await until(lambda: rig.office.happenings.listening == 0)
        seen = len(heard)
        await rig.create("lab/one")
        await ann.list_tools()
        assert len(heard) == seen


@each_era
async def test_a_client_that_goes_is_followed_no_longer(rig: Rig, era: str) -> None:
    heard: list[str] = []
    async with agent(rig, era, heard=heard) as ann:
        if era == "legacy":
            await subscribe(ann, "queue://inbox")
            await subscribe(ann, "queue://inbox")
            await subscribe(ann, "inbox://ann")
            assert rig.office.happenings.listening == 2
        else:
            listening = ann.listen(resource_subscriptions=["queue://inbox", "inbox://ann"])
            await listening.__aenter__()
            assert rig.office.happenings.listening == 2
            await listening.__aexit__(None, None, None)
    await until(lambda: rig.office.happenings.listening == 0)
    assert rig.office.watch.waiting == 0


@each_era
async def test_a_burst_is_few_notices_and_what_comes_last_is_not_left_out(rig: Rig, era: str) -> None:
    heard: list[str] = []
    async with agent(rig, era, heard=heard) as ann, told(ann, era, "queue://inbox", heard=heard) as came:
        desk = rig.office.desk(WHO["ann"])
        await asyncio.gather(*(desk.create("inbox", f"{n}") for n in range(100)))
        await until(lambda: came)
        # One at once, one when a pause is over; further ones where the machine took longer than that for the burst.
        assert len(came) < 50
        seen = len(came)
        await desk.create("inbox", "the last")
        await until(lambda: len(came) > seen)
        assert (await said(ann, "queue://inbox"))["pending"] == 101


@each_era
async def test_more_resources_than_may_be_followed_are_refused(rig: Rig, era: str) -> None:
    uris = [f"queue://q{n}" for n in range(MOST_PLACES + 1)]
    async with agent(rig, era) as ann:
        if era == "legacy":
            for uri in uris[:-1]:
                await subscribe(ann, uri)
            error = (await refusal(subscribe(ann, uris[-1]))).error
            await subscribe(ann, uris[0], end=True)
            await subscribe(ann, uris[-1])
        else:
            error = (await refusal(_enter(ann.listen(resource_subscriptions=uris)))).error
        assert str(MOST_PLACES) in error.message
    await until(lambda: rig.office.happenings.listening == 0)


@each_era
async def test_an_end_of_all_listening_ends_the_newer_stream_in_good_order(rig: Rig, era: str) -> None:
    heard: list[str] = []
    async with agent(rig, era, heard=heard) as ann:
        if era == "legacy":
            await subscribe(ann, "queue://inbox")
            rig.office.happenings.close()
            await until(lambda: rig.office.happenings.listening == 0)
        else:
            async with ann.listen(resource_subscriptions=["queue://inbox"]) as subscription:
                rig.office.happenings.close()
                # No error: the loop ends as a stream does that its server closed.
                assert [event async for event in subscription] == []
        again = (
            subscribe(ann, "inbox://ann")
            if era == "legacy"
            else _enter(ann.listen(resource_subscriptions=["inbox://ann"]))
        )
        error = (await refusal(again)).error
        assert (error.code, error.data["code"]) == (-32603, "unavailable")


@each_era
async def test_what_is_promised_is_what_is_served(rig: Rig, era: str) -> None:
    async with agent(rig, era) as ann:
        able = ann.server_capabilities
        assert able.resources is not None
        assert (able.resources.subscribe, able.resources.list_changed) == (True, False)
        assert able.tools is not None
        assert able.tools.list_changed is False
        assert able.prompts is None


def test_addresses_and_names_lead_to_each_other() -> None:
    for kind, name in ((Kind.QUEUE, "ci/build-2.x"), (Kind.INBOX, "ses_1:a@b/c"), (Kind.INBOX, "Ann")):
        place = place_of(uri_of(kind, name))
        assert (place.kind, place.name) == (kind, name)
    assert place_of("inbox://ses_1:a@b/c") == Place(Kind.INBOX, "ses_1:a@b/c", "inbox://ses_1:a@b/c")
    assert place_of("QUEUE://%61").name == "a"
    with pytest.raises(Invalid):
        place_of("queue//x")


async def test_one_queue_is_shown_by_http_as_well(rig: Rig) -> None:
    await rig.create("lab/one")
    for path in ("/v1/queues/lab/one", "/v1/queues/lab%2Fone"):
        shown = (await get(rig, "eve", path))["queue"]
        assert (shown["name"], shown["pending"], shown["paused"]) == ("lab/one", 1, False)
    assert (await get(rig, "eve", "/v1/queues/inbox", 404))["error"]["code"] == "not_found"
    assert (await get(rig, "eve", "/v1/queues/Lab", 400))["error"]["field"] == "name"
    async with Program(HOST, rig.secrets["eve"], transport=httpx2.ASGITransport(rig.app)) as program:
        assert (await program.queue("lab/two"))["pending"] == 0
        with pytest.raises(NotFound):
            await program.queue("inbox")
