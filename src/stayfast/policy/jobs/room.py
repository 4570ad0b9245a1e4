"""How many jobs an upstream has room for, so that jobs are never in the way of requests whose clients wait.

Problem: a queue of a million jobs takes every place that it gets. At a provider with a limit, the next interactive request
then waits. At an engine that batches, each extra answer slows all others, long before any limit.
Rule, for one upstream:

    room = 0                                              while an interactive request waits for a place there
    room = min(free - reserve, allowed - n_jobs)          else

`free` is the adaptive limit without what is in use. `reserve` is a quarter of the limit, and at least 1 if an interactive
request came within QUIET_S. `allowed` is a scavenger's congestion window, in jobs, in the manner of LEDBAT and TCP-LP: it
yields at the first sign of delay. Signs are the time to first token of interactive requests, and the mean gap between their
tokens. Without jobs, a regression learns their logarithms by the size of the prompt and the number of other interactive
requests; with jobs, what it leaves is the interference. `excess` is the mean of that, `error` its standard error from the
means of blocks of neighbours, because requests in one burst are slow together:

    excess + error < target          allowed += 1        (by a quarter until the first cut)
    excess - error > target          allowed *= sqrt(target / excess), within 0.5 and 0.9
    the p90 rose by the target       the same cut: more than a tenth exceed the usual p90 by it

The target is 5 % for first tokens, half of what is promised for the p99, and 10 % for gaps. Without interactive requests for
QUIET_S, `allowed` grows fourfold a second, up to the limit; the next one brings it back to its last value. What is usual is
measured every BASELINE_S, with no new jobs until N_BASELINE samples without jobs have come, or MEASURE_S have passed. Fewer
than BLOCK interactive requests since the last quiet time start no measurement: one request must not stop all jobs.
Source: LEDBAT (RFC 6817): delay above a base delay as the signal, a window that grows by at most one, a base that is renewed
every 10 minutes. TCP-LP (Kuzmanovic and Knightly, 2003): back off early. Regression and evidence are ours, because the base
delay of an engine depends on load and prompt, and varies by itself.
When wrong: running jobs are never interrupted, so a burst of interactive requests meets the jobs that run, and the first
requests after a quiet time meet many. It learns from some dozen interactive requests at a time: with few of them, slowly. A
provider whose speed varies by itself looks loaded by jobs, and gets fewer. With a limit of 1 a running job is in the way
until its end. Processes that share an upstream each keep a window of their own.
"""

from math import floor, inf, log, sqrt

import msgspec

QUIET_S = 30.0
WINDOW_S = 5.0  # at least, between two decisions
BLOCK = 10  # neighbours: requests in a burst are slow together
N_BLOCKS, N_MOST = 4, 600  # least blocks and most samples of a decision
Z = 1.0  # standard errors
TTFT_TARGET, GAP_TARGET = log(1.05), log(1.1)
TAIL_SHARE = 0.1
GAIN = 1.0  # jobs
START_GROWTH = 0.25  # of what is allowed, until the first cut
LARGEST_CUT, SMALLEST_CUT = 0.5, 0.9
BASELINE_S = 600.0
MEASURE_S = 120.0
N_BASELINE = 300
RESERVE_SHARE = 0.25
START_ALLOWED = 1.0
MOST_ALLOWED = 10_000.0
_GROWTH_A_S = 4.0
_KEEPS = 1.0 - 1.0 / 2000
_FIRST_GAIN = 100.0
_LEAST_PULL = 0.01
_N_WEIGHTS = 3


class UpstreamUse(msgspec.Struct, frozen=True):
    """What is in use at one upstream. limit: inf for none."""

    limit: float
    n_in_flight: int  # jobs included
    n_jobs: int
    is_waited_for: bool = False  # an interactive request waits for a place


