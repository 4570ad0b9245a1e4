"""policy.classify.head: probabilities, unknown, and when a second head is needed."""

from math import isclose, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.classify.head import UNKNOWN, ClassifierRule, LinearHead, ProbabilityMap, softmax

LABELS = ("card", "cash", "transfer")
SCORES = st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=9)


@given(SCORES, st.floats(0.05, 20))
def test_softmax_any_scores_are_probabilities(scores: list[float], temperature: float) -> None:
    found = softmax(scores, temperature)
    assert isclose(sum(found), 1)
    assert found.index(max(found)) == scores.index(max(scores)) or max(scores) - scores[found.index(max(found))] < 1e-9


def test_linear_head_known_weights_give_the_softmax_of_their_product() -> None:
    head = LinearHead(np.array([[1, 0], [0, 1]], np.float32), np.array([0, log(2)], np.float32), 0.5)
    assert head.probabilities(np.array([1, 1], np.float32)) == pytest.approx([0.2, 0.8], abs=1e-6)


def test_judge_below_the_threshold_is_unknown_and_has_the_nearest() -> None:
    found = ClassifierRule(LABELS, threshold=0.6).judge([0.2, 0.55, 0.25])
    assert (found.label, found.nearest, found.p) == (UNKNOWN, "cash", 0.55)
    assert found.margin == pytest.approx(0.3)


def test_judge_at_the_threshold_is_known() -> None:
    assert ClassifierRule(LABELS, threshold=0.55).judge([0.2, 0.55, 0.25]).label == "cash"


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_mix_of_equal_opinions_is_that_opinion(p: float, share: float) -> None:
    opinion = [p, 1 - p]
    found = ClassifierRule(("a", "b"), second_share=share).mix(opinion, opinion)
    assert found.probabilities == pytest.approx(opinion)
    assert found.is_mixed


def test_needs_second_only_a_small_margin_does() -> None:
    rule = ClassifierRule(LABELS, second_margin=0.3)
    assert rule.needs_second(rule.judge([0.5, 0.4, 0.1]))
    assert not rule.needs_second(rule.judge([0.7, 0.2, 0.1]))


@given(st.floats(0, 1), st.floats(0, 1))
def test_probability_map_order_of_probabilities_stays(p: float, q: float) -> None:
    found = ProbabilityMap(((0.2, 0.1), (0.5, 0.4), (0.9, 0.95)))
    assert (found(p) <= found(q)) or p > q
    assert 0.1 <= found(p) <= 0.95


def test_probability_map_empty_is_the_identity() -> None:
    assert ProbabilityMap()(0.37) == 0.37
