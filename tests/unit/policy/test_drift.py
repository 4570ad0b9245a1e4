"""policy.cache.drift: tests of a semantic cache's error that are valid at any time."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.cache.drift import (
    ALARM,
    ALARM_LLR,
    MAX_UNTESTED,
    MAX_UNTESTED_S,
    PASS,
    AuditTest,
    ScopeTest,
    TestedHits,
)


def audits_until_rejected(max_error: float, wrong: float, seed: int, most: int) -> int:
    """How many audits pass before the test rejects; `most` if it does not."""
    test, rng = AuditTest(max_error), Random(seed)
    return next((n for n in range(1, most) if test.record_audit(is_wrong=rng.random() < wrong)), most)


@pytest.mark.parametrize("max_error", [0.01, 0.05])
def test_audit_test_within_the_bound_seldom_rejects(max_error: float) -> None:
    """At an error of exactly the bound, ALARM audits pass between two rejections on average; at half of it, many more."""
    most = 10_000
    at_bound = [audits_until_rejected(max_error, max_error, seed, most) for seed in range(40)]
    at_half = [audits_until_rejected(max_error, max_error / 2, seed, most) for seed in range(40)]
    assert sum(at_bound) / 40 >= ALARM
    assert sum(at_half) >= 1.5 * sum(at_bound)


@pytest.mark.parametrize(("max_error", "wrong", "n"), [(0.01, 0.3, 15), (0.01, 0.1, 60), (0.05, 0.3, 40)])
def test_audit_test_above_the_bound_rejects_soon(max_error: float, wrong: float, n: int) -> None:
    found = sorted(audits_until_rejected(max_error, wrong, seed, 5000) for seed in range(41))
    assert found[20] <= n


def test_audit_test_single_wrong_audit_is_not_enough() -> None:
    test = AuditTest(0.0001)
    assert not test.record_audit(is_wrong=True)
    assert AuditTest(0.5).record_audit(is_wrong=False) is False


def labels_of(test: ScopeTest, expected: float, wrong: float, n: int, seed: int = 1) -> int:
    """Record labels until the scope fails; returns their number, or n."""
    rng = Random(seed)
    return next((number for number in range(1, n) if test.record_label(expected, is_wrong=rng.random() < wrong)), n)


def test_scope_test_as_predicted_gains_trust_and_keeps_it() -> None:
    test = ScopeTest()
    assert not test.is_trusted
    assert labels_of(test, 0.1, 0.1, 2000) == 2000
    assert test.is_trusted


def test_scope_test_worse_than_predicted_loses_trust() -> None:
    """New topics: a third of what was thought right is wrong."""
    test = ScopeTest()
    labels_of(test, 0.05, 0.05, 500)
    assert test.is_trusted
    assert labels_of(test, 0.05, 0.33, 500) < 40
    assert (test.is_trusted, test.llr) == (False, 0.0)


def test_scope_test_cold_scope_with_wrong_neighbours_is_never_trusted() -> None:
    test = ScopeTest()
    for number in range(300):
        test.record_label(0.05, is_wrong=number % 2 == 0)
        assert not test.is_trusted


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200))
def test_scope_test_stays_within_its_bounds(labels: list[tuple[float, bool]]) -> None:
    test = ScopeTest()
    for expected, is_wrong in labels:
        test.record_label(expected, is_wrong=is_wrong)
        assert -PASS <= test.llr < ALARM_LLR


def test_tested_hits_without_results_are_untested() -> None:
    """Both many hits and some time: audits of a busy gateway are still running."""
    hits, n = TestedHits(), int(MAX_UNTESTED / 0.05)
    for number in range(n):
        assert not hits.is_untested(0.05, MAX_UNTESTED_S + number)
        hits.record_hit(number * 0.01)
    assert not hits.is_untested(0.05, MAX_UNTESTED_S - 1)
    assert hits.is_untested(0.05, MAX_UNTESTED_S)
    hits.record_result()
    assert not hits.is_untested(0.05, 1e9)
