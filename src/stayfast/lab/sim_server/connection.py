"""One client's connection: bytes to the reader, requests to Tasks one after the other.

Reading goes on while a request is answered, because the end of reading is how the client's leaving shows: the Task is
cancelled in the same turn of the loop.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from stayfast.lab.sim_server.http import CONTINUE
from stayfast.lab.sim_server.reader import Inbound, Reader

HIGH_WATER_BYTES = 128 * 1024  # unsent bytes above which a provider waits for its client
LOW_WATER_BYTES = 32 * 1024
MAX_PIPELINED = 64  # requests read ahead of their answers; more wait in the kernel
LINGER_S = 1.0  # how long bytes are still taken after a refusal, so that a reset does not overtake it
_NO_LINGER = struct.pack("ii", 1, 0)  # closing sends RST


class Site(Protocol):
    """What a connection needs of the simulator."""

    connections: "set[Connection]"

    def serve(self, connection: "Connection", inbound: Inbound) -> Coroutine[Any, Any, None] | None:
        """Answer at once (None), or hand back the Task's work, which ends with `connection.finish`."""
        ...

    def spawn(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it; whatever it raises is reported."""
        ...


class Connection(asyncio.Protocol):
    """One connection. `write` is the transport's own."""

    __slots__ = ("_is_busy", "_is_closing", "_reader", "_site", "_task", "_transport", "_waiter", "is_full", "is_lost",
                 "write")

    def __init__(self, site: Site, max_body_bytes: int) -> None:
        self._site = site
        self._reader = Reader(max_body_bytes)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_busy = False
        self._is_closing = False
        self.is_full = False  # the client does not keep up: await `drained` before writing more
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came. uvloop has set TCP_NODELAY."""
        self._transport = cast("asyncio.Transport", transport)
        self.write: Callable[[bytes], None] = self._transport.write
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        self._site.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """The client sent bytes."""
        if self._is_closing:
            return
        reader = self._reader
        reader.feed(data)
        if not self._is_busy and not self.is_full:
            self._advance()
        elif len(reader.ready) > MAX_PIPELINED:
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """The client will send nothing more: it has left."""
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.is_lost = True
        self._site.connections.discard(self)
        self._leave()

    def pause_writing(self) -> None:
        """More is unsent than should be."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_full = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif not self._is_busy:
            self._advance()

    async def drained(self) -> None:
        """Return once the client has caught up. One waiter: the request's Task."""
        if self.is_full:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def finish(self, inbound: Inbound) -> None:
        """A Task has written its answer: go on with the next request, wait for one, or close."""
        self._settle(inbound)
        self._advance()

    def close(self) -> None:
        """Close once everything written has been sent."""
        self._is_closing = True
        self._transport.close()

    def reset(self) -> None:
        """Close at once, with RST in place of FIN; drops what is unsent."""
        self._is_closing = True
        if not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def abort(self) -> None:
        """Close at once and cancel what runs."""
        self._leave()
        self._transport.abort()

    def _leave(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _advance(self) -> None:
        """Answer what is ready, one request at a time."""
        reader = self._reader
        ready = reader.ready
        while ready and not (self._is_busy or self.is_full or self._is_closing):
            inbound = ready.popleft()
            if len(ready) == MAX_PIPELINED:
                self._transport.resume_reading()
            life = self._site.serve(self, inbound)
            if life is None:
                self._settle(inbound)
            else:
                self._is_busy = True
                self._task = self._site.spawn(life)
        if reader.owes_continue and not (self._is_busy or self.is_full or self._is_closing):
            reader.owes_continue = False
            self.write(CONTINUE)

    def _settle(self, inbound: Inbound) -> None:
        self._is_busy = False
        self._task = None
        if self.is_lost or self._is_closing or inbound.keep_alive:
            return
        if inbound.refusal is not None:
            self._linger()
        else:
            self.close()

    def _linger(self) -> None:
        """Close our side, and take what still comes for a while: a reset would wipe out the refusal unread."""
        self._is_closing = True
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def __repr__(self) -> str:
        return f"<Connection {'answering' if self._is_busy else 'waiting'}, {self._reader!r}>"
