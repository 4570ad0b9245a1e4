"""What a semantic cache would answer of a file of questions: one pass a rule, each question asked once, in random order.

    classes   CSV with the columns `text` and `category` (or class, label, intent, answer): same category, same answer
    pairs     CSV with the columns `sentence1`, `sentence2` (or question1, question2) and `label`, 1 where the second may
              have the first one's answer; or JSON, a list of {"origin": ..., "similar": ...}, which all may

Pairs become classes: what a 1 joins has one answer, all else has another. A text that comes again is asked once; the exact
cache would have it.

The cache begins empty and learns what it would learn in a gateway and no more: of a miss, and of an audited hit, whether the
nearest answer would have been right. The judge is the class: two questions of one class have the same answer. An answer is
another one for the cache, though, where none of the neighbours had it. All other figures are kept aside, for the report
alone.
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

from stayfast.policy.cache.answer_clusters import AnswerVotes
from stayfast.policy.cache.calibration import CalibrateConfig, Calibrator
from stayfast.policy.cache.lexical import Wording, wording
from stayfast.policy.cache.similarity import N_FEATURES, N_NEAREST, EligibleConfig, Fixed, judge, why_not
from stayfast.stores.vectors import Vectors

TEXTS = ("text", "question", "query")
CLASSES = ("category", "class", "label", "intent", "answer")
FIRSTS = ("sentence1", "question1", "text1", "origin")
SECONDS = ("sentence2", "question2", "text2", "similar")
LABELS = ("label", "is_duplicate", "same")
_YES_NO = {"1": True, "0": False, "true": True, "false": False}


class Unreadable(Exception):
    """A file is not what it should be. The message says where and what to do, and quotes no question."""


class Questions(NamedTuple):
    """Texts, each once, and the number of each one's answer. n_torn: pairs that a file calls different and the same."""

    texts: list[str]
    answers: list[int]
    n_torn: int = 0


def of_classes(path: Path) -> Questions:
    """Read a file of classes. Raises Unreadable."""
    rows = _rows(path)
    text, answer = _column(path, rows[0], TEXTS), _column(path, rows[0], CLASSES)
    numbers: dict[str, int] = {}
    found: dict[str, int] = {}
    for place, row in enumerate(rows):
        question_text, answer_text = _read_column(path, row, text, place), _read_column(path, row, answer, place)
        found.setdefault(question_text, numbers.setdefault(answer_text, len(numbers)))
    return Questions(list(found), list(found.values()))


def of_pairs(path: Path) -> Questions:
    """Read a file of pairs. Raises Unreadable."""
    pairs = list(_pairs(path))
    parents: dict[str, str] = {}
    for one, other, is_same in pairs:
        one_root, other_root = _root(parents, one), _root(parents, other)
        if is_same and one_root != other_root:
            parents[other_root] = one_root
    roots: dict[str, int] = {}
    answers = [roots.setdefault(_root(parents, text), len(roots)) for text in parents]
    n_torn = sum(not is_same and _root(parents, one) == _root(parents, other) for one, other, is_same in pairs)
    return Questions(list(parents), answers, n_torn)


def _pairs(path: Path) -> Iterable[tuple[str, str, bool]]:
    rows = _rows(path)
    first, second = _column(path, rows[0], FIRSTS), _column(path, rows[0], SECONDS)
    label = None if first == "origin" else _column(path, rows[0], LABELS)
    for place, row in enumerate(rows):
        is_same = True if label is None else _YES_NO.get(_read_column(path, row, label, place).lower())
        if is_same is None:
            raise Unreadable(f"{path}: row {place + 1}: {label} must be 0 or 1")
        yield _read_column(path, row, first, place), _read_column(path, row, second, place), is_same


def _rows(path: Path) -> list[Mapping[str, object]]:
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


def _column(path: Path, row: Mapping[str, object], names: tuple[str, ...]) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        raise Unreadable(f"{path} has no column {names[0]!r} (nor {', '.join(names[1:])})")
    return found


