"""Sources, rules and replays over HTTP: what an admin is told and may change, and that no answer holds a secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.doors.http_rig import CI_TOKEN, GITHUB_SECRET, HOST, SOURCES, Rig, ask, get, post, refusal
from tests.doors.test_hooks import signed

ISSUE = json.dumps({"action": "opened", "issue": {"number": 7, "title": "x"}}).encode()
BUGS = {"name": "bugs", "match": {"kind": "issues", "action": "opened"}, "queue": "bugs"}
ADMIN_ONLY: list[tuple[str, str, Any]] = [
    ("GET", "/v1/sources", None),
    ("GET", "/v1/sources/github/rules", None),
    ("PUT", "/v1/sources/github/rules", {"rules": [], "version": 0}),
    ("POST", "/v1/sources/github/rules/add", {"rule": {}}),
    ("POST", "/v1/sources/github/rules/move", {"name": "x", "at": 0}),
    ("POST", "/v1/sources/github/rules/remove", {"name": "x"}),
    ("POST", "/v1/sources/github/rules/test", {"body": {}}),
    ("POST", "/v1/sources/github/fire", {}),
    ("POST", "/v1/reload", {}),
    ("POST", "/v1/events/replay", {"since": "2026-01-01T00:00:00Z"}),
    ("POST", "/v1/events/ev_1/replay", {}),
    ("POST", "/v1/events/ev_1/release", {}),
    ("POST", "/v1/events/ev_1/discard", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_ONLY)
async def test_sources_are_for_admins(rig: Rig, method: str, path: str, body: Any) -> None:
    refusal(await ask(rig, "ann", method, path, body), 403, "forbidden")
    refusal(await ask(rig, None, method, path, body), 401, "unauthenticated")


async def test_sources_are_listed_without_secrets(rig: Rig) -> None:
    answer = await ask(rig, "root", "GET", "/v1/sources")
    ci, hub = answer.json()["sources"]
    assert (ci["name"], hub["name"], hub["provider"], hub["queue"]) == ("ci", "github", "github", "inbox")
    assert (hub["path"], hub["secrets"], hub["matched"]) == ("/hooks/github", ["secrets[0]"], None)
    assert "issues.opened" in hub["samples"]
    assert (answer.json()["addresses"], answer.json()["settings_file"]) == ([HOST], "/data/postroom.toml")
    assert GITHUB_SECRET not in answer.text
    assert CI_TOKEN not in answer.text
    await post(rig, None, "/hooks/github", ISSUE, 202, **signed(ISSUE))
    _, hub = (await get(rig, "root", "/v1/sources"))["sources"]
    assert hub["matched"]["secret"] == "secrets[0]"


async def test_a_sample_is_fired_through_the_door(rig: Rig) -> None:
    fired = await post(rig, "root", "/v1/sources/github/fire", {"kind": "issues.labeled"})
    assert (fired["path"], fired["status"]) == ("/hooks/github", 202)
    event = (await get(rig, "root", f"/v1/events/{fired['answer']['event_id']}"))["event"]
    assert (event["kind"], event["action"], event["verification"]) == ("issues", "labeled", "hmac-sha256:secrets[0]")
    by_token = await ask(rig, "root", "POST", "/v1/sources/ci/fire", {})
    assert by_token.json()["status"] == 202
    assert CI_TOKEN not in by_token.text
    wrong = refusal(await ask(rig, "root", "POST", "/v1/sources/github/fire", {"kind": "nope"}), 400, "invalid")
    assert wrong["field"] == "kind"
    refusal(await ask(rig, "root", "POST", "/v1/sources/nope/fire", {}), 404, "not_found")


async def test_sources_are_read_again_whole_or_not_at_all(rig: Rig) -> None:
    rig.tables = [*SOURCES, {"name": "new", "provider": "generic", "insecure": True}]
    told = await post(rig, "root", "/v1/reload", {})
    assert [one["name"] for one in told["sources"]] == ["ci", "github", "new"]
    assert told["warnings"]
    await post(rig, None, "/hooks/new", b"{}", 202)
    rig.tables = [{"name": "new", "provider": "nobody"}]
    error = refusal(await ask(rig, "root", "POST", "/v1/reload", {}), 400, "invalid")
    assert "postroom.toml:1" in error["message"]
    await post(rig, None, "/hooks/github", ISSUE, 202, **signed(ISSUE))
    rig.tables = SOURCES[1:]
    await post(rig, "root", "/v1/reload", {})
    refusal(await ask(rig, None, "POST", "/hooks/github", ISSUE, **signed(ISSUE)), 404, "not_found")


async def test_rules_are_edited_by_version(rig: Rig) -> None:
    path = "/v1/sources/github/rules"
    assert (await get(rig, "root", path))["rules"]["version"] == 0
    answer = await ask(rig, "root", "PUT", path, {"rules": [BUGS], "version": 0})
    assert answer.status_code == 200
    assert answer.json()["rules"]["rules"] == [BUGS]
    conflict = refusal(await ask(rig, "root", "PUT", path, {"rules": [], "version": 0}), 409, "conflict")
    assert conflict["version"] == 1
    added = await post(rig, "root", f"{path}/add", {"rule": {"name": "rest", "drop": True, "continue": None}})
    assert [rule["name"] for rule in added["rules"]["rules"]] == ["bugs", "rest"]
    moved = await post(rig, "root", f"{path}/move", {"name": "rest", "at": 0, "version": 2})
    assert [rule["name"] for rule in moved["rules"]["rules"]] == ["rest", "bugs"]
    left = await post(rig, "root", f"{path}/remove", {"name": "rest"})
    assert left["rules"] == await _rules(rig)
    told = await post(rig, None, "/hooks/github", ISSUE, 202, **signed(ISSUE))
    assert [(link["queue"], link["rule"]) for link in told["todos"]] == [("bugs", "bugs")]


async def _rules(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = (await get(rig, "root", "/v1/sources/github/rules"))["rules"]
    return found


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ([BUGS, {"match": {"label": 5}}], "rules[1].match.label"),
        ([BUGS, {"match": {"colour": "red"}}], "rules[1].match.colour"),
        ([BUGS, BUGS], "rules[1].name"),
        ([{"title": "{nobody}"}], "rules[0].title"),
        ([{"queue": 5}], "rules[0].queue"),
        ([{"delay_s": 0.5}], "rules[0].delay_s"),
        (["drop"], "rules[0]"),
        ("drop", "rules"),
    ],
)
async def test_a_wrong_rule_is_named_by_its_place(rig: Rig, rules: Any, field: str) -> None:
    answer = await ask(rig, "root", "PUT", "/v1/sources/github/rules", {"rules": rules, "version": 0})
    assert refusal(answer, 400, "invalid")["field"] == field


async def test_rules_are_tried_without_a_trace_left(rig: Rig) -> None:
    path = "/v1/sources/github/rules/test"
    told = await post(rig, None, "/hooks/github", ISSUE, 202, **signed(ISSUE))
    trial = (await post(rig, "root", path, {"event_id": told["event_id"], "rules": [BUGS]}))["trial"]
    assert (trial["state"], trial["rules_version"]) == ("routed", None)
    assert trial["trace"] == ["bugs: matched, todo in bugs under github:d-1"]
    assert [todo["queue"] for todo in trial["todos"]] == ["bugs"]
    given = {"body": json.loads(ISSUE), "kind": "issues.opened", "headers": {"X-GitHub-Delivery": "d-9"}}
    assert (await post(rig, "root", path, given))["trial"]["todos"][0]["idempotency_key"] == "github:d-9"
    assert (await post(rig, "root", path, {"body": "no json"}))["trial"]["state"] == "unparsed"
    for wrong, field in (
        ({}, "event_id"),
        ({"event_id": told["event_id"], "kind": "push"}, "kind"),
        ({"body": {}, "rules": [{"key": "{"}]}, "rules[0].key"),
        ({"body": {}, "headers": {"x": 5}}, "headers.x"),
    ):
        assert refusal(await ask(rig, "root", "POST", path, wrong), 400, "invalid")["field"] == field
    refusal(await ask(rig, "root", "POST", "/v1/sources/nope/rules/test", {"body": {}}), 404, "not_found")
    assert len((await get(rig, "root", "/v1/events"))["events"]) == 1


async def test_events_are_replayed_over_http(rig: Rig) -> None:
    told = await post(rig, None, "/hooks/github", ISSUE, 202, **signed(ISSUE))
    id_ = told["event_id"]
    await ask(rig, "root", "PUT", "/v1/sources/github/rules", {"rules": [BUGS], "version": 0})
    done, again = [
        (await ask(rig, "root", "POST", f"/v1/events/{id_}/replay", {}, **{"idempotency-key": "r1"})).json()
        for _ in range(2)
    ]
    assert (done["repeated"], [link["queue"] for link in done["event"]["todos"]]) == (False, ["bugs"])
    assert again["repeated"]
    event = (await get(rig, "root", f"/v1/events/{id_}"))["event"]
    assert event["trace"] == ["replayed by root", "bugs: matched, todo in bugs under github:d-1"]
    assert event["rules_version"] == 1
    many = await post(rig, "root", "/v1/events/replay", {"since": "2020-01-01T00:00:00Z", "source": "github"})
    assert ([one["event_id"] for one in many["results"]], many["next_cursor"]) == ([id_], None)
    nothing = id_[:-12] + "0" * 12
    many = await post(rig, "root", "/v1/events/replay", {"ids": [nothing, id_]})
    assert many["results"][0]["error"]["code"] == "not_found"
    assert many["results"][1]["event"]["id"] == id_
    error = refusal(await ask(rig, "root", "POST", f"/v1/events/{id_}/release", {}), 409, "conflict")
    assert error["state"] == "routed"
    refusal(await ask(rig, "root", "POST", f"/v1/events/{id_}/discard", {"note": "no"}), 409, "conflict")
    for wrong, field in (({}, "ids"), ({"ids": [id_], "since": "x"}, "since"), ({"since": "yesterday"}, "since")):
        assert refusal(await ask(rig, "root", "POST", "/v1/events/replay", wrong), 400, "invalid")["field"] == field


async def test_events_are_listed_by_filters(rig: Rig) -> None:
    for id_ in ("d-1", "d-2"):
        await post(rig, None, "/hooks/github", ISSUE, 202, **signed(ISSUE, delivery=id_))
    for query, count in (
        ("suspected_replay=true", 1),
        ("suspected_replay=false", 1),
        ("action=opened", 2),
        ("action=closed", 0),
        ("since=2020-01-01T00:00:00Z", 2),
        ("until=2020-01-01T00:00:00Z", 0),
        ("state=held", 0),
    ):
        assert len((await get(rig, "root", f"/v1/events?{query}"))["events"]) == count, query
    for query, field in (("suspected_replay=maybe", "suspected_replay"), ("since=soon", "since")):
        assert refusal(await ask(rig, "root", "GET", f"/v1/events?{query}"), 400, "invalid")["field"] == field
