"""GitLab: the secret token in clear, or a signature of Standard Webhooks; a hook may send both, a source may know both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postroom.facts import Facts
from postroom.sources.headers import Headers
from postroom.sources.mentions import mentions
from postroom.sources.options import Options
from postroom.sources.scheme import DEFAULT_TOLERANCE_S, Rejected, Secret, Signing, Token, Verified
from postroom.sources.source import Reading, Sender
from postroom.sources.standard import PREFIX, Standard, key_of
from postroom.sources.value import at, first_line, items, whole, words

_TOKEN = Token("x-gitlab-token")
_MERGE = "merge_request"
_ISSUES = ("issue", "work_item")
_CHECKS = ("pipeline", "build")
_LISTS = ("labels", "assignees", "reviewers")


@dataclass(frozen=True, slots=True)
class TokenOrSignature:
    """The two proofs of GitLab: secrets that begin with `whsec_` sign, the others are tokens.

    A signature that comes where one of the secrets signs must be right, whatever the token says.
    """

    tolerance_s: int = DEFAULT_TOLERANCE_S

    @property
    def names(self) -> tuple[str, ...]:
        """The headers of both."""
        return (*_TOKEN.names, *self._standard.names)

    @property
    def _standard(self) -> Standard:
        return Standard(self.tolerance_s, ("webhook",))

    def verify(self, secrets: Sequence[Secret], headers: Headers, body: bytes, now_ms: int) -> Verified | Rejected:
        """Prove by the signature where there is one and a secret for it, else by the token."""
        signing = [secret for secret in secrets if _signs(secret)]
        tokens = [secret for secret in secrets if not _signs(secret)]
        if signing and (any(headers.all("webhook-signature")) or not tokens):
            return self._standard.verify(signing, headers, body, now_ms)
        return _TOKEN.verify(tokens, headers, body, now_ms)

    def sign(self, secret: Secret, body: bytes, now_ms: int, id_: str) -> Signing:
        """What this secret is for: a signature, or the token's header."""
        scheme = self._standard if _signs(secret) else _TOKEN
        return scheme.sign(secret, body, now_ms, id_)


def _signs(secret: Secret) -> bool:
    return secret.value.startswith(PREFIX.encode())


def _key(value: str) -> bytes:
    return key_of(value) if value.startswith(PREFIX) else value.encode()


def make(options: Options) -> Sender:
    """The sender; `tolerance_s` is how far a signed time may lie from now.

    The id is Idempotency-Key. X-Gitlab-Event-UUID is none: events that follow from one another share it.
    """
    return Sender(
        provider="gitlab",
        scheme=TokenOrSignature(options.tolerance()),
        describe=describe,
        id_headers=("idempotency-key",),
        once=("x-gitlab-event",),
        key=_key,
    )


def describe(headers: Headers, data: Any) -> Reading:
    """The kind is `object_kind`, the action that of `object_attributes`."""
    told = (headers.text("x-gitlab-event", 128) or "unknown").removesuffix(" Hook").lower().replace(" ", "_")
    if not isinstance(data, dict):
        return Reading(told, told, unparsed="expected a JSON object")
    kind = words(data, "object_kind") or words(data, "event_name") or told
    action = words(data, "object_attributes", "action") or words(data, "action")
    subject = _subject(kind, data)
    changed, gained = _changes(kind, action, data)
    targets = _targets(kind, action, data, changed, gained)
    label = gained["labels"][0] if action == "update" and len(gained["labels"]) == 1 else None
    facts = Facts(
        repository=words(data, "project", "path_with_namespace") or words(data, "path_with_namespace"),
        number=whole(subject, "iid"),
        title=_name(kind, data, subject),
        url=_url(kind, data),
        author="gitlab-ci" if kind in _CHECKS else words(data, "user", "username") or words(data, "user_username"),
        labels=_names(items(data, "labels") or items(subject, "labels")),
        label=label,
        branch=_branch(kind, data, subject),
        ref=_ref(kind, data),
        outcome=_outcome(kind, action, data),
        target=targets[0] if targets else None,
        targets=targets if len(targets) > 1 else (),
        changed=changed,
        mentions=_mentions(kind, data),
        item=_item(data),
    )
    return Reading(kind, _title(kind, action, facts, _MERGE in (kind, _noted(data))), action, facts)


def _noted(data: dict[str, Any]) -> str | None:
    """What a comment is about."""
    return next((name for name in (_MERGE, "issue") if isinstance(data.get(name), dict)), None)


def _subject(kind: str, data: dict[str, Any]) -> Any:
    if kind in {_MERGE, *_ISSUES}:
        return at(data, "object_attributes")
    return data.get(_noted(data) or "") or {}


