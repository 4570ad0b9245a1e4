"""A client disconnects, or stops reading: in every state the request ends at once, and buffers stay bounded."""

import asyncio
import json
from collections.abc import Callable

import pytest
import uvloop

from stayfast.core.clock import SystemClock
from stayfast.core.types import Request
from stayfast.http.server.connection import HIGH_WATER_BYTES
from stayfast.http.server.parser import READ_AHEAD_BYTES
from stayfast.server.config import ServerConfig
from tests.server.fakes import (
    CHAT,
    STREAM,
    Client,
    FakeBackend,
    FakeGateway,
    Running,
    Step,
    eventually,
    post,
    record_overrun_parsers,
    record_transports,
    serving,
)

pytestmark = pytest.mark.sockets

WITHIN_S = 0.5  # an event, no time-out; 50 ms are tests/flow/test_cancellation_sockets.py's, with more than one try


async def forever(request: Request) -> None:
    """A gateway that never gets to a first token."""
    await asyncio.Event().wait()


def after(*steps: Step) -> Callable[[Request], list[Step]]:
    """A script that plays these steps and then hangs."""

    async def hang() -> None:
        await asyncio.Event().wait()

    return lambda request: [*steps, hang]


_HALF_WAY = [
    ("waiting, whole", CHAT, FakeGateway(before=forever)),
    ("waiting, stream", STREAM, FakeGateway(before=forever)),
    ("first token, whole", CHAT, FakeGateway(after(b"part"))),
    ("first token, stream", STREAM, FakeGateway(after())),
    ("mid-stream", STREAM, FakeGateway(after(b"data: a\n\n"))),
]


@pytest.mark.parametrize("leave", ["close", "half-close", "reset"])
@pytest.mark.parametrize(("state", "body", "gateway"), _HALF_WAY)
def test_disconnect_cancels_request_at_once(state: str, body: bytes, gateway: FakeGateway, leave: str) -> None:
    """FIN or RST, whatever the state: the Task is gone and the reply closed at once."""
    gateway.seen.clear()
    gateway.replies.clear()
    gateway.cancelled_at.clear()

    async def main() -> None:
        async with serving(FakeBackend(gateway=gateway)) as running:
            client = await running.connect()
            client.send(post(body))
            await begun(running, client, state)
            left_at = SystemClock().now()
            {"close": client.leave, "half-close": client.writer.write_eof, "reset": client.reset}[leave]()
            await eventually(lambda: len(running.server.http.tasks) == 0, within_s=1)
            assert SystemClock().now() - left_at < WITHIN_S
            assert len(gateway.cancelled_at) + sum(reply.is_closed for reply in gateway.replies) == 1
            client.reset()
            await eventually(lambda: not running.server.http.connections)

    uvloop.run(main())


@pytest.mark.parametrize("leave", ["close", "half-close", "reset"])
@pytest.mark.parametrize(("state", "body", "gateway"), _HALF_WAY)
def test_disconnect_is_noticed_behind_pipelined_bytes(state: str, body: bytes, gateway: FakeGateway, leave: str) -> None:
    """A client that pipelines megabytes behind a running answer and then goes has gone as well."""
    gateway.seen.clear()
    gateway.replies.clear()
    gateway.cancelled_at.clear()

    async def main() -> None:
        async with serving(FakeBackend(gateway=gateway)) as running:
            client = await running.connect()
            client.send(post(body))
            await begun(running, client, state)
            client.send(post() * (40 * READ_AHEAD_BYTES // len(post())))
            await client.writer.drain()
            {"close": client.leave, "half-close": client.writer.write_eof, "reset": client.reset}[leave]()
            took_s = await eventually(lambda: len(running.server.http.tasks) == 0, within_s=2)
            assert took_s < WITHIN_S
            assert len(gateway.cancelled_at) + sum(reply.is_closed for reply in gateway.replies) == 1
            client.reset()
            await eventually(lambda: not running.server.http.connections)

    uvloop.run(main())


async def begun(running: Running, client: Client, state: str) -> None:
    """Return once the request is in the state to be left."""
    await eventually(lambda: len(running.backend.gateway.seen) == 1)
    if state == "mid-stream":
        await client.until(b"data: a\n\n")


def test_disconnect_drops_queued_requests() -> None:
    """What was pipelined behind the running one is never served."""

    async def main() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(before=forever))) as running:
            client = await running.connect()
            client.send(post() * 5)
            await eventually(lambda: len(running.backend.gateway.seen) == 1)
            client.reset()
            await eventually(lambda: not running.server.http.connections)
            await asyncio.sleep(0.01)
            assert len(running.backend.gateway.seen) == 1

    uvloop.run(main())


