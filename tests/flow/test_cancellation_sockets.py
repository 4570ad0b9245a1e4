"""The states of test_cancellation.py over real sockets: the upstream sees its connection close within 50 ms."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from stayfast.compose.system import System
from tests.flow.socket_rig import (
    BUSY,
    EVENT,
    EVENT_STREAM,
    Peer,
    check_within,
    fill_accept_queue,
    gateway,
    n_connecting,
    send_request,
    until,
)

pytestmark = [pytest.mark.sockets, pytest.mark.serial]
LIMIT_S = 0.05
SETTINGS = """
server: {port: 0}
upstreams: {up: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", probe: false}}
routes: {m: {upstreams: [up], timeouts: {total_s: 60, connect_s: 30}, retry: {max_attempts: 3}}}
"""
CACHED = SETTINGS.replace("[up],", "[up], cache: {mode: exact, max_temperature: 1},")


async def leave(answer: bytes, *, stream: bool, when: Callable[[socket.socket, System], Awaitable[None]],
                text: str = SETTINGS) -> float:
    """Send a request, wait for the state, hang up: the seconds until everything is released."""
    peer = Peer(answer)
    upstream = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    url_port = str(upstream.sockets[0].getsockname()[1])
    async with upstream, gateway(text.replace("PORT", url_port)) as (system, port):
        client = await asyncio.to_thread(send_request, port, stream=stream)
        await peer.was_called.wait()
        await when(client, system)
        left_at = time.monotonic()
        client.close()
        (member,) = system.registry
        await until(lambda: member.n_in_flight == 0)
        took_s = time.monotonic() - left_at
        if answer is not BUSY:
            await asyncio.wait_for(peer.closed.wait(), 20.0)
            took_s = max(took_s, peer.closed_at - left_at)
        assert peer.n_requests == 1
    return took_s


async def at_once(_: socket.socket, __: System) -> None:
    """The state is reached when the upstream has the request."""


async def in_mid_stream(client: socket.socket, _: System) -> None:
    """The client has read content."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    received = b""
    while b'"hi"' not in received:
        received += await loop.sock_recv(client, 65536)


@pytest.mark.parametrize(("answer", "stream", "when"), [
    (b"", True, at_once), (EVENT_STREAM, True, at_once), (b"", False, at_once),
    (EVENT_STREAM + b"%x\r\n%s\r\n" % (len(EVENT), EVENT), True, in_mid_stream)],
    ids=["before_head", "before_first_token", "not_streaming", "mid_stream"])
@pytest.mark.parametrize("text", [SETTINGS, CACHED], ids=["no_cache", "cache"])
def test_client_hang_up_over_sockets_closes_the_upstream(
        answer: bytes, stream: bool, when: Callable[[socket.socket, System], Awaitable[None]], text: str) -> None:
    """Within 50 ms; also where a cache makes the call run in a Task of its own."""
    check_within(LIMIT_S, lambda: uvloop.run(leave(answer, stream=stream, when=when, text=text)))


def test_client_hang_up_over_sockets_during_back_off_ends_the_request() -> None:
    async def waiting(_: socket.socket, system: System) -> None:
        (member,) = system.registry
        await until(lambda: member.n_in_flight == 0 and member.n_failed_in_row == 1)

    check_within(LIMIT_S, lambda: uvloop.run(leave(BUSY, stream=True, when=waiting)))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of connections")
def test_client_hang_up_over_sockets_ends_the_handshake() -> None:
    """The socket leaves the table of the kernel within 50 ms."""

    async def main() -> float:
        with ExitStack() as stack:
            port = fill_accept_queue(stack)
            n_before = n_connecting(port)
            async with gateway(SETTINGS.replace("PORT", str(port))) as (system, gateway_port):
                client = await asyncio.to_thread(send_request, gateway_port, stream=True)
                await until(lambda: n_connecting(port) == n_before + 1)
                left_at = time.monotonic()
                client.close()
                await until(lambda: n_connecting(port) == n_before)
                (member,) = system.registry
                assert member.n_in_flight == 0
                return time.monotonic() - left_at

    check_within(LIMIT_S, lambda: uvloop.run(main()))
