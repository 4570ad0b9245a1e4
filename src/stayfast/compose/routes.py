"""The routes of a set of settings: the names that clients send, who answers them, and on what terms."""

from collections.abc import Iterator
from dataclasses import replace

from stayfast.pipeline.handoffs import Route, Target, Terms
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.budget import share_out
from stayfast.settings import Defaults, Settings
from stayfast.settings import Route as RouteSettings
from stayfast.upstreams.registry import Registry


def routes(settings: Settings, registry: Registry) -> dict[str, Route]:
    """All routes by name."""
    return {name: _route(name, its, settings, registry) for name, its in settings.routes.items()}


def _route(name: str, its: RouteSettings, settings: Settings, registry: Registry) -> Route:
    targets = tuple(Target(registry[up], settings.model_at(name, up), settings.prices_at(up)) for up in its.upstreams)
    fallback = its.on_overrun.fallback
    spare = tuple(Target(registry[up], settings.fallback_model_at(name, up), settings.prices_at(up))
                  for up in fallback.upstreams) if fallback else ()
    return Route(name, targets, its.pick == "order", terms(its), its.retry, spare)


def terms(its: RouteSettings) -> Terms:
    """What a route's settings say of time."""
    fallback = its.on_overrun.fallback
    total_s = its.total_s
    return Terms(replace(its.timeouts, total_s=total_s),
                 share_out(its.budget, total_s, fallback.reserve if fallback is not None else ""),
                 its.on_overrun.template, its.on_overrun.partial)


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
