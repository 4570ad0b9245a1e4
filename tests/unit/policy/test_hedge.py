"""When a second attempt is sent: by the budget, only where it helps, and never by what it has itself cut off."""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import pytest

from stayfast.policy.resilience.hedge import (
    AIM,
    FORGET_AFTER_S,
    LEAST_AFTER_S,
    MIN_SAMPLES,
    SHARES,
    FirstTokens,
    HedgeConfig,
    LateStreak,
    aim_share,
    choose_share,
    live_distribution,
    plan_hedge,
)
from stayfast.policy.resilience.survival import Survival

Draw = Callable[[Random], float]


def _mixture(rng: Random) -> float:
    return rng.lognormvariate(-1.6555, 0.5) if rng.random() < 0.932 else rng.lognormvariate(1.2975, 0.745)


def _seen(draw: Draw, n: int = 4000, n_hanging: int = 0) -> Survival:
    """What a window shows of `n` draws, one every 10 ms, and of some that still run."""
    rng, tokens = Random(5), FirstTokens(LateStreak(0.1))
    for number in range(n):
        tokens.start_attempt(number, 0.0)
    for number in range(n_hanging):
        tokens.start_attempt(-1 - number, 0.0)
    for number, seconds in enumerate(sorted(draw(rng) for _ in range(n))):
        tokens.record_first_token(number, seconds)
    return live_distribution([tokens], 50.0)


@pytest.mark.parametrize(("share", "after_s"), [(0.10, 0.5), (0.25, 0.3), (0.05, 2.4)])
def test_plan_share_decides_the_delay(share: float, after_s: float) -> None:
    """Against the arithmetic for the mixture: 9.9 % at 0.5 s, 25.4 % at 0.3 s."""
    seen = _seen(_mixture)
    found = plan_hedge(seen, seen, share, 2)
    assert found.after_s == pytest.approx(after_s, rel=0.15)
    assert found.quantile == pytest.approx(1 - share, abs=0.02)


def test_plan_without_tail_or_samples_sends_nothing() -> None:
    """A narrow distribution has no tail to cut; too few samples have no tail to see."""
    narrow = _seen(lambda rng: rng.lognormvariate(0.0, 0.2))
    assert plan_hedge(narrow, narrow, 0.1, 2).after_s == inf
    few = _seen(_mixture, MIN_SAMPLES - 1)
    assert plan_hedge(few, few, 0.1, 2).after_s == inf


TWO_HUMPS = {0.0: 0.0, 0.01: 0.03, 0.03: 0.05, 0.068: 0.1}  # share of the tail, and what it is worth


@pytest.mark.parametrize(("tail", "share"), TWO_HUMPS.items())
def test_worthwhile_share_grows_with_the_tail(tail: float, share: float) -> None:
    """Of a lognormal of sigma 0.3 with a second hump at 18 times its median; without one no second attempt is sent."""
    def draw(rng: Random) -> float:
        return rng.lognormvariate(-1.6, 0.3) if rng.random() >= tail else rng.lognormvariate(1.3, 0.5)

    seen = _seen(draw, 20_000)
    found = choose_share(seen, seen, 2)
    if share:
        assert found == pytest.approx(share, abs=0.011)
        assert plan_hedge(seen, seen, found, 2).after_s < 1.0
    else:
        assert plan_hedge(seen, seen, found, 2).after_s == plan_hedge(seen, seen, 0.1, 2).after_s == inf


def test_worthwhile_late_gain_is_found() -> None:
    """Below 2 % nothing is won where 2.5 % last for a minute: the choice looks at all shares, not at the next one."""
    seen = _seen(lambda rng: rng.lognormvariate(-1.6, 0.3) if rng.random() >= 0.025 else 60.0, 20_000)
    assert choose_share(seen, seen, 2) >= 0.03


def test_worthwhile_present_share_stays_if_others_are_hardly_better() -> None:
    """Every share from 4 to 6 % is within 1 % of the best one here: whichever is in force, stays."""
    seen = _seen(lambda rng: rng.lognormvariate(-1.6, 0.3) if rng.random() >= 0.03 else rng.lognormvariate(1.3, 0.5), 20_000)
    free = choose_share(seen, seen, 2)
    beside = [share for share in SHARES if choose_share(seen, seen, 2, present=share) == share]
    assert free in beside
    assert len(beside) >= 2
    assert choose_share(seen, seen, 2, present=0.1) < 0.1


