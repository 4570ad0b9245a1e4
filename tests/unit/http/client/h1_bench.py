"""An HTTP/1.1 connection on a fake transport, fed by hand."""

import asyncio
from collections.abc import Callable

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.h1 import H1Connection
from stayfast.http.client.pool import ConnectionPool
from stayfast.http.client.response import EncodedRequest, HttpResponse, RequestTemplate
from tests.unit.http.client.fakes import FakeTransport, new_pool, start_dial

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Request-Id: a1\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN


class Bench:
    """A connection on a fake transport, taken for one request."""

    def __init__(self, method: str = "POST", max_head_bytes: int = 4096) -> None:
        self.transport = FakeTransport()
        self.pool: ConnectionPool = new_pool()
        self.connection = H1Connection("up", self.transport, self.pool, max_head_bytes, asyncio.get_running_loop())
        start_dial(self.pool)
        self.pool.add_dialed(self.connection)
        self.answer: HttpResponse = self.connection.send_request(request(method))

    def feed(self, *parts: bytes) -> None:
        """Bytes from the peer, one call for each read of the socket."""
        for part in parts:
            self.connection.data_received(part)

    async def body(self) -> bytes:
        """All of the body."""
        parts = []
        while data := await self.answer.read():
            parts.append(data)
        return b"".join(parts)

    async def fault(self) -> Fault | None:
        """How the answer failed; None: it is whole."""
        try:
            await self.answer.wait_head()
            await self.body()
        except UpstreamFailed as failed:
            return failed.fault
        return None


def request(method: str = "POST", headers: list[tuple[str, str]] | None = None, body: bytes = b"{}") -> EncodedRequest:
    """A request."""
    return EncodedRequest(RequestTemplate(method, "/v1/x", [], upstream="up", authority="host:1"), headers or [], body)


def on_bench(check: Callable[[], object]) -> None:
    """Run a coroutine function on a loop of its own."""

    async def run() -> None:
        result = check()
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(run())
