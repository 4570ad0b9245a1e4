"""The proof that a smaller tier is enough: off until it is sure, bounded errors, drift, and the score of neighbours."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.policy.tiers.evidence import LabelledNeighbour, TierEvidence, score_neighbours

CONFIG = EnoughConfig(mode="learned", at_least=0.95, min_labels=100, audit=0.1)


def fed(n: int, share_enough: float, *, score: float = 0.9, seed: int = 1, config: EnoughConfig = CONFIG) -> TierEvidence:
    evidence, rng = TierEvidence(config), Random(seed)
    for _ in range(n):
        evidence.record(score, is_enough=rng.random() < share_enough, p_drawn=0.5)
    return evidence


def test_evidence_below_min_labels_has_no_opinion() -> None:
    assert fed(99, 1.0).judge(0.9, 0.0) is None
    assert fed(150, 1.0).judge(0.9, 0.0) is not None


def test_evidence_of_a_tier_that_is_always_right_states_its_bound() -> None:
    found = fed(300, 1.0).judge(0.9, 0.0)
    assert found is not None
    assert (found.n_enough, found.n) == (300, 300)
    assert found.at_least == pytest.approx(0.99, abs=0.001)
    assert found.describe() == "300 of 300 like it, at least 0.99"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.945])
def test_evidence_of_a_tier_below_the_bound_has_rarely_an_opinion(share: float) -> None:
    n_opinions = sum(fed(400, share, seed=seed).is_proven for seed in range(40))
    assert n_opinions <= 4  # 5 % of 40, and slack


def test_high_scores_are_proven_without_low_ones() -> None:
    evidence, rng = TierEvidence(CONFIG), Random(2)
    for _ in range(400):
        evidence.record(0.95, is_enough=rng.random() < 0.995)
        evidence.record(0.4, is_enough=rng.random() < 0.4)
    assert evidence.judge(0.95, 0.0) is not None
    assert evidence.judge(0.4, 0.0) is None


def test_rare_draws_lower_the_number_of_effective_labels() -> None:
    evidence = TierEvidence(CONFIG)
    evidence.record(0.99, is_enough=True, p_drawn=0.0005)  # it stands for 2,000
    for _ in range(150):
        evidence.record(0.9, is_enough=True)
    assert not evidence.is_proven


def test_wrong_audits_drop_all_labels() -> None:
    evidence = fed(300, 1.0)
    dropped = [evidence.record(0.9, is_enough=False, p_drawn=0.1, was_given=True) for _ in range(3)]
    assert dropped == [False, False, True]
    assert not evidence.is_proven
    assert evidence.n_restarts == 1
    assert evidence.n_labels == 0


def test_audits_at_the_bound_rarely_drop_labels() -> None:
    n_dropped = 0
    for seed in range(20):
        evidence, rng = TierEvidence(CONFIG), Random(seed)
        n_dropped += sum(evidence.record(0.9, is_enough=rng.random() < 0.96, was_given=True) for _ in range(300))
    assert n_dropped <= 2


def test_answers_without_results_of_audits_end_the_opinion() -> None:
    evidence = fed(300, 1.0)
    for second in range(100):
        evidence.note_answered(float(second))
    assert evidence.judge(0.9, 100.0) is None
    evidence.record(0.9, is_enough=True, p_drawn=0.1, was_given=True)
    assert evidence.judge(0.9, 100.0) is not None


def test_old_labels_are_forgotten() -> None:
    config = EnoughConfig(mode="learned", at_least=0.9, min_labels=100, max_labels=200)
    evidence = fed(200, 0.0, config=config)
    for _ in range(200):
        evidence.record(0.9, is_enough=True)
    assert evidence.n_labels == 200
    assert evidence.is_proven


def test_a_judge_that_takes_different_answers_for_equal_ones_raises_the_bar() -> None:
    evidence = TierEvidence(CONFIG)
    evidence.miss_share = 0.8
    for _ in range(300):
        evidence.record(0.9, is_enough=True)
    assert not evidence.is_proven  # 300 labels prove 98.6 %, not 99 %
    for _ in range(200):
        evidence.record(0.9, is_enough=True)
    assert evidence.is_proven


def test_score_without_neighbours_is_the_base() -> None:
    assert score_neighbours([], 0.7) == 0.7


@given(st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=30), st.floats(0, 1))
def test_score_is_between_0_and_1_and_grows_with_outcomes(found: list[tuple[float, bool]], base: float) -> None:
    neighbours = [LabelledNeighbour(cosine, is_enough) for cosine, is_enough in found]
    score = score_neighbours(neighbours, base)
    assert 0 <= score <= 1
    assert score <= score_neighbours([LabelledNeighbour(one.cosine, True) for one in neighbours], base) + 1e-12


def test_near_neighbours_count_more() -> None:
    near, far = LabelledNeighbour(0.9, True), LabelledNeighbour(0.3, False)
    assert score_neighbours([near, far], 0.5) > 0.7
