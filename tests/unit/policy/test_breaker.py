"""policy/breaker: every state and every way between them."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.breaker import Breaker, BreakerConfig, BreakerState
from stayfast.policy.resilience.cross_process import ProbeLease

CONFIG = BreakerConfig()


def closed() -> Breaker:
    """A new one."""
    return Breaker(CONFIG, Random(1))


def opened(seed: int = 1) -> Breaker:
    """One that five failures have opened at 0."""
    breaker = Breaker(CONFIG, Random(seed))
    bad(breaker, 0.0, 5)
    assert breaker.state is BreakerState.OPEN
    return breaker


def is_open(breaker: Breaker) -> bool:
    """Whether it is."""
    return breaker.state is BreakerState.OPEN


def good(breaker: Breaker, now: float, n: int = 1, *, is_slow: bool = False) -> None:
    """Calls that bring a token."""
    for _ in range(n):
        breaker.succeeded(breaker.began(), now, is_slow=is_slow)


def bad(breaker: Breaker, now: float, n: int = 1) -> None:
    """Calls that fail."""
    for _ in range(n):
        breaker.failed(breaker.began(), now)


class Elsewhere:
    """Cells of two processes."""

    def __init__(self) -> None:
        self.numbers = [0.0, 0.0]

    def of(self, breaker: Breaker, own: int) -> Breaker:
        """The breaker, which from now on sees the other's."""
        breaker.probes = ProbeLease(self.numbers, own, [1 - own])
        return breaker


def test_of_two_processes_one_probes() -> None:
    """Until its probe has ended, however it did: good, bad, or in vain."""
    for end in ("good", "bad", "vain", "died"):
        cells = Elsewhere()
        one, two = cells.of(opened(), 0), cells.of(opened(2), 1)
        assert one.wants_probe(80.0)
        assert two.wants_probe(80.0)
        mark = one.began()
        assert not two.wants_probe(80.0)
        if end == "good":
            one.succeeded(mark, 81.0)
        elif end == "bad":
            one.failed(mark, 81.0)
        elif end == "vain":
            one.forgotten(mark)
        else:
            cells.numbers[0] = 0.0
        assert two.wants_probe(81.0)


def test_a_call_from_before_a_change_ends_no_probe() -> None:
    """Nor does it begin one."""
    cells = Elsewhere()
    breaker = cells.of(closed(), 0)
    marks = [breaker.began() for _ in range(7)]
    for mark in marks:
        breaker.failed(mark, 0.0)
    assert cells.numbers == [0.0, 0.0]
    breaker.began()
    assert cells.numbers == [1.0, 0.0]
    breaker.adopt(-90.0, 90.0)
    assert cells.numbers == [0.0, 0.0]


def test_five_failures_in_a_row_open_it() -> None:
    """Four do not, nor five with an answer among them."""
    breaker = closed()
    bad(breaker, 0, 4)
    good(breaker, 0)
    bad(breaker, 0, 4)
    assert breaker.state is BreakerState.CLOSED
    bad(breaker, 0)
    assert (breaker.state, breaker.why) == (BreakerState.OPEN, "5 failures in a row")


def test_half_of_enough_calls_open_it() -> None:
    """Of fewer than ten nothing is concluded, and old ones do not count."""
    breaker = closed()
    for number in range(10):
        assert breaker.state is BreakerState.CLOSED
        bad(breaker, 0.0) if number % 2 else good(breaker, 0.0)
    assert breaker.why == "5 of 10 calls failed"
    breaker = closed()
    for _ in range(3):
        bad(breaker, 0.0)
        good(breaker, 0.0)
    good(breaker, 31.0, 5)
    for _ in range(3):
        bad(breaker, 31.0)
        good(breaker, 31.0)
    assert breaker.state is BreakerState.CLOSED


def test_nine_slow_calls_in_a_row_open_it() -> None:
    """Whatever came before; judged together, or one by one."""
    for n_before in (0, 500):
        breaker = closed()
        breaker.judged(0, n_before, 9.0)
        for _ in range(8):
            breaker.judged(1, 0, 10.0)
        assert not is_open(breaker)
        breaker.judged(1, 0, 10.0)
        assert (breaker.state, breaker.why) == (BreakerState.OPEN, "9 of 9 calls were slow")
    breaker = closed()
    breaker.judged(9, 0, 10.0)
    assert is_open(breaker)


def test_half_of_the_calls_being_slow_open_it() -> None:
    """In some dozens of calls; a slow one in six does not, in thousands."""
    for n_of_six, n_least, n_most in ((3, 18, 60), (1, 6000, 6000)):
        breaker, n = closed(), 0
        while breaker.state is BreakerState.CLOSED and n < 6000:
            breaker.judged(n % 6 < n_of_six, n % 6 >= n_of_six, n / 10)
            n += 1
        assert n_least <= n <= n_most


