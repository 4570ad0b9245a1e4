"""When to ask a second time while the first attempt still runs.

Problem: the slowest one in twenty answers is slow by bad luck, and a second attempt would mostly be quick. A constant
time-out is right for one distribution; prompts differ a hundredfold and providers have bad minutes. Rule: a second attempt
is sent after the delay d at which the budget is just spent, by the live distribution S of the times to the first token of
this route, upstream and prompt size (`Survival`, F that of the upstream it goes to):

    spent(d) = S(d) + S(2d) * F(d)                  the second term where two extra attempts may be made
    d        = the least d with spent(d) <= aim,    but at least LEAST_AFTER_S
    aim      = AIM * share * (1 + PULL * (1 - wanted lately / (AIM * share)))      within 1/2 and 3/2 of AIM * share

so 5 % of extra calls make it about p95, 10 % about p90: an earlier d always has the better tail, and the budget says what
can be had. What the estimate gets wrong comes back as what was wanted lately: what was spent, and what was due and found
the budget empty. So where bad times come in bursts, room is left for the next one. The first valid token wins, the others
are closed. It is sent only where it is predicted to help:

    P(wait > t) = S(t) * F(t - d) * F(t - 2d)       p99 of that at most 1 - LEAST_GAIN of the p99 without

An attempt that a quicker one cut off at t took *at least* t. Forgotten, it would take the tail out of the samples, and the
delay would shrink and shrink. So it counts among those at risk up to t and says nothing beyond (the product-limit estimate,
bucket by bucket; inside a bucket S falls in a straight line, beyond the last end it stays where it is):

    S(t) = product over buckets b up to t of (1 - ended(b) / at_risk(b))
    at_risk(b) = attempts that ended, or were cut off, in b or later

A whole answer has no first token, and its length is most of its time: the same prompt is as long the second time. There S
is of whole answers, and a second attempt is taken to need its p95: it pays where some hang, not where some are long.
Slow just now is an upstream of whose attempts so many in a row were late (without a token after d) that chance would make
it so once in 10,000:

    n late in a row >= ln CHANCE / ln share          until one is in time, or FORGOTTEN_S after the last that was late

Second attempts go to who is not; where one upstream is, the second attempt is quickly the rule for its requests, and new
ones go elsewhere first. Silent: with fewer than MIN_SAMPLES; where all that could be asked are slow just now, failing or
refusing for lack of quota; while requests wait for places or are turned away; for requests that must not be sent twice.
Source: Dean, Barroso, "The Tail at Scale" (CACM, 2013); tower `hedge`; Kaplan, Meier, "Nonparametric Estimation from
Incomplete Observations" (JASA, 1958); the choice by budget and the feedback are ours.
When wrong: it takes attempts as independent draws, and the cutting off as unrelated to what the attempt would have taken.
Two keys of one provider in a bad minute are not; then both are slow just now after some dozen requests. Below a request a
second or so no upstream is ever slow just now.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp2, inf, log
from typing import Annotated, Literal

from stayfast.core.setting import About, check_bounds
from stayfast.policy.histogram import GAMMA, PER_OCTAVE, LogHistogram, Window

_ZERO = 30.0 * PER_OCTAVE  # a histogram's own zero


class Survival:
    """S(t), made once from two histograms; immutable. `n` counts the ended and the cut off."""

    __slots__ = ("_beyond", "_ends_s", "n")

    def __init__(self, ended: LogHistogram, cut_off: LogHistogram) -> None:
        self.n = n_at_risk = ended.n + cut_off.n
        self._ends_s: list[float] = []  # the upper ends of the buckets in which something ended
        self._beyond: list[float] = []  # S at each of them
        beyond = 1.0
        for bucket in sorted(ended.counts.keys() | cut_off.counts.keys()):
            n_ended = ended.counts.get(bucket, 0)
            if n_ended:
                beyond *= 1.0 - n_ended / n_at_risk
                self._ends_s.append(exp2((bucket + 1 - _ZERO) / PER_OCTAVE))
                self._beyond.append(beyond)
            n_at_risk -= n_ended + cut_off.counts.get(bucket, 0)

    def at(self, seconds: float) -> float:
        """The share that lasts longer than this; 1 where nothing is known."""
        index = bisect_right(self._ends_s, seconds)
        before = self._beyond[index - 1] if index else 1.0
        if index == len(self._ends_s):
            return before
        end_s = self._ends_s[index]
        begin_s = end_s / GAMMA
        if seconds <= begin_s:
            return before
        return before - (before - self._beyond[index]) * (seconds - begin_s) / (end_s - begin_s)

    def quantile(self, q: float) -> float:
        """When the share `q` has ended; infinite where that many were never seen to end."""
        for end_s, beyond in zip(self._ends_s, self._beyond, strict=True):
            if beyond <= 1.0 - q:
                return end_s
        return inf

    def __repr__(self) -> str:
        return f"<Survival of {self.n}: p50 {self.quantile(0.5):.3g} s>"


MIN_SAMPLES = 32
LEAST_AFTER_S = 0.02  # timers of a busy loop run late by some milliseconds, and nobody feels less
LEAST_GAIN = 0.2
LEAST_ROOM = 1.05  # over the share that hangs for good: without it the delay would be for ever
AIM = 0.985  # of the budget's share: what is over it waits for the budget instead of being sent in time
PULL = 1.0
CHANCE = 1e-4  # that so many in a row are late by chance
FORGOTTEN_S = 5.0
WINDOWS_S = (60.0, 300.0, 1800.0)  # the shortest that holds ENOUGH_SAMPLES
ENOUGH_SAMPLES = 500
_N_HALVINGS = 24
_JUDGED_AT = 0.01  # p99


@dataclass(frozen=True, slots=True)
class HedgeConfig:
    """Second attempts of one route. `budget`: the share of its spend that they may take."""

    mode: Annotated[Literal["auto", "off", "race"], About(
        "auto: a second attempt when the first one is slow for its kind, as the live distribution has it. race: a second "
        "one after race_after_s, always. off: none.")] = "auto"
    budget: Annotated[float, About(
        "The share of the route's spend that second attempts may come to; it decides how early they are sent.",
        more_than=0, maximum=1)] = 0.05
    max_extra: Annotated[int, About("Attempts beside the first one, at most.", minimum=1, maximum=2)] = 2
    race_after_s: Annotated[float, About("In a race: how long the first attempt runs alone.", minimum=0, maximum=60)] = 0.15
    stateful: Annotated[bool, About(
        "Whether requests that leave something behind at the provider (see retry.stateful) get second attempts, too."
    )] = False

    def __post_init__(self) -> None:
        check_bounds(self)


class Lately:
    """Whether an upstream is slow just now, on one route: more of its attempts in a row were late than chance explains.
    `share`: of the attempts that are late in usual times.
    """

    __slots__ = ("_at", "_n_slow", "n")

    def __init__(self, share: float) -> None:
        self.n = 0  # late ones in a row
        self._n_slow = ceil(log(CHANCE) / log(min(share, 0.5)))
        self._at = float("-inf")

    def late(self, now: float) -> None:
        """An attempt has no token when the next one is due."""
        self.n += 1
        self._at = now

    def is_slow(self, now: float) -> bool:
        """Whether a further attempt would be in vain."""
        return self.n >= self._n_slow and now - self._at < FORGOTTEN_S

    def __repr__(self) -> str:
        return f"<Lately: {self.n} late in a row>"


class FirstTokens:
    """The times to the first token of one upstream on one route, for one size of prompt. Instants must not go back. An
    attempt that still runs has taken at least its age: without those, an upstream that has begun to hang looks quick.
    """

    __slots__ = ("_cut_off", "_ended", "_lately", "_running", "due_s", "n")

    def __init__(self, lately: Lately) -> None:
        self.n = 0  # first tokens since the start
        self.due_s = inf  # what takes longer is late
        self._lately = lately
        self._ended = Window()
        self._cut_off = Window()
        self._running: dict[object, float] = {}  # when it began

    def began(self, attempt: object, now: float) -> None:
        """An attempt begins; `attempt` is whatever tells it from the others."""
        self._running[attempt] = now

    def took(self, attempt: object, now: float) -> None:
        """It brought its first token."""
        began_at = self._running.pop(attempt, None)
        if began_at is not None:
            self.n += 1
            seconds = now - began_at
            if seconds <= self.due_s:
                self._lately.n = 0
            self._ended.add(seconds, now)

    def cut_off(self, attempt: object, now: float) -> None:
        """It was ended without a token, for a reason that was not its own."""
        began_at = self._running.pop(attempt, None)
        if began_at is not None:
            self._cut_off.add(now - began_at, now)

    def failed(self, attempt: object) -> None:
        """It failed: that says nothing about how long a token takes."""
        self._running.pop(attempt, None)

    def add_last(self, seconds: float, now: float, ended: LogHistogram, cut_off: LogHistogram) -> None:
        """Add what is known of the last `seconds`."""
        self._ended.add_last(seconds, now, ended)
        self._cut_off.add_last(seconds, now, cut_off)
        for began_at in self._running.values():
            cut_off.add(now - began_at)

    def __repr__(self) -> str:
        return f"<FirstTokens: {self._ended!r}, {len(self._running)} running>"


def live(of: Sequence[FirstTokens], now: float) -> Survival:
    """The distribution of now: the last minute's, or of more where there is little traffic."""
    ended, cut_off = LogHistogram(), LogHistogram()
    for seconds in WINDOWS_S:
        ended, cut_off = LogHistogram(), LogHistogram()
        for one in of:
            one.add_last(seconds, now, ended, cut_off)
        if ended.n + cut_off.n >= ENOUGH_SAMPLES:
            break
    return Survival(ended, cut_off)


