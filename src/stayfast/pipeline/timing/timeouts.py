"""One watch a request. It interrupts the request's task when the wait that is under way has lasted too long.

Problem: a timer of the event loop costs two microseconds to set and to cancel, a request has a wait for every read of its
stream, and nearly every request is over before any of them is too long. So `asyncio.timeout_at` around each is too dear.
Rule: the earliest instant that was ever needed stays put down; when it comes too early, the watch looks at the wait that is
under way and puts itself down again. A stream of a thousand chunks costs one look a second. Instants are kept in slots of
SLOT_S, and the loop has one timer for each slot that is not empty. A request that is over by then costs nothing more; for
one that still runs, and whose instant falls into the slot, a timer of its own is set, so that it rings on time. Nothing is
kept for longer than AHEAD_S: what is due later is put down again then. A request that begins is looked at for the first
time a slot's time after the loop has done what was at hand: on a machine that has slept, whatever runs before its call is
sent costs it a wait for memory. The same watch rings when it is time to think of a second attempt.

Each stage bounds its own waits: none reaches beyond the stage's end, which is never later than the deadline.
Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), with the exact timer at the end of it.
"""

import asyncio
from collections.abc import Callable
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded
from stayfast.core.types import Stage

SLOT_S = 0.01
_PER_S = 100.0
AHEAD_S = 1.0
NEW_S = 2 * SLOT_S  # by when one that begins is looked at


class TimerWheel:
    """All slots of one loop. Nothing here awaits."""

    __slots__ = ("_loop", "_new", "_slots", "clock")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._new: list[RequestTimeouts] = []
        self._slots: dict[int, list[RequestTimeouts]] = {}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this is of: the one that ran when it was first asked."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def begin(self, watched: "RequestTimeouts") -> float:
        """Have `turn` called for one that begins; returns by when."""
        new = self._new
        if not new:
            self.loop.call_soon(lambda: self.loop.call_at(self.clock.now() + SLOT_S, self._fire_due))
        new.append(watched)
        return self.clock.now() + NEW_S

    def put(self, watched: "RequestTimeouts", at: float) -> float:
        """Have `turn` called about that instant, or earlier; returns when. 0: that is within this slot, set a timer."""
        now = self.clock.now()
        at = min(at, now + AHEAD_S)
        slot = int(at * _PER_S)
        waiting = self._slots.get(slot)
        if waiting is not None:
            waiting.append(watched)
            return at
        begins_at = slot / _PER_S
        if begins_at <= now:
            return 0.0
        self._slots[slot] = [watched]
        self.loop.call_at(begins_at, self._turn, slot)
        return at

    def _fire_due(self) -> None:
        new, self._new = self._new, []
        ends_at = self.clock.now() + NEW_S
        for watched in new:
            watched.turn(ends_at)

    def _turn(self, slot: int) -> None:
        ends_at = (slot + 1) / _PER_S
        for watched in self._slots.pop(slot):
            watched.turn(ends_at)

    def __repr__(self) -> str:
        return f"<TimerWheel: {len(self._new)} new, {sum(map(len, self._slots.values()))} in {len(self._slots)} slots>"


OF_THE_STAGE = ("total_s", "budget_s")  # limits after which no other attempt is made


