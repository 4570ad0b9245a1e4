"""policy.admission.priority: the bands of scores, and the room that low bands leave for high ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.admission.priority import (
    BANDS,
    MAX_REMEMBERED,
    WITH_TRAFFIC_S,
    HoldBack,
    Points,
    PriorityClass,
    RecentKeys,
    TenantTier,
    Urgency,
)


@pytest.mark.parametrize(("tier", "urgency", "is_retry", "band"), [
    (TenantTier.PREMIUM, Urgency.REALTIME, False, "premium"),
    (TenantTier.PREMIUM, Urgency.PLAIN, False, "premium"),
    (TenantTier.PREMIUM, Urgency.PLAIN, True, "realtime"),
    (TenantTier.STANDARD, Urgency.REALTIME, False, "realtime"),
    (TenantTier.STANDARD, Urgency.REALTIME, True, "standard"),
    (TenantTier.STANDARD, Urgency.PLAIN, False, "standard"),
    (TenantTier.STANDARD, Urgency.PLAIN, True, "low"),
    (TenantTier.STANDARD, Urgency.BATCH, False, "batch"),
    (TenantTier.PREMIUM, Urgency.BATCH, False, "batch"),
    (TenantTier.BATCH, Urgency.REALTIME, False, "batch"),
])
def test_priority_class_band_by_points(tier: TenantTier, urgency: Urgency, is_retry: bool, band: str) -> None:
    """The declared points, added up."""
    assert BANDS[PriorityClass(Points(), tier, 0).band_for(urgency, is_retry=is_retry)] == band


@given(st.sampled_from(TenantTier), st.sampled_from(Urgency), st.integers(-500, 500), st.integers(0, 500))
def test_band_of_more_points_is_never_lower(tier: TenantTier, urgency: Urgency, points: int, more: int) -> None:
    """A tenant's own points move it one way only, and a retry never gains."""
    less, better = PriorityClass(Points(), tier, points), PriorityClass(Points(), tier, points + more)
    assert better.band_for(urgency, is_retry=False) <= less.band_for(urgency, is_retry=False)
    assert less.band_for(urgency, is_retry=True) >= less.band_for(urgency, is_retry=False)


def test_hold_back_only_for_bands_with_traffic() -> None:
    """A tenth for each band above that had a request of late; alone, every band may fill all."""
    hold = HoldBack(100, 0.1)
    assert [hold.ceiling(band, 0.0) for band in range(5)] == [100] * 5
    hold.seen_at[0], hold.seen_at[2] = 0.0, 10.0
    assert [hold.ceiling(band, 20.0) for band in range(5)] == [100, 90, 90, 80, 80]
    assert [hold.ceiling(band, WITH_TRAFFIC_S) for band in range(5)] == [100, 100, 100, 90, 90]


@given(st.integers(1, 1000), st.floats(0, 0.2), st.lists(st.integers(0, 4)), st.integers(0, 4))
def test_hold_back_ceiling_from_one_to_all_places(n_places: int, share: float, seen: list[int], band: int) -> None:
    """No band is blocked for ever, and a lower band never has more room than a higher one."""
    hold = HoldBack(n_places, share)
    for each in seen:
        hold.seen_at[each] = 0.0
    assert 1 <= hold.guaranteed[band] <= hold.ceiling(band, 1.0) <= n_places
    assert all(hold.ceiling(each, 1.0) >= hold.ceiling(band, 1.0) for each in range(band))


def test_points_out_of_bounds_are_rejected() -> None:
    """The message names the setting."""
    with pytest.raises(ValueError, match=r"^retry must be from"):
        Points(retry=-10_001)


def test_repeats_are_per_tenant_and_bounded() -> None:
    """The same key of another tenant is another request; the oldest keys are forgotten."""
    repeats = RecentKeys()
    assert [repeats.is_repeat("a", "k"), repeats.is_repeat("b", "k"), repeats.is_repeat("a", "k")] == [False, False, True]
    for n in range(MAX_REMEMBERED):
        repeats.is_repeat("c", str(n))
    assert not repeats.is_repeat("a", "k")
