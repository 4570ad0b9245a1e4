"""Hedging: when a second attempt is sent while the first still runs, and how much it may cost.

Problem: the slowest of twenty answers is often slow by chance, and a second attempt would mostly be fast. A constant
time-out fits one distribution, but prompts vary a hundredfold and providers have bad minutes. Rule: send the hedge after the
shortest delay d at which hedges add no more than an allowed share of calls. S(t) is the share of attempts at this upstream
without a first token after t, for this route and prompt size (`Survival`); F is the same for the second upstream:

    spent(d) = S(d) + S(2d) * F(d)                  the second term only if two extra attempts are allowed
    d        = the least d with spent(d) <= aim,    but at least LEAST_AFTER_S
    aim      = AIM * share * (1 + PULL * (1 - recent demand / (AIM * mean share)))  within 1/2 and 3/2 of AIM * share
    share    = `budget`; auto: the one of SHARES with the least  ln p99(share) + WORTH * spent(d),
               from P(wait > t) = S(t) * F(t - d) * F(t - 2d)

The recent demand is the share of calls that were hedged, or were not because the budget was empty; it corrects errors of the
estimate. `auto` takes the largest share at which 1 % more calls still lowers p99 by 3.5 %, computed every RECHOOSE_EVERY_S.
The share in force starts at 10 % and moves towards it, by 1/500 of the difference per new answer and at most by a quarter of
it. The budget (policy/resilience/retry_budget.py) is a hard limit. Hedges start only if they are predicted to lower p99 by
LEAST_GAIN, and continue while they are predicted to lower it by half of that.

For whole (not streamed) answers S is of the whole duration. It mostly depends on the length of the answer, which is the same
for the hedge. So the hedge is assumed to take as long as the first attempt had run, and at least its p90, and p99 must fall
by LEAST_GAIN_WHOLE.

An upstream is slow now after n >= ln CHANCE / ln share late attempts in a row (no token after d), until an attempt is not
late, or for FORGET_AFTER_S. Hedges avoid such upstreams.
Source: Dean, Barroso, "The Tail at Scale" (CACM, 2013); tower `hedge`; the choice by budget, the feedback, and the price of
a call in per cent of p99 are ours.
When wrong: attempts are assumed independent, and cancellations unrelated to the attempt's own duration; two keys of one
provider are not independent. Below about one request a second, no upstream is ever found slow now. If the lengths of whole
answers vary more than a lognormal of sigma 1.3, the longest look like hanging attempts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.histogram import LogHistogram, Window
from stayfast.policy.merged_times import MergedTimes
from stayfast.policy.resilience.survival import Survival

MIN_SAMPLES = 32
LEAST_AFTER_S = 0.02  # timers of a busy loop run some milliseconds late, and users do not notice a shorter delay
SHARES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1)  # candidates for the share of extra calls
MOST = SHARES[-1]
WORTH = 3.5  # 1 % of extra calls is worth 3.5 % of p99
SETTLED = 0.005  # least gain in p99 for a change of the share
RECHOOSE_EVERY_S = 5.0
LEAST_GAIN, LEAST_GAIN_WHOLE = 0.2, 0.5
LEAST_ROOM = 1.05  # relative to the share of attempts that never end; without it the delay would be infinite
AIM = 0.985  # of the budget's share; the budget would delay hedges beyond the share
PULL = 1.0
CHANCE = 1e-4  # probability of a streak of late attempts by chance
FORGET_AFTER_S = 5.0
WINDOWS_S = (60.0, 300.0, 1800.0)  # the shortest with ENOUGH_SAMPLES is used
ENOUGH_SAMPLES = 500
_N_HALVINGS = 24
_JUDGED_AT = 0.01  # p99
_SURE_AT = 0.9  # quantile of whole answers: a second attempt is assumed to take at least as long
_LONGEST_S = 1000.0


@dataclass(frozen=True, slots=True)
class HedgeConfig:
    """Hedging on one route. `budget`: the share of its traffic that hedges may add."""

    mode: Annotated[Literal["auto", "off", "race"], SettingDoc(
        "auto: a second attempt if the first is slow by the live distribution. race: always, after `race_after_s`. off: "
        "none.")] = "auto"
    budget: Annotated[float | Literal["auto"], SettingDoc(
        "Largest cost share of second attempts. auto: 2 % to 10 %, while 1 % more calls cuts p99 by 3.5 %.",
        more_than=0, maximum=1)] = "auto"
    max_extra: Annotated[int, SettingDoc("Most extra attempts.", minimum=1, maximum=2)] = 2
    race_after_s: Annotated[float, SettingDoc("Delay of the second attempt in a race.", minimum=0, maximum=60)] = 0.15
    allow_stateful: Annotated[bool, SettingDoc(
        "Also hedge requests with side effects at the provider (see retry.allow_stateful).")] = False

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def max_share(self) -> float:
        return MOST if self.budget == "auto" else self.budget


class LateStreak:
    """Whether an upstream is slow now on one route. `share`: the usual share of late attempts."""

    __slots__ = ("_at", "_n_slow", "n")

    def __init__(self, share: float) -> None:
        self.n = 0  # late attempts in a row
        self._n_slow = ceil(log(CHANCE) / log(min(share, 0.5)))
        self._at = float("-inf")

    def record_late(self, now: float) -> None:
        """Count an attempt that has no token when its hedge is due."""
        self.n += 1
        self._at = now

    def is_slow(self, now: float) -> bool:
        return self.n >= self._n_slow and now - self._at < FORGET_AFTER_S


class FirstTokens:
    """Times to first token of one upstream on one route, for one size of prompt. Instants must not go back. A running
    attempt counts with its present age; without it an upstream that has started to hang would look fast.
    """

    __slots__ = ("_cut_off", "_ended", "_running", "_streak", "due_s", "n")

    def __init__(self, streak: LateStreak) -> None:
        self.n = 0  # first tokens since the start
        self.due_s = inf  # an attempt without a token after this time is late
        self._streak = streak
        self._ended = Window()
        self._cut_off = Window()
        self._running: dict[object, float] = {}  # the start of each running attempt

    def start_attempt(self, attempt: object, now: float) -> None:
        """Start an attempt; `attempt` is any unique object."""
        self._running[attempt] = now

    def record_first_token(self, attempt: object, now: float) -> None:
        began_at = self._running.pop(attempt, None)
        if began_at is not None:
            self.n += 1
            seconds = now - began_at
            if seconds <= self.due_s:
                self._streak.n = 0
            self._ended.add(seconds, now)

    def record_cancelled(self, attempt: object, now: float) -> None:
        """An attempt was cancelled without a token, for a reason other than its own failure."""
        began_at = self._running.pop(attempt, None)
        if began_at is not None:
            self._cut_off.add(now - began_at, now)

    def drop_attempt(self, attempt: object) -> None:
        """An attempt failed; its duration is not a time to first token."""
        self._running.pop(attempt, None)

    def add_recent_to(self, seconds: float, now: float, ended: LogHistogram, cut_off: LogHistogram) -> None:
        """Add the attempts of the last `seconds` to two histograms: those with a first token, and those cancelled or
        running.
        """
        self._ended.add_recent_to(seconds, now, ended)
        self._cut_off.add_recent_to(seconds, now, cut_off)
        for began_at in self._running.values():
            cut_off.add(now - began_at)


def live_distribution(of: Sequence[FirstTokens], now: float, more: Sequence[MergedTimes] = ()) -> Survival:
    """The distribution of the last minute, or of a longer time if that has too few samples. more: of other processes."""
    ended, cut_off = recent_histograms(of, now)
    for times in more:
        ended.merge(LogHistogram(times.ended))
        cut_off.merge(LogHistogram(times.cut_off))
    return Survival(ended, cut_off)


def recent_histograms(of: Sequence[FirstTokens], now: float) -> tuple[LogHistogram, LogHistogram]:
    """The attempts of the last minute, or of a longer time if that has too few: those with a first token, and the others."""
    ended, cut_off = LogHistogram(), LogHistogram()
    for seconds in WINDOWS_S:
        ended, cut_off = LogHistogram(), LogHistogram()
        for tokens in of:
            tokens.add_recent_to(seconds, now, ended, cut_off)
        if ended.n + cut_off.n >= ENOUGH_SAMPLES:
            break
    return ended, cut_off


@dataclass(frozen=True, slots=True)
class HedgePlan:
    """When a hedge may be sent. `after_s`: infinite if a hedge would not help. `usual_s`: the median time to first token of
    the hedge's target.
    """

    after_s: float
    quantile: float  # of the live distribution, at `after_s`
    n: int  # samples
    usual_s: float
    why_never: str = ""


NO_HEDGE = HedgePlan(inf, 1.0, 0, inf)


def aim_share(share: float, spent_share: float, mean_share: float | None = None) -> float:
    """The share of calls to hedge. `share`: the allowed one; `spent_share`: the recent demand; `mean_share`: the mean of the
    allowed shares of all calls in `spent_share`; None: `share`.
    """
    wanted, mean = AIM * share, AIM * (share if mean_share is None else mean_share)
    return wanted * min(1.5, max(0.5, 1.0 + PULL * (1.0 - spent_share / mean))) if mean > 0 else wanted


def plan_hedge(first: Survival, second: Survival, share: float, max_extra: int, *, is_whole: bool = False,
               is_hedged: bool = False) -> HedgePlan:
    """The delay at which hedges add `share` to the calls; infinite if they would not help. `first`, `second`: the
    distributions of the upstreams of the first attempt and of the hedge. `is_whole`: of whole answers. `is_hedged`: such
    calls are being hedged already.
    """
    n = max(first.n, second.n)
    if n < MIN_SAMPLES:
        return HedgePlan(inf, 1.0, n, inf, f"only {n} of {MIN_SAMPLES} attempts are known")
    first, second = _fill_unknown(first, second)
    after_s = max(LEAST_AFTER_S, _affordable_delay_s(first, second, share, max_extra))
    least = (LEAST_GAIN_WHOLE if is_whole else LEAST_GAIN) * (0.5 if is_hedged else 1.0)
    plain_s = first.quantile(1.0 - _JUDGED_AT)
    judged_s = plain_s * (1.0 - least)
    if judged_s == inf:
        judged_s = 10.0 * after_s + _least_hedge_s(second, after_s, is_whole=is_whole)
    if _wait_distribution(first, second, after_s, max_extra, is_whole=is_whole)(judged_s) > _JUDGED_AT:
        return HedgePlan(inf, 1.0, first.n, second.quantile(0.5), f"p99 of {first.n} would not fall by {least:.0%}")
    return HedgePlan(after_s, 1.0 - first.share_beyond(after_s), first.n, second.quantile(0.5))


def choose_share(first: Survival, second: Survival, max_extra: int, *, is_whole: bool = False,
                 present: float = MOST) -> float:
    """The best of SHARES. The one nearest to `present` is kept unless another is better by SETTLED; MOST if there are too
    few samples.
    """
    if max(first.n, second.n) < MIN_SAMPLES:
        return MOST
    first, second = _fill_unknown(first, second)
    settled = min(SHARES, key=lambda share: abs(share - present))

    def price(share: float) -> float:
        after_s = max(LEAST_AFTER_S, _affordable_delay_s(first, second, share, max_extra))
        waits_longer = _wait_distribution(first, second, after_s, max_extra, is_whole=is_whole)
        spent = max(share, _extra_share(first, second, after_s, max_extra))
        return log(_bisect_s(waits_longer, _JUDGED_AT)) + WORTH * spent - (SETTLED if share == settled else 0.0)

    return min(SHARES, key=price)


def _fill_unknown(first: Survival, second: Survival) -> tuple[Survival, Survival]:
    """The two distributions; one with too few samples is replaced by the other."""
    if second.n < MIN_SAMPLES:
        return first, first
    return (second, second) if first.n < MIN_SAMPLES else (first, second)


def _least_hedge_s(second: Survival, after_s: float, *, is_whole: bool) -> float:
    """The least time that a hedge is assumed to take."""
    if not is_whole:
        return 0.0
    usual_s = second.quantile(_SURE_AT)
    return max(after_s, usual_s) if usual_s < inf else after_s


def _wait_distribution(first: Survival, second: Survival, after_s: float, max_extra: int, *,
                       is_whole: bool) -> Callable[[float], float]:
    """A function of a time: the predicted share of requests that wait longer than that."""
    sure_s = _least_hedge_s(second, after_s, is_whole=is_whole)

    def waits_longer(seconds: float) -> float:
        share_left = first.share_beyond(seconds)
        for n in range(1, max_extra + 1):
            since_s = seconds - n * after_s
            if since_s > sure_s:
                share_left *= second.share_beyond(since_s)
        return share_left

    return waits_longer


def _extra_share(first: Survival, second: Survival, after_s: float, max_extra: int) -> float:
    """The share of extra calls with this delay."""
    deeper = first.share_beyond(2 * after_s) * second.share_beyond(after_s) if max_extra > 1 else 0.0
    return first.share_beyond(after_s) + deeper


def _affordable_delay_s(first: Survival, second: Survival, share: float, max_extra: int) -> float:
    """The least delay whose extra calls are at most `share` of all."""
    # if more attempts hang than the budget allows, the budget decides which are hedged
    share = max(share, LEAST_ROOM * _extra_share(first, second, _LONGEST_S, max_extra))
    return _bisect_s(lambda seconds: _extra_share(first, second, seconds, max_extra), share)


def _bisect_s(falls: Callable[[float], float], to: float) -> float:
    """The time at which the decreasing function `falls` reaches `to`; at most _LONGEST_S. By bisection of the logarithm."""
    low_s, high_s = LEAST_AFTER_S, _LONGEST_S
    for _ in range(_N_HALVINGS):
        middle_s = (low_s * high_s) ** 0.5
        if falls(middle_s) > to:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
