"""How sure it is that a smaller tier is enough: P(enough | question), from outcomes that were compared.

Problem: a request may go to a small model only if the share of its answers that are not enough stays below a bound. Rule:

    label      one question that both tiers answered: enough if the small tier's answer passed its checks and equals the
               large tier's. An answer that failed a check is a label without the comparison
    score      of a question: the weighted share of enough among its k nearest labelled questions,
                   s = (sum w y + PRIOR b) / (sum w + PRIOR),   w = exp(SHARPNESS (cosine - nearest cosine)),
               where b is the share of enough among all labels. It uses no feature of the prompt but its vector. In a cascade
               the score is 1 for all answers that passed the checks
    proof      each label has the score that its question had before the label was known. The labels are put into bins by it.
               The threshold is the smallest bin from which on the share of labels that were not enough has an upper bound of
               at most 1 - at_least:
                   n_eff = (sum w)^2 / sum w^2,   upper(sum w wrong / sum w n_eff, n_eff) <= 1 - at_least
               w is 1 / p of a label that was drawn with the probability p; the labels of a bin share their sum
               equally, which changes no mean of equal scores. Without such a bin, or below min_labels, there is
               no opinion, and the large tier answers
    choices    the threshold is chosen again after each label. `confidence` pays for it: 1 - 0.05 / n, if the labels can
               double n times between min_labels and max_labels (as in policy/cache/calibration.py)
    judge      if the comparison takes a share miss_share of different answers for equal ones, the bound is
               (1 - at_least) (1 - miss_share)
    drift      a share `audit` of what the small tier answers is compared for as long as it answers. If the test of these
               audits rejects (`AuditTest`, valid at any time), all labels are dropped. If results of audits do not come
               (`TestedHits`), there is no opinion until they do

So an opinion is a statement about requests of the same score, not about one request. A biased score costs opinions, not
wrong answers: the proof uses outcomes alone.
Source: Cover, Hart, "Nearest neighbor pattern classification" (1967); Clopper, Pearson (1934); Kish (1965) for n_eff;
Horvitz, Thompson (1952) for the weights; Shin, Ramdas, Rinaldo (2022) for the test.
When wrong: the labels of a tenant with changing traffic are no sample of its next requests; the test of audits needs some
wrong answers before it rejects: two dozen audits if a third of the answers is wrong, and 95 % must be enough.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil, exp, log2
from typing import Final, NamedTuple

from stayfast.policy.cache.calibration import is_at_most, lower_bound
from stayfast.policy.cache.drift import AuditTest, TestedHits
from stayfast.policy.tiers.enough import EnoughConfig

K_NEAREST: Final = 20
SHARPNESS: Final = 20.0
PRIOR: Final = 0.1
N_SCORE_BINS: Final = 50
CASCADE_SCORE: Final = 1.0
ALARM: Final = 1000.0  # audits, on average, before a tier at the bound is rejected by chance


class LabelledNeighbour(NamedTuple):
    """A labelled question near another one. cosine: -1 to 1."""

    cosine: float
    is_enough: bool


class EnoughOpinion(NamedTuple):
    """A small tier is enough for a request. n_enough of the n labels with such scores were enough. at_least: the lower 95 %
    bound of their share.
    """

    n_enough: int
    n: int
    at_least: float

    def describe(self) -> str:
        """For the record of a request: `212 of 214 like it, at least 0.97`."""
        return f"{self.n_enough} of {self.n} like it, at least {int(self.at_least * 100) / 100:.2f}"


class _ScoredLabel(NamedTuple):
    place: int
    is_enough: bool
    weight: float


def score_neighbours(found: Sequence[LabelledNeighbour], base: float) -> float:
    """The score of a question, 0 to 1, from its nearest labelled questions. base: share of enough among all labels."""
    if not found:
        return base
    nearest = max(one.cosine for one in found)
    weights = [exp(SHARPNESS * (one.cosine - nearest)) for one in found]
    enough = sum([weight for weight, one in zip(weights, found, strict=True) if one.is_enough])
    return (enough + PRIOR * base) / (sum(weights) + PRIOR)


class TierEvidence:
    """The evidence about one tier of one route, of one tenant. Pure state; a label takes at most 1 ms."""

    def __init__(self, config: EnoughConfig) -> None:
        self.config = config
        self.miss_share = 0.0  # of different answers, how many the comparison takes for equal ones
        self.n_restarts = 0
        doublings = ceil(log2(config.max_labels / config.min_labels)) if config.max_labels > config.min_labels else 1
        self._confidence = 1.0 - 0.05 / max(1, doublings)
        self._labels: deque[_ScoredLabel] = deque()
        self._audits = AuditTest(1.0 - config.at_least, ALARM)
        self._tested = TestedHits()
        self._threshold: int | None = None
        self._opinion: EnoughOpinion | None = None  # about everything from the threshold on
        self._clear_bins()

    def _clear_bins(self) -> None:
        self._n = [0] * N_SCORE_BINS
        self._n_wrong = [0] * N_SCORE_BINS
        self._weights = [0.0] * N_SCORE_BINS

    @property
    def n_labels(self) -> int:
        return len(self._labels)

    @property
    def n_enough(self) -> int:
        return len(self._labels) - sum(self._n_wrong)

    @property
    def base(self) -> float:
        """The share of enough among all labels, with one label of each kind added."""
        return (self.n_enough + 1) / (len(self._labels) + 2)

    @property
    def is_proven(self) -> bool:
        """Whether there are scores for which the tier is enough."""
        return self._threshold is not None

    def judge(self, score: float, now: float) -> EnoughOpinion | None:
        """The opinion about a request with this score; None: it is not proven that the tier is enough."""
        if self._threshold is None or _place_of(score) < self._threshold:
            return None
        return None if self._tested.is_untested(self.config.audit, now) else self._opinion

    def note_answered(self, now: float) -> None:
        """The small tier answers a request of a client."""
        self._tested.record_hit(now)

    def record(self, score: float, *, is_enough: bool, p_drawn: float = 1.0, was_given: bool = False) -> bool:
        """Record a label. score: before the label was known. p_drawn: the probability with which it was drawn. was_given:
        the small tier's answer was given to a client, and is audited. Returns whether all labels were dropped.
        """
        if was_given:
            self._tested.record_result()
            if self._audits.record_audit(is_wrong=not is_enough):
                self.restart()
                return True
        self._add(_ScoredLabel(_place_of(score), is_enough, 1.0 / p_drawn))
        while len(self._labels) > self.config.max_labels:
            self._remove(self._labels.popleft())
        self._find_threshold()
        return False

    def restart(self) -> None:
        """Drop all labels, and with them the proof."""
        self.n_restarts += 1
        self._labels.clear()
        self._clear_bins()
        self._threshold = self._opinion = None

    def _add(self, label: _ScoredLabel) -> None:
        self._labels.append(label)
        self._n[label.place] += 1
        self._n_wrong[label.place] += not label.is_enough
        self._weights[label.place] += label.weight

    def _remove(self, label: _ScoredLabel) -> None:
        self._n[label.place] -= 1
        self._n_wrong[label.place] -= not label.is_enough
        self._weights[label.place] = self._weights[label.place] - label.weight if self._n[label.place] else 0.0

    def _find_threshold(self) -> None:
        self._threshold = self._opinion = None
        if len(self._labels) < self.config.min_labels:
            return
        bound = (1.0 - self.config.at_least) * (1.0 - self.miss_share)
        weight = wrong = squares = 0.0
        n = n_wrong = 0
        for place in range(N_SCORE_BINS - 1, -1, -1):
            if not self._n[place]:
                continue
            mean = self._weights[place] / self._n[place]
            weight, wrong = weight + self._weights[place], wrong + mean * self._n_wrong[place]
            squares += mean * self._weights[place]
            n, n_wrong = n + self._n[place], n_wrong + self._n_wrong[place]
            n_eff = weight * weight / squares
            x = wrong / weight * n_eff
            if is_at_most(bound, x, n_eff, self._confidence):
                self._threshold = place
                self._opinion = EnoughOpinion(n - n_wrong, n, lower_bound(n_eff - x, n_eff))

    def __repr__(self) -> str:
        state = "unproven" if self._threshold is None else f"from score {self._threshold / N_SCORE_BINS:.2f}"
        return f"<TierEvidence {state}, {self.n_labels} labels, {self.n_restarts} restarts>"


def _place_of(score: float) -> int:
    return min(N_SCORE_BINS - 1, max(0, int(score * N_SCORE_BINS)))
