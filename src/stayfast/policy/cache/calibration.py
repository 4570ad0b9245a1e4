"""How sure is sure enough: a threshold that bounds the share of wrong answers among those that a cache gives.

Problem: "similar to .92" bounds nothing. What an operator can say is how many of the answers given from the cache may be
wrong (`max_error`), per hit and not per request: a cache that answers one request in a hundred, and half of them wrongly, is
right 99.5 % of the time. Rule: learn from labels. Every miss gives one for free (an answer was made: would the neighbour's
have been the same?), and `audit` of the hits, drawn by chance, make their answer all the same.

    p          logistic regression of the features, L2, on the last `n_kept` labels
    weights    a miss stands for itself, an audited hit for 1 / audit of them, and for as many more as audits were begun and
               came to nothing (shed, failed, a store that was late); then the labels of a bin of scores (STEP of
               a logit) share what they stand for, each w = the bin's sum / its labels. Those of a bin are alike, so it
               changes no mean, and n_eff is five times as large as where ones stand beside twenties
    threshold  the smallest score z at which, of the labels with a score from z, the upper bound of 95 % of the wrong
               ones' share (policy/cache/calibration.py) is at most max_error; no such score: never a hit
                   n_eff = (sum w)^2 / sum w^2,   upper(sum w wrong / sum w * n_eff, n_eff) <= max_error
    shadow     below `min_labels`, and while there is no threshold: nothing is given, all is judged and counted. There is
               none before a model was fitted to right ones and wrong ones, and proven by both: from labels of one class
               nothing can be learned of what tells them apart
    drift      of the last AUDITS_WATCHED audits, the lower bound of 99 % of the wrong ones' share is above max_error: the
               labels are lies of another day. All are forgotten, and shadow begins again. 99 %, for it is looked at
               after every audit; a single wrong one is none

Cheap: a fit looks at every label some times over, which no event loop has the time for. So each new label pays for looking
at PACE old ones; when all were looked at, one Newton step is due, and its model is not used before the next round has put
every label into its bins. Model and threshold are always of one round: 0.2 ms a label, at any number.
Source: Clopper, Pearson (1934); Kish (1965) for n_eff; Horvitz, Thompson (1952) for the weights. The rest is ours.
When wrong: the labels were gathered while the threshold was chosen by them, and traffic is no fair draw from an urn: this is
calibrated, not guaranteed. The audits are there to tell.

What a share may really be, of which so many of so many were seen: the exact interval.

Problem: of 40 answers given from a cache, none was wrong; that is no proof of less than 1 % (with 3 % of wrong ones, four
runs in ten look like that). Rule: the bound of Clopper and Pearson, which is never too small, at any n:

    upper(x, n) = the share q at which x or fewer of n would be seen with probability 1 - confidence
                = the `confidence` quantile of Beta(x + 1, n - x)
    lower(x, n) = the `1 - confidence` quantile of Beta(x, n - x + 1)

Counts need not be whole: weighted ones come in as their effective number (policy/cache/calibration.py). Beta's
distribution is the regularised incomplete beta function, by its continued fraction (Lentz); its quantile, by bisection. To
ask whether the upper bound is at most q takes no quantile: it is whether the function at q has reached `confidence`.
Source: Clopper, Pearson, "The use of confidence or fiducial limits" (Biometrika, 1934); Press and others, "Numerical
Recipes", 6.4.
When wrong: the n were not drawn alike, or were looked at until they pleased.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import NamedTuple

CONFIDENCE = 0.95
_TINY = 1e-300
_MOST_TERMS = 300
_PRECISION = 1e-12
_N_HALVINGS = 60


def beta_share(at: float, a: float, b: float) -> float:
    """The regularised incomplete beta function: how much of Beta(a, b) lies below `at`. a and b are above 0."""
    if at <= 0.0:
        return 0.0
    if at >= 1.0:
        return 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(at) + b * log1p(-at))
    if at < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(at, a, b) / a
    return 1.0 - front * _fraction(1.0 - at, b, a) / b


def _fraction(at: float, a: float, b: float) -> float:
    """The continued fraction of the function above."""
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * at / (a + 1.0))
    value = d
    for m in range(1, _MOST_TERMS):
        twice = a + 2 * m
        for term in (m * (b - m) * at / ((twice - 1.0) * twice), -(a + m) * (a + b + m) * at / (twice * (twice + 1.0))):
            d = 1.0 / _apart(1.0 + term * d)
            c = _apart(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


def _apart(value: float) -> float:
    """It, but not zero."""
    return value if abs(value) > _TINY else _TINY


def beta_quantile(share: float, a: float, b: float) -> float:
    """Where that much of Beta(a, b) lies below."""
    low, high = 0.0, 1.0
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        if beta_share(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def upper(x: float, n: float, confidence: float = CONFIDENCE) -> float:
    """The most that the share of x in n may be; 1 where all were, or nothing is known."""
    return beta_quantile(confidence, x + 1.0, n - x) if x < n else 1.0


def lower(x: float, n: float, confidence: float = CONFIDENCE) -> float:
    """The least that it may be; 0 where none was."""
    return beta_quantile(1.0 - confidence, x, n - x + 1.0) if x > 0 else 0.0


def is_at_most(share: float, x: float, n: float, confidence: float = CONFIDENCE) -> bool:
    """Whether the upper bound of x in n is at most `share`. Costs a sixtieth of taking the bound."""
    return x < n * share and beta_share(share, x + 1.0, n - x) >= confidence


PACE = 32
STEP = 0.2  # of a bin, in logits
FURTHEST = 12.0  # logits; more sure than that is as sure
N_BINS = int(2 * FURTHEST / STEP)
RIDGE = 1.0  # 1 / C
MOST_STEP = 5.0  # of a weight in a round: where all is clear already, a Newton step may go anywhere
AUDITS_WATCHED = 500
DRIFT_CONFIDENCE = 0.99
LEAST_LABELS = 50


@dataclass(frozen=True, slots=True)
class CalibrateConfig:
    """What share of the cache's answers may be wrong, and what finding that out may cost. audit: the share of hits."""

    max_error: float = 0.01
    audit: float = 0.05
    min_labels: int = 300
    n_kept: int = 16_384

    def __post_init__(self) -> None:
        if not 0.0001 <= self.max_error <= 0.5:
            raise ValueError(f"max_error must be from 0.0001 to 0.5, not {self.max_error}")
        if not 0.001 <= self.audit <= 1:
            raise ValueError(f"audit must be from 0.001 to 1, not {self.audit}: without audits nobody knows the error")
        if not LEAST_LABELS <= self.min_labels <= self.n_kept <= 100_000:
            raise ValueError(f"min_labels must be at least {LEAST_LABELS}, and at most n_kept, which is at most 100000")


