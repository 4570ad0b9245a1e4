"""The states of test_cancellation.py, once each over real sockets: the upstream sees its connection close within 50 ms."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import uvloop

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.settings import SettingsText, load_settings

pytestmark = [pytest.mark.sockets, pytest.mark.serial]
LIMIT_S = 0.05
N_TRIES = 5
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
         b'[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n')
BUSY = b"HTTP/1.1 503 Busy\r\nretry-after: 20\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
SETTINGS = """
server: {{port: 0}}
upstreams: {{up: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", probe: false}}}}
routes: {{m: {{upstreams: [up], timeouts: {{total_s: 60, connect_s: 30}}, retry: {{max_attempts: 3}}}}}}
"""
CACHED = SETTINGS.replace("[up],", "[up], cache: {{mode: exact, max_temperature: 1}},")


@dataclass
class Peer:
    """An upstream that says `answer` to every request and then nothing; knows when its connections closed."""

    answer: bytes
    n_asked: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float = 0.0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            n_bytes = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(n_bytes)
            self.n_asked += 1
            self.asked.set()
            writer.write(self.answer)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a reset is as good an end as any
        finally:
            self.closed_at = time.monotonic()
            self.closed.set()
            writer.close()


@asynccontextmanager
async def gateway(port: int, text: str = SETTINGS, **ports: int) -> AsyncIterator[tuple[System, int]]:
    """A whole gateway in this process, in front of an upstream on `port`, and of others; its system and its own port."""
    settings = load_settings(SettingsText("test", text.format(port=port, **ports)), {}, kinds=KINDS)
    clock = SystemClock()
    observers = Observers(settings, clock)
    system = build(settings, observers, {}, clock, Random(1))
    errors: list[BaseException] = []
    host = ServerHooks(clock=clock, sink=observers.sink, entropy=b"12345678", version="0", on_error=errors.append,
                on_listening=lambda _: None, on_reload=lambda: None, on_draining=lambda: None)
    server = GatewayServer(ActiveSystem(system), host)
    await server.listen()
    try:
        yield system, server.addresses()[0][1]
    finally:
        server.close()
        system.registry.close()
        await server.app.tasks.wait_until_empty(1.0)
    assert errors == []


def ask(port: int, *, stream: bool) -> socket.socket:
    """A client that has sent its request."""
    body = b'{"model":"m","stream":%s,"messages":[{"role":"user","content":"x"}]}' % (b"true" if stream else b"false")
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                   b"content-length: %d\r\n\r\n%s" % (len(body), body))
    return client


def within_limit(once: Callable[[], float]) -> None:
    """The state is left within the limit; a machine that starves this process may spoil a try, not all of them."""
    took_s = []
    for _ in range(N_TRIES):
        took_s.append(once())
        if took_s[-1] < LIMIT_S:
            return
    raise AssertionError(f"took {took_s} s")


async def until(is_so: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.002)


async def leave(answer: bytes, *, stream: bool, when: Callable[[socket.socket, System], Awaitable[None]],
                text: str = SETTINGS) -> float:
    """Ask, wait until the state is reached, hang up; the seconds until everything was given back."""
    peer = Peer(answer)
    upstream = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    async with upstream, gateway(upstream.sockets[0].getsockname()[1], text) as (system, port):
        client = await asyncio.to_thread(ask, port, stream=stream)
        await peer.asked.wait()
        await when(client, system)
        left_at = time.monotonic()
        client.close()
        (member,) = system.registry
        await until(lambda: member.n_in_flight == 0)
        took_s = time.monotonic() - left_at
        if answer is not BUSY:
            await asyncio.wait_for(peer.closed.wait(), 20.0)
            took_s = max(took_s, peer.closed_at - left_at)
        assert peer.n_asked == 1
    return took_s


async def at_once(_: socket.socket, __: System) -> None:
    """The state is reached when the upstream has been asked."""


async def in_mid_stream(client: socket.socket, _: System) -> None:
    """The client has read content."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    got = b""
    while b'"hi"' not in got:
        got += await loop.sock_recv(client, 65536)


@pytest.mark.parametrize(("answer", "stream", "when"), [
    (b"", True, at_once), (HEAD, True, at_once), (b"", False, at_once),
    (HEAD + b"%x\r\n%s\r\n" % (len(EVENT), EVENT), True, in_mid_stream)],
    ids=["before_head", "before_first_token", "not_streaming", "mid_stream"])
@pytest.mark.parametrize("text", [SETTINGS, CACHED], ids=["no_cache", "cache"])
def test_client_hang_up_over_sockets_closes_the_upstream(answer: bytes, stream: bool, when: Callable[[socket.socket, System], Awaitable[None]],
                                                         text: str) -> None:
    """Within 50 ms; also where a cache makes the call run in a Task of its own."""
    within_limit(lambda: uvloop.run(leave(answer, stream=stream, when=when, text=text)))


def test_client_hang_up_over_sockets_during_back_off_ends_the_request() -> None:
    async def waiting(_: socket.socket, system: System) -> None:
        (member,) = system.registry
        await until(lambda: member.n_in_flight == 0 and member.n_failed_in_row == 1)

    within_limit(lambda: uvloop.run(leave(BUSY, stream=True, when=waiting)))


def n_connecting(port: int) -> int:
    """Connections to `port` whose handshake is under way (SYN_SENT in the kernel's table)."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2] == f"0100007F:{port:04X}" and row[3] == "02" for row in rows)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of connections")
def test_client_hang_up_over_sockets_ends_the_handshake() -> None:
    """The socket leaves the table of the kernel within 50 ms."""

    async def main() -> float:
        with ExitStack() as stack:
            full = stack.enter_context(socket.socket())  # its accept queue is full: further handshakes hang
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            for _ in range(3):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            n_before = n_connecting(port)
            async with gateway(port) as (system, gateway_port):
                client = await asyncio.to_thread(ask, gateway_port, stream=True)
                await until(lambda: n_connecting(port) == n_before + 1)
                left_at = time.monotonic()
                client.close()
                await until(lambda: n_connecting(port) == n_before)
                (member,) = system.registry
                assert member.n_in_flight == 0
                return time.monotonic() - left_at

    within_limit(lambda: uvloop.run(main()))
