"""Simulates a semantic cache on a file of questions: one pass for each rule, each question once, in random order.

    classes   CSV with the columns `text` and `category` (or class, label, intent, answer): same category, same answer
    pairs     CSV with the columns `sentence1`, `sentence2` (or question1, question2) and `label`: 1 if the answer of the
              first may serve the second; or JSON, a list of {"origin": ..., "similar": ...}, where it always may

Pairs become classes: questions joined by a label 1 share an answer, all others differ. Repeated texts are used once, since
the exact cache would answer the repeats.

The cache starts empty and learns exactly what a gateway's would: for a miss and for an audited hit, whether the nearest
answer would have been right. The class is the judge: two questions of one class have the same answer. The cache stores a new
answer if none of the neighbours has the right one. All other figures are for the report only.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stayfast.pipeline.cache.labels import LabelRecord, Learning
from stayfast.policy.cache.answer_clusters import USUAL_SPREAD, AnswerVotes, Neighbour
from stayfast.policy.cache.calibration import CalibrateConfig
from stayfast.policy.cache.eligibility import EligibleConfig, exclusion_reason
from stayfast.policy.cache.english import LEXICONS
from stayfast.policy.cache.lexical import Wording, parse_wording
from stayfast.policy.cache.similarity import N_NEAREST, FixedThreshold, judge_question
from stayfast.stores.vectors import Vectors

TEXTS = ("text", "question", "query")
CLASSES = ("category", "class", "label", "intent", "answer")
FIRSTS = ("sentence1", "question1", "text1", "origin")
SECONDS = ("sentence2", "question2", "text2", "similar")
LABELS = ("label", "is_duplicate", "same")
_YES_NO = {"1": True, "0": False, "true": True, "false": False}


class Unreadable(Exception):
    """A file is malformed. The message says where and how to correct it, and quotes no question."""


class Questions(NamedTuple):
    """Unique texts, and the number of each text's answer. n_torn: pairs labelled different that other pairs join."""

    texts: list[str]
    answers: list[int]
    n_torn: int = 0


def of_classes(path: Path) -> Questions:
    """Read a file of classes. Raises Unreadable."""
    rows = _read_rows(path)
    text, answer = _find_column(path, rows[0], TEXTS), _find_column(path, rows[0], CLASSES)
    numbers: dict[str, int] = {}
    found: dict[str, int] = {}
    for place, row in enumerate(rows):
        question_text, answer_text = _read_cell(path, row, text, place), _read_cell(path, row, answer, place)
        found.setdefault(question_text, numbers.setdefault(answer_text, len(numbers)))
    return Questions(list(found), list(found.values()))


def of_pairs(path: Path) -> Questions:
    """Read a file of pairs. Raises Unreadable."""
    pairs = list(_read_pairs(path))
    parents: dict[str, str] = {}
    for first, second, is_same in pairs:
        root, other_root = _find_root(parents, first), _find_root(parents, second)
        if is_same and root != other_root:
            parents[other_root] = root
    roots: dict[str, int] = {}
    answers = [roots.setdefault(_find_root(parents, text), len(roots)) for text in parents]
    n_torn = sum(not is_same and _find_root(parents, first) == _find_root(parents, second)
                 for first, second, is_same in pairs)
    return Questions(list(parents), answers, n_torn)


def _read_pairs(path: Path) -> Iterable[tuple[str, str, bool]]:
    rows = _read_rows(path)
    first, second = _find_column(path, rows[0], FIRSTS), _find_column(path, rows[0], SECONDS)
    label = None if first == "origin" else _find_column(path, rows[0], LABELS)
    for place, row in enumerate(rows):
        is_same = True if label is None else _YES_NO.get(_read_cell(path, row, label, place).lower())
        if is_same is None:
            raise Unreadable(f"{path}: row {place + 1}: {label} must be 0 or 1")
        yield _read_cell(path, row, first, place), _read_cell(path, row, second, place), is_same


def _read_rows(path: Path) -> list[Mapping[str, object]]:
    try:
        text = path.read_text("utf-8-sig")
        rows: list[Mapping[str, object]] = (msgspec.json.decode(text, type=list[dict[str, object]]) if path.suffix == ".json"
                                            else list(csv.DictReader(io.StringIO(text, newline=""), restval="")))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error, msgspec.MsgspecError) as error:
        raise Unreadable(f"{path} is no {'JSON list of objects' if path.suffix == '.json' else 'CSV in UTF-8'}: "
                         f"{type(error).__name__}") from None
    if not rows:
        raise Unreadable(f"{path} has no rows")
    return rows


def _find_column(path: Path, row: Mapping[str, object], names: tuple[str, ...]) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        raise Unreadable(f"{path} has no column {names[0]!r} (nor {', '.join(names[1:])})")
    return found


