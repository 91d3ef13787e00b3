"""The route table: everything under `/v1`, and the two questions that need no token."""

from __future__ import annotations

from postroom.doors.http import (
    channels,
    claims,
    endpoints,
    events,
    inbox,
    messages,
    parcels,
    queues,
    replays,
    rules,
    sources,
    standing,
    stream,
    todos,
    tokens,
)
from postroom.doors.http.openapi import Document
from postroom.doors.http.route import Route


def route_table() -> tuple[Route, ...]:
    """Every route, the hot ones first, with the document that describes them all."""
    routes = (
        *claims.ROUTES,
        *todos.ROUTES,
        *messages.ROUTES,
        *inbox.ROUTES,
        *endpoints.ROUTES,
        *parcels.ROUTES,
        *channels.ROUTES,
        *queues.ROUTES,
        *events.ROUTES,
        *replays.ROUTES,
        *sources.ROUTES,
        *rules.ROUTES,
        *tokens.ROUTES,
        *standing.ROUTES,
        *stream.ROUTES,
    )
    return (*routes, Document(routes).route)
