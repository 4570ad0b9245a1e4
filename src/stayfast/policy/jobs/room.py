"""How many jobs an upstream has room for, so that jobs are never in the way of requests whose clients wait.

Problem: a queue of a million jobs takes every place that it gets. At a provider with a limit, the next interactive request
then waits. At an engine that batches, each extra answer slows all others, long before any limit.
Rule, for one upstream:

    room = 0                                              while an interactive request waits for a place there
    room = min(free - reserve, allowed - n_jobs)          else

`free` is the adaptive limit without what is in use. `reserve` is a quarter of the limit, and at least 1 if an interactive
request came within QUIET_S. `allowed` is a scavenger's congestion window, in jobs, in the manner of LEDBAT and TCP-LP: it
yields at the first sign of delay. A sample is the time to first token of an interactive request, relative to the usual time
of such a request without jobs. "Such" is the same size of prompt and the same number of other interactive requests at the
upstream, both in powers of two. Once in WINDOW_S, if N_LEAST samples with jobs have come, with `excess` the larger of two
signs: their mean logarithm, and the logarithm by which they exceed the usual 90th percentile more often than one in ten:

    excess < target        allowed += GAIN * (1 - excess / target)       at most +1
    excess >= target       allowed *= max(1/2, 1 - DECREASE * (excess / target - 1)),   at least SHRINK

target = log(1.05): half of the promised 10 %, because samples are noisy and the slowest requests suffer more than the mean.
Without interactive requests for QUIET_S, `allowed` grows fourfold a second, up to the limit; the next interactive request
brings it back to its last value. Without a baseline it is 1, and a baseline that is BASELINE_S old is measured anew, with no
new jobs until N_LEAST samples without jobs have come, or MEASURE_S have passed.
Source: LEDBAT (RFC 6817): delay above a base delay as the signal, a gain in proportion to the distance from the target, a
base that is renewed every 10 minutes. TCP-LP (Kuzmanovic and Knightly, 2003): back off early. The comparison by load and
size is ours, because an engine's base delay depends on both.
When wrong: running jobs are never interrupted, so a burst of interactive requests meets the jobs that run, and the first
requests after a quiet time meet many. Below N_LEAST interactive requests a window it learns slowly. A provider whose speed
varies by itself looks loaded by jobs, and gets fewer. With a limit of 1 a running job is in the way until its end.
"""

from math import floor, inf, log, log2

import msgspec

QUIET_S = 30.0
WINDOW_S = 5.0
N_LEAST = 10
TARGET = log(1.05)
GAIN = 1.0
DECREASE = 0.5
LARGEST_CUT = 0.5
SMALLEST_CUT = 0.9
BASELINE_S = 600.0
MEASURE_S = 30.0
RESERVE_SHARE = 0.25
START_ALLOWED = 1.0
TAIL_SHARE = 0.1
_LEARNS = 0.05  # weight of a sample in a baseline
_FIRST_STEPS = 20  # samples until that weight is reached
_GROWTH_A_S = 4.0
MOST_ALLOWED = 10_000.0


class UpstreamUse(msgspec.Struct, frozen=True):
    """What is in use at one upstream. limit: inf for none."""

    limit: float
    n_in_flight: int  # jobs included
    n_jobs: int
    is_waited_for: bool = False  # an interactive request waits for a place


class _Usual:
    """The usual time of one kind of request without jobs: mean and 90th percentile of its logarithm."""

    __slots__ = ("mean", "n", "p90", "spread")

    def __init__(self) -> None:
        self.n = 0
        self.mean = self.p90 = 0.0
        self.spread = 0.1  # mean distance from the mean: the scale of the percentile's steps

    def learn(self, value: float) -> None:
        self.n += 1
        if self.n == 1:
            self.mean = self.p90 = value
            return
        weight = max(_LEARNS, 1.0 / min(self.n, _FIRST_STEPS))
        self.mean += (value - self.mean) * weight
        self.spread += (abs(value - self.mean) - self.spread) * weight
        step = self.spread * 2.0 * weight
        self.p90 += step * (1.0 - TAIL_SHARE) if value > self.p90 else -step * TAIL_SHARE


