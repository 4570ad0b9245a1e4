"""Trains a classifier on labelled vectors: multinomial logistic regression, calibrated on rows that each fit has not seen.

Problem: calibration needs rows that the weights have not seen, and rows with labels are few. Rule: cross-fitting. The rows
are cut into N_FOLDS parts at random, every label spread over all parts; each part is scored by weights fitted on the other
parts. These scores fit the temperature, the map, the threshold and the cascade; the weights that are stored are fitted on
all rows.

    loss = mean of -log softmax(W x + b)[label] + l2 / 2 * |W|^2, without the bias, minimised by L-BFGS

Source: Nocedal and Wright, "Numerical Optimization" (2006), algorithms 7.4 and 3.1 (backtracking); Platt (1999) for
cross-fitting before calibration.
When wrong: equal texts in several rows stand in several parts, so their scores are not unseen; remove duplicates first.
Deterministic for a seed on one machine; another BLAS may differ in the last digits.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stayfast.policy.classify.calibration import choose_threshold, fit_isotonic, fit_temperature
from stayfast.policy.classify.head import ClassifierRule, LinearHead

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Labels = NDArray[np.int64]

N_FOLDS: Final = 10
L2: Final = 1e-5
MAX_STEPS: Final = 150
_MEMORY, _BACKTRACKS = 10, 20
_CLOSE_ENOUGH: Final = 1e-6  # relative change of the loss in one step
_DECREASE: Final = 1e-4
SHARES: Final = (0.4, 0.5, 0.6, 0.7, 0.8)  # weights of the second head that are tried
MARGINS: Final = tuple(round(0.05 * n, 2) for n in range(2, 20))  # of the first head, that are tried
WITHIN: Final = 0.001  # accuracy that a cascade may be worse than asking both heads each time


class TrainedClassifier(NamedTuple):
    """heads: one, or two of a cascade. unseen: for each row, whether the answer was right and its probability, from weights
    that had not seen the row; `share_mixed`: of those rows that needed the second head.
    """

    heads: tuple[LinearHead, ...]
    rule: ClassifierRule
    unseen: tuple[tuple[float, bool], ...]
    share_mixed: float


def fit_head(vectors: Floats, rows: Labels, n_labels: int, l2: float = L2) -> tuple[Floats, Floats]:
    """Weights [n_labels, n_dims] and bias [n_labels] with the least loss. rows: [n], the label of each vector."""
    n, n_dims = vectors.shape
    inputs = np.concatenate([vectors, np.ones((n, 1), np.float32)], axis=1, dtype=np.float32)
    each = np.arange(n)

    def loss(flat: Wide) -> tuple[float, Wide]:
        weights = flat.reshape(n_labels, n_dims + 1).astype(np.float32)
        scores = inputs @ weights.T
        scores -= scores.max(axis=1, keepdims=True)
        right = scores[each, rows].astype(np.float64)
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True)
        scores /= total
        scores[each, rows] -= 1.0
        penalised = weights.astype(np.float64)
        penalised[:, -1] = 0.0
        gradient = (scores.T @ inputs).astype(np.float64) / n + l2 * penalised
        value = float(np.log(total[:, 0].astype(np.float64)).mean() - right.mean() + l2 / 2 * (penalised**2).sum())
        return value, gradient.ravel()

    found = minimise(loss, np.zeros(n_labels * (n_dims + 1))).reshape(n_labels, n_dims + 1).astype(np.float32)
    return np.ascontiguousarray(found[:, :-1]), np.ascontiguousarray(found[:, -1])


def minimise(loss: Callable[[Wide], tuple[float, Wide]], start: Wide) -> Wide:
    """The place of the least loss of a convex function, by L-BFGS. loss: returns its value and its gradient."""
    place, (value, gradient) = start, loss(start)
    steps: list[tuple[Wide, Wide, float]] = []  # the last steps, changes of the gradient, and their products
    for _ in range(MAX_STEPS):
        direction = -_two_loops(gradient, steps)
        slope, length = float(gradient @ direction), 1.0
        for _ in range(_BACKTRACKS):
            new_value, new_gradient = loss(place + length * direction)
            if new_value <= value + _DECREASE * length * slope:
                break
            length /= 2
        else:
            break  # no step lowers the loss: it is as low as its precision allows
        step, change = length * direction, new_gradient - gradient
        product = float(step @ change)
        if product > 0:
            steps = [*steps[1 - _MEMORY:], (step, change, product)]
        is_close = value - new_value <= _CLOSE_ENOUGH * abs(value)
        place, value, gradient = place + step, new_value, new_gradient
        if is_close:
            break
    return place


def _two_loops(gradient: Wide, steps: Sequence[tuple[Wide, Wide, float]]) -> Wide:
    """The gradient times the estimated inverse Hessian."""
    if not steps:
        unit: Wide = gradient / max(float(np.linalg.norm(gradient)), 1e-12)
        return unit
    found, shares = gradient.copy(), []
    for step, change, product in reversed(steps):
        share = float(step @ found) / product
        shares.append(share)
        found -= share * change
    step, change, product = steps[-1]
    found *= product / float(change @ change)
    for (step, change, product), share in zip(steps, reversed(shares), strict=True):
        found += (share - float(change @ found) / product) * step
    return found


def split_rows(rows: Labels, n_parts: int, seed: int) -> NDArray[np.int64]:
    """The part of each row, 0 to n_parts - 1: at random, the rows of every label evenly."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows[order], kind="stable")]
    parts = np.empty(len(rows), np.int64)
    parts[order] = np.arange(len(rows)) % n_parts
    return parts


