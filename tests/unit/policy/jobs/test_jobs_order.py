"""The order of jobs, and the estimates for their clients."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.constants import MAX_RETRY_AFTER_S
from stayfast.policy.admission.priority import BANDS, Points, PriorityClass, TenantTier, Urgency
from stayfast.policy.jobs.order import aged_at, expected_wait_s, poll_after_s, rank_of

INSTANTS = st.floats(0, 4e9)


def standing(tier: TenantTier) -> PriorityClass:
    """A tenant with the default points."""
    return PriorityClass(Points(), tier, 0)


def test_rank_of_the_seed_tiers_orders_premium_realtime_standard_retry_and_batch() -> None:
    """The seed's score, as bands."""
    premium, plain, trial = [standing(tier) for tier in TenantTier]
    assert [rank_of(premium, None), rank_of(plain, Urgency.REALTIME), rank_of(plain, None),
            rank_of(plain, None, is_retry=True), rank_of(trial, None)] == [0, 1, 2, 3, 4]
    assert rank_of(premium, Urgency.BATCH) == 4


@given(tier=st.sampled_from(TenantTier), urgency=st.sampled_from([None, *Urgency]), is_retry=st.booleans())
def test_rank_of_any_job_is_a_band_and_a_retry_is_never_better(*, tier: TenantTier, urgency: Urgency | None,
                                                              is_retry: bool) -> None:
    """Ranks are 0 to 4."""
    rank = rank_of(standing(tier), urgency, is_retry=is_retry)
    assert 0 <= rank < len(BANDS)
    assert rank_of(standing(tier), urgency, is_retry=True) >= rank_of(standing(tier), urgency)


@given(created_at=INSTANTS, aging_s=st.floats(1, 1e6), left_s=st.none() | st.floats(0, 1e6), run_s=st.floats(0.1, 1000))
def test_aged_at_is_within_the_aging_time_and_before_the_deadline(created_at: float, aging_s: float, left_s: float | None,
                                                                 run_s: float) -> None:
    """Twice the expected run before it, if there is so much time."""
    deadline_at = None if left_s is None else created_at + left_s
    at = aged_at(created_at, aging_s, deadline_at, run_s)
    assert created_at <= at <= created_at + aging_s
    if deadline_at is not None and left_s is not None and left_s >= 2 * run_s:
        assert at <= deadline_at - 2 * run_s + 1e-3


@given(n_ahead=st.integers(0, 10_000), n_places=st.integers(0, 1000), run_s=st.floats(0.01, 1e4))
def test_expected_wait_grows_with_the_queue_and_shrinks_with_places(n_ahead: int, n_places: int, run_s: float) -> None:
    """Little's law."""
    wait_s = expected_wait_s(n_ahead, n_places, run_s)
    assert wait_s > 0
    assert expected_wait_s(n_ahead + 1, n_places, run_s) >= wait_s >= expected_wait_s(n_ahead, n_places + 1, run_s)
    assert 1 <= poll_after_s(wait_s) <= MAX_RETRY_AFTER_S
