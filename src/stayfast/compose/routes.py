"""The routes of a set of settings: the names that clients send, who answers them, and on what terms."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stayfast.pipeline.handoffs import Route, Target, Terms
from stayfast.pipeline.hedging import Hedging
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.budget import share_out
from stayfast.policy.hedge import HedgeConfig
from stayfast.settings import Defaults, EmbeddedUpstream, Settings
from stayfast.settings import Route as RouteSettings
from stayfast.upstreams.registry import Registry


def routes(settings: Settings, registry: Registry, old: Mapping[str, Route]) -> dict[str, Route]:
    """All routes by name. What the `old` ones of a reload have learned goes on where the settings of it are the same."""
    return {name: _route(name, its, settings, registry, old.get(name)) for name, its in settings.routes.items()}


def _route(name: str, its: RouteSettings, settings: Settings, registry: Registry, old: Route | None) -> Route:
    targets = tuple(Target(registry[up], settings.model_at(name, up), settings.prices_at(up)) for up in its.upstreams)
    fallback = its.on_overrun.fallback
    spare = tuple(Target(registry[up], settings.fallback_model_at(name, up), settings.prices_at(up))
                  for up in fallback.upstreams) if fallback else ()
    return Route(name, targets, its.pick == "order", terms(name, its), its.retry, spare,
                 _hedging(its, settings, old))


def _hedging(its: RouteSettings, settings: Settings, old: Route | None) -> Hedging:
    """Second attempts; none where there is only one engine of our own: beside itself it would be slower."""
    config = its.hedge
    if len(its.upstreams) == 1 and isinstance(settings.upstreams[its.upstreams[0]], EmbeddedUpstream):
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
                 its.on_overrun.template, its.on_overrun.partial, name)


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
        fallback = its.on_overrun.fallback
        model = settings.fallback_model_at(name, upstream)
        if fallback is not None and upstream in fallback.upstreams and (name != ANY_MODEL or model):
            yield model or name
