"""policy.resilience.breaker in the state closed: what opens it, and what does not."""

from random import Random

import pytest

from stayfast.policy.resilience.breaker import Breaker, BreakerConfig, BreakerState
from tests.unit.policy.breaker_rig import closed_breaker, fail, is_open, succeed


def test_breaker_closed_five_failures_in_a_row_open_it() -> None:
    """Four do not, nor five with a success among them."""
    breaker = closed_breaker()
    fail(breaker, 0, 4)
    succeed(breaker, 0)
    fail(breaker, 0, 4)
    assert not is_open(breaker)
    fail(breaker, 0)
    assert (breaker.state, breaker.why) == (BreakerState.OPEN, "5 failures in a row")


def test_breaker_closed_half_of_ten_calls_failed_opens_it() -> None:
    """Fewer than ten calls prove nothing, and calls older than the window do not count."""
    breaker = closed_breaker()
    for number in range(10):
        assert not is_open(breaker)
        fail(breaker, 0.0) if number % 2 else succeed(breaker, 0.0)
    assert breaker.why == "5 of 10 calls failed"
    breaker = closed_breaker()
    for _ in range(3):
        fail(breaker, 0.0)
        succeed(breaker, 0.0)
    succeed(breaker, 31.0, 5)
    for _ in range(3):
        fail(breaker, 31.0)
        succeed(breaker, 31.0)
    assert not is_open(breaker)


def test_breaker_closed_nine_slow_calls_in_a_row_open_it() -> None:
    """Classified together or one by one, after any number of fast calls."""
    for n_before in (0, 500):
        breaker = closed_breaker()
        breaker.record_verdicts(0, n_before, 9.0)
        for _ in range(8):
            breaker.record_verdicts(1, 0, 10.0)
        assert not is_open(breaker)
        breaker.record_verdicts(1, 0, 10.0)
        assert (breaker.state, breaker.why) == (BreakerState.OPEN, "9 of 9 calls were slow")
    breaker = closed_breaker()
    breaker.record_verdicts(9, 0, 10.0)
    assert is_open(breaker)


def test_breaker_closed_half_of_calls_slow_opens_it() -> None:
    """Within some dozens of calls; one slow call in six does not, in thousands."""
    for n_of_six, n_least, n_most in ((3, 18, 60), (1, 6000, 6000)):
        breaker, n = closed_breaker(), 0
        while breaker.state is BreakerState.CLOSED and n < 6000:
            breaker.record_verdicts(n % 6 < n_of_six, n % 6 >= n_of_six, n / 10)
            n += 1
        assert n_least <= n <= n_most


def test_breaker_closed_usual_share_of_slow_calls_is_tolerated() -> None:
    """An upstream with every fourth call slow is measured against that, and opens once all are slow."""
    breaker = closed_breaker()
    for number in range(2000):
        breaker.record_verdicts(1, 3, number / 10)
    breaker.record_verdicts(20, 0, 200.0)
    assert not is_open(breaker)
    breaker.record_verdicts(100, 0, 200.1)
    assert is_open(breaker)


def test_breaker_closed_old_slow_calls_are_no_evidence() -> None:
    """Eight slow calls, half a minute without calls, eight more."""
    breaker = closed_breaker()
    breaker.record_verdicts(8, 0, 0.0)
    breaker.record_verdicts(8, 0, 31.0)
    assert not is_open(breaker)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1])
def test_breaker_closed_random_slow_calls_rarely_open_it(share: float) -> None:
    """At most one false alarm in a million calls, by the bound of the cumulative sum."""
    rng, n_alarms = Random(5), 0
    breaker = closed_breaker()
    for number in range(10_000):
        n_slow = sum(rng.random() < share for _ in range(100))
        breaker.record_verdicts(n_slow, 100 - n_slow, number / 8)
        if breaker.state is not BreakerState.CLOSED:
            n_alarms += 1
            breaker = closed_breaker()
    assert n_alarms <= 1


def test_breaker_closed_slow_ratio_1_needs_all_calls_slow() -> None:
    """One fast call is enough to keep it closed."""
    breaker = Breaker(BreakerConfig(slow_ratio=1.0), Random(1))
    for _ in range(3):
        breaker.record_verdicts(5, 1, 0.0)
    assert not is_open(breaker)
    breaker.record_verdicts(7, 0, 0.0)
    assert is_open(breaker)


def test_breaker_closed_counts_evidence_of_other_processes() -> None:
    """Slow and failed calls of another process are counted once."""
    one, other = closed_breaker(), closed_breaker()
    succeed(one, 1.0, 3)
    one.record_verdicts(4, 0, 1.0)
    fail(one, 1.0, 2)
    evidence = one.evidence_since(0.5)
    assert evidence == (0, 2, 4)
    assert one.evidence_since(1.0) == (0, 0, 0)
    other.record_verdicts(5, 0, 1.0)
    other.add_evidence(evidence, 1.1)
    assert (other.state, other.why) == (BreakerState.OPEN, "9 of 9 calls were slow")


def test_breaker_closed_discarded_call_is_neither_success_nor_failure() -> None:
    """A call that was not needed any more leaves the streak of failures and the window as they are."""
    breaker = closed_breaker()
    fail(breaker, 0.0, 4)
    breaker.discard_call(breaker.start_call())
    assert (breaker.n_failed_in_row, breaker.evidence_since(-1.0)) == (4, (0, 4, 0))
    fail(breaker, 0.0)
    assert is_open(breaker)


def test_breaker_closed_lost_call_changes_nothing() -> None:
    """A call cancelled for a faster one is classified elsewhere (policy.resilience.baselines)."""
    breaker = closed_breaker()
    for _ in range(50):
        breaker.record_lost(breaker.start_call(), 1.0)
    assert (breaker.state, breaker.n_failed_in_row, breaker.traffic_share(1.0)) == (BreakerState.CLOSED, 0, 1.0)


def test_breaker_closed_disabled_never_opens() -> None:
    """Readiness still counts the failures."""
    breaker = Breaker(BreakerConfig(enabled=False), Random(1))
    fail(breaker, 0.0, 50)
    breaker.record_verdicts(100, 0, 0.0)
    assert (breaker.state, breaker.n_failed_in_row) == (BreakerState.CLOSED, 50)
    assert repr(breaker) == "<Breaker off>"


def test_breaker_closed_new_upstream_starts_with_a_small_share() -> None:
    """As after closing; other processes do not adopt it as a change."""
    breaker = closed_breaker()
    assert (breaker.traffic_share(100.0), breaker.is_down) == (1.0, False)
    breaker.begin_slow_start(100.0)
    assert breaker.traffic_share(100.0) == pytest.approx(0.1)
    assert breaker.traffic_share(110.0) == 1.0
    assert breaker.published_state == 0.0
