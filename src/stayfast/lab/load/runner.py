"""Carries out a schedule against targets and keeps what came of it. Knows no transport and no wall clock: the same code
runs over sockets and in virtual time.

Open loop: each shot goes out at its t0 whatever became of those before it; there is no cap on how many are on their way.
Closed loop: N callers, each asking again when its answer is whole, so a slow target slows the load down: for comparison
only, and labelled so.

What a run asks of whatever it measures: a server behind HTTP, or the pipeline in this process.
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


class DueShot(msgspec.Struct, frozen=True, gc=False):
    """One shot as it is due now. Instants are the clock's."""

    shot: Shot
    zero_at: float  # the run's zero: instants of the sample count from it
    timeout_at: float  # by then the answer must be whole: the user's patience, from t0
    gaps: GapCounts  # where gaps between chunks are counted, at the run's seconds


class LoadTarget(Protocol):
    """Something that answers. Task-safe."""

    @property
    def counted_by(self) -> str:
        """How output tokens were counted so far: usage, chunks, or both."""

    async def ask(self, asking: DueShot) -> Sample:
        """Ask, and say how it went. Failures, the time-out among them, are samples, never exceptions."""

    def close(self) -> None:
        """Let go of what is held between requests. Answers on their way are cut off."""


NAP_S = 0.25  # the longest sleep: by then a stop is noticed
IN_A_ROW = 16  # overdue shots sent before the loop gets to read
AFTER_FAILED_CONNECT_S = 0.1  # in a closed loop: else it is a busy loop of refusals
LEAD_S = 0.02  # between the decision to start and the first instant of the schedule


@dataclass(slots=True)
class TargetRecord:
    """What came of one target's shots. Warm-up is sent and forgotten."""

    samples: Samples = field(default_factory=Samples)
    gaps: GapCounts = field(default_factory=GapCounts)
    lateness_s: "array[float]" = field(default_factory=lambda: array("d"))
    n_sent: int = 0  # warm-up included, as in the next three
    n_done: int = 0
    n_bad: int = 0
    n_unsent: int = 0
    last_began_s: float = 0.0  # of measured shots
    last_at_s: float = 0.0
    excerpt: str = ""  # of the first failed answer that had a body
    unreached: str = ""  # why there was no connection, at first


class Due(msgspec.Struct, frozen=True, gc=False):
    """A shot for one target. It goes out `shift_s` after its `at_s`, counted from the run's start."""

    shot: Shot
    target: int
    shift_s: float


