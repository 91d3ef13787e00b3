"""The hooks' door under fire, for so many requests of each kind: `make fuzz` does the same for as long as one likes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.fuzz.campaign import TWINS, Campaign
from tests.fuzz.places import settings
from tests.system.daemons import Daemon

pytestmark = pytest.mark.system

EXAMPLES = 40


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_nothing_that_is_sent_breaks_the_door(
    engine: str,
    new_daemon: Callable[..., Daemon],
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    database = request.getfixturevalue("postgres_url") if engine == "postgres" else None
    daemon = new_daemon(settings(), database=database).start()
    # The seed is the run's own, which pytest prints: another run draws others.
    campaign = Campaign(daemon, random.Random(random.getrandbits(64)))
    campaign.round(EXAMPLES)
    campaign.close()
    assert campaign.counts["bent deliveries"] >= EXAMPLES
    assert campaign.counts["twins of them, all at once"] >= EXAMPLES * TWINS
    assert campaign.counts["broken wires"] >= EXAMPLES
    assert campaign.counts["cases of schemathesis"] >= EXAMPLES
    # It was no wall that they ran against: many were stored, many refused.
    assert campaign.statuses[202] > EXAMPLES
    assert campaign.statuses[401] > EXAMPLES / 4
    sent = sum(campaign.statuses.values())
    record_property("counted", f"fuzzed on {engine}: {sent} answers, {campaign.counts['events stored']} events stored")
