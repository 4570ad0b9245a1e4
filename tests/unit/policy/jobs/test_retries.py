"""What follows a failed attempt at a job."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.types import Stage
from stayfast.policy.jobs.retries import CAP_S, NextStep, decide_retry

NOW = 1_000_000.0


def upstream_failed(status: int | None, retry_after_s: float | None = None, kind: str | None = None) -> UpstreamFailed:
    """A failure of an upstream."""
    return UpstreamFailed("up", Fault.STATUS if status else Fault.RESET, "it failed", upstream_status=status,
                          retry_after_s=retry_after_s, kind=kind)


def step_after(error: StayfastError, n_failures: int = 0) -> NextStep:
    """The step after this error."""
    return decide_retry(error, n_failures=n_failures, max_attempts=3, now=NOW, deadline_at=None, rng=Random(1)).step


@pytest.mark.parametrize(("error", "step"), [
    (upstream_failed(429), NextStep.REPEAT),
    (upstream_failed(500), NextStep.REPEAT),
    (upstream_failed(401), NextStep.REPEAT),
    (upstream_failed(None), NextStep.REPEAT),
    (DeadlineExceeded(Stage.CALL, "total_s", 60), NextStep.REPEAT),
    (StayfastError("internal"), NextStep.REPEAT),
    (upstream_failed(400, kind="invalid_request_error"), NextStep.FINISH),
    (Rejected("wrong"), NextStep.FINISH),
    (Rejected("unknown", status=404, code="model_not_found"), NextStep.REQUEUE),
    (Shed("quota", status=429, retry_after_s=20), NextStep.REQUEUE),
    (Shed("overload", retry_after_s=1), NextStep.REQUEUE),
    (Shed("only if cached", status=504), NextStep.FINISH),
])
def test_decide_retry_by_error(error: StayfastError, step: NextStep) -> None:
    """Whose fault it is, and whether the gateway made an attempt at all."""
    assert step_after(error) is step


def test_decide_retry_of_a_request_that_may_have_had_an_effect_is_final() -> None:
    """As for requests of clients."""
    failed = upstream_failed(500)
    failed.is_once = True
    assert step_after(failed) is NextStep.FINISH


def test_decide_retry_of_the_last_attempt_buries_the_job_but_a_refusal_never_does() -> None:
    """A quota may last for days."""
    assert step_after(upstream_failed(500), n_failures=2) is NextStep.BURY
    assert step_after(Shed("quota", status=429), n_failures=99) is NextStep.REQUEUE


@given(n_failures=st.integers(0, 500), retry_after_s=st.none() | st.floats(0, 1e5), left_s=st.none() | st.floats(0, 1e6),
       is_shed=st.booleans(), seed=st.integers(0, 1000))
def test_decide_retry_pauses_grow_honour_retry_after_and_end_before_the_deadline(
        *, n_failures: int, retry_after_s: float | None, left_s: float | None, is_shed: bool, seed: int) -> None:
    """For any number of failures and any deadline."""
    error = (Shed("quota", status=429, retry_after_s=retry_after_s) if is_shed else upstream_failed(429, retry_after_s))
    deadline_at = None if left_s is None else NOW + left_s
    decision = decide_retry(error, n_failures=n_failures, max_attempts=1000, now=NOW, deadline_at=deadline_at,
                            rng=Random(seed))
    if decision.step is NextStep.FINISH:
        assert deadline_at is not None
        return
    pause_s = decision.run_at - NOW
    assert pause_s >= (retry_after_s or 0.0) - 1e-6
    assert pause_s >= 1.0 - 1e-6
    assert pause_s <= max(1.5 * (retry_after_s or 1.0), CAP_S) + 1e-6
    assert deadline_at is None or decision.run_at < deadline_at
