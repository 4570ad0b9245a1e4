"""The threshold of a semantic cache: it bounds the share of wrong answers among cache hits.

Problem: "cosine above .92" bounds nothing. An operator can state which share of the cached answers may be wrong
(`max_error`). Rule: learn from labels. Each miss gives one for free (an answer was generated: would the neighbour's have
been the same?), and a random share `audit` of the hits generates an answer, too.

    p          logistic regression of the features, L2, on the last `max_labels` labels
    weights    a miss counts 1; an audited hit 1 / audit, and more if earlier audits gave no result. The labels of a bin of
               scores (STEP of a logit) share their sum equally, which changes no mean, and makes n_eff five times as large
    threshold  the smallest score z at which, of the labels with a score >= z, the upper 95 % bound of the share of wrong
               ones is at most max_error; if there is no such score, the cache serves nothing
                   n_eff = (sum w)^2 / sum w^2,   upper(sum w wrong / sum w * n_eff, n_eff) <= max_error
    shadow     below `min_labels`, or without a threshold: nothing is served, but everything is judged and counted. A
               threshold needs a model fitted to labels of both classes, and a check against both
    judge      if the judge of answers accepts a share `miss_share` of different answers, max_error (1 - miss_share) is the
               bound for what it finds
    choices    a threshold is chosen anew in each round, and `confidence` pays for the choices: it is 1 - 0.05 / n, if
               the labels double n times between the first choice and `max_labels`: choices between two doublings mostly read
               the same labels
    unserved   a label of an answer that would not be served anyway (not confirmed, on probation) trains the model, but says
               nothing about a threshold
    drift      if the test of the audits (policy/cache/drift.py) rejects, or that of a scope, all labels but the last
               N_RETAINED are dropped and shadow begins again. Audits are labels, too, but the tests never
               read labels of old traffic
    bounds     Clopper and Pearson's, which hold for any n: upper(x, n) is the `confidence` quantile of Beta(x + 1, n - x),
               lower(x, n) the `1 - confidence` quantile of Beta(x, n - x + 1)

A fit reads all labels several times, too long for the event loop. So each new label processes PACE old ones; when all were
read, one Newton step follows, and its model is used after a further round that puts all labels into bins. 0.3 ms a label.
Source: Clopper, Pearson, "The use of confidence or fiducial limits" (Biometrika, 1934); Press and others, "Numerical
Recipes", 6.4 (the incomplete beta function by Lentz's continued fraction); Kish (1965) for n_eff; Horvitz, Thompson (1952)
for the weights. The rest is ours.
When wrong: labels are collected while they move the threshold, and traffic is not an independent sample. The error is
calibrated, not guaranteed; audits measure it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, lgamma, log, log1p, log2
from typing import NamedTuple

from stayfast.policy.cache.drift import AuditTest

CONFIDENCE = 0.95
_TINY = 1e-300
_MAX_TERMS = 100_000  # the fraction ends at _PRECISION; the more samples, the more terms
_PRECISION = 1e-12
_N_HALVINGS = 60


def beta_share(at: float, a: float, b: float) -> float:
    """The regularised incomplete beta function: the probability that Beta(a, b) is below `at`. a and b are above 0."""
    if at <= 0.0:
        return 0.0
    if at >= 1.0:
        return 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(at) + b * log1p(-at))
    if at < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(at, a, b) / a
    return 1.0 - front * _beta_fraction(1.0 - at, b, a) / b


def _beta_fraction(at: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * at / (a + 1.0))
    value = d
    for m in range(1, _MAX_TERMS):
        twice = a + 2 * m
        for term in (m * (b - m) * at / ((twice - 1.0) * twice), -(a + m) * (a + b + m) * at / (twice * (twice + 1.0))):
            d = 1.0 / _nonzero(1.0 + term * d)
            c = _nonzero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def beta_quantile(share: float, a: float, b: float) -> float:
    """The value below which Beta(a, b) has this probability."""
    low, high = 0.0, 1.0
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        if beta_share(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def upper_bound(x: float, n: float, confidence: float = CONFIDENCE) -> float:
    """The upper bound of the true share, if x of n were seen; 1 if n is 0 or x is n."""
    return beta_quantile(confidence, x + 1.0, n - x) if x < n else 1.0


def lower_bound(x: float, n: float, confidence: float = CONFIDENCE) -> float:
    """The lower bound of the true share, if x of n were seen; 0 if x is 0."""
    return beta_quantile(1.0 - confidence, x, n - x + 1.0) if x > 0 else 0.0


def is_at_most(share: float, x: float, n: float, confidence: float = CONFIDENCE) -> bool:
    """Whether the upper bound of x in n is at most `share`. 60 times as fast as computing the bound."""
    return x < n * share and beta_share(share, x + 1.0, n - x) >= confidence


PACE = 32
STEP = 0.2  # width of a bin, in logits
FURTHEST = 12.0  # logits; scores are cut off there
N_BINS = int(2 * FURTHEST / STEP)
RIDGE = 1.0  # 1 / C
MOST_STEP = 5.0  # largest change of a weight per round: with separable labels a Newton step is unbounded
AUDITS_COUNTED = 500
LEAST_LABELS = 50
N_RETAINED = 50  # labels, after a restart
NEAR = 2.0  # logits below the threshold, down to which labels test a scope


@dataclass(frozen=True, slots=True)
class CalibrateConfig:
    """How many cached answers may be wrong, and the cost of measuring it. `audit`: share of the hits that are audited."""

    max_error: float = 0.01
    audit: float = 0.05
    min_labels: int = 300
    max_labels: int = 16_384

    def __post_init__(self) -> None:
        if not 0.0001 <= self.max_error <= 0.5:
            raise ValueError(f"max_error must be from 0.0001 to 0.5, not {self.max_error}")
        if not 0.001 <= self.audit <= 1:
            raise ValueError(f"audit must be from 0.001 to 1, not {self.audit}: without audits the error is unknown")
        if not LEAST_LABELS <= self.min_labels <= self.max_labels <= 100_000:
            raise ValueError(f"min_labels must be at least {LEAST_LABELS}, and at most max_labels, which is at most 100000")


class Label(NamedTuple):
    """One comparison: the features, whether the cached answer was right, and how many hits the label represents.
    is_servable: whether the answer could have been served, by the rules that precede the threshold.
    """

    features: tuple[float, ...]
    is_right: bool
    weight: float
    is_servable: bool


class CalibrationEstimate(NamedTuple):
    """What the cache serves, or would serve in shadow: the share of hits, and their error with its 95 % bounds."""

    hit_share: float
    error: float
    low: float
    high: float
    n_eff: float  # effective number of labels behind `error`


class _Bins:
    """Labels by their score under one model: number, number of wrong ones, and weight."""

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

    def threshold(self, max_error: float, confidence: float) -> int | None:
        """The lowest bin from which on the error is proven to be at most `max_error`; None: there is none."""
        found = None
        weight = wrong = squares = 0.0
        for place in range(N_BINS - 1, -1, -1):
            if self.n[place]:
                weight, wrong, squares = self._add_bin(place, weight, wrong, squares)
                n_eff = weight * weight / squares
                if is_at_most(max_error, wrong / weight * n_eff, n_eff, confidence):
                    found = place
        return found

    def _add_bin(self, place: int, weight: float, wrong: float, squares: float) -> tuple[float, float, float]:
        """The sums with one more bin, each of whose labels has the bin's mean weight."""
        mean = self.weights[place] / self.n[place]
        return weight + self.weights[place], wrong + mean * self.n_wrong[place], squares + mean * self.weights[place]

    def estimate(self, place: int) -> CalibrationEstimate:
        weight = wrong = squares = 0.0
        for other in range(place, N_BINS):
            if self.n[other]:
                weight, wrong, squares = self._add_bin(other, weight, wrong, squares)
        if not weight:
            return CalibrationEstimate(0.0, 0.0, 0.0, 1.0, 0.0)
        n_eff = weight * weight / squares
        x = wrong / weight * n_eff
        return CalibrationEstimate(weight / sum(self.weights), wrong / weight, lower_bound(x, n_eff), upper_bound(x, n_eff),
                                   n_eff)


