"""Whether an attempt at a job that failed is repeated, and when.

Problem: a job has hours, so an upstream's bad ten minutes must not end it; but a request that is wrong stays wrong, and
attempts cost money. Rule, by the error of the attempt:

    the caller's fault (4xx), or it may have had an effect at the provider      final
    the gateway refused it for now: a quota, overload, no place                 back to the queue, no failure
    429, 5xx, time-outs, broken connections, refused keys, an open breaker      another attempt after a pause
    max_attempts failures                                                       dead (for the dead-letter list)
    the pause would end after the deadline                                      final

    pause = max(Retry-After, backoff)      backoff: 2 s doubling to 300 s, equal jitter (policy/resilience/retry.py)
    after a refusal by the gateway itself: max(Retry-After, 1 s) * U(1, 1.5)

Each attempt has the route's own retries, hedges aside. Source: "Exponential Backoff And Jitter" (AWS, 2015); a Retry-After
is honoured without a bound, because no client waits. When wrong: a provider's 500 that depends on the prompt is repeated
`max_attempts` times. A key that stays refused ends its jobs as dead; `stayfast jobs retry` brings them back.
"""

import msgspec

from stayfast.core.clock import Rng
from stayfast.core.errors import Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.types import Word
from stayfast.policy.resilience.retry import backoff_s

BASE_S, CAP_S = 2.0, 300.0
EQUAL_JITTER = 0.5
LEAST_PAUSE_S = 1.0
SPREAD = 1.5  # of the pause after a refusal by the gateway
UNKNOWN_ROUTE = "model_not_found"
_REFUSED_FOR_NOW = (429, 503)


class NextStep(Word):
    FINISH = "finish"  # as failed, with this error
    BURY = "bury"  # as dead, with this error
    REPEAT = "repeat"  # counts as a failed attempt
    REQUEUE = "requeue"  # is no failure


class RetryDecision(msgspec.Struct, frozen=True):
    """run_at: Unix seconds; 0 without a next attempt."""

    step: NextStep
    run_at: float = 0.0


def decide_retry(error: StayfastError, *, n_failures: int, max_attempts: int, now: float, deadline_at: float | None,
                 rng: Rng) -> RetryDecision:
    """What follows an attempt that ended in `error`. n_failures: of earlier attempts. now, deadline_at: Unix seconds."""
    if is_refused_for_now(error):
        pause_s = max(LEAST_PAUSE_S, error.retry_after_s or 0.0) * rng.uniform(1.0, SPREAD)
        step = NextStep.REQUEUE
    elif not may_repeat(error):
        return RetryDecision(NextStep.FINISH)
    elif n_failures + 1 >= max_attempts:
        return RetryDecision(NextStep.BURY)
    else:
        pause_s = max(error.retry_after_s or 0.0, backoff_s(n_failures + 1, BASE_S, CAP_S, rng, jitter=EQUAL_JITTER))
        step = NextStep.REPEAT
    if deadline_at is not None and now + pause_s >= deadline_at:
        return RetryDecision(NextStep.FINISH)
    return RetryDecision(step, now + pause_s)


def is_refused_for_now(error: StayfastError) -> bool:
    """Whether this gateway made no attempt: a quota, overload, no place at an upstream, or a route that it does not have."""
    if isinstance(error, Shed):
        return error.status in _REFUSED_FOR_NOW
    return isinstance(error, Rejected) and error.code == UNKNOWN_ROUTE


def may_repeat(error: StayfastError) -> bool:
    """Whether another attempt may help, and does no harm."""
    if isinstance(error, Rejected | Shed):
        return False
    return not isinstance(error, UpstreamFailed) or (not error.is_clients_fault and not error.is_once)