def train_classifier(vectors: Sequence[Floats], rows: Labels, labels: Sequence[str], *, precision: float = 0.0,
                     is_isotonic: bool = False, seed: int = 1, l2: float = L2) -> TrainedClassifier:
    """vectors: [n, n_dims] of one embedder, or of two for a cascade. rows: [n], indices into `labels`, each of which occurs.
    precision: that known answers shall have; 0: no answer is `unknown`.
    """
    parts = split_rows(rows, N_FOLDS, seed)
    log_p, heads = [], []
    for each in vectors:
        scores = np.empty((len(rows), len(labels)), np.float32)
        for part in range(N_FOLDS):
            seen = parts != part
            weights, bias = fit_head(each[seen], rows[seen], len(labels), l2)
            scores[~seen] = each[~seen] @ weights.T + bias
        temperature = _fit_temperature(scores, rows)
        weights, bias = fit_head(each, rows, len(labels), l2)
        heads.append(LinearHead(weights, bias, temperature))
        log_p.append(log_softmax(scores / np.float32(temperature)))
    rule, answered, is_mixed = ClassifierRule(tuple(labels)), log_p[0], np.zeros(len(rows), bool)
    if len(heads) > 1:
        rule, answered, is_mixed = _fit_cascade(rule, log_p[0], log_p[1], rows)
    judged = _judge(answered, rows)
    if is_isotonic:
        rule = replace(rule, map=fit_isotonic(judged))
        judged = [(rule.map(p), is_right) for p, is_right in judged]
    if precision:
        rule = replace(rule, threshold=choose_threshold(judged, precision))
    return TrainedClassifier(tuple(heads), rule, tuple(judged), float(is_mixed.mean()))


def _fit_cascade(rule: ClassifierRule, first: Floats, second: Floats, rows: Labels
                 ) -> tuple[ClassifierRule, Floats, NDArray[np.bool_]]:
    """The share of the second head with the best accuracy, and the smallest margin that is nearly as good as always asking
    it. Also the log-probabilities of the cascade, and which rows needed the second head.
    """
    def accuracy(log_p: Floats) -> float:
        return float((log_p.argmax(axis=1) == rows).mean())

    share = max(SHARES, key=lambda each: (accuracy(_mix(first, second, each)), -abs(each - 0.5)))
    mixed = _mix(first, second, share)
    largest = np.partition(np.exp(first), -2, axis=1)[:, -2:]
    margins = largest[:, 1] - largest[:, 0]
    best = accuracy(mixed)
    margin = next((each for each in MARGINS
                   if accuracy(np.where((margins < each)[:, None], mixed, first)) >= best - WITHIN), MARGINS[-1])
    is_mixed = margins < margin
    temperature = _fit_temperature(mixed[is_mixed], rows[is_mixed]) if is_mixed.any() else 1.0
    mixed = log_softmax(mixed / np.float32(temperature))
    rule = replace(rule, second_margin=margin, second_share=share, mixed_temperature=temperature)
    return rule, np.where(is_mixed[:, None], mixed, first), is_mixed


def _mix(first: Floats, second: Floats, share: float) -> Floats:
    return np.float32(1 - share) * first + np.float32(share) * second


def _fit_temperature(scores: Floats, rows: Labels) -> float:
    each = np.arange(len(rows))

    def loss(temperature: float) -> float:
        return -float(log_softmax(scores / np.float32(temperature))[each, rows].mean())

    return fit_temperature(loss)


def log_softmax(scores: Floats) -> Floats:
    """By row; float32 [n, n_labels]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def _judge(log_p: Floats, rows: Labels) -> list[tuple[float, bool]]:
    best = log_p.argmax(axis=1)
    p = np.exp(log_p[np.arange(len(rows)), best])
    return list(zip(p.tolist(), (best == rows).tolist(), strict=True))
