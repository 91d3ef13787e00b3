"""GitLab, Gitea and Forgejo: which proof counts, whose headers they are, and what their bodies tell."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from postroom.event import Incoming
from postroom.services.rules import decide
from postroom.sources.mentions import mentions
from postroom.sources.scheme import Rejected
from postroom.sources.source import Source
from tests.sources.signing import (
    NOW,
    SECRET,
    STANDARD_SECRET,
    Pairs,
    accepted,
    github,
    github_headers,
    hex_of,
    refused,
    sent,
    source_of,
    with_header,
)

TOKEN = "a token that goes in clear"


def gitlab(*secrets: str) -> Source:
    return source_of("gitlab", secrets=list(secrets))


def told(provider: str, value: dict[str, Any], event: str = "") -> Incoming:
    """What a source makes of a body of one's own."""
    source = source_of(provider, preset=provider)
    body = json.dumps(value).encode()
    signing = source.sender.scheme.sign(source.secrets[0], body, NOW, "d-1")
    pairs = [(name.encode(), text.encode()) for name, text in signing.headers]
    return accepted(source, [*pairs, (f"x-{provider}-event".encode(), event.encode())], body)


def routed(provider: str, got: Incoming, *logins: str) -> list[tuple[str, str | None]]:
    """The rules of the preset that make todos of a delivery, with the keys."""
    rules = source_of(provider, preset=provider, logins=list(logins) or None).rules
    return [(todo.rule, todo.new.idempotency_key) for todo in decide(got, rules, "inbox").todos]


# GitLab's two proofs


def test_gitlabs_token_in_clear() -> None:
    pairs: Pairs = [
        (b"X-Gitlab-Token", TOKEN.encode()),
        (b"Idempotency-Key", b"i-1"),
        (b"X-Gitlab-Event", b"Push Hook"),
    ]
    got = accepted(gitlab("an older token", TOKEN), pairs, b"{}")
    assert (got.verification, got.delivery_key, got.signed_key) == ("token:secrets[1]", "i-1", False)
    assert got.kind == "push"
    assert TOKEN not in str(got.headers)
    assert refused(gitlab(TOKEN), with_header(pairs, "x-gitlab-token", TOKEN.encode() + b"x"), b"{}")
    assert refused(gitlab(TOKEN), [*pairs, (b"x-gitlab-token", b"another")], b"{}")


def test_gitlab_may_send_both_and_the_signature_decides() -> None:
    pairs, body = sent("gitlab")
    both = [*pairs, (b"X-Gitlab-Token", TOKEN.encode())]
    source = gitlab(TOKEN, STANDARD_SECRET)
    assert accepted(source, both, body).verification == "hmac-sha256:secrets[1]"
    assert refused(source, both, body + b" ")
    token_alone = [(b"X-Gitlab-Token", TOKEN.encode())]
    assert accepted(source, token_alone, body).verification == "token:secrets[0]"
    assert accepted(gitlab(TOKEN), both, body).verification == "token:secrets[0]"
    assert refused(gitlab(STANDARD_SECRET), token_alone, body)
    assert refused(gitlab(STANDARD_SECRET), [(b"X-Gitlab-Token", STANDARD_SECRET.encode())], body)


def test_events_of_gitlab_that_share_their_uuid_are_two() -> None:
    def key(body: bytes) -> str:
        pairs: Pairs = [(b"X-Gitlab-Token", TOKEN.encode()), (b"X-Gitlab-Event-UUID", b"u-1")]
        return accepted(gitlab(TOKEN), [*pairs, (b"X-Gitlab-Webhook-UUID", b"w-1")], body).delivery_key

    assert key(b'{"a":1}') != key(b'{"a":2}')


# What GitLab tells


def change(name: str, before: list[str], after: list[str]) -> dict[str, Any]:
    key = "title" if name == "labels" else "username"
    return {name: {"previous": [{key: entry} for entry in before], "current": [{key: entry} for entry in after]}}


