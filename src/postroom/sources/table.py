"""The table of senders: a further one is its own short file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from postroom.sources import generic, gitea, github, gitlab, linear, pagerduty, sentry, slack, standard, stripe
from postroom.sources.options import Options
from postroom.sources.source import Sender

SENDERS: Mapping[str, Callable[[Options], Sender]] = MappingProxyType(
    {
        "github": github.make,
        "gitlab": gitlab.make,
        "gitea": gitea.make,
        "forgejo": gitea.make_forgejo,
        "slack": slack.make,
        "stripe": stripe.make,
        "linear": linear.make,
        "sentry": sentry.make,
        "pagerduty": pagerduty.make,
        "standard": standard.make,
        "generic": generic.make,
    }
)
