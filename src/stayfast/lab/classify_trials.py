"""The measurement of the claim `classify`. Needs numpy, tokenizers and the weights of both embedders."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time
from typing import Final

import numpy as np

from stayfast.lab.claims.classify import CASCADE_RIGHT, MAX_ERROR, N_PARTS, P99_MS, STATIC_MS, STATIC_RIGHT
from stayfast.lab.classify_eval import Examples, Floats, UnreadableExamples, judge_examples, read_examples
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, NeedsData, Sense
from stayfast.policy.classify.calibration import calibration_error
from stayfast.policy.classify.head import Classification
from stayfast.policy.classify.training import split_rows, train_classifier
from stayfast.settings import read_environment
from stayfast.settings.environment import cache_directory
from stayfast.stores.classifier_file import StoredClassifier, TrainedOn
from stayfast.stores.embedder import EmbedderConfig, NoEmbedder
from stayfast.stores.onnx_embedder import OnnxEncoder, load_encoder
from stayfast.stores.static_embedder import StaticEmbedder, load_static_embedder

N_TIMED: Final = 2_000


def measure_classifiers(conditions: Conditions, file: Path, n_parts: int) -> ClaimResult:
    """n_parts: how many of N_PARTS are answered. Raises NeedsData."""
    try:
        examples = read_examples(file)
        static = load_static_embedder()
        encoder = load_encoder(EmbedderConfig(), str(cache_directory(read_environment())))
    except (UnreadableExamples, NoEmbedder, csv.Error) as why:
        raise NeedsData(str(why)) from None
    conditions.report_progress(f"vectors of {len(examples.texts):,} questions")
    vectors = (static.embed(examples.texts), encoder.embed_all(examples.texts))
    parts = split_rows(examples.rows, N_PARTS, conditions.seed)
    alone, both = _Tally(), _Tally()
    classifier = None
    for part in range(n_parts):
        for tally, used in ((alone, vectors[:1]), (both, vectors)):
            conditions.report_progress(f"part {part + 1} of {n_parts}, {len(used)} embedders")
            found = _train(examples, used, parts != part, conditions.seed)
            tally.add(judge_examples(found, [each[parts == part] for each in used]),
                      [examples.labels[row] for row in examples.rows[parts == part].tolist()])
            classifier = found
    assert classifier is not None
    texts = [text for text, part in zip(examples.texts, parts.tolist(), strict=True) if part == 0][:N_TIMED]
    fast_s = _time_texts(lambda text: _answer(classifier, static, None, text), texts)
    slow_s = _time_texts(lambda text: _answer(classifier, static, encoder, text), texts[:N_TIMED // 4])
    return ClaimResult((
        alone.right_figure("static: right", STATIC_RIGHT), both.right_figure("cascade: right", CASCADE_RIGHT),
        alone.error_figure("static: calibration error"), both.error_figure("cascade: calibration error"),
        Figure.exact("static: CPU of a question, mean", float(np.mean(fast_s)) * 1e3, "ms", STATIC_MS),
        Figure.quantile_s("static: CPU of a question, p99", fast_s, 0.99, P99_MS / 1e3),
        Figure.percent("cascade: questions for the second embedder", both.share_mixed),
        Figure.exact("cascade: CPU of a question, mean", float(np.mean(slow_s)) * 1e3, "ms"),
        Figure.quantile_s("cascade: CPU of a question, p99", slow_s, 0.99)),
        (f"{both.n:,} questions, each answered by a classifier that had not seen it; seed {conditions.seed}.",
         f"The embedders are {static.id} and {encoder.id}."))


class _Tally:
    """Answers and whether they were right."""

    def __init__(self) -> None:
        self._judged: list[tuple[float, bool]] = []
        self._n_mixed = 0

    def add(self, answers: Sequence[Classification], labels: Sequence[str]) -> None:
        self._judged += [(answer.p, answer.nearest == label) for answer, label in zip(answers, labels, strict=True)]
        self._n_mixed += sum(answer.is_mixed for answer in answers)

    @property
    def n(self) -> int:
        return len(self._judged)

    @property
    def share_mixed(self) -> float:
        return self._n_mixed / self.n

    def right_figure(self, name: str, goal: float) -> Figure:
        return Figure.share(name, sum(is_right for _, is_right in self._judged), self.n, goal, Sense.AT_LEAST)

    def error_figure(self, name: str) -> Figure:
        return Figure.exact(name, calibration_error(self._judged) * 100, "%", MAX_ERROR * 100)


def _train(examples: Examples, vectors: Sequence[Floats], seen: np.ndarray, seed: int) -> StoredClassifier:
    trained = train_classifier([each[seen] for each in vectors], examples.rows[seen], examples.labels, seed=seed)
    return StoredClassifier(trained.heads, trained.rule, ("static", "encoder")[:len(vectors)],
                            TrainedOn(examples.digest, int(seen.sum()), seed))


def _answer(classifier: StoredClassifier, static: StaticEmbedder, encoder: OnnxEncoder | None, text: str) -> None:
    """As a gateway answers one text. encoder: None: the first head decides."""
    rule = classifier.rule
    found = rule.judge(classifier.heads[0].probabilities(static.embed([text])[0]))
    if encoder is not None and rule.needs_second(found):
        rule.mix(found.probabilities, classifier.heads[1].probabilities(encoder.encode([encoder.tokenize(text)[0]])[0]))


def _time_texts(answer: Callable[[str], None], texts: Sequence[str]) -> list[float]:
    """Seconds of CPU of this thread for each text, after some that are not counted."""
    for text in texts[:100]:
        answer(text)
    found = []
    for text in texts:
        began = thread_time()
        answer(text)
        found.append(thread_time() - began)
    return found
