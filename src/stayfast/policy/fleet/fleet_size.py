"""The number of live gateways, for whatever is divided among them.

Problem: adaptive limits of several gateways at one upstream converge to fair shares, but slowly: after a gateway joins, the
sum of the limits is too large; after one leaves, its share stays unused. And a server of the shared state that restarts
empty lists the gateways one after another: each would take itself for the only one. Rule: a larger number counts at once; a
smaller one only after it has been observed for SETTLED_S without interruption, and an outage of the server is an
interruption. The limits are multiplied by

    n_before / n_now

Source: ours; the asymmetry is that of TCP: too many requests harm at once, too few for some seconds do not.
When wrong: after gateways were replaced one by one, the number is too high for SETTLED_S. Gateways without traffic count.
"""

from math import inf

SETTLED_S = 10.0


class FleetSize:
    """Pure state. Instants are seconds and never go back."""

    __slots__ = ("_lower_since", "_most_since", "n")

    def __init__(self) -> None:
        self.n = 1
        self._lower_since = inf  # since when fewer gateways have been observed
        self._most_since = 0  # the highest number observed since then

    def observe(self, n: int, now: float) -> float:
        """`n` gateways, including this one, are alive. Returns the factor for limits: n_before / n_now."""
        n_before, n = self.n, max(1, n)
        if n >= self.n:
            self.n, self._lower_since, self._most_since = n, inf, 0
            return n_before / n
        if self._lower_since == inf:
            self._lower_since = now
        self._most_since = max(self._most_since, n)
        if now - self._lower_since < SETTLED_S:
            return 1.0
        self.n, self._lower_since, self._most_since = self._most_since, inf, 0
        return n_before / self.n

    def interrupt(self) -> None:
        """The server did not answer: the number stays."""
        self._lower_since, self._most_since = inf, 0

    def __repr__(self) -> str:
        return f"<FleetSize {self.n}>"
