"""Sends a schedule of requests to targets and records the answers.

It is independent of transport and clock: the same code runs over sockets and in virtual time.

Open loop: each request is sent at its scheduled time, whatever became of earlier ones; the number in flight has no limit.
Closed loop: N callers, each of which sends its next request when its answer is complete. A slow target then slows the load
down, so closed-loop figures are for comparison only, and are labelled so.
"""

import asyncio
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isnan
from random import Random
from typing import Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.lab.load.result import Error, GapCounts, Sample, Samples
from stayfast.lab.load.schedule import Shot

MAX_SLEEP_S = 0.25  # so that `stop` takes effect within this time
MAX_OVERDUE_IN_A_ROW = 16  # overdue requests sent before the loop may read answers
AFTER_FAILED_CONNECT_S = 0.1  # closed loop: without it, refused connections would make a busy loop
LEAD_S = 0.02  # between the start of a run and the zero of its schedule


class DueShot(msgspec.Struct, frozen=True, gc=False):
    """A request that is due now. Instants are those of the clock."""

    shot: Shot
    zero_at: float  # the run's zero: a sample's instants count from it
    timeout_at: float  # the answer must be complete by then
    gaps: GapCounts  # counts the gaps between chunks


class LoadTarget(Protocol):
    """A system under test: an HTTP server, or the pipeline in this process. Safe for concurrent tasks."""

    @property
    def counted_by(self) -> str:
        """How output tokens were counted so far: usage, chunks, or both."""

    async def send(self, due: DueShot) -> Sample:
        """Send the request and measure its answer. Failures and time-outs are samples, never exceptions."""

    def close(self) -> None:
        """Close all connections; requests in flight are aborted."""


@dataclass(slots=True)
class TargetRecord:
    """The answers of one target. Answers of the warm-up are counted, not recorded."""

    samples: Samples = field(default_factory=Samples)
    gaps: GapCounts = field(default_factory=GapCounts)
    lateness_s: "array[float]" = field(default_factory=lambda: array("d"))
    n_sent: int = 0  # warm-up included, as in n_done and n_bad
    n_done: int = 0
    n_bad: int = 0
    n_unsent: int = 0
    last_began_s: float = 0.0  # of measured requests
    last_at_s: float = 0.0
    excerpt: str = ""  # of the first failed answer with a body
    unreached: str = ""  # the first connection error


class ScheduledShot(msgspec.Struct, frozen=True, gc=False):
    """A request for one target, sent `shift_s` after its `at_s`, counted from the start of the run."""

    shot: Shot
    target: int
    shift_s: float


class LoadRound(msgspec.Struct, frozen=True, gc=False):
    """A stretch of time in which one target alone is under load, in seconds of that target's schedule."""

    target: int
    own_from_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How to run. `spin_s`: in the last stretch before a send the runner polls the loop, because uvloop's timers are only
    accurate to a millisecond. 0 in virtual time, where timers are exact."""

    timeout_s: float = 60.0
    spin_s: float = 0.0
    until_s: float | None = None  # no turn of a conversation starts at or after this time
    n_requests: int | None = None  # closed loop: measured requests per target

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 86_400:
            raise ValueError(f"the time-out must be above 0 and at most 86400 s, not {self.timeout_s:g}")


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The size of a run: requests to send (None: unknown in advance) and seconds until the last send."""

    n_requests: int | None
    seconds: float | None
    is_closed: bool = False