def test_slow_reader_pauses_upstream_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 MiB, no more is pulled than the sockets and one buffer hold; after it reads again, it gets it all."""
    chunk = b"data: " + b"x" * 16_000 + b"\n\n"
    n_chunks = 4096
    transports = record_transports(monkeypatch)

    async def main() -> None:
        backend = FakeBackend(gateway=FakeGateway(lambda request: [chunk] * n_chunks))
        async with serving(backend) as running:
            client = await running.connect()
            client.writer.transport.set_write_buffer_limits(high=0)
            client.pause_reading()
            client.send(post(STREAM))
            await eventually(lambda: len(backend.gateway.replies) == 1)
            await settled(lambda: backend.gateway.replies[0].n_pulled)
            assert transports[0].get_write_buffer_size() <= HIGH_WATER_BYTES + len(chunk) + 100
            assert backend.gateway.replies[0].n_pulled < 12_000_000
            client.resume_reading()
            n_read = 0
            async with asyncio.timeout(20):
                while data := await client.reader.read(1 << 20):
                    n_read += len(data)
                    if data.endswith(b"\r\n0\r\n\r\n"):
                        break
            assert n_read > n_chunks * len(chunk)

    uvloop.run(main())


async def settled(reading: Callable[[], int]) -> None:
    """Return once a number has stood still for a while."""
    last, n_same = -1, 0
    async with asyncio.timeout(10):
        while n_same < 10:
            await asyncio.sleep(0.01)
            n_same = n_same + 1 if reading() == last else 0
            last = reading()


def test_slow_reader_is_disconnected_after_write_stall() -> None:
    """write_timeout_s after the last byte it took; its reply is closed."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [b"x" * 100_000] * 1000)
        async with serving(FakeBackend(ServerConfig(port=0, write_timeout_s=0.2), gateway)) as running:
            client = await running.connect()
            client.pause_reading()
            client.send(post(STREAM))
            await eventually(lambda: bool(gateway.replies))
            took_s = await eventually(lambda: gateway.replies[0].is_closed, within_s=5)
            assert took_s > 0.15
            assert not running.server.http.connections
            client.reset()

    uvloop.run(main())


def test_slow_reader_has_the_same_deadline() -> None:
    """The upstream is closed at total_s, long before write_timeout_s; a client that reads again finds the error."""

    async def main() -> None:
        gateway = FakeGateway(lambda request: [b"x" * 100_000] * 1000, total_s=0.3)
        async with serving(FakeBackend(gateway=gateway)) as running:
            client = await running.connect()
            client.pause_reading()
            client.send(post(STREAM))
            await eventually(lambda: bool(gateway.replies))
            took_s = await eventually(lambda: gateway.replies[0].is_closed)
            assert 0.2 < took_s < 1.5
            assert gateway.replies[0].n_pulled < 100_000 * 1000
            client.resume_reading()
            told = await client.rest()
            assert b'"code":"total_s_exceeded"' in told[-400:]
            assert not told.endswith(b"\r\n0\r\n\r\n")

    uvloop.run(main())


def test_slow_reader_pauses_request_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a complete answer waits to be sent, the client's read-ahead is limited as during a running request."""
    overrun = record_overrun_parsers(monkeypatch)

    async def main() -> None:
        gateway = FakeGateway(lambda request: [b"x" * 8_000_000])
        async with serving(FakeBackend(gateway=gateway)) as running:
            client = await running.connect()
            client.pause_reading()
            client.send(post())
            (connection,) = running.server.http.connections
            await eventually(lambda: connection.is_write_buffer_full)
            client.send(post(b"x" * 200_000) * 50)
            await client.writer.drain()
            await eventually(lambda: bool(overrun))
            assert sum(len(inbound.body) for inbound in overrun[0].ready) < 600_000

    uvloop.run(main())


def test_slow_reader_pauses_pipelined_responses() -> None:
    """A client that pipelines and never reads: no further request is served once its buffer is full."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()

    async def main() -> None:
        gateway = FakeGateway(lambda request: [b"x" * 8_000_000])
        async with serving(FakeBackend(gateway=gateway)) as running:
            client = await running.connect()
            client.pause_reading()
            client.send(post(body) * 20)
            await eventually(lambda: bool(gateway.replies))
            await settled(lambda: len(gateway.replies))
            assert len(gateway.replies) <= 2
            client.reset()
            await eventually(lambda: not running.server.http.connections)

    uvloop.run(main())
