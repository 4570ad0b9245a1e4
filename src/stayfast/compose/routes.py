"""The routes of a set of settings: the names that clients send, who answers them, and on what terms.

Upstreams learn of the routes that name them (which models, beside whom, whose requests pay, lanes), and the queue of the
upstreams behind it (what a first token will take, how many wait at their limits).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from stayfast.compose.caching import Stores, affinity, prefixing
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.metrics.counters import Rows
from stayfast.observe.metrics.definitions import CACHE_BYTES, CACHE_ENTRIES, PREDICTOR_ERROR
from stayfast.pipeline.admission.controller import AdmissionController, AdmissionRequest
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.plan import Route, RoutePolicy
from stayfast.pipeline.routing.selector import PickConfig, Target, UpstreamSelector
from stayfast.pipeline.stages.route import ANY_MODEL, Router
from stayfast.policy.admission.overload import ANY_TENANT, TenantConfig
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.budget import share_out
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry_budget import RetryBudget
from stayfast.policy.resilience.ttft import Predictor
from stayfast.policy.routing.load_balancing import PrefillBacklog
from stayfast.settings import EmbeddedUpstream, HttpUpstream, RouteSettings, Settings, TurnUpstreamSettings
from stayfast.stores.base import Store
from stayfast.stores.memory import MemoryStore
from stayfast.upstreams.state.upstream_state import Registry, UpstreamState


def routes(settings: Settings, registry: Registry, old: Mapping[str, Route], stores: Stores, *, clock: Clock,
           sink: Sink) -> dict[str, Route]:
    """All routes by name. What the `old` ones of a reload have learned goes on where the settings of it are the same."""
    return {name: _route(name, route_settings, settings, registry, old.get(name), stores=stores, clock=clock, sink=sink)
            for name, route_settings in settings.routes.items()}


def _route(name: str, route_settings: RouteSettings, settings: Settings, registry: Registry, old: Route | None, *,
           stores: Stores,
           clock: Clock, sink: Sink) -> Route:
    targets = tuple(Target(registry[up], settings.model_at(name, up), settings.prices_at(up), _continues(settings, up))
                    for up in route_settings.upstreams)
    fallback = route_settings.on_overrun.fallback
    tiers = tuple(tuple(Target(registry[up], settings.tier_model_at(name, tier, up), settings.prices_at(up),
                               _continues(settings, up))
                        for up in tier.upstreams) for tier in fallback.tiers) if fallback else ()
    policy = replace(terms(name, route_settings), cache=_caching(name, route_settings, settings, old, stores),
                        prefix=prefixing(name, route_settings, old, clock, sink))
    return Route(name, targets, route_settings.pick == "order", policy, route_settings.retry, tiers,
                 _hedging(route_settings, settings, old), route_settings.on_stall, _picking(name, route_settings, registry,
                                                                                            old, sink))


def _caching(name: str, route_settings: RouteSettings, settings: Settings, old: Route | None, stores: Stores
             ) -> RouteCache | None:
    """What answers it keeps; None where none. Another model, another upstream or another epoch begins with nothing, and so
    does a memory of another size; by other rules what is kept goes on.
    """
    config = route_settings.cache
    if config.mode == "off":
        return None
    made_by = [(up, settings.model_at(name, up), where.base_url if isinstance(where, HttpUpstream) else repr(where))
               for up, where in ((up, settings.upstreams[up]) for up in route_settings.upstreams)]
    origin = sha256(repr((name, made_by, config.epoch)).encode()).hexdigest()
    before = old.terms.cache if old is not None and old.terms.cache and old.terms.cache.origin == origin else None
    store = stores[config.store] if config.store else _own(config, before)
    caching = _by(config, before) if before is not None and before.store is store else RouteCache(config, origin, store)
    caching.prices, caching.model = settings.prices_at(route_settings.upstreams[0]), settings.model_at(name,
                                                                                                       route_settings.upstreams[0])
    return caching


def _own(config: CacheConfig, before: RouteCache | None) -> Store:
    if before is not None and (before.config.store, before.config.max_bytes) == ("", config.max_bytes):
        return before.store
    return MemoryStore(config.max_bytes)


def _by(config: CacheConfig, before: RouteCache) -> RouteCache:
    """The same cache by these settings: requests that run go on by theirs, and calls are shared with them."""
    if config == before.config:
        return before
    semantic = before.semantic if config.mode == "semantic" else None
    caching = RouteCache(config, before.origin, before.store)
    caching.semantic = semantic if semantic is not None and semantic.goes_on(config.semantic) else None
    caching.renewing = before.renewing
    return caching


def _continues(settings: Settings, upstream: str) -> bool:
    upstream_settings = settings.upstreams[upstream]
    return isinstance(upstream_settings, HttpUpstream) and upstream_settings.supports_continuation


def _picking(name: str, route_settings: RouteSettings, registry: Registry, old: Route | None,
             sink: Sink) -> UpstreamSelector | None:
    """Affinity, weights and ejection; nothing where there is nothing to choose, or nothing to choose by but the load."""
    config = PickConfig(route_settings.pick == "order", route_settings.weights, affinity(route_settings),
                        route_settings.eject)
    if len(route_settings.upstreams) == 1 or config.is_plain:
        return None
    if config.affinity.mode != "off":
        for upstream in route_settings.upstreams:
            registry[upstream].predictor = registry[upstream].predictor or Predictor()
    if old is not None and old.picking is not None and old.picking.config == config:
        return old.picking
    return UpstreamSelector(config, name, sink)


def _hedging(route_settings: RouteSettings, settings: Settings, old: Route | None) -> Hedging:
    """Second attempts; none where there is only one engine of our own: beside itself it would be slower. Nor beside a turn
    that may do something, by it or by another.
    """
    config, ups = route_settings.hedge, [settings.upstreams[name] for name in route_settings.upstreams]
    is_engine = len(ups) == 1 and isinstance(ups[0], EmbeddedUpstream)
    if is_engine or any(isinstance(up, TurnUpstreamSettings) and not up.idempotent for up in ups):
        config = HedgeConfig(mode="off")
    if old is not None and (old.hedging.config, old.hedging.retry) == (config, route_settings.retry):
        return old.hedging
    return Hedging(config, route_settings.retry)


def terms(name: str, route_settings: RouteSettings) -> RoutePolicy:
    """What a route's settings say of time."""
    fallback = route_settings.on_overrun.fallback
    total_s = route_settings.total_s
    return RoutePolicy(replace(route_settings.timeouts, total_s=total_s),
                 share_out(route_settings.budget, total_s, fallback.reserve if fallback is not None else ""),
                 route_settings.on_overrun.template, route_settings.on_overrun.partial, name, size=route_settings.size
                       if route_settings.size.is_bounded else None)


