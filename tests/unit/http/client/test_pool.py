"""The pool: limits, order, ageing, and that no wake-up and no place is ever lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.http.client.pool import ConnectionPool, PooledConnection
from stayfast.testing import SimLoop, run
from tests.unit.http.client.fakes import SetClock, new_pool, start_dial


class Wire(PooledConnection):
    """A connection with `n_places` (1: HTTP/1.1)."""

    def __init__(self, pool: ConnectionPool, n_places: int = 1) -> None:
        super().__init__()
        self.pool = pool
        self.n_places = n_places
        self.is_open = True

    def reserve(self) -> bool:
        assert self.is_open
        self.n_active += 1
        assert self.n_active <= self.n_places
        return self.n_active < self.n_places

    def abort(self) -> None:
        self.is_open = False
        self.pool.remove(self)

    def done(self) -> None:
        """One request on it ended well."""
        self.n_active -= 1
        self.pool.release(self)


def dial(pool: ConnectionPool, n_places: int = 1) -> Wire:
    """Use a permission to open."""
    wire = Wire(pool, n_places)
    pool.add_dialed(wire)
    return wire


def start(loop: SimLoop, what: Coroutine[Any, Any, PooledConnection | None]) -> asyncio.Task[PooledConnection | None]:
    """A task on the loop."""
    return loop.create_task(what)


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_pool_most_recently_used_connection_first() -> None:
    """The connection used last is taken first, so that the others can age."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=False, clock=loop)
        wires = []
        for _ in range(3):
            assert await pool.acquire() is None
            wires.append(dial(pool))
        for wire in wires:
            wire.done()
        assert pool.try_acquire() is wires[2]
        assert pool.try_acquire() is wires[1]
        assert (pool.n_idle, pool.n_busy) == (1, 2)
        pool.close()

    run(main)


def test_pool_limit_and_order_of_waiters() -> None:
    """At the limit requests wait; freed connections and freed places go to them in order."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(2, 10, 50.0, is_shared=False, clock=loop)
        first, second = [dial(pool) for _ in range(2) if await pool.acquire() is None]
        waiting = [start(loop, pool.acquire()) for _ in range(3)]
        await settle()
        assert pool.n_waiting == 3
        first.done()
        await settle()
        assert waiting[0].result() is first
        second.abort()
        await settle()
        assert waiting[1].done()
        assert waiting[1].result() is None  # permission to open in place of the lost one
        assert not waiting[2].done()
        pool.cancel_dial()
        await settle()
        assert waiting[2].result() is None

    run(main)


def test_pool_new_request_does_not_overtake_a_waiter() -> None:
    """A connection assigned to a waiter is not available to others, even before the waiter runs."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(1, 10, 50.0, is_shared=False, clock=loop)
        assert await pool.acquire() is None
        wire = dial(pool)
        waiting = start(loop, pool.acquire())
        await settle()
        wire.done()
        assert pool.try_acquire() is None
        assert await waiting is wire

    run(main)


@pytest.mark.parametrize("is_lost", [False, True])
def test_pool_waiter_cancelled_after_being_served_passes_the_connection_on(is_lost: bool) -> None:
    """Both happen in the same turn of the loop."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(1, 10, 50.0, is_shared=False, clock=loop)
        assert await pool.acquire() is None
        wire = dial(pool)
        cancelled, patient = start(loop, pool.acquire()), start(loop, pool.acquire())
        await settle()
        if is_lost:
            wire.abort()
        else:
            wire.done()
        cancelled.cancel()
        await settle()
        assert cancelled.cancelled()
        assert patient.done()
        assert patient.result() is (None if is_lost else wire)

    run(main)


def test_pool_one_dial_at_a_time_while_shared() -> None:
    """If the connection turns out not to be shared, all waiters dial at once."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=True, clock=loop)
        assert await pool.acquire() is None
        waiting = [start(loop, pool.acquire()) for _ in range(3)]
        await settle()
        assert pool.n_waiting == 3
        pool.is_shared = False
        dial(pool)
        await settle()
        assert [task.result() for task in waiting] == [None, None, None]

    run(main)


def test_pool_shared_connection_serves_all_waiters() -> None:
    """As many as it has room for; the next request opens another connection."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=True, clock=loop)
        assert await pool.acquire() is None
        waiting = [start(loop, pool.acquire()) for _ in range(3)]
        await settle()
        wire = dial(pool, n_places=3)
        await settle()
        assert [task.result() for task in waiting] == [wire, wire, None]
        assert pool.try_acquire() is None
        wire.done()
        assert pool.try_acquire() is wire

    run(main)


def test_pool_lowered_stream_limit() -> None:
    """Such a connection is not used until it has room again."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=True, clock=loop)
        assert await pool.acquire() is None
        wire = dial(pool, n_places=2)
        pool.mark_full(wire)
        assert pool.try_acquire() is None
        wire.done()
        assert pool.try_acquire() is wire
        pool.close()

    run(main)


def test_pool_fresh_replaces_the_oldest_idle_connection() -> None:
    """If the limit allows no other new connection."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(2, 10, 50.0, is_shared=False, clock=loop)
        wires = [dial(pool) for _ in range(2) if await pool.acquire() is None]
        for wire in wires:
            wire.done()
        assert await pool.acquire(is_fresh=True) is None
        assert [wire.is_open for wire in wires] == [False, True]
        pool.close()

    run(main)


def test_pool_fresh_uses_a_busy_connection_at_the_limit() -> None:
    """A request that prefers a new connection does not wait for one."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(1, 10, 50.0, is_shared=True, clock=loop)
        assert await pool.acquire() is None
        wire = dial(pool, n_places=2)
        assert await pool.acquire(is_fresh=True) is wire

    run(main)


