"""Bodies of samples from GitHub, GitLab, Gitea and Forgejo."""

from __future__ import annotations

from typing import Any

from postroom.sources.sample_moment import BOT, REPOSITORY, TITLE, Made, Moment, Value


def github(moment: Moment) -> Made:
    """Issues, reviews, checks, a comment and a push, with GitHub's names."""
    made = _forge(moment, "https://github.com", "x-github-event")
    head, url = moment.hash[:40], f"https://github.com/{REPOSITORY}"
    base = _base(moment, url)
    check = {
        "id": moment.number,
        "name": "tests",
        "head_sha": head,
        "status": "completed",
        "conclusion": "failure",
        "html_url": f"{url}/runs/{moment.number}",
        "check_suite": {"id": moment.number, "head_branch": "main", "head_sha": head},
        "app": {"slug": "github-actions", "name": "GitHub Actions"},
        "pull_requests": [],
    }
    review = {
        "id": moment.number,
        "state": "changes_requested",
        "body": "The empty cart needs a test.",
        "html_url": f"{url}/pull/{moment.number}#pullrequestreview-{moment.number}",
        "user": {"login": "bob"},
    }
    pull = made["pull_request.review_requested"][1]["pull_request"]
    return {
        **made,
        "ping": ({"x-github-event": "ping"}, {"zen": "Keep it small.", "hook_id": moment.number, **base}),
        "issues.labeled": (
            {"x-github-event": "issues"},
            {**made["issues.opened"][1], "action": "labeled", "label": {"name": "bug", "color": "d73a4a"}},
        ),
        "pull_request_review.submitted": (
            {"x-github-event": "pull_request_review"},
            {"action": "submitted", "review": review, "pull_request": pull, **base},
        ),
        "check_run.completed": ({"x-github-event": "check_run"}, {"action": "completed", "check_run": check, **base}),
    }


def gitea(moment: Moment) -> Made:
    """The same of a Gitea, with the names that differ."""
    return _of_gitea(moment, "gitea")


def forgejo(moment: Moment) -> Made:
    """The same of a Forgejo."""
    return _of_gitea(moment, "forgejo")


def _of_gitea(moment: Moment, family: str) -> Made:
    home, header = f"https://{family}.example", f"x-{family}-event"
    made = _forge(moment, home, header)
    base = _base(moment, f"{home}/{REPOSITORY}")
    pull = made["pull_request.review_requested"][1]["pull_request"]
    issue = made["issues.opened"][1]["issue"]
    status = {
        "id": moment.number,
        "sha": moment.hash[:40],
        "state": "failure",
        "context": "ci / tests",
        "description": "2 of 214 tests failed",
        "target_url": f"{home}/{REPOSITORY}/actions/runs/{moment.number}",
        "branches": [],
    }
    return {
        **made,
        "issues.label_updated": (
            {header: "issues", f"{header}-type": "issue_label"},
            {"action": "label_updated", "number": moment.number, "issue": issue, **base},
        ),
        "pull_request_approved": (
            {header: "pull_request_approved", f"{header}-type": "pull_request_review_approved"},
            {
                "action": "reviewed",
                "number": moment.number,
                "pull_request": pull,
                "review": {"type": "pull_request_review_approved", "content": "Good."},
                **base,
            },
        ),
        "status": ({header: "status"}, {**status, **base}),
    }


def _base(moment: Moment, url: str) -> Value:
    return {
        "repository": {"id": 4711, "full_name": REPOSITORY, "html_url": url, "default_branch": "main"},
        "sender": {"id": 7, "login": "ann"},
    }


