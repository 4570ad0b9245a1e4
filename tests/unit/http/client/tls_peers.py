"""Peers over TLS: an authority of their own, and a small HTTP/2 server."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection as Machine
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset

from tests.unit.http.client.peers import Caller


class Trust:
    """A certificate authority, its file, and contexts for servers that it vouches for."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca_file)

    def server(self, *protocols: str, host: str = "127.0.0.1") -> ssl.SSLContext:
        """A server's context; `protocols` for ALPN."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(host).configure_cert(context)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


class H2Talk(asyncio.Protocol):
    """The server side of one HTTP/2 connection; answers by itself unless it is set to hold."""

    def __init__(self, server: "H2Server") -> None:
        self.server = server
        self.machine = Machine(H2Configuration(client_side=False))
        self.asked: list[int] = []
        self.resets: dict[int, float] = {}
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.server.talks.append(self)
        self.machine.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.machine.receive_data(data):
            self.act(event)
        self.flush()

    def act(self, event: Event) -> None:
        """One thing that happened."""
        if isinstance(event, RequestReceived):
            self.asked.append(event.stream_id)
        elif isinstance(event, DataReceived):
            self.machine.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamReset):
            self.resets[event.stream_id] = time.monotonic()
        elif isinstance(event, StreamEnded) and not self.server.holds:
            self.answer(event.stream_id)

    def answer(self, stream_id: int) -> None:
        """A whole answer."""
        self.machine.send_headers(stream_id, [(":status", "200")])
        self.machine.send_data(stream_id, b"ok", end_stream=True)
        self.flush()

    def flush(self) -> None:
        """Send what the machine wants sent."""
        self.transport.write(self.machine.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True


class H2Server:
    """Listens, and keeps its connections in order."""

    def __init__(self) -> None:
        self.talks: list[H2Talk] = []
        self.holds = False
        self.port = 0


@contextlib.asynccontextmanager
async def h2_server(tls: ssl.SSLContext | None) -> AsyncIterator[H2Server]:
    """An HTTP/2 server on a free port."""
    served = H2Server()
    server = await asyncio.get_running_loop().create_server(lambda: H2Talk(served), "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for talk in served.talks:
            talk.transport.abort()
        await asyncio.sleep(0.01)


def caller_to(port: int, trust: Trust, **config: Any) -> Caller:
    """A client that trusts our authority."""
    return Caller(port, scheme="https", **{"ca_file": trust.ca_file, **config})