def test_pool_idle_connections_expire() -> None:
    """An idle connection is closed after keepalive_s, one that is used in between is not, and one timer does it."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=False, clock=loop)
        old, young = [dial(pool) for _ in range(2) if await pool.acquire() is None]
        old.done()
        await asyncio.sleep(30)
        young.done()
        states = []
        for pause_s in (19.9, 0.2, 29.8, 0.2):
            await asyncio.sleep(pause_s)
            states.append((old.is_open, young.is_open))
        assert states == [(True, True), (False, True), (False, True), (False, False)]
        assert pool.n_idle == 0

    run(main)


def test_pool_shared_connection_expires_only_when_unused() -> None:
    """A shared connection with requests on it is not idle, however long it has had room."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=True, clock=loop)
        assert await pool.acquire() is None
        wire = dial(pool, n_places=5)
        assert pool.try_acquire() is wire
        wire.done()
        await asyncio.sleep(200)
        assert wire.is_open
        wire.done()
        await asyncio.sleep(50.1)
        assert not wire.is_open

    run(main)


def test_pool_surplus_idle_connections_are_closed() -> None:
    """Beyond max_idle the longest idle one is closed."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 1, 50.0, is_shared=False, clock=loop)
        wires = [dial(pool) for _ in range(2) if await pool.acquire() is None]
        for wire in wires:
            wire.done()
        assert [wire.is_open for wire in wires] == [False, True]
        pool.close()

    run(main)


def test_pool_close() -> None:
    """Closing ends idle connections at once and busy ones when they are released."""

    async def main(loop: SimLoop) -> None:
        pool = ConnectionPool(0, 10, 50.0, is_shared=False, clock=loop)
        idle, busy = [dial(pool) for _ in range(2) if await pool.acquire() is None]
        idle.done()
        pool.close()
        assert (idle.is_open, busy.is_open) == (False, True)
        busy.done()
        assert not busy.is_open
        assert repr(pool) == "<ConnectionPool 0 busy, 0 idle, 0 connecting, 0 waiting>"

    run(main)


class Crowd:
    """Requests that start, are cancelled, finish and break, one random step at a time."""

    def __init__(self, loop: SimLoop, max_connections: int, n_places: int) -> None:
        self.loop = loop
        self.n_places = n_places
        self.max_connections = max_connections
        self.pool = ConnectionPool(max_connections, 2, 50.0, is_shared=n_places > 1, clock=loop)
        self.asking: list[asyncio.Task[PooledConnection | None]] = []
        self.n_dialing = 0
        self.held: list[Wire] = []

    def step(self, kind: int, which: int) -> None:
        """One event."""
        if kind == 0:
            self.asking.append(self.loop.create_task(self.pool.acquire(is_fresh=which % 4 == 0)))
        elif kind == 1 and self.asking:
            self.asking[which % len(self.asking)].cancel()
        elif kind == 2 and self.held:
            self.held.pop(which % len(self.held)).done()
        elif kind == 3 and self.held:
            lost = self.held[which % len(self.held)]
            self.held = [wire for wire in self.held if wire is not lost]
            lost.abort()
        elif kind == 4 and self.n_dialing:
            self.n_dialing -= 1
            wire = Wire(self.pool, self.n_places)
            self.held.append(wire)
            self.pool.add_dialed(wire)
        elif kind == 5 and self.n_dialing:
            self.n_dialing -= 1
            self.pool.cancel_dial()

    def collect(self) -> None:
        """Record the requests that were served."""
        for task in [task for task in self.asking if task.done()]:
            self.asking.remove(task)
            if task.cancelled():
                continue
            found = task.result()
            if found is None:
                self.n_dialing += 1
            else:
                assert isinstance(found, Wire)
                if found.is_open:
                    self.held.append(found)

    def check(self) -> None:
        """Between steps: no request waits while there is room, and the limit holds."""
        n_open = self.pool.n_idle + self.pool.n_busy
        assert self.pool.n_dialing == self.n_dialing
        assert not self.max_connections or n_open + self.n_dialing <= self.max_connections
        assert sum(wire.n_active for wire in set(self.held)) == len(self.held)
        if self.asking:
            assert self.pool.try_acquire() is None
            assert not self.pool.can_dial()
        assert self.pool.n_waiting == len(self.asking)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.integers(1, 3),
       st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.booleans()), max_size=60))
def test_pool_no_wakeup_is_lost(max_connections: int, n_places: int, steps: list[tuple[int, int, bool]]) -> None:
    """For any order of steps, also within one turn of the loop: no place is lost or assigned twice."""

    async def main(loop: SimLoop) -> None:
        crowd = Crowd(loop, max_connections, n_places)
        for kind, which, pauses in steps:
            crowd.step(kind, which)
            if pauses:
                await settle()
                crowd.collect()
                await settle()
                crowd.collect()
                crowd.check()
        for task in crowd.asking:
            task.cancel()
        await settle()
        crowd.collect()
        while crowd.n_dialing:
            crowd.step(5, 0)
        while crowd.held:
            crowd.step(2, 0)
        assert crowd.pool.n_busy == 0
        assert crowd.pool.n_waiting == 0
        crowd.pool.close()
        assert crowd.pool.n_idle == 0

    run(main)


def test_pool_release_after_removal_is_ignored() -> None:
    """A removed connection cannot return."""
    pool = new_pool(clock=SetClock())
    start_dial(pool)
    wire = dial(pool)
    pool.remove(wire)
    wire.done()
    assert pool.try_acquire() is None
    assert pool.n_idle == 0
