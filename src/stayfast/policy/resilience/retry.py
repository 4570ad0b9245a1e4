"""Retries: whether another attempt follows a failed one, and after which wait (exponential back-off with a cap).

Problem: clients that retry at once and simultaneously turn a short fault into an outage, and a retry that cannot finish in
time is load without use. Rule: another attempt is made only after a fault that it may avoid, before any content has reached
the client, and up to `max_attempts`. Its wait must leave enough time before the deadline: `min_remaining_s`, and the least
time that an attempt takes. An attempt at a healthy upstream that this request has not tried starts at once. Any other waits,
at least for the rest of that upstream's Retry-After:

    ceiling = min(backoff_cap_s, backoff_base_s * factor ** (n_failures - 1))
    wait    = (1 - jitter) * ceiling + U(0, jitter * ceiling)
    longest Retry-After = min(max_retry_after_s - waited so far, 0.25 * remaining); beyond it, no retry there

Full jitter (1) spreads requests best. Equal jitter (0.5) keeps at least half of the wait, for starts that are expensive. A
wait that does not fit is not shortened: the failure is returned at once. The common rule `min(2 ** n + U(0, 1), 60)` is for
callers without waiting users. Here the retry budget (policy/resilience/retry_budget.py), the breaker and Retry-After prevent
a retry storm, and jitter only separates calls that failed together. Source: "Exponential Backoff And Jitter" (AWS
Architecture Blog, 2015); admission by remaining time is ours. When wrong: if faults pass long before the wait ends,
`backoff_cap_s` is too large.
"""

from dataclasses import dataclass
from typing import Annotated

from stayfast.core.clock import Rng
from stayfast.core.setting import SettingDoc, check_bounds

MAX_DOUBLINGS = 64  # 2.0 ** 1024 would overflow
MAX_WAIT_SHARE = 0.25  # of the remaining time; the rest is for an answer


def backoff_s(n_failures: int, backoff_base_s: float, backoff_cap_s: float, rng: Rng | None = None, *, jitter: float = 1.0,
              factor: float = 2.0) -> float:
    """Seconds to wait after the `n_failures`-th failure in a row (from 1). Without an rng there is no jitter."""
    if n_failures < 1:
        raise ValueError(f"n_failures must be at least 1, not {n_failures}")
    ceiling_s = min(backoff_cap_s, backoff_base_s * factor ** min(n_failures - 1, MAX_DOUBLINGS))
    if rng is None:
        return ceiling_s
    drawn_s = jitter * ceiling_s
    return ceiling_s - drawn_s + rng.uniform(0.0, drawn_s)


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """Retries of one route. `max_attempts` includes the first attempt."""

    max_attempts: Annotated[int, SettingDoc("Attempts, the first included; 1: no retry.", minimum=1, maximum=10)] = 3
    backoff_base_s: Annotated[float, SettingDoc(
        "Longest wait before the first retry at the same upstream; doubles, with full jitter.",
        more_than=0, maximum=60)] = 0.1
    backoff_cap_s: Annotated[float, SettingDoc("Longest back-off.", more_than=0, maximum=60)] = 5.0
    # after a longer wait most clients have given up; a fallback or an immediate error is better
    max_retry_after_s: Annotated[float, SettingDoc(
        "Longest total wait for an upstream's `retry-after`, at most a quarter of the remaining time; if longer, its "
        "refusal is the answer. 0: none.", minimum=0, maximum=60)] = 5.0
    # an attempt with less time than this cannot even connect
    min_remaining_s: Annotated[float, SettingDoc("Least time before the deadline for another attempt.", minimum=0)] = 0.05
    budget: Annotated[float, SettingDoc(
        "Extra attempts (hedges and fallbacks included) as a share of live traffic.", more_than=0, maximum=1)] = 0.1
    allow_stateful: Annotated[bool, SettingDoc(
        "Retry requests with side effects at the provider (`store: true`, previous_response_id, a container) that it may "
        "have received; they may run, and cost, twice.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.backoff_base_s > self.backoff_cap_s:
            raise ValueError(f"backoff_base_s must be at most backoff_cap_s ({self.backoff_cap_s:g}), not "
                             f"{self.backoff_base_s:g}")


def longest_wait_s(config: RetryConfig, remaining_s: float, waited_s: float = 0.0) -> float:
    """The longest Retry-After to wait for, in seconds. `remaining_s`: until the request's deadline; `waited_s`: its waits so
    far.
    """
    return max(0.0, min(config.max_retry_after_s - waited_s, MAX_WAIT_SHARE * remaining_s))


def wait_before_next(config: RetryConfig, n_made: int, remaining_s: float, rng: Rng, *, is_fresh: bool = False,
                     retry_after_s: float = 0.0, min_attempt_s: float = 0.0) -> float | None:
    """Seconds to wait before another attempt after `n_made` attempts; None: no further attempt. `is_fresh`: it goes to a
    healthy upstream not tried yet. `retry_after_s`: the rest of the upstream's Retry-After; `min_attempt_s`: the least
    time that an attempt there takes.
    """
    if n_made >= config.max_attempts:
        return None
    wait_s = 0.0 if is_fresh else max(backoff_s(n_made, config.backoff_base_s, config.backoff_cap_s, rng), retry_after_s)
    return wait_s if wait_s + max(config.min_remaining_s, min_attempt_s) <= remaining_s else None
