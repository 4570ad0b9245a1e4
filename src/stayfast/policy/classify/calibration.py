"""Measures and fits the probabilities of a classifier, on rows that its weights have not seen.

Problem: of the answers with a probability of 90 %, 99 % or only 70 % are right, depending on how long it was trained.
Rule: fit one temperature by the least log-loss, or a non-decreasing map of the highest probability (isotonic regression, by
pooling neighbours that are out of order), then choose the lowest threshold whose answers have the wanted precision.

    ECE = sum over bins of (rows in the bin / all rows) * |share of right answers - mean probability|, 15 bins of equal width

Source: Guo et al. (2017) for temperature and ECE; Zadrozny and Elkan, "Transforming Classifier Scores into Accurate
Multiclass Probability Estimates" (2002) for isotonic regression; Platt (1999) is the temperature of two labels with a bias,
which the head has already.
When wrong: with few rows. The ECE of a perfect classifier is not 0 then, but about 0.4 * sqrt(15 / rows).
"""

from collections.abc import Callable, Sequence
from typing import Final

from stayfast.policy.classify.head import ProbabilityMap

N_BINS: Final = 15
LEAST_FOR_MAP: Final = 200  # rows, below which a map follows noise
_LOWEST_T, _HIGHEST_T, _N_STEPS = 0.05, 20.0, 40
_GOLDEN: Final = 0.6180339887498949
_NEVER: Final = 1.000001


def calibration_error(judged: Sequence[tuple[float, bool]]) -> float:
    """The expected calibration error of (probability, was right) pairs, 0 to 1; 0 without rows."""
    bins: list[list[float]] = [[0.0, 0.0] for _ in range(N_BINS)]  # sums of probabilities and of right answers
    for p, is_right in judged:
        found = bins[min(int(p * N_BINS), N_BINS - 1)]
        found[0] += p
        found[1] += is_right
    return sum(abs(total - right) for total, right in bins) / len(judged) if judged else 0.0


def fit_temperature(log_loss: Callable[[float], float]) -> float:
    """The temperature with the least loss, from 0.05 to 20, by golden section over its ratio. The loss must have one
    minimum, as that of a softmax has.
    """
    ratio = _HIGHEST_T / _LOWEST_T

    def at(place: float) -> float:
        return _LOWEST_T * float(ratio**place)

    low, high = 0.0, 1.0
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    loss_left, loss_right = log_loss(at(left)), log_loss(at(right))
    for _ in range(_N_STEPS):
        if loss_left <= loss_right:
            high, right, loss_right = right, left, loss_left
            left = high - _GOLDEN * (high - low)
            loss_left = log_loss(at(left))
        else:
            low, left, loss_left = left, right, loss_right
            right = low + _GOLDEN * (high - low)
            loss_right = log_loss(at(right))
    return at((low + high) / 2)


def fit_isotonic(judged: Sequence[tuple[float, bool]]) -> ProbabilityMap:
    """The non-decreasing map of probabilities with the least squared error. The identity for few rows."""
    if len(judged) < LEAST_FOR_MAP:
        return ProbabilityMap()
    blocks: list[list[float]] = []  # sum of p, number of right answers, rows
    for p, is_right in sorted(judged):
        blocks.append([p, float(is_right), 1.0])
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][2] >= blocks[-1][1] * blocks[-2][2]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    points = [(total / n, right / n) for total, right, n in blocks]
    return ProbabilityMap(tuple(point for n, point in enumerate(points) if n == 0 or point[0] > points[n - 1][0]))


def choose_threshold(judged: Sequence[tuple[float, bool]], precision: float) -> float:
    """The lowest probability from which on the share of right answers is at least `precision` (0 to 1). 0: all answers
    together have it. Just above 1, so that every answer is unknown: no part of them has it.
    """
    ordered, n_right, best = sorted(judged, reverse=True), 0, 0
    for n, (p, is_right) in enumerate(ordered, 1):
        n_right += is_right
        has_equal_next = n < len(ordered) and ordered[n][0] == p
        if not has_equal_next and n_right >= precision * n:
            best = n
    if best == len(ordered):
        return 0.0
    return ordered[best - 1][0] if best else _NEVER
