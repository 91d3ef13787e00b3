"""Presets: ready lists of rules for what people usually want to hear about.

Keys collapse what is told more than once: an issue that is opened with labels and an assignee is one todo, and so is a
commit whose failure is told by run, suite and workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from postroom.services.rules import Match, Rule

FAILURES = ("failure", "timed_out", "startup_failure")
COMMENTS = (
    "issue_comment",
    "pull_request_review_comment",
    "pull_request_review",
    "commit_comment",
    "discussion_comment",
)
SAID = ("posted", "file_share", "thread_broadcast")

_THING = "{provider}:{repository}#{number}"
_COMMIT = "{provider}:{repository}@{ref}"
_ITEM = "{provider}:{repository}:{kind}:{item}"


@dataclass(frozen=True, slots=True)
class Preset:
    """A list of rules for senders of one family.

    providers: whose deliveries it understands. rules: makes the list for the accounts one acts for; none of them named
    means that anybody's mentions, assignments and reviews count.
    """

    providers: tuple[str, ...]
    rules: Callable[[tuple[str, ...]], tuple[Rule, ...]]


def github(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Issue opened, labelled or assigned, review requested, checks failed, mention in a comment, review submitted."""
    called = logins or ("*",)
    return (
        _issue("issue-opened", Match(kind=("issues",), action=("opened", "reopened"))),
        _issue("issue-labelled", Match(kind=("issues",), action=("labeled",))),
        _issue("issue-assigned", Match(kind=("issues",), action=("assigned",), target=called)),
        _review(Match(kind=("pull_request",), action=("review_requested",), target=called), _THING),
        Rule(
            name="checks-failed",
            match=Match(kind=("check_run", "check_suite", "workflow_run"), action=("completed",), outcome=FAILURES),
            kind="checks",
            key=f"{_COMMIT}:checks",
        ),
        _mention(Match(kind=COMMENTS, action=("created", "submitted"), mention=called)),
        _reviewed(Match(kind=("pull_request_review",), action=("submitted",), target=logins), _THING, "{item}"),
    )


def gitea(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """The same on Gitea and Forgejo, whose reviews and checks have other names."""
    called = logins or ("*",)
    reviews = ("pull_request_approved", "pull_request_rejected", "pull_request_comment", "pull_request_review_*")
    return (
        _issue("issue-opened", Match(kind=("issues",), action=("opened", "reopened"))),
        _issue("issue-labelled", Match(kind=("issues",), action=("label_updated",))),
        _issue("issue-assigned", Match(kind=("issues",), action=("assigned",), target=called)),
        _review(Match(kind=("pull_request",), action=("review_requested",), target=called), _THING),
        Rule(
            name="checks-failed",
            match=Match(kind=("status", "workflow_run"), outcome=(*FAILURES, "error")),
            kind="checks",
            key=f"{_COMMIT}:checks",
        ),
        _mention(Match(kind=("issue_comment", *reviews), action=("created", "reviewed"), mention=called)),
        _reviewed(Match(kind=reviews, action=("reviewed",), target=logins), _THING, "{delivery}"),
    )


def gitlab(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """The same on GitLab, where labels, assignees and reviewers come as updates, and approvals stand for reviews."""
    called = logins or ("*",)
    issues = ("issue", "work_item")
    merge = "{provider}:{repository}!{number}"
    return (
        _issue("issue-opened", Match(kind=issues, action=("open", "reopen"))),
        _issue("issue-labelled", Match(kind=issues, action=("update",), changed=("labels",))),
        _issue("issue-assigned", Match(kind=issues, action=("update",), changed=("assignees",), target=called)),
        _review(
            Match(kind=("merge_request",), action=("open", "reopen", "update"), changed=("reviewers",), target=called),
            merge,
        ),
        Rule(
            name="checks-failed",
            match=Match(kind=("pipeline",), outcome=("failed",)),
            kind="checks",
            key=f"{_COMMIT}:checks",
        ),
        _mention(Match(kind=("note",), action=("create",), mention=called)),
        _reviewed(
            Match(kind=("merge_request",), action=("approved", "unapproved"), target=logins), merge, "{delivery}"
        ),
    )


def _issue(name: str, match: Match) -> Rule:
    return Rule(name=name, match=match, kind="issue", key=f"{_THING}:opened")


def _review(match: Match, thing: str) -> Rule:
    title = "Review " + thing.removeprefix("{provider}:") + ": {title}"
    return Rule(name="review-requested", match=match, title=title, kind="review", key=f"{thing}:review:{{target}}")


def _reviewed(match: Match, thing: str, one: str) -> Rule:
    title = "Reviewed by {author} ({outcome}): " + thing.removeprefix("{provider}:") + " {title}"
    return Rule(name="review-submitted", match=match, title=title, kind="reviewed", key=f"{thing}:reviewed:{one}")


def _mention(match: Match) -> Rule:
    return Rule(name="mention", match=match, title="Mentioned in {event_title}", kind="mention", key=f"{_ITEM}:mention")


def sentry(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Issue created or alerted of, which is one todo; metric alert critical or warning."""
    return (
        Rule(
            name="issue-created",
            match=Match(kind=("issue",), action=("created",)),
            kind="issue",
            key="{provider}:{item}:issue",
        ),
        Rule(
            name="issue-alert",
            match=Match(kind=("event_alert",), action=("triggered",)),
            kind="issue",
            key="{provider}:{item}:issue",
        ),
        Rule(
            name="metric-alert",
            match=Match(kind=("metric_alert",), action=("critical", "warning")),
            kind="alert",
            key="{provider}:{item}:alert",
        ),
    )


def pagerduty(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Incident triggered or opened again."""
    return (
        Rule(
            name="incident-triggered",
            match=Match(kind=("incident",), action=("triggered", "reopened")),
            kind="incident",
            key="{provider}:{item}:incident",
        ),
    )


def linear(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Issue created or assigned; logins are the names that Linear shows."""
    called = logins or ("*",)
    return (
        _linear("issue-assigned", Match(kind=("Issue",), action=("create", "update"), target=called)),
        _linear("issue-created", Match(kind=("Issue",), action=("create",))),
    )


def _linear(name: str, match: Match) -> Rule:
    return Rule(name=name, match=match, kind="issue", key="{provider}:{item}:issue")


def slack(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """The app called in a channel, or written to directly; what bots write and what is edited is left alone."""
    key = "{provider}:{repository}:{item}"
    return (
        Rule(name="app-mention", match=Match(kind=("app_mention",), action=SAID), kind="mention", key=key),
        Rule(name="direct-message", match=Match(kind=("message.im",), action=SAID), kind="message", key=key),
    )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "github": Preset(("github",), github),
        "gitlab": Preset(("gitlab",), gitlab),
        "gitea": Preset(("gitea", "forgejo"), gitea),
        "forgejo": Preset(("gitea", "forgejo"), gitea),
        "sentry": Preset(("sentry",), sentry),
        "pagerduty": Preset(("pagerduty",), pagerduty),
        "linear": Preset(("linear",), linear),
        "slack": Preset(("slack",), slack),
    }
)
