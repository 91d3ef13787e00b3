"""Where an endpoint's place is: told by a carrier that can, for what this daemon reaches, and by nobody else."""

from __future__ import annotations

from dataclasses import replace

from postroom.carriers.opencode import OpencodeCarrier
from postroom.carriers.opencode_server import OpencodeServer
from postroom.carriers.whereabouts import Whereabouts
from postroom.endpoint import CarrierKind, Endpoint
from tests.opencode.fake import FakeOpencode


def _session(id_: str) -> Endpoint:
    return Endpoint(
        seq=1,
        id="ep_1",
        name=id_,
        carrier=CarrierKind.OPENCODE,
        address_json="{}",
        target_key=f"opencode:{id_}",
        reach="any",
        ack_mode="injected",
        max_attempts=10,
        spill=False,
        rings=True,
        pid=None,
        created_by="root",
        created_at=0,
        seen_at=0,
        ended_at=None,
    )


async def test_a_session_is_where_its_server_says(fake: FakeOpencode) -> None:
    carrier = OpencodeCarrier([OpencodeServer(fake.url, fake.password)])
    try:
        whereabouts = Whereabouts([carrier])
        fake.session("a", "/home/ann/repo")
        session = "ses_a"
        assert await whereabouts.directory(_session(session)) == "/home/ann/repo"
        assert await whereabouts.directory(_session("ses_unknown")) is None
        assert await whereabouts.directory(replace(_session(session), reach="host:elsewhere:0")) is None
        assert await whereabouts.directory(replace(_session(session), carrier=CarrierKind.INBOX)) is None
        await fake.kill()
        assert await whereabouts.directory(_session("ses_other")) is None
    finally:
        await carrier.close()
