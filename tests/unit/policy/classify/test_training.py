"""policy.classify.training: logistic regression, the parts of cross-fitting, and the cascade."""

from collections import Counter

import numpy as np
import pytest

from stayfast.policy.classify.calibration import calibration_error
from stayfast.policy.classify.training import fit_head, minimise, split_rows, train_classifier

LABELS = ("a", "b", "c", "d")


def clouds(n: int, spread: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of length 1 around four centres, and their labels."""
    rng = np.random.default_rng(seed)
    rows = np.arange(n) % len(LABELS)
    centres = np.random.default_rng(99).normal(size=(len(LABELS), 16))
    vectors = centres[rows] + rng.normal(size=(n, 16)) * spread
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), rows


def test_minimise_bowl_finds_its_bottom() -> None:
    scale = np.arange(1.0, 20.0)
    found = minimise(lambda x: (float((scale * (x - 3) ** 2).sum()), 2 * scale * (x - 3)), np.zeros(19))
    np.testing.assert_allclose(found, 3, atol=1e-2)


def test_fit_head_gradient_at_the_end_is_0() -> None:
    vectors, rows = clouds(400, 1.0)
    weights, bias = fit_head(vectors, rows, len(LABELS), l2=1e-2)
    scores = vectors @ weights.T + bias
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(rows)), rows] -= 1
    assert np.abs(p.T @ vectors / len(rows) + 1e-2 * weights).max() < 2e-3


def test_split_rows_each_label_is_in_each_part() -> None:
    rows = np.repeat(np.arange(5), 40)
    parts = split_rows(rows, 10, 1)
    assert set(Counter(zip(rows.tolist(), parts.tolist(), strict=True)).values()) == {4}
    assert (parts != split_rows(rows, 10, 2)).any()


def test_train_classifier_same_seed_gives_the_same_weights() -> None:
    vectors, rows = clouds(200, 1.0)
    first, second = (train_classifier([vectors], rows, LABELS, seed=3) for _ in range(2))
    assert (first.heads[0].weights == second.heads[0].weights).all()
    assert first.rule == second.rule


@pytest.mark.parametrize("is_isotonic", [False, True])
def test_train_classifier_probabilities_of_new_rows_are_calibrated(is_isotonic: bool) -> None:
    vectors, rows = clouds(1_200, 1.6)
    found = train_classifier([vectors], rows, LABELS, is_isotonic=is_isotonic)
    judged = []
    for vector, row in zip(*clouds(2_000, 1.6, seed=2), strict=True):
        answer = found.rule.judge(found.heads[0].probabilities(vector))
        judged.append((answer.p, answer.nearest == LABELS[row]))
    assert calibration_error(judged) < 0.06
    assert 0.5 < sum(is_right for _, is_right in judged) / len(judged) < 0.95


def test_train_classifier_precision_makes_doubtful_rows_unknown() -> None:
    vectors, rows = clouds(1_200, 1.6)
    found = train_classifier([vectors], rows, LABELS, precision=0.95)
    known = [is_right for p, is_right in found.unseen if p >= found.rule.threshold]
    assert sum(known) / len(known) >= 0.95
    assert 0.2 < len(known) / len(rows) < 0.95


def test_train_classifier_cascade_uses_the_better_head_where_the_margin_is_small() -> None:
    weak, rows = clouds(800, 2.0)
    strong, _ = clouds(800, 0.6, seed=5)
    alone, both = train_classifier([weak], rows, LABELS), train_classifier([weak, strong], rows, LABELS)
    right = [sum(is_right for _, is_right in found.unseen) / len(rows) for found in (alone, both)]
    assert right[1] > right[0] + 0.1
    assert 0 < both.share_mixed < 1
    assert both.rule.second_margin > 0