def test_what_was_always_slow_is_tolerated() -> None:
    """A provider with every fourth call slow for long is held against that, and still left when all are."""
    breaker = closed()
    for number in range(2000):
        breaker.judged(1, 3, number / 10)
    breaker.judged(20, 0, 200.0)
    assert not is_open(breaker)
    breaker.judged(100, 0, 200.1)
    assert is_open(breaker)


def test_old_evidence_is_none() -> None:
    """Eight slow calls, half a minute of nothing, eight more."""
    breaker = closed()
    breaker.judged(8, 0, 0.0)
    breaker.judged(8, 0, 31.0)
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1])
def test_false_alarms_are_bounded(share: float) -> None:
    """A million calls, slow ones among them by chance: not more than one alarm, by the bound of one in a million."""
    rng, n_alarms = Random(5), 0
    breaker = closed()
    for number in range(10_000):
        n_slow = sum(rng.random() < share for _ in range(100))
        breaker.judged(n_slow, 100 - n_slow, number / 8)
        if breaker.state is not BreakerState.CLOSED:
            n_alarms += 1
            breaker = closed()
    assert n_alarms <= 1


def test_only_all_being_slow_can_be_asked_for() -> None:
    """With a ratio of 1 one quick call is enough to keep it closed."""
    breaker = Breaker(BreakerConfig(slow_ratio=1.0), Random(1))
    for _ in range(3):
        breaker.judged(5, 1, 0.0)
    assert not is_open(breaker)
    breaker.judged(7, 0, 0.0)
    assert is_open(breaker)


def test_what_others_have_seen_counts() -> None:
    """Slow and failed calls of another process, told once."""
    one, other = closed(), closed()
    good(one, 1.0, 3)
    one.judged(4, 0, 1.0)
    bad(one, 1.0, 2)
    told = one.evidence_since(0.5)
    assert told == (0, 2, 4)
    assert one.evidence_since(1.0) == (0, 0, 0)
    other.judged(5, 0, 1.0)
    other.add_evidence(told, 1.1)
    assert (other.state, other.why) == (BreakerState.OPEN, "9 of 9 calls were slow")


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
    assert (breaker.state, breaker.share(80.0), breaker.wants_probe(80.0)) == (BreakerState.HALF_OPEN, 0.0, True)
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
        assert breaker.state is BreakerState.OPEN
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


@given(n=st.integers(0, 200), seed=st.integers(0, 99), start=st.sampled_from(list(BreakerState)))
def test_what_is_ignored_moves_nothing(n: int, seed: int, start: BreakerState) -> None:
    """A storm of hang-ups, in every state."""
    breaker = Breaker(CONFIG, Random(seed))
    if start is not BreakerState.CLOSED:
        bad(breaker, 0.0, 5)
    if start is BreakerState.HALF_OPEN:
        good(breaker, 80.0)
    marks = [breaker.began() for _ in range(n)]
    for mark in marks:
        breaker.forgotten(mark)
    assert breaker.state is start
    assert breaker.wants_probe(1e6) == (start is not BreakerState.CLOSED)


@given(steps=st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["good", "slow", "bad", "ignored", "judged", "late"])),
                      max_size=200))
def test_never_closed_without_a_probe(steps: list[tuple[float, str]]) -> None:
    """Whatever comes: from open to closed only by good calls that began after it opened; probes are counted right."""
    breaker, now, old = closed(), 0.0, 0
    for gap_s, what in steps:
        now += gap_s
        before = breaker.state
        if what == "judged":
            breaker.judged(7, 0, now)
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
        if before is BreakerState.OPEN:
            assert breaker.state is not BreakerState.CLOSED
        if before is not BreakerState.CLOSED and breaker.state is BreakerState.CLOSED:
            assert what == "good"
        assert breaker._n_probing == 0
        assert 0 <= breaker.share(now) <= 1


def test_it_can_be_turned_off() -> None:
    """Then nothing opens it, and readiness still counts failures."""
    breaker = Breaker(BreakerConfig(enabled=False), Random(1))
    bad(breaker, 0.0, 50)
    assert (breaker.state, breaker.n_failed_in_row) == (BreakerState.CLOSED, 50)
    assert repr(breaker) == "<Breaker off>"


@pytest.mark.parametrize(("wrong", "named"), [
    ({"consecutive_failures": 0}, "consecutive_failures"), ({"failure_ratio": 0}, "failure_ratio"),
    ({"slow_ratio": 1.5}, "slow_ratio"),
    ({"slow_factor": 1}, "slow_factor"), ({"min_calls": 30}, "min_calls"), ({"n_calls": 10**6}, "n_calls"),
    ({"window_s": 0}, "window_s"), ({"open_s": 1e9}, "open_s")])
def test_wrong_settings_are_refused(wrong: dict[str, Any], named: str) -> None:
    """With a sentence that names them."""
    with pytest.raises(ValueError, match=named):
        BreakerConfig(**wrong)