def issue(changes: dict[str, Any], action: str = "update", kind: str = "issue", **more: Any) -> dict[str, Any]:
    return {
        "object_kind": kind,
        "project": {"path_with_namespace": "acme/shop"},
        "user": {"username": "ann"},
        "object_attributes": {"id": 9, "iid": 3, "title": "It broke", "action": action},
        "changes": changes,
        **more,
    }


def test_a_label_that_gitlab_adds_is_told_and_one_it_removes_is_not() -> None:
    got = told("gitlab", issue(change("labels", ["a"], ["a", "bug"]), labels=[{"title": "a"}, {"title": "bug"}]))
    assert (got.facts.label, got.facts.labels, got.facts.changed) == ("bug", ("a", "bug"), ("labels",))
    assert routed("gitlab", got) == [("issue-labelled", "gitlab:acme/shop#3:opened")]
    got = told("gitlab", issue(change("labels", ["a", "bug"], ["a"])))
    assert (got.facts.label, got.facts.changed) == (None, ())
    assert routed("gitlab", got) == []
    got = told("gitlab", issue({"title": {"previous": "x", "current": "y"}}))
    assert got.facts.changed == ("title",)
    assert routed("gitlab", got) == []


def test_everybody_whom_gitlab_assigns_or_asks_counts() -> None:
    got = told("gitlab", issue(change("assignees", ["ann"], ["ann", "bob", "my-bot"])))
    assert (got.facts.target, got.facts.targets) == ("bob", ("bob", "my-bot"))
    assert routed("gitlab", got, "My-Bot") == [("issue-assigned", "gitlab:acme/shop#3:opened")]
    assert routed("gitlab", got, "ann") == []
    asked = issue(change("reviewers", [], ["bob", "my-bot"]), kind="merge_request")
    assert routed("gitlab", told("gitlab", asked), "my-bot") == [("review-requested", "gitlab:acme/shop!3:review:bob")]
    opened = issue({}, "open", "merge_request", reviewers=[{"username": "my-bot"}])
    assert routed("gitlab", told("gitlab", opened), "my-bot") == [
        ("review-requested", "gitlab:acme/shop!3:review:my-bot")
    ]
    again = issue({}, "update", "merge_request", reviewers=[{"username": "my-bot", "re_requested": True}])
    assert routed("gitlab", told("gitlab", again), "my-bot")
    assert routed("gitlab", told("gitlab", issue({}, "update", "merge_request", reviewers=[{"username": "b"}]))) == []


def test_gitlab_pipelines_and_comments() -> None:
    pipeline = {"object_attributes": {"id": 5, "status": "failed", "ref": "main", "sha": "abc"}}
    got = told("gitlab", {"object_kind": "pipeline", "project": {"path_with_namespace": "acme/shop"}, **pipeline})
    assert (got.facts.author, got.facts.branch, got.facts.outcome) == ("gitlab-ci", "main", "failed")
    assert routed("gitlab", got) == [("checks-failed", "gitlab:acme/shop@abc:checks")]
    note = {"object_attributes": {"id": 7, "note": "@my.bot_1 look", "action": "create"}, "merge_request": {"iid": 4}}
    got = told("gitlab", {"object_kind": "note", "project": {"path_with_namespace": "acme/shop"}, **note})
    assert got.title == "acme/shop!4: note"
    assert routed("gitlab", got, "my.bot_1") == [("mention", "gitlab:acme/shop:note:7:mention")]


def test_names_with_dots_and_underscores_are_called_whole() -> None:
    assert mentions("@my.bot_1, @a/b/c. and @_x", wide=True) == ("my.bot_1", "a/b/c", "_x")
    assert mentions("mail ann@example.test", wide=True) == ()


# Gitea and Forgejo beside GitHub


@pytest.mark.parametrize("provider", ["gitea", "forgejo"])
def test_a_request_of_gitea_is_not_taken_for_one_of_github(provider: str) -> None:
    pairs, body = sent(provider)
    mac = hex_of(body)
    disguised = [*pairs, (b"X-GitHub-Event", b"issues"), (b"X-Hub-Signature-256", b"sha256=" + mac)]
    disguised += [(b"X-GitHub-Delivery", b"other"), (b"X-Gogs-Signature", mac)]
    assert f'provider = "{provider}"' in refused(github(), disguised, body)
    got = accepted(source_of(provider), disguised, body)
    assert (got.provider, got.delivery_key) == (provider, "d-1")
    assert mac.decode() not in str(got.headers)
    hub = [pair for pair in disguised if b"signature" not in pair[0] or b"Hub" in pair[0]]
    assert refused(source_of(provider), hub, body)


