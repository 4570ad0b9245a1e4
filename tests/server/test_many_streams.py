"""More than a thousand streams to one upstream, and the memory that closed connections leave."""

import asyncio
import gc
from collections.abc import Iterator

import pytest
import uvloop

from stayfast.http.client.h1 import H1Connection
from stayfast.http.descriptors import raise_descriptor_limit
from stayfast.http.server.parser import RequestParser
from stayfast.settings import HttpUpstream
from tests.server.fakes import FakeBackend, FakeGateway, eventually, post, serving
from tests.unit.http.client.peers import Caller, listening, on_sockets

pytestmark = pytest.mark.sockets
N_CALLS, N_AT_A_TIME = 1200, 50


def n_alive(kind: type) -> int:
    """Objects of this class that the collector knows of."""
    return sum(type(one) is kind for one in gc.get_objects())


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Only what reference counts free is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_upstream_has_no_default_connection_limit() -> None:
    """A thousand and more calls at a time go out, each on its connection; all are let go without the collector's help."""
    assert HttpUpstream(kind="openai", base_url="http://127.0.0.1:1").max_connections is None

    raise_descriptor_limit()  # each call takes two: of the caller and of its peer

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            calls: list[asyncio.Future[object]] = []
            async with asyncio.timeout(60):
                while len(calls) < N_CALLS:  # by so many as fit into the listener's backlog
                    calls += [asyncio.ensure_future(caller.send()) for _ in range(N_AT_A_TIME)]
                    for _ in range(N_AT_A_TIME):
                        await peer.accept()
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            caller.client.close()

    on_sockets(main)


def test_closed_connections_release_their_parsers(no_collection: None) -> None:
    """Of clients and to upstreams: a parser and its connection refer to each other no more."""
    before = n_alive(RequestParser), n_alive(H1Connection)

    async def clients() -> None:
        async with serving(FakeBackend(gateway=FakeGateway(lambda request: [b"{}"]))) as running:
            for _ in range(20):
                client = await running.connect()
                client.send(post())
                await client.answer()
                client.reset()
            await eventually(lambda: not running.server.http.connections)

    async def upstreams() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            for _ in range(20):
                call = asyncio.ensure_future(caller.send())
                talk = await peer.accept()
                await talk.request()
                call.cancel()
                await asyncio.wait([call])
                del call
                assert await talk.left() < 5

    uvloop.run(clients())
    on_sockets(upstreams)
    assert (n_alive(RequestParser), n_alive(H1Connection)) == before
