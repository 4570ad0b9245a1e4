"""When a second attempt is sent: by the budget, only where it helps, and never by what it has itself cut off."""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import pytest

from stayfast.policy.hedge import (
    AIM,
    LEAST_AFTER_S,
    MIN_SAMPLES,
    FirstTokens,
    HedgeConfig,
    aim,
    is_slow,
    live,
    plan,
)
from stayfast.policy.survival import Survival

Draw = Callable[[Random], float]


def _mixture(rng: Random) -> float:
    return rng.lognormvariate(-1.6555, 0.5) if rng.random() < 0.932 else rng.lognormvariate(1.2975, 0.745)


def _seen(draw: Draw, n: int = 4000, n_hanging: int = 0) -> Survival:
    """What a window shows of `n` draws, one every 10 ms, and of some that still run."""
    rng, tokens = Random(5), FirstTokens()
    for number in range(n):
        tokens.began(number, 0.0)
    for number in range(n_hanging):
        tokens.began(-1 - number, 0.0)
    for number, seconds in enumerate(sorted(draw(rng) for _ in range(n))):
        tokens.took(number, seconds)
    return live([tokens], 50.0)


@pytest.mark.parametrize(("share", "after_s"), [(0.10, 0.5), (0.25, 0.3), (0.05, 2.4)])
def test_the_budget_decides_the_delay(share: float, after_s: float) -> None:
    """Against the arithmetic for the mixture: 9.9 % at 0.5 s, 25.4 % at 0.3 s."""
    seen = _seen(_mixture)
    found = plan(seen, seen, share, 2)
    assert found.after_s == pytest.approx(after_s, rel=0.15)
    assert found.quantile == pytest.approx(1 - share, abs=0.02)


def test_nothing_is_sent_where_nothing_is_won() -> None:
    """A narrow distribution has no tail to cut; too few samples have no tail to see."""
    narrow = _seen(lambda rng: rng.lognormvariate(0.0, 0.2))
    assert plan(narrow, narrow, 0.1, 2).after_s == inf
    few = _seen(_mixture, MIN_SAMPLES - 1)
    assert plan(few, few, 0.1, 2).after_s == inf


def test_those_that_hang_are_seen_while_they_hang() -> None:
    """Five in a hundred still run and all others took a millisecond: the delay is the least there is, also at 5 %."""
    seen = _seen(lambda rng: 0.001 * rng.lognormvariate(0.0, 0.4), 1900, n_hanging=100)
    for share in (0.05, 0.1):
        assert plan(seen, seen, share, 2).after_s == pytest.approx(LEAST_AFTER_S)


def test_long_answers_are_not_hung_ones() -> None:
    """Whole answers of very different lengths are left alone; where some hang, they are not."""
    seen = _seen(lambda rng: rng.lognormvariate(0.5, 0.86))
    hung = _seen(lambda rng: rng.lognormvariate(0.5, 0.1), 1900, n_hanging=80)
    assert plan(seen, seen, 0.05, 2, is_whole=True).after_s == inf
    assert plan(hung, hung, 0.05, 2, is_whole=True).after_s < 3.0


def test_what_was_spent_pulls_the_aim() -> None:
    """Half of it at most, half as much again at most, and the aim itself at rest."""
    assert aim(0.1, AIM * 0.1) == pytest.approx(AIM * 0.1)
    assert aim(0.1, 1.0) == pytest.approx(AIM * 0.05)
    assert aim(0.1, 0.0) == pytest.approx(AIM * 0.15)


def test_a_bad_minute_is_silence() -> None:
    """The median of half a minute at three times that of the half hour; a tail alone is not that."""
    tokens, rng = FirstTokens(), Random(1)
    for number in range(1500):
        now = number * 0.5
        seconds = 0.2 if now < 720 else 0.6 if rng.random() < 0.9 else 0.2
        tokens.began(number, now)
        tokens.took(number, now + seconds)
    assert is_slow([tokens], 750.0)


def test_a_failure_says_nothing() -> None:
    """It is neither quick nor slow, and is not there any more."""
    tokens = FirstTokens()
    tokens.began("a", 0.0)
    tokens.failed("a")
    tokens.took("a", 5.0)
    assert live([tokens], 6.0).n == 0


@pytest.mark.parametrize(("setting", "value"), [("mode", "on"), ("budget", 0.0), ("budget", 1.1), ("max_extra", 3),
                                                ("race_after_s", -1.0)])
def test_bounds(setting: str, value: Any) -> None:
    """A wrong setting is named."""
    with pytest.raises(ValueError, match=setting):
        HedgeConfig(**{setting: value})
