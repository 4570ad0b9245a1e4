"""policy/usual: what a first token usually takes, by class."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.resilience.baselines import MAX_CLASSES, N_WARM, Baseline, LatencyBaselines, log_of


def test_baselines_classes_do_not_mix() -> None:
    """A long prompt's ten seconds are as usual as a short one's tenth."""
    usual = LatencyBaselines()
    short, long = usual.norm("m", 100, False), usual.norm("m", 100_000, False)
    for _ in range(N_WARM):
        usual.learn(short, log_of(0.1))
        usual.learn(long, log_of(10.0))
    assert short.ratio(0.1) == pytest.approx(1.0)
    assert long.ratio(10.0) == pytest.approx(1.0)
    assert short.ratio(10.0) == pytest.approx(67.0)
    assert short.after_s(3.0) == pytest.approx(0.4)
    assert usual.all.baseline_s == pytest.approx(1.0)


def test_baseline_few_answers_give_none() -> None:
    """Before ten answers nothing is slow."""
    norm = LatencyBaselines().norm("m", 1, False)
    for _ in range(N_WARM - 1):
        norm.learn(0.0)
    assert (norm.ratio(1e6), norm.after_s(3.0)) == (None, inf)


def test_baseline_fastest_of_a_burst_give_none() -> None:
    """Of a hundred calls at once the first ten answers are not what is usual; those to three of four are near it."""
    norm = Baseline()
    norm.n_unknown = 100
    for number in range(75):
        assert norm.ratio(1.0) is None
        norm.n_unknown -= 1
        norm.learn(log_of(0.01 * (number + 1)))
    assert 0.2 < norm.baseline_s < 0.5


def test_baseline_batch_equals_single_samples() -> None:
    """A sum of logarithms and how many they are."""
    one, many = Baseline(), Baseline()
    for _ in range(40):
        for seconds in (0.1, 0.4):
            one.learn(log_of(seconds))
        many.learn(log_of(0.1) + log_of(0.4), 2)
    assert many.baseline_s == pytest.approx(one.baseline_s)
    many.learn(log_of(3.0) * 10_000, 10_000)
    assert many.baseline_s == pytest.approx(3.0)


def test_baseline_tail_has_little_effect() -> None:
    """One answer in twenty that takes forty times as long: a fifth more, not three times as much."""
    usual = LatencyBaselines()
    norm = usual.norm("m", 1, False)
    for number in range(1000):
        usual.learn(norm, log_of(8.0 if number % 20 == 0 else 0.2))
    assert 0.2 < norm.baseline_s < 0.25


@given(names=st.lists(st.text(max_size=3), max_size=50))
def test_baselines_classes_are_bounded(names: list[str]) -> None:
    """Names of models may be theirs."""
    usual = LatencyBaselines()
    for number in range(MAX_CLASSES):
        usual.norm(f"{number}", 1, False)
    for name in names:
        usual.norm(name, 1, False)
    assert len(usual._by_class) == MAX_CLASSES
