"""Labelled examples in a file, their vectors, and how well a classifier answers them."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stayfast.policy.classify.calibration import calibration_error
from stayfast.policy.classify.head import UNKNOWN, Classification
from stayfast.settings import read_environment
from stayfast.settings.environment import cache_directory
from stayfast.stores.classifier_file import StoredClassifier
from stayfast.stores.embedder import EmbedderConfig
from stayfast.stores.onnx_embedder import load_encoder
from stayfast.stores.static_embedder import load_static_embedder

TEXTS = ("text", "question", "input", "utterance")
CLASSES = ("label", "category", "class", "intent")
MAX_TEXT_CHARS = 2_000
LEAST_A_LABEL = 2  # rows of each label
_N_WORST = 5
Floats = NDArray[np.float32]


class UnreadableExamples(ValueError):
    """A file of examples that cannot be used; the message names the line."""


class Examples(NamedTuple):
    """rows: index of the label of each text. n_repeated: rows that repeat a text and its label, which are left out."""

    texts: list[str]
    rows: NDArray[np.int64]
    labels: list[str]
    digest: str
    n_repeated: int


class ClassifierFigures(msgspec.Struct, frozen=True):
    """Of rows that the weights have not seen. worst: labels with the smallest share of right answers."""

    n: int
    accuracy: float
    calibration_error: float
    unknown_share: float
    precision: float | None  # of known answers; None: all are unknown
    share_second: float
    worst: list[tuple[str, float, int]]


def read_examples(path: Path) -> Examples:
    """Read a CSV with a text and a label in each row. Raises UnreadableExamples, OSError."""
    data = path.read_bytes()
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        head = [name.strip().lower() for name in next(lines, [])]
        columns = [next((head.index(name) for name in names if name in head), None) for names in (TEXTS, CLASSES)]
        if None in columns:
            raise UnreadableExamples(f"{path}, line 1: the columns are {', '.join(head) or 'missing'}; text and label are "
                                     "needed")
        found: dict[str, str] = {}
        n_repeated = 0
        for cells in lines:
            if not cells:
                continue
            text, label = (_read_cell(path, lines.line_num, cells, column or 0) for column in columns)
            if found.setdefault(text, label) != label:
                raise UnreadableExamples(f"{path}, line {lines.line_num}: the same text has two labels, {found[text]!r} and "
                                         f"{label!r}: keep one")
            n_repeated += 1
    except UnicodeDecodeError as wrong:
        raise UnreadableExamples(f"{path} is not UTF-8: byte {wrong.start}") from None
    except csv.Error as wrong:
        raise UnreadableExamples(f"{path}: {wrong}") from None
    counts = Counter(found.values())
    labels = sorted(counts)
    if len(labels) < 2:
        raise UnreadableExamples(f"{path} has {len(labels)} labels, and a classifier needs at least 2")
    rare = [label for label in labels if counts[label] < LEAST_A_LABEL]
    if rare:
        raise UnreadableExamples(f"{path}: label {rare[0]!r} has one row; each label needs {LEAST_A_LABEL}, better 20")
    number = {label: n for n, label in enumerate(labels)}
    return Examples(list(found), np.array([number[label] for label in found.values()], np.int64), labels,
                    sha256(data).hexdigest(), n_repeated - len(found))


def _read_cell(path: Path, line: int, cells: Sequence[str], column: int) -> str:
    if column >= len(cells):
        raise UnreadableExamples(f"{path}, line {line}: has {len(cells)} columns, and the head has more")
    text = cells[column].strip()
    if not text:
        raise UnreadableExamples(f"{path}, line {line}: a cell is empty")
    if text == UNKNOWN:
        raise UnreadableExamples(f"{path}, line {line}: {UNKNOWN} is the answer for texts without a label, so no label")
    if len(text) > MAX_TEXT_CHARS:
        raise UnreadableExamples(f"{path}, line {line}: {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are read")
    return text


def embed_examples(texts: list[str], embedder: str, model: str = "") -> tuple[tuple[str, ...], list[Floats]]:
    """The ids and vectors of one embedder or both. Raises NoEmbedder."""
    ids: list[str] = []
    vectors: list[Floats] = []
    if embedder in ("static", "both"):
        static = load_static_embedder()
        ids.append(static.id)
        vectors.append(static.embed(texts))
    if embedder in ("minilm", "both"):
        encoder = load_encoder(EmbedderConfig(model=model), str(cache_directory(read_environment())))
        ids.append(encoder.id)
        vectors.append(encoder.embed_all(texts))
    return tuple(ids), vectors


def judge_examples(classifier: StoredClassifier, vectors: Sequence[Floats]) -> list[Classification]:
    """The answer for each row, as the gateway gives it."""
    rule, heads = classifier.rule, classifier.heads
    answers = []
    for n in range(len(vectors[0])):
        found = rule.judge(heads[0].probabilities(vectors[0][n]))
        if len(heads) > 1 and rule.needs_second(found):
            found = rule.mix(found.probabilities, heads[1].probabilities(vectors[1][n]))
        answers.append(found)
    return answers


def measure_answers(answers: Sequence[Classification], labels: Sequence[str]) -> ClassifierFigures:
    """labels: the right one of each answer."""
    judged = [(answer.p, answer.nearest == label) for answer, label in zip(answers, labels, strict=True)]
    known = [is_right for answer, (_, is_right) in zip(answers, judged, strict=True) if answer.label != UNKNOWN]
    totals, right = Counter(labels), Counter(label for label, (_, is_right) in zip(labels, judged, strict=True) if is_right)
    worst = sorted((right[label] / n, label, n) for label, n in totals.items())[:_N_WORST]
    n = len(judged)
    return ClassifierFigures(n, sum(is_right for _, is_right in judged) / n, calibration_error(judged), 1 - len(known) / n,
                       sum(known) / len(known) if known else None, sum(answer.is_mixed for answer in answers) / n,
                       [(label, share, count) for share, label, count in worst])
