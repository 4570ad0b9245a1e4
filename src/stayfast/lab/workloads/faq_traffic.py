"""Runs the traffic of a bank's help desk (`workloads.faq_streams`) with public data, in virtual time.

    traffic = FaqTraffic(Path("DIR"))
    outcomes = traffic.run_scenario("steady", max_error=0.01, seed=1)
"""

from csv import DictReader
from importlib import import_module
from pathlib import Path
from typing import Any

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.workloads.faq_desk import MODEL, RATE_RPS, FaqOutcomes, QuestionVectors, visit_desk
from stayfast.lab.workloads.faq_streams import CONFUSABLE, UNSEEN, FaqData, draw_stream
from stayfast.lab.workloads.in_memory import load_embedder
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.settings import RouteSettings
from stayfast.stores.embedder import INSTALL_HINT, EmbedderConfig

CLASSES, PAIRS, PARAPHRASES = "banking77_train.csv", "redis_chatgpt_pairs.csv", "gptcache_mock_data.json"
HELP_DESK = EligibleConfig(allow_personal=True, min_content_words=2, volatile_ttl_s=3600.0)


def import_evaluation() -> Any:
    """The module of `stayfast cache eval`. Raises SetUpFailed if a package is not installed."""
    try:
        return import_module("stayfast.lab.semantic_eval.evaluate")
    except ImportError as missing:
        raise SetUpFailed(f"{missing.name} is not installed; {INSTALL_HINT}") from missing


def read_questions(path: Path) -> Any:
    """A file of classes or pairs, by its name. Raises SetUpFailed."""
    evaluation = import_evaluation()
    try:
        return evaluation.of_classes(path) if path.name == CLASSES else evaluation.of_pairs(path)
    except evaluation.Unreadable as error:
        raise SetUpFailed(str(error)) from error


def make_route(max_error: float, **semantic: Any) -> RouteSettings:
    """A route with this bound of the error, and other settings of its semantic cache."""
    config = SemanticConfig(f"{max_error:.2%}", **{"eligible": HELP_DESK, **semantic})
    return RouteSettings((MODEL,), cache=CacheConfig("semantic", semantic=config), hedge=HedgeConfig("off"))


class FaqTraffic:
    """The traffic of a folder with public data."""

    def __init__(self, folder: Path, *, is_quick: bool = False, embedder: EmbedderConfig | None = None) -> None:
        """is_quick: QUICK_TOPICS only, except for steady traffic. Raises SetUpFailed."""
        self.data = read_data(folder)
        self._selected = _select_topics(self.data) if is_quick else self.data
        self.vectors = QuestionVectors(load_embedder(embedder))

    def run_scenario(self, name: str, max_error: float, seed: int, route: RouteSettings | None = None,
                     rate_rps: float = RATE_RPS) -> FaqOutcomes:
        """One kind of traffic, to a gateway with an empty cache. route: instead of `make_route`."""
        visits, refused = draw_stream(name, self.data if name == "steady" else self._selected, seed)
        self.vectors.prepare([visit.text for visit in visits])
        return run_virtual(visit_desk, visits, route or make_route(max_error), self.vectors, seed,
                           rate_rps=rate_rps, refused=refused)


QUICK_TOPICS = 30


def read_data(folder: Path) -> FaqData:
    """The topics of a bank, and questions without an equal from the other files if they are there. Raises SetUpFailed."""
    path = folder / CLASSES
    questions = read_questions(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = list(dict.fromkeys(row["category"].strip() for row in DictReader(file)))
    topics: dict[str, dict[str, None]] = {name: {} for name in names}
    seen = set[str]()
    for text, answer in zip(questions.texts, questions.answers, strict=True):
        joined = " ".join(text.split())
        if joined not in seen:
            seen.add(joined)
            topics[names[answer]][joined] = None
    strays = [text for text in _read_strays(folder) if text not in seen]
    return FaqData({name: list(texts) for name, texts in topics.items()}, strays)


def _select_topics(data: FaqData) -> FaqData:
    """QUICK_TOPICS of the topics, with those of bursts."""
    names = list(data.topics)
    chosen = [name for name in names if name in (*CONFUSABLE, *UNSEEN)]
    chosen = [*[name for name in names if name not in chosen][:QUICK_TOPICS - len(chosen)], *chosen]
    return FaqData({name: data.topics[name] for name in chosen}, data.strays)


def _read_strays(folder: Path) -> list[str]:
    """One question of each answer."""
    strays: dict[str, None] = {}
    for path in (folder / PAIRS, folder / PARAPHRASES):
        if path.exists():
            questions = read_questions(path)
            answers = set[int]()
            for text, answer in zip(questions.texts, questions.answers, strict=True):
                if answer not in answers:
                    answers.add(answer)
                    strays[" ".join(text.split())] = None
    return list(strays)
