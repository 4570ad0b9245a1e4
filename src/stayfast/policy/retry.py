"""When a failed attempt may be followed by another, and after how long.

Problem: clients that retry at once and in step turn a hiccup into an outage, and a retry that cannot finish in time is
pure load. Rule: another attempt is made only for faults that another attempt can mend, before any content has reached the
client, up to `max_attempts`, and only if its wait still leaves `min_left_s` before the deadline, and what an attempt takes
at the very least. The wait is full jitter:

    wait = U(0, min(cap_s, base_s * 2 ** (n_failed - 1)))        but at least the upstream's own Retry-After

A first failure on another upstream that stands ready is not worth a wait: fail-over is immediate.
Source: "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015); admission by remaining time is ours.
When wrong: if all upstreams fail together, even jittered retries multiply the load by `max_attempts`; the shared budget
(`policy.extra`) is the cure for that, not a longer wait.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """Retries of one route. `max_attempts` counts the first one; seconds elsewhere."""

    max_attempts: int = 3
    base_s: float = 0.1
    cap_s: float = 5.0
    min_left_s: float = 0.05  # an attempt with less time than this cannot even connect
    budget: float = 0.1  # of live traffic: what all attempts after failures may come to (policy.extra)
    stateful: bool = False  # also of requests that leave something behind where they are heard

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 10:
            raise ValueError(f"max_attempts must be 1 to 10, not {self.max_attempts}")
        if not 0 < self.base_s <= self.cap_s <= 60:
            raise ValueError(f"0 < base_s <= cap_s <= 60 must hold, not base_s={self.base_s}, cap_s={self.cap_s}")
        if self.min_left_s < 0:
            raise ValueError(f"min_left_s must not be negative, not {self.min_left_s}")
        if not 0 < self.budget <= 1:
            raise ValueError(f"budget must be more than 0 and at most 1, not {self.budget}")


def wait_before_next(config: RetryConfig, n_failed: int, remaining_s: float, rng: "Random", *,
                     retry_after_s: float | None = None, goes_elsewhere: bool = False,
                     least_s: float = 0.0) -> float | None:
    """Seconds to wait before the attempt after `n_failed` failures; None when there must be no further attempt.

    `retry_after_s` is what the failed upstream asked for: it binds only a return to the same upstream. `least_s` is what
    the next attempt takes at the very least.
    """
    if n_failed >= config.max_attempts:
        return None
    if goes_elsewhere:
        wait_s = 0.0
    else:
        ceiling_s = min(config.cap_s, config.base_s * 2.0 ** (n_failed - 1))
        wait_s = max(rng.uniform(0.0, ceiling_s), retry_after_s or 0.0)
    return wait_s if wait_s + max(config.min_left_s, least_s) <= remaining_s else None