def learned_rows(routes: Mapping[str, Route]) -> Rows:
    """What their own memory has, for gauges."""
    caches = [((name,), route.terms.cache.store) for name, route in routes.items()
              if route.terms.cache is not None and not route.terms.cache.config.store]
    return {CACHE_BYTES.name: [(labels, store.n_bytes) for labels, store in caches],
            CACHE_ENTRIES.name: [(labels, store.n_entries) for labels, store in caches]}


def models_requested(settings: Settings, upstream: str) -> Iterator[str]:
    """The models that named routes ask an upstream for, by its own names; those of fallbacks last."""
    for name, its in settings.routes.items():
        model = settings.model_at(name, upstream)
        if upstream in its.upstreams and (name != ANY_MODEL or model):
            yield model or name
    for name, its in settings.routes.items():
        for tier in its.on_overrun.fallback.tiers if its.on_overrun.fallback is not None else ():
            model = settings.tier_model_at(name, tier, upstream)
            if upstream in tier.upstreams and (name != ANY_MODEL or model):
                yield model or name


def tier_of(settings: Settings) -> Callable[[str | None], TenantTier]:
    """A tenant's tier by its name."""
    tenants = settings.tenants
    others = tenants.get(ANY_TENANT) or TenantConfig()
    return lambda tenant: tenants.get(tenant, others).tier if tenant is not None else others.tier


def introduce(registry: Registry, routes: Mapping[str, Route], lanes: Sequence[str] = ()) -> None:
    """Tell each upstream of its routes, and of the lanes that requests are in. What it has learned stays."""
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
        member.retry_budget.routes = tuple(dict.fromkeys(budgets[member]))
        member.backlog = (member.backlog or PrefillBacklog()) if member in chosen else None


def _targets(route: Route) -> Iterator[Target]:
    yield from route.targets
    for tier in route.fallback:
        yield from tier


def foresee(places: AdmissionController, router: Router, registry: Registry) -> None:
    """Have every upstream's first tokens learned, and the queue know of them, and of the queues behind it."""
    for member in registry:
        member.predictor = member.predictor or Predictor()
    routes = router.routes

    def predict(asked: AdmissionRequest) -> float | None:
        """By the quickest upstream of its route; None where nothing is known of any."""
        route = routes.get(asked.model) or routes.get(ANY_MODEL)
        least_s = None
        for target in route.targets if route is not None else ():
            predictor = target.member.predictor
            seconds = predictor.predicted_s(asked.n_input) if predictor is not None else None
            if seconds is not None and (least_s is None or seconds < least_s):
                least_s = seconds
        return least_s

    def n_held() -> int:
        return sum(member.n_waiting for member in registry)

    places.predict, places.n_held = predict, n_held


def errors(registry: Registry) -> Rows:
    """How far off predictions were, as a metric; none where nothing is foreseen."""
    found = [((member.upstream.name,), member.predictor.error_ratio) for member in registry if member.predictor is not None]
    return {PREDICTOR_ERROR.name: [(labels, ratio) for labels, ratio in found if ratio is not None]}
