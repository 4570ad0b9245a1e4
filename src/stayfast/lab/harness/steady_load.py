"""Evenly spaced requests of several tenants to several gateways, and when each was answered, with which status.

An open loop: a request is sent at its instant on an idle connection, or on a new one. The rates may change while it runs.
For proofs that count what is admitted; the bench measures latencies of streams.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import NamedTuple, cast

import httptools

from stayfast.lab.harness.loopback import encode_chat_post, split_address

NO_ANSWER = 0
_IDLE_S = 0.02


class Answered(NamedTuple):
    """One request. `at`: when it was sent, in the loop's seconds."""

    at: float
    gateway: str
    tenant: str
    status: int  # NO_ANSWER: the connection broke
    took_s: float


class _Connection(asyncio.Protocol):
    """One request at a time. The parser calls `on_message_complete`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(NO_ANSWER)

    async def send(self, request: bytes) -> int:
        """The status."""
        if self._transport is None:
            return NO_ANSWER
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class SteadyLoad:
    """`async with SteadyLoad(urls, keys, body) as load`; it sends nothing until `set_rates`."""

    def __init__(self, urls: Mapping[str, str], keys: Mapping[str, str], body: bytes) -> None:
        """urls: base URLs by gateway. keys: API keys by tenant."""
        self.answered: list[Answered] = []
        self._urls = urls
        self._requests = {(gateway, tenant): encode_chat_post(url, body, b"authorization: Bearer %b\r\n" % key.encode())
                          for gateway, url in urls.items() for tenant, key in keys.items()}
        self._rates = dict.fromkeys(urls, 0.0)
        self._idle: dict[str, list[_Connection]] = {gateway: [] for gateway in urls}
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "SteadyLoad":
        for gateway, tenant in self._requests:
            self._spawn(self._send_all(gateway, tenant))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for connections in self._idle.values():
            for connection in connections:
                connection.close()

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Requests a second of each tenant, by gateway; others send nothing."""
        self._rates = {gateway: rates.get(gateway, 0.0) for gateway in self._urls}

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _send_all(self, gateway: str, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            rate = self._rates[gateway]
            if not rate:
                await asyncio.sleep(_IDLE_S)
                due = loop.time()
                continue
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._spawn(self._send(gateway, tenant))

    async def _send(self, gateway: str, tenant: str) -> None:
        loop, idle = asyncio.get_running_loop(), self._idle[gateway]
        at, status = loop.time(), NO_ANSWER
        with suppress(OSError):
            connection = idle.pop() if idle else (await loop.create_connection(
                _Connection, *split_address(self._urls[gateway])))[1]
            status = await connection.send(self._requests[gateway, tenant])
            if status != NO_ANSWER:
                idle.append(connection)
        self.answered.append(Answered(at, gateway, tenant, status, loop.time() - at))
