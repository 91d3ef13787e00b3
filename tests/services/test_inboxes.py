"""Inboxes: what was handed off to a mailbox, in the order of its coming, read or not, waited for."""

from __future__ import annotations

import asyncio

import pytest

from postroom.endpoint import CarrierKind, NewEndpoint
from postroom.errors import Forbidden, Invalid
from postroom.message import AckMode, InboxPage, Priority
from postroom.model import Principal
from postroom.services import watch
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.processes import until
from tests.services.mailing import Mail

PLUGIN = Principal("plugin", speaks_as=("ses_*",))


@pytest.fixture
def mail(bench: Bench) -> Mail:
    return Mail(bench)


def ids(page: InboxPage) -> list[str]:
    """The ids of a page's messages, in order."""
    return [letter.message.id for letter in page.letters]


async def test_an_inbox_shows_what_was_handed_off_and_nothing_else(mail: Mail) -> None:
    # P11 # P21 # P23
    inbox = mail.office.inbox
    for name in ("m1", "m2", "m3"):
        await mail.send(msg_id=name)
    await mail.send(msg_id="other", to="ses_2")
    empty = await inbox.page(PLUGIN, "ses_1", None, None)
    assert (empty.letters, empty.next_since, empty.unread) == ((), "s.0", 0)
    await mail.carry("opencode:ses_1")
    await mail.carry("opencode:ses_1")
    page = await inbox.page(PLUGIN, "ses_1", None, None)
    assert ids(page) == ["m1", "m2"]
    assert (page.mailbox, page.next_since, page.unread) == ("ses_1", "s.2", 2)
    letter = page.letters[0]
    assert (letter.message.payload, letter.delivery.mailbox, letter.read) == ("hello", "ses_1", False)
    assert letter.delivery.delivered_at is not None


async def test_since_walks_the_order_of_hand_off_so_that_nothing_late_is_skipped(mail: Mail) -> None:
    # P11 # RULINGS 32
    inbox = mail.office.inbox
    late = await mail.send(msg_id="a-late", priority=Priority.LOW)
    for name in ("b", "c"):
        await mail.send(msg_id=name)
        await mail.carry("opencode:ses_1")
    page = await inbox.page(PLUGIN, "ses_1", "b", None)
    assert ids(page) == ["c"]
    await mail.carry("opencode:ses_1")
    # Its id is smaller than all that were seen, and it comes all the same.
    for since in ("c", page.next_since):
        assert ids(await inbox.page(PLUGIN, "ses_1", since, None)) == [late.id]
    assert ids(await inbox.page(PLUGIN, "ses_1", None, None)) == ["b", "c", "a-late"]


async def test_pages_follow_each_other(mail: Mail) -> None:
    for n in range(7):
        await mail.send(msg_id=f"m{n}", to="bob")
    seen: list[str] = []
    since: str | None = None
    for _ in range(4):
        page = await mail.office.inbox.page(BOB, None, since, 2)
        seen += ids(page)
        since = page.next_since
    assert seen == [f"m{n}" for n in range(7)]
    last = await mail.office.inbox.page(BOB, None, since, 2)
    assert (last.letters, last.next_since) == ((), since)
    # What stood at the place may be gone, the place leads on.
    await mail.bench.rows("delete from messages where id < 'm5'")
    assert ids(await mail.office.inbox.page(BOB, None, "s.3", None)) == ["m5", "m6"]


@pytest.mark.parametrize(
    ("since", "found"),
    [
        ("b", []),
        ("bb", ["c", "d"]),
        ("zzz", []),
        ("", ["c", "d", "b"]),
        ("B", ["c", "d", "b"]),
        ("s.x", []),
        ("s.0", ["c", "d", "b"]),
        ("s.999999999999999999", []),
        ("s.9999999999999999999999", []),
        ("a\x00\ud800", ["c", "d", "b"]),
        ("é", []),
        ("x" * 5000, []),
    ],
)
async def test_a_since_that_names_no_letter_compares_as_the_swarm_did(mail: Mail, since: str, found: list[str]) -> None:
    # P11 # RULINGS 32: never an error, and in hand-off order. Bytewise: every capital comes before every small letter.
    for name in ("c", "d", "b"):
        await mail.send(msg_id=name, to="bob")
    await mail.send(msg_id="zz", to="eve")
    assert ids(await mail.office.inbox.page(BOB, None, since, None)) == found


async def test_read_is_a_state_of_its_own(mail: Mail) -> None:
    inbox = mail.office.inbox
    for n in range(4):
        await mail.send(msg_id=f"m{n}", to="bob")
    assert (await inbox.page(BOB, None, None, None)).unread == 4
    after = await inbox.mark_read(BOB, None, "m1")
    assert (ids(after), after.unread) == (["m2", "m3"], 2)
    # Never back, and never past what is there.
    assert (await inbox.mark_read(BOB, None, "s.1")).unread == 2
    assert (await inbox.mark_read(BOB, None, "s.400")).unread == 0
    await mail.send(msg_id="m4", to="bob")
    page = await inbox.page(BOB, None, None, None)
    assert [letter.read for letter in page.letters] == [True, True, True, True, False]
    assert page.unread == 1
    with pytest.raises(Invalid) as refused:
        await inbox.mark_read(BOB, None, "nothing")
    assert refused.value.field == "since"
    assert (await inbox.mark_read(ANN, None, "s.5")).unread == 0


