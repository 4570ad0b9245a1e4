"""Virtual time: an asyncio event loop that does not really wait, with exact and reproducible instants.

When no callback is ready, the clock advances to the next timer. So `asyncio.sleep`, `timeout_at` and `call_at` work without
real waits. Real sockets and threads do not work: use scripted or simulated upstreams. If all tasks wait and no timer is set,
the run raises Deadlocked instead of hanging.

Timers due at the same instant run in the order in which they were set, so runs are reproducible. Timers are tuples, and the
selector is not called while callbacks are ready: with tens of millions of timers, asyncio's own iteration (a system call,
and a Python comparison per heap step) would double the cost.

`VirtualThreads` runs plain functions in virtual time, without threads.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
WALL_AT_ZERO = 1_750_000_000.0  # the wall clock at virtual time 0
_SAME_INSTANT_S = 1e-9  # rounding of float sums
_MIN_CANCELLED = 1000  # cancelled timers, before removing them is worth its cost


class Deadlocked(RuntimeError):
    """Every task is blocked and no timer is set."""


class _ReadyHandle(asyncio.Handle):
    """asyncio's handle with a faster constructor: each chunk of simulated traffic creates two."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: "SimLoop", context: Context | None) -> None:
        this: Any = self  # the fields are asyncio's own
        this._context = copy_context() if context is None else context
        this._loop = loop
        this._callback = callback
        this._args = args
        this._cancelled = False
        this._repr = this._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """asyncio's timer handle with a faster constructor."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, loop: "SimLoop", context: Context | None) -> None:
        this: Any = self
        this._context = copy_context() if context is None else context
        this._loop = loop
        this._callback = callback
        this._args = args
        this._cancelled = False
        this._repr = this._source_traceback = None
        this._when = when
        this._scheduled = True

    def cancel(self) -> None:
        this: Any = self
        if not this._cancelled:
            this._cancelled = True
            if this._scheduled:  # False after it ran: `asyncio.sleep` cancels its timer at its end
                this._loop._timer_handle_cancelled(self)
            this._callback = this._args = None


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual seconds, starting at 0. Also a `core.clock.Clock`, so that policies see the same time."""

    _ready: deque[Any]  # of handles; an attribute of asyncio, like the next three
    _closed: bool
    _selector: selectors.BaseSelector
    _process_events: Callable[[Any], None]

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, Any]] = []  # instant, order, handle
        self._n_cancelled = 0
        self._order = count()
        super().__init__(selectors.SelectSelector())

    def time(self) -> float:
        return self._now

    def stall(self, seconds: float) -> None:
        """Advance the clock without running timers, as if a callback had blocked the loop: timers fire late."""
        self._now += seconds

    @property
    def n_timers(self) -> int:
        """The number of timers that are not cancelled."""
        return sum(not timer.cancelled() for _, _, timer in self._timers)

    @property
    def n_cancelled_timers(self) -> int:
        """Timers that were cancelled before they were due and still take memory."""
        return self._n_cancelled

    def now(self) -> float:
        """The virtual time in seconds (`Clock.now`)."""
        return self._now

    def wall(self) -> float:
        """Virtual seconds since the epoch."""
        return WALL_AT_ZERO + self._now

    def cpu(self) -> float:
        """0: work takes no virtual time."""
        return 0.0

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts,
                context: Context | None = None) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts,
                   context: Context | None = None) -> asyncio.TimerHandle:
        timer = _TimerHandle(self._now + delay, callback, args, self, context)
        heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _ReadyHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._n_cancelled += 1
        if self._n_cancelled > _MIN_CANCELLED and self._n_cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapify(self._timers)
            self._n_cancelled = 0

    def _run_once(self) -> None:
        """One iteration of the loop; replaces asyncio's."""
        ready = self._ready
        if not ready:
            self._advance_clock()
        timers, due_at = self._timers, self._now + _SAME_INSTANT_S
        while timers and timers[0][0] <= due_at:
            handle = heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._n_cancelled -= 1
            else:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _advance_clock(self) -> None:
        """Advance the clock to the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._n_cancelled -= 1
        if timers:
            self._now = max(self._now, timers[0][0])
            return
        self._process_events(self._selector.select(0))  # a thread that has just ended
        if not self._ready:
            raise Deadlocked("all tasks wait and no timer is set: the run would hang")


def run(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main(loop)` on a new SimLoop and return its result. Remaining tasks are cancelled."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        return runner.run(main(loop))


class _VirtualFuture(Future[Any]):
    """The result of a running function. The function cannot be cancelled; `cancel` marks it as abandoned."""

    is_abandoned = False

    def cancel(self) -> bool:
        self.is_abandoned = True
        return False


class VirtualThreads:
    """Starts plain functions on the running virtual loop: `budget(2.5, threads=VirtualThreads())`.

    Such a function calls `sleep(seconds)` where it would block. It runs to its end at once; its result is delivered after
    the sum of its sleeps.
    """

    def __init__(self) -> None:
        self._call_s = 0.0
        self.running: dict[Future[Any], str] = {}  # calls whose result is not delivered yet, with the names of their steps

    def sleep(self, seconds: float) -> None:
        """Delay the result of the running function by this time."""
        self._call_s += seconds

    def __call__(self, step: str, call: Callable[[], Any]) -> "Future[Any]":
        future = _VirtualFuture()
        self._call_s = 0.0
        done = Future[Any]()
        done.set_running_or_notify_cancel()
        with _ExceptionTo(done):
            done.set_result(call())
        self.running[future] = step
        asyncio.get_running_loop().call_later(self._call_s, self._deliver, future, done)
        return future

    def _deliver(self, future: "Future[Any]", done: "Future[Any]") -> None:
        del self.running[future]
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)


class _ExceptionTo:
    """A context manager that sets an exception raised in it on a future."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