def _read_column(path: Path, row: Mapping[str, object], column: str, place: int) -> str:
    value = row.get(column)
    text = value.strip() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if not text:
        raise Unreadable(f"{path}: row {place + 1}: {column} is empty")
    return text


def _root(parents: dict[str, str], text: str) -> str:
    """The text that stands for all that have its answer."""
    root = parents.setdefault(text, text)
    while parents[root] != root:
        parents[root] = root = parents[parents[root]]
    return root


Floats = NDArray[np.float32]
SCOPE = b"questions"
TTL_S = 3600.0


class AnsweredShare(NamedTuple):
    """Of so many questions, how many were answered from the cache, and how many of those wrongly."""

    n: int
    n_hits: int
    n_wrong: int

    @property
    def hit_rate(self) -> float:
        return self.n_hits / self.n if self.n else 0.0

    @property
    def error(self) -> float:
        """Wrong ones of the hits; 0 without hits."""
        return self.n_wrong / self.n_hits if self.n_hits else 0.0


class JudgedQuestion(NamedTuple):
    """What is known of a judged question in hindsight: its features, and whether the answer would have been right."""

    features: tuple[float, ...]
    is_right: bool


@dataclass(slots=True)
class Passed:
    """One pass. `second`: its second half, when the cache has learned. `why`: what became of each question, counted."""

    whole: AnsweredShare
    second: AnsweredShare
    n_stored: int
    why: Counter[str] = field(default_factory=Counter)
    seen: list[JudgedQuestion] = field(default_factory=list)


class Online:
    """One pass's cache. ttl_s: how long its answers are kept, which is what volatile questions are judged by."""

    def __init__(self, questions: Questions, vectors: Floats, rule: Calibrator | Fixed, eligible: EligibleConfig,
                 ttl_s: float) -> None:
        self._texts, self._answers, _ = questions
        self._wordings = [wording(text) for text in questions.texts]
        self._vectors = vectors
        self._rule = rule
        self._eligible = eligible
        self._ttl_s = ttl_s
        self._index = Vectors(vectors.shape[1])
        self._votes = AnswerVotes()
        self._true: list[int] = []  # the class of each of the cache's answers
        self.why: Counter[str] = Counter()
        self.seen: list[JudgedQuestion] = []

    @property
    def n_stored(self) -> int:
        return len(self._votes)

    def ask(self, number: int, rng: Random) -> bool | None:
        """One question. True, False: answered from the cache, rightly or wrongly; None: not."""
        text, read = self._texts[number], self._wordings[number]
        why = why_not(text, read, self._eligible, self._ttl_s)
        if why:
            self.why[why] += 1
            return None
        near = self._index.nearest(SCOPE, self._vectors[number], N_NEAREST)
        judged = judge(read, self._votes.neighbours(near), self._votes, self._rule)
        self.why[judged.why or "hit"] += 1
        is_right = judged.nearest is not None and self._true[judged.nearest.answer] == self._answers[number]
        if judged.features:
            self.seen.append(JudgedQuestion(judged.features, is_right))
        rule, is_hit = self._rule, not judged.why
        if not is_hit or (isinstance(rule, Calibrator) and rng.random() < rule.config.audit):
            if judged.nearest is not None and judged.features and isinstance(rule, Calibrator):
                rule.learn(judged.features, is_right=is_right, was_given=is_hit)
                self._votes.judged(judged.nearest.answer, is_right=is_right, was_given=is_hit)
            self._keep(number, read, [key for key, _ in near])
        return is_right if is_hit else None

    def _keep(self, number: int, read: Wording, near: Sequence[int]) -> None:
        """A phrasing of a neighbour's answer where the judge finds them the same, else of a new one."""
        true = self._answers[number]
        neighbours = self._votes.neighbours((key, 0.0) for key in near)
        answer = next((one.answer for one in neighbours if self._true[one.answer] == true), None)
        if answer is None:
            answer = len(self._true)
            self._true.append(true)
        self._index.add(SCOPE, number, self._vectors[number])
        gone = self._votes.add(number, answer, read)
        if gone is not None:
            self._index.remove(SCOPE, gone)