def _forge(moment: Moment, home: str, header: str) -> dict[str, tuple[dict[str, str], Value]]:
    """What GitHub, Gitea and Forgejo tell in one shape."""
    url, number = f"{home}/{REPOSITORY}", moment.number
    base = _base(moment, url)
    issue = {
        "id": number,
        "number": number,
        "title": TITLE,
        "body": "Steps: open /checkout without a cart. Expected a message, got a 500.",
        "state": "open",
        "html_url": f"{url}/issues/{number}",
        "user": {"login": "ann"},
        "labels": [{"name": "bug"}],
        "assignee": {"login": BOT},
        "assignees": [{"login": BOT}],
        "created_at": moment.time,
        "updated_at": moment.time,
    }
    pull = {
        "id": number,
        "number": number,
        "title": "Answer an empty cart with a message",
        "state": "open",
        "html_url": f"{url}/pull/{number}",
        "user": {"login": BOT},
        "labels": [],
        "head": {"ref": "empty-cart", "sha": moment.hash[:40]},
        "base": {"ref": "main", "sha": moment.hash[24:64]},
        "updated_at": moment.time,
    }
    comment = {
        "id": number,
        "body": f"@{BOT} can you reproduce this?",
        "html_url": f"{url}/issues/{number}#issuecomment-{number}",
        "user": {"login": "ann"},
    }
    commit = {"id": moment.hash[:40], "message": "Answer an empty cart with a message\n\nIt was a 500.\n"}
    push = {"ref": "refs/heads/main", "before": moment.hash[24:64], "after": commit["id"], "commits": [commit]}
    unassigned = {**issue, "assignee": None, "assignees": []}
    asked = {"requested_reviewer": {"login": BOT}}
    return {
        "issues.opened": ({header: "issues"}, {"action": "opened", "number": number, "issue": unassigned, **base}),
        "issues.assigned": (
            {header: "issues"},
            {"action": "assigned", "issue": issue, "assignee": {"login": BOT}, **base},
        ),
        "pull_request.review_requested": (
            {header: "pull_request"},
            {"action": "review_requested", "number": number, "pull_request": pull, **asked, **base},
        ),
        "issue_comment.created": (
            {header: "issue_comment"},
            {"action": "created", "issue": unassigned, "comment": comment, **base},
        ),
        "push": ({header: "push"}, {**push, "head_commit": commit, "compare": f"{url}/compare/main", **base}),
    }


def gitlab(moment: Moment) -> Made:
    """Issues, merge requests, a pipeline, a comment and a push."""
    home, number, sha = f"https://gitlab.example/{REPOSITORY}", moment.number, moment.hash[:40]
    user = {"id": 7, "name": "Ann", "username": "ann"}
    bot = {"id": 8, "name": "Shop Bot", "username": BOT}
    bug = {"id": 1, "title": "bug", "color": "#dc143c", "type": "ProjectLabel"}
    project = {"id": 4711, "name": "shop", "path_with_namespace": REPOSITORY, "web_url": home, "default_branch": "main"}
    base = {"user": user, "project": project}
    issue = {"id": number, "iid": number, "title": TITLE, "state": "opened", "url": f"{home}/-/issues/{number}"}
    merge = {
        "id": number,
        "iid": number,
        "title": "Answer an empty cart with a message",
        "state": "opened",
        "source_branch": "empty-cart",
        "target_branch": "main",
        "last_commit": {"id": sha, "message": "Answer an empty cart with a message"},
        "url": f"{home}/-/merge_requests/{number}",
    }
    note = {"id": number, "note": f"@{BOT} can you reproduce this?", "noteable_type": "Issue", "action": "create"}
    pipeline = {"id": number, "iid": number, "ref": "main", "tag": False, "sha": sha, "status": "failed"}
    commit = {"id": sha, "message": "Answer an empty cart with a message\n", "timestamp": moment.time}
    added: dict[str, Any] = {"previous": [], "current": [bug]}
    labelled = {"object_attributes": {**issue, "action": "update"}, "labels": [bug], "changes": {"labels": added}}
    asked = {"previous": [], "current": [bot]}
    reviewed = {"object_attributes": {**merge, "action": "update"}, "reviewers": [bot], "changes": {"reviewers": asked}}
    made: dict[str, tuple[str, str, Value]] = {
        "issue.open": ("Issue Hook", "issue", {"object_attributes": {**issue, "action": "open"}, "labels": []}),
        "issue.update": ("Issue Hook", "issue", labelled),
        "merge_request.update": ("Merge Request Hook", "merge_request", reviewed),
        "merge_request.approved": (
            "Merge Request Hook",
            "merge_request",
            {"object_attributes": {**merge, "action": "approved"}, "assignees": [bot]},
        ),
        "pipeline": (
            "Pipeline Hook",
            "pipeline",
            {"object_attributes": pipeline, "commit": {**commit, "title": TITLE}},
        ),
        "note.create": (
            "Note Hook",
            "note",
            {"object_attributes": {**note, "url": f"{issue['url']}#note_{number}"}, "issue": issue},
        ),
        "push": (
            "Push Hook",
            "push",
            {"ref": "refs/heads/main", "after": sha, "checkout_sha": sha, "user_username": "ann", "commits": [commit]},
        ),
    }
    return {
        kind: ({"x-gitlab-event": header}, {"object_kind": object_kind, **base, **value})
        for kind, (header, object_kind, value) in made.items()
    }
