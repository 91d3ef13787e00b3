"""Allow-lists: which sender may write to whom, by every word that a recipient goes by."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import Forbidden
from postroom.message import NewMessage
from postroom.model import Principal
from postroom.office import compose
from postroom.services.allowed import Allowance, Allowed
from tests.conftest import Store
from tests.offices import ADMIN, ANN, BOB, Bench
from tests.services.mailing import Mail, only

PLUGIN = Principal("plugin", speaks_as=("ses_*", "reviewer"))
ENTRIES = (
    Allowance(("ses_*",), ("reviewer", "ci-*", "#team/*")),
    Allowance(("ann",), ("*",)),
    Allowance(("reviewer", "bob"), ("ses_1", "repo:tools")),
)


@pytest.fixture
def listed(store: Store) -> Mail:
    """A post with allow-lists."""
    return Mail(Bench(store, compose(store, allow=ENTRIES)))


ADMITTED: list[tuple[Principal, dict[str, Any]]] = [
    (PLUGIN, {"sender": "ses_1", "to": "reviewer"}),
    (PLUGIN, {"sender": "ses_2", "to": "ci-7"}),
    (PLUGIN, {"sender": "ses_1", "channel": "team/build"}),
    (PLUGIN, {"sender": "reviewer", "to": "ses_1"}),
    (ANN, {"to": "whoever"}),
    (ANN, {"channel": "any"}),
    (ADMIN, {"to": "bob"}),
    (ADMIN, {"to": "bob", "sender": "stranger"}),
]
REFUSED: list[tuple[Principal, dict[str, Any], str, str]] = [
    (
        PLUGIN,
        {"sender": "ses_1", "to": "bob"},
        "to",
        "ses_1 may not write to bob: [post] allow lets it write to reviewer, ci-*, #team/*",
    ),
    (
        PLUGIN,
        {"sender": "ses_1", "channel": "ops"},
        "channel",
        "ses_1 may not write to #ops: [post] allow lets it write to reviewer, ci-*, #team/*",
    ),
    (PLUGIN, {"to": "reviewer"}, "to", "plugin may not write to reviewer: [post] allow lets it write to nobody"),
    (BOB, {"to": "ses_10"}, "to", "bob may not write to ses_10: [post] allow lets it write to ses_1, repo:tools"),
    # A channel goes by its name with the mark alone.
    (PLUGIN, {"sender": "reviewer", "channel": "ses_1"}, "channel", "reviewer may not write to #ses_1"),
]


async def test_what_an_entry_allows_is_admitted(listed: Mail) -> None:
    for who, more in ADMITTED:
        assert not (await listed.send(by=who, **more)).deduplicated


async def test_what_no_entry_allows_is_refused_and_nothing_is_kept(listed: Mail) -> None:
    for who, more, field, said in REFUSED:
        with pytest.raises(Forbidden) as caught:
            await listed.send(by=who, msg_id="m1", **more)
        assert caught.value.field == field
        assert caught.value.message.startswith(said)
    for table in ("messages", "admissions", "deliveries"):
        assert await listed.count(table) == 0


async def test_an_endpoint_goes_by_its_name_and_its_id(listed: Mail) -> None:
    named, other = await listed.pane(1, name="ci-1"), await listed.pane(2, name="other", repositories=["tools"])
    assert only(await listed.send(by=PLUGIN, sender="ses_1", to=named.id)).endpoint_id == named.id
    with pytest.raises(Forbidden):
        await listed.send(by=PLUGIN, sender="ses_1", to=other.id)
    by_repository = await listed.send(by=BOB, target_repo="tools")
    assert only(by_repository).endpoint_id == other.id
    by_id = Mail(Bench(listed.bench.store, compose(listed.bench.store, allow=[Allowance(("bob",), (named.id,))])))
    assert only(await by_id.send(by=BOB, to="ci-1")).endpoint_id == named.id
    with pytest.raises(Forbidden) as caught:
        await by_id.send(by=BOB, target_repo="tools")
    assert caught.value.field == "target_repo"
    assert caught.value.message.startswith("bob may not write to repo:tools: ")


async def test_a_repeat_of_what_was_admitted_before_the_list_is_still_the_first(bench: Bench) -> None:
    first = await Mail(bench).send(by=PLUGIN, sender="ses_1", to="bob", msg_id="m1")
    listed = Mail(Bench(bench.store, compose(bench.store, allow=ENTRIES)))
    again = await listed.send(by=PLUGIN, sender="ses_1", to="bob", msg_id="m1")
    assert (again.id, again.deduplicated) == (first.id, True)


async def test_notices_of_postroom_are_held_by_no_list(listed: Mail) -> None:
    todo = await listed.bench.create(by=ANN, assignee="bob")
    assert await listed.office.assigning.once() == 1
    (held,) = await listed.bench.claim(BOB)
    assert held.id == todo.id
    await listed.bench.complete(BOB, held)
    assert await listed.office.handover.once() == 1


def test_a_long_list_is_told_in_part() -> None:
    many = Allowed((Allowance(("bob",), tuple(f"name-{n}" for n in range(50))),))
    with pytest.raises(Forbidden) as caught:
        many.check(BOB, "bob", NewMessage("x", to="x"), [])
    assert caught.value.message.endswith("name-19, …")
