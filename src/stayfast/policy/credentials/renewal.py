"""When a credential that expires is renewed.

Problem: tokens of Entra, Google and AWS live an hour or so, and the issuer is sometimes unreachable. A renewal at the end is
too late, and gateways that start together would renew together.
Rule: renew at 80 % of the life that is left, up to 10 % earlier by chance; after a failure back off, doubled and capped.

    after a renewal    max(1 s, left x 0.8 x (1 - 0.1 x U(0, 1)))
    after a failure    min(60 s, 1 s x 2^(n - 1)), of which half is by chance
    without an end     15 min, as keys in a file are replaced from time to time

An hour's token thus has about 12 minutes of failed renewals before a request notices. An issuer that returns the same
credential again (metadata servers cache theirs) is called after 80 % of what is left, so a few times per life.
Source: the refresh windows of azure-identity (5 min), google-auth (3 min 45 s) and botocore (15 min) are all shorter; full
jitter after "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). When wrong: for lives of a few seconds.
"""

from dataclasses import dataclass
from math import inf

from stayfast.core.clock import Rng
from stayfast.policy.resilience.retry import backoff_s


@dataclass(frozen=True, slots=True)
class RenewalConfig:
    """Times in seconds. share, jitter: from 0 to 1."""

    share: float = 0.8
    jitter: float = 0.1
    min_wait_s: float = 1.0  # between two calls of the issuer; also the first wait after a failure
    max_backoff_s: float = 60.0
    reread_s: float = 900.0  # of credentials without an end

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not 0 <= self.jitter < 1:
            raise ValueError("share must be more than 0 and at most 1, jitter at least 0 and less than 1")
        if not 0 < self.min_wait_s <= self.max_backoff_s or self.reread_s <= 0:
            raise ValueError("times must be more than 0, and max_backoff_s at least min_wait_s")


def wait_before_renewal_s(config: RenewalConfig, left_s: float, rng: Rng) -> float:
    """Seconds from a successful renewal to the next. left_s: life of the new credential, inf: it has no end."""
    wait_s = config.reread_s if left_s == inf else left_s * config.share
    return max(config.min_wait_s, wait_s * (1 - config.jitter * rng.random()))


def wait_after_failure_s(config: RenewalConfig, n_failed: int, rng: Rng) -> float:
    """Seconds to the next attempt. n_failed: failures in a row, at least 1."""
    return backoff_s(n_failed, config.min_wait_s, config.max_backoff_s, rng, jitter=0.5)
