"""Retries: when a failed attempt is followed by another, and after which wait (exponential back-off with a cap).

Problem: clients that retry at once and in step turn a hiccup into an outage, and a retry that cannot finish in time is
pure load. Rule: another attempt is made only after faults that it can mend, before any content has reached the client, up to
`max_attempts`, and only if its wait leaves `min_left_s`, and the least time that an attempt takes, before the deadline. An
attempt at a healthy upstream that this request has not tried starts at once. Any other waits, and at least for the rest of
that upstream's Retry-After, if that is a small part of the request's time:

    ceiling = min(cap_s, base_s * factor ** (n_failures - 1)),  wait = (1 - jitter) * ceiling + U(0, jitter * ceiling)
    a Retry-After is waited for up to min(max_wait_s - waited so far, 0.25 * remaining), and is never lengthened

Full jitter (1) spreads requests best; equal jitter (0.5) keeps at least half the pause, for expensive starts. A wait that
does not fit is not shortened: the failure is returned at once. The common rule `min(2 ** n + U(0, 1), 60)` is for callers
without waiting users; here the retry budget (policy/resilience/retry_budget.py), the breaker and Retry-After prevent a retry
storm, and jitter only separates calls that failed together.
Source: "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015); admission by remaining time is ours.
When wrong: if faults pass long before the wait ends, `cap_s` is too large.
"""

from dataclasses import dataclass
from typing import Annotated

from stayfast.core.clock import Rng
from stayfast.core.setting import SettingDoc, check_bounds

MAX_DOUBLINGS = 64  # 2.0 ** 1024 would overflow
PATIENCE_SHARE = 0.25  # of the remaining time; the rest is for an answer


def backoff_s(n_failures: int, base_s: float, cap_s: float, rng: Rng | None = None, *, jitter: float = 1.0,
              factor: float = 2.0) -> float:
    """Seconds to wait after the `n_failures`-th failure in a row (from 1). Without an rng there is no jitter."""
    if n_failures < 1:
        raise ValueError(f"n_failures must be at least 1, not {n_failures}")
    ceiling_s = min(cap_s, base_s * factor ** min(n_failures - 1, MAX_DOUBLINGS))
    if rng is None:
        return ceiling_s
    drawn_s = jitter * ceiling_s
    return ceiling_s - drawn_s + rng.uniform(0.0, drawn_s)


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """Retries of one route. `max_attempts` includes the first attempt."""

    max_attempts: Annotated[int, SettingDoc("Attempts in all; 1: no retries.", minimum=1, maximum=10)] = 3
    base_s: Annotated[float, SettingDoc(
        "The longest wait before the first retry at the same upstream; it doubles with each retry, with full jitter.",
        more_than=0, maximum=60)] = 0.1
    cap_s: Annotated[float, SettingDoc("The longest back-off, without a `retry-after`.", more_than=0, maximum=60)] = 5.0
    # beyond this, a fallback or an immediate error serves the client better
    max_wait_s: Annotated[float, SettingDoc(
        "The longest total wait of a request for upstreams' `retry-after`, and at most a quarter of its remaining time; "
        "beyond that the upstream's error is returned at once, with its `retry-after`. 0: no wait.",
        minimum=0, maximum=60)] = 5.0
    # an attempt with less time than this cannot even connect
    min_left_s: Annotated[float, SettingDoc("No attempt is started with less time left.", minimum=0)] = 0.05
    budget: Annotated[float, SettingDoc(
        "The share of live traffic that retries may add, hedges and fallbacks included.", more_than=0, maximum=1)] = 0.1
    stateful: Annotated[bool, SettingDoc(
        "Whether requests that change state at the provider (`store: true`, the default of responses; "
        "previous_response_id; a container) are retried even if the provider may have received them. They may then be "
        "executed, and paid for, twice.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.base_s > self.cap_s:
            raise ValueError(f"0 < base_s <= cap_s <= 60 must hold, not base_s={self.base_s}, cap_s={self.cap_s}")


def patience_s(config: RetryConfig, remaining_s: float, waited_s: float = 0.0) -> float:
    """The longest wait in seconds, for a request with `remaining_s` before its deadline that already waited `waited_s`."""
    return max(0.0, min(config.max_wait_s - waited_s, PATIENCE_SHARE * remaining_s))


def wait_before_next(config: RetryConfig, n_made: int, remaining_s: float, rng: Rng, *, is_fresh: bool = False,
                     alone_s: float = 0.0, least_s: float = 0.0) -> float | None:
    """Seconds to wait before the attempt after `n_made` attempts; None: no further attempt. `is_fresh`: it goes to a healthy
    upstream not tried yet. `alone_s`: the rest of the upstream's Retry-After; `least_s`: the least time that an attempt
    there takes.
    """
    if n_made >= config.max_attempts:
        return None
    wait_s = 0.0 if is_fresh else max(backoff_s(n_made, config.base_s, config.cap_s, rng), alone_s)
    return wait_s if wait_s + max(config.min_left_s, least_s) <= remaining_s else None
