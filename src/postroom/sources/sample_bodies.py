"""Bodies of samples: for each provider and its main kinds what the sender would post."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from postroom.sources.sample_forges import forgejo, gitea, github, gitlab
from postroom.sources.sample_moment import BOT, REPOSITORY, TITLE, Made, Moment, Value


def slack(moment: Moment) -> Made:
    """The handshake, a mention, a direct message, a slash command and a pressed button."""
    stamp = f"{moment.seconds}.{moment.number:06d}"
    team = {"team_id": "T0ACME", "api_app_id": "A0SHOP", "type": "event_callback", "event_time": moment.seconds}
    event = {"user": "U0ANN", "ts": stamp, "event_ts": stamp, "client_msg_id": moment.id}
    mention = {"type": "app_mention", "channel": "C0SHOP", "text": f"<@U0BOT> {TITLE}, can you look?", **event}
    message = {"type": "message", "channel": "D0ANN", "channel_type": "im", "text": "Is the shop up?", **event}
    trigger = f"{moment.number}.4711.{moment.hash[:32]}"
    command = {
        "command": "/todo",
        "text": TITLE,
        "team_id": "T0ACME",
        "channel_id": "C0SHOP",
        "user_id": "U0ANN",
        "user_name": "ann",
        "trigger_id": trigger,
    }
    button = {
        "type": "block_actions",
        "user": {"id": "U0ANN", "username": "ann"},
        "channel": {"id": "C0SHOP", "name": "shop"},
        "message": {"ts": stamp, "text": "Roll back?"},
        "actions": [{"action_id": "roll_back", "value": "yes", "text": {"type": "plain_text", "text": "Roll back"}}],
        "trigger_id": trigger,
    }
    id_ = f"Ev{moment.hash[:10].upper()}"
    return {
        "app_mention": ({}, {**team, "event_id": id_, "event": mention}),
        "message.im": ({}, {**team, "event_id": id_, "event": message}),
        "command": ({}, command),
        "block_actions": ({}, button),
        "url_verification": ({}, {"type": "url_verification", "challenge": moment.hash[:48]}),
    }


def stripe(moment: Moment) -> Made:
    """An invoice that could not be paid, and a checkout that went through."""

    def event(kind: str, thing: Value) -> tuple[dict[str, str], Value]:
        head = {"id": f"evt_{moment.hash[:24]}", "object": "event", "type": kind, "created": moment.seconds}
        return {}, {**head, "livemode": False, "pending_webhooks": 1, "data": {"object": thing}}

    invoice = {"id": f"in_{moment.hash[:24]}", "object": "invoice", "status": "open", "number": "SHOP-0042"}
    session = {"id": f"cs_test_{moment.hash[:24]}", "object": "checkout.session", "status": "complete"}
    return {
        "invoice.payment_failed": event("invoice.payment_failed", {**invoice, "amount_due": 4200, "currency": "eur"}),
        "checkout.session.completed": event("checkout.session.completed", session),
    }


def linear(moment: Moment) -> Made:
    """An issue made, an issue assigned, and a comment."""
    number = moment.number
    url = f"https://linear.app/acme/issue/SHOP-{number}"
    bot = {"id": "8", "name": BOT}
    base = {
        "actor": {"id": "7", "name": "ann", "type": "user"},
        "createdAt": moment.time,
        "organizationId": "4711",
        "webhookTimestamp": moment.now_ms,
        "webhookId": "11",
    }
    issue = {
        "id": moment.hash[:32],
        "identifier": f"SHOP-{number}",
        "number": number,
        "title": TITLE,
        "team": {"id": "1", "key": "SHOP", "name": "Shop"},
        "state": {"id": "2", "name": "Todo", "type": "unstarted"},
        "labels": [{"id": "3", "name": "bug"}],
        "url": url,
    }
    assigned = {**issue, "assigneeId": "8", "assignee": bot}
    comment = {"id": moment.hash[:32], "body": f"@{BOT} can you reproduce this?", "issue": {**issue}}
    return {
        "Issue.create": ({"linear-event": "Issue"}, {"action": "create", "type": "Issue", "data": issue, **base}),
        "Issue.update": (
            {"linear-event": "Issue"},
            {"action": "update", "type": "Issue", "data": assigned, "updatedFrom": {"assigneeId": None}, **base},
        ),
        "Comment.create": (
            {"linear-event": "Comment"},
            {"action": "create", "type": "Comment", "data": comment, **base},
        ),
    }


def sentry(moment: Moment) -> Made:
    """An issue, two alerts, and the installation that is recorded alone."""
    id_ = str(moment.number)
    url = f"https://acme.sentry.io/issues/{id_}/"
    project = {"id": "1", "name": "shop", "slug": "shop"}
    title = "TypeError: cart is None"
    issue = {"id": id_, "shortId": f"SHOP-{id_}", "title": title, "level": "error", "status": "unresolved"}
    api = f"https://sentry.io/api/0/projects/acme/shop/events/{moment.hash[:32]}/"
    event = {"event_id": moment.hash[:32], "issue_id": id_, "title": title, "level": "error", "project": 1, "url": api}
    metric = {"id": id_, "title": "Too many errors", "status": 20, "date_started": moment.time}
    base = {"installation": {"uuid": "00000000-0000-4000-8000-000000000000"}, "actor": {"type": "application"}}

    def made(resource: str, action: str, data: Value) -> tuple[dict[str, str], Value]:
        headers = {"sentry-hook-resource": resource, "sentry-hook-timestamp": str(moment.seconds)}
        return headers, {"action": action, "data": data, **base}

    told = {"description_title": "Critical: Too many errors", "web_url": "https://acme.sentry.io/alerts/1/"}
    return {
        "issue.created": made("issue", "created", {"issue": {**issue, "project": project, "web_url": url}}),
        "event_alert.triggered": made(
            "event_alert", "triggered", {"event": {**event, "web_url": url}, "triggered_rule": "Any new issue"}
        ),
        "metric_alert.critical": made("metric_alert", "critical", {"metric_alert": metric, **told}),
        "installation.created": made("installation", "created", {"installation": {"status": "installed"}}),
    }


def pagerduty(moment: Moment) -> Made:
    """An incident's beginning and end, and the test ping."""
    id_ = f"Q{moment.hash[:13].upper()}"
    incident = {
        "id": id_,
        "type": "incident",
        "number": moment.number,
        "title": "Checkout answers 500",
        "status": "triggered",
        "urgency": "high",
        "html_url": f"https://acme.pagerduty.com/incidents/{id_}",
        "service": {"id": "PSHOP", "type": "service_reference", "summary": "Shop"},
        "assignees": [{"id": "PANN", "type": "user_reference", "summary": "Ann"}],
    }

    def made(kind: str, data: Value) -> tuple[dict[str, str], Value]:
        head = {"id": moment.hash[:26].upper(), "event_type": kind, "resource_type": kind.partition(".")[0]}
        agent = {"id": "PSHOP", "type": "service_reference", "summary": "Shop"}
        return {}, {"event": {**head, "occurred_at": moment.time, "agent": agent, "data": data}}

    return {
        "incident.triggered": made("incident.triggered", incident),
        "incident.resolved": made("incident.resolved", {**incident, "status": "resolved"}),
        "pagey.ping": made("pagey.ping", {"type": "ping", "message": "Hello"}),
    }


def standard(moment: Moment) -> Made:
    """One event in the shape that the specification suggests."""
    data = {"title": "Order 42 was refunded", "url": "https://shop.example/orders/42", "number": moment.number}
    return {"order.refunded": ({}, {"type": "order.refunded", "timestamp": moment.time, "data": data})}


def generic(moment: Moment) -> Made:
    """A build that failed, in plain names."""
    build = {
        "kind": "build",
        "action": "finished",
        "status": "failure",
        "repository": REPOSITORY,
        "branch": "main",
        "sha": moment.hash[:40],
        "title": "2 of 214 tests failed",
        "url": f"https://ci.example/builds/{moment.number}",
        "author": "ann",
    }
    return {"build": ({}, build)}


BODIES: Mapping[str, Callable[[Moment], Made]] = MappingProxyType(
    {
        "github": github,
        "gitlab": gitlab,
        "gitea": gitea,
        "forgejo": forgejo,
        "slack": slack,
        "stripe": stripe,
        "linear": linear,
        "sentry": sentry,
        "pagerduty": pagerduty,
        "standard": standard,
        "generic": generic,
    }
)