class _Round:
    """One pass over all labels: their bins under `model`, and the sums for the next model."""

    __slots__ = ("at", "bins", "gradient", "hessian", "is_fitted", "model", "n")

    def __init__(self, model: list[float], n: int, *, is_fitted: bool = False) -> None:
        self.model = model
        self.is_fitted = is_fitted  # to labels of both classes
        self.n = n
        self.at = 0
        self.bins = _Bins()
        self.gradient = [0.0] * len(model)
        self.hessian = [[0.0] * (i + 1) for i in range(len(model))]

    def observe(self, label: Label) -> None:
        self.at += 1
        row = (1.0, *label.features)
        score = _dot(self.model, row)
        if label.is_servable:
            self.bins.add(score, label.weight, is_right=label.is_right)
        p = _logistic(score)
        error, curve = label.is_right - p, p * (1.0 - p)
        gradient = self.gradient
        for i, x in enumerate(row):
            gradient[i] += error * x
            scaled, line = curve * x, self.hessian[i]
            for j in range(i + 1):
                line[j] += scaled * row[j]

    def next_model(self) -> list[float]:
        """One Newton step of the L2-regularised likelihood (the constant is not regularised)."""
        size = len(self.model)
        rows = [[self.hessian[max(i, j)][min(i, j)] for j in range(size)] + [self.gradient[i]] for i in range(size)]
        for i in range(size):
            rows[i][i] += RIDGE if i else 1e-6
            rows[i][size] -= RIDGE * self.model[i] if i else 0.0
        steps = _solve(rows)
        part = min(1.0, MOST_STEP / max(map(abs, steps), default=MOST_STEP))
        return [old + part * step for old, step in zip(self.model, steps, strict=True)]


