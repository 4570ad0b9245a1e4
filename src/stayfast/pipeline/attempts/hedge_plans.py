"""Hedging of one route: the recent times to the first token, the plans made from them, and the budget of extra attempts."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf
from typing import Any

from stayfast.policy.resilience.hedge import (
    ENOUGH_SAMPLES,
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

REFRESHED_S = 1.0  # maximum age of a plan: making one takes 0.1 ms, choosing its share 0.4 ms
MAX_KINDS = 1000  # combinations of upstream and prompt size
N_SIZES = 128  # half octaves of a body's bytes
MAX_LISTED_KINDS = 20  # kinds that /debug/state lists
FEW = 100  # samples; with fewer, samples of neighbouring sizes are used, too
SMOOTHING = 0.25  # maximum step of the share towards the one that was chosen last
MEAN_OVER_S = 60.0  # the window of the budget
STAYS_S = 10.0  # a kind is hedged until no help was expected for this long


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

    __slots__ = ("_kinds", "_lately", "_mean", "_of", "budget", "config", "has_slow", "is_on", "retry")

    def __init__(self, config: HedgeConfig, retry: RetryConfig) -> None:
        self.config = config
        self.is_on = config.mode != "off"
        self.retry = retry
        self.budget = RetryBudget(retry.budget, config.max_share if config.mode != "off" else 0.0)
        self._of: dict[tuple[str, bool, int], FirstTokens] = {}
        self._kinds: dict[tuple[str, str, bool, int], _Kind] = {}
        self._mean = MeanShare()
        self._lately: dict[tuple[str, bool], LateStreak] = {}
        self.has_slow = False  # at the last check

    @property
    def mean_share(self) -> float | None:
        """The mean share of hedges over all kinds of prompts; None: unknown."""
        return self._mean.value

    @property
    def max_extra(self) -> int:
        """The maximum number of hedges of one request."""
        return 1 if self.config.mode == "race" else self.config.max_extra

    def first_tokens(self, upstream: str, n_body_bytes: int, *, is_whole: bool) -> FirstTokens:
        """The samples of such attempts."""
        key = (upstream, is_whole, _size_of(n_body_bytes))
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= MAX_KINDS:
                del self._of[next(iter(self._of))]
            self._of[key] = found = FirstTokens(self.late_streak(upstream, is_whole=is_whole))
        return found

    def plan_hedge(self, upstream: str, second: str, n_body_bytes: int, now: float, *, is_whole: bool) -> HedgePlan:
        """When to send a hedge to `second` while an attempt runs at `upstream`."""
        if self.config.mode == "race":
            return HedgePlan(self.config.race_after_s, 0.0, 0, 0.0)
        key = (upstream, second, is_whole, _size_of(n_body_bytes))
        kind = self._kinds.get(key)
        if kind is not None and now < kind.refresh_at:
            return kind.plan
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]
            known = self._of.get((upstream, is_whole, key[3]))
            n = known.n if known is not None else 0
            self._kinds[key] = kind = _Kind(NO_HEDGE, -inf, self.config.max_share, n, n)
        self._refresh(kind, key, now)
        return kind.plan

    def note_late(self, upstream: str, now: float, *, is_whole: bool) -> None:
        """An attempt at an upstream has no token when its hedge is due."""
        if self.config.mode == "race":  # all attempts are hedged, late or not
            return
        lately = self.late_streak(upstream, is_whole=is_whole)
        lately.record_late(now)
        self.has_slow = self.has_slow or lately.is_slow(now)

    def slow_upstreams(self, upstreams: Iterable[str], now: float, *, is_whole: bool) -> set[str]:
        found = {name for name in upstreams if self.late_streak(name, is_whole=is_whole).is_slow(now)}
        self.has_slow = bool(found)
        return found

    def late_streak(self, upstream: str, *, is_whole: bool) -> LateStreak:
        """The record of late attempts, which decides whether an upstream is slow now."""
        found = self._lately.get((upstream, is_whole))
        if found is None:
            self._lately[upstream, is_whole] = found = LateStreak(self.config.max_share)
        return found

    def slow_now(self, now: float) -> list[dict[str, Any]]:
        """The upstreams that are slow now, with their late attempts in a row."""
        return [{"upstream": upstream, "form": _form(is_whole), "late_in_row": lately.n}
                for (upstream, is_whole), lately in self._lately.items() if lately.is_slow(now)]

    def due_now(self) -> list[dict[str, Any]]:
        """When hedges are due, for the newest kinds of prompt. `after_ms` None: a hedge would not help; `why_never` is the
        reason. `share`: the largest share of the calls that may be hedges.
        """
        newest = sorted(self._kinds.items(), key=lambda item: item[1].refresh_at, reverse=True)
        return [{"upstream": upstream, "then": second, "form": _form(is_whole),
                 "least_body_bytes": (2 + size % 2 << size // 2) >> 2,
                 "after_ms": round(kind.plan.after_s * 1e3, 3) if kind.plan.after_s < inf else None,
                 "quantile": kind.plan.quantile, "known": kind.plan.n,
                 "usual_ttft_ms": round(kind.plan.usual_s * 1e3, 3) if kind.plan.usual_s < inf else None,
                 "share": round(kind.share, 4), "why_never": kind.plan.why_never or None}
                for (upstream, second, is_whole, size), kind in newest[:MAX_LISTED_KINDS]]

    def _refresh(self, kind: _Kind, key: tuple[str, str, bool, int], now: float) -> None:
        upstream, second, is_whole, size = key
        first_s = live_distribution(self._like(upstream, is_whole, size), now)
        second_s = first_s if second == upstream else live_distribution(self._like(second, is_whole, size), now)
        known, is_free = self._of.get((upstream, is_whole, size)), self.config.budget == "auto"
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

    def _like(self, upstream: str, is_whole: bool, size: int) -> list[FirstTokens]:
        """Those of this size; where they have seen few, also those of neighbouring sizes, larger and smaller alike."""
        found: list[FirstTokens] = []
        for distance in range(N_SIZES):
            for near in {size - distance, size + distance}:
                one = self._of.get((upstream, is_whole, near))
                if one is not None:
                    found.append(one)
            if sum(one.n for one in found) >= FEW:
                break
        return found

    def __repr__(self) -> str:
        return f"<Hedging {self.config.mode}: {len(self._of)} kinds of prompt, {self.budget!r}>"


def _form(is_whole: bool) -> str:  # as keys have it
    return "whole" if is_whole else "stream"


def _size_of(n_body_bytes: int) -> int:
    """Which prompts are alike: those within half an octave."""
    bits = n_body_bytes.bit_length()
    return 2 * bits + (n_body_bytes << 2 >> bits & 1)


def no_hedging() -> Hedging:
    """No second attempts; retries from a budget of their own."""
    return Hedging(HedgeConfig(mode="off"), RetryConfig())
