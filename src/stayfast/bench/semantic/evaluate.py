"""All passes over one file, and what came out of them, as a record."""

from collections.abc import Callable, Sequence

import msgspec

from stayfast.bench.semantic.online import Floats, Passed, Share, in_hindsight, one_pass
from stayfast.bench.semantic.questions import Questions
from stayfast.policy.calibrate import CalibrateConfig, Calibrator
from stayfast.policy.eligible import EligibleConfig
from stayfast.policy.similarity import N_FEATURES, Fixed

MAX_ERRORS = (0.005, 0.01, 0.02, 0.05, 0.1)
THRESHOLDS = (0.8, 0.85, 0.9, 0.92, 0.95)
DEFAULT = CalibrateConfig()
_ALWAYS_SHADOW = 100_000  # labels before anything is given


class Row(msgspec.Struct, frozen=True):
    """One pass: of a calibrated cache (`max_error`), or of one with a fixed threshold. Shares are 0 to 1."""

    max_error: float | None
    threshold: float | None
    hit_rate: float
    error: float  # per hit
    second_half_hit_rate: float
    second_half_error: float
    n_hits: int
    n_wrong: int
    n_kept: int
    why: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether what was promised was kept; a fixed threshold promises nothing."""
        return self.max_error is None or self.error <= self.max_error


class Evaluation(msgspec.Struct, frozen=True):
    """A file's. Curves: (error per hit, hit rate) of one who had known all labels before, by cosine and by all features."""

    name: str
    embedder: str
    seed: int
    n_questions: int
    n_answers: int
    n_torn: int
    calibrated: list[Row]
    fixed: list[Row]
    by_cosine: list[tuple[float, float]]
    by_features: list[tuple[float, float]]
    min_labels: int = DEFAULT.min_labels  # before a calibrated cache gives anything


def evaluate(questions: Questions, vectors: Floats, eligible: EligibleConfig, *, name: str, embedder: str, seed: int,
             max_errors: Sequence[float] = MAX_ERRORS, min_labels: int = DEFAULT.min_labels,
             say: Callable[[str], None] = lambda _: None) -> Evaluation:
    """Pass by pass, in the same order. vectors: float32 [questions, dimensions], of length 1. A minute for 10,000."""
    calibrated, fixed = [], []
    for max_error in max_errors:
        say(f"at most {max_error:.3g} wrong")
        rule = Calibrator(CalibrateConfig(max_error=max_error, min_labels=min_labels), N_FEATURES)
        calibrated.append(_row(one_pass(questions, vectors, rule, eligible, seed=seed), max_error, None))
    for threshold in THRESHOLDS:
        say(f"a fixed threshold of {threshold:g}")
        fixed.append(_row(one_pass(questions, vectors, Fixed(threshold), eligible, seed=seed), None, threshold))
    say("in hindsight")
    shadow = Calibrator(CalibrateConfig(min_labels=_ALWAYS_SHADOW, n_kept=_ALWAYS_SHADOW), N_FEATURES)
    seen = one_pass(questions, vectors, shadow, eligible, seed=seed).seen
    n = len(questions.texts)
    return Evaluation(name, embedder, seed, n, len(set(questions.answers)), questions.n_torn, calibrated, fixed,
                      in_hindsight([(one.features[0], one.is_right) for one in seen], n),
                      in_hindsight([(shadow.p(one.features), one.is_right) for one in seen], n), min_labels)


def _row(passed: Passed, max_error: float | None, threshold: float | None) -> Row:
    whole: Share = passed.whole
    return Row(max_error, threshold, whole.hit_rate, whole.error, passed.second.hit_rate, passed.second.error, whole.n_hits,
               whole.n_wrong, passed.n_kept, dict(passed.why.most_common()))
