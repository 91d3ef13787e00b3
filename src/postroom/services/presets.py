"""Presets: ready lists of rules for what people usually want to hear about."""

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


@dataclass(frozen=True, slots=True)
class Preset:
    """A list of rules for senders of one family.

    providers: whose deliveries it understands. rules: makes the list for the accounts one acts for; none of them named
    means that anybody's mentions and review requests count.
    """

    providers: tuple[str, ...]
    rules: Callable[[tuple[str, ...]], tuple[Rule, ...]]


def github(logins: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Issue opened or labelled, review requested, checks failed, mention in a comment.

    Keys collapse what is told more than once: an issue that is opened with labels is one todo, and so is a commit
    whose failure is told by run, suite and workflow.
    """
    called = logins or ("*",)
    thing = "{provider}:{repository}#{number}"
    return (
        Rule(
            name="issue-opened",
            match=Match(kind=("issues",), action=("opened", "reopened")),
            kind="issue",
            key=f"{thing}:opened",
        ),
        Rule(
            name="issue-labelled",
            match=Match(kind=("issues",), action=("labeled",)),
            kind="issue",
            key=f"{thing}:opened",
        ),
        Rule(
            name="review-requested",
            match=Match(kind=("pull_request",), action=("review_requested",), target=called),
            title="Review {repository}#{number}: {title}",
            kind="review",
            key=f"{thing}:review:{{target}}",
        ),
        Rule(
            name="checks-failed",
            match=Match(kind=("check_run", "check_suite", "workflow_run"), action=("completed",), outcome=FAILURES),
            kind="checks",
            key="{provider}:{repository}@{ref}:checks",
        ),
        Rule(
            name="mention",
            match=Match(kind=COMMENTS, action=("created", "submitted"), mention=called),
            title="Mentioned in {event_title}",
            kind="mention",
            key="{provider}:{repository}:{kind}:{item}:mention",
        ),
    )


PRESETS: Mapping[str, Preset] = MappingProxyType({"github": Preset(("github",), github)})