def _changes(kind: str, action: str | None, data: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The fields that an update set or added to, and what the lists of labels and people gained."""
    gained: dict[str, tuple[str, ...]] = dict.fromkeys(_LISTS, ())
    if kind not in {_MERGE, *_ISSUES}:
        return (), gained
    if action == "open":
        gained = {name: _names(items(data, name)) for name in _LISTS}
        return tuple(name for name in _LISTS if gained[name]), gained
    changed: list[str] = []
    changes = data.get("changes")
    for name, change in list(changes.items())[:100] if isinstance(changes, dict) else ():
        if name in _LISTS:
            before = set(_names(items(change, "previous")))
            gained[name] = tuple(entry for entry in _names(items(change, "current")) if entry not in before)
            if gained[name]:
                changed.append(name)
        elif isinstance(name, str):
            changed.append(words(name) or "unknown")
    asked_again = tuple(
        name
        for entry in items(data, "reviewers")[:100]
        if at(entry, "re_requested") is True and (name := words(entry, "username")) is not None
    )
    if asked_again and action == "update":
        gained["reviewers"] = tuple(dict.fromkeys((*gained["reviewers"], *asked_again)))
        changed = [*(name for name in changed if name != "reviewers"), "reviewers"]
    return tuple(changed), gained


def _targets(
    kind: str, action: str | None, data: dict[str, Any], changed: tuple[str, ...], gained: dict[str, tuple[str, ...]]
) -> tuple[str, ...]:
    if "reviewers" in changed:
        return gained["reviewers"]
    if "assignees" in changed:
        return gained["assignees"]
    if kind == _MERGE and action in {"approved", "approval", "unapproved", "unapproval"}:
        return _names(items(data, "assignees"))
    return ()


def _names(entries: list[Any]) -> tuple[str, ...]:
    """The titles of labels, or the names of accounts."""
    found = (words(entry, "title") or words(entry, "username") or words(entry, "name") for entry in entries[:100])
    return tuple(name for name in found if name is not None)


def _name(kind: str, data: dict[str, Any], subject: Any) -> str | None:
    if kind in {"push", "tag_push"}:
        commits = items(data, "commits")
        return first_line(commits[-1], "message") if commits else None
    if kind == "build":
        return words(data, "build_name")
    return (
        words(subject, "title")
        or words(data, "object_attributes", "title")
        or first_line(data, "commit", "title")
        or words(data, "name")
        or words(data, "tag")
    )


def _url(kind: str, data: dict[str, Any]) -> str | None:
    told = words(data, "object_attributes", "url") or words(data, "url")
    home = words(data, "project", "web_url")
    if told is not None or home is None:
        return told or home
    number = whole(data, "object_attributes", "id") if kind == "pipeline" else whole(data, "build_id")
    if kind in _CHECKS and number is not None:
        return f"{home}/-/{'pipelines' if kind == 'pipeline' else 'jobs'}/{number}"
    sha = words(data, "checkout_sha")
    return f"{home}/-/commit/{sha}" if sha else home


def _branch(kind: str, data: dict[str, Any], subject: Any) -> str | None:
    branch = words(subject, "target_branch") or words(data, "object_attributes", "ref") or words(data, "ref")
    if kind == "pipeline":
        branch = words(data, "object_attributes", "ref")
    return branch.removeprefix("refs/heads/") if branch else None


def _ref(kind: str, data: dict[str, Any]) -> str | None:
    return (
        words(data, "object_attributes", "last_commit", "id")
        or words(data, "merge_request", "last_commit", "id")
        or words(data, "object_attributes", "sha")
        or words(data, "sha")
        or words(data, "checkout_sha")
        or words(data, "after")
        or words(data, "tag")
    )


def _outcome(kind: str, action: str | None, data: dict[str, Any]) -> str | None:
    if kind == "pipeline":
        return words(data, "object_attributes", "status")
    if kind == "build":
        return words(data, "build_status")
    if kind == _MERGE:
        return action if action in {"approved", "approval", "unapproved", "unapproval"} else None
    return words(data, "status")


def _mentions(kind: str, data: dict[str, Any]) -> tuple[str, ...]:
    text = at(data, "object_attributes", "note")
    return mentions(text, wide=True) if kind == "note" and isinstance(text, str) else ()


def _item(data: dict[str, Any]) -> str | None:
    item = whole(data, "object_attributes", "id")
    item = whole(data, "build_id") if item is None else item
    return None if item is None else str(item)


def _title(kind: str, action: str | None, facts: Facts, merge: bool) -> str:
    """`group/project#12: title`, with GitLab's `!` for merge requests, else what happened and where."""
    place = facts.repository or "gitlab"
    if facts.number is not None and kind not in _CHECKS:
        return f"{place}{'!' if merge else '#'}{facts.number}: {facts.title or kind}"
    what = " ".join(word for word in (kind, action, facts.outcome) if word)
    where = f" on {facts.branch}" if facts.branch else ""
    return f"{place}: {what}{where}{f': {facts.title}' if facts.title else ''}"