def one_pass(questions: Questions, vectors: Floats, rule: Calibrator | Fixed, eligible: EligibleConfig, *, seed: int,
             ttl_s: float = TTL_S) -> Passed:
    """Ask all of them, in an order by the seed. vectors: float32 [questions, dimensions], of length 1."""
    rng = Random(seed)
    order = list(range(len(questions.texts)))
    rng.shuffle(order)
    cache = Online(questions, vectors, rule, eligible, ttl_s)
    came = [cache.ask(number, rng) for number in order]
    return Passed(_share(came), _share(came[len(came) // 2:]), cache.n_stored, cache.why, cache.seen)


def _share(came: Sequence[bool | None]) -> AnsweredShare:
    hits = [is_right for is_right in came if is_right is not None]
    return AnsweredShare(len(came), len(hits), hits.count(False))


def in_hindsight(seen: Sequence[tuple[float, bool]], n: int, most: int = 200) -> list[tuple[float, float]]:
    """(wrong ones of the hits, hits of n) at falling thresholds of a score: what one who knew it all would get."""
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
_ALWAYS_SHADOW = 100_000  # labels before anything is given


class EvaluationRow(msgspec.Struct, frozen=True):
    """One pass: of a calibrated cache (`max_error`), or of one with a fixed threshold. Shares are 0 to 1."""

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
    calibrated: list[EvaluationRow]
    fixed: list[EvaluationRow]
    by_cosine: list[tuple[float, float]]
    by_features: list[tuple[float, float]]
    min_labels: int = DEFAULT.min_labels  # before a calibrated cache gives anything


def evaluate(questions: Questions, vectors: Floats, eligible: EligibleConfig, *, name: str, embedder: str, seed: int,
             max_errors: Sequence[float] = MAX_ERRORS, min_labels: int = DEFAULT.min_labels,
             report_progress: Callable[[str], None] = lambda _: None) -> Evaluation:
    """Pass by pass, in the same order. vectors: float32 [questions, dimensions], of length 1. A minute for 10,000."""
    calibrated, fixed = [], []
    for max_error in max_errors:
        report_progress(f"at most {max_error:.3g} wrong")
        rule = Calibrator(CalibrateConfig(max_error=max_error, min_labels=min_labels), N_FEATURES)
        calibrated.append(_row(one_pass(questions, vectors, rule, eligible, seed=seed), max_error, None))
    for threshold in THRESHOLDS:
        report_progress(f"a fixed threshold of {threshold:g}")
        fixed.append(_row(one_pass(questions, vectors, Fixed(threshold), eligible, seed=seed), None, threshold))
    report_progress("in hindsight")
    shadow = Calibrator(CalibrateConfig(min_labels=_ALWAYS_SHADOW, n_kept=_ALWAYS_SHADOW), N_FEATURES)
    seen = one_pass(questions, vectors, shadow, eligible, seed=seed).seen
    n = len(questions.texts)
    return Evaluation(name, embedder, seed, n, len(set(questions.answers)), questions.n_torn, calibrated, fixed,
                      in_hindsight([(one.features[0], one.is_right) for one in seen], n),
                      in_hindsight([(shadow.p(one.features), one.is_right) for one in seen], n), min_labels)


def _row(passed: Passed, max_error: float | None, threshold: float | None) -> EvaluationRow:
    whole: AnsweredShare = passed.whole
    return EvaluationRow(max_error, threshold, whole.hit_rate, whole.error, passed.second.hit_rate, passed.second.error,
                         whole.n_hits,
               whole.n_wrong, passed.n_stored, dict(passed.why.most_common()))
