"""How long a queued job will wait, from what its queue did lately."""

import pytest

from stayfast.policy.jobs.estimates import estimate_wait_s


@pytest.mark.parametrize(("place", "seen_per_s", "ended", "expected_s"), [
    (1, None, (), 0.0),
    (5, None, (), None),  # nothing is known
    (5, 2.0, ((0.0, 100.0),), 2.0),  # what the client sees is preferred
    (5, None, ((0.0, 3.0),), 12.0),  # one by one
    (5, None, ((0.0, 3.0), (0.0, 3.0)), 12.0),  # both ended at once: no rate
    (5, None, ((0.0, 3.0), (1.0, 4.0), (2.0, 5.0)), 4.0),  # one a second
    (5, None, ((0.0, 1.0), (1000.0, 1001.0)), 4.0),  # an idle time is no rate
])
def test_estimate_wait_s_follows_what_is_known(place: int, seen_per_s: float | None, ended: tuple[tuple[float, float], ...],
                                               expected_s: float | None) -> None:
    """The observed rate first, then the rate of ends, at most the serial time."""
    assert estimate_wait_s(place, seen_per_s, ended) == expected_s
