"""GitHub: `X-Hub-Signature-256` over the raw body, JSON or a form with `payload`, and a `ping` when a hook is made.

Gitea and Forgejo send GitHub's headers too: a request that bears their names is theirs, and refused here.
"""

from __future__ import annotations

from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.mentions import mentions
from postroom.sources.options import Options
from postroom.sources.scheme import Hmac
from postroom.sources.source import Reading, Sender
from postroom.sources.value import at, items, whole, words

# Where the thing an event is about stands, the nearest first.
_SUBJECTS = (
    "comment",
    "review",
    "check_run",
    "check_suite",
    "workflow_run",
    "workflow_job",
    "deployment_status",
    "pull_request",
    "issue",
    "discussion",
    "release",
    "alert",
    "deployment",
    "milestone",
    "package",
    "forkee",
    "head_commit",
)
_NUMBERED = ("pull_request", "issue", "discussion")
_CHECKS = ("check_run", "check_suite", "workflow_run", "workflow_job")
_COMMENTS = {"issue_comment", "commit_comment", "pull_request_review_comment", "discussion_comment"}


def make(options: Options) -> Sender:
    """The sender; it has no options of its own."""
    return Sender(
        provider="github",
        scheme=Hmac("x-hub-signature-256", prefix="sha256="),
        describe=describe,
        id_headers=("x-github-delivery",),
        once=("x-github-event",),
        form_field="payload",
        foreign=(("x-gitea-", "gitea"), ("x-forgejo-", "forgejo")),
    )


def describe(headers: Headers, data: Any) -> Reading:
    """The event's name from its header, the rest from the body."""
    return read(headers.text("x-github-event", 128) or "unknown", data)


def read(kind: str, data: Any) -> Reading:
    """What GitHub's bodies say; other forges that send the same bodies use it too."""
    if not isinstance(data, dict):
        return Reading(kind, kind, unparsed="expected a JSON object")
    action = words(data, "action")
    facts = _facts(kind, action, data)
    if kind == "ping":
        return Reading(kind, f"{facts.repository or 'github'}: ping", facts=facts, ignored="ping: the hook was set up")
    return Reading(kind, _title(kind, action, facts), action, facts)


def _facts(kind: str, action: str | None, data: dict[str, Any]) -> Facts:
    subject = next((found for name in _SUBJECTS if isinstance(found := data.get(name), dict)), {})
    numbered = next((found for name in _NUMBERED if isinstance(found := data.get(name), dict)), {})
    check = next((found for name in _CHECKS if isinstance(found := data.get(name), dict)), {})
    number = whole(numbered, "number")
    if number is None:
        pulls = [found for pull in items(check, "pull_requests") if (found := whole(pull, "number")) is not None]
        number = pulls[0] if len(pulls) == 1 else None
    label = words(data, "label", "name") if action in {"labeled", "unlabeled"} else None
    item = whole(subject, "id")
    return Facts(
        repository=words(data, "repository", "full_name"),
        number=number,
        title=_name(kind, data, numbered, subject),
        url=words(subject, "html_url")
        or words(subject, "target_url")
        or words(data, "compare")
        or words(data, "target_url")
        or words(data, "repository", "html_url"),
        author=_author(kind, data, check),
        labels=tuple(name for entry in items(numbered, "labels")[:100] if (name := words(entry, "name")) is not None),
        label=label,
        branch=_branch(data, check),
        ref=words(check, "head_sha")
        or words(data, "pull_request", "head", "sha")
        or words(data, "comment", "commit_id")
        or words(data, "sha")
        or words(data, "after")
        or words(data, "release", "tag_name")
        or words(data, "deployment", "sha")
        or words(data, "ref"),
        outcome=words(check, "conclusion")
        or words(data, "review", "state")
        or words(data, "deployment_status", "state")
        or (words(data, "state") if kind == "status" else None),
        target=_target(kind, action, data),
        mentions=_mentions(kind, data),
        item=str(item) if item is not None else None,
    )


def _author(kind: str, data: dict[str, Any], check: dict[str, Any]) -> str | None:
    """Who acted. A check was run by its service: whoever pushed still wants to hear that it failed."""
    if kind in {"check_run", "check_suite"}:
        return words(check, "app", "slug") or words(check, "check_suite", "app", "slug")
    if kind in {"workflow_run", "workflow_job"}:
        return "github-actions"
    return words(data, "sender", "login")


def _branch(data: dict[str, Any], check: dict[str, Any]) -> str | None:
    branch = (
        words(check, "head_branch")
        or words(check, "check_suite", "head_branch")
        or words(data, "pull_request", "base", "ref")
        or words(data, "deployment", "ref")
        or words(data, "ref")
    )
    if branch is None:
        listed = items(data, "branches")
        branch = words(listed[0], "name") if listed else None
    return branch.removeprefix("refs/heads/") if branch else None


def _target(kind: str, action: str | None, data: dict[str, Any]) -> str | None:
    if action in {"review_requested", "review_request_removed"}:
        team = words(data, "requested_team", "slug")
        if team is not None:
            owner = words(data, "organization", "login") or words(data, "repository", "owner", "login")
            return f"{owner}/{team}" if owner else team
        return words(data, "requested_reviewer", "login")
    if action in {"assigned", "unassigned"}:
        return words(data, "assignee", "login")
    return words(data, "pull_request", "user", "login") if kind == "pull_request_review" else None


def _mentions(kind: str, data: dict[str, Any]) -> tuple[str, ...]:
    place = "comment" if kind in _COMMENTS else "review" if kind == "pull_request_review" else None
    text = at(data, place, "body") if place else None
    return mentions(text) if isinstance(text, str) else ()


def _name(kind: str, data: dict[str, Any], numbered: dict[str, Any], subject: dict[str, Any]) -> str | None:
    """The thing's own title, on one line."""
    name = words(numbered, "title")
    if name is None and kind == "push":
        message = at(data, "head_commit", "message")
        name = message.split("\n", 1)[0] if isinstance(message, str) else None
    if name is None and kind == "status":
        name = words(data, "context")
    if name is None and kind in {"create", "delete"}:
        name = words(data, "ref")
    if name is None and kind == "check_suite":
        name = words(subject, "app", "name")
    return name or words(subject, "name") or words(subject, "title") or words(subject, "tag_name") or None


def _title(kind: str, action: str | None, facts: Facts) -> str:
    """`owner/repo#12: title` for what has a number and a title of its own, else what happened and where."""
    place = facts.repository or "github"
    if kind not in _CHECKS and facts.number is not None:
        return f"{place}#{facts.number}: {facts.title or kind}"
    what = " ".join(word for word in (kind, action if kind not in _CHECKS else None, facts.outcome) if word)
    where = f" on {facts.branch}" if facts.branch and kind in {*_CHECKS, "push", "status"} else ""
    told = f": {facts.title}" if facts.title else ""
    return f"{place}: {what}{where}{told}"
