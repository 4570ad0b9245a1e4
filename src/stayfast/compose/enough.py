"""The evidence about the tiers of each route, put together: checks, comparison, embedder, and calls off the path."""

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from random import Random

from stayfast.compose.classify import Classifiers
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.types import Request
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import TIER_COMPARED, TIER_LABELS, TIER_PROVEN
from stayfast.pipeline.classify.vectors import SharedVectors, SyncEmbedder
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.plan import Route
from stayfast.pipeline.stages.cache.llm_judge import LlmJudge
from stayfast.pipeline.stages.relay import Reply
from stayfast.pipeline.tiers.answer_verifier import CertainLabel, CheckedAnswers
from stayfast.pipeline.tiers.evidence_book import EvidenceBook, OutcomeIndex
from stayfast.pipeline.tiers.tier_comparison import EqualTexts, TierComparison
from stayfast.pipeline.tiers.trials import QuestionVector, TierTrials
from stayfast.pipeline.tiers.verification import SHADOW
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.classify.head import UNKNOWN
from stayfast.policy.tiers.enough import WORDS, EnoughConfig
from stayfast.settings import RouteSettings, Settings
from stayfast.settings.hooks import load_check
from stayfast.stores.embedder import NoEmbedder
from stayfast.wire.classify.texts import read_request_texts

ServeOwn = Callable[[Request, Arrival], Awaitable[Reply]]
REQUEST_ID = "shadow"
JUDGE_SHARE = 0.5  # requests to the judge for each answer of the route that is compared; three for a doubtful pair


def explain_missing_vectors(settings: Settings) -> str:
    """Why no route can learn for which questions a tier is enough; empty: it can, or no route is set to."""
    if not _needs_vectors(settings):
        return ""
    try:
        _load_static_embedder()
    except NoEmbedder as missing:
        return f"enough.mode: learned decides nothing: {missing}"
    return ""


def _needs_vectors(settings: Settings) -> bool:
    return any(route.enough.mode in ("learned", "shadow") for route in settings.routes.values())


def _load_static_embedder() -> SyncEmbedder:
    """Blocks for 0.1 s. Raises NoEmbedder."""
    try:
        found: SyncEmbedder = import_module("stayfast.stores.static_embedder").load_static_embedder()
    except ImportError as missing:
        raise NoEmbedder(f"{missing.name} is not installed: pip install '.[classify]' in Stayfast's checkout") from missing
    return found


def _make_question_vector(vectors: SharedVectors) -> QuestionVector | None:
    """Of the vectors that all readers of questions share; None: the static embedder is missing."""
    if vectors.static is None:
        try:
            vectors.static = _load_static_embedder()
        except NoEmbedder:
            return None  # `explain_missing_vectors` reports it at the start
    return vectors.question_vector


class EnoughRoutes:
    """Makes the evidence of each route of one set of settings, or takes over that of an unchanged route at a reload."""

    def __init__(self, settings: Settings, *, clock: Clock, sink: Sink, serve: ServeOwn,
                 classifiers: Classifiers | None = None) -> None:
        """serve: for requests that the gateway makes on its own."""
        self._clock = clock
        self._sink = sink
        self._serve = serve
        self._classifiers = classifiers or Classifiers()
        self._vector_of = _make_question_vector(self._classifiers.vectors) if _needs_vectors(settings) else None

    def make_trials(self, route: str, settings: RouteSettings, before: TierTrials | None) -> TierTrials | None:
        """The evidence of a route; None: it collects none. before: of a reload. Raises ValueError for a check that does not
        exist.
        """
        config = settings.enough
        if config.mode == "off":
            return None
        known = before.book if before is not None and before.config == config else None
        book = known or EvidenceBook(config, _make_index if self._vector_of is not None else None)
        return TierTrials(route, config, book, checks=self._make_checks(route, settings),
                          comparison=self._comparison(route, config), serve=self._serve_tier, vector_of=self._vector_of,
                          holds_streams=settings.tier.hold_streams, clock=self._clock, rng=Random(f"tiers {route}"))

    def _make_checks(self, route: str, settings: RouteSettings) -> CheckedAnswers:
        checks = settings.enough.checks
        fits = import_module("stayfast.stores.json_schema").fits_schema if checks.json == "schema" else None
        own = load_check(checks.hook) if checks.hook else None
        return CheckedAnswers(settings.enough, holds_streams=settings.tier.hold_streams, fits_schema=fits, own_check=own,
                              certain_label=self._make_label_check(route, checks.classifier))

    def _make_label_check(self, route: str, name: str) -> CertainLabel | None:
        if not name:
            return None
        classifier = self._classifiers.by_name.get(name)
        if classifier is None:
            raise ValueError(f"routes.{route}.enough.checks.classifier: no classifier is named {name!r}")

        def find_doubt(request: Request) -> str:
            try:
                found = classifier.classify_now(read_request_texts(request).question)
            except NoEmbedder:
                return f"{name} cannot be used"
            return f"{name} does not know the label, p {found.p:.2f}" if found.label == UNKNOWN else ""

        return find_doubt

    def _comparison(self, route: str, config: EnoughConfig) -> TierComparison:
        if not config.judge_route:
            return EqualTexts(by_words=config.compare == WORDS)
        return LlmJudge(route, config.judge_route, self._serve, share=JUDGE_SHARE, clock=self._clock,
                        rng=Random(f"tier judge {route}"), sink=self._sink)

    async def _serve_tier(self, request: Request, tier: str) -> Reply:
        arrival = Arrival(REQUEST_ID, self._clock.now(), urgency=Urgency.BATCH, role=f"{SHADOW} {tier}")
        return await self._serve(request, arrival)


def _make_index(n_dims: int, most: int) -> OutcomeIndex:
    found: OutcomeIndex = import_module("stayfast.stores.labelled_vectors").LabelledVectors(n_dims, most)
    return found


def trials_of(route: Route | None) -> TierTrials | None:
    """The evidence of a route; None: it collects none."""
    observer = route.ladder.observer if route is not None and route.ladder is not None else None
    return observer if isinstance(observer, TierTrials) else None


def _all_trials(routes: Mapping[str, Route]) -> list[tuple[str, TierTrials]]:
    return [(name, trials) for name, route in routes.items() if (trials := trials_of(route)) is not None]


def tier_evidence_counts(routes: Mapping[str, Route]) -> Samples:
    """Counters of comparisons, by route, tier and result."""
    return {TIER_COMPARED.name: [((route, *what), n) for route, one in _all_trials(routes)
                                 for what, n in one.counts.items()]}


def tier_evidence_gauges(routes: Mapping[str, Route]) -> Samples:
    """Gauges: labels, by whether the tier was enough, and the tenants for which it is proven."""
    found = [(route, stats) for route, one in _all_trials(routes) for stats in one.book.stats()]
    return {TIER_LABELS.name: [((route, stats.tier, word), n) for route, stats in found
                               for word, n in (("yes", stats.n_enough), ("no", stats.n_labels - stats.n_enough))],
            TIER_PROVEN.name: [((route, stats.tier), stats.n_proven) for route, stats in found]}
