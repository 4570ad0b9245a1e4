"""Timeouts and hedges with a constant delay, as a user could tune them by hand, computed from the durations of attempts.

time-out: an attempt without a first token after `after_s` is closed and the next one starts. The last attempt has no
time-out. hedge: the attempt continues in parallel with the next one, and the first token wins. Each of the `n_tries`
attempts starts `after_s` after the previous one. Two tries are one constant hedge; more are Envoy's
`hedge_on_per_try_timeout` with n_tries - 1 as `num_retries`. `grid_of_policies` lists all families with all delays;
`choose_best` is the tuning by hand: the lowest p99 within a number of calls.

When wrong: attempts do not delay each other, and closing an attempt costs nothing. No user has such a table of
the live traffic, and the best constant of today is not that of tomorrow.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from stayfast.lab.harness.claim import Figure
from stayfast.lab.load.stats import ExactDistribution

N_TIMEOUT_TRIES = 6
FAMILIES = ("time-outs", "one hedge", "repeated hedges")
NUMBERS = ("no", "one", "two", "three", "four", "five")


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """n_tries: maximum attempts per request."""

    after_s: float
    n_tries: int
    is_hedge: bool = False

    @property
    def name(self) -> str:
        if self.n_tries == 1:
            return "direct"
        if not self.is_hedge:
            return f"a time-out of {self.after_s:g} s"
        if self.n_tries == 2:
            return f"one hedge after {self.after_s:g} s"
        return f"{NUMBERS[self.n_tries - 1]} hedges {self.after_s:g} s apart"

    @property
    def family(self) -> str:
        """One of FAMILIES."""
        return FAMILIES[0 if not self.is_hedge else 1 if self.n_tries == 2 else 2]

    def simulate(self, attempt_s: Callable[[int, float], float]) -> tuple[float, int]:
        """Seconds to the first token, and the number of attempts. attempt_s(n, at_s): the duration of the n-th attempt,
        which starts at_s after the request.
        """
        best_s = inf
        for n in range(self.n_tries):
            at_s = n * self.after_s if n else 0.0
            if at_s >= best_s:
                return best_s, n
            took_s = attempt_s(n, at_s)
            if self.is_hedge:
                best_s = min(best_s, at_s + took_s)
            elif took_s <= self.after_s or n == self.n_tries - 1:
                return at_s + took_s, n + 1
        return best_s, self.n_tries


DIRECT = FixedPolicy(inf, 1)


@dataclass
class FixedPolicyRun:
    """The result of one policy. waits_s, each_n_calls: in the order of the requests. Complete before p99_s is read."""

    policy: FixedPolicy
    waits_s: list[float] = field(default_factory=list)
    n_calls: int = 0
    each_n_calls: list[int] = field(default_factory=list)

    @cached_property
    def p99_s(self) -> float:
        return ExactDistribution(self.waits_s).quantile(0.99)

    @property
    def calls(self) -> float:
        """Calls per request."""
        return self.n_calls / len(self.waits_s)

    def add(self, wait_s: float, n_calls: int) -> None:
        """Record one more request."""
        self.waits_s.append(wait_s)
        self.each_n_calls.append(n_calls)
        self.n_calls += n_calls

    def figures(self, where: str, *, quantiles: Iterable[float] = (0.99,)) -> list[Figure]:
        exact = ExactDistribution(self.waits_s)
        return [*(Figure(f"{where}: {self.policy.name}: TTFT p{q * 100:.0f}", exact.quantile(q), "s") for q in quantiles),
                Figure(f"{where}: {self.policy.name}: calls a request", self.calls, "")]


def grid_of_policies(delays_s: Iterable[float]) -> list[FixedPolicy]:
    """Each family with each delay: time-outs, one hedge, and two or three repeated ones."""
    return [policy for after_s in delays_s for policy in (
        FixedPolicy(after_s, N_TIMEOUT_TRIES), *(FixedPolicy(after_s, n_tries, is_hedge=True) for n_tries in (2, 3, 4)))]


def choose_best(runs: Sequence[FixedPolicyRun], max_calls: float = inf, family: str | None = None) -> FixedPolicyRun:
    """The run with the lowest p99 of those with at most `max_calls` a request; of equal ones, the one with fewer calls.
    If all exceed it, the one with the fewest calls.
    """
    of_family = [run for run in runs if family in (None, run.policy.family)]
    allowed = [run for run in of_family if run.calls <= max_calls]
    return min(allowed, key=lambda run: (run.p99_s, run.calls)) if allowed else min(of_family, key=lambda run: run.calls)
