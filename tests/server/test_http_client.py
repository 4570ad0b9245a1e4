"""The HTTP client on real sockets: keep-alive, limits, time-outs, stale connections, back-pressure."""

import asyncio
import contextlib
import socket
import time
from typing import Any

import pytest

from stayfast.core.errors import Fault, Shed, UpstreamFailed
from stayfast.core.events import ConnectionOpened, ConnectionReused
from stayfast.http.client.dialer import DialedConnection, Dialer
from stayfast.http.client.h1 import HIGH_WATER
from stayfast.http.client.response import HttpResponse
from tests.unit.http.client.peers import OK, PROMPT_S, Caller, deaf, listening, on_sockets, until, whole

pytestmark = pytest.mark.sockets


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_keep_alive(loop: str) -> None:
    """The second request goes out on the first one's connection, and the facts say so."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            assert caller.counts == (1, 0)
            sending = caller.send(body=b"second")
            assert (await talk.request()).endswith(b"\r\n\r\nsecond")
            assert caller.counts == (0, 1)
            talk.say(OK)
            response = await sending
            assert (response.status, response.headers) == (200, {"content-length": "2"})
            assert await whole(response) == b"ok"
            opened, reused = caller.sink.facts
            assert isinstance(opened, ConnectionOpened)
            assert (opened.upstream, opened.http_version, opened.tls, opened.tls_resumed) == ("up", "1.1", False, False)
            assert 0 < opened.handshake_s < 5
            assert opened.connect_s is not None
            assert 0 < opened.connect_s <= opened.handshake_s
            assert isinstance(reused, ConnectionReused)
            assert repr(caller.client) == "<HttpClient up: 0 busy, 1 idle, 0 connecting, 0 waiting, h1>"
            caller.client.close()
            assert caller.counts == (0, 0)
            assert await talk.left() < PROMPT_S

    on_sockets(main, loop=loop)


def test_stream_as_it_comes() -> None:
    """Each chunk is read when it was sent, not when the answer ends; all that is there comes in one read."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = caller.send()
            talk = await peer.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            response = await sending
            for word in (b"one", b"two"):
                talk.say(b"3\r\n" + word + b"\r\n")
                assert await response.read() == word
            talk.say(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
            assert await response.read() == b"ab"
            assert await response.read() == b""
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
])
def test_not_used_again(answer: bytes) -> None:
    """After `Connection: close`, or with bytes behind the answer, the next request opens a new connection."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            first = await caller.ask(peer, answer)
            assert caller.counts == (0, 0)
            assert await first.left() < PROMPT_S
            await caller.ask(peer)
            caller.client.close()

    on_sockets(main)


def test_closed_while_idle() -> None:
    """A connection that the server closes while idle leaves the pool."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            talk.hang_up()
            await until(lambda: caller.counts == (0, 0))
            await caller.ask(peer)
            assert len(caller.sink.facts_of(ConnectionOpened)) == 2
            caller.client.close()

    on_sockets(main)


def test_stale_connection_is_replaced_once() -> None:
    """A pooled connection that closes before one byte is replaced; a fresh one that does the same is a failure."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            sending = caller.send(body=b"again")
            await talk.request()
            talk.hang_up()
            second = await peer.accept()
            assert (await second.request()).endswith(b"again")
            second.hang_up()
            with pytest.raises(UpstreamFailed) as failed:
                await sending
            assert failed.value.fault is Fault.RESET
            assert caller.counts == (0, 0)
            assert peer.n_arrived == 0

    on_sockets(main)


@pytest.mark.parametrize(("may_resend", "said"), [(False, b""), (True, b"HTTP/1.1 2")])
def test_never_sent_twice(may_resend: bool, said: bytes) -> None:
    """Without leave, or after one byte of an answer, a closed connection is a failure and nothing is sent again."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            sending = caller.send(may_resend=may_resend)
            await talk.request()
            talk.say(said)
            await talk.writer.drain()
            talk.writer.close()
            with pytest.raises(UpstreamFailed) as failed:
                await sending
            assert failed.value.fault is Fault.RESET
            assert peer.n_arrived == 0
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_limit_and_waiting() -> None:
    """Beyond max_connections a request waits for a free one, in vain until connect_by or until one is released."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port, max_connections=1)
            first = caller.send()
            talk = await peer.accept()
            with pytest.raises(Shed, match="every connection to upstream up is in use") as shed:
                await caller.send(within_s=0.05)
            assert (shed.value.status, shed.value.code, shed.value.retry_after_s) == (503, "upstream_pool_full", 1.0)
            gives_up, patient = caller.send(), caller.send()
            await asyncio.sleep(0.01)
            gives_up.cancel()
            await asyncio.wait([gives_up])
            assert await caller.exchange(talk, first) == b"ok"
            assert await caller.exchange(talk, patient) == b"ok"
            assert caller.counts == (1, 0)
            assert peer.n_arrived == 0
            caller.client.close()

    on_sockets(main)


def test_refused() -> None:
    """Nobody listens: CONNECT, naming host and port and nothing of the request."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        caller = Caller(port)
        with pytest.raises(UpstreamFailed, match=r"^upstream up cannot be reached: Connection refused") as failed:
            await caller.send(body=b"secret")
        assert failed.value.fault is Fault.CONNECT
        assert failed.value.detail == f"127.0.0.1:{port}: ECONNREFUSED"
        assert caller.counts == (0, 0)

    on_sockets(main)


