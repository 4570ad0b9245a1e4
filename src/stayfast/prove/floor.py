"""The least that a proxy in Python can cost: what a gateway's overhead is held against.

It parses each request, puts it on a kept connection to the upstream and copies the answer back as it comes. No deadlines,
no retries, no checks, no logs: not for use. Same event loop, same parser, same machine, same run: what the gateway takes
beyond it is the price of what it does.
"""

import asyncio
import sys
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop


class _Upstream(asyncio.Protocol):
    """A connection to the upstream."""

    def __init__(self, idle: "list[_Upstream]") -> None:
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)
        self.client: _Client | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.transport.write(data)
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.client = None
        self._idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self.client is not None:
            self.client.transport.abort()


class _Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, idle: list[_Upstream], address: tuple[str, int]) -> None:
        self._idle = idle
        self._address = address
        self._parser = httptools.HttpRequestParser(self)
        self._dialing: asyncio.Task[None] | None = None
        self._url = b""
        self._headers: list[bytes] = []
        self._body = b""
        self._upstream: _Upstream | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        request = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (self._parser.get_method(), self._url, b"".join(self._headers), self._body)
        self._headers, self._body = [], b""
        if self._idle:
            self._send(self._idle.pop(), request)
        else:
            self._dialing = asyncio.get_running_loop().create_task(self._dial(request))

    async def _dial(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: _Upstream(self._idle), *self._address)
        self._send(upstream, request)

    def _send(self, upstream: _Upstream, request: bytes) -> None:
        self._upstream = upstream
        upstream.client = self
        upstream.transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upstream is not None and self._upstream.client is self:
            self._upstream.client = None
            self._upstream.transport.abort()


async def _serve(upstream: str) -> None:
    parts = urlsplit(upstream)
    idle: list[_Upstream] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: _Client(idle, (parts.hostname or "", parts.port or 80)), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
