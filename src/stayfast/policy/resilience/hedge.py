"""When to ask a second time while the first attempt still runs, and how much that may cost.

Problem: the slowest one in twenty answers is slow by bad luck, and a second attempt would mostly be quick. A constant
time-out is right for one distribution; prompts differ a hundredfold and providers have bad minutes. Rule: a second attempt
is sent after the delay d at which the share is just spent, by the live distribution S of the times to the first token of
this route, upstream and prompt size (`Survival`, F that of the upstream it goes to):

    spent(d) = S(d) + S(2d) * F(d)                  the second term where two extra attempts may be made
    d        = the least d with spent(d) <= aim,    but at least LEAST_AFTER_S
    aim      = AIM * share * (1 + PULL * (1 - wanted lately / (AIM * mean share)))  within 1/2 and 3/2 of AIM * share

so 5 % of extra calls make it about p95, 10 % about p90: an earlier d always has the better tail. What the estimate gets
wrong comes back as what was wanted lately: what was spent, and what was due and found the budget empty. So where bad times
come in bursts, room is left for the next one. The first valid token wins, the others are closed.

Problem: which share? A tail of 7 % needs 7 % and more, and 5 % for a provider without a tail is 5 % for nothing. Rule: by
marginal gain. With P(wait > t) = S(t) * F(t - d) * F(t - 2d), and p99(share) that of it at the share's d, a number as
`budget` is the share, and `auto` takes

    share    = the one of SHARES (2 % to 10 %) with the least  ln p99(share) + WORTH * spent(d)

which is the last one at which 1 % more calls takes 3.5 % off p99, also where the gain begins late: a tail of 7 % gains
nothing at p95 before 6 % are spent. It is chosen anew every CHOSEN_AGAIN_S, and the share in force goes a part of the way
to it, 1/500 for each new answer and a quarter at most: samples of a minute are chance. It begins with 10 %: while little is
known, the tail is what is least known. The budget (`policy.resilience.retry_budget`) lets hedges come to 10 %.
Second attempts are sent only where they are predicted to help: where p99 falls by LEAST_GAIN at least; half of that is
enough to go on. For a provider without a tail that is never: a lognormal of sigma 0.5 has p99 at 3.2 times the median, and
10 % more calls take an eighth off that.

A whole answer has no first token, and its length is most of its time: the same prompt is as long the second time. There S
is of whole answers, and a second attempt is taken to need at least as long as the first one had when it was sent, and at
least its p90; and p99 must fall by LEAST_GAIN_WHOLE. So it pays where some hang, not where some are long. Not the p95: in
the tail nothing is known but that attempts were cut off there.
Slow just now is an upstream of whose attempts so many in a row were late (without a token after d) that chance would make
it so once in 10,000:

    n late in a row >= ln CHANCE / ln share          until one is in time, or FORGOTTEN_S after the last that was late

Second attempts go to who is not; where one upstream is, the second attempt is quickly the rule for its requests, and new
ones go elsewhere first. Silent: with fewer than MIN_SAMPLES; where all that could be asked are slow just now, failing or
refusing for lack of quota; while requests wait for places or are turned away; for requests that must not be sent twice.
Source: Dean, Barroso, "The Tail at Scale" (CACM, 2013); tower `hedge`; the choice by budget, the feedback and the price
of a call in per cent of p99 are ours.
When wrong: it takes attempts as independent draws, and the cutting off as unrelated to what the attempt would have taken.
Two keys of one provider in a bad minute are not; then both are slow just now after some dozen requests. Below a request a
second or so no upstream is ever slow just now. WORTH is one taste for all: to whom a second costs more than tokens sets a
number. Answers whose lengths are spread more than a lognormal of sigma 1.3 look as if some hung.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.histogram import LogHistogram, Window
from stayfast.policy.resilience.survival import Survival

MIN_SAMPLES = 32
LEAST_AFTER_S = 0.02  # timers of a busy loop run late by some milliseconds, and nobody feels less
SHARES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1)  # of extra calls, to choose from
MOST = SHARES[-1]
WORTH = 3.5  # 1 % of extra calls is worth 3.5 % of p99
SETTLED = 0.005  # of p99, what another share must be better by
CHOSEN_AGAIN_S = 5.0
LEAST_GAIN, LEAST_GAIN_WHOLE = 0.2, 0.5
LEAST_ROOM = 1.05  # over the share that hangs for good: without it the delay would be for ever
AIM = 0.985  # of the budget's share: what is over it waits for the budget instead of being sent in time
PULL = 1.0
CHANCE = 1e-4  # that so many in a row are late by chance
FORGOTTEN_S = 5.0
WINDOWS_S = (60.0, 300.0, 1800.0)  # the shortest that holds ENOUGH_SAMPLES
ENOUGH_SAMPLES = 500
_N_HALVINGS = 24
_JUDGED_AT = 0.01  # p99
_SURE_AT = 0.9  # of whole answers, what a second attempt is taken to need at least
_LONGEST_S = 1000.0


@dataclass(frozen=True, slots=True)
class HedgeConfig:
    """Second attempts of one route. `budget`: the share of its spend that they may take."""

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
    def most(self) -> float:
        """The share of the route's spend that second attempts may come to, whatever they are worth."""
        return MOST if self.budget == "auto" else self.budget


class LateStreak:
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
        return f"<LateStreak: {self.n} late in a row>"


