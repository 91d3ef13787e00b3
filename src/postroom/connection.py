"""The connection to a daemon: one request and its answer, within a deadline, repeated where that is harmless."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from postroom.address import Address
from postroom.errors import Forbidden, Invalid, NotFound, PostroomError, Unauthenticated, Unavailable, from_dict

TRIES: Final = 4
FIRST_PAUSE_S: Final = 0.05
CONNECT_S: Final = 5.0
# Below the time after which servers close an idle connection, so that a request seldom meets one just closing.
KEEPALIVE_S: Final = 4.0


class Connection:
    """Requests to one daemon; `timeout` in seconds bounds each call in all, `jitter` draws from 0..1."""

    def __init__(
        self,
        address: Address,
        timeout: float,
        jitter: Callable[[], float],
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        if not 0 < timeout < 86_400:
            raise Invalid(f"timeout is {timeout}; expected seconds above 0", field="timeout")
        self.address = address
        self._timeout = timeout
        self._jitter = self.jitter = jitter
        headers = {"accept": "application/json", "user-agent": "postroom-client"}
        if address.token is not None:
            if not address.token.isascii() or not address.token.isprintable():
                raise Invalid("token holds characters that no token has", field="token")
            headers["authorization"] = f"Bearer {address.token}"
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_S)
        self._http = httpx2.AsyncClient(
            base_url=address.base,
            headers=headers,
            # The whole call has one deadline of its own; only the connect is bounded apart.
            timeout=httpx2.Timeout(None, connect=min(CONNECT_S, timeout)),
            # Proxies of the environment have no business between a program and a daemon of its own machine.
            trust_env=False,
            transport=transport
            or httpx2.AsyncHTTPTransport(
                verify=address.base.startswith("https:"), uds=address.socket, limits=limits, trust_env=False
            ),
        )

    async def aclose(self) -> None:
        """Close it; a later call is unavailable."""
        await self._http.aclose()

    @property
    def closed(self) -> bool:
        """Whether it was closed for good."""
        return self._http.is_closed

    @asynccontextmanager
    async def opened(
        self, path: str, query: Sequence[tuple[str, str]], quiet_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The pieces of an answer that goes on, as they come; after `quiet_s` without any it counts as broken.

        Raises Unavailable when it cannot be had, breaks or ends in the middle of a piece, and what a refusal is.
        """
        limits = httpx2.Timeout(None, connect=min(CONNECT_S, self._timeout), read=quiet_s)
        headers = {"accept": "text/event-stream"}
        try:
            async with self._http.stream("GET", path, params=list(query), headers=headers, timeout=limits) as answer:
                if answer.status_code >= 300:
                    await answer.aread()
                    raise self._refusal(answer)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise Unavailable(f"what answers at {self.address} is no stream of Postroom's")
                yield answer.aiter_bytes()
        except httpx2.HTTPError as error:
            raise Unavailable(f"the connection to {self.address} broke: {error or type(error).__name__}") from None
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Unavailable("this client is closed") from error

    async def call(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        key: str | None = None,
        again: bool = False,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """The JSON object that a 2xx answers; any other answer is raised as the error of the family it is.

        `again` says that repeating is harmless: then a broken connection and a 503 are tried anew a few times. A
        connection that could not be made is always tried anew, for nothing was sent. `wait_s` lengthens the deadline.
        """
        headers: dict[str, str] = {}
        if key is not None:
            headers["idempotency-key"] = key
        if content is not None:
            headers["content-type"] = "application/json"
        clock = asyncio.get_running_loop().time
        end = clock() + self._timeout + wait_s
        for turn in range(1, TRIES + 1):
            pause = FIRST_PAUSE_S * 2 ** (turn - 1) * (0.5 + self._jitter())
            harmless = again
            try:
                async with asyncio.timeout_at(end):
                    answer = await self._http.request(method, path, content=content, headers=headers, params=query)
            except TimeoutError:
                raise Unavailable(f"the daemon at {self.address} did not answer in time") from None
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                harmless = True
                fault = Unavailable(f"no daemon answers at {self.address}: {error}; is `postroom serve` running there?")
            except httpx2.HTTPError as error:
                fault = Unavailable(f"the connection to {self.address} broke: {error or type(error).__name__}")
            except RuntimeError as error:
                if not self._http.is_closed:
                    raise
                raise Unavailable("this client is closed") from error
            else:
                if answer.status_code < 300:
                    return self._value(answer)
                refusal = self._refusal(answer)
                if not isinstance(refusal, Unavailable):
                    raise refusal
                fault = refusal
                asked = answer.headers.get("retry-after", "")
                pause = max(pause, float(asked) if asked.isdecimal() and len(asked) < 6 else 0.0)
            if not harmless or turn == TRIES or clock() + pause >= end:
                raise fault
            await asyncio.sleep(pause)
        raise AssertionError("the loop returns or raises")

    def _value(self, answer: httpx2.Response) -> dict[str, Any]:
        try:
            value = json.loads(answer.content)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unavailable(f"what answers at {self.address} is not Postroom: {answer.text[:80]!r}")
        return value

    def _refusal(self, answer: httpx2.Response) -> PostroomError:
        try:
            shown = json.loads(answer.content)["error"]
        except (ValueError, TypeError, KeyError):
            shown = None
        if isinstance(shown, dict):
            return from_dict(shown)
        said = f"{self.address} answered {answer.status_code}: {answer.text[:200]!r}"
        if answer.status_code >= 500:
            return Unavailable(said)
        kinds = {401: Unauthenticated, 403: Forbidden, 404: NotFound}
        return kinds.get(answer.status_code, PostroomError)(said)
