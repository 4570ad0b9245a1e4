"""The routes of a set of settings, and what upstreams and the queue learn from them: models, budgets, lanes, predictions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from stayfast.compose.caching import SemanticCaches, Stores, affinity_config, make_planner
from stayfast.compose.classify import Classifiers, make_screen
from stayfast.compose.context import ContextSteps
from stayfast.compose.engine_metrics import is_scraped
from stayfast.compose.enough import EnoughRoutes
from stayfast.compose.tiers import make_ladder
from stayfast.compose.token_counters import TokenCounters
from stayfast.compose.warm import make_pool
from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.events import Sink
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import CACHE_BYTES, CACHE_ENTRIES, PREDICTOR_ERROR
from stayfast.pipeline.admission.controller import AdmissionRequest, QueueOutlook
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.context.output_caps import OutputPaces, RouteCaps
from stayfast.pipeline.hooks.config import HooksConfig
from stayfast.pipeline.hooks.route_hooks import RouteHooks
from stayfast.pipeline.plan import Route, RoutePolicy
from stayfast.pipeline.routing.exact_prefixes import ExactPrefixes
from stayfast.pipeline.routing.selector import PickConfig, Target, UpstreamSelector
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.admission.overload import ANY_TENANT, TenantConfig
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.budget import divide_deadline
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.cross_process import SharedLimit
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.settings import EmbeddedUpstream, HttpUpstream, RouteSettings, Settings, TurnUpstreamSettings
from stayfast.settings.hooks import load_hook
from stayfast.stores.base import Store
from stayfast.stores.memory import MemoryStore
from stayfast.turns.threads import start_thread
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.upstreams.state.upstream_state import UpstreamState


@dataclass(frozen=True, slots=True)
class RouteParts:
    """What all routes of one set of settings are made of."""

    registry: Registry
    stores: Stores
    semantic: SemanticCaches
    context: ContextSteps
    evidence: EnoughRoutes
    classifiers: Classifiers
    clock: Clock
    sink: Sink
    signals: SignalBoard
    exact: ExactPrefixes | None = None  # what engines report of their caches; None: nothing


def make_routes(settings: Settings, parts: RouteParts, old: Mapping[str, Route]) -> dict[str, Route]:
    """All routes by name. old: before a reload; the new routes take over what they have learned if its settings are
    unchanged. Raises ValueError for a hook or a check that cannot be imported.
    """
    clock, sink = parts.clock, parts.sink
    paces = next((route.policy.cap.paces for route in old.values() if route.policy.cap is not None), None) or OutputPaces()
    made, counters = {}, TokenCounters(settings, parts.registry, old)
    for name, route_settings in settings.routes.items():
        before = old.get(name)
        cache = _make_cache(name, settings, before, parts.stores, parts.semantic)
        prefix = make_planner(name, route_settings, before, clock, sink)
        counter, counting = counters.make(name)
        policy = replace(make_policy(name, route_settings), cache=cache, prefix=prefix, counter=counter,
                         counting=counting, context=parts.context.make_steps(name, before, counter),
                         cap=RouteCaps(route_settings.cap, paces) if route_settings.cap.is_on else None,
                         hooks=_make_hooks(route_settings.hooks, clock),
                         screen=make_screen(name, route_settings, parts.classifiers, clock, sink))
        made[name] = _make_route(name, settings, parts, before, policy)
    return made


def _make_hooks(config: HooksConfig, clock: Clock) -> RouteHooks | None:
    """The hooks of a route, imported again where their file has changed; None: it has none. Raises ValueError."""
    hooks = tuple(load_hook(name) for name in config.use)
    return RouteHooks(hooks, config, clock, start_thread) if hooks else None


def _make_route(name: str, settings: Settings, parts: RouteParts, old: Route | None, policy: RoutePolicy) -> Route:
    route_settings, registry = settings.routes[name], parts.registry
    continues = {up: _can_continue(settings, up) for up in route_settings.own_upstreams}
    ladder, targets = make_ladder(name, settings, registry, old, continues, evidence=parts.evidence)
    targets = targets or tuple(Target(registry[up], settings.model_for(name, up), settings.prices_for(up), continues[up])
                               for up in route_settings.upstreams)
    fallback = route_settings.on_overrun.fallback
    tiers = tuple(tuple(Target(registry[up], settings.fallback_model_for(name, tier, up), settings.prices_for(up),
                               _can_continue(settings, up))
                        for up in tier.upstreams) for tier in fallback.tiers) if fallback else ()
    return Route(name, targets, route_settings.pick == "order", policy, route_settings.retry, tiers,
                 _make_hedging(route_settings, settings, old), route_settings.on_stall,
                 _make_selector(name, settings, old, parts), make_pool(name, route_settings, registry, old), ladder)


def _make_cache(name: str, settings: Settings, old: Route | None, stores: Stores, semantic: SemanticCaches
                ) -> RouteCache | None:
    """The route's cache. A change of model, upstream, epoch or memory size starts an empty one; after other changes the
    answers stay.
    """
    route_settings = settings.routes[name]
    config = route_settings.cache
    if config.mode == "off":
        return None
    models = {up: settings.models_for(name, up) if route_settings.tiers else settings.model_for(name, up)
              for up in route_settings.own_upstreams}
    made_by = [(up, models[up], where.base_url if isinstance(where, HttpUpstream) else repr(where))
               for up, where in ((up, settings.upstreams[up]) for up in route_settings.own_upstreams)]
    origin = sha256(repr((name, made_by, config.epoch)).encode()).hexdigest()
    before = old.policy.cache if old is not None and old.policy.cache and old.policy.cache.origin == origin else None
    store = stores[config.store] if config.store else _memory_store(config, before)
    if before is not None and before.store is not store:
        before = None
    first = route_settings.own_upstreams[0]
    return RouteCache(config, origin, store, semantic.make_cache(name, config, before, store),
                      prices=settings.prices_for(first), model=settings.model_for(name, first),
                      renewing=before.refreshing if before is not None else None)


def _memory_store(config: CacheConfig, before: RouteCache | None) -> Store:
    if before is not None and (before.config.store, before.config.max_bytes) == ("", config.max_bytes):
        return before.store
    return MemoryStore(config.max_bytes)


def _can_continue(settings: Settings, upstream: str) -> bool:
    upstream_settings = settings.upstreams[upstream]
    return isinstance(upstream_settings, HttpUpstream) and upstream_settings.supports_continuation


def _make_selector(name: str, settings: Settings, old: Route | None, parts: RouteParts) -> UpstreamSelector | None:
    """Affinity, weights and ejection; None: the route has one upstream, or only the load decides."""
    route_settings = settings.routes[name]
    config = PickConfig(route_settings.pick == "order", route_settings.weights, affinity_config(route_settings),
                        route_settings.eject)
    if len(route_settings.own_upstreams) == 1 or config.is_plain:
        return None
    if config.affinity.mode != "off":
        for upstream in route_settings.own_upstreams:
            parts.registry[upstream].predict_ttft()
    selector = old.selector if old is not None else None
    is_read = any(is_scraped(settings.upstreams[upstream]) for upstream in route_settings.own_upstreams)
    signals = parts.signals if is_read else None
    if selector is not None and (selector.config, selector.signals, selector.exact) == (config, signals, parts.exact):
        return selector
    return UpstreamSelector(config, name, parts.sink, signals=signals, exact=parts.exact)


def _make_hedging(route_settings: RouteSettings, settings: Settings, old: Route | None) -> Hedging:
    """Hedging; none for a single embedded engine, which would be slower with two calls, nor for turns that change state."""
    config, ups = route_settings.hedge, [settings.upstreams[name] for name in route_settings.own_upstreams]
    is_engine = len(ups) == 1 and isinstance(ups[0], EmbeddedUpstream)
    if is_engine or any(isinstance(up, TurnUpstreamSettings) and not up.idempotent for up in ups):
        config = HedgeConfig(mode="off")
    if old is not None and (old.hedging.config, old.hedging.retry) == (config, route_settings.retry):
        return old.hedging
    return Hedging(config, route_settings.retry)


def make_policy(name: str, route_settings: RouteSettings) -> RoutePolicy:
    """The policy of a route, without its caches."""
    fallback = route_settings.on_overrun.fallback
    total_s = route_settings.total_s
    return RoutePolicy(replace(route_settings.timeouts, total_s=total_s),
                       divide_deadline(route_settings.budget, total_s, fallback.reserve if fallback is not None else ""),
                       route_settings.on_overrun.template, route_settings.on_overrun.partial, name,
                       size=route_settings.size if route_settings.size.is_bounded else None)


def route_cache_rows(routes: Mapping[str, Route]) -> Samples:
    """Gauges of caches without a named store."""
    caches = [((name,), route.policy.cache.store) for name, route in routes.items()
              if route.policy.cache is not None and not route.policy.cache.config.store]
    return {CACHE_BYTES.name: [(labels, store.n_bytes) for labels, store in caches],
            CACHE_ENTRIES.name: [(labels, store.n_entries) for labels, store in caches]}


def models_requested(settings: Settings, upstream: str) -> Iterator[str]:
    """The models that routes request from an upstream, by its own names; those of fallbacks last."""
    for name, route_settings in settings.routes.items():
        for model in settings.models_for(name, upstream) if upstream in route_settings.own_upstreams else ():
            if name != ANY_MODEL or model:
                yield model or name
    for name, route_settings in settings.routes.items():
        fallback = route_settings.on_overrun.fallback
        for tier in fallback.tiers if fallback is not None else ():
            model = settings.fallback_model_for(name, tier, upstream)
            if upstream in tier.upstreams and (name != ANY_MODEL or model):
                yield model or name


def tier_of(settings: Settings) -> Callable[[str | None], TenantTier]:
    """A tenant's tier by its name."""
    tenants = settings.tenants
    others = tenants.get(ANY_TENANT) or TenantConfig()
    return lambda tenant: tenants.get(tenant, others).tier if tenant is not None else others.tier


