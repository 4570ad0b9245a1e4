"""A linear classifier over the vector of a text, with calibrated probabilities and the answer `unknown`.

Problem: the largest score of a classifier says which label is nearest, not whether any label fits. Rule: softmax over linear
scores, divided by a temperature that is fitted on rows the weights have not seen; below a threshold, chosen for a wanted
precision on such rows, the answer is `unknown`. Where two labels are close, a second head over a slower, better vector
is evaluated, and the probabilities of both are mixed.

    scores_k = (w_k x + b_k) / T          p = softmax(scores)         margin = p_1 - p_2
    mixed    = softmax((1 - s) log p + s log q)                       if margin < second_margin, with q of the second head

Source: Guo et al., "On Calibration of Modern Neural Networks" (2017), for the temperature; Viola and Jones, "Rapid Object
Detection using a Boosted Cascade" (2001), for the cascade.
When wrong: texts of another kind than the training rows. Their probabilities are as high as those of known texts.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

UNKNOWN: Final = "unknown"
_TINY: Final = 1e-12


class Classification(Struct, frozen=True):
    """label: `unknown` where p is below the threshold. p, margin: 0 to 1, calibrated. probabilities: one for each label, in
    the order of the classifier's labels; they add up to 1.
    """

    label: str
    nearest: str  # the label with the highest probability, known or not
    p: float
    margin: float  # to the second most probable label
    probabilities: tuple[float, ...]
    is_mixed: bool = False  # of two heads


class ProbabilityMap(Struct, frozen=True):
    """A non-decreasing map of the highest probability, linear between its points; empty: the identity."""

    points: tuple[tuple[float, float], ...] = ()

    def __call__(self, p: float) -> float:
        points = self.points
        if not points:
            return p
        n = bisect_right(points, (p, 2.0))
        if n == 0:
            return points[0][1]
        if n == len(points):
            return points[-1][1]
        (x0, y0), (x1, y1) = points[n - 1], points[n]
        return y0 + (y1 - y0) * (p - x0) / (x1 - x0)


class LinearHead(Struct, frozen=True, eq=False):
    """One linear head. weights: float32 [n_labels, n_dims]; bias: float32 [n_labels]. temperature: above 0."""

    weights: "Floats"
    bias: "Floats"
    temperature: float = 1.0

    def probabilities(self, vector: "Floats") -> list[float]:
        """By label. vector: float32 [n_dims]."""
        scores: list[float] = (self.weights @ vector + self.bias).tolist()
        return softmax(scores, self.temperature)


class ClassifierRule(Struct, frozen=True):
    """How probabilities become an answer. threshold: 0 to 1; a lower probability is `unknown`."""

    labels: tuple[str, ...]
    threshold: float = 0.0
    map: ProbabilityMap = ProbabilityMap()
    second_margin: float = 0.0  # 0: the first head alone decides
    second_share: float = 0.5  # weight of the second head's opinion
    mixed_temperature: float = 1.0

    def judge(self, probabilities: Sequence[float], *, is_mixed: bool = False) -> Classification:
        """The answer for the probabilities of all labels."""
        first, second = _two_largest(probabilities)
        p = self.map(probabilities[first])
        nearest = self.labels[first]
        margin = probabilities[first] - probabilities[second] if second is not None else 1.0
        label = nearest if p >= self.threshold else UNKNOWN
        return Classification(label, nearest, p, margin, tuple(probabilities), is_mixed)

    def needs_second(self, found: Classification) -> bool:
        """Whether the labels are so close that the second head must be evaluated."""
        return found.margin < self.second_margin

    def mix(self, first: Sequence[float], second: Sequence[float]) -> Classification:
        """The answer of both heads: the weighted geometric mean of their probabilities."""
        share = self.second_share
        scores = [(1.0 - share) * log(max(p, _TINY)) + share * log(max(q, _TINY))
                  for p, q in zip(first, second, strict=True)]
        return self.judge(softmax(scores, self.mixed_temperature), is_mixed=True)


def softmax(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Probabilities that add up to 1. Finite scores of any size."""
    most = max(scores)
    raised = [exp((score - most) / temperature) for score in scores]
    total = sum(raised)
    return [value / total for value in raised]


def _two_largest(values: Sequence[float]) -> tuple[int, int | None]:
    """Indices of the largest and the second largest value; the first of equal ones. None: there is only one."""
    first = max(range(len(values)), key=values.__getitem__)
    others = [n for n in range(len(values)) if n != first]
    return first, max(others, key=values.__getitem__) if others else None
