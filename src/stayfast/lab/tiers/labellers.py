"""Two tiers that answer a bank's question with its intent (BANKING77): what is right is known for each of them.

    small   logistic regression over static vectors (WordLlama, 256 dims)
    large   logistic regression over MiniLM's vectors (384 dims)

Both are fitted to the same questions, and answer others. Each answer has the probability of its label, which the small tier
gives as the log-probability of its only token.
"""

from collections.abc import Sequence
from csv import DictReader
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.workloads.in_memory import load_embedder
from stayfast.stores.embedder import NoEmbedder

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

CLASSES: Final = "banking77_train.csv"
N_HELD_OUT: Final = 5  # a fifth of the training questions chooses the threshold


class Question(NamedTuple):
    """One question. intent: what is right."""

    text: str
    intent: int


class LabelledAnswer(NamedTuple):
    """One answer. p: its probability, by the classifier itself."""

    intent: int
    p: float


class BankQuestions:
    """The questions of a folder, and their vectors, computed once."""

    def __init__(self, folder: Path) -> None:
        """Raises SetUpFailed."""
        try:
            with (folder / CLASSES).open(encoding="utf-8-sig", newline="") as file:
                rows = {" ".join(row["text"].split()): row["category"].strip() for row in DictReader(file)}
        except (OSError, KeyError) as error:
            raise SetUpFailed(f"{folder / CLASSES}: {error}") from error
        self.intents = sorted(set(rows.values()))
        self.questions = [Question(text, self.intents.index(intent)) for text, intent in rows.items()]
        texts = [question.text for question in self.questions]
        try:
            self.static: Any = import_module("stayfast.stores.static_embedder").load_static_embedder()
        except (ImportError, NoEmbedder) as missing:
            raise SetUpFailed(f"no static embedder: {missing}") from missing
        self.small_vectors: Floats = self.static.embed(texts)
        self.large_vectors: Floats = load_embedder().embed_all(texts)


class TierAnswers(NamedTuple):
    """The answers of both tiers to questions that neither has seen. min_p: probability from which the small tier's answers
    were the large one's in at least `accepted` of the held-out questions.
    """

    questions: Sequence[Question]
    small: Sequence[LabelledAnswer]
    large: Sequence[LabelledAnswer]
    min_p: float

    def share_right(self, answers: Sequence[LabelledAnswer]) -> float:
        return sum(answer.intent == question.intent
                   for answer, question in zip(answers, self.questions, strict=True)) / len(self.questions)


def fit_tiers(bank: BankQuestions, n_train: int, seed: int, *, accepted: float) -> TierAnswers:
    """Fit both tiers to `n_train` of the questions, drawn by `seed`; the others are answered."""
    train, rest, intents = _split(bank, n_train, seed)
    held, others, n = train[:n_train // N_HELD_OUT], train[n_train // N_HELD_OUT:], len(bank.intents)
    min_p = _find_min_p(_answer(bank.small_vectors, intents, others, held, n),
                        _answer(bank.large_vectors, intents, others, held, n), accepted)
    return TierAnswers([bank.questions[row] for row in rest.tolist()], _answer(bank.small_vectors, intents, train, rest, n),
                       _answer(bank.large_vectors, intents, train, rest, n), min_p)


def narrow_small(bank: BankQuestions, tiers: TierAnswers, n_train: int, seed: int, *, n_known: int) -> TierAnswers:
    """The same tiers, but the small one is fitted to the questions about `n_known` of the intents only."""
    numpy = import_module("numpy")
    train, rest, intents = _split(bank, n_train, seed)
    known = numpy.random.default_rng(seed).permutation(len(bank.intents))[:n_known]
    train = train[numpy.isin(intents[train], known)]
    return tiers._replace(small=_answer(bank.small_vectors, intents, train, rest, len(bank.intents)))


def _split(bank: BankQuestions, n_train: int, seed: int) -> tuple[Any, Any, Any]:
    """Rows to fit, rows to answer, and the intents of all."""
    numpy = import_module("numpy")
    order = numpy.random.default_rng(seed).permutation(len(bank.questions))
    return order[:n_train], order[n_train:], numpy.array([question.intent for question in bank.questions])


def _answer(vectors: "Floats", intents: Any, train: Any, rows: Any, n_intents: int) -> list[LabelledAnswer]:
    """The answers of a classifier that is fitted to the rows `train`, to the questions of `rows`."""
    numpy, training = import_module("numpy"), import_module("stayfast.policy.classify.training")
    weights, bias = training.fit_head(vectors[train], intents[train], n_intents)
    scores = vectors[rows] @ weights.T + bias
    scores -= scores.max(axis=1, keepdims=True)
    shares = numpy.exp(scores)
    shares /= shares.sum(axis=1, keepdims=True)
    best = shares.argmax(axis=1)
    return [LabelledAnswer(intent, p) for intent, p in zip(best.tolist(), shares.max(axis=1).tolist(), strict=True)]


def _find_min_p(small: Sequence[LabelledAnswer], large: Sequence[LabelledAnswer], accepted: float) -> float:
    """The smallest probability from which on at least `accepted` of the small tier's answers are the large one's."""
    pairs = sorted(((one.p, one.intent == other.intent) for one, other in zip(small, large, strict=True)), reverse=True)
    found, n_equal = 1.0, 0
    for n, (p, is_equal) in enumerate(pairs, 1):
        n_equal += is_equal
        if n_equal >= accepted * n:
            found = p
    return found