class Runner:
    """One run. Used once, by one task; `stop` and `abort` may be called from any task of its loop."""

    def __init__(self, targets: Sequence[LoadTarget], clock: Clock, config: RunConfig) -> None:
        self.records = [TargetRecord() for _ in targets]
        self.estimate = RunEstimate(None, None)
        self.is_stopped = False
        self.is_aborted = False
        self.is_all_sent = False  # open loop: the schedule is finished
        self._targets = targets
        self._clock = clock
        self._config = config
        self._warmup_gaps = GapCounts()

    def stop(self) -> None:
        """Send nothing more, and wait for the answers in flight."""
        self.is_stopped = True

    def abort(self) -> None:
        """Send nothing more, and abort the requests in flight: they count as time-outs."""
        self.is_stopped = self.is_aborted = True
        for target in self._targets:
            target.close()

    async def run_open_loop(self, dues: Iterable[ScheduledShot]) -> None:
        """Send each request at its time; return after the last answer."""
        began_at = self._clock.now() + LEAD_S
        n_overdue = 0
        async with asyncio.TaskGroup() as group:
            for due in dues:
                zero_at = began_at + due.shift_s
                if self._clock.now() < zero_at + due.shot.at_s:
                    n_overdue = 0
                    await self._sleep_until(zero_at + due.shot.at_s)
                elif (n_overdue := n_overdue + 1) % MAX_OVERDUE_IN_A_ROW == 0:
                    await asyncio.sleep(0)
                if self.is_stopped:
                    break
                group.create_task(self._run_conversation(due.target, due.shot, zero_at))
            self.is_all_sent = True

    async def run_closed_loop(self, rounds: Iterable[LoadRound], shots: Sequence[Iterator[Shot]], n_concurrent: int) -> None:
        """In each round `n_concurrent` callers send requests to its target; a round ends with their last answers. `shots`:
        an endless sequence for each target."""
        for turn in rounds:
            if self.is_stopped or self._has_enough(turn.target):
                continue
            zero_at = self._clock.now() - turn.own_from_s
            async with asyncio.TaskGroup() as group:
                for _ in range(n_concurrent):
                    group.create_task(self._run_caller(turn, zero_at, shots[turn.target]))

    async def _run_caller(self, turn: LoadRound, zero_at: float, shots: Iterator[Shot]) -> None:
        ends_s = turn.own_from_s + turn.seconds
        while not self.is_stopped and not self._has_enough(turn.target):
            at_s = self._clock.now() - zero_at
            if at_s >= ends_s:
                return
            shot = msgspec.structs.replace(next(shots), at_s=at_s)
            error = await self._run_conversation(turn.target, shot, zero_at, ends_s)
            if error is Error.CONNECT:
                await asyncio.sleep(AFTER_FAILED_CONNECT_S)

    def _has_enough(self, target: int) -> bool:
        n_requests = self._config.n_requests
        return n_requests is not None and len(self.records[target].lateness_s) >= n_requests

    async def _run_conversation(self, target: int, shot: Shot, zero_at: float, ends_s: float | None = None) -> Error:
        """Send a request and the later turns of its conversation. A failed turn ends the conversation; its error is
        returned."""
        until_s = self._config.until_s if ends_s is None else ends_s
        while True:
            sample = await self._send(target, shot, zero_at)
            if shot.next_turn is None or sample.error is not Error.NONE:
                return sample.error
            at_s = sample.ended_s + shot.next_turn.think_s
            if until_s is not None and at_s >= until_s:
                return Error.NONE
            shot = msgspec.structs.replace(shot.next_turn, at_s=at_s)
            await self._sleep_until(zero_at + at_s)
            if self.is_stopped:
                return Error.NONE

    async def _send(self, target: int, shot: Shot, zero_at: float) -> Sample:
        record = self.records[target]
        is_measured = shot.at_s >= 0
        now = self._clock.now()
        timeout_at = zero_at + shot.at_s + self._config.timeout_s
        row = len(record.lateness_s)
        if is_measured:
            record.lateness_s.append(now - zero_at - shot.at_s)
            record.last_began_s = max(record.last_began_s, now - zero_at)
            record.last_at_s = max(record.last_at_s, shot.at_s)
        if now >= timeout_at:
            sample = Sample(shot.number, shot.at_s, error=Error.UNSENT)
        else:
            record.n_sent += 1
            gaps = record.gaps if is_measured else self._warmup_gaps
            sample = await self._targets[target].send(DueShot(shot, zero_at, timeout_at, gaps))
            record.n_done += 1
        if sample.error is not Error.NONE:
            record.n_bad += 1
            record.n_unsent += sample.error is Error.UNSENT and is_measured
        if sample.error is Error.CONNECT:
            record.unreached = record.unreached or sample.excerpt
        else:
            record.excerpt = record.excerpt or sample.excerpt
        if is_measured:
            if not isnan(sample.lateness_s):
                record.lateness_s[row] = sample.lateness_s  # includes the client's time to build the request
            record.samples.add(sample)
        return sample

    async def _sleep_until(self, at: float) -> None:
        """Return at the instant `at`, never earlier unless the run is stopped."""
        clock, spin_s = self._clock, self._config.spin_s
        while True:
            left_s = at - clock.now()
            if left_s <= 1e-9 or self.is_stopped:
                return
            await asyncio.sleep(min(left_s - spin_s, MAX_SLEEP_S) if left_s > spin_s else 0)


def interleave_targets(shots: Sequence[Shot], n_targets: int, warmup_s: float, block_s: float,
                       rng: Random) -> Iterator[ScheduledShot]:
    """Interleave targets: each block of `block_s` seconds of the schedule is sent to one target, then to the next, in a new
    random order for each block.

    At any moment one target has the whole load, all get the same requests, and slow changes of the machine or the network
    affect all alike. A target's schedule only advances during its own blocks.
    """
    if n_targets == 1:
        yield from (ScheduledShot(shot, 0, warmup_s) for shot in shots)
        return
    blocks = {number: list(block) for number, block in groupby(
        shots, lambda shot: -1 if shot.at_s < 0 else int(shot.at_s / block_s))}
    numbers = range(-1 if warmup_s else 0, max(blocks, default=-1) + 1)
    for turn, number, began_s in _interleave(numbers, n_targets, warmup_s, block_s, rng):
        for shot in blocks.get(number, ()):
            yield ScheduledShot(shot, turn.target, began_s - turn.own_from_s)


def make_rounds(seconds: float, n_targets: int, warmup_s: float, block_s: float, rng: Random) -> Iterator[LoadRound]:
    """The rounds of a closed loop: the whole time for a single target, else blocks as in `interleave_targets`."""
    if n_targets == 1:
        yield LoadRound(0, -warmup_s, warmup_s + seconds)
        return
    n_blocks = max(1, round(seconds / block_s))
    numbers = range(-1 if warmup_s else 0, n_blocks)
    for turn, _, _ in _interleave(numbers, n_targets, warmup_s, seconds / n_blocks, rng):
        yield turn


def _interleave(numbers: range, n_targets: int, warmup_s: float, block_s: float,
                rng: Random) -> Iterator[tuple[LoadRound, int, float]]:
    """Each round with the number of its block and its start in seconds from the start of the run."""
    began_s = 0.0
    for number in numbers:
        own_from_s, seconds = (-warmup_s, warmup_s) if number < 0 else (number * block_s, block_s)
        for target in rng.sample(range(n_targets), n_targets):
            yield LoadRound(target, own_from_s, seconds), number, began_s
            began_s += seconds
