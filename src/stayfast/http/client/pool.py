"""Which connection a request goes out on, when a new one may be opened, and who waits for that, first come first served.

Rules: the connection used last is taken first, so that those beyond the need age out. A freed place goes to the first who
waits before anybody new can see it. While it is not known whether the peer shares connections (HTTP/2), only one is opened
at a time: the others would all have fitted on it. Everything but `obtain` is synchronous, so no wake-up can be lost.
"""

import asyncio

from stayfast.core.clock import Clock
from stayfast.http.client.response import EncodedRequest, HttpResponse


class PooledConnection(asyncio.Protocol):
    """A connection in a pool: HTTP/1.1 or HTTP/2. It calls `released` and `lost` of its pool."""

    __slots__ = ("idle_since", "is_listed", "n_active")

    def __init__(self) -> None:
        self.is_listed = False  # the pool's own mark: among those with room
        self.idle_since = 0.0
        self.n_active = 0  # requests on it, places held for one included

    def reserve(self) -> bool:
        """Hold a place for one request; whether there is room for another."""
        raise NotImplementedError

    def unreserve(self) -> None:
        """Give a held place back unused."""
        self.n_active -= 1

    def request(self, request: EncodedRequest) -> HttpResponse:
        """Use the held place. Never raises: a connection that is gone gives a refused response."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once; `lost` has been called when this returns."""
        raise NotImplementedError


class ConnectionPool:
    """All connections to one origin. Used on one event loop only."""

    __slots__ = ("_clock", "_is_closed", "_keepalive_s", "_max_connections", "_max_idle", "_n_dialing", "_open", "_ready",
                 "_timer", "_waiters", "is_shared")

    def __init__(self, max_connections: int, max_idle: int, keepalive_s: float, is_shared: bool, clock: Clock) -> None:
        self._max_connections = max_connections  # 0: no limit
        self._max_idle = max_idle
        self._keepalive_s = keepalive_s
        self._clock = clock
        self.is_shared = is_shared  # one connection carries many requests, as far as is known
        self._open: set[PooledConnection] = set()
        self._ready: list[PooledConnection] = []  # those with room, used last at the end
        self._waiters: dict[asyncio.Future[PooledConnection | None], None] = {}  # a dict: in order, and cheap to leave
        self._n_dialing = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def n_idle(self) -> int:
        return sum(1 for connection in self._open if not connection.n_active)

    @property
    def n_busy(self) -> int:
        return sum(1 for connection in self._open if connection.n_active)

    @property
    def n_waiting(self) -> int:
        return len(self._waiters)

    @property
    def is_full(self) -> bool:
        """As many connections as are allowed, and requests on them: who waits, waits for our limit, not for the peer."""
        return bool(self._max_connections and self._open) and (
            len(self._open) + self._n_dialing >= self._max_connections)

    def take(self) -> PooledConnection | None:
        """A connection with a place held on it, if there is one now."""
        ready = self._ready
        if not ready:
            return None
        connection = ready[-1]
        if not connection.reserve():
            ready.pop()
            connection.is_listed = False
        return connection

    async def obtain(self, *, is_fresh: bool = False) -> PooledConnection | None:
        """A connection with a place held on it, or None: open one, then call `dialed` or `dial_failed`.

        `is_fresh`: the last one was found dead, so rather open one than trust what has been idle; but never wait for that.
        """
        if not is_fresh and (connection := self.take()) is not None:
            return connection
        if is_fresh and not self._can_dial():
            self._drop_oldest_idle()
        if self._can_dial():
            self._n_dialing += 1
            return None
        if is_fresh and (connection := self.take()) is not None:
            return connection
        waiter: asyncio.Future[PooledConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            return await waiter
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def dialed(self, connection: PooledConnection) -> None:
        """The permission to open was used: `connection` comes with a place held for the caller."""
        self._n_dialing -= 1
        self._open.add(connection)
        if connection.reserve():
            self._list(connection)
        self._serve()

    def dial_failed(self) -> None:
        """The permission to open came to nothing."""
        self._n_dialing -= 1
        self._serve()

    def released(self, connection: PooledConnection) -> None:
        """`connection` has room (again)."""
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
            self._list(connection)
        if self._waiters:
            self._serve()
        elif len(self._ready) > self._max_idle:
            self._drop_oldest_idle()

    def filled(self, connection: PooledConnection) -> None:
        """`connection` has no room although it was released: its peer lowered the limit."""
        if connection.is_listed:
            connection.is_listed = False
            self._ready.remove(connection)

    def lost(self, connection: PooledConnection) -> None:
        """`connection` is over, or takes no more requests: its place is free."""
        self.filled(connection)
        if connection in self._open:
            self._open.remove(connection)
            self._serve()

    def close(self) -> None:
        """Close what is idle now; what is in use closes when it is released."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [one for one in self._open if not one.n_active]:
            connection.abort()

    def _can_dial(self) -> bool:
        if self.is_shared and self._n_dialing:
            return False
        return not self._max_connections or len(self._open) + self._n_dialing < self._max_connections

    def _list(self, connection: PooledConnection) -> None:
        connection.is_listed = True
        self._ready.append(connection)

    def _serve(self) -> None:
        while self._waiters:
            if not self._ready and not self._can_dial():
                return
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if waiter.done():  # cancelled, and its task has not run yet
                continue
            connection = self.take()
            if connection is None:
                self._n_dialing += 1
            waiter.set_result(connection)

    def _leave(self, waiter: asyncio.Future[PooledConnection | None]) -> None:
        if waiter.cancelled():
            self._waiters.pop(waiter, None)
            return
        connection = waiter.result()  # served and cancelled in the same turn of the loop: pass it on
        if connection is None:
            self.dial_failed()
        else:
            connection.unreserve()
            self.released(connection)

    def _drop_oldest_idle(self) -> None:
        for connection in self._ready:
            if not connection.n_active:
                connection.abort()
                return

    def _prune_after(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._prune)

    def _prune(self) -> None:
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
        return (f"<ConnectionPool {self.n_busy} busy, {self.n_idle} idle, {self._n_dialing} connecting, "
                f"{self.n_waiting} waiting>")
