"""A deadline that only the small tier meets."""

import asyncio

from stayfast.lab.tiers.deadline import measure_deadline_tiers


def test_deadline_that_only_the_small_tier_meets_has_no_time_outs() -> None:
    found = asyncio.run(measure_deadline_tiers(1, 150))
    assert (found.n, found.n_time_outs, found.n_small) == (150, 0, 150)
    assert found.n_time_outs_without == 150
    assert found.n_wasted < 15
