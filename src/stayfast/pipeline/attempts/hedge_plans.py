"""Hedging of one route: the recent times to the first token, the plans made from them, and the budget of extra attempts.

Times are kept by upstream, model and prompt size. A route to `"*"` serves any model, and one may take twenty seconds to its
first token where another takes 0.3 s: one distribution of both would hedge every call of the first and none of the second.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, inf
from typing import Any

from stayfast.policy.merged_times import ElsewhereTimes
from stayfast.policy.resilience.hedge import (
    ENOUGH_SAMPLES,
    LEAST_AFTER_S,
    MIN_SAMPLES,
    NO_HEDGE,
    RECHOOSE_EVERY_S,
    FirstTokens,
    HedgeConfig,
    HedgePlan,
    LateStreak,
    aim_share,
    choose_share,
    live_distribution,
    plan_hedge,
)
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.policy.resilience.survival import Survival

REFRESHED_S = 1.0  # maximum age of a plan: making one takes 0.1 ms, choosing its share 0.4 ms
MAX_SERIES = 256  # combinations of upstream, model and form; clients may choose model names
MAX_KINDS = 2000  # combinations of two upstreams, their models and prompt size
MAX_LISTED_KINDS = 20  # kinds that /debug/state lists
FEW = 100  # samples; with fewer, samples of neighbouring sizes are used, too
SMOOTHING = 0.25  # maximum step of the share towards the one that was chosen last
MEAN_OVER_S = 60.0  # the window of the budget
STAYS_S = 10.0  # a kind is hedged until no help was expected for this long


UpstreamModel = tuple[str, str]  # an upstream, and the model's name there
_KindKey = tuple[UpstreamModel, UpstreamModel, bool, int]  # first attempt, hedge, whole answers, size


class _Series:
    """The times to the first token of one model at one upstream, by prompt size. n_used: when it was last used, as a count
    of uses of all series.
    """

    __slots__ = ("by_size", "n_used", "streak")

    def __init__(self, streak: LateStreak) -> None:
        self.streak = streak
        self.by_size: dict[int, FirstTokens] = {}
        self.n_used = 0

    @property
    def has_answered(self) -> bool:
        return any(tokens.n for tokens in self.by_size.values())


@dataclass(slots=True)
class _Kind:
    """The plan for one kind of prompt. share: hedges, as a share of the calls."""

    plan: HedgePlan
    refresh_at: float
    share: float
    n: int  # first tokens counted in the mean share
    n_chosen: int  # first tokens when the share was last chosen
    choose_at: float = -inf
    helped_at: float = -inf  # when help was last expected


class MeanShare:
    """The share of hedges over all kinds of prompts, weighted by their traffic, over the window of the budget."""

    __slots__ = ("_at", "_n", "_weighed")

    def __init__(self) -> None:
        self._n = self._weighed = 0.0
        self._at = 0.0

    def add(self, share: float, n: int, now: float) -> None:
        """Count n calls of a kind, of which this share may be hedged."""
        left = exp((self._at - now) / MEAN_OVER_S)
        self._at = now
        self._n = self._n * left + n
        self._weighed = self._weighed * left + n * share

    @property
    def value(self) -> float | None:
        """None before the first call."""
        return self._weighed / self._n if self._n else None

    def __repr__(self) -> str:
        return f"<MeanShare {self.value if self.value is not None else 'unknown'}>"


class Hedging:
    """The hedging of one route. Belongs to one loop; nothing here awaits. Survives a reload with unchanged settings."""

    __slots__ = ("_kinds", "_mean", "_n_used", "_series", "budget", "config", "elsewhere", "first_check_s", "has_slow",
                 "is_on", "retry")

    def __init__(self, config: HedgeConfig, retry: RetryConfig) -> None:
        self.config = config
        self.is_on = config.mode != "off"
        # after an attempt's start: no hedge is due earlier, and most fast requests have ended by then
        self.first_check_s = 0.0 if config.mode == "race" else LEAST_AFTER_S
        self.retry = retry
        self.budget = RetryBudget(retry.budget, config.max_share if config.mode != "off" else 0.0)
        self._series: dict[tuple[UpstreamModel, bool], _Series] = {}
        self._n_used = 0
        self._kinds: dict[_KindKey, _Kind] = {}
        self._mean = MeanShare()
        self.has_slow = False  # at the last check
        self.elsewhere: ElsewhereTimes | None = None  # times of other processes; None: this one is alone

    @property
    def mean_share(self) -> float | None:
        """The mean share of hedges over all kinds of prompts; None: unknown."""
        return self._mean.value

    @property
    def max_extra(self) -> int:
        """The maximum number of hedges of one request."""
        return 1 if self.config.mode == "race" else self.config.max_extra

    def first_tokens(self, at: UpstreamModel, n_body_bytes: int, *, is_whole: bool) -> FirstTokens:
        """The samples of such attempts."""
        series, size = self._series.get((at, is_whole)) or self._add_series(at, is_whole=is_whole), _size_of(n_body_bytes)
        self._n_used = series.n_used = self._n_used + 1
        found = series.by_size.get(size)
        if found is None:
            series.by_size[size] = found = FirstTokens(series.streak)
        return found

    def plan_hedge(self, first: UpstreamModel, second: UpstreamModel, n_body_bytes: int, now: float, *,
                   is_whole: bool) -> HedgePlan:
        """When to send a hedge to `second` while an attempt runs at `first`."""
        if self.config.mode == "race":
            return HedgePlan(self.config.race_after_s, 0.0, 0, 0.0)
        key = (first, second, is_whole, _size_of(n_body_bytes))
        kind = self._kinds.get(key)
        if kind is not None and now < kind.refresh_at:
            return kind.plan
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:  # a drop of many at once makes the sort cheap
                for old in sorted(self._kinds, key=lambda key: self._kinds[key].refresh_at)[:MAX_KINDS // 8]:
                    del self._kinds[old]
            known = self._known(first, is_whole, key[3])
            n = known.n if known is not None else 0
            self._kinds[key] = kind = _Kind(NO_HEDGE, -inf, self.config.max_share, n, n)
        self._refresh(kind, key, now)
        return kind.plan

    def note_late(self, at: UpstreamModel, now: float, *, is_whole: bool) -> None:
        """An attempt at an upstream has no token when its hedge is due."""
        if self.config.mode == "race":  # all attempts are hedged, late or not
            return
        streak = self.late_streak(at, is_whole=is_whole)
        streak.record_late(now)
        self.has_slow = self.has_slow or streak.is_slow(now)

    def slow_upstreams(self, among: Iterable[UpstreamModel], now: float, *, is_whole: bool) -> set[str]:
        """The names of those that are slow now."""
        found = {at[0] for at in among if self.is_slow(at, now, is_whole=is_whole)}
        self.has_slow = bool(found)
        return found

    def late_streak(self, at: UpstreamModel, *, is_whole: bool) -> LateStreak:
        """The record of late attempts, which decides whether the upstream is slow now for this model."""
        return (self._series.get((at, is_whole)) or self._add_series(at, is_whole=is_whole)).streak

    def is_slow(self, at: UpstreamModel, now: float, *, is_whole: bool) -> bool:
        """Whether more attempts in a row were late than chance explains."""
        series = self._series.get((at, is_whole))
        return series is not None and series.streak.is_slow(now)

    def _add_series(self, at: UpstreamModel, *, is_whole: bool) -> _Series:
        if len(self._series) >= MAX_SERIES:
            self._drop_series()
        self._series[at, is_whole] = added = _Series(LateStreak(self.config.max_share))
        return added

    def _drop_series(self) -> None:
        """Drop an eighth: those without an answer first, as of models that do not exist, then the longest unused."""
        all_series = self._series
        ranked = sorted(all_series, key=lambda key: (all_series[key].has_answered, all_series[key].n_used))
        for key in ranked[:MAX_SERIES // 8]:
            del all_series[key]

    def _known(self, at: UpstreamModel, is_whole: bool, size: int) -> FirstTokens | None:
        series = self._series.get((at, is_whole))
        return series.by_size.get(size) if series is not None else None

    def slow_now(self, now: float) -> list[dict[str, Any]]:
        """The upstreams that are slow now, with their late attempts in a row."""
        return [{"upstream": upstream, "model": model, "form": _form(is_whole), "late_in_row": series.streak.n}
                for ((upstream, model), is_whole), series in self._series.items() if series.streak.is_slow(now)]

    def due_now(self) -> list[dict[str, Any]]:
        """When hedges are due, for the newest kinds of prompt. `after_ms` None: a hedge would not help; `why_never` is the
        reason. `share`: the largest share of the calls that may be hedges.
        """
        newest = sorted(self._kinds.items(), key=lambda item: item[1].refresh_at, reverse=True)
        return [{"upstream": first[0], "model": first[1], "then": second[0], "form": _form(is_whole),
                 "least_body_bytes": (2 + size % 2 << size // 2) >> 2,
                 "after_ms": round(kind.plan.after_s * 1e3, 3) if kind.plan.after_s < inf else None,
                 "quantile": kind.plan.quantile, "known": kind.plan.n,
                 "usual_ttft_ms": round(kind.plan.usual_s * 1e3, 3) if kind.plan.usual_s < inf else None,
                 "share": round(kind.share, 4), "why_never": kind.plan.why_never or None}
                for (first, second, is_whole, size), kind in newest[:MAX_LISTED_KINDS]]

    def _refresh(self, kind: _Kind, key: _KindKey, now: float) -> None:
        first, second, is_whole, size = key
        first_s = self._distribution(first, is_whole, size, now)
        second_s = first_s if second == first else self._distribution(second, is_whole, size, now)
        known, is_free = self._known(first, is_whole, size), self.config.budget == "auto"
        if is_free and now >= kind.choose_at and known is not None:
            chosen = choose_share(first_s, second_s, self.max_extra, is_whole=is_whole, present=kind.share)
            kind.share += min(SMOOTHING, (known.n - kind.n_chosen) / ENOUGH_SAMPLES) * (chosen - kind.share)
            kind.n_chosen = known.n
            kind.choose_at = now + RECHOOSE_EVERY_S
        share = aim_share(kind.share, self.budget.hedge_demand(now), self.mean_share if is_free else None)
        is_hedged = kind.plan.after_s < inf
        made = plan_hedge(first_s, second_s, share, self.max_extra, is_whole=is_whole, is_hedged=is_hedged)
        if made.after_s < inf:
            kind.helped_at = now
        elif is_hedged and now < kind.helped_at + STAYS_S:
            made = kind.plan
        kind.plan = made
        kind.refresh_at = now + REFRESHED_S
        if known is not None:
            known.due_s = made.after_s
            if made.n >= MIN_SAMPLES:
                self._mean.add(kind.share if made.after_s < inf else 0.0, known.n - kind.n, now)
            kind.n = known.n

    def _distribution(self, at: UpstreamModel, is_whole: bool, size: int, now: float) -> Survival:
        """The distribution of such attempts; with those of other processes, if this one has few."""
        like = self._like(at, is_whole, size)
        own = live_distribution(like, now)
        if own.n >= FEW or self.elsewhere is None:
            return own
        more = self.elsewhere.find(*at, is_whole=is_whole, size=size, n_enough=FEW)
        return live_distribution(like, now, more) if more else own

    def estimate_ttft_s(self, at: UpstreamModel, n_body_bytes: int) -> float | None:
        """The median time to a first token of such streams at other processes; None: they have few, too."""
        if self.elsewhere is None:
            return None
        found = self.elsewhere.find(*at, is_whole=False, size=_size_of(n_body_bytes), n_enough=FEW)
        if sum(times.n for times in found) < FEW:
            return None
        seconds = live_distribution((), 0.0, found).quantile(0.5)
        return seconds if seconds < inf else None

    def kinds(self, elsewhere: ElsewhereTimes) -> Iterator[tuple[str, FirstTokens]]:
        """The times of this process, by the digest of their kind. elsewhere: of this route."""
        for ((upstream, model), is_whole), series in self._series.items():
            for size, tokens in series.by_size.items():
                kind = elsewhere.kind(upstream, model, is_whole=is_whole, size=size)
                if kind is not None and tokens.n:
                    yield kind, tokens

    def _like(self, at: UpstreamModel, is_whole: bool, size: int) -> list[FirstTokens]:
        """Those of this size; where they have seen few, also those of neighbouring sizes, larger and smaller alike."""
        series = self._series.get((at, is_whole))
        by_size = series.by_size if series is not None else {}
        found: list[FirstTokens] = []
        n_known = distance = 0
        for near in sorted(by_size, key=lambda near: abs(near - size)):
            if n_known >= FEW and abs(near - size) > distance:
                break
            distance = abs(near - size)
            found.append(by_size[near])
            n_known += by_size[near].n
        return found

    def __repr__(self) -> str:
        return f"<Hedging {self.config.mode}: {len(self._series)} models, {self.budget!r}>"


def _form(is_whole: bool) -> str:  # as keys have it
    return "whole" if is_whole else "stream"


def _size_of(n_body_bytes: int) -> int:
    """Which prompts are alike: those within half an octave."""
    bits = n_body_bytes.bit_length()
    return 2 * bits + (n_body_bytes << 2 >> bits & 1)


def no_hedging() -> Hedging:
    """No second attempts; retries from a budget of their own."""
    return Hedging(HedgeConfig(mode="off"), RetryConfig())