@dataclass(frozen=True, slots=True)
class Plan:
    """When a second attempt may go out. `after_s` is infinite where none helps; `usual_s` is the median."""

    after_s: float
    quantile: float  # of the live distribution, which `after_s` is
    n: int  # samples that say so
    usual_s: float


NEVER = Plan(inf, 1.0, 0, inf)


def aim(share: float, spent_share: float) -> float:
    """The share of calls that is to be hedged, from what the budget allows and what was spent lately."""
    wanted = AIM * share
    return wanted * min(1.5, max(0.5, 1.0 + PULL * (1.0 - spent_share / wanted)))


def plan(first: Survival, second: Survival, share: float, max_extra: int, *, is_whole: bool = False) -> Plan:
    """When to send second attempts, so that they come to `share` of the calls; never, where they would not help. `first` is
    of the upstream that was asked, `second` of the one that is asked next. `is_whole`: of whole answers.
    """
    if max(first.n, second.n) < MIN_SAMPLES:
        return NEVER
    if second.n < MIN_SAMPLES:  # a spare that is asked for nothing else is taken to be like the other one, until it is known
        second = first
    elif first.n < MIN_SAMPLES:
        first = second
    after_s = max(LEAST_AFTER_S, _affordable_s(first, second, share, max_extra))
    sure_s = second.quantile(0.95) if is_whole else 0.0

    def waits_longer(seconds: float) -> float:
        share_left = first.at(seconds)
        for n in range(1, max_extra + 1):
            since_s = seconds - n * after_s
            if since_s > 0:
                share_left *= (1.0 if since_s < sure_s else 0.0) if is_whole else second.at(since_s)
        return share_left

    plain_s = first.quantile(1.0 - _JUDGED_AT)
    if waits_longer(plain_s * (1.0 - LEAST_GAIN) if plain_s < inf else 10.0 * after_s + sure_s) > _JUDGED_AT:
        return NEVER
    return Plan(after_s, 1.0 - first.at(after_s), first.n, second.quantile(0.5))


def _affordable_s(first: Survival, second: Survival, share: float, max_extra: int) -> float:
    """The least delay whose second and third attempts come to at most `share` of the calls; by halving, in logarithms."""

    def spent(seconds: float) -> float:
        deeper = first.at(2 * seconds) * second.at(seconds) if max_extra > 1 else 0.0
        return first.at(seconds) + deeper

    low_s, high_s = LEAST_AFTER_S, 1000.0
    share = max(share, LEAST_ROOM * spent(high_s))  # where more hang than can be paid for, the budget picks
    for _ in range(_N_HALVINGS):
        middle_s = (low_s * high_s) ** 0.5
        if spent(middle_s) > share:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
