"""The routes of a set of settings: the names that clients send, who answers them, and on what terms."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256

from stayfast.compose.prefixes import affinity, prefixing
from stayfast.compose.stores import Stores
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.observe.families import CACHE_BYTES, CACHE_ENTRIES
from stayfast.observe.totals import Rows
from stayfast.pipeline.caching import Caching
from stayfast.pipeline.handoffs import Route, Target, Terms
from stayfast.pipeline.hedging import Hedging
from stayfast.pipeline.picking import PickConfig, Picking
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.budget import share_out
from stayfast.policy.cache import CacheConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.policy.predict import Predictor
from stayfast.settings import Defaults, EmbeddedUpstream, HttpUpstream, Settings, TurnUpstream
from stayfast.settings import Route as RouteSettings
from stayfast.stores.base import Store
from stayfast.stores.memory import MemoryStore
from stayfast.upstreams.state.upstream_state import Registry


def routes(settings: Settings, registry: Registry, old: Mapping[str, Route], stores: Stores, *, clock: Clock,
           sink: Sink) -> dict[str, Route]:
    """All routes by name. What the `old` ones of a reload have learned goes on where the settings of it are the same."""
    return {name: _route(name, its, settings, registry, old.get(name), stores=stores, clock=clock, sink=sink)
            for name, its in settings.routes.items()}


def _route(name: str, its: RouteSettings, settings: Settings, registry: Registry, old: Route | None, *, stores: Stores,
           clock: Clock, sink: Sink) -> Route:
    targets = tuple(Target(registry[up], settings.model_at(name, up), settings.prices_at(up), _continues(settings, up))
                    for up in its.upstreams)
    fallback = its.on_overrun.fallback
    tiers = tuple(tuple(Target(registry[up], settings.tier_model_at(name, tier, up), settings.prices_at(up),
                               _continues(settings, up))
                        for up in tier.upstreams) for tier in fallback.tiers) if fallback else ()
    its_terms = replace(terms(name, its), cache=_caching(name, its, settings, old, stores),
                        prefix=prefixing(name, its, old, clock, sink))
    return Route(name, targets, its.pick == "order", its_terms, its.retry, tiers,
                 _hedging(its, settings, old), its.on_stall, _picking(name, its, registry, old, sink))


def _caching(name: str, its: RouteSettings, settings: Settings, old: Route | None, stores: Stores
             ) -> Caching | None:
    """What answers it keeps; None where none. Another model, another upstream or another epoch begins with nothing, and so
    does a memory of another size; by other rules what is kept goes on.
    """
    config = its.cache
    if config.mode == "off":
        return None
    made_by = [(up, settings.model_at(name, up), _where(settings, up)) for up in its.upstreams]
    origin = sha256(repr((name, made_by, config.epoch)).encode()).hexdigest()
    before = old.terms.cache if old is not None and old.terms.cache and old.terms.cache.origin == origin else None
    store = stores[config.store] if config.store else _own(config, before)
    caching = _by(config, before) if before is not None and before.store is store else Caching(config, origin, store)
    caching.prices, caching.model = settings.prices_at(its.upstreams[0]), settings.model_at(name, its.upstreams[0])
    return caching


def _own(config: CacheConfig, before: Caching | None) -> Store:
    if before is not None and (before.config.store, before.config.max_bytes) == ("", config.max_bytes):
        return before.store
    return MemoryStore(config.max_bytes)


def _by(config: CacheConfig, before: Caching) -> Caching:
    """The same cache by these settings: requests that run go on by theirs, and calls are shared with them."""
    if config == before.config:
        return before
    semantic = before.semantic if config.mode == "semantic" else None
    caching = Caching(config, before.origin, before.store)
    caching.semantic = semantic if semantic is not None and semantic.goes_on(config.semantic) else None
    caching.renewing = before.renewing
    return caching


def _where(settings: Settings, upstream: str) -> str:
    its = settings.upstreams[upstream]
    return its.base_url if isinstance(its, HttpUpstream) else repr(its)


def _continues(settings: Settings, upstream: str) -> bool:
    its = settings.upstreams[upstream]
    return isinstance(its, HttpUpstream) and its.continues


def _picking(name: str, its: RouteSettings, registry: Registry, old: Route | None, sink: Sink) -> Picking | None:
    """Affinity, weights and ejection; nothing where there is nothing to choose, or nothing to choose by but the load."""
    config = PickConfig(its.pick == "order", its.weights, affinity(its), its.eject)
    if len(its.upstreams) == 1 or config.is_plain:
        return None
    if config.affinity.mode != "off":
        for upstream in its.upstreams:
            registry[upstream].predictor = registry[upstream].predictor or Predictor()
    if old is not None and old.picking is not None and old.picking.config == config:
        return old.picking
    return Picking(config, name, sink)


def _hedging(its: RouteSettings, settings: Settings, old: Route | None) -> Hedging:
    """Second attempts; none where there is only one engine of our own: beside itself it would be slower. Nor beside a turn
    that may do something, by it or by another.
    """
    config, ups = its.hedge, [settings.upstreams[name] for name in its.upstreams]
    is_engine = len(ups) == 1 and isinstance(ups[0], EmbeddedUpstream)
    if is_engine or any(isinstance(up, TurnUpstream) and not up.idempotent for up in ups):
        config = HedgeConfig(mode="off")
    if old is not None and (old.hedging.config, old.hedging.retry) == (config, its.retry):
        return old.hedging
    return Hedging(config, its.retry)


def terms(name: str, its: RouteSettings) -> Terms:
    """What a route's settings say of time."""
    fallback = its.on_overrun.fallback
    total_s = its.total_s
    return Terms(replace(its.timeouts, total_s=total_s),
                 share_out(its.budget, total_s, fallback.reserve if fallback is not None else ""),
                 its.on_overrun.template, its.on_overrun.partial, name, size=its.size if its.size.is_bounded else None)


def kept(routes: Mapping[str, Route]) -> Rows:
    """What their own memory has, for gauges."""
    caches = [((name,), route.terms.cache.store) for name, route in routes.items()
              if route.terms.cache is not None and not route.terms.cache.config.store]
    return {CACHE_BYTES.name: [(labels, store.n_bytes) for labels, store in caches],
            CACHE_ENTRIES.name: [(labels, store.n_entries) for labels, store in caches]}


def default_terms(defaults: Defaults) -> Terms:
    """What holds for a name that no route has, up to its refusal."""
    return Terms(defaults.timeouts)


def models_asked(settings: Settings, upstream: str) -> Iterator[str]:
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