async def test_an_inbox_is_its_owners(mail: Mail) -> None:
    # RULINGS 36
    inbox = mail.office.inbox
    hers = await mail.office.registry.attach(ANN, NewEndpoint(CarrierKind.CHANNEL, {}, "channel:1"))
    for who, mailbox in ((ADMIN, "ses_1"), (PLUGIN, "ses_1"), (ANN, None), (ANN, "ann"), (ANN, hers.id)):
        assert (await inbox.page(who, mailbox, None, None)).letters == ()
    for who, mailbox in ((ANN, "bob"), (BOB, hers.id), (PLUGIN, "bob")):
        with pytest.raises(Forbidden) as refused:
            await inbox.page(who, mailbox, None, None)
        assert refused.value.field == "for"
        with pytest.raises(Forbidden):
            await inbox.mark_read(who, mailbox, "s.1")
    for mailbox, limit, field in (("a b", None, "for"), ("ann", 0, "limit")):
        with pytest.raises(Invalid) as wrong:
            await inbox.page(ANN, mailbox, None, limit)
        assert wrong.value.field == field
    with pytest.raises(Invalid) as long:
        await inbox.page(ANN, None, None, None, 51_000)
    assert long.value.field == "wait_s"


async def test_an_acknowledged_message_that_was_never_written_is_in_the_inbox(mail: Mail) -> None:
    # RULINGS 32
    await mail.send(msg_id="m")
    await mail.office.receipts.ack(PLUGIN, "m")
    assert ids(await mail.office.inbox.page(PLUGIN, "ses_1", None, None)) == ["m"]


async def _asleep(mail: Mail, count: int) -> None:
    await until(lambda: mail.office.watch.waiting == count, f"{count} wait")
    for _ in range(3):
        await asyncio.sleep(0.01)


@pytest.fixture
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_AGAIN", 600.0)


async def test_who_waits_gets_what_comes(mail: Mail, no_looking_again: None) -> None:
    inbox = mail.office.inbox
    waits = [asyncio.create_task(inbox.page(ADMIN, name, None, None, 50_000)) for name in ("bob", "ses_1", "eve")]
    await _asleep(mail, 3)
    await mail.send(msg_id="m", to="bob")
    assert ids(await waits[0]) == ["m"]
    await mail.send(msg_id="n")
    await _asleep(mail, 2)
    assert not waits[1].done()
    await mail.carry("opencode:ses_1")
    assert ids(await waits[1]) == ["n"]
    await mail.office.watch.close()
    assert (await waits[2]).letters == ()
    # Nobody waits any more after that.
    assert (await inbox.page(ADMIN, "eve", None, None, 50_000)).letters == ()


async def test_what_is_there_is_not_waited_for(mail: Mail, no_looking_again: None) -> None:
    await mail.send(msg_id="m", to="bob")
    assert ids(await mail.office.inbox.page(BOB, None, None, None, 50_000)) == ["m"]
    assert (await mail.office.inbox.page(BOB, None, "m", None, 1)).letters == ()
    assert mail.office.watch.waiting == 0


async def test_a_receipt_is_waited_for(mail: Mail, no_looking_again: None) -> None:
    post = mail.office.post
    await mail.send(msg_id="m", ack_mode=AckMode.ACKNOWLEDGED)
    handed = asyncio.create_task(post.wait_for(ADMIN, "m", "handed_off", 50_000))
    acked = asyncio.create_task(post.wait_for(ADMIN, "m", "acknowledged", 50_000))
    await _asleep(mail, 2)
    await mail.carry("opencode:ses_1")
    assert (await handed).deliveries[0].state == "awaiting_ack"
    await _asleep(mail, 1)
    assert not acked.done()
    await mail.office.receipts.ack(PLUGIN, "m")
    assert (await acked).deliveries[0].state == "acknowledged"
    for word in ("handed_off", "acknowledged"):
        assert await post.wait_for(ADMIN, "m", word, 50_000) == await acked


async def test_nobody_waits_for_what_cannot_come(mail: Mail, no_looking_again: None) -> None:
    post = mail.office.post
    await mail.send(msg_id="m")
    waits = [asyncio.create_task(post.wait_for(ADMIN, "m", word, 50_000)) for word in ("handed_off", "acknowledged")]
    await _asleep(mail, 2)
    await mail.office.receipts.cancel(ADMIN, "m")
    assert {one.deliveries[0].reason for one in await asyncio.gather(*waits)} == {"cancelled"}
    await mail.send(msg_id="none", channel="empty")
    assert (await post.wait_for(ADMIN, "none", "acknowledged", 50_000)).deliveries == ()
    await mail.send(msg_id="n")
    assert (await post.wait_for(ADMIN, "n", "handed_off", 1)).deliveries[0].state == "pending"
    assert (await post.wait_for(ADMIN, "n", "handed_off", 0)).deliveries[0].state == "pending"
    with pytest.raises(Invalid) as refused:
        await post.wait_for(ADMIN, "n", "read", 1)
    assert refused.value.field == "until"
    with pytest.raises(Invalid) as refused:
        await post.wait_for(ADMIN, "n", "handed_off", 60_000)
    assert refused.value.field == "wait_s"


async def test_what_another_daemon_does_is_found_by_looking_again(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_AGAIN", 0.02)
    # Another daemon's changes reach this one by no hint.
    monkeypatch.setattr(type(mail.office.wake), "changed", lambda *_: None)
    receipt = await mail.send(msg_id="m")
    letter = asyncio.create_task(mail.office.inbox.page(ADMIN, "ses_1", None, None, 50_000))
    handed = asyncio.create_task(mail.office.post.wait_for(ADMIN, receipt.id, "handed_off", 50_000))
    await until(lambda: mail.office.watch.waiting == 2, "both wait")
    await mail.carry("opencode:ses_1")
    assert ids(await letter) == ["m"]
    assert (await handed).deliveries[0].state == "injected"
