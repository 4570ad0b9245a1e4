"""Ways to ask that a user could have tuned by hand, worked out from the times that attempts take.

time-out: an attempt without a first token after `after_s` is closed and the next one is made, the last one without a
time-out. hedge: it runs on, and the first one that brings a token wins. Both know the distribution: their number is chosen
by whoever knows the result. When wrong: attempts do not wait for each other, and closing one costs nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from stayfast.lab.harness.claim import Figure
from stayfast.lab.load.stats import Exact


@dataclass(frozen=True, slots=True)
class Constant:
    """One way. `n_tries`: attempts of a request at most."""

    after_s: float
    n_tries: int
    is_hedge: bool = False

    @property
    def name(self) -> str:
        if self.n_tries == 1:
            return "direct"
        return f"hedges after {self.after_s:g} s" if self.is_hedge else f"a time-out of {self.after_s:g} s"

    def wait_s(self, takes_s: Callable[[int, float], float]) -> tuple[float, int]:
        """Seconds to the first token, and attempts. takes_s: what the n-th attempt takes, that begins after so long."""
        best_s = inf
        for n in range(self.n_tries):
            at_s = n * self.after_s if n else 0.0
            if at_s >= best_s:
                return best_s, n
            took_s = takes_s(n, at_s)
            if self.is_hedge:
                best_s = min(best_s, at_s + took_s)
            elif took_s <= self.after_s or n == self.n_tries - 1:
                return at_s + took_s, n + 1
        return best_s, self.n_tries


@dataclass(slots=True)
class ConstantRequest:
    """What one way came to. waits_s: in the order of the requests."""

    way: Constant
    waits_s: list[float]
    n_calls: int

    @property
    def p99_s(self) -> float:
        return Exact(self.waits_s).at(0.99)

    @property
    def calls(self) -> float:
        """A request."""
        return self.n_calls / len(self.waits_s)

    def add(self, wait_s: float, n_calls: int) -> None:
        """One more request."""
        self.waits_s.append(wait_s)
        self.n_calls += n_calls

    def figures(self, where: str, *, quantiles: Iterable[float] = (0.99,)) -> list[Figure]:
        exact = Exact(self.waits_s)
        return [*(Figure(f"{where}: {self.way.name}: TTFT p{q * 100:.0f}", exact.at(q), "s") for q in quantiles),
                Figure(f"{where}: {self.way.name}: calls a request", self.calls, "")]
