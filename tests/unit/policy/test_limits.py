"""policy.resilience.limits: the limit follows the results of earlier attempts."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.limits import AdaptiveLimit, LimitConfig

CONFIG = LimitConfig("gradient", min=2, max=100)
EVENT = st.tuples(st.floats(0, 2), st.sampled_from(["quick", "slow", "dropped"]), st.integers(0, 300))


class Seconds:
    """A limit, and a second of sixty calls after another."""

    def __init__(self, config: LimitConfig = CONFIG) -> None:
        self.limit = AdaptiveLimit(config)
        self.limit.add_samples([], 0, 0, 0, 0.0)
        self.now = 0.0

    def run(self, n_seconds: int, ratio: float, n_beside: int, n_dropped: int = 0, *, n_peak: int = 0,
            n_slow: int = 60) -> float:
        """So many seconds in which `n_slow` calls have this ratio and the others are as usual; the limit after them."""
        for _ in range(n_seconds):
            self.now += 1.0
            samples = [(ratio if number < n_slow else 1.0, n_beside) for number in range(60 - n_dropped)]
            self.limit.add_samples(samples, 60, n_dropped, max(n_beside, n_peak), self.now)
        return self.limit.value


@given(mode=st.sampled_from(["gradient", "aimd", "fixed"]), events=st.lists(EVENT, max_size=300))
def test_limit_stays_within_bounds(mode: Any, events: list[tuple[float, str, int]]) -> None:
    """Whatever comes, in whatever order."""
    limit, now = AdaptiveLimit(LimitConfig(mode, min=2, max=100)), 0.0
    for gap_s, what, n_in_flight in events:
        now += gap_s
        if what == "dropped":
            limit.add_samples([], 40, 40, n_in_flight, now)
        else:
            limit.add_samples([(0.9 if what == "quick" else inf, n_in_flight)] * 40, 40, 0, n_in_flight, now)
        assert 2 <= limit.value <= 100


def test_limit_without_evidence_stays_at_most() -> None:
    """It starts at its most, and few calls are none."""
    limit = AdaptiveLimit(CONFIG)
    for at in range(9):
        limit.add_samples([], 1, 1, 5, at * 2.0)
    limit.add_samples([(9.0, 5)] * 20, 20, 0, 5, 20.0)
    assert limit.value == 100
    assert limit.has_room(99)
    assert not limit.has_room(100)


def test_limit_slow_answers_lower_it() -> None:
    """From the number that really ran, and also if the slowest times are unknown."""
    cut = 0.8 * 60 + 0.2 * (60 * 0.5 + 4)
    assert Seconds().run(1, 6.0, 30) == pytest.approx(cut)
    assert Seconds().run(1, inf, 30) == pytest.approx(cut)
    assert Seconds().run(1, 1.4, 30) == 100


def test_limit_long_tail_changes_nothing() -> None:
    """Half of the calls far beyond usual: some are always slow. Two of three: all wait."""
    assert Seconds().run(5, 9.0, 30, n_slow=30) == 100
    assert Seconds().run(1, 9.0, 30, n_slow=45) < 60


def test_limit_refusals_lower_it_by_their_share() -> None:
    """Half: by a quarter of what ran twice over; all: to half of what last ran well; one in twelve, but five: not at all."""
    assert Seconds().run(1, 1.0, 20, n_dropped=30) == pytest.approx(40 * 0.75)
    seconds = Seconds()
    seconds.run(1, 1.0, 20)
    assert seconds.run(1, 1.0, 200, n_dropped=60) == 10
    assert Seconds().run(1, 1.0, 60, n_dropped=5) == 100


def test_limit_grows_only_if_used() -> None:
    """Not without demand; otherwise fast up to the last trouble, and slowly beyond it."""
    seconds = Seconds()
    seconds.run(1, 1.0, 20)
    low = seconds.run(6, 1.0, 8, n_dropped=60)
    assert low < 10
    assert seconds.run(1, 1.0, 0) == low
    assert seconds.run(1, 1.0, 10) == pytest.approx(low * 1.1 + 4)
    assert seconds.run(3, 1.0, 19) == 20
    assert seconds.run(1, 1.0, 20) == 21


def test_limit_stops_growing_if_some_calls_wait() -> None:
    """A tenth more over 1.5 times the usual than there have been; but not where there always were as many."""
    for n_usual, stops in ((0, True), (6, False)):
        seconds = Seconds()
        seconds.run(50, 3.0, 20, n_slow=n_usual)
        seconds.run(6, 1.0, 8, n_dropped=60)
        assert seconds.run(5, 1.0, 20) == 20 + 1
        assert (seconds.run(1, 3.0, 20, n_slow=6) == 20 + 1) is stops


def test_limit_slow_at_low_concurrency_is_not_cut() -> None:
    """The limit stays, however many have piled up since, until answers are as usual again; then it may be cut."""
    seconds = Seconds()
    seconds.run(5, 1.0, 20)
    assert seconds.run(1, 10.0, 19, n_peak=80) == 100
    assert seconds.run(30, 10.0, 90) == 100
    seconds.run(1, 1.0, 20)
    assert seconds.run(1, 10.0, 90) < 100


def test_limit_window_with_trouble_sets_no_good_level() -> None:
    """Half of the calls are slow at a concurrency of eighty: the next ones, all slow at eighty, are caused by our load."""
    seconds = Seconds()
    seconds.run(5, 1.0, 20)
    seconds.limit.add_samples([(1.0, 20)] * 30 + [(9.0, 80)] * 30, 60, 0, 80, seconds.now + 1.0)
    seconds.now += 1.0
    assert seconds.run(1, 9.0, 80) < 100


def test_limit_cut_without_effect_is_reverted() -> None:
    """After ten seconds the limit is what it was, until answers are as usual again."""
    seconds = Seconds()
    assert seconds.run(8, 10.0, 20) < 30
    assert seconds.run(4, 10.0, 20) == 100
    assert seconds.run(20, 10.0, 20) == 100
    seconds.run(1, 1.0, 20)
    assert seconds.run(1, 10.0, 30) < 100


def test_limit_failures_at_any_load_are_tolerated() -> None:
    """A provider that fails half of the time whatever it gets must not be throttled to nothing as well."""
    seconds = Seconds()
    assert seconds.run(5, 1.0, 20, n_dropped=30) < 20
    assert seconds.run(30, 1.0, 20, n_dropped=30) == 100


def test_limit_aimd_adds_and_subtracts() -> None:
    """p95 over a second: ten fewer; under half a second and in use: five more; between: as it is."""
    config = LimitConfig("aimd", min=10, max=200)
    assert Seconds(config).run(1, 1.2, 50) == 90
    assert Seconds(config).run(1, inf, 50) == 90
    seconds = Seconds(config)
    assert seconds.run(4, 1.2, 20) == 10
    assert seconds.run(1, 0.4, 10) == 15
    assert seconds.run(1, 0.7, 10) == 15


def test_limit_fixed_and_off_never_learn() -> None:
    """One is its most, the other none."""
    assert not AdaptiveLimit(LimitConfig("fixed", max=7)).is_adaptive
    assert AdaptiveLimit(LimitConfig("fixed", max=7, min=1)).value == 7
    assert AdaptiveLimit(LimitConfig("off")).has_room(10**9)
    assert repr(AdaptiveLimit(LimitConfig("off"))) == "<AdaptiveLimit off>"


def test_limit_config_small_most_lowers_least() -> None:
    """An engine with eight slots: fixed is its most whatever else is set, and the rules that learn stay within it."""
    assert AdaptiveLimit(LimitConfig("fixed", max=8)).value == 8
    fixed = AdaptiveLimit(LimitConfig("fixed", min=10, max=4))
    assert repr(fixed) == "<AdaptiveLimit fixed 4 of 4 to 4: nothing learned yet>"
    assert Seconds(LimitConfig("aimd", max=8)).run(1, 1.2, 8) == 8
    limit = AdaptiveLimit(LimitConfig(max=8))
    assert (limit.value, LimitConfig(max=8).floor, LimitConfig().floor, LimitConfig("aimd").floor) == (8, 8, 10, 10)


@pytest.mark.parametrize(("wrong", "named"), [
    ({"mode": "vegas"}, "mode"), ({"min": 0}, "min"), ({"min": 5, "max": 4}, "min"), ({"max": 10**6}, "max"),
    ({"mode": "fixed", "max": 0}, "max"), ({"mode": "fixed"}, "max"), ({"mode": "fixed", "min": 5}, "max"),
    ({"max_waiting": -1}, "max_waiting"), ({"p95_low_s": 2.0}, "p95_low_s"), ({"p95_high_s": 9999.0}, "p95_high_s")])
def test_limit_config_out_of_bounds_is_rejected(wrong: dict[str, Any], named: str) -> None:
    """With a sentence that names them."""
    with pytest.raises(ValueError, match=named):
        LimitConfig(**wrong)


def test_limit_aimd_stays_within_its_range() -> None:
    """AIMD begins at 200 and ends at 10 where nothing is set; what is set counts, and other modes have room."""
    assert AdaptiveLimit(LimitConfig("aimd")).value == 200
    assert AdaptiveLimit(LimitConfig("aimd", max=900)).value == 900
    assert AdaptiveLimit(LimitConfig()).value == 10_000
    limit = AdaptiveLimit(LimitConfig("aimd"))
    for at in range(100):
        limit.add_samples([(2.0, 150)] * 40, 40, 0, 150, float(at))
    assert limit.value == 10
    for at in range(100, 200):
        limit.add_samples([(0.1, 150)] * 40, 40, 0, 150, float(at))
    assert limit.value == 200


def test_limit_is_rescaled_with_the_number_of_gateways() -> None:
    """What was learned is multiplied, within the bounds; a fixed limit is the operator's."""
    limit = Seconds()
    limit.run(3, 1.0, 50)
    limit.run(30, 3.0, 50)
    learned = limit.limit.value
    limit.limit.rescale(1 / 2, "two share it")
    assert limit.limit.value == learned / 2
    assert limit.limit.why == "two share it"
    limit.limit.rescale(1 / 1000, "many share it")
    assert limit.limit.value == CONFIG.floor
    for config in (LimitConfig("fixed", max=40), LimitConfig("off")):
        fixed = AdaptiveLimit(config)
        before = fixed.value
        fixed.rescale(1 / 2, "two share it")
        assert fixed.value == before


def test_limit_after_a_join_does_not_grow_to_the_old_knee() -> None:
    """The knee is the concurrency that one gateway reached alone, so it is rescaled, too."""
    limit = Seconds()
    limit.run(100, 1.0, 50)
    limit.run(5, 3.0, 80)
    limit.limit.rescale(1 / 2, "another joined")
    joined = limit.limit.value
    assert max(limit.run(1, 3.0, 100, n_slow=20) for _ in range(12)) == joined < 35
