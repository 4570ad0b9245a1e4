"""Virtual time: an asyncio event loop on which waiting costs nothing and every instant is exact.

When nothing is ready to run, the clock moves to the next timer. So `asyncio.sleep`, `timeout_at` and `call_at` work
unchanged, in no real time. No real sockets and no threads: use scripted or simulated upstreams. If every task waits for
something that no timer will bring, the run fails at once instead of hanging.

Timers that are due at the same instant run in the order in which they were set, so that a run repeats bit for bit. They are
kept as tuples and the selector is left alone while there is work: a million requests of simulated traffic are tens of
millions of timers, and asyncio's own turn (a system call, and a comparison in Python for each step of its heap) would be
half of what they cost.

`VirtualThreads` are threads in virtual time: plain functions that take as long as they say, without a thread.
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
WALL_AT_ZERO = 1_750_000_000.0  # what the wall clock says when virtual time is 0
_SAME_INSTANT_S = 1e-9  # sums of floats
_FEW_CANCELLED = 1000  # timers; fewer are not worth a clean-up


class Deadlocked(RuntimeError):
    """Every task is blocked and no timer is set."""


class _Soon(asyncio.Handle):
    """asyncio's handle, made in one step: a chunk of simulated traffic makes two."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: "SimLoop", context: Context | None) -> None:
        this: Any = self  # the fields are asyncio's own
        this._context = copy_context() if context is None else context
        this._loop = loop
        this._callback = callback
        this._args = args
        this._cancelled = False
        this._repr = this._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """The same of a timer."""

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
            if this._scheduled:  # not when it has run, as every `asyncio.sleep` cancels its timer at its end
                this._loop._timer_handle_cancelled(self)
            this._callback = this._args = None


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual seconds, starting at 0. Also a `core.clock.Clock`, so that policies see the same time."""

    _ready: deque[Any]  # of handles; asyncio's own, as are the next three
    _closed: bool
    _selector: selectors.BaseSelector
    _process_events: Callable[[Any], None]

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, Any]] = []  # when, in which order, handle
        self._n_cancelled = 0
        self._order = count()
        super().__init__(selectors.SelectSelector())

    def time(self) -> float:
        return self._now

    def stall(self, seconds: float) -> None:
        """Let time pass at once, as for a loop that was kept from running: timers fire late."""
        self._now += seconds

    @property
    def n_timers(self) -> int:
        """Timers that are set; not those that were cancelled."""
        return sum(not timer.cancelled() for _, _, timer in self._timers)

    def now(self) -> float:
        """Virtual seconds, as a Clock."""
        return self._now

    def wall(self) -> float:
        """Virtual seconds since the epoch."""
        return WALL_AT_ZERO + self._now

    def cpu(self) -> float:
        """Nothing: work takes no virtual time."""
        return 0.0

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts,
                context: Context | None = None) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts,
                   context: Context | None = None) -> asyncio.TimerHandle:
        timer = _Timer(self._now + delay, callback, args, self, context)
        heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._n_cancelled += 1
        if self._n_cancelled > _FEW_CANCELLED and self._n_cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapify(self._timers)
            self._n_cancelled = 0

    def _run_once(self) -> None:
        """One turn of the loop, in place of asyncio's."""
        ready = self._ready
        if not ready:
            self._skip()
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

    def _skip(self) -> None:
        """Move the clock to the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._n_cancelled -= 1
        if timers:
            self._now = max(self._now, timers[0][0])
            return
        self._process_events(self._selector.select(0))  # a thread that has just ended
        if not self._ready:
            raise Deadlocked("every task waits and no timer is set: this would hang for ever")


def run(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main(loop)` on a fresh SimLoop to its end; returns its result. Tasks left over are cancelled."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        return runner.run(main(loop))


class _Outcome(Future[Any]):
    """That of a function that runs: it can no longer be cancelled, only left alone."""

    is_abandoned = False

    def cancel(self) -> bool:
        self.is_abandoned = True
        return False


class VirtualThreads:
    """Starts plain functions on the running virtual loop: `budget(2.5, threads=VirtualThreads())`.

    In such a function `sleep(seconds)` stands for what would block. It is run at once, to the end; its result comes later.
    """

    def __init__(self) -> None:
        self._took_s = 0.0
        self.running: dict[Future[Any], str] = {}  # what has not ended, by the step's name

    def sleep(self, seconds: float) -> None:
        """The function that runs takes so much longer."""
        self._took_s += seconds

    def __call__(self, step: str, call: Callable[[], Any]) -> "Future[Any]":
        outcome = _Outcome()
        self._took_s = 0.0
        done = Future[Any]()
        done.set_running_or_notify_cancel()
        with _Into(done):
            done.set_result(call())
        self.running[outcome] = step
        asyncio.get_running_loop().call_later(self._took_s, self._end, outcome, done)
        return outcome

    def _end(self, outcome: "Future[Any]", done: "Future[Any]") -> None:
        del self.running[outcome]
        error = done.exception()
        if error is None:
            outcome.set_result(done.result())
        else:
            outcome.set_exception(error)


class _Into:
    """Hands what is raised inside to a future."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True
