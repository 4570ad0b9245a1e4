"""An HTTP/2 connection against the `h2` library's server side, in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection as Machine
from h2.events import Event
from h2.settings import SettingCodes, Settings

from stayfast.http.client.h2 import H2Connection
from stayfast.http.client.pool import ConnectionPool
from stayfast.http.client.response import EncodedRequest, HttpResponse, RequestTemplate
from tests.unit.http.client.fakes import FakeTransport, SetClock, start_dial

HEAD = [(":status", "200"), ("content-type", "text/event-stream"), ("x-a", "1"), ("x-a", "2")]


class Bench:
    """A client connection and a server machine, wired back to back by `pump`."""

    def __init__(self, *, max_streams: int | None = None, window: int | None = None, split: int = 1 << 30) -> None:
        self.split = split
        self.transport = FakeTransport()
        self.pool = ConnectionPool(1, 10, 50.0, is_shared=True, clock=SetClock())
        self.server = Machine(H2Configuration(client_side=False, header_encoding="utf-8"))
        told = {SettingCodes.MAX_CONCURRENT_STREAMS: max_streams, SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.server.local_settings = Settings(client=False, initial_values={
            code: value for code, value in told.items() if value is not None})
        self.server.initiate_connection()
        self.connection = H2Connection("up", "host:1", self.transport, self.pool, max_head_bytes=65_536,
                                       loop=asyncio.get_running_loop())
        start_dial(self.pool)
        self.pool.add_dialed(self.connection)
        self.connection.unreserve()
        self.events: list[Event] = []

    def request(self, body: bytes = b"{}", headers: list[tuple[str, str]] | None = None) -> HttpResponse:
        """Take a place and send."""
        assert self.pool.try_acquire() is self.connection
        return self.connection.send_request(EncodedRequest(
            RequestTemplate("POST", "/v1/x", [], upstream="up", authority="host:1"), headers or [("A", "b")], body))

    def pump(self) -> None:
        """Exchange bytes until neither side has any."""
        while True:
            written, self.transport.written = self.transport.written, b""
            if written:
                self.events += self.server.receive_data(written)
            data = self.server.data_to_send()
            if not data and not written:
                return
            for start in range(0, len(data), self.split):
                self.connection.data_received(data[start : start + self.split])

    def seen(self, kind: type[Any]) -> list[Any]:
        """Server events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def answer(self, stream_id: int, body: bytes = b"hello") -> None:
        """A whole answer."""
        self.server.send_headers(stream_id, HEAD)
        self.server.send_data(stream_id, body, end_stream=True)
        self.pump()


async def whole(answer: HttpResponse) -> bytes:
    """The body to its end."""
    parts = []
    while data := await answer.read():
        parts.append(data)
    return b"".join(parts)


def on_loop(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a fresh loop."""
    asyncio.run(check())
