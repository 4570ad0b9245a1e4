"""How often a judge errs, from its own contradictions."""

from random import Random

import pytest

from stayfast.policy.cache.judge_reliability import CHECKED_SHARE, JudgeConsistency, WordRuleRecord


def judge_pairs(rng: Random, n: int, *, different: float, miss: float, alarm: float) -> tuple[JudgeConsistency, float]:
    """Judge n pairs by the rule: no is checked, and one yes of four. Returns the record, and the true share of misses."""
    record, n_different, n_missed = JudgeConsistency(), 0, 0
    for _ in range(n):
        is_different = rng.random() < different
        says_same = miss if is_different else 1.0 - alarm
        first = rng.random() < says_same
        is_same = first
        if not first or rng.random() < CHECKED_SHARE:
            second = rng.random() < says_same
            is_same = second if second is first else rng.random() < says_same
            record.record(was_first_same=first, is_same=is_same, is_contradicted=second is not first)
        n_different += is_different
        n_missed += is_different and is_same
    return record, n_missed / n_different


def test_judge_miss_share_starts_high_and_falls_with_checks() -> None:
    """Neither 0 nor 1; each disagreement raises it."""
    record = JudgeConsistency()
    assert record.miss_share == pytest.approx(0.80, abs=0.01)
    seen = []
    for _ in range(10):
        for _ in range(30):
            record.record(was_first_same=False, is_same=False, is_contradicted=False)
        seen.append(record.miss_share)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == pytest.approx(0.14, abs=0.01)
    assert seen[-1] == pytest.approx(0.016, abs=0.002)
    record.record(was_first_same=False, is_same=False, is_contradicted=True)
    assert record.miss_share > seen[-1]


@pytest.mark.parametrize("different", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("miss", "alarm"), [(0.0, 0.0), (0.03, 0.03), (0.1, 0.02), (0.02, 0.2), (0.3, 0.3)])
def test_judge_miss_share_is_above_the_true_share(different: float, miss: float, alarm: float) -> None:
    """In about 95 of 100 runs, as the bound promises, for rare and frequent differences, and errors of both kinds."""
    n_below = 0
    for seed in range(100):
        record, _ = judge_pairs(Random(seed), 400, different=different, miss=miss, alarm=alarm)
        n_below += record.miss_share < miss + (1 - miss) * miss * miss
    assert n_below <= 8


def test_judge_miss_share_is_not_far_above_the_true_share() -> None:
    """After a thousand pairs, of which half differ, at 3 %: below 6 %."""
    record, _ = judge_pairs(Random(1), 1000, different=0.5, miss=0.03, alarm=0.03)
    assert 0.03 < record.miss_share < 0.06


def test_judge_miss_share_follows_a_judge_that_becomes_worse() -> None:
    """Old checks lose their weight."""
    record = JudgeConsistency()
    for _ in range(5000):
        record.record(was_first_same=False, is_same=False, is_contradicted=False)
    for number in range(2000):
        record.record(was_first_same=False, is_same=False, is_contradicted=number % 5 == 0)
    assert record.miss_share > 0.15


def test_word_rule_record_proves_a_rule_after_299_agreements() -> None:
    """Each by itself; with one disagreement in 299, it is not proven."""
    record = WordRuleRecord()
    for _ in range(298):
        record.record("numbers", is_agreed=True)
    assert not record.is_proven("numbers")
    record.record("numbers", is_agreed=True)
    assert record.is_proven("numbers")
    assert not record.is_proven("opposites")
    record.record("numbers", is_agreed=False)
    assert not record.is_proven("numbers")
