"""A connection that breaks at the worst moment: the request arrives, and its answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Passes bytes on between loopback ports; with `cut` set, the next bytes of an answer are lost with the connection."""

    def __init__(self, port: int) -> None:
        self.cut = False
        self.cuts = 0
        self.url = ""
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._pass(reader, back))
        try:
            while data := await there.read(65536):
                if self.cut:
                    self.cut = False
                    self.cuts += 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            writer.transport.abort()
            back.transport.abort()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    """A proxy before a port, for as long as it is needed."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
