"""The connection pool of one origin: assigns connections to requests, limits new ones, and queues requests in order.

Rules: the most recently used connection is assigned first, so that surplus ones become idle and expire. A freed connection
goes to the first waiter, before any new request. With HTTP/2 only one connection is opened at a time: all waiting requests
may fit on it. Only the wait for a connection is asynchronous, so no wake-up can be lost.
"""

import asyncio

from stayfast.core.clock import Clock
from stayfast.http.client.response import EncodedRequest, HttpResponse
from stayfast.http.event_loop import EarlyWriter

HIGH_WATER_BYTES = 65_536  # of a request, unsent
LOW_WATER_BYTES = 16_384


class PooledConnection(asyncio.Protocol):
    """A connection in a pool: HTTP/1.1 or HTTP/2. It reports to its pool when it has room and when it is closed."""

    __slots__ = ("idle_since", "is_listed", "n_active")

    def __init__(self) -> None:
        self.is_listed = False  # set by the pool: has room for another request
        self.idle_since = 0.0
        self.n_active = 0  # running requests and reservations

    def reserve(self) -> bool:
        """Reserve a place for one request. Returns whether there is room for another."""
        raise NotImplementedError

    def unreserve(self) -> None:
        """Cancel a reservation."""
        self.n_active -= 1

    def send_request(self, request: EncodedRequest) -> HttpResponse:
        """Send a request on a reserved place. Never raises: a closed connection returns a refused response."""
        raise NotImplementedError

    async def send_part(self, response: HttpResponse, part: bytes) -> None:
        """Send a part of the body of a `StreamedRequest`, at least one byte; wait until there is room for the next. Without
        effect if `response` is complete or has failed.
        """
        raise NotImplementedError

    def end_body(self, response: HttpResponse) -> None:
        """The body of a `StreamedRequest` is complete."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once; the connection has left the pool when this returns."""
        raise NotImplementedError


