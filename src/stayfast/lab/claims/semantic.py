"""Whether the semantic cache keeps its promise: of what it answers, at most `max_error` is wrong.

BANKING77 (10,003 questions of a bank's customers, 77 intents so close that people confuse them) is asked once each, in
random order, of a cache that begins empty. It learns from misses and audits alone; the intent is the judge. Then the same
with Redis' pairs made to fool caches. Several orders, each with dice of its own; the error that counts is that of the worst.
The questions of a help desk are let in: "my" is no reason to refuse one, and words like "today" hold for an hour.

When wrong: questions that come in random order, as often as in the data, are no traffic. `stayfast cache eval` takes yours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, NeedsData, Sense, SetUpFailed, figure_of_rounds
from stayfast.policy.cache.calibration import CalibrateConfig, Calibrator
from stayfast.policy.cache.similarity import N_FEATURES, EligibleConfig, Fixed
from stayfast.settings import environment
from stayfast.settings.environment import cache_home
from stayfast.stores.embedder import HOW_TO, EmbedderConfig, NoEmbedder

GOALS = {0.01: 0.12, 0.02: 0.35, 0.05: 0.65}  # what is answered in the second half, at least, by max_error
PAIRS_MAX_ERROR = 0.05
USUAL_THRESHOLD = 0.92
CLASSES, PAIRS = "banking77_train.csv", "redis_chatgpt_pairs.csv"
HELP_DESK = EligibleConfig(allow_personal=True, min_content_words=2, volatile_ttl_s=3600.0)


@dataclass(frozen=True, slots=True)
class SemanticClaim:
    """n of an extent: random orders. embedder: what `stores.onnx_embedder.load` takes, its cache folder aside."""

    full: Extent = Extent(5)
    quick: Extent = Extent(1)
    goals: dict[float, float] = field(default_factory=lambda: GOALS)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)

    name = "semantic"
    says = ("Of the semantic cache's answers at most max_error are wrong, while at 1, 2 and 5 % it answers at least "
            "12, 35 and 65 % of a bank's questions once it has learned; of pairs made to fool it, at most 5 % or none.")

    async def run(self, conditions: Conditions) -> Finding:
        if conditions.data is None:
            raise NeedsData(f"needs --data DIR, a folder with {CLASSES} and {PAIRS} (docs/cache-eval.md says whence)")
        try:
            passes = Passes(conditions.data, self.embedder, conditions)
        except NoEmbedder as missing:
            raise SetUpFailed(str(missing)) from missing
        n_orders = conditions.choose(self.full, self.quick).n
        figures = passes.of_pairs(n_orders)
        for max_error, goal in reversed(self.goals.items()):
            figures = passes.of_classes(max_error, goal, n_orders) + figures
        return Finding(tuple(figures), (f"Orders: {n_orders}. The embedder is {passes.embedder_id}.",))


class Passes:
    """Both data sets, embedded."""

    def __init__(self, folder: Path, config: EmbedderConfig, conditions: Conditions) -> None:
        """Raises SetUpFailed, NoEmbedder."""
        try:
            minilm = import_module("stayfast.stores.onnx_embedder")
            self._online = import_module("stayfast.lab.semantic_eval.evaluate")
        except ImportError as missing:
            raise NoEmbedder(f"there is no {missing.name} here; {HOW_TO}") from missing
        read = import_module("stayfast.lab.semantic_eval.evaluate")
        try:
            self._classes, self._pairs = read.of_classes(folder / CLASSES), read.of_pairs(folder / PAIRS)
        except read.Unreadable as why:
            raise SetUpFailed(str(why)) from why
        self._conditions = conditions
        encoder = minilm.load(config, str(cache_home(environment())))
        self.embedder_id: str = encoder.id
        conditions.report_progress(f"embedding {len(self._classes.texts) + len(self._pairs.texts):,} questions")
        self._class_vectors = encoder.embed_all(self._classes.texts)
        self._pair_vectors = encoder.embed_all(self._pairs.texts)

    def of_classes(self, max_error: float, goal: float, n_orders: int) -> list[Figure]:
        """The error of the worst order, and what is answered in the second half."""
        passed = []
        for number in range(n_orders):
            self._conditions.report_progress(f"at most {max_error * 100:g} % wrong: order {number + 1} of {n_orders}")
            passed.append(self._pass(self._classes, self._class_vectors, max_error, number, HELP_DESK))
        errors = [one.whole.error * 100 for one in passed]
        at = f"at {max_error * 100:g} %"
        worst = max(errors)
        return [Figure(f"wrong answers {at}, worst order", worst, "%", max_error * 100, low=min(errors), high=worst),
                figure_of_rounds(f"answered {at}, second half", [one.second.hit_rate * 100 for one in passed], "%",
                                 goal * 100, Sense.AT_LEAST)]

    def of_pairs(self, n_orders: int) -> list[Figure]:
        """The same of the pairs; and what the usual fixed threshold makes of both."""
        passed = [self._pass(self._pairs, self._pair_vectors, PAIRS_MAX_ERROR, number, EligibleConfig())
                  for number in range(n_orders)]
        seed = self._conditions.seed
        rule = Fixed(USUAL_THRESHOLD)
        bank = self._online.one_pass(self._classes, self._class_vectors, rule, HELP_DESK, seed=seed)
        pairs = self._online.one_pass(self._pairs, self._pair_vectors, rule, EligibleConfig(), seed=seed)
        usual = f"wrong answers with a fixed {USUAL_THRESHOLD:g}"
        return [Figure("wrong answers, pairs made to fool it, worst order", _worst(passed), "%", PAIRS_MAX_ERROR * 100),
                Figure("answered, pairs made to fool it", max(one.whole.hit_rate for one in passed) * 100, "%"),
                Figure(f"{usual}, bank", bank.whole.error * 100, "%"),
                Figure(f"{usual}, pairs", pairs.whole.error * 100, "%")]

    def _pass(self, questions: Any, vectors: Any, max_error: float, number: int, eligible: EligibleConfig) -> Any:
        rule = Calibrator(CalibrateConfig(max_error=max_error), N_FEATURES)
        return self._online.one_pass(questions, vectors, rule, eligible, seed=self._conditions.seed + number)


def _worst(passed: Sequence[Any]) -> float:
    return max([one.whole.error * 100 for one in passed], default=0.0)
