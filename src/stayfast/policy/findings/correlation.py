"""Whether one figure of a request grows with another: sums that workers add up, correlation and slopes from them.

Problem: "slow because prompts are long" and "slow because the upstream is full" have different remedies. Rule: over a sample
of requests, the correlation of the logarithms, which outliers of the raw times cannot dominate:

    r = (n Sxy - Sx Sy) / sqrt((n Sxx - Sx^2) (n Syy - Sy^2)),   x, y: natural logarithms
    elasticity = (n Sxy - Sx Sy) / (n Sxx - Sx^2)
    slope at the middle = elasticity * exp(mean y) / exp(mean x)           of y = a + b x, this is b

Pearson's r of logarithms and not Spearman's rank correlation: six sums of several workers add up to those of all requests,
ranks do not. Source: Pearson (1895). When wrong: with fewer than MIN_PAIRS, or values that hardly vary, there is no answer;
a relation that rises and then falls has none, either.
"""

from math import exp, log, sqrt
from typing import Final

import msgspec

MIN_PAIRS: Final = 20
_LEAST_SPREAD: Final = 1e-3  # standard deviation; of logarithms, a tenth of a per cent


class PairSums(msgspec.Struct, array_like=True, gc=False):
    """Sums over pairs of values. Add logarithms (`add_logs`) or the values themselves (`add`), never both."""

    n: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        self.n += 1
        self.x += x
        self.y += y
        self.xx += x * x
        self.yy += y * y
        self.xy += x * y

    def add_logs(self, x: float, y: float) -> None:
        """Add the logarithms of two values; a pair with a value of 0 or less is left out."""
        if x > 0 and y > 0:
            self.add(log(x), log(y))

    def merge(self, other: "PairSums") -> None:
        self.n += other.n
        self.x += other.x
        self.y += other.y
        self.xx += other.xx
        self.yy += other.yy
        self.xy += other.xy

    @property
    def correlation(self) -> float | None:
        """-1 to 1; None: unknown."""
        if not self._varies(self.xx, self.x) or not self._varies(self.yy, self.y):
            return None
        spread = sqrt(self.n * self.xx - self.x * self.x) * sqrt(self.n * self.yy - self.y * self.y)
        return max(-1.0, min(1.0, (self.n * self.xy - self.x * self.y) / spread))

    @property
    def slope(self) -> float | None:
        """Of y by x (least squares); of logarithms: the elasticity. None: unknown."""
        if not self._varies(self.xx, self.x):
            return None
        return (self.n * self.xy - self.x * self.y) / (self.n * self.xx - self.x * self.x)

    @property
    def slope_of_values(self) -> float | None:
        """Of sums of logarithms: how much y grows for one more x, at the middle of both. None: unknown."""
        elasticity = self.slope
        return None if elasticity is None else elasticity * exp((self.y - self.x) / self.n)

    def _varies(self, squares: float, total: float) -> bool:
        if self.n < MIN_PAIRS:
            return False
        variance = squares / self.n - (total / self.n) ** 2
        return variance > max(_LEAST_SPREAD**2, 1e-9 * squares / self.n)