class UsualDelay:
    """The logarithm of a delay of interactive requests without jobs, by the size of the prompt and the number of other
    interactive requests: recursive least squares that forget, and the spread of what they leave.
    """

    __slots__ = ("_gain", "_weights", "n", "p90", "variance")

    def __init__(self) -> None:
        self.n = 0
        self.variance = 0.1  # of the rest
        self.p90 = 0.0  # the 90th percentile of the rest
        self._weights = [0.0, 0.0, 0.0]
        self._gain = [[_FIRST_GAIN, 0.0, 0.0], [0.0, _FIRST_GAIN, 0.0], [0.0, 0.0, _FIRST_GAIN]]

    def rest(self, sample: tuple[float, float, float], value: float) -> float:
        """How much larger `value` is than usual."""
        return value - sum([weight * x for weight, x in zip(self._weights, sample, strict=True)])

    def learn(self, sample: tuple[float, float, float], value: float) -> None:
        gain = self._gain
        rest = self.rest(sample, value)
        spread = [sum([g * x for g, x in zip(row, sample, strict=True)]) for row in gain]
        keeps = _KEEPS if gain[0][0] + gain[1][1] + gain[2][2] < _FIRST_GAIN else 1.0  # else it would grow without bound
        scale = keeps + sum([x * s for x, s in zip(sample, spread, strict=True)])
        step = [s / scale for s in spread]
        self._weights = [weight + s * rest for weight, s in zip(self._weights, step, strict=True)]
        self._gain = [[(gain[i][j] - step[i] * spread[j]) / keeps for j in range(3)] for i in range(3)]
        self.n += 1
        if self.n > _N_WEIGHTS:
            weight = max(1.0 - _KEEPS, 1.0 / (self.n - _N_WEIGHTS))
            self.variance += (rest * rest - self.variance) * weight
            pull = 2.0 * sqrt(self.variance) * max(_LEAST_PULL, weight)
            self.p90 += pull * (1.0 - TAIL_SHARE) if rest > self.p90 else -pull * TAIL_SHARE


class BlockMean:
    """The mean of values that come in bursts, and its standard error, from the means of blocks of BLOCK neighbours."""

    __slots__ = ("_block_sum", "_n_in_block", "_squares", "mean", "n_blocks")

    def __init__(self) -> None:
        self.n_blocks = self._n_in_block = 0
        self.mean = self._squares = self._block_sum = 0.0

    def add(self, value: float) -> None:
        self._block_sum += value
        self._n_in_block += 1
        if self._n_in_block == BLOCK:
            block = self._block_sum / BLOCK
            self._n_in_block, self._block_sum = 0, 0.0
            self.n_blocks += 1
            away = block - self.mean
            self.mean += away / self.n_blocks
            self._squares += away * (block - self.mean)

    @property
    def square_error(self) -> float:
        """The square of the standard error; infinite for fewer than two blocks."""
        n = self.n_blocks
        return self._squares / (n - 1) / n if n > 1 else inf


class DelaySign:
    """One sign of interference: how much longer a delay of interactive requests is with jobs than without."""

    __slots__ = ("_base", "_n_tail", "_rest", "_target", "n", "usual")

    def __init__(self, target: float) -> None:
        """target: as a logarithm."""
        self._target = target
        self._base = BlockMean()  # what the model leaves of delays without jobs
        self.usual = UsualDelay()
        self.clear()

    def add(self, seconds: float, n_tokens: int, n_interactive: int, n_jobs: int) -> None:
        """A delay beside so many others."""
        sample, value = (1.0, log(max(1, n_tokens)), log(n_interactive + 1)), log(seconds)
        rest = self.usual.rest(sample, value)
        if not n_jobs:
            if self.usual.n >= BLOCK:
                self._base.add(rest)
            self.usual.learn(sample, value)
        elif self.usual.n >= BLOCK:
            self.n += 1
            self._rest.add(rest)
            self._n_tail += rest > self.usual.p90 + self._target

    @property
    def excess(self) -> float:
        """The mean so far, as a logarithm; 0 without samples."""
        return self._rest.mean

    @property
    def overshoot(self) -> float:
        """The excess in units of the target, at least 1."""
        return max(1.0, self.excess / self._target)

    def decide(self) -> int:
        """1: more jobs do no harm, -1: there are too many, 0: not known yet."""
        n, mean = self.n, self._rest.mean
        if self._rest.n_blocks < N_BLOCKS:
            return 0
        tail = self._n_tail / n
        base_error = self._base.square_error if self._base.n_blocks > 1 else 0.0
        error = Z * sqrt(self._rest.square_error + base_error)
        tail_error = Z * sqrt(BLOCK / 2 * max(tail, TAIL_SHARE) * (1.0 - tail) / n)
        if mean - error > self._target or tail - tail_error > TAIL_SHARE:
            return -1
        if mean + error < self._target and tail - tail_error <= TAIL_SHARE:
            return 1
        return 0 if n < N_MOST else 1 if mean < self._target else -1

    def clear(self) -> None:
        """Begin a new window."""
        self.n = self._n_tail = 0
        self._rest = BlockMean()


