"""A listener for TLS, whose handshakes are limited as silent connections are.

Problem: an event loop's own TLS server reports a connection when its handshake is done. One that begins a handshake and
stops is then in no limit: it holds a descriptor for a minute, and opening it needs no key. Rule: a handshake has
`head_timeout_s`, and counts from the accepted connection on: above `max_pending_connections`, `max_pending_per_address` or
the room that `max_connections` leaves, the oldest end once they are a second old; where descriptors are short, at once.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from stayfast.core.clock import Clock
from stayfast.http.descriptors import client_share, descriptor_limit, descriptor_reserve
from stayfast.http.server.parser import HttpLimits
from stayfast.http.server.waiting_connections import WaitingConnections, limited_address

_MOST_AT_ONCE = 64  # connections, before anything else runs
_PAUSE_S = 0.1  # after an error of accept()


class TlsHandshake:
    """One connection until its handshake is done."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def abort(self) -> None:
        self.task.cancel()

    close = abort


class TlsListener:
    """Accepts connections on one bound socket and does their handshakes. Create it inside its event loop."""

    __slots__ = ("_clock", "_context", "_limits", "_loop", "_make_connection", "_n_connections", "_pause", "_sock",
                 "_waiting")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, make_connection: Callable[[], asyncio.BaseProtocol], *,
                 limits: Callable[[], HttpLimits], n_connections: Callable[[], int], clock: Clock, backlog: int) -> None:
        """`limits`: the current ones. `n_connections`: the open connections of the server, without handshakes. Raises
        OSError.
        """
        self._sock = sock
        self._context = context
        self._make_connection = make_connection
        self._limits = limits
        self._n_connections = n_connections
        self._clock = clock
        self._waiting: WaitingConnections[TlsHandshake] = WaitingConnections()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._accept)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._sock,) if self._sock.fileno() >= 0 else ()

    def close(self) -> None:
        """Stop listening, and end the handshakes."""
        self._loop.remove_reader(self._sock)
        if self._pause is not None:
            self._pause.cancel()
        self._sock.close()
        while self._waiting.close_oldest():
            continue

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left, or the client has gone
                self._loop.remove_reader(self._sock)
                self._pause = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._sock, self._accept)
                return
            sock.setblocking(False)
            self._start_handshake(sock, peer)

    def _start_handshake(self, sock: socket.socket, peer: object) -> None:
        limits, waiting, now, address = self._limits(), self._waiting, self._clock.now(), limited_address(peer)
        handshake = TlsHandshake(self._loop.create_task(self._connect(sock, limits.head_timeout_s)))

        def end(task: asyncio.Task[None]) -> None:
            waiting.remove(handshake)
            if task.cancelled():
                sock.close()

        waiting.add(handshake, address, now)
        handshake.task.add_done_callback(end)
        n_others = self._n_connections()
        waiting.close_surplus(address, max(0, min(limits.max_pending_connections, limits.max_connections - n_others)),
                              limits.max_pending_per_address, now)
        limit = descriptor_limit()
        if sock.fileno() >= limit - descriptor_reserve(limit) or n_others + waiting.n_silent > client_share(limit):
            waiting.close_oldest()

    async def _connect(self, sock: socket.socket, timeout_s: float) -> None:
        with suppress(OSError):  # ssl.SSLError and time-outs included: nothing was served
            await self._loop.connect_accepted_socket(
                self._make_connection, sock, ssl=self._context, ssl_handshake_timeout=timeout_s)
            return
        sock.close()

    def __repr__(self) -> str:
        return f"<TlsListener: {self._waiting.n_silent} handshakes>"
