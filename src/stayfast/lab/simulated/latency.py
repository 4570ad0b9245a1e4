"""How long things take: a lognormal body with a lognormal tail, drawn by dice and known in closed form.

Problem: providers have a p99 that no Gaussian and no single lognormal has (gpt-4o: p95 is 1.8 times the median, p99 seven
times). Rule: a share `tail_share` of requests comes from a second, slower lognormal:

    cdf(x) = (1 - tail_share) * Phi(ln(x / median_s) / sigma) + tail_share * Phi(ln(x / tail_median_s) / tail_sigma)

The closed form is there so that an instrument can be held against the truth (`quantile`, `cdf`).
Source: fits to p50, p95 and p99 of modelstats.ai's pings; bodies and tails as published there, `tail_sigma` 0.45.
When wrong: the real tail is not a lognormal, and p99.9 of a fit to 288 pings is a guess.
"""

from dataclasses import dataclass, replace
from math import erf, exp, log, sqrt
from random import Random
from typing import Annotated

from stayfast.core.setting import About


@dataclass(frozen=True, slots=True)
class Mixture:
    """A body and a tail. `median_s` and `tail_median_s` in seconds; sigmas are of the logarithm; 0: always the median."""

    median_s: Annotated[float, About("Median of the body, in seconds.", minimum=0, maximum=3600)] = 0.0
    sigma: Annotated[float, About("Of its logarithm; 0: always the median.", minimum=0, maximum=3)] = 0.0
    tail_share: Annotated[float, About("Share of requests that the tail gets.", minimum=0, maximum=1)] = 0.0
    tail_median_s: Annotated[float, About("Median of the tail, in seconds.", minimum=0, maximum=3600)] = 1.0
    tail_sigma: Annotated[float, About("Of its logarithm.", minimum=0, maximum=3)] = 0.45

    def __post_init__(self) -> None:
        for name in ("median_s", "tail_median_s"):
            if not 0 <= getattr(self, name) <= 3600:
                raise ValueError(f"{name} must be from 0 to 3600 seconds, not {getattr(self, name)}")
        for name in ("sigma", "tail_sigma"):
            if not 0 <= getattr(self, name) <= 3:
                raise ValueError(f"{name} must be from 0 to 3, not {getattr(self, name)}")
        if not 0 <= self.tail_share <= 1:
            raise ValueError(f"tail_share must be from 0 to 1, not {self.tail_share}")

    def draw(self, rng: Random, luck: float) -> float:
        """One wait in seconds. `luck`, uniform in [0, 1), decides between body and tail: shared luck is a shared tail."""
        if luck < self.tail_share:
            return self.tail_median_s * exp(self.tail_sigma * rng.gauss())
        return self.median_s * exp(self.sigma * rng.gauss())

    def scaled(self, factor: float) -> "Mixture":
        """The same shape, `factor` times as long."""
        return replace(self, median_s=self.median_s * factor, tail_median_s=self.tail_median_s * factor)

    @property
    def mean_s(self) -> float:
        """The mean, in seconds."""
        return ((1 - self.tail_share) * self.median_s * exp(self.sigma**2 / 2)
                + self.tail_share * self.tail_median_s * exp(self.tail_sigma**2 / 2))

    def cdf(self, seconds: float) -> float:
        """The share of waits that are `seconds` or shorter."""
        return ((1 - self.tail_share) * _lognormal_cdf(seconds, self.median_s, self.sigma)
                + self.tail_share * _lognormal_cdf(seconds, self.tail_median_s, self.tail_sigma))

    def quantile(self, p: float) -> float:
        """The wait in seconds that a share `p` of waits does not exceed. ValueError unless 0 < p < 1."""
        if not 0 < p < 1:
            raise ValueError(f"p must be between 0 and 1, not {p}")
        low, high = 0.0, max(self.median_s, self.tail_median_s)
        while self.cdf(high) < p:
            high *= 2.0
        while high - low > high * 1e-12:
            middle = (low + high) / 2
            if self.cdf(middle) < p:
                low = middle
            else:
                high = middle
        return high


def _lognormal_cdf(seconds: float, median_s: float, sigma: float) -> float:
    if median_s == 0 or sigma == 0:
        return 1.0 if seconds >= median_s else 0.0
    if seconds <= 0:
        return 0.0
    return (1 + erf(log(seconds / median_s) / (sigma * sqrt(2)))) / 2


@dataclass(frozen=True, slots=True)
class Gaps:
    """The pace of a running answer: seconds a token, and how tokens are bundled on their way.

    A chunk of k tokens comes k gaps after the one before, its sigma that of a mean of k gaps. Defaults are assumed.
    """

    median_s: Annotated[float, About("Median for one token, in seconds.", minimum=0, maximum=60)] = 0.011
    sigma: Annotated[float, About("Of its logarithm.", minimum=0, maximum=3)] = 0.3
    tokens_per_chunk: Annotated[int, About("Tokens in one event.", minimum=1, maximum=10000)] = 1
    chunks_per_write: Annotated[int, About(
        "Events that leave together, as behind a proxy that buffers.", minimum=1, maximum=10000)] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.median_s <= 60:
            raise ValueError(f"median_s must be from 0 to 60 seconds, not {self.median_s}")
        if not 0 <= self.sigma <= 3:
            raise ValueError(f"sigma must be from 0 to 3, not {self.sigma}")
        for name in ("tokens_per_chunk", "chunks_per_write"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise ValueError(f"{name} must be from 1 to 10000, not {getattr(self, name)}")

    def draw(self, rng: Random, n_tokens: int) -> float:
        """Seconds that the next `n_tokens` tokens take together."""
        if self.sigma == 0:
            return n_tokens * self.median_s
        if n_tokens == 1:
            return self.median_s * exp(self.sigma * rng.gauss())
        return n_tokens * self.median_s * exp(self.sigma / sqrt(n_tokens) * rng.gauss())

    def of_chunks(self, n_tokens: int) -> Mixture:
        """The distribution of the gaps between chunks of `n_tokens` tokens each, in closed form."""
        return Mixture(n_tokens * self.median_s, self.sigma / sqrt(n_tokens))
