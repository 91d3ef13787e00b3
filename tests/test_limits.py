"""The numbers of a todo's life: its backoff, and what may be asked, each refusal naming the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import lifecycle, limits
from postroom.errors import Invalid, TooLarge
from postroom.limits import DAY, HOUR, SECOND
from postroom.model import ClaimRequest, NewTodo, OutcomeItem, QueueSettings, TodoChange, Verb

NOW: Final = 1_800_000_000_000


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(0, 30), (1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 900), (7, 900), (100, 900)]
)
def test_backoff_doubles_up_to_its_cap(attempt: int, seconds: int) -> None:  # S9
    assert lifecycle.backoff(attempt) == seconds * SECOND


@given(st.integers(0, 100), st.integers(0, limits.MAX_BACKOFF), st.integers(0, limits.MAX_BACKOFF), st.floats(0, 0.1))
def test_backoff_is_bounded_and_jitter_only_adds(attempt: int, base: int, cap: int, jitter: float) -> None:  # S9
    plain = lifecycle.backoff(attempt, base, cap)
    assert 0 <= plain <= cap
    assert plain <= lifecycle.backoff(attempt + 1, base, cap)
    assert plain <= lifecycle.backoff(attempt, base, cap, jitter) <= plain * 1.1


def refused(check: Callable[[], object]) -> tuple[str, str | None]:
    """The code and field of what a check refuses."""
    with pytest.raises((Invalid, TooLarge)) as error:
        check()
    assert error.value.field is not None
    assert len(error.value.message) < 300
    return error.value.code, error.value.field


GOOD_NEW: Final = NewTodo("inbox", "Answer")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": "Inbox"}, "queue"),
        ({"queue": "-inbox"}, "queue"),
        ({"queue": "inbox\n"}, "queue"),
        ({"queue": "q" * 129}, "queue"),
        ({"title": ""}, "title"),
        ({"title": " \t"}, "title"),
        ({"title": "a\x00"}, "title"),
        ({"title": "\ud800"}, "title"),
        ({"kind": "a b"}, "kind"),
        ({"kind": "k" * 129}, "kind"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"priority": True}, "priority"),
        ({"assignee": ""}, "assignee"),
        ({"assignee": "a/b/c"}, "assignee"),
        ({"assignee": "ada/"}, "assignee"),
        ({"assignee": "a" * 65}, "assignee"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 257}, "idempotency_key"),
        ({"idempotency_key": "a\nb"}, "idempotency_key"),
        ({"idempotency_key": "\udfff"}, "idempotency_key"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 101}, "max_attempts"),
        ({"delay_ms": -1}, "delay_s"),
        ({"delay_ms": 366 * DAY}, "delay_s"),
        ({"delay_ms": 1, "available_at": NOW}, "available_at"),
        ({"available_at": -1}, "available_at"),
        ({"available_at": limits.MAX_TIME + 1}, "available_at"),
    ],
)
def test_a_new_todo_out_of_bounds_is_refused_naming_the_field(change: dict[str, object], field: str) -> None:
    limits.check_new(GOOD_NEW)
    asked = replace(GOOD_NEW, **change)  # type: ignore[arg-type]
    assert refused(lambda: limits.check_new(asked)) == ("invalid", field)


def test_a_title_over_500_characters_is_too_large() -> None:
    limits.check_title("é" * 500)
    assert refused(lambda: limits.check_title("é" * 501)) == ("too_large", "title")


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "a" * 128},
        {"queue": "0/ci.main_x-y"},
        {"priority": 100},
        {"priority": -100},
        {"assignee": "ada/w-1"},
        {"idempotency_key": "clé 🙂" + "k" * 251},
        {"max_attempts": 100},
        {"delay_ms": 0},
        {"delay_ms": 365 * DAY},
        {"available_at": limits.MAX_TIME},
        {"kind": "github:pull_request.opened"},
    ],
)
def test_a_new_todo_at_its_bounds_passes(change: dict[str, object]) -> None:
    limits.check_new(replace(GOOD_NEW, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ClaimRequest(limit=0), "limit"),
        (ClaimRequest(limit=-1), "limit"),
        (ClaimRequest(limit=101), "limit"),
        (ClaimRequest(ttl_ms=999), "ttl_s"),
        (ClaimRequest(ttl_ms=24 * HOUR + 1), "ttl_s"),
        (ClaimRequest(queues=()), "queues"),
        (ClaimRequest(queues=("q",) * 101), "queues"),
        (ClaimRequest(queues=("ok", "Not ok")), "queues"),
        (ClaimRequest(claim_key=""), "claim_key"),
        (ClaimRequest(worker="a/b"), "worker"),
    ],
)
def test_a_claim_out_of_bounds_is_refused_naming_the_field(request_: ClaimRequest, field: str) -> None:
    assert refused(lambda: limits.check_claim(request_)) == ("invalid", field)


def test_a_claim_at_its_bounds_passes() -> None:
    limits.check_claim(ClaimRequest())
    limits.check_claim(ClaimRequest(("a",) * 100, SECOND, 100, "k" * 256, "w" * 64))
    limits.check_claim(ClaimRequest(ttl_ms=24 * HOUR))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "No"}, "name"),
        ({"lease_ms": 0}, "lease_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"backoff_ms": -1}, "backoff_s"),
        ({"backoff_cap_ms": 8 * DAY}, "backoff_cap_s"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"keep_done_ms": SECOND}, "keep_done_s"),
        ({"keep_dead_ms": 4000 * DAY}, "keep_dead_s"),
    ],
)
def test_settings_out_of_bounds_are_refused_naming_the_field(change: dict[str, object], field: str) -> None:
    limits.check_settings(QueueSettings("inbox"))
    asked = replace(QueueSettings("inbox"), **change)  # type: ignore[arg-type]
    assert refused(lambda: limits.check_settings(asked)) == ("invalid", field)


def test_endings_and_changes_out_of_bounds_are_refused_naming_the_field() -> None:
    item = OutcomeItem("td_1", Verb.FAIL, "ls_1")
    limits.check_outcome(item)
    assert refused(lambda: limits.check_outcome(replace(item, retry_in_ms=-1))) == ("invalid", "retry_in_s")
    assert refused(lambda: limits.check_outcome(replace(item, delay_ms=366 * DAY))) == ("invalid", "delay_s")
    limits.check_change(TodoChange())
    assert refused(lambda: limits.check_change(TodoChange(title=""))) == ("invalid", "title")
    assert refused(lambda: limits.check_change(TodoChange(priority=200))) == ("invalid", "priority")
    assert refused(lambda: limits.check_change(TodoChange(assignee="a b"))) == ("invalid", "assignee")
    assert refused(lambda: limits.check_change(TodoChange(available_at=-1))) == ("invalid", "available_at")
