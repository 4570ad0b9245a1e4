"""policy.resilience.breaker in the state open: suspension, and the first probe."""

import pytest

from stayfast.policy.resilience.breaker import BreakerState
from tests.unit.policy.breaker_rig import PROBE_AT, ProbeCells, closed_breaker, fail, open_breaker, succeed


def test_breaker_open_suspends_for_about_a_minute() -> None:
    """No share of the requests; one probe at a time after 48 to 72 s."""
    until = [next(at for at in range(100) if open_breaker(seed=seed).needs_probe(float(at))) for seed in range(50)]
    assert min(until) >= 48
    assert max(until) <= 72
    assert len(set(until)) > 10
    breaker = open_breaker()
    assert breaker.traffic_share(1e6) == 0
    assert breaker.needs_probe(73)
    mark = breaker.start_call()
    assert not breaker.needs_probe(73)
    breaker.discard_call(mark)
    assert breaker.needs_probe(73)


def test_breaker_open_good_probe_half_opens_it() -> None:
    """It still has no share of the requests, and needs another probe."""
    breaker = open_breaker()
    succeed(breaker, PROBE_AT)
    assert (breaker.state, breaker.why) == (BreakerState.HALF_OPEN, "a probe was good")
    assert (breaker.traffic_share(PROBE_AT), breaker.needs_probe(PROBE_AT)) == (0.0, True)


@pytest.mark.parametrize("how", ["failed", "slow", "lost"])
def test_breaker_open_bad_probe_suspends_again(how: str) -> None:
    """For another minute, from the probe on."""
    breaker = open_breaker()
    if how == "failed":
        fail(breaker, PROBE_AT)
    elif how == "slow":
        succeed(breaker, PROBE_AT, is_slow=True)
    else:
        breaker.record_lost(breaker.start_call(), PROBE_AT)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.needs_probe(120.0)
    assert breaker.needs_probe(153.0)


def test_breaker_open_calls_for_lack_of_others_are_probes() -> None:
    """Bad ones do not prolong the suspension, good ones close it at once."""
    breaker = open_breaker()
    fail(breaker, 10.0, 50)
    assert breaker.needs_probe(73.0)
    succeed(breaker, 20.0, 2)
    assert breaker.traffic_share(20.0) > 0


def test_breaker_open_call_from_before_is_ignored() -> None:
    """Calls that began in the state closed do not close it."""
    breaker = closed_breaker()
    marks = [breaker.start_call() for _ in range(10)]
    fail(breaker, 0.0, 5)
    for mark in marks:
        breaker.record_success(mark, 1.0)
    assert (breaker.state, breaker.traffic_share(1.0)) == (BreakerState.OPEN, 0)


def test_breaker_open_is_down_until_a_success() -> None:
    """Down: open, and as many failures in a row as open it."""
    breaker = open_breaker()
    assert breaker.is_down
    succeed(breaker, 1.0, is_slow=True)
    assert (breaker.state, breaker.is_down) == (BreakerState.OPEN, False)


@pytest.mark.parametrize("end", ["good", "bad", "discarded", "died"])
def test_breaker_open_one_of_two_processes_probes(end: str) -> None:
    """The other one waits until the probe has ended, with any result."""
    cells = ProbeCells()
    one, two = cells.attach(open_breaker(), 0), cells.attach(open_breaker(2), 1)
    assert one.needs_probe(PROBE_AT)
    assert two.needs_probe(PROBE_AT)
    mark = one.start_call()
    assert not two.needs_probe(PROBE_AT)
    if end == "good":
        one.record_success(mark, 81.0)
    elif end == "bad":
        one.record_failure(mark, 81.0)
    elif end == "discarded":
        one.discard_call(mark)
    else:
        cells.numbers[0] = 0.0
    assert two.needs_probe(81.0)


def test_breaker_open_call_from_before_ends_no_probe() -> None:
    """The shared count of probes covers only calls of the present state."""
    cells = ProbeCells()
    breaker = cells.attach(closed_breaker(), 0)
    marks = [breaker.start_call() for _ in range(7)]
    for mark in marks:
        breaker.record_failure(mark, 0.0)
    assert cells.numbers == [0.0, 0.0]
    breaker.start_call()
    assert cells.numbers == [1.0, 0.0]
    breaker.adopt_state(-90.0, 90.0)
    assert cells.numbers == [0.0, 0.0]


def test_breaker_open_is_adopted_by_other_processes() -> None:
    """With the same end of the suspension; the follower does not publish it again."""
    breaker, follower = open_breaker(), closed_breaker()
    follower.adopt_state(breaker.published_state, 1.0)
    assert (follower.state, follower.why, follower.published_state) == (BreakerState.OPEN, "opened in another worker", 0.0)
    assert [follower.needs_probe(at) for at in (40.0, PROBE_AT)] == [breaker.needs_probe(at) for at in (40.0, PROBE_AT)]