def test_plan_already_hedged_needs_half_the_gain() -> None:
    """A lognormal of sigma 0.6 gains an eighth of its p99: not enough to begin, enough to go on."""
    seen = _seen(lambda rng: rng.lognormvariate(0.0, 0.6), 20_000)
    assert plan_hedge(seen, seen, 0.05, 2).after_s == inf
    assert plan_hedge(seen, seen, 0.05, 2, is_hedged=True).after_s < inf


@pytest.mark.parametrize("seed", range(20))
def test_plan_whole_answers_with_hidden_tail_are_hedged(seed: int) -> None:
    """A minute's whole answers, whose tail is cut off by second and third attempts: it still is a tail, on every draw."""
    rng, tokens = Random(seed), FirstTokens(LateStreak(0.1))
    ends = []  # when an attempt is over, which one it is, and whether it won
    for number in range(1800):
        over_at = [0.5 * n + _mixture(rng) for n in range(3)]
        won_at = min(over_at)
        for n, at in enumerate(over_at):
            if 0.5 * n < won_at:
                tokens.start_attempt((number, n), 0.5 * n)
                ends.append((won_at, (number, n), at == won_at))
    for now, attempt, has_won in sorted(ends):
        (tokens.record_first_token if has_won else tokens.record_cancelled)(attempt, now)
    seen = live_distribution([tokens], 55.0)
    for share in (0.05, 0.1):
        assert plan_hedge(seen, seen, share, 2, is_whole=True).after_s < 1.5


def test_plan_running_attempts_count_as_late() -> None:
    """Five in a hundred still run and all others took a millisecond: the delay is the least there is, also at 5 %."""
    seen = _seen(lambda rng: 0.001 * rng.lognormvariate(0.0, 0.4), 1900, n_hanging=100)
    for share in (0.05, 0.1):
        assert plan_hedge(seen, seen, share, 2).after_s == pytest.approx(LEAST_AFTER_S)


def test_plan_whole_answers_long_but_not_hung_are_not_hedged() -> None:
    """Whole answers of very different lengths are left alone; where some hang, they are not."""
    seen = _seen(lambda rng: rng.lognormvariate(0.5, 0.86))
    hung = _seen(lambda rng: rng.lognormvariate(0.5, 0.1), 1900, n_hanging=80)
    assert plan_hedge(seen, seen, 0.05, 2, is_whole=True).after_s == inf
    assert plan_hedge(hung, hung, 0.05, 2, is_whole=True).after_s < 3.0


def test_aim_follows_spent_share_within_half() -> None:
    """Half of it at most, half as much again at most, and the aim itself at rest."""
    assert aim_share(0.1, AIM * 0.1) == pytest.approx(AIM * 0.1)
    assert aim_share(0.1, 1.0) == pytest.approx(AIM * 0.05)
    assert aim_share(0.1, 0.0) == pytest.approx(AIM * 0.15)


@pytest.mark.parametrize(("share", "n"), [(0.05, 4), (0.1, 4), (0.2, 6), (0.25, 7), (1.0, 14)])
def test_late_streak_beyond_chance_is_slow(share: float, n: int) -> None:
    """At a share that is late anyway, so many in a row come by chance once in 10,000."""
    lately = LateStreak(share)
    for _ in range(n - 1):
        lately.record_late(1.0)
    assert not lately.is_slow(1.0)
    lately.record_late(2.0)
    assert lately.is_slow(2.0)
    assert not lately.is_slow(2.0 + FORGET_AFTER_S)


def test_late_streak_answer_in_time_ends_it() -> None:
    """An answer within the delay does; one that came after it does not."""
    lately = LateStreak(0.1)
    tokens = FirstTokens(lately)
    tokens.due_s = 0.5
    for number in range(10):
        tokens.start_attempt(number, 0.0)
        lately.record_late(0.5)
    tokens.record_first_token(0, 0.8)
    assert lately.is_slow(0.8)
    tokens.start_attempt("quick", 0.8)
    tokens.record_first_token("quick", 1.3)
    assert not lately.is_slow(1.3)


def test_first_tokens_failed_attempt_is_dropped() -> None:
    """It is neither quick nor slow, and is not there any more."""
    tokens = FirstTokens(LateStreak(0.1))
    tokens.start_attempt("a", 0.0)
    tokens.drop_attempt("a")
    tokens.record_first_token("a", 5.0)
    assert live_distribution([tokens], 6.0).n == 0


@pytest.mark.parametrize(("setting", "value"), [("mode", "on"), ("budget", 0.0), ("budget", 1.1), ("max_extra", 3),
                                                ("race_after_s", -1.0)])
def test_hedge_config_out_of_bounds_is_rejected(setting: str, value: Any) -> None:
    """A wrong setting is named."""
    with pytest.raises(ValueError, match=setting):
        HedgeConfig(**{setting: value})
