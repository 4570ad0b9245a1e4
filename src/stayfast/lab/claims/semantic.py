"""Of the semantic cache's answers, at most `max_error` are wrong.

BANKING77 (10,003 questions of a bank's customers, 77 similar intents) is sent once each, in random order, to a cache that
starts empty. It learns from misses and audits only; the intent decides which answers are right. Then the same with Redis'
pairs, which were made to fool caches. There are several random orders, and the worst one counts. The eligibility is that of
a help desk: questions with "my" are admitted, and answers about "today" hold for an hour.

When wrong: questions in random order, each as often as in the data, are not traffic. `stayfast cache eval` takes your own.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, NeedsData, Sense
from stayfast.lab.workloads.faq_traffic import CLASSES, HELP_DESK, PAIRS, import_evaluation, read_questions
from stayfast.lab.workloads.in_memory import load_embedder
from stayfast.policy.cache.calibration import CalibrateConfig
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.similarity import FixedThreshold
from stayfast.stores.embedder import EmbedderConfig

GOALS = {0.01: 0.12, 0.02: 0.35, 0.05: 0.65}  # min. share of answered questions in the second half, by max_error
PAIRS_MAX_ERROR = 0.05
USUAL_THRESHOLD = 0.92
__all__ = ("CLASSES", "HELP_DESK", "PAIRS", "SemanticClaim", "read_questions")


@dataclass(frozen=True, slots=True)
class SemanticClaim:
    """n of an extent: random orders."""

    full: Extent = Extent(5)
    quick: Extent = Extent(1)
    goals: dict[float, float] = field(default_factory=lambda: GOALS)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)

    name = "semantic"
    statement = ("At most max_error of the semantic cache's answers are wrong, while with 1, 2 and 5 % it answers at least "
                 "12, "
            "35 and 65 % of a bank's questions after learning. Of its answers to adversarial pairs at most 5 % are wrong.")

    async def run(self, conditions: Conditions) -> Finding:
        if conditions.data is None:
            raise NeedsData(f"needs --data DIR, a folder with {CLASSES} and {PAIRS} (sources: docs/proofs.md)")
        passes = _Passes(conditions.data, self.embedder, conditions)
        n_orders = conditions.choose(self.full, self.quick).n
        figures = passes.pair_figures(n_orders)
        for max_error, goal in reversed(self.goals.items()):
            figures = passes.class_figures(max_error, goal, n_orders) + figures
        return Finding(tuple(figures), (f"Orders: {n_orders}. The embedder is {passes.embedder_id}.",))


class _Passes:
    """Runs the two embedded data sets through caches."""

    def __init__(self, folder: Path, config: EmbedderConfig, conditions: Conditions) -> None:
        self._evaluation = import_evaluation()
        self._classes, self._pairs = read_questions(folder / CLASSES), read_questions(folder / PAIRS)
        self._conditions = conditions
        embedder = load_embedder(config)
        self.embedder_id: str = embedder.id
        conditions.report_progress(f"embedding {len(self._classes.texts) + len(self._pairs.texts):,} questions")
        self._class_vectors = embedder.embed_all(self._classes.texts)
        self._pair_vectors = embedder.embed_all(self._pairs.texts)

    def class_figures(self, max_error: float, goal: float, n_orders: int) -> list[Figure]:
        """The error in the worst order, and the share of answered questions in the second half."""
        passed = []
        for number in range(n_orders):
            self._conditions.report_progress(f"at most {max_error * 100:g} % wrong: order {number + 1} of {n_orders}")
            passed.append(self._run(self._classes, self._class_vectors, max_error, number, HELP_DESK))
        errors = [each.whole.error * 100 for each in passed]
        at = f"at {max_error * 100:g} %"
        worst = max(errors)
        return [Figure(f"wrong answers {at}, worst order", worst, "%", max_error * 100, low=min(errors), high=worst),
                Figure.of_rounds(f"answered {at}, second half", [each.second.hit_rate * 100 for each in passed], "%",
                                 goal * 100, Sense.AT_LEAST)]

    def pair_figures(self, n_orders: int) -> list[Figure]:
        """The same of the pairs, and the errors of a usual fixed threshold on both data sets."""
        passed = [self._run(self._pairs, self._pair_vectors, PAIRS_MAX_ERROR, number, EligibleConfig())
                  for number in range(n_orders)]
        seed, rule = self._conditions.seed, FixedThreshold(USUAL_THRESHOLD)
        bank = self._evaluation.one_pass(self._classes, self._class_vectors, rule, HELP_DESK, seed=seed)
        pairs = self._evaluation.one_pass(self._pairs, self._pair_vectors, rule, EligibleConfig(), seed=seed)
        usual = f"wrong answers with a fixed {USUAL_THRESHOLD:g}"
        return [Figure.percent("wrong answers, pairs made to fool it, worst order",
                               max((each.whole.error for each in passed), default=0.0), PAIRS_MAX_ERROR),
                Figure.percent("answered, pairs made to fool it", max(each.whole.hit_rate for each in passed)),
                Figure.percent(f"{usual}, bank", bank.whole.error), Figure.percent(f"{usual}, pairs", pairs.whole.error)]

    def _run(self, questions: Any, vectors: Any, max_error: float, number: int, eligible: EligibleConfig) -> Any:
        rule = CalibrateConfig(max_error=max_error)
        return self._evaluation.one_pass(questions, vectors, rule, eligible, seed=self._conditions.seed + number)