class Label(NamedTuple):
    """What came out once: the features, whether the answer would have been right, and how many hits it stands for."""

    features: tuple[float, ...]
    is_right: bool
    weight: float


class CalibrationEstimate(NamedTuple):
    """What is given, or would be. hit_share: of the labelled (their weights). error of those, with its bounds of 95 %."""

    hit_share: float
    error: float
    low: float
    high: float
    n_eff: float  # labels that say something about the error


class _Bins:
    """Labels by their score under one model: how many, how many of them wrong, and the hits that they stand for."""

    __slots__ = ("n", "n_wrong", "weights")

    def __init__(self) -> None:
        self.n = [0] * N_BINS
        self.n_wrong = [0] * N_BINS
        self.weights = [0.0] * N_BINS

    def add(self, score: float, weight: float, *, is_right: bool) -> None:
        place = min(N_BINS - 1, max(0, int((score + FURTHEST) / STEP)))
        self.n[place] += 1
        self.n_wrong[place] += not is_right
        self.weights[place] += weight

    @property
    def is_mixed(self) -> bool:
        return 0 < sum(self.n_wrong) < sum(self.n)

    def threshold(self, max_error: float) -> int | None:
        """The lowest bin from which on the error is proven to be small enough."""
        found = None
        weight = wrong = squares = 0.0
        for place in range(N_BINS - 1, -1, -1):
            if self.n[place]:
                weight, wrong, squares = self._with(place, weight, wrong, squares)
                n_eff = weight * weight / squares
                if is_at_most(max_error, wrong / weight * n_eff, n_eff):
                    found = place
        return found

    def _with(self, place: int, weight: float, wrong: float, squares: float) -> tuple[float, float, float]:
        """The sums with one bin more, each of whose labels has the bin's mean weight."""
        mean = self.weights[place] / self.n[place]
        return weight + self.weights[place], wrong + mean * self.n_wrong[place], squares + mean * self.weights[place]

    def estimate(self, place: int) -> CalibrationEstimate:
        """Of what lies in this bin and beyond."""
        weight = wrong = squares = 0.0
        for other in range(place, N_BINS):
            if self.n[other]:
                weight, wrong, squares = self._with(other, weight, wrong, squares)
        if not weight:
            return CalibrationEstimate(0.0, 0.0, 0.0, 1.0, 0.0)
        n_eff = weight * weight / squares
        x = wrong / weight * n_eff
        return CalibrationEstimate(weight / sum(self.weights), wrong / weight, lower(x, n_eff), upper(x, n_eff), n_eff)


