"""What the operations of protocol 0.1 take: their fields by name and type; bounds belong to the services (DESIGN §9)."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from postroom.doors.http.fields import Asked, Whole


class Operation(Asked):
    """A request's own fields; those of a later minor version are passed over (T8)."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Ping(Operation):
    """Who answers, and what it can do (T5, T7)."""

    protocol: str


class Endpoints(Operation):
    """Which endpoints are wanted; without `live` both (T38)."""

    target_repo: str | None = None
    live: bool | None = None


class Send(Operation):
    """A message for the one live endpoint of a repository (T13)."""

    client_id: str
    idempotency_key: str
    target_repo: str
    body: str
    correlation_id: str | None = None
    sender_repo: str | None = None
    endpoint_id: str | None = None
    provenance: str | None = None
    metadata: dict[str, Any] | None = None


class OfDelivery(Operation):
    """Which message is looked at, acknowledged or retried; `endpoint_id` where several got it (T40, T42, T43, RULINGS 30)."""

    message_id: str
    endpoint_id: str | None = None


class History(Operation):
    """Which messages are wanted, newest first (T41)."""

    target_repo: str | None = None
    endpoint_id: str | None = None
    client_id: str | None = None
    state: str | None = None
    cursor: str | None = None
    limit: Whole | None = None


class Register(Operation):
    """A place that takes messages; `address` in its carrier's own words."""

    carrier: str
    address: dict[str, Any]
    repositories: list[str] | None = None
    name: str | None = None
    queues: list[str] | None = None
    channels: list[str] | None = None
    ack_mode: str | None = None
    delivery_max_attempts: Whole | None = None
    spill: bool = False
    rings: bool = True
    pid: Whole | None = None


class OfEndpoint(Operation):
    """Which endpoint gives a sign of life, or ends."""

    endpoint_id: str
