"""The order of jobs among themselves, and what a client that waits for one can expect.

Problem: a job must never delay a request whose client waits, so all jobs have the lowest band of admission. Among themselves
they still differ: a premium tenant's jobs before a trial's, an urgent one before a nightly one; and none may wait for ever
behind a stream of better ones.
Rule: the score of admission (policy/admission/priority.py), with a job in place of a batch request:

    score = tier + the tenant's own points + (real-time if it declares that) + (retry)
    rank  = band of the score, 0 to 4; lower runs first
    aged  = min(created + aging_s, deadline - 2 * expected run); from then on it runs before all ranks

A declared batch urgency lowers the score as it does for a request. Within a rank the store serves the tenant that has had
the fewest tokens for its weight, then the earliest deadline.
The wait of a job with n jobs before it, at `n_places` that each end a job in `run_s`: (n + 1) * run_s / n_places.
Source: the score is the seed's (premium +100, real-time +75, retry -50); ageing at twice the expected run is usual in
deadline schedulers; the wait is Little's law with full places.
When wrong: after an outage longer than `aging_s` all jobs are aged, and the order is by age alone. The wait assumes that
jobs are alike and that the places stay free for them; interactive load takes places first.
"""

from math import ceil

from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.policy.admission.priority import PriorityClass, Urgency

EXPECTED_RUN_S = 30.0  # of a job, before any has ended
MIN_POLL_S = 1.0  # a client of a queued job is not invited more often


def rank_of(standing: PriorityClass, urgency: Urgency | None, *, is_retry: bool = False) -> int:
    """The rank of a job, 0 (first) to 4. urgency: as its client declared it; None: it declared none."""
    return standing.band_for(urgency or Urgency.PLAIN, is_retry=is_retry)


def aged_at(created_at: float, aging_s: float, deadline_at: float | None, run_s: float = EXPECTED_RUN_S) -> float:
    """From when a job runs before all ranks. Not before its creation."""
    at = created_at + aging_s
    if deadline_at is not None:
        at = min(at, deadline_at - 2.0 * run_s)
    return max(created_at, at)


def expected_wait_s(n_ahead: int, n_places: int, run_s: float = EXPECTED_RUN_S) -> float:
    """Seconds until a job ends that has `n_ahead` queued jobs before it."""
    return (n_ahead + 1) * run_s / max(1, n_places)


def poll_after_s(wait_s: float) -> int:
    """The Retry-After of a job that has not ended: whole seconds, from 1 to MAX_RETRY_AFTER_S."""
    return ceil(min(MAX_RETRY_AFTER_S, max(MIN_POLL_S, wait_s)))