def test_unknown_host() -> None:
    """A name that does not resolve: CONNECT."""

    def lookup(*args: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    async def main() -> None:
        caller = Caller(80, host="nowhere.test", lookup=lookup)
        with pytest.raises(UpstreamFailed, match=r"^upstream up cannot be resolved: Name or service") as failed:
            await caller.send()
        assert failed.value.fault is Fault.CONNECT

    on_sockets(main)


def test_reader_that_stops() -> None:
    """A reader that stops holds a bounded part of an endless answer; the rest waits at the peer."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            sending = caller.send()
            talk = await peer.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n")
            response = await sending
            talk.say(bytes(60_000_000))
            assert isinstance(response, HttpResponse)
            await until(lambda: response.n_unread > HIGH_WATER)
            assert response.n_unread <= HIGH_WATER + 262_144
            assert len(await whole(response)) == 60_000_000
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


@pytest.mark.parametrize("n_bytes", [100_000, 8_000_000])
def test_large_request(n_bytes: int) -> None:
    """A large body arrives whole at a peer that reads slowly."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            body = bytes(range(250)) * (n_bytes // 250)
            sending = caller.send(body=body)
            talk = await peer.accept()
            await asyncio.sleep(0.01)
            assert (await talk.request()).endswith(b"\r\n\r\n" + body)
            talk.say(OK)
            assert await whole(await sending) == b"ok"
            caller.client.close()

    on_sockets(main)


@pytest.mark.parametrize("is_deaf", [False, True])
def test_second_family(monkeypatch: pytest.MonkeyPatch, is_deaf: bool) -> None:
    """When the first family's address refuses or does not answer, the second one's is used, within its head start."""
    monkeypatch.setattr("stayfast.http.client.dialer.HEAD_START_S", 1.0)

    def lookup(*args: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]

    async def main() -> None:
        try:
            served = listening(host="::1")
            peer = await served.__aenter__()
        except OSError:
            pytest.skip("no IPv6 on loopback")
        with deaf("127.0.0.2", peer.port) if is_deaf else contextlib.nullcontext():
            caller = Caller(peer.port, host="both.test", lookup=lookup)
            began_at = time.monotonic()
            await caller.ask(peer)
            assert (time.monotonic() - began_at >= 0.95) is is_deaf
            caller.client.close()
        await served.__aexit__(None, None, None)

    on_sockets(main)


def test_keepalive_ends() -> None:
    """An idle connection is closed by us after keepalive_s."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port, keepalive_s=0.05)
            talk = await caller.ask(peer)
            assert 0.03 < await talk.left() < 1
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_socket_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Nagle delay, and a dead peer is noticed."""
    dialed: list[DialedConnection] = []
    open_connection = Dialer.open

    async def record(dialer: Dialer) -> DialedConnection:
        dialed.append(await open_connection(dialer))
        return dialed[-1]

    monkeypatch.setattr(Dialer, "open", record)

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port, tcp_keepalive_s=30)
            await caller.ask(peer)
            sock = dialed[0].transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            caller.client.close()

    on_sockets(main)
