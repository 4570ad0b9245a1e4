"""The states of test_cancellation_waits.py over real sockets: all that waits or runs is released within 50 ms."""

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
SERVER = "server: {port: 0}\n"
ONE = SERVER + """
upstreams: {up: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", probe: false, LIMIT}}
routes: {m: {upstreams: [up], hedge: {mode: "off"}}}
"""
QUEUE = ONE.replace("LIMIT", "") + "admission: {max_in_flight: 1, max_wait_s: 30, target_wait_s: 30}\n"
LIMIT = ONE.replace("LIMIT", "limit: {mode: fixed, min: 1, max: 1}")
TWO = SERVER + """
upstreams:
  up: {kind: openai, base_url: "http://127.0.0.1:PORT/v1", probe: false}
  other: {kind: openai, base_url: "http://127.0.0.1:OTHER/v1", probe: false}
"""
RACE = TWO + """
routes:
  m: {upstreams: [up, other], pick: order, timeouts: {connect_s: 30}, hedge: {mode: race, race_after_s: 0.02}}
"""
FALLBACK = TWO + """
routes: {m: {upstreams: [up], retry: {max_attempts: 1}, on_overrun: {fallback: [other]}, hedge: {mode: "off"}}}
"""
ONE_EVENT = EVENT_STREAM + b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


def with_ports(settings: str, port: int, other: int) -> str:
    """The settings with the ports of both upstreams."""
    return settings.replace("PORT", str(port)).replace("OTHER", str(other))


async def _check_released(system: System) -> None:
    """No request runs or waits."""
    admit = system.gateway.admit
    await until(lambda: not any(member.n_in_flight or member.n_waiting for member in system.registry))
    assert not isinstance(admit, Admission) or (admit.places.n_taken, admit.places.n_waiting) == (0, 0)


async def _leave_while_waiting(settings: str, is_waiting: Callable[[System], bool]) -> float:
    """One request holds the only place, another one waits and leaves: the seconds until it is out of the queue."""
    peer = Peer(b"")
    upstream = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    async with upstream, gateway(settings.replace("PORT", str(upstream.sockets[0].getsockname()[1]))) as (system, port):
        holder = await asyncio.to_thread(send_request, port, stream=True)
        await peer.was_called.wait()
        client = await asyncio.to_thread(send_request, port, stream=True)
        await until(lambda: is_waiting(system))
        left_at = time.monotonic()
        client.close()
        await until(lambda: not is_waiting(system))
        took_s = time.monotonic() - left_at
        assert peer.n_requests == 1
        holder.close()
        await _check_released(system)
    return took_s


def test_client_hang_up_over_sockets_in_the_queue() -> None:
    def is_waiting(system: System) -> bool:
        assert isinstance(system.gateway.admit, Admission)
        return system.gateway.admit.places.n_waiting > 0

    check_within(LIMIT_S, lambda: uvloop.run(_leave_while_waiting(QUEUE, is_waiting)))


def test_client_hang_up_over_sockets_at_a_full_upstream() -> None:
    def is_waiting(system: System) -> bool:
        return any(member.n_waiting for member in system.registry)

    check_within(LIMIT_S, lambda: uvloop.run(_leave_while_waiting(LIMIT, is_waiting)))


async def _leave(settings: str, first: bytes, second: bytes, when: Callable[[socket.socket, Peer], Awaitable[None]], *,
                 has_first_ended: bool = False) -> float:
    """The seconds from the hang-up until both upstreams have seen their connections close."""
    peers = Peer(first), Peer(second)
    servers = [await asyncio.start_server(peer.talk, "127.0.0.1", 0) for peer in peers]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    async with servers[0], servers[1], gateway(with_ports(settings, *ports)) as (system, port):
        client = await asyncio.to_thread(send_request, port, stream=True)
        await peers[1].was_called.wait()
        await when(client, peers[0])
        left_at = time.monotonic()
        client.close()
        await _check_released(system)
        took_s = time.monotonic() - left_at
        for peer in peers[has_first_ended:]:
            await asyncio.wait_for(peer.closed.wait(), 20.0)
            took_s = max(took_s, peer.closed_at - left_at)
        assert [peer.n_requests for peer in peers] == [1, 1]
    return took_s


async def _when_called(_: socket.socket, __: Peer) -> None:
    """The second upstream has the request."""


async def _when_loser_closed(client: socket.socket, loser: Peer) -> None:
    """Content of the second upstream has come, and the first one is closed."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    received = b""
    while b'"hi"' not in received:
        received += await loop.sock_recv(client, 65536)
    received_at = time.monotonic()
    await asyncio.wait_for(loser.closed.wait(), 20.0)
    assert loser.closed_at - received_at < 0.5


@pytest.mark.parametrize(("settings", "first", "second", "when", "has_first_ended"), [
    (RACE, EVENT_STREAM, EVENT_STREAM, _when_called, False), (RACE, b"", EVENT_STREAM, _when_called, False),
    (RACE, EVENT_STREAM, ONE_EVENT, _when_loser_closed, False),
    (FALLBACK, BUSY, EVENT_STREAM, _when_called, True)],
    ids=["two_attempts", "two_before_a_head", "second_won", "fallback"])
def test_client_hang_up_over_sockets_during_attempts_closes_both_connections(
        settings: str, first: bytes, second: bytes, when: Callable[[socket.socket, Peer], Awaitable[None]],
        has_first_ended: bool) -> None:
    check_within(LIMIT_S, lambda: uvloop.run(_leave(settings, first, second, when, has_first_ended=has_first_ended)))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of connections")
@pytest.mark.parametrize("answer", [b"", ONE_EVENT], ids=["both_open", "second_won"])
def test_handshake_of_a_lost_attempt_ends_over_sockets(answer: bytes) -> None:
    """A handshake hangs while another attempt runs or has won: its socket is closed when it has lost or the client has left.
    """
    async def main() -> float:
        with ExitStack() as stack:
            port = fill_accept_queue(stack)
            n_before = n_connecting(port)
            peer = Peer(answer)
            server = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
            other = server.sockets[0].getsockname()[1]
            async with server, gateway(with_ports(RACE, port, other)) as (system, gateway_port):
                client = await asyncio.to_thread(send_request, gateway_port, stream=True)
                await peer.was_called.wait()
                if not answer:
                    assert n_connecting(port) == n_before + 1
                began_at = time.monotonic()
                if not answer:
                    client.close()
                await until(lambda: n_connecting(port) == n_before)
                took_s = time.monotonic() - began_at
                client.close()
                await _check_released(system)
                with suppress(TimeoutError):
                    await asyncio.wait_for(peer.closed.wait(), 20.0)
                assert peer.closed.is_set()
                return took_s

    check_within(LIMIT_S, lambda: uvloop.run(main()))
