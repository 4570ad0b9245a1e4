"""policy.resilience.breaker in the state half-open: the second probe decides."""

import pytest

from stayfast.policy.resilience.breaker import BreakerState
from tests.unit.policy.breaker_rig import PROBE_AT, fail, half_open_breaker, open_breaker, succeed


def test_breaker_half_open_good_probe_closes_it_gently() -> None:
    """A tenth of the requests at first, all after ten seconds."""
    breaker = half_open_breaker()
    succeed(breaker, 81.0)
    assert (breaker.state, breaker.why) == (BreakerState.CLOSED, "2 probes were good")
    assert breaker.traffic_share(81.0) == pytest.approx(0.1)
    assert breaker.traffic_share(86.0) == pytest.approx(0.55)
    assert breaker.traffic_share(91.0) == 1.0


@pytest.mark.parametrize("how", ["failed", "slow", "lost"])
def test_breaker_half_open_bad_probe_reopens(how: str) -> None:
    """For another minute."""
    breaker = half_open_breaker()
    if how == "failed":
        fail(breaker, PROBE_AT)
    elif how == "slow":
        succeed(breaker, PROBE_AT, is_slow=True)
    else:
        breaker.record_lost(breaker.start_call(), PROBE_AT)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.needs_probe(120.0)
    assert breaker.needs_probe(153.0)


def test_breaker_half_open_allows_one_probe_at_a_time() -> None:
    """A discarded probe makes room for the next."""
    breaker = half_open_breaker()
    assert breaker.needs_probe(PROBE_AT)
    mark = breaker.start_call()
    assert (breaker.is_probing, breaker.needs_probe(PROBE_AT)) == (True, False)
    breaker.discard_call(mark)
    assert (breaker.state, breaker.needs_probe(PROBE_AT)) == (BreakerState.HALF_OPEN, True)


def test_breaker_half_open_call_from_before_is_ignored() -> None:
    """Calls that began in the state open neither close nor reopen it."""
    breaker = open_breaker()
    early, late = breaker.start_call(), breaker.start_call()
    succeed(breaker, PROBE_AT)
    breaker.record_success(early, 81.0)
    breaker.record_failure(late, 81.0)
    assert breaker.state is BreakerState.HALF_OPEN


def test_breaker_half_open_slow_verdicts_do_not_count() -> None:
    """Only probes decide."""
    breaker = half_open_breaker()
    breaker.record_verdicts(100, 0, PROBE_AT)
    assert breaker.state is BreakerState.HALF_OPEN


def test_breaker_half_open_closes_with_another_process() -> None:
    """Its share then grows from the instant at which the other one closed; it is not published again."""
    breaker, other = half_open_breaker(), half_open_breaker()
    assert breaker.published_state == 0.0
    succeed(other, 85.0)
    breaker.adopt_state(other.published_state, 90.0)
    assert (breaker.state, breaker.why, breaker.published_state) == (BreakerState.CLOSED, "closed in another worker", 0.0)
    assert breaker.traffic_share(90.0) == pytest.approx(0.55)
    assert breaker.n_failed_in_row == 0
