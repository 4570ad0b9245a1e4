"""The timeouts of a request: they interrupt its task when the current wait has lasted too long.

Problem: setting and cancelling a timer of the event loop takes two microseconds, a request waits for every read of its
stream, and nearly every wait is short. So `asyncio.timeout_at` around each wait is too expensive. Rule: the earliest check
stays scheduled. If it fires too early, it looks at the current wait and schedules the next check: a stream of a thousand
chunks costs one check a second. Checks are grouped in slots of SLOT_S, with one timer of the loop for each slot. A request
that is over by then costs nothing more; one that is due within the slot gets an exact timer of its own. No check is
scheduled further ahead than AHEAD_S. A new request is checked for the first time after NEW_S, so that nothing is scheduled
before its call is sent. The same checks start hedges.

Each stage bounds its waits: none lasts beyond the stage's end, which is never later than the deadline.
Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), with an exact timer in the last slot.
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
NEW_S = 2 * SLOT_S  # until the first check of a new request


class TimerWheel:
    """The slots of one loop. Nothing here awaits."""

    __slots__ = ("_new", "_slots", "clock", "loop")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop  # the one that runs; set by the first request
        self._new: list[RequestTimeouts] = []
        self._slots: dict[int, list[RequestTimeouts]] = {}

    def add_new(self, watched: "RequestTimeouts") -> float:
        """Schedule the first check of a new request; returns its latest instant."""
        new = self._new
        if not new:
            self.loop = asyncio.get_running_loop()
            self.loop.call_soon(self._schedule_first)
        new.append(watched)
        return self.clock.now() + NEW_S

    def _schedule_first(self) -> None:
        self.loop.call_at(self.clock.now() + SLOT_S, self._fire_due)

    def put(self, watched: "RequestTimeouts", at: float) -> float:
        """Schedule a check at that instant or earlier; returns when. 0: it is within this slot, set an exact timer."""
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
            if watched.task is not None:
                watched.check_slot(ends_at)

    def _turn(self, slot: int) -> None:
        ends_at = (slot + 1) / _PER_S
        for watched in self._slots.pop(slot):
            if watched.task is not None:
                watched.check_slot(ends_at)

    def __repr__(self) -> str:
        return f"<TimerWheel: {len(self._new)} new, {sum(map(len, self._slots.values()))} in {len(self._slots)} slots>"


OF_THE_STAGE = ("total_s", "budget_s")  # limits after which no other attempt is made


class RequestTimeouts:
    """The timeouts of one request. Only the task that made it may wait under them."""

    __slots__ = ("_alarm", "_alarm_at", "_alarms", "_armed_at", "_bound_at", "_bound_limit", "_deadline_at", "_handle",
                 "_is_interrupted", "_limit", "_total_s", "_until", "fired", "task")

    def __init__(self, alarms: TimerWheel, deadline_at: float, total_s: float) -> None:
        self._alarms = alarms
        self._deadline_at = deadline_at
        self._total_s = total_s
        self._armed_at = alarms.add_new(self)  # the next check
        self.task = asyncio.current_task(alarms.loop)  # to interrupt; None: the request is over
        self._handle: asyncio.TimerHandle | None = None  # the exact timer
        self._until = self._bound_at = deadline_at  # the end of the present wait, and of any
        self._limit = self._bound_limit = ("total_s", total_s)  # which limits these are, by name, and their seconds
        self._alarm_at = inf
        self._alarm: Callable[[], None] | None = None
        self._is_interrupted = False
        self.fired = False
        if deadline_at < self._armed_at:
            self._schedule_check(deadline_at)

    def set_bound(self, ends_at: float, now: float) -> None:
        """From now on no wait lasts beyond `ends_at`, nor beyond the deadline."""
        if ends_at < self._deadline_at:
            self._bound_at = ends_at
            self._bound_limit = ("budget_s", max(0.0, ends_at - now))
        else:
            self._bound_at = self._deadline_at
            self._bound_limit = ("total_s", self._total_s)

    def clone(self) -> "RequestTimeouts":
        """New timeouts with the same limits, for the task that runs now."""
        other = RequestTimeouts(self._alarms, self._deadline_at, self._total_s)
        other._bound_at, other._bound_limit = self._bound_at, self._bound_limit
        return other

    def remove_bound(self) -> None:
        """From now on only a wait's own limit ends it; subscribers of a shared call have deadlines of their own."""
        self._deadline_at = self._bound_at = inf

    def arm(self, limit: str, seconds: float, now: float) -> None:
        """Begin a wait of at most `seconds`, within the bound. limit: its name in the error."""
        until = now + seconds
        if until >= self._bound_at:
            self.arm_bound()
            return
        self._until = until
        self._limit = limit, seconds
        if until < self._armed_at:
            self._schedule_check(until)

    def arm_bound(self) -> None:
        """Begin a wait that only the bound ends."""
        self._until, self._limit = self._bound_at, self._bound_limit
        if self._until < self._armed_at:
            self._schedule_check(self._until)

    def _schedule_check(self, at: float) -> None:
        """Check then, which is earlier than the next check."""
        self._armed_at = self._alarms.put(self, at)
        if not self._armed_at:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_at = at
        self._handle = self._alarms.loop.call_at(at, self._check)

    def schedule_hedge_check(self, at: float, alarm: Callable[[], None]) -> None:
        """Call `alarm` at that instant; it replaces the one before."""
        self._alarm_at, self._alarm = at, alarm
        if at < self._armed_at:
            self._schedule_check(at)

    def cancel_hedge_check(self) -> None:
        self._alarm_at, self._alarm = inf, None

    def interrupt(self) -> bool:
        """Interrupt the request's task, because another one has its answer. False: the timeout was earlier."""
        if self.fired or self._is_interrupted or self.task is None:
            return False
        self._is_interrupted = True
        self.task.cancel()
        return True

    @property
    def has_cancelled(self) -> bool:
        """Whether the task is cancelled from here, and has not handled that yet."""
        return self.fired or self._is_interrupted

    def was_interrupted(self) -> bool:
        """Called on CancelledError: whether `interrupt` alone caused it."""
        if not self._is_interrupted:
            return False
        self._is_interrupted = False
        task = asyncio.current_task()
        return task is None or task.uncancel() == 0

    def is_over(self, now: float) -> bool:
        return now >= self._bound_at

    def timeout_error(self, stage: Stage) -> DeadlineExceeded:
        return DeadlineExceeded(stage, *self._bound_limit)

    def disarm(self) -> None:
        """The wait is over; its check stays scheduled."""
        self._until = inf

    def stop(self) -> None:
        """The request is over. Breaks the cycle of timer, task and request."""
        self._until = self._alarm_at = inf
        self._alarm = self.task = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def take_timeout_error(self, stage: Stage) -> DeadlineExceeded | None:
        """Called on CancelledError: the error of the timeout that caused it; None: the task was cancelled from elsewhere."""
        if not self.fired:
            return None
        self.fired = False
        task = asyncio.current_task()
        if task is not None and task.uncancel() > 0:
            return None
        return DeadlineExceeded(stage, *self._limit)

    def check_slot(self, ends_at: float) -> None:
        """A slot has begun: set an exact timer if this is due by `ends_at`, else schedule the next check."""
        if self._armed_at <= ends_at and self._handle is None:
            self._armed_at = inf
        next_at = min(self._until, self._alarm_at)
        if next_at < self._armed_at:
            if next_at <= ends_at:
                self._set_timer(next_at)
            else:
                self._schedule_check(next_at)

    def _check(self) -> None:
        self._handle = None
        self._armed_at = inf
        now = self._alarms.clock.now()
        if now >= self._until:
            if not self._is_interrupted:
                self.fired = True
                if self.task is not None:
                    self.task.cancel()
            return
        alarm = self._alarm
        if alarm is not None and now >= self._alarm_at:
            self.cancel_hedge_check()
            alarm()
        next_at = min(self._alarm_at, self._until)
        if next_at < self._armed_at:  # else the next wait arms it again
            self._schedule_check(next_at)