def test_github_is_not_taken_for_gitea() -> None:
    assert refused(source_of("gitea"), github_headers(b"{}"), b"{}")


def form(payload: bytes, encoded: str | None = None, provider: str = "gitea") -> tuple[Pairs, bytes]:
    """A form as these forges post it: the signature is over what stands in the field."""
    body = b"payload=" + (quote_plus(payload) if encoded is None else encoded).encode()
    return [
        (b"content-type", b"application/x-www-form-urlencoded"),
        (f"x-{provider}-event".encode(), b"issues"),
        (f"x-{provider}-signature".encode(), hex_of(payload)),
    ], body


def test_a_form_is_signed_over_its_payload() -> None:
    payload = '{"action":"opened","issue":{"number":7,"title":"a & b = c+d ~é"}}'.encode()
    for provider in ("gitea", "forgejo"):
        pairs, body = form(payload, provider=provider)
        got = accepted(source_of(provider), pairs, body)
        assert (got.facts.title, got.facts.number) == ("a & b = c+d ~é", 7)
        assert refused(source_of(provider), pairs, body.replace(b"opened", b"closed"))
        assert refused(source_of(provider), pairs, body + b"&x=1")
        assert refused(source_of(provider), pairs, b"x=1&" + body)
        assert refused(source_of(provider), with_header(pairs, "content-type", b"application/json"), body)
    # Another spelling of the same form would be another digest for one delivery.
    for other in (quote(payload), quote_plus(payload).lower(), payload.decode()):
        pairs, body = form(payload, other)
        assert refused(source_of("gitea"), pairs, body)


def test_gitea_tells_assignees_reviews_and_labels_in_its_own_places() -> None:
    thing = {"number": 3, "title": "It broke", "assignee": None, "assignees": [{"login": "bob"}, {"login": "my-bot"}]}
    base = {"repository": {"full_name": "acme/shop"}, "sender": {"login": "ann"}}
    got = told("gitea", {"action": "assigned", "issue": thing, **base}, "issues")
    assert (got.facts.target, got.facts.targets) == ("bob", ("bob", "my-bot"))
    assert routed("gitea", got, "my-bot") == [("issue-assigned", "gitea:acme/shop#3:opened")]
    got = told("gitea", {"action": "label_updated", "issue": thing, **base}, "issues")
    assert routed("gitea", got) == [("issue-labelled", "gitea:acme/shop#3:opened")]
    pull = {"number": 4, "title": "Fix", "user": {"login": "my-bot"}, "html_url": "https://gitea.example/4"}
    review = {"type": "pull_request_review_rejected", "content": "no"}
    got = told("gitea", {"action": "reviewed", "pull_request": pull, "review": review, **base}, "pull_request_rejected")
    assert (got.facts.outcome, got.facts.url) == ("changes_requested", "https://gitea.example/4")
    assert routed("gitea", got, "my-bot") == [("review-submitted", "gitea:acme/shop#4:reviewed:sha256:" + key_end(got))]
    review["content"] = "@my-bot see"
    got = told("gitea", {"action": "reviewed", "pull_request": pull, "review": review, **base}, "pull_request_comment")
    assert [rule for rule, _ in routed("gitea", got, "my-bot")] == ["mention"]


def key_end(got: Incoming) -> str:
    return got.delivery_key.removeprefix("sha256:")


def test_an_unsigned_request_of_gitea_is_refused() -> None:
    """Without a secret Gitea sends its signature headers empty."""
    pairs, body = sent("gitea")
    got = source_of("gitea").receive(with_header(pairs, "x-gitea-signature", b""), body, NOW)
    assert isinstance(got, Rejected)
    assert SECRET not in got.reason