class FirstTokens:
    """The times to the first token of one upstream on one route, for one size of prompt. Instants must not go back. An
    attempt that still runs has taken at least its age: without those, an upstream that has begun to hang looks quick.
    """

    __slots__ = ("_cut_off", "_ended", "_lately", "_running", "due_s", "n")

    def __init__(self, lately: LateStreak) -> None:
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
class HedgePlan:
    """When a second attempt may go out. `after_s` is infinite where none helps; `usual_s` is the median."""

    after_s: float
    quantile: float  # of the live distribution, which `after_s` is
    n: int  # samples that say so
    usual_s: float
    why_never: str = ""


NEVER = HedgePlan(inf, 1.0, 0, inf)


def aim(share: float, spent_share: float, mean_share: float | None = None) -> float:
    """The share of calls that is to be hedged, from what it may come to and what was spent lately. `mean_share`: what all
    kinds of calls that were counted may come to; None: as much as this one.
    """
    wanted, mean = AIM * share, AIM * (share if mean_share is None else mean_share)
    return wanted * min(1.5, max(0.5, 1.0 + PULL * (1.0 - spent_share / mean))) if mean > 0 else wanted


def plan(first: Survival, second: Survival, share: float, max_extra: int, *, is_whole: bool = False,
         is_hedged: bool = False) -> HedgePlan:
    """When to send second attempts, so that they come to `share` of the calls; never, where they would not help. `first` is
    of the upstream that was asked, `second` of the one that is asked next. `is_whole`: of whole answers. `is_hedged`: second
    attempts are sent already.
    """
    n = max(first.n, second.n)
    if n < MIN_SAMPLES:
        return HedgePlan(inf, 1.0, n, inf, f"only {n} of {MIN_SAMPLES} attempts are known")
    first, second = _known(first, second)
    after_s = max(LEAST_AFTER_S, _affordable_s(first, second, share, max_extra))
    least = (LEAST_GAIN_WHOLE if is_whole else LEAST_GAIN) * (0.5 if is_hedged else 1.0)
    plain_s = first.quantile(1.0 - _JUDGED_AT)
    judged_s = plain_s * (1.0 - least) if plain_s < inf else 10.0 * after_s + _sure_s(second, after_s, is_whole=is_whole)
    if _waiting(first, second, after_s, max_extra, is_whole=is_whole)(judged_s) > _JUDGED_AT:
        return HedgePlan(inf, 1.0, first.n, second.quantile(0.5), f"p99 of {first.n} would not fall by {least:.0%}")
    return HedgePlan(after_s, 1.0 - first.at(after_s), first.n, second.quantile(0.5))


def worthwhile(first: Survival, second: Survival, max_extra: int, *, is_whole: bool = False, present: float = MOST) -> float:
    """Which of SHARES second attempts are worth: the one with the least `ln p99 + WORTH * spent`, or the one next to the
    `present` one, unless another is better by SETTLED; MOST where too little is known.
    """
    if max(first.n, second.n) < MIN_SAMPLES:
        return MOST
    first, second = _known(first, second)

    settled = min(SHARES, key=lambda share: abs(share - present))

    def price(share: float) -> float:
        after_s = max(LEAST_AFTER_S, _affordable_s(first, second, share, max_extra))
        waits_longer = _waiting(first, second, after_s, max_extra, is_whole=is_whole)
        spent = max(share, _spent(first, second, after_s, max_extra))
        return log(_least_s(waits_longer, _JUDGED_AT)) + WORTH * spent - (SETTLED if share == settled else 0.0)

    return min(SHARES, key=price)


def _known(first: Survival, second: Survival) -> tuple[Survival, Survival]:
    """A spare that is asked for nothing else is taken to be like the other one, until it is known."""
    if second.n < MIN_SAMPLES:
        return first, first
    return (second, second) if first.n < MIN_SAMPLES else (first, second)


def _sure_s(second: Survival, after_s: float, *, is_whole: bool) -> float:
    """What a second attempt needs at least."""
    if not is_whole:
        return 0.0
    usual_s = second.quantile(_SURE_AT)
    return max(after_s, usual_s) if usual_s < inf else after_s


def _waiting(first: Survival, second: Survival, after_s: float, max_extra: int, *,
             is_whole: bool) -> Callable[[float], float]:
    """The predicted share of requests that wait longer than some seconds."""
    sure_s = _sure_s(second, after_s, is_whole=is_whole)

    def waits_longer(seconds: float) -> float:
        share_left = first.at(seconds)
        for n in range(1, max_extra + 1):
            since_s = seconds - n * after_s
            if since_s > sure_s:
                share_left *= second.at(since_s)
        return share_left

    return waits_longer


def _spent(first: Survival, second: Survival, after_s: float, max_extra: int) -> float:
    """The extra calls that this delay comes to, as a share of all."""
    deeper = first.at(2 * after_s) * second.at(after_s) if max_extra > 1 else 0.0
    return first.at(after_s) + deeper


def _affordable_s(first: Survival, second: Survival, share: float, max_extra: int) -> float:
    """The least delay whose second and third attempts come to at most `share` of the calls."""
    # where more hang than can be paid for, the budget picks
    share = max(share, LEAST_ROOM * _spent(first, second, _LONGEST_S, max_extra))
    return _least_s(lambda seconds: _spent(first, second, seconds, max_extra), share)


def _least_s(falls: Callable[[float], float], to: float) -> float:
    """When a function that never rises has come down to this; at most _LONGEST_S. By halving, in logarithms."""
    low_s, high_s = LEAST_AFTER_S, _LONGEST_S
    for _ in range(_N_HALVINGS):
        middle_s = (low_s * high_s) ** 0.5
        if falls(middle_s) > to:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