class JobAllowance:
    """The scavenger of one upstream. Pure state; instants are monotonic seconds."""

    __slots__ = ("_base_at", "_excess_sum", "_interactive_at", "_is_measuring", "_measure_until", "_n_quiet", "_n_samples",
                 "_n_tail", "_quiet_at", "_quiet_floor", "_usual", "_window_at", "allowed", "excess")

    def __init__(self, now: float) -> None:
        self.allowed = START_ALLOWED
        self.excess = 0.0  # of the last window: 0.05 is five per cent
        self._usual: dict[tuple[int, int], _Usual] = {}
        self._base_at = -inf  # of the baseline
        self._is_measuring = False
        self._measure_until = -inf
        self._n_quiet = 0  # samples without jobs since the measurement began
        self._interactive_at = -inf
        self._quiet_at = now  # until when growth without traffic is counted
        self._quiet_floor: float | None = None  # `allowed` before the quiet time
        self._window_at = now
        self._n_samples = self._n_tail = 0
        self._excess_sum = 0.0

    def note_interactive(self, now: float) -> None:
        """An interactive request arrived: what a quiet time allowed is over."""
        self._interactive_at = now
        if self._quiet_floor is not None:
            self.allowed, self._quiet_floor = self._quiet_floor, None

    def is_quiet(self, now: float) -> bool:
        """Whether no interactive request came within QUIET_S."""
        return now - self._interactive_at >= QUIET_S

    def add_first_token(self, now: float, ttft_s: float, n_tokens: int, n_interactive: int, n_jobs: int) -> None:
        """The first token of an interactive request. n_tokens: of its prompt. n_interactive, n_jobs: others at the upstream
        at its start.
        """
        if ttft_s <= 0:
            return
        value = log(ttft_s)
        kind = (int(log2(max(1, n_tokens))), int(log2(n_interactive + 1)))
        usual = self._usual.get(kind)
        if not n_jobs:
            if usual is None:
                self._usual[kind] = usual = _Usual()
            usual.learn(value)
            self._n_quiet += 1
            if self._n_quiet >= N_LEAST:
                self._base_at, self._is_measuring = now, False
        elif usual is not None and usual.n >= N_LEAST:
            self._n_samples += 1
            self._excess_sum += value - usual.mean
            self._n_tail += value > usual.p90 + TARGET
        if now - self._window_at >= WINDOW_S and self._n_samples >= N_LEAST:
            self._end_window(now)

    def n_allowed(self, now: float, limit: float) -> int:
        """The most jobs that may run now."""
        if self.is_quiet(now):
            self._grow_quietly(now, limit)
        elif self._must_measure(now):
            return 0
        return floor(min(self.allowed, limit))

    def _must_measure(self, now: float) -> bool:
        """Whether a baseline is to be measured first."""
        if self._is_measuring:
            if now >= self._measure_until:  # too few requests: the old baseline, or none, must do
                self._is_measuring, self._base_at = False, now
        elif now - self._base_at >= BASELINE_S:
            self._is_measuring, self._measure_until, self._n_quiet = True, now + MEASURE_S, 0
        return self._is_measuring

    def _grow_quietly(self, now: float, limit: float) -> None:
        if self._quiet_floor is None:
            self._quiet_floor, self._quiet_at = self.allowed, now
        most = min(limit, MOST_ALLOWED)
        self.allowed = min(most, max(self.allowed, START_ALLOWED) * _GROWTH_A_S ** (now - self._quiet_at))
        self._quiet_at = now

    def _end_window(self, now: float) -> None:
        n = self._n_samples
        tail = self._n_tail / n
        tail_excess = log(tail / TAIL_SHARE) * TARGET if tail > TAIL_SHARE else 0.0
        self.excess = excess = max(self._excess_sum / n, tail_excess if n >= 2 * N_LEAST else 0.0)
        self._window_at, self._n_samples, self._n_tail, self._excess_sum = now, 0, 0, 0.0
        off = 1.0 - excess / TARGET
        if off > 0:
            self.allowed = min(MOST_ALLOWED, self.allowed + GAIN * min(1.0, off))
        else:
            self.allowed = max(START_ALLOWED, self.allowed * min(SMALLEST_CUT, max(LARGEST_CUT, 1.0 + DECREASE * off)))

    def __repr__(self) -> str:
        return f"<JobAllowance {self.allowed:.1f} jobs, excess {self.excess:.3f}>"


def room_for_jobs(use: UpstreamUse, n_allowed: int, *, is_quiet: bool) -> int:
    """How many more jobs may start at an upstream now."""
    if use.is_waited_for:
        return 0
    room = n_allowed - use.n_jobs
    if use.limit != inf:
        reserve = floor(use.limit * RESERVE_SHARE)
        room = min(room, floor(use.limit) - use.n_in_flight - (reserve if is_quiet else max(1, reserve)))
    return max(0, room)