class _Round:
    """One look at all labels: where they lie under `model`, and what the next model is."""

    __slots__ = ("at", "bins", "gradient", "hessian", "is_fitted", "model", "n")

    def __init__(self, model: list[float], n: int, *, is_fitted: bool = False) -> None:
        self.model = model
        self.is_fitted = is_fitted  # to labels of both classes, and not made of nothing
        self.n = n
        self.at = 0
        self.bins = _Bins()
        self.gradient = [0.0] * len(model)
        self.hessian = [[0.0] * (i + 1) for i in range(len(model))]

    def observe(self, label: Label) -> None:
        self.at += 1
        row = (1.0, *label.features)
        score = _dot(self.model, row)
        self.bins.add(score, label.weight, is_right=label.is_right)
        p = _logistic(score)
        missed, curve = label.is_right - p, p * (1.0 - p)
        gradient = self.gradient
        for i, x in enumerate(row):
            gradient[i] += missed * x
            bent, line = curve * x, self.hessian[i]
            for j in range(i + 1):
                line[j] += bent * row[j]

    def next_model(self) -> list[float]:
        """A Newton step towards the most likely one that is not too large (RIDGE; the constant is free)."""
        size = len(self.model)
        rows = [[self.hessian[max(i, j)][min(i, j)] for j in range(size)] + [self.gradient[i]] for i in range(size)]
        for i in range(size):
            rows[i][i] += RIDGE if i else 1e-6
            rows[i][size] -= RIDGE * self.model[i] if i else 0.0
        steps = _solved(rows)
        part = min(1.0, MOST_STEP / max(map(abs, steps), default=MOST_STEP))
        return [old + part * step for old, step in zip(self.model, steps, strict=True)]


