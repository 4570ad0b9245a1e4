"""policy/limits: how many may run, by what came of those that did."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.limits import Limit, LimitConfig

CONFIG = LimitConfig("gradient", least=2, most=100)
EVENT = st.tuples(st.floats(0, 2), st.sampled_from(["quick", "slow", "dropped"]), st.integers(0, 300))


class Seconds:
    """A limit, and a second of twenty outcomes after another; the one that ends a second belongs to it."""

    def __init__(self, config: LimitConfig = CONFIG) -> None:
        self.limit = Limit(config)
        self.now = 0.0

    def run(self, n_seconds: int, ratio: float, n_in_flight: int, n_dropped: int = 0) -> float:
        """So many seconds; the limit after them."""
        for _ in range(n_seconds):
            for number in range(20):
                if number < n_dropped:
                    self.limit.dropped(n_in_flight, self.now + number / 20)
                else:
                    self.limit.succeeded(ratio, n_in_flight, self.now + number / 20)
            self.now += 1.0
            self.limit.succeeded(ratio, n_in_flight, self.now)
        return self.limit.value


@given(mode=st.sampled_from(["gradient", "aimd", "fixed"]), events=st.lists(EVENT, max_size=300))
def test_it_stays_within_its_bounds(mode: Any, events: list[tuple[float, str, int]]) -> None:
    """Whatever comes, in whatever order."""
    limit, now = Limit(LimitConfig(mode, least=2, most=100)), 0.0
    for gap_s, what, n_in_flight in events:
        now += gap_s
        if what == "dropped":
            limit.dropped(n_in_flight, now)
        else:
            limit.succeeded(0.9 if what == "quick" else 8.0, n_in_flight, now)
        assert 2 <= limit.value <= 100


def test_nobody_is_held_up_before_there_is_evidence() -> None:
    """It starts at its most, and few outcomes are none."""
    limit = Limit(CONFIG)
    for at in range(9):
        limit.dropped(5, at * 2.0)
    assert limit.value == 100
    assert limit.has_room(99)
    assert not limit.has_room(100)


def test_slower_answers_lower_it() -> None:
    """From what really ran, not from what might have."""
    assert Seconds().run(1, 6.0, 30) == pytest.approx(0.8 * 60 + 0.2 * (60 * 0.5 + 4))
    assert Seconds().run(1, 1.4, 30) == 100


def test_refusals_lower_it_by_their_share() -> None:
    """Half: by a quarter of what ran twice over; all: to half of what last ran well; one in twenty-one: not at all."""
    assert Seconds().run(1, 1.0, 20, n_dropped=10) == pytest.approx(40 * (1 - 10 / 21 / 2))
    seconds = Seconds()
    seconds.run(1, 1.0, 20)
    assert seconds.run(1, 1.0, 200, n_dropped=20) == 10
    assert Seconds().run(1, 1.0, 60, n_dropped=1) == 100


def test_it_grows_only_where_it_is_used() -> None:
    """Not where nobody asks for more; else fast up to where trouble was last met, and carefully beyond."""
    seconds = Seconds()
    seconds.run(1, 1.0, 20)
    low = seconds.run(6, 1.0, 8, n_dropped=20)
    assert low < 10
    assert seconds.run(1, 1.0, 0) == low
    assert seconds.run(1, 1.0, 10) == pytest.approx(low * 1.1 + 4)
    assert seconds.run(3, 1.0, 19) == 20
    assert seconds.run(1, 1.0, 20) == 21


def test_a_cut_that_does_not_help_is_taken_back() -> None:
    """A brown-out is slow whatever is sent: after ten seconds the limit is what it was, until answers are as usual again."""
    seconds = Seconds()
    assert seconds.run(8, 10.0, 20) < 30
    assert seconds.run(3, 10.0, 20) == 100
    assert seconds.run(20, 10.0, 20) == 100
    seconds.run(1, 1.0, 20)
    assert seconds.run(1, 10.0, 20) < 100


def test_failures_that_a_lower_limit_does_not_mend_are_borne() -> None:
    """A provider that fails half of the time whatever it gets must not be throttled to nothing as well."""
    seconds = Seconds()
    assert seconds.run(5, 1.0, 20, n_dropped=10) < 20
    assert seconds.run(30, 1.0, 20, n_dropped=10) == 100


def test_aimd_is_the_plain_rule() -> None:
    """p95 over a second: ten fewer; under half a second and in use: five more; between: as it is."""
    config = LimitConfig("aimd", least=10, most=200)
    assert Seconds(config).run(1, 1.2, 50) == 90
    seconds = Seconds(config)
    assert seconds.run(4, 1.2, 20) == 10
    assert seconds.run(1, 0.4, 10) == 15
    assert seconds.run(1, 0.7, 10) == 15


def test_fixed_and_off_learn_nothing() -> None:
    """One is its most, the other none."""
    assert not Limit(LimitConfig("fixed")).learns
    assert Limit(LimitConfig("fixed", most=7, least=1)).value == 7
    assert Limit(LimitConfig("off")).has_room(10**9)
    assert repr(Limit(LimitConfig("off"))) == "<Limit off>"


@pytest.mark.parametrize(("wrong", "named"), [
    ({"mode": "vegas"}, "mode"), ({"least": 0}, "least"), ({"least": 5, "most": 4}, "least"), ({"most": 10**6}, "most"),
    ({"max_waiting": -1}, "max_waiting"), ({"good_s": 2.0}, "good_s"), ({"bad_s": 9999.0}, "bad_s")])
def test_wrong_settings_are_refused(wrong: dict[str, Any], named: str) -> None:
    """With a sentence that names them."""
    with pytest.raises(ValueError, match=named):
        LimitConfig(**wrong)