class JobAllowance:
    """The scavenger of one upstream. Pure state; instants are monotonic seconds."""

    __slots__ = ("_base_at", "_first_token", "_gap", "_has_cut", "_interactive_at", "_is_measuring", "_measure_until",
                 "_n_interactive", "_n_quiet", "_quiet_at", "_quiet_floor", "_window_at", "allowed", "excess")

    def __init__(self, now: float) -> None:
        self.allowed = START_ALLOWED
        self.excess = 0.0  # at the last decision: 0.05 is five per cent
        self._has_cut = False
        self._first_token = DelaySign(TTFT_TARGET)
        self._gap = DelaySign(GAP_TARGET)
        self._base_at = -inf  # of the baseline
        self._is_measuring = False
        self._measure_until = -inf
        self._n_interactive = 0  # requests since the last quiet time
        self._n_quiet = 0  # samples without jobs since the measurement began
        self._interactive_at = -inf
        self._quiet_at = now  # until when growth without traffic is counted
        self._quiet_floor: float | None = None  # `allowed` before the quiet time
        self._window_at = now

    def note_interactive(self, now: float) -> None:
        """An interactive request arrived: what a quiet time allowed is over."""
        self._n_interactive = 1 if self.is_quiet(now) else self._n_interactive + 1
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
        self._first_token.add(ttft_s, n_tokens, n_interactive, n_jobs)
        if not n_jobs:
            self._n_quiet += 1
            if self._n_quiet >= N_BASELINE:
                self._base_at, self._is_measuring = now, False
        if now - self._window_at >= WINDOW_S:
            self._decide(now, n_jobs)

    def add_gap(self, now: float, gap_s: float, n_interactive: int, n_jobs: int) -> None:
        """The mean time between two tokens of a whole interactive answer."""
        if gap_s > 0:
            self._gap.add(gap_s, 0, n_interactive, n_jobs)

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
        elif now - self._base_at >= BASELINE_S and self._n_interactive >= BLOCK:
            self._is_measuring, self._measure_until, self._n_quiet = True, now + MEASURE_S, 0
        return self._is_measuring

    def _grow_quietly(self, now: float, limit: float) -> None:
        if self._quiet_floor is None:
            self._quiet_floor, self._quiet_at = self.allowed, now
        most = min(limit, MOST_ALLOWED)
        self.allowed = min(most, max(self.allowed, START_ALLOWED) * _GROWTH_A_S ** (now - self._quiet_at))
        self._quiet_at = now

    def _decide(self, now: float, n_jobs: int) -> None:
        """More jobs, or fewer, once there is enough evidence."""
        first_token, gap = self._first_token.decide(), self._gap.decide()
        if first_token < 0 or gap < 0:
            self.excess = self._first_token.excess
            over = max(self._first_token.overshoot, self._gap.overshoot)
            self.allowed = max(START_ALLOWED, self.allowed * min(SMALLEST_CUT, max(LARGEST_CUT, 1.0 / sqrt(over))))
            self._has_cut = True
        elif first_token > 0 and (gap > 0 or not self._gap.n):
            self.excess = self._first_token.excess
            if n_jobs + 1 >= self.allowed:  # it is used
                step = GAIN if self._has_cut else max(GAIN, self.allowed * START_GROWTH)
                self.allowed = min(MOST_ALLOWED, self.allowed + step)
        else:
            return
        self._window_at = now
        self._first_token.clear()
        self._gap.clear()

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