class Calibrator:
    """One tenant's on one route. A `similarity.Rule`. One task at a time; nothing here waits."""

    __slots__ = ("_audits", "_labels", "_oldest", "_place", "_proven", "_round", "config", "n_drifted", "n_labels")

    def __init__(self, config: CalibrateConfig, n_features: int) -> None:
        self.config = config
        self.n_labels = 0  # since the beginning, or the last drift
        self.n_drifted = 0
        self._labels: list[Label] = []
        self._oldest = 0  # where the next one goes, once there are n_kept
        self._audits: deque[bool] = deque(maxlen=AUDITS_WATCHED)  # whether each was wrong
        self._proven = _Round([0.0] * (n_features + 1), 0)  # the last whole round: what p is
        self._place: int | None = None  # the threshold under it
        self._round = _Round([0.0] * (n_features + 1), 0)

    @property
    def is_shadow(self) -> bool:
        return self._place is None or self.n_labels < self.config.min_labels

    @property
    def threshold(self) -> float | None:
        """The p from which on answers are given; None: never yet."""
        return None if self._place is None else _logistic(self._place * STEP - FURTHEST)

    def p(self, features: Sequence[float]) -> float:
        """How likely it is right. 0.5 before anything was learned. About 2 us."""
        return _logistic(_dot(self._proven.model, (1.0, *features)))

    def why_not(self, p: float) -> str:
        """The reason not to give an answer that is right with p; empty: none."""
        threshold = self.threshold
        if threshold is None or self.is_shadow:
            return "shadow"
        return "" if p >= threshold else "unsure"

    def learn(self, features: tuple[float, ...], *, is_right: bool, was_given: bool = False, n_audits: float = 1.0) -> None:
        """Learn from a miss, or (`was_given`) an audited hit that stands for `n_audits`. 0.2 ms: no client may wait."""
        config = self.config
        label = Label(features, is_right, n_audits / config.audit if was_given else 1.0)
        if len(self._labels) < config.n_kept:
            self._labels.append(label)
        else:
            self._labels[self._oldest] = label
            self._oldest = (self._oldest + 1) % config.n_kept
        self.n_labels += 1
        if was_given:
            self._audits.append(not is_right)
            n_wrong, n = self.audited()
            max_error = self.config.max_error
            if n_wrong > max(1.0, n * max_error) and lower(n_wrong, n, DRIFT_CONFIDENCE) > max_error:
                self._forget()
                return
        self._work()

    def estimate(self) -> CalibrationEstimate | None:
        """Of what is given; in shadow, of what would be given if the threshold were used. None: there is none yet."""
        return None if self._place is None else self._proven.bins.estimate(self._place)

    def audited(self) -> tuple[int, int]:
        """How many of the last audits found a wrong answer, and of how many."""
        return sum(self._audits), len(self._audits)

    def _work(self) -> None:
        """Look at PACE labels; at the end of a round, its model and threshold are used, and the next one begins."""
        running = self._round
        for place in range(running.at, min(running.at + PACE, running.n)):
            running.observe(self._labels[place])
        if running.at < running.n:
            return
        if running.n:
            self._proven = running
            is_proven = running.is_fitted and running.bins.is_mixed
            self._place = running.bins.threshold(self.config.max_error) if is_proven else None
        if running.n >= LEAST_LABELS and running.bins.is_mixed:
            self._round = _Round(running.next_model(), len(self._labels), is_fitted=True)
        else:
            self._round = _Round(running.model, len(self._labels))

    def _forget(self) -> None:
        """Begin again, with the model but without what it was proven by."""
        self.n_drifted += 1
        self.n_labels = self._oldest = 0
        self._labels.clear()
        self._audits.clear()
        self._place = None
        self._round = _Round(self._proven.model, 0)

    def __repr__(self) -> str:
        state = "shadow" if self.is_shadow else f"from p {self.threshold:.3f}"
        return f"<Calibrator {state}, {self.n_labels} labels, {len(self._audits)} audits>"


def _dot(model: Sequence[float], row: Sequence[float]) -> float:
    return sum([weight * x for weight, x in zip(model, row, strict=True)])


def _logistic(score: float) -> float:
    return 1.0 / (1.0 + exp(-min(35.0, max(-35.0, score))))


def _solved(rows: list[list[float]]) -> list[float]:
    """The x of A x = b by elimination; rows: A, and b as its last column. A is positive definite."""
    size = len(rows)
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            if factor:
                rows[k] = [one - factor * other for one, other in zip(rows[k], rows[i], strict=True)]
    found = [0.0] * size
    for i in range(size - 1, -1, -1):
        found[i] = (rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return found