class ConnectionPool:
    """All connections to one origin. Used on one event loop only."""

    __slots__ = ("_clock", "_is_closed", "_keepalive_s", "_max_connections", "_max_idle", "_n_dialing", "_open", "_ready",
                 "_timer", "_waiters", "early_writer", "is_shared")

    def __init__(self, max_connections: int, max_idle: int, keepalive_s: float, is_shared: bool, clock: Clock) -> None:
        self._max_connections = max_connections  # 0: no limit
        self._max_idle = max_idle
        self._keepalive_s = keepalive_s
        self._clock = clock
        self.is_shared = is_shared  # one connection may carry many requests (HTTP/2)
        self._open: set[PooledConnection] = set()
        self._ready: list[PooledConnection] = []  # connections with room, the most recently used last
        self._waiters: dict[asyncio.Future[PooledConnection | None], None] = {}  # a dict is ordered and removes in O(1)
        self._n_dialing = 0
        self._timer: asyncio.TimerHandle | None = None
        self.early_writer = EarlyWriter(clock, HIGH_WATER_BYTES, LOW_WATER_BYTES)
        self._is_closed = False

    @property
    def n_idle(self) -> int:
        return sum(1 for connection in self._open if not connection.n_active)

    @property
    def n_busy(self) -> int:
        return sum(1 for connection in self._open if connection.n_active)

    @property
    def n_dialing(self) -> int:
        """Connections that are being opened."""
        return self._n_dialing

    @property
    def n_waiting(self) -> int:
        return len(self._waiters)

    @property
    def is_full(self) -> bool:
        """Whether the connection limit is reached: requests wait because of it, not because of the peer."""
        return bool(self._max_connections and self._open) and (
            len(self._open) + self._n_dialing >= self._max_connections)

    def can_dial(self) -> bool:
        """Whether another connection may be opened now."""
        if self.is_shared and self._n_dialing:
            return False
        return not self._max_connections or len(self._open) + self._n_dialing < self._max_connections

    def try_acquire(self) -> PooledConnection | None:
        """A connection with a reserved place, or None if none has room."""
        ready = self._ready
        if not ready:
            return None
        connection = ready[-1]
        if not connection.reserve():
            ready.pop()
            connection.is_listed = False
        return connection

    async def acquire(self, *, is_fresh: bool = False) -> PooledConnection | None:
        """Wait for a connection with a reserved place. None: the caller must open one and report the result to the pool.

        `is_fresh`: prefer a new connection to an idle one, which may be dead as well, but do not wait for it.
        """
        if not is_fresh and (connection := self.try_acquire()) is not None:
            return connection
        if is_fresh and not self.can_dial():
            self._drop_oldest_idle()
        if self.can_dial():
            self._n_dialing += 1
            return None
        if is_fresh and (connection := self.try_acquire()) is not None:
            return connection
        waiter: asyncio.Future[PooledConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            return await waiter
        except asyncio.CancelledError:
            self._cancel_waiter(waiter)
            raise

    def add_dialed(self, connection: PooledConnection) -> None:
        """Add a connection that a request has opened, with a reserved place for it."""
        self._n_dialing -= 1
        self._open.add(connection)
        if connection.reserve():
            self._add_ready(connection)
        self._serve_waiters()

    def cancel_dial(self) -> None:
        """A request could not open its connection."""
        self._n_dialing -= 1
        self._serve_waiters()

    def release(self, connection: PooledConnection) -> None:
        """`connection` has room for another request."""
        if connection not in self._open:
            return
        if not connection.n_active:
            if self._is_closed:
                connection.abort()
                return
            connection.idle_since = self._clock.now()
            if self._timer is None:
                self._prune_after(self._keepalive_s)
        if not connection.is_listed:
            self._add_ready(connection)
        if self._waiters:
            self._serve_waiters()
        elif len(self._ready) > self._max_idle:
            self._drop_oldest_idle()

    def mark_full(self, connection: PooledConnection) -> None:
        """`connection` has no more room, because its peer lowered the stream limit."""
        if connection.is_listed:
            connection.is_listed = False
            self._ready.remove(connection)

    def remove(self, connection: PooledConnection) -> None:
        """Remove `connection`: it is closed, or accepts no more requests."""
        self.mark_full(connection)
        if connection in self._open:
            self._open.remove(connection)
            self._serve_waiters()

    def close(self) -> None:
        """Close idle connections now, the others when they are released."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [one for one in self._open if not one.n_active]:
            connection.abort()

    def _add_ready(self, connection: PooledConnection) -> None:
        connection.is_listed = True
        self._ready.append(connection)

    def _serve_waiters(self) -> None:
        while self._waiters:
            if not self._ready and not self.can_dial():
                return
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if waiter.done():  # cancelled, but its task has not run yet
                continue
            connection = self.try_acquire()
            if connection is None:
                self._n_dialing += 1
            waiter.set_result(connection)

    def _cancel_waiter(self, waiter: asyncio.Future[PooledConnection | None]) -> None:
        if waiter.cancelled():
            self._waiters.pop(waiter, None)
            return
        connection = waiter.result()  # served and cancelled in the same turn of the loop: pass the connection on
        if connection is None:
            self.cancel_dial()
        else:
            connection.unreserve()
            self.release(connection)

    def _drop_oldest_idle(self) -> None:
        for connection in self._ready:
            if not connection.n_active:
                connection.abort()
                return

    def _prune_after(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._close_expired)

    def _close_expired(self) -> None:
        self._timer = None
        now = self._clock.now()
        idle = [one for one in self._ready if not one.n_active]
        for connection in idle:
            if now - connection.idle_since >= self._keepalive_s:
                connection.abort()
        left = [one.idle_since for one in idle if one.is_listed]
        if left:
            self._prune_after(min(left) + self._keepalive_s - now)

    def __repr__(self) -> str:
        return (f"<ConnectionPool {self.n_busy} busy, {self.n_idle} idle, {self.n_dialing} connecting, "
                f"{self.n_waiting} waiting>")
