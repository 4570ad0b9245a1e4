"""The product-limit estimate: what was cut off counts as long as it ran, and no longer."""

from math import inf
from random import Random

import pytest

from stayfast.policy.histogram import LogHistogram
from stayfast.policy.resilience.survival import Survival


def _of(ended_s: list[float], cut_off_s: list[float]) -> Survival:
    ended, cut_off = LogHistogram(), LogHistogram()
    for seconds in ended_s:
        ended.add(seconds)
    for seconds in cut_off_s:
        cut_off.add(seconds)
    return Survival(ended, cut_off)


def test_survival_matches_textbook_example() -> None:
    """1, 2, 4 and 5 ended, 3 was cut off: S falls by 1/5, 1/4, 1/2 and 1 of what is at risk."""
    survival = _of([1.0, 2.0, 4.0, 5.0], [3.0])
    assert [survival.share_beyond(seconds) for seconds in (0.9, 1.5, 2.5, 4.5, 6.0)] == pytest.approx([1.0, 0.8, 0.6, 0.3,
                                                                                                       0.0])
    assert survival.n == 5


def test_survival_cancelled_attempts_leave_plateau() -> None:
    """Of ten, one was cut off at the end: the tenth quantile is not known."""
    survival = _of([1.0] * 9, [30.0])
    assert survival.share_beyond(29.0) == pytest.approx(0.1)
    assert (survival.quantile(0.9) < 1.05, survival.quantile(0.95)) == (True, inf)


def test_survival_early_cancellation_is_unbiased() -> None:
    """Half of the values cut off at random: the quantiles stay where they are within a few per cent."""
    rng = Random(3)
    took = [rng.lognormvariate(0.0, 0.8) for _ in range(20_000)]
    limits = [rng.lognormvariate(0.3, 0.8) for _ in took]
    survival = _of([s for s, limit in zip(took, limits, strict=True) if s <= limit],
                   [limit for s, limit in zip(took, limits, strict=True) if s > limit])
    whole = _of(took, [])
    for q in (0.5, 0.9, 0.95):
        assert survival.quantile(q) == pytest.approx(whole.quantile(q), rel=0.06)


def test_survival_few_at_risk_keeps_the_tail() -> None:
    """Of a thousand, seventy last for seconds and all but three of those are cut off at half a second: what one of the three
    does says nothing of the seventy. Where none was cut off, the last one ends it.
    """
    quick = [0.2] * 930
    assert _of([*quick, 2.0], [0.5] * 67 + [3.0] * 2).share_beyond(2.5) == pytest.approx(0.07)
    assert _of([*quick, *[2.0] * 69, 3.0], []).share_beyond(4.0) == pytest.approx(0.0)


def test_survival_without_samples_is_one() -> None:
    """Without samples everything lasts for ever."""
    assert (_of([], []).share_beyond(1.0), _of([], []).quantile(0.5)) == (1.0, inf)
