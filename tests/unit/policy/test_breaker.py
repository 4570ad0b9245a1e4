"""policy/breaker: every state and every way between them."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.breaker import Breaker, BreakerConfig, State

CONFIG = BreakerConfig(slow_ratio=0.5)


def closed() -> Breaker:
    """A new one."""
    return Breaker(CONFIG, Random(1))


def opened(seed: int = 1) -> Breaker:
    """One that five failures have opened at 0."""
    breaker = Breaker(CONFIG, Random(seed))
    bad(breaker, 0.0, 5)
    assert breaker.state is State.OPEN
    return breaker


def good(breaker: Breaker, now: float, n: int = 1, *, is_slow: bool = False) -> None:
    """Calls that bring a token."""
    for _ in range(n):
        breaker.succeeded(breaker.began(), now, is_slow=is_slow)


def bad(breaker: Breaker, now: float, n: int = 1) -> None:
    """Calls that fail."""
    for _ in range(n):
        breaker.failed(breaker.began(), now)


def test_five_failures_in_a_row_open_it() -> None:
    """Four do not, nor five with an answer among them."""
    breaker = closed()
    bad(breaker, 0, 4)
    good(breaker, 0)
    bad(breaker, 0, 4)
    assert breaker.state is State.CLOSED
    bad(breaker, 0)
    assert (breaker.state, breaker.why) == (State.OPEN, "5 failures in a row")


def test_half_of_enough_calls_open_it() -> None:
    """Failed or slow; of fewer than ten nothing is concluded, and old ones do not count."""
    for is_slow, why in ((False, "5 of 10 calls failed"), (True, "5 of 10 calls were slow")):
        breaker = closed()
        for number in range(10):
            assert breaker.state is State.CLOSED
            if number % 2 and not is_slow:
                bad(breaker, 0.0)
            else:
                good(breaker, 0.0, is_slow=number % 2 == 1)
        assert breaker.why == why
    breaker = closed()
    good(breaker, 0.0, 4, is_slow=True)
    good(breaker, 31.0, 5)
    good(breaker, 31.0, 4, is_slow=True)
    assert breaker.state is State.CLOSED


def test_calls_that_still_wait_count() -> None:
    """A stuck upstream tells nobody by answering."""
    breaker = closed()
    good(breaker, 10.0, 12)
    assert breaker.since(12.0) == 10.0
    breaker.overdue(11, 12.0)
    assert breaker.state is State.CLOSED
    breaker.overdue(12, 12.5)
    assert (breaker.state, breaker.why) == (State.OPEN, "12 of 24 calls were slow")


def test_given_up_calls_count_as_slow() -> None:
    """Ten races lost after a long wait: nothing else is known, and it is enough."""
    breaker = closed()
    for _ in range(10):
        breaker.outlasted(breaker.began(), 1.0)
    assert breaker.state is State.OPEN


def test_open_means_left_alone_for_about_a_minute() -> None:
    """No share of the requests; one probe at a time after 48 to 72 s."""
    until = [next(at for at in range(100) if opened(seed=seed).wants_probe(float(at))) for seed in range(50)]
    assert min(until) >= 48
    assert max(until) <= 72
    assert len(set(until)) > 10
    breaker = opened()
    assert breaker.share(1e6) == 0
    assert breaker.wants_probe(73)
    mark = breaker.began()
    assert not breaker.wants_probe(73)
    breaker.forgotten(mark)
    assert breaker.wants_probe(73)


def test_two_good_probes_close_it_gently() -> None:
    """Half-open between them; then a tenth of the requests, all after ten seconds."""
    breaker = opened()
    good(breaker, 80.0)
    assert (breaker.state, breaker.share(80.0), breaker.wants_probe(80.0)) == (State.HALF_OPEN, 0.0, True)
    good(breaker, 81.0)
    assert breaker.share(81.0) == pytest.approx(0.1)
    assert breaker.share(86.0) == pytest.approx(0.55)
    assert breaker.share(91.0) == 1.0


@pytest.mark.parametrize("how", ["failed", "slow", "outlasted"])
def test_a_bad_probe_opens_it_again(how: str) -> None:
    """For another minute, from the first probe or from the second."""
    for n_good in (0, 1):
        breaker = opened()
        good(breaker, 80.0, n_good)
        if how == "failed":
            bad(breaker, 80.0)
        elif how == "slow":
            good(breaker, 80.0, is_slow=True)
        else:
            breaker.outlasted(breaker.began(), 80.0)
        assert breaker.state is State.OPEN
        assert not breaker.wants_probe(120.0)
        assert breaker.wants_probe(153.0)


def test_the_last_resort_is_a_probe() -> None:
    """Calls made in spite of it: bad ones do not keep it open for longer, good ones bring it back at once."""
    breaker = opened()
    bad(breaker, 10.0, 50)
    assert breaker.wants_probe(73.0)
    good(breaker, 20.0, 2)
    assert breaker.share(20.0) > 0


def test_late_news_is_no_news() -> None:
    """Calls that began before the last change neither close nor open it."""
    breaker = closed()
    marks = [breaker.began() for _ in range(10)]
    bad(breaker, 0.0, 5)
    for mark in marks:
        breaker.succeeded(mark, 1.0)
    assert breaker.share(1.0) == 0
    good(breaker, 80.0, 2)
    for mark in marks:
        breaker.failed(mark, 81.0)
    assert breaker.share(81.0) > 0


@given(n=st.integers(0, 200), seed=st.integers(0, 99), start=st.sampled_from(list(State)))
def test_what_is_ignored_moves_nothing(n: int, seed: int, start: State) -> None:
    """A storm of hang-ups, in every state."""
    breaker = Breaker(CONFIG, Random(seed))
    if start is not State.CLOSED:
        bad(breaker, 0.0, 5)
    if start is State.HALF_OPEN:
        good(breaker, 80.0)
    marks = [breaker.began() for _ in range(n)]
    for mark in marks:
        breaker.forgotten(mark)
    assert breaker.state is start
    assert breaker.wants_probe(1e6) == (start is not State.CLOSED)


@given(steps=st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["good", "slow", "bad", "ignored", "overdue", "late"])),
                      max_size=200))
def test_never_closed_without_a_probe(steps: list[tuple[float, str]]) -> None:
    """Whatever comes: from open to closed only by good calls that began after it opened; probes are counted right."""
    breaker, now, old = closed(), 0.0, 0
    for gap_s, what in steps:
        now += gap_s
        before = breaker.state
        if what == "overdue":
            breaker.overdue(15, now)
        elif what == "late":
            breaker.succeeded(old - 1, now)
        else:
            old = mark = breaker.began()
            if what == "bad":
                breaker.failed(mark, now)
            elif what == "ignored":
                breaker.forgotten(mark)
            else:
                breaker.succeeded(mark, now, is_slow=what == "slow")
        if before is State.OPEN:
            assert breaker.state is not State.CLOSED
        if before is not State.CLOSED and breaker.state is State.CLOSED:
            assert what == "good"
        assert breaker._n_probing == 0
        assert 0 <= breaker.share(now) <= 1


def test_it_can_be_turned_off() -> None:
    """Then nothing opens it, and readiness still counts failures."""
    breaker = Breaker(BreakerConfig(enabled=False), Random(1))
    bad(breaker, 0.0, 50)
    assert (breaker.state, breaker.n_failed_in_row) == (State.CLOSED, 50)
    assert repr(breaker) == "<Breaker closed: nothing has failed; 50 failures in a row>"


@pytest.mark.parametrize(("wrong", "named"), [
    ({"failures_in_row": 0}, "failures_in_row"), ({"failure_ratio": 0}, "failure_ratio"),
    ({"slow_ratio": 1.5}, "slow_ratio"),
    ({"slow_factor": 1}, "slow_factor"), ({"min_calls": 30}, "min_calls"), ({"n_calls": 10**6}, "n_calls"),
    ({"window_s": 0}, "window_s"), ({"open_s": 1e9}, "open_s")])
def test_wrong_settings_are_refused(wrong: dict[str, Any], named: str) -> None:
    """With a sentence that names them."""
    with pytest.raises(ValueError, match=named):
        BreakerConfig(**wrong)