def _read_cell(path: Path, row: Mapping[str, object], column: str, place: int) -> str:
    value = row.get(column)
    text = value.strip() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if not text:
        raise Unreadable(f"{path}: row {place + 1}: {column} is empty")
    return text


def _find_root(parents: dict[str, str], text: str) -> str:
    """The text that represents all texts with the same answer (union-find)."""
    root = parents.setdefault(text, text)
    while parents[root] != root:
        parents[root] = root = parents[parents[root]]
    return root


Floats = NDArray[np.float32]
SCOPE = b"questions"
TTL_S = 3600.0


class AnsweredShare(NamedTuple):
    """`n` questions, the hits among them, and the wrong ones among the hits."""

    n: int
    n_hits: int
    n_wrong: int

    @property
    def hit_rate(self) -> float:
        return self.n_hits / self.n if self.n else 0.0

    @property
    def error(self) -> float:
        """Wrong hits as a share of the hits; 0 without hits."""
        return self.n_wrong / self.n_hits if self.n_hits else 0.0


class JudgedQuestion(NamedTuple):
    """The features of a question that had a neighbour, and whether the neighbour's answer was right."""

    features: tuple[float, ...]
    is_right: bool


@dataclass(slots=True)
class Passed:
    """One pass. `second`: its second half, after the cache has learned. `why`: counts of outcomes."""

    whole: AnsweredShare
    second: AnsweredShare
    n_stored: int
    learning: Learning  # a fixed threshold learns nothing
    why: Counter[str] = field(default_factory=Counter)
    seen: list[JudgedQuestion] = field(default_factory=list)


class Online:
    """The cache of one pass. ttl_s: lifetime of its answers, which decides whether volatile questions are eligible."""

    def __init__(self, questions: Questions, vectors: Floats, rule: CalibrateConfig | FixedThreshold,
                 eligible: EligibleConfig, ttl_s: float) -> None:
        self._texts, self._answers, _ = questions
        self._wordings = [parse_wording(text) for text in questions.texts]
        self._vectors = vectors
        self._fixed = rule if isinstance(rule, FixedThreshold) else None
        self._audit_share = 0.0 if isinstance(rule, FixedThreshold) else rule.audit
        self.learning = Learning(CalibrateConfig() if isinstance(rule, FixedThreshold) else rule)
        self._n_served = 0  # questions so far, which come one a second
        self._eligible = eligible
        self._ttl_s = ttl_s
        self._index = Vectors(vectors.shape[1])
        self._votes = AnswerVotes(fillers=LEXICONS[eligible.language].fillers)
        self._true: list[int] = []  # the class of each stored answer
        self.why: Counter[str] = Counter()
        self.seen: list[JudgedQuestion] = []

    @property
    def n_stored(self) -> int:
        return len(self._votes)

    def serve_question(self, number: int, rng: Random) -> bool | None:
        """Look up one question. True, False: a right or wrong hit; None: no hit."""
        text, read = self._texts[number], self._wordings[number]
        why = exclusion_reason(text, read, self._eligible, self._ttl_s)
        if why:
            self.why[why] += 1
            return None
        self._n_served += 1
        neighbours = self._votes.find_neighbours(self._index.nearest(SCOPE, self._vectors[number], N_NEAREST))
        judged = judge_question(read, neighbours, self._votes, self._fixed or self.learning.rule_of(None))
        why = judged.why
        if not why and self._fixed is None:
            why = self.learning.reject_reason(None, SCOPE, self._n_served)
        self.why[why or "hit"] += 1
        is_right = judged.nearest is not None and self._true[judged.nearest.answer] == self._answers[number]
        if judged.features:
            self.seen.append(JudgedQuestion(judged.features, is_right))
        if not why:
            self.learning.record_hit(None, self._n_served)
        if why or rng.random() < self._audit_share:
            if self._fixed is None and judged.features and judged.nearest is not None:
                self.learning.learn(LabelRecord(judged.features, is_right, not why, None, SCOPE, judged.nearest.answer,
                                                is_servable=judged.is_servable), None)
                self._votes.record_judgement(judged.nearest.answer, is_right=is_right, was_given=not why)
            self._store(number, read, neighbours)
        return None if why else is_right

    def _store(self, number: int, read: Wording, neighbours: Sequence[Neighbour]) -> None:
        """Store the question as a phrasing of a neighbour's answer if their classes agree, else of a new answer."""
        true = self._answers[number]
        known = next((neighbour for neighbour in neighbours if self._true[neighbour.answer] == true), None)
        if known is None:
            answer, spread = len(self._true), USUAL_SPREAD
            self._true.append(true)
        else:
            answer, spread = known.answer, known.cosine
        self._index.add(SCOPE, number, self._vectors[number])
        evicted = self._votes.add(number, answer, read, spread)
        if evicted is not None:
            self._index.remove(SCOPE, evicted)


