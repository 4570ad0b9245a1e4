"""Writes that do not wait for the end of the loop's turn, on uvloop's transports."""

import asyncio
import socket

import uvloop

from stayfast.http.event_loop import QUIET_S, EarlyWriter
from tests.unit.http.client.fakes import SetClock

HIGH, LOW = 4096, 1024


class Client(asyncio.Protocol):
    """Records whether it may write."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def pause_writing(self) -> None:
        """The write buffer is full."""
        self.seen.append("pause")

    def resume_writing(self) -> None:
        """It has room."""
        self.seen.append("resume")


def arrived(peer: socket.socket) -> bytes:
    """What the peer could read now."""
    try:
        return peer.recv(1 << 20)
    except BlockingIOError:
        return b""


async def connect() -> tuple[asyncio.Transport, Client, socket.socket]:
    """A transport of uvloop and the other end of its socket."""
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    transport, client = await asyncio.get_running_loop().create_connection(Client, sock=ours)
    transport.set_write_buffer_limits(HIGH, LOW)
    return transport, client, peer


def test_early_writer_of_a_quiet_loop_sends_within_the_turn() -> None:
    """The bytes arrive before the callback returns, and the marks are as before."""

    async def check() -> None:
        transport, _, peer = await connect()
        EarlyWriter(SetClock(100.0), HIGH, LOW).write(transport, b"answer")
        assert arrived(peer) == b"answer"
        assert transport.get_write_buffer_limits() == (LOW, HIGH)
        transport.close()
        peer.close()

    uvloop.run(check())


def test_early_writer_of_a_busy_loop_sends_at_the_end_of_the_turn() -> None:
    """A write soon after another one waits for the other callbacks; after a pause it does not."""

    async def check() -> None:
        clock = SetClock(100.0)
        writer = EarlyWriter(clock, HIGH, LOW)
        transport, _, peer = await connect()
        writer.write(transport, b"1")
        clock.at += QUIET_S / 2
        writer.write(transport, b"2")
        assert arrived(peer) == b"1"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert arrived(peer) == b"2"
        clock.at += QUIET_S * 2
        writer.write(transport, b"3")
        assert arrived(peer) == b"3"
        transport.close()
        peer.close()

    uvloop.run(check())


def test_early_writer_with_room_below_the_mark_does_not_pause() -> None:
    """What the socket does not take of a small write waits in the buffer; the protocol may go on writing."""

    async def check() -> None:
        ours, peer = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.setblocking(False)
        transport, client = await asyncio.get_running_loop().create_connection(Client, sock=ours)
        try:
            EarlyWriter(SetClock(100.0), 65_536, 16_384).write(transport, bytes(60_000))
            assert 0 < transport.get_write_buffer_size() < 65_536
            await asyncio.sleep(0.01)
            assert client.seen == []
        finally:
            transport.abort()
            peer.close()

    uvloop.run(check())


def test_early_writer_of_a_slow_reader_keeps_order_and_pauses() -> None:
    """Bytes behind unsent ones wait for them, and the writer is paused until its buffer has room."""

    async def check() -> None:
        clock = SetClock(100.0)
        writer = EarlyWriter(clock, HIGH, LOW)
        transport, client, peer = await connect()
        large = bytes(1 << 20)
        writer.write(transport, large)
        assert client.seen == ["pause"]
        clock.at += QUIET_S * 2
        writer.write(transport, b"end")
        assert transport.get_write_buffer_limits() == (LOW, HIGH)
        found = b""
        while len(found) < len(large) + 3:
            found += arrived(peer)
            await asyncio.sleep(0)
        assert found == large + b"end"
        await asyncio.sleep(0.01)
        assert client.seen == ["pause", "resume"]
        transport.close()
        peer.close()

    uvloop.run(check())