def bind_routes(registry: Registry, routes: Mapping[str, Route], lanes: Sequence[str] = ()) -> None:
    """Give each upstream its models, budgets and lanes. What it has learned stays."""
    models: dict[UpstreamState, dict[str, None]] = {member: {} for member in registry}
    budgets: dict[UpstreamState, list[RetryBudget]] = {member: [] for member in registry}
    open_to_any: set[UpstreamState] = set()
    chosen: set[UpstreamState] = set()
    for name, route in routes.items():
        if len(route.targets) > 1:
            chosen.update(target.member for target in route.targets)
        for target in _targets(route):
            budgets[target.member].append(route.hedging.budget)
            model = target.model or name
            if model == ANY_MODEL:
                open_to_any.add(target.member)
            else:
                models[target.member][model] = None
    for member in registry:
        member.set_models(models[member], any_model=member in open_to_any)
        member.split_by_lane(lanes)
        member.retry_budget.set_routes(budgets[member])
        member.track_backlog(is_tracked=member in chosen)


def _targets(route: Route) -> Iterator[Target]:
    yield from route.targets
    for tier in route.fallback:
        yield from tier


def queue_outlook(routes: Mapping[str, Route], registry: Registry, common: SharedLimit | None = None) -> QueueOutlook:
    """The predictions that the admission queue needs from the upstreams. common: the places of all workers."""
    for member in registry:
        member.predict_ttft()

    def predict_ttft_s(request: AdmissionRequest) -> float | None:
        """Of the quickest upstream of the route; None if there is no prediction for any of them. Where this process has few
        answers, the times of other processes are used.
        """
        route = routes.get(request.model) or routes.get(ANY_MODEL)
        predicted = []
        for target in route.targets if route is not None else ():
            at, predictors = target.upstream_model(request.model), target.member.predictors
            seconds = predictors.predict_s(at[1], request.n_input) if predictors is not None else None
            if seconds is None and route is not None:
                seconds = route.hedging.estimate_ttft_s(at, int(request.n_input) * BYTES_A_TOKEN)
            if seconds is not None:
                predicted.append(seconds)
        return min(predicted, default=None)

    return QueueOutlook(predict_ttft_s, lambda: sum(member.n_waiting for member in registry), common)


def prediction_error_rows(registry: Registry) -> Samples:
    """Gauges: the error of predicted first tokens."""
    found = [((member.upstream.name,), member.predictors.error_ratio)
             for member in registry if member.predictors is not None]
    return {PREDICTOR_ERROR.name: [(labels, ratio) for labels, ratio in found if ratio is not None]}
