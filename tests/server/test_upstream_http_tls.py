"""The HTTP client over TLS: trust, resumption, ALPN, and HTTP/2 with many requests on one connection."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection as Machine
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import ConnectionOpened, ConnectionReused
from tests.unit.upstreams.peers import OK, PROMPT_S, Caller, Talk, listening, on_sockets, until, whole

pytestmark = pytest.mark.sockets


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


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """One authority for all tests here."""
    return Trust(tmp_path_factory.mktemp("tls"))


class H2Talk(asyncio.Protocol):
    """The server's side of one HTTP/2 connection; answers by itself unless told to hold."""

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


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_resumption(trust: Trust, loop: str) -> None:
    """The second connection resumes the first one's session, and the facts say so."""

    async def main() -> None:
        async with listening(tls=trust.server("http/1.1")) as peer:
            caller = caller_to(peer.port, trust)
            for _ in range(3):
                await caller.ask(peer, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
            opened = caller.sink.of(ConnectionOpened)
            assert [(fact.tls, fact.tls_resumed, fact.http_version) for fact in opened] == [
                (True, False, "1.1"), (True, True, "1.1"), (True, True, "1.1")]
            assert caller.counts == (0, 0)

    on_sockets(main, loop=loop)


def test_keep_alive_over_tls(trust: Trust) -> None:
    """Pooled connections are reused; closing idle ones does not linger."""

    async def main() -> None:
        async with listening(tls=trust.server()) as peer:
            caller = caller_to(peer.port, trust)
            talk = await caller.ask(peer)
            assert await caller.exchange(talk, caller.send(body=b"x" * 300_000)) == b"ok"
            assert len(caller.sink.of(ConnectionReused)) == 1
            caller.client.close()
            assert await talk.left() < PROMPT_S

    on_sockets(main)


@pytest.mark.parametrize(("config", "host", "words"), [
    ({"ca_file": None}, "127.0.0.1", "certificate that is not trusted"),
    ({}, "other.test", "certificate that is not trusted: .*127.0.0.1"),
    ({"ca_file": "/nowhere/ca.pem"}, "127.0.0.1", "ca_file /nowhere/ca.pem cannot be used: No such file"),
])
def test_not_trusted(trust: Trust, config: dict[str, Any], host: str, words: str) -> None:
    """An unknown authority, another name's certificate or a missing file: CONNECT, saying which."""

    async def main() -> None:
        async with listening(tls=trust.server(host=host)) as peer:
            caller = caller_to(peer.port, trust, **config)
            with pytest.raises(UpstreamFailed, match=words) as failed:
                await caller.send()
            assert failed.value.fault is Fault.CONNECT
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_trust_switched_off(trust: Trust) -> None:
    """`verify: false` takes any certificate."""

    async def main() -> None:
        async with listening(tls=trust.server(host="other.test")) as peer:
            caller = caller_to(peer.port, trust, verify=False, ca_file=None)
            await caller.ask(peer)
            caller.client.close()

    on_sockets(main)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_peer_without_tls(trust: Trust, said: bytes) -> None:
    """A peer that does not speak TLS, or hangs up in the handshake: CONNECT."""

    async def main() -> None:
        async with listening() as peer:
            caller = caller_to(peer.port, trust)
            sending = caller.send()
            talk = await peer.accept()
            await talk.reader.read(5)
            talk.say(said)
            talk.writer.close()
            with pytest.raises(UpstreamFailed) as failed:
                await sending
            assert failed.value.fault is Fault.CONNECT
            assert "127.0.0.1" in failed.value.message
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_cancelled_in_the_handshake(trust: Trust, loop: str) -> None:
    """Cancelled or timed out in the handshake, the peer sees it at once and nothing is left."""

    async def main() -> None:
        async with listening() as peer:
            caller = caller_to(peer.port, trust)
            sending = caller.send()
            talk = await peer.accept()
            await talk.reader.readexactly(5)
            sending.cancel()
            assert await talk.left() < PROMPT_S
            assert sending.cancelled()
            with pytest.raises(UpstreamFailed, match="waiting for a new connection") as failed:
                await caller.send(within_s=0.05)
            assert failed.value.fault is Fault.TIMEOUT
            assert await (await peer.accept()).left() < PROMPT_S
            assert repr(caller.client._pool) == "<Pool 0 busy, 0 idle, 0 connecting, 0 waiting>"

    on_sockets(main, loop=loop)


def test_left_in_the_body_over_tls(trust: Trust) -> None:
    """Closing an unfinished answer closes the socket at once, without waiting for the peer's goodbye."""

    async def main() -> None:
        async with listening(tls=trust.server()) as peer:
            caller = caller_to(peer.port, trust)
            sending = caller.send()
            talk = await peer.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhe")
            response = await sending
            assert await response.read() == b"he"
            response.close()
            assert await talk.left() < PROMPT_S
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize(("http", "offered", "version"), [
    ("auto", ("h2", "http/1.1"), "2"), ("2", ("h2",), "2"), ("auto", ("http/1.1",), "1.1"), ("auto", (), "1.1"),
    ("1.1", ("h2", "http/1.1"), "1.1"),
])
def test_negotiation(trust: Trust, http: str, offered: tuple[str, ...], version: str) -> None:
    """ALPN decides between what both sides allow; a peer without ALPN gets HTTP/1.1."""

    async def main() -> None:
        if version == "2":
            async with h2_server(trust.server(*offered)) as served:
                caller = caller_to(served.port, trust, http=http)
                assert await whole(await caller.send()) == b"ok"
                assert repr(caller.client) == "<HttpClient up: 0 busy, 1 idle, h2>"
                caller.client.close()
        else:
            async with listening(tls=trust.server(*offered)) as peer:
                caller = caller_to(peer.port, trust, http=http)
                await caller.ask(peer)
                caller.client.close()
        assert [fact.http_version for fact in caller.sink.of(ConnectionOpened)] == [version]

    on_sockets(main)


def test_http2_demanded(trust: Trust) -> None:
    """`http: "2"` and a peer that does not offer it: CONNECT, saying so."""

    async def main() -> None:
        async with listening(tls=trust.server()) as peer:
            caller = caller_to(peer.port, trust, http="2")
            with pytest.raises(UpstreamFailed, match="does not offer HTTP/2") as failed:
                await caller.send()
            assert failed.value.fault is Fault.CONNECT
            assert caller.counts == (0, 0)

    on_sockets(main)


@pytest.mark.parametrize("is_tls", [True, False])
def test_burst_on_one_connection(trust: Trust, is_tls: bool) -> None:
    """Requests that come at once share one HTTP/2 connection, also while it is being opened."""

    async def main() -> None:
        async with h2_server(trust.server("h2") if is_tls else None) as served:
            caller = caller_to(served.port, trust) if is_tls else Caller(served.port, http="2")
            for response in await asyncio.gather(*(caller.send(body=b"x" * 2000) for _ in range(40))):
                assert await whole(response) == b"ok"
            assert len(served.talks) == 1
            assert len(caller.sink.of(ConnectionOpened)) == 1
            assert len(caller.sink.of(ConnectionReused)) == 39
            assert caller.counts == (1, 0)
            caller.client.close()
            await until(lambda: served.talks[0].is_closed)

    on_sockets(main)


def test_burst_on_http1(trust: Trust) -> None:
    """When the peer turns out to speak HTTP/1.1 only, those that waited for the first connection open their own."""

    async def main() -> None:
        async with listening(tls=trust.server("http/1.1")) as peer:
            caller = caller_to(peer.port, trust)
            sending = [caller.send() for _ in range(5)]

            async def serve(talk: Talk) -> None:
                await talk.request()
                talk.say(OK)

            for _ in sending:
                await serve(await peer.accept())
            assert [await whole(await one) for one in sending] == [b"ok"] * 5
            assert caller.counts == (5, 0)
            caller.client.close()

    on_sockets(main)


def test_cancelled_stream(trust: Trust) -> None:
    """Cancelled before its head, a request's stream is reset at once; the others and the connection go on."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            gone, stays = caller.send(), caller.send()
            await until(lambda: bool(served.talks) and len(served.talks[0].asked) == 2)
            talk = served.talks[0]
            cancelled_at = time.monotonic()
            gone.cancel()
            await until(lambda: bool(talk.resets))
            ((stream_id, reset_at),) = talk.resets.items()
            assert reset_at - cancelled_at < PROMPT_S
            talk.answer(4 - stream_id)
            assert await whole(await stays) == b"ok"
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


def test_goaway_moves_on(trust: Trust) -> None:
    """A request that the peer did not take before its GOAWAY is sent again on a new connection, even if only once may be."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            sending = caller.send(may_resend=False)
            await until(lambda: bool(served.talks) and bool(served.talks[0].asked))
            served.talks[0].machine.close_connection(last_stream_id=0)
            served.holds = False
            served.talks[0].flush()
            assert await whole(await sending) == b"ok"
            assert len(served.talks) == 2
            caller.client.close()

    on_sockets(main)


def test_goaway_every_time(trust: Trust) -> None:
    """A peer that takes nothing is tried twice, no more."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            sending = caller.send()
            for n_tried in (1, 2):
                await until(lambda: len(served.talks) == n_tried and bool(served.talks[-1].asked))  # noqa: B023
                served.talks[-1].machine.close_connection(last_stream_id=0)
                served.talks[-1].flush()
            with pytest.raises(UpstreamFailed, match="did not take the request") as failed:
                await sending
            assert failed.value.fault is Fault.RESET
            assert len(served.talks) == 2

    on_sockets(main)


def test_lost_connection_fails_all(trust: Trust) -> None:
    """A connection that breaks fails all its streams; on a new connection nothing is sent again."""

    async def main() -> None:
        async with h2_server(trust.server("h2")) as served:
            served.holds = True
            caller = caller_to(served.port, trust)
            sending = [caller.send(may_resend=False) for _ in range(3)]
            await until(lambda: bool(served.talks) and len(served.talks[0].asked) == 3)
            served.talks[0].transport.abort()
            for result in await asyncio.gather(*sending, return_exceptions=True):
                assert isinstance(result, UpstreamFailed)
                assert result.fault is Fault.RESET
            assert len(served.talks) == 1
            assert caller.counts == (0, 0)

    on_sockets(main)