class RequestTimeouts:
    """The limits of one request. Owned by the task that made it; only that task may wait under it."""

    __slots__ = ("_alarm", "_alarm_at", "_alarms", "_armed_at", "_bound_at", "_bound_limit", "_bound_s", "_deadline_at",
                 "_due_at", "_handle", "_is_interrupted", "_limit", "_seconds", "_task", "_total_s", "fired")

    def __init__(self, alarms: TimerWheel, deadline_at: float, total_s: float) -> None:
        self._alarms = alarms
        self._deadline_at = deadline_at
        self._total_s = total_s
        self._task = asyncio.current_task(alarms.loop)
        self._handle: asyncio.TimerHandle | None = None  # set where that is near
        self._due_at: float | None = deadline_at  # None: nothing is being waited for
        self._armed_at = alarms.begin(self)  # when this is to be looked at
        self._bound_at = deadline_at
        self._bound_limit = self._limit = "total_s"
        self._bound_s = self._seconds = total_s
        self._alarm_at = inf
        self._alarm: Callable[[], None] | None = None
        self._is_interrupted = False
        self.fired = False
        if deadline_at < self._armed_at:
            self._schedule_check(deadline_at)

    def bound(self, ends_at: float, now: float) -> None:
        """From here on no wait reaches beyond `ends_at`, nor beyond the deadline."""
        if ends_at < self._deadline_at:
            self._bound_at, self._bound_s = ends_at, max(0.0, ends_at - now)
            self._bound_limit = "budget_s"
        else:
            self._bound_at, self._bound_s = self._deadline_at, self._total_s
            self._bound_limit = "total_s"

    def clone(self) -> "RequestTimeouts":
        """Another one with the same limits, of the task that runs now."""
        other = RequestTimeouts(self._alarms, self._deadline_at, self._total_s)
        other._bound_at, other._bound_limit, other._bound_s = self._bound_at, self._bound_limit, self._bound_s
        return other

    def unbound(self) -> None:
        """From here on nothing ends a wait but its own limit: who waits for what comes of it has a watch of their own."""
        self._deadline_at = self._bound_at = inf

    def arm(self, limit: str, seconds: float, now: float) -> None:
        """A wait begins: of at most `seconds`, and within the bound."""
        due_at = now + seconds
        if due_at < self._bound_at:
            self._limit, self._seconds = limit, seconds
            self._wait_until(due_at)
        else:
            self.arm_bound()

    def arm_bound(self) -> None:
        """A wait begins that only the bound ends."""
        self._limit, self._seconds = self._bound_limit, self._bound_s
        self._wait_until(self._bound_at)

    def _wait_until(self, due_at: float) -> None:
        self._due_at = due_at
        self._schedule_check(due_at)

    def _schedule_check(self, at: float) -> None:
        if at < self._armed_at:
            self._armed_at = self._alarms.put(self, at)
            if not self._armed_at:
                self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_at = at
        self._handle = self._alarms.loop.call_at(at, self._check)

    def schedule_hedge_check(self, at: float, alarm: Callable[[], None]) -> None:
        """Call `alarm` at that instant; one at a time."""
        self._alarm_at, self._alarm = at, alarm
        self._schedule_check(at)

    def ring_no_more(self) -> None:
        self._alarm_at, self._alarm = inf, None

    def interrupt(self) -> bool:
        """End the wait of the request's task: what it waits for has come elsewhere. False: its time-out was quicker."""
        if self.fired or self._is_interrupted or self._task is None:
            return False
        self._is_interrupted = True
        self._task.cancel()
        return True

    @property
    def has_cancelled(self) -> bool:
        """Whether it has cancelled its task, which has not looked at why yet."""
        return self.fired or self._is_interrupted

    def was_interrupted(self) -> bool:
        """Called on CancelledError: whether it stands for `interrupt`, and nobody else cancelled the task as well."""
        if not self._is_interrupted:
            return False
        self._is_interrupted = False
        task = asyncio.current_task()
        return task is None or task.uncancel() == 0

    def is_over(self, now: float) -> bool:
        return now >= self._bound_at

    def exceeded(self, stage: Stage) -> DeadlineExceeded:
        return DeadlineExceeded(stage, self._bound_limit, self._bound_s)

    def disarm(self) -> None:
        """The wait is over; the timer may stay where it is."""
        self._due_at = None

    def stop(self) -> None:
        """The request is over. Breaks the cycle of timer, task and request."""
        self._due_at = None
        self._alarm_at, self._alarm = inf, None
        self._task = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def take_timeout_error(self, stage: Stage) -> DeadlineExceeded | None:
        """Called on CancelledError: the error it stands for, or None when somebody else cancelled the task as well."""
        if not self.fired:
            return None
        self.fired = False
        task = asyncio.current_task()
        if task is not None and task.uncancel() > 0:
            return None
        return DeadlineExceeded(stage, self._limit, self._seconds)

    def turn(self, ends_at: float) -> None:
        """What is due by `ends_at` gets a timer of its own."""
        if self._armed_at <= ends_at and self._handle is None:
            self._armed_at = inf
        due_at = self._due_at
        next_at = self._alarm_at if due_at is None or self._alarm_at < due_at else due_at
        if next_at <= ends_at:
            if next_at < self._armed_at:
                self._set_timer(next_at)
        elif next_at < inf:
            self._schedule_check(next_at)

    def _check(self) -> None:
        self._handle = None
        self._armed_at = inf
        now = self._alarms.clock.now()
        if self._due_at is not None and now >= self._due_at:
            if not self._is_interrupted:
                self.fired = True
                if self._task is not None:
                    self._task.cancel()
            return
        alarm = self._alarm
        if alarm is not None and now >= self._alarm_at:
            self.ring_no_more()
            alarm()
        next_at = min(self._alarm_at, inf if self._due_at is None else self._due_at)
        if next_at < inf:  # else the next wait arms it again
            self._schedule_check(next_at)
