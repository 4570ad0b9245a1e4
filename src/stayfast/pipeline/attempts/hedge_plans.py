"""What one route knows of second attempts: the live times to the first token, and the budget of all extra attempts."""

from collections.abc import Iterable
from math import inf
from typing import Any

from stayfast.policy.resilience.hedge import FirstTokens, HedgeConfig, Lately, Plan, aim, live, plan
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.retry_budget import ExtraBudget

REFRESHED_S = 1.0  # how old a plan may be: merging a minute's histograms takes a tenth of a millisecond
MAX_KINDS = 1000  # of upstream and prompt size; far more than there are
N_SIZES = 128  # half octaves of a body's bytes
MAX_TOLD = 20  # kinds of prompt
FEW = 100  # samples; with fewer, prompts of the sizes beside it are asked as well


class Hedging:
    """One route's. Changed on one loop, nothing here awaits; outlives a reload that leaves its settings alone."""

    __slots__ = ("_lately", "_of", "_plans", "budget", "config", "has_slow", "is_on", "retry")

    def __init__(self, config: HedgeConfig, retry: RetryConfig) -> None:
        self.config = config
        self.is_on = config.mode != "off"  # whether there are second attempts at all
        self.retry = retry
        self.budget = ExtraBudget(retry.budget, config.budget if config.mode != "off" else 0.0)
        self._of: dict[tuple[str, bool, int], FirstTokens] = {}
        self._plans: dict[tuple[str, str, bool, int], tuple[float, Plan]] = {}
        self._lately: dict[tuple[str, bool], Lately] = {}
        self.has_slow = False  # one was when they were last looked at

    @property
    def max_extra(self) -> int:
        """How many attempts may run beside the first one."""
        return 1 if self.config.mode == "race" else self.config.max_extra

    def first_tokens(self, upstream: str, n_body_bytes: int, *, is_whole: bool) -> FirstTokens:
        """Where the times of such attempts are kept."""
        key = (upstream, is_whole, _size_of(n_body_bytes))
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= MAX_KINDS:
                del self._of[next(iter(self._of))]
            self._of[key] = found = FirstTokens(self.lately(upstream, is_whole=is_whole))
        return found

    def plan(self, upstream: str, second: str, n_body_bytes: int, now: float, *, is_whole: bool) -> Plan:
        """When to send a second attempt to `second`, beside one that runs at `upstream`."""
        if self.config.mode == "race":
            return Plan(self.config.race_after_s, 0.0, 0, 0.0)
        key = (upstream, second, is_whole, _size_of(n_body_bytes))
        known = self._plans.get(key)
        if known is not None and now < known[0]:
            return known[1]
        made = self._made(key, now)
        if len(self._plans) >= MAX_KINDS:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = (now + REFRESHED_S, made)
        return made

    def late(self, upstream: str, now: float, *, is_whole: bool) -> None:
        """An attempt at an upstream has no token when the next one is due."""
        if self.config.mode == "race":  # it is not late, it races
            return
        lately = self.lately(upstream, is_whole=is_whole)
        lately.late(now)
        self.has_slow = self.has_slow or lately.is_slow(now)

    def slow(self, upstreams: Iterable[str], now: float, *, is_whole: bool) -> set[str]:
        found = {name for name in upstreams if self.lately(name, is_whole=is_whole).is_slow(now)}
        self.has_slow = bool(found)
        return found

    def lately(self, upstream: str, *, is_whole: bool) -> Lately:
        """Whether an upstream is slow just now."""
        found = self._lately.get((upstream, is_whole))
        if found is None:
            self._lately[upstream, is_whole] = found = Lately(self.config.budget)
        return found

    def slow_now(self, now: float) -> list[dict[str, Any]]:
        """Upstreams that are slow at this moment, and how many in a row were late there."""
        return [{"upstream": upstream, "form": _form(is_whole), "late_in_row": lately.n}
                for (upstream, is_whole), lately in self._lately.items() if lately.is_slow(now)]

    def due_now(self) -> list[dict[str, Any]]:
        """When second attempts are due, of the newest kinds of prompt. `after_ms` None: no help is to be expected."""
        newest = sorted(self._plans.items(), key=lambda item: item[1][0], reverse=True)
        return [{"upstream": upstream, "then": second, "form": _form(is_whole),
                 "least_body_bytes": (2 + size % 2 << size // 2) >> 2,
                 "after_ms": round(its.after_s * 1e3, 3) if its.after_s < inf else None, "quantile": its.quantile,
                 "known": its.n, "usual_ttft_ms": round(its.usual_s * 1e3, 3)}
                for (upstream, second, is_whole, size), (_, its) in newest[:MAX_TOLD]]

    def _made(self, key: tuple[str, str, bool, int], now: float) -> Plan:
        upstream, second, is_whole, size = key
        first_s = live(self._like(upstream, is_whole, size), now)
        second_s = first_s if second == upstream else live(self._like(second, is_whole, size), now)
        share = aim(self.config.budget, self.budget.wanted_share(now))
        made = plan(first_s, second_s, share, self.max_extra, is_whole=is_whole)
        known = self._of.get((upstream, is_whole, size))
        if known is not None:
            known.due_s = made.after_s
        return made

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


def never() -> Hedging:
    """No second attempts; retries from a budget of their own."""
    return Hedging(HedgeConfig(mode="off"), RetryConfig())