class Calibrator:
    """The calibration of one tenant on one route; a `similarity.DecisionRule`. Used by one task at a time; nothing here
    awaits."""

    __slots__ = ("_audit_test", "_audits", "_confidence", "_labels", "_oldest", "_place", "_proven", "_round", "config",
                 "miss_share",
                 "n_drifted", "n_labels")

    needs_confirmation = True

    def __init__(self, config: CalibrateConfig, n_features: int) -> None:
        self.config = config
        self.n_labels = 0  # since the start, or since the last drift
        self.n_drifted = 0
        self.miss_share = 0.0  # of different answers, those that the judge of answers calls the same
        n_choices = 1 + ceil(log2(config.max_labels / config.min_labels))
        self._confidence = 1.0 - (1.0 - CONFIDENCE) / n_choices
        self._labels: list[Label] = []
        self._oldest = 0  # index of the next label to replace, once there are max_labels
        self._audits: deque[bool] = deque(maxlen=AUDITS_COUNTED)  # whether each found an error
        self._audit_test = AuditTest(config.max_error)
        self._proven = _Round([0.0] * (n_features + 1), 0)  # the last complete round, which gives p
        self._place: int | None = None  # the bin of its threshold
        self._round = _Round([0.0] * (n_features + 1), 0)

    @property
    def is_shadow(self) -> bool:
        return self._place is None or self.n_labels < self.config.min_labels

    @property
    def threshold(self) -> float | None:
        """The p from which on answers are served; None: there is no threshold yet."""
        return None if self._place is None else _logistic(self._place * STEP - FURTHEST)

    def probability(self, features: Sequence[float]) -> float:
        """The probability that the cached answer is right; 0.5 before any label. About 2 us."""
        return _logistic(_dot(self._proven.model, (1.0, *features)))

    def reject_reason(self, p: float) -> str:
        """The reason not to serve an answer of this probability; empty: serve it."""
        threshold = self.threshold
        if threshold is None or self.is_shadow:
            return "shadow"
        return "" if p >= threshold else "unsure"

    def expected_error(self, features: Sequence[float]) -> float | None:
        """The probability that the cached answer is wrong; None: there is no threshold, or the score is far below it."""
        score = _dot(self._proven.model, (1.0, *features))
        if self._place is None or score < self._place * STEP - FURTHEST - NEAR:
            return None
        return _logistic(-score)

    def learn(self, features: tuple[float, ...], *, is_right: bool, was_given: bool = False, n_audits: float = 1.0,
              is_servable: bool = True, audit_share: float = 0.0) -> None:
        """Learn from a miss, or (`was_given`) from an audited hit that stands for `n_audits` audits, each of which stands
        for 1 / audit_share hits (0: the present share). Takes 0.3 ms.
        """
        config = self.config
        label = Label(features, is_right, n_audits / (audit_share or config.audit) if was_given else 1.0, is_servable)
        if len(self._labels) < config.max_labels:
            self._labels.append(label)
        else:
            self._labels[self._oldest] = label
            self._oldest = (self._oldest + 1) % config.max_labels
        self.n_labels += 1
        if was_given:
            self._audits.append(not is_right)
            if self._audit_test.record_audit(is_wrong=not is_right):
                self.restart()
                return
        self._advance_round()

    def estimate_hits(self) -> CalibrationEstimate | None:
        """Hits and error at the threshold, served or in shadow. None: there is no threshold yet."""
        if self._place is None:
            return None
        found = self._proven.bins.estimate(self._place)
        return found._replace(high=min(1.0, found.high / max(1e-9, 1.0 - self.miss_share)))

    def audit_counts(self) -> tuple[int, int]:
        """The number of wrong answers in the last audits, and the number of these audits."""
        return sum(self._audits), len(self._audits)

    def _advance_round(self) -> None:
        """Process PACE labels; at the end of a round, use its model and threshold and begin the next round."""
        running = self._round
        for place in range(running.at, min(running.at + PACE, running.n)):
            running.observe(self._labels[place])
        if running.at < running.n:
            return
        if running.n:
            self._proven = running
            is_proven = running.is_fitted and running.bins.is_mixed
            bound = self.config.max_error * (1.0 - self.miss_share)
            self._place = running.bins.threshold(bound, self._confidence) if is_proven else None
        if running.n >= LEAST_LABELS and running.bins.is_mixed:
            self._round = _Round(running.next_model(), len(self._labels), is_fitted=True)
        else:
            self._round = _Round(running.model, len(self._labels))

    def restart(self) -> None:
        """Drop all labels but the last ones, and the threshold; keep the model."""
        self.n_drifted += 1
        in_order = self._labels[self._oldest:] + self._labels[:self._oldest]
        self._labels = in_order[-N_RETAINED:]
        self._oldest = 0
        self.n_labels = len(self._labels)
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


def _solve(rows: list[list[float]]) -> list[float]:
    """Solve A x = b by elimination; `rows` are those of A, with b as the last column. A is positive definite."""
    size = len(rows)
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            if factor:
                rows[k] = [lower_cell - factor * upper_cell for lower_cell, upper_cell in zip(rows[k], rows[i], strict=True)]
    found = [0.0] * size
    for i in range(size - 1, -1, -1):
        found[i] = (rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return found