class LoadRound(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a target's own time in which it alone is under load."""

    target: int
    own_from_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How to run. `spin_s`: the last stretch before a send is waited for by turning the loop, not by its timer, which on
    uvloop is good to a millisecond only; 0 in virtual time, whose timers are exact."""

    timeout_s: float = 60.0
    spin_s: float = 0.0
    until_s: float | None = None  # no turn of a conversation starts from here on
    n_requests: int | None = None  # closed loop: measured requests

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 86_400:
            raise ValueError(f"the time-out must be above 0 and at most 86400 s, not {self.timeout_s:g}")


@dataclass(frozen=True, slots=True)
class Expected:
    """How much a run is: requests to send, None where that is not known before, and seconds until the last send."""

    n_requests: int | None
    seconds: float | None
    is_closed: bool = False


class Runner:
    """One run. Used once, by one task; `stop` and `cut` may be called from anywhere on its loop."""

    def __init__(self, targets: Sequence[LoadTarget], clock: Clock, config: RunConfig) -> None:
        self.records = [TargetRecord() for _ in targets]
        self.expected = Expected(None, None)
        self.is_stopped = False
        self.is_cut = False
        self.is_all_sent = False  # open loop: the schedule is through
        self._targets = targets
        self._clock = clock
        self._config = config
        self._forgotten = GapCounts()

    def stop(self) -> None:
        """Send nothing more; answers on their way are waited for."""
        self.is_stopped = True

    def cut(self) -> None:
        """Send nothing more and wait for nothing; what is on its way ends as a time-out."""
        self.is_stopped = self.is_cut = True
        for target in self._targets:
            target.close()

    async def open_loop(self, dues: Iterable[Due]) -> None:
        """Send each shot at its time; returns when the last answer has ended."""
        began_at = self._clock.now() + LEAD_S
        n_overdue = 0
        async with asyncio.TaskGroup() as group:
            for due in dues:
                zero_at = began_at + due.shift_s
                if self._clock.now() < zero_at + due.shot.at_s:
                    n_overdue = 0
                    await self._until(zero_at + due.shot.at_s)
                elif (n_overdue := n_overdue + 1) % IN_A_ROW == 0:
                    await asyncio.sleep(0)
                if self.is_stopped:
                    break
                group.create_task(self._converse(due.target, due.shot, zero_at))
            self.is_all_sent = True

    async def closed_loop(self, rounds: Iterable[LoadRound], shots: Sequence[Iterator[Shot]], n_concurrent: int) -> None:
        """In each round `n_concurrent` callers ask its target over and over; it ends with their last answers. `shots`: one
        endless sequence a target."""
        for turn in rounds:
            if self.is_stopped or self._has_enough(turn.target):
                continue
            zero_at = self._clock.now() - turn.own_from_s
            async with asyncio.TaskGroup() as group:
                for _ in range(n_concurrent):
                    group.create_task(self._call(turn, zero_at, shots[turn.target]))

    async def _call(self, turn: LoadRound, zero_at: float, shots: Iterator[Shot]) -> None:
        ends_s = turn.own_from_s + turn.seconds
        while not self.is_stopped and not self._has_enough(turn.target):
            at_s = self._clock.now() - zero_at
            if at_s >= ends_s:
                return
            error = await self._converse(turn.target, msgspec.structs.replace(next(shots), at_s=at_s), zero_at, ends_s)
            if error is Error.CONNECT:
                await asyncio.sleep(AFTER_FAILED_CONNECT_S)

    def _has_enough(self, target: int) -> bool:
        n_requests = self._config.n_requests
        return n_requests is not None and len(self.records[target].lateness_s) >= n_requests

    async def _converse(self, target: int, shot: Shot, zero_at: float, ends_s: float | None = None) -> Error:
        """A shot and the turns that hang on it. After a failure, which is returned, the user leaves."""
        until_s = self._config.until_s if ends_s is None else ends_s
        while True:
            sample = await self._ask(target, shot, zero_at)
            if shot.then is None or sample.error is not Error.NONE:
                return sample.error
            at_s = sample.ended_s + shot.then.think_s
            if until_s is not None and at_s >= until_s:
                return Error.NONE
            shot = msgspec.structs.replace(shot.then, at_s=at_s)
            await self._until(zero_at + at_s)
            if self.is_stopped:
                return Error.NONE

    async def _ask(self, target: int, shot: Shot, zero_at: float) -> Sample:
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
            gaps = record.gaps if is_measured else self._forgotten
            sample = await self._targets[target].ask(DueShot(shot, zero_at, timeout_at, gaps))
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
                record.lateness_s[row] = sample.lateness_s  # making the request is the client's own time, too
            record.samples.add(sample)
        return sample

    async def _until(self, at: float) -> None:
        """Return at the instant `at`, never before it; sooner only when the run is stopped."""
        clock, spin_s = self._clock, self._config.spin_s
        while True:
            left_s = at - clock.now()
            if left_s <= 1e-9 or self.is_stopped:
                return
            await asyncio.sleep(min(left_s - spin_s, NAP_S) if left_s > spin_s else 0)


def in_turn(shots: Sequence[Shot], n_targets: int, warmup_s: float, block_s: float, rng: Random) -> Iterator[Due]:
    """The same shots for each target, block by block of `block_s` seconds: all of a block go to one target, then all of
    them to the next, in an order drawn anew for each block.

    So at any moment one target has the whole load, all see the same load, and slow changes of the machine or the network
    hit all alike. A target's own time runs only while it is its turn.
    """
    if n_targets == 1:
        yield from (Due(shot, 0, warmup_s) for shot in shots)
        return
    blocks = {number: list(block) for number, block in groupby(
        shots, lambda shot: -1 if shot.at_s < 0 else int(shot.at_s / block_s))}
    for turn, number, began_s in _rounds(range(-1 if warmup_s else 0, max(blocks, default=-1) + 1), n_targets, warmup_s,
                                         block_s, rng):
        for shot in blocks.get(number, ()):
            yield Due(shot, turn.target, began_s - turn.own_from_s)


def rounds(seconds: float, n_targets: int, warmup_s: float, block_s: float, rng: Random) -> Iterator[LoadRound]:
    """The rounds of a closed loop: all of the time for a single target, else blocks as in `in_turn`."""
    if n_targets == 1:
        yield LoadRound(0, -warmup_s, warmup_s + seconds)
        return
    n_blocks = max(1, round(seconds / block_s))
    for turn, _, _ in _rounds(range(-1 if warmup_s else 0, n_blocks), n_targets, warmup_s, seconds / n_blocks, rng):
        yield turn


def _rounds(numbers: range, n_targets: int, warmup_s: float, block_s: float,
            rng: Random) -> Iterator[tuple[LoadRound, int, float]]:
    """Each round with its block's number and when it begins, in seconds from the run's start."""
    began_s = 0.0
    for number in numbers:
        own_from_s, seconds = (-warmup_s, warmup_s) if number < 0 else (number * block_s, block_s)
        for target in rng.sample(range(n_targets), n_targets):
            yield LoadRound(target, own_from_s, seconds), number, began_s
            began_s += seconds