def one_pass(questions: Questions, vectors: Floats, rule: CalibrateConfig | FixedThreshold, eligible: EligibleConfig, *,
             seed: int, ttl_s: float = TTL_S) -> Passed:
    """Ask all questions in an order by the seed. vectors: float32 [questions, dimensions], of length 1."""
    rng = Random(seed)
    order = list(range(len(questions.texts)))
    rng.shuffle(order)
    cache = Online(questions, vectors, rule, eligible, ttl_s)
    hits = [cache.serve_question(number, rng) for number in order]
    return Passed(_count_hits(hits), _count_hits(hits[len(hits) // 2:]), cache.n_stored, cache.learning,
                  cache.why, cache.seen)


def _count_hits(outcomes: Sequence[bool | None]) -> AnsweredShare:
    return AnsweredShare(len(outcomes), len(outcomes) - outcomes.count(None), outcomes.count(False))


def in_hindsight(seen: Sequence[tuple[float, bool]], n: int, most: int = 200) -> list[tuple[float, float]]:
    """(error per hit, hit rate of n questions) at falling thresholds of a score, with all labels known."""
    ordered = sorted(seen, reverse=True)
    points, n_wrong = [], 0
    step = max(1, len(ordered) // most)
    for place, (_, is_right) in enumerate(ordered, 1):
        n_wrong += not is_right
        if place % step == 0 or place == len(ordered):
            points.append((n_wrong / place, place / n))
    return points


MAX_ERRORS = (0.005, 0.01, 0.02, 0.05, 0.1)
THRESHOLDS = (0.8, 0.85, 0.9, 0.92, 0.95)
DEFAULT = CalibrateConfig()
_ALWAYS_SHADOW = 100_000  # labels before the first answer


class EvaluationRow(msgspec.Struct, frozen=True):
    """One pass, of a calibrated cache (`max_error`) or of one with a fixed threshold. Shares are 0 to 1."""

    max_error: float | None
    threshold: float | None
    hit_rate: float
    error: float  # per hit
    second_half_hit_rate: float
    second_half_error: float
    n_hits: int
    n_wrong: int
    n_stored: int
    why: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether the error is within its bound; true for a fixed threshold, which has none."""
        return self.max_error is None or self.error <= self.max_error


class Evaluation(msgspec.Struct, frozen=True):
    """The result for a file. Curves: (error per hit, hit rate) with all labels known, by cosine and by all features."""

    name: str
    embedder: str
    seed: int
    n_questions: int
    n_answers: int
    n_torn: int
    calibrated: list[EvaluationRow]
    fixed: list[EvaluationRow]
    by_cosine: list[tuple[float, float]]
    by_features: list[tuple[float, float]]
    min_labels: int = DEFAULT.min_labels  # before the first answer of a calibrated cache


def evaluate(questions: Questions, vectors: Floats, eligible: EligibleConfig, *, name: str, embedder: str, seed: int,
             max_errors: Sequence[float] = MAX_ERRORS, min_labels: int = DEFAULT.min_labels,
             report_progress: Callable[[str], None] = lambda _: None) -> Evaluation:
    """Run a pass for each rule, all in the same order. vectors: float32 [questions, dimensions], of length 1. Takes a minute
    for 10,000 questions."""
    calibrated, fixed = [], []
    for max_error in max_errors:
        report_progress(f"at most {max_error:.3g} wrong")
        rule = CalibrateConfig(max_error=max_error, min_labels=min_labels)
        calibrated.append(_make_row(one_pass(questions, vectors, rule, eligible, seed=seed), max_error, None))
    for threshold in THRESHOLDS:
        report_progress(f"a fixed threshold of {threshold:g}")
        fixed.append(_make_row(one_pass(questions, vectors, FixedThreshold(threshold), eligible, seed=seed), None,
                               threshold))
    report_progress("in hindsight")
    shadow = one_pass(questions, vectors, CalibrateConfig(min_labels=_ALWAYS_SHADOW, max_labels=_ALWAYS_SHADOW), eligible,
                      seed=seed)
    seen, trained = shadow.seen, shadow.learning.rule_of(None)
    n = len(questions.texts)
    return Evaluation(name, embedder, seed, n, len(set(questions.answers)), questions.n_torn, calibrated, fixed,
                      in_hindsight([(question.features[0], question.is_right) for question in seen], n),
                      in_hindsight([(trained.probability(question.features), question.is_right) for question in seen], n),
                      min_labels)


def _make_row(passed: Passed, max_error: float | None, threshold: float | None) -> EvaluationRow:
    whole, second = passed.whole, passed.second
    return EvaluationRow(max_error, threshold, whole.hit_rate, whole.error, second.hit_rate, second.error, whole.n_hits,
                         whole.n_wrong, passed.n_stored, dict(passed.why.most_common()))
