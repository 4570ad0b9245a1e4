"""Timeouts and hedges with a fixed delay, as a user could tune them by hand, computed from the durations of attempts.

timeout: an attempt without a first token after `after_s` is closed and the next one starts. The last attempt has no timeout.
hedge: the attempt continues in parallel with the next one, and the first token wins. The delays were chosen with knowledge
of the distribution. When wrong: attempts do not delay each other, and closing an attempt costs nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from stayfast.lab.harness.claim import Figure
from stayfast.lab.load.stats import ExactDistribution


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
        return f"hedges after {self.after_s:g} s" if self.is_hedge else f"a time-out of {self.after_s:g} s"

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


@dataclass(slots=True)
class FixedPolicyRun:
    """The result of one policy. waits_s: in the order of the requests."""

    policy: FixedPolicy
    waits_s: list[float]
    n_calls: int

    @property
    def p99_s(self) -> float:
        return ExactDistribution(self.waits_s).quantile(0.99)

    @property
    def calls(self) -> float:
        """Calls per request."""
        return self.n_calls / len(self.waits_s)

    def add(self, wait_s: float, n_calls: int) -> None:
        """Record one more request."""
        self.waits_s.append(wait_s)
        self.n_calls += n_calls

    def figures(self, where: str, *, quantiles: Iterable[float] = (0.99,)) -> list[Figure]:
        exact = ExactDistribution(self.waits_s)
        return [*(Figure(f"{where}: {self.policy.name}: TTFT p{q * 100:.0f}", exact.quantile(q), "s") for q in quantiles),
                Figure(f"{where}: {self.policy.name}: calls a request", self.calls, "")]
