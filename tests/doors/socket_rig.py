"""The socket's door over a store of a test's own, on a real Unix socket, with a gita registry and places for terminals."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from postroom.carriers.whereabouts import Whereabouts
from postroom.doors.socket.capture import Capture
from postroom.doors.socket.lines import Lines
from postroom.doors.socket.operations import SocketDoor
from postroom.endpoint import ANY_REACH, CarrierKind
from postroom.errors import Invalid
from postroom.message import Delivery, Written
from postroom.services.gita import GitaRegistry
from postroom.store.sqlite import SqliteEngine
from tests.offices import Bench

SECONDS = 20.0
TARGETS = ("alpha", "beta", "other/gamma", "coordination-engine")


class Http(asyncio.Protocol):
    """What stands for the HTTP side: it answers whatever comes with what came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP " + data)
        self._transport.close()


class SocketRig:
    """A served socket; `ask` has one operation, `raw` any bytes."""

    def __init__(self, engine: SqliteEngine, **lines: Any) -> None:
        # A socket's path has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pr-"))
        self.path = self.folder / "s"
        self.bench = Bench(engine)
        self.office = self.bench.office
        self.registry_file = self.folder / "gita" / "repos.csv"
        self.capture = Capture(self.folder / "protocol.jsonl", lambda: 1_769_860_800_000)
        self.away: str | None = None
        self.door = SocketDoor(
            post=self.office.post,
            receipts=self.office.receipts,
            registry=self.office.registry,
            gita=GitaRegistry(self.registry_file),
            place=self._place,
            capture=self.capture,
            away=lambda: self.away,
        )
        self.lines = Lines(self.door.answer, **lines)
        self._others = Whereabouts()
        self._server: asyncio.Server | None = None

    async def open(self) -> Self:
        """Register the repositories and serve."""
        self.register_repositories(*TARGETS)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: self.lines.protocol(Http), str(self.path), backlog=1024)
        return self

    async def close(self) -> None:
        """Stop, and forget."""
        assert self._server is not None
        self._server.close()
        await self.lines.close(1.0)
        self.capture.close()
        shutil.rmtree(self.folder)

    def register_repositories(self, *slugs: str) -> None:
        """Write the registry as gita does."""
        self.registry_file.parent.mkdir(exist_ok=True)
        rows = []
        for slug in slugs:
            (self.folder / "repos" / slug / ".git").mkdir(parents=True, exist_ok=True)
            rows.append(f"{self.folder / 'repos' / slug},{slug},,\r\n")
        self.registry_file.write_bytes("".join(rows).encode())

    def _place(self, kind: CarrierKind, address: Mapping[str, Any], name: str | None) -> tuple[Any, str, str]:
        if kind is not CarrierKind.TMUX:
            return self._others(kind, address, name)
        pane = address.get("pane")
        if not isinstance(pane, str):
            raise Invalid("address.pane is expected to be a pane's id like %3", field="address.pane")
        return {"pane": pane}, f"tmux:s:1:2:{pane}", ANY_REACH

    async def raw(self, sent: bytes, *, eof: bool = False) -> bytes:
        """What comes back for these bytes, until the other side is done."""
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(self.path))
            try:
                writer.write(sent)
                if eof:
                    writer.write_eof()
                return await reader.read()
            finally:
                writer.close()

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to an operation, whatever it says."""
        return self.told(await self.raw(json.dumps({"op": op, **fields}).encode() + b"\n"))

    async def done(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to an operation that must be done."""
        answer = await self.ask(op, **fields)
        assert answer["ok"] is True, answer
        return answer

    async def refused(self, code: str, op: str, **fields: Any) -> dict[str, Any]:
        """The error of an operation that must be refused with this code."""
        return self.error(await self.ask(op, **fields), code)

    @staticmethod
    def told(raw: bytes) -> dict[str, Any]:
        """An answer that must be one JSON object on one line."""
        assert raw.endswith(b"\n"), raw
        assert raw.count(b"\n") == 1, raw
        answer = json.loads(raw)
        assert isinstance(answer, dict)
        assert set(answer) == {"ok", "error"} or answer["ok"] is True
        return answer

    @staticmethod
    def error(answer: Mapping[str, Any], code: str) -> dict[str, Any]:
        """The error of an answer that must be one."""
        assert answer["ok"] is False, answer
        error: dict[str, Any] = answer["error"]
        assert error["code"] == code, error
        assert error["message"]
        return error

    async def pane(self, number: int, *repositories: str, **more: Any) -> str:
        """Register a terminal's pane: its endpoint's id."""
        asked = {"carrier": "tmux", "address": {"pane": f"%{number}"}, "repositories": list(repositories), **more}
        return str((await self.done("register", **asked))["endpoint_id"])

    async def send(self, **fields: Any) -> dict[str, Any]:
        """Send what must be taken."""
        return await self.done("send", **wake(**fields))

    async def carry(self, number: int, outcome: Written = Written.WRITTEN, reason: str | None = None) -> Delivery:
        """Lease what is first at a pane, and settle it, as its courier does."""
        parcel = await self.office.dispatch.lease(f"tmux:s:1:2:%{number}", [ANY_REACH])
        assert parcel is not None, f"nothing is ready at %{number}"
        settled = await self.office.dispatch.settle(parcel, outcome, reason)
        assert settled is not None
        return settled

    async def count(self) -> int:
        """How many messages there are."""
        return int((await self.bench.rows("select count(*) from messages"))[0][0])

    async def well(self) -> None:
        """The door serves as before."""
        assert (await self.done("ping", protocol="0.1"))["service"] == "postroom"


def wake(**fields: Any) -> dict[str, Any]:
    """What a coordination engine sends, with every field of the contract; None leaves a field out."""
    asked = {
        "protocol": "0.1",
        "client_id": "coordination-engine",
        "idempotency_key": "lease-1",
        "correlation_id": "trigger-1",
        "sender_repo": "coordination-engine",
        "target_repo": "alpha",
        "provenance": "coordination_engine",
        "metadata": {"lease_id": "lease-1", "trigger_id": "trigger-1"},
        "body": "Please look at the failing build.",
        **fields,
    }
    return {name: value for name, value in asked.items() if value is not None}
