"""The states of test_cancellation_waits.py over real sockets: whatever waits or runs is given back within 50 ms."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from stayfast.compose.system import System
from stayfast.pipeline.stages.admit.admission import Admission
from tests.flow.test_cancellation_sockets import BUSY, EVENT, HEAD, Peer, ask, gateway, n_connecting, until, within_limit

pytestmark = [pytest.mark.sockets, pytest.mark.serial]
SERVER = "server: {{port: 0}}\n"
ONE = SERVER + """
upstreams: {{up: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", probe: false, LIMIT}}}}
routes: {{m: {{upstreams: [up], hedge: {{mode: "off"}}}}}}
"""
QUEUE = ONE.replace("LIMIT", "") + "admission: {{max_in_flight: 1, max_wait_s: 30, target_wait_s: 30}}\n"
LIMIT = ONE.replace("LIMIT", "limit: {{mode: fixed, min: 1, max: 1}}")
TWO = SERVER + """
upstreams:
  up: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", probe: false}}
  other: {{kind: openai, base_url: "http://127.0.0.1:{other}/v1", probe: false}}
"""
RACE = TWO + """
routes:
  m: {{upstreams: [up, other], pick: order, timeouts: {{connect_s: 30}}, hedge: {{mode: race, race_after_s: 0.02}}}}
"""
FALLBACK = TWO + """
routes: {{m: {{upstreams: [up], retry: {{max_attempts: 1}}, on_overrun: {{fallback: [other]}}, hedge: {{mode: "off"}}}}}}
"""
SAYS = HEAD + b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


async def _given_back(system: System) -> None:
    """Nobody holds anything, or waits."""
    admit = system.gateway.admit
    await until(lambda: not any(member.n_in_flight or member.n_waiting for member in system.registry))
    assert not isinstance(admit, Admission) or (admit.places.n_taken, admit.places.n_waiting) == (0, 0)


async def _leave_while_waiting(settings: str, is_waiting: Callable[[System], bool]) -> float:
    """One request holds the only place, another waits for it and leaves; the seconds until it waits no more."""
    peer = Peer(b"")
    upstream = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    async with upstream, gateway(upstream.sockets[0].getsockname()[1], settings) as (system, port):
        holder = await asyncio.to_thread(ask, port, stream=True)
        await peer.asked.wait()
        client = await asyncio.to_thread(ask, port, stream=True)
        await until(lambda: is_waiting(system))
        left_at = time.monotonic()
        client.close()
        await until(lambda: not is_waiting(system))
        took_s = time.monotonic() - left_at
        assert peer.n_asked == 1
        holder.close()
        await _given_back(system)
    return took_s


def test_client_hang_up_over_sockets_in_the_queue() -> None:
    def is_waiting(system: System) -> bool:
        assert isinstance(system.gateway.admit, Admission)
        return system.gateway.admit.places.n_waiting > 0

    within_limit(lambda: uvloop.run(_leave_while_waiting(QUEUE, is_waiting)))


def test_client_hang_up_over_sockets_at_a_full_upstream() -> None:
    def is_waiting(system: System) -> bool:
        return any(member.n_waiting for member in system.registry)

    within_limit(lambda: uvloop.run(_leave_while_waiting(LIMIT, is_waiting)))


async def _leave(settings: str, first: bytes, second: bytes, when: Callable[[socket.socket, Peer], Awaitable[None]], *,
                 is_first_over: bool = False) -> float:
    """Two upstreams; the seconds from hanging up until both have seen their connections close."""
    peers = Peer(first), Peer(second)
    servers = [await asyncio.start_server(peer.talk, "127.0.0.1", 0) for peer in peers]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    async with servers[0], servers[1], gateway(ports[0], settings, other=ports[1]) as (system, port):
        client = await asyncio.to_thread(ask, port, stream=True)
        await peers[1].asked.wait()
        await when(client, peers[0])
        left_at = time.monotonic()
        client.close()
        await _given_back(system)
        took_s = time.monotonic() - left_at
        for peer in peers[is_first_over:]:
            await asyncio.wait_for(peer.closed.wait(), 20.0)
            took_s = max(took_s, peer.closed_at - left_at)
        assert [peer.n_asked for peer in peers] == [1, 1]
    return took_s


async def _at_once(_: socket.socket, __: Peer) -> None:
    """When the second has been asked."""


async def _loser_closed(client: socket.socket, loser: Peer) -> None:
    """When content of the second has come, and with it the first one's end."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    got = b""
    while b'"hi"' not in got:
        got += await loop.sock_recv(client, 65536)
    came_at = time.monotonic()
    await asyncio.wait_for(loser.closed.wait(), 20.0)
    assert loser.closed_at - came_at < 0.5


@pytest.mark.parametrize(("settings", "first", "second", "when", "is_first_over"), [
    (RACE, HEAD, HEAD, _at_once, False), (RACE, b"", HEAD, _at_once, False), (RACE, HEAD, SAYS, _loser_closed, False),
    (FALLBACK, BUSY, HEAD, _at_once, True)],
    ids=["two_attempts", "two_before_a_head", "second_won", "fallback"])
def test_client_hang_up_over_sockets_during_attempts_closes_both_connections(settings: str, first: bytes, second: bytes,
                                                                             when: Callable[[socket.socket, Peer], Awaitable[None]], is_first_over: bool) -> None:
    within_limit(lambda: uvloop.run(_leave(settings, first, second, when, is_first_over=is_first_over)))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of connections")
@pytest.mark.parametrize("answer", [b"", SAYS], ids=["both_open", "second_won"])
def test_handshake_of_a_lost_attempt_ends_over_sockets(answer: bytes) -> None:
    """A handshake hangs while another attempt runs or has won: its socket is closed when it has lost or the client has left.
    """
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
            peer = Peer(answer)
            server = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
            other = server.sockets[0].getsockname()[1]
            async with server, gateway(port, RACE, other=other) as (system, gateway_port):
                client = await asyncio.to_thread(ask, gateway_port, stream=True)
                await peer.asked.wait()
                if not answer:
                    assert n_connecting(port) == n_before + 1
                began_at = time.monotonic()
                if not answer:
                    client.close()
                await until(lambda: n_connecting(port) == n_before)
                took_s = time.monotonic() - began_at
                client.close()
                await _given_back(system)
                with suppress(TimeoutError):
                    await asyncio.wait_for(peer.closed.wait(), 20.0)
                assert peer.closed.is_set()
                return took_s

    within_limit(lambda: uvloop.run(main()))
