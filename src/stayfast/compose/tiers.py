"""The tiers of routes: their upstreams, one for each service tier of a provider, and what is learned of their speed."""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from stayfast.compose.enough import EnoughRoutes, trials_of
from stayfast.core.events import Sink
from stayfast.core.types import Api
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import TIER_ANSWERS, TIER_REQUESTS
from stayfast.pipeline.plan import Route, targets_for
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.tiers.ladder import RouteTier, RouteTiers, TierLearner, TierSpeeds
from stayfast.policy.tiers.choice import TierOption, order_tiers, relation_of
from stayfast.policy.tiers.config import SPEEDS, STANDARD, TierEntry, TierLadder
from stayfast.settings import HttpUpstream, Settings
from stayfast.upstreams.base import RequestedTier
from stayfast.upstreams.service_tier import ServiceTierUpstream
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.upstream_state import UpstreamState

REPLACES: Final = ":replace"


def name_member(upstream: str, entry: TierEntry, *, replaces: bool) -> str:
    """The name of an upstream at a service tier: that of the upstream alone if none is requested."""
    if not entry.service_tier:
        return upstream
    return f"{upstream}:{entry.service_tier}{REPLACES if replaces else ''}"


def make_tier_members(settings: Settings, members: Mapping[str, UpstreamState], old: tuple[Settings, Registry] | None,
                      rng: Random, sink: Sink) -> Iterator[UpstreamState]:
    """The upstreams at each service tier that a route requests. old: before a reload; unchanged ones keep their state."""
    made: set[str] = set()
    for route in settings.routes.values():
        replaces = route.tier.replace_service_tier
        for entry in route.tiers:
            for upstream in entry.upstreams if entry.service_tier else ():
                name, config = name_member(upstream, entry, replaces=replaces), settings.upstreams[upstream]
                if name in made or not isinstance(config, HttpUpstream):
                    continue
                made.add(name)
                before = _find_old(name, upstream, settings, old)
                if before is not None:
                    yield before
                    continue
                requested = RequestedTier(config.service_words[entry.service_tier], replaces)
                yield UpstreamState(ServiceTierUpstream(name, members[upstream].upstream, requested), config.limit,
                                    config.breaker, rng, sink)


def members_of(route: str, settings: Settings) -> Iterator[tuple[str, str | None]]:
    """The upstreams that a route calls, service tiers apart, each with the model's name there (None: as clients name it)."""
    config = settings.routes[route]
    for upstream in config.upstreams:
        yield upstream, settings.model_for(route, upstream)
    for entry in config.tiers:
        for upstream in entry.upstreams:
            yield (name_member(upstream, entry, replaces=config.tier.replace_service_tier),
                   entry.model or settings.model_for(route, upstream))


def _find_old(name: str, upstream: str, settings: Settings, old: tuple[Settings, Registry] | None) -> UpstreamState | None:
    if old is None or old[0].upstreams.get(upstream) != settings.upstreams[upstream]:
        return None
    return next((member for member in old[1] if member.upstream.name == name), None)


def make_ladder(name: str, settings: Settings, registry: Registry, old: Route | None, continues: Mapping[str, bool],
                *, evidence: EnoughRoutes) -> tuple[RouteTiers | None, tuple[Target, ...]]:
    """The tiers of a route and all their targets; None and no targets if it has none. continues: by upstream."""
    route = settings.routes[name]
    if not route.tiers:
        return None, ()
    declared = TierLadder(route.tiers, route.tier)
    before = old.ladder if old is not None else None
    speeds = before.speeds if before is not None and before.declared.entries == declared.entries else TierSpeeds()
    skills = _skills_of(name, settings)
    tiers: list[RouteTier] = []
    targets: list[Target] = []
    for entry in route.tiers:
        by_api: dict[Api, tuple[Target, ...]] = {}
        tier = RouteTier(entry.name, skills[entry.name], entry.service_tier or STANDARD, by_api)
        own = tuple([Target(registry[name_member(upstream, entry, replaces=route.tier.replace_service_tier)],
                            entry.model or settings.model_for(name, upstream), settings.prices_for(upstream),
                            continues[upstream], TierLearner(speeds, tier)) for upstream in entry.upstreams])
        by_api.update({api: targets_for(own, api) for api in Api})
        tiers.append(tier)
        targets += own
    trials = evidence.make_trials(name, route, trials_of(old))
    return RouteTiers(name, declared, tiers, speeds, advisor=trials, observer=trials,
                      verifier=trials.checks if trials is not None else None), tuple(targets)


def tier_lines(settings: Settings) -> Iterator[str]:
    """Readable lines: the tiers of each route in the order in which they are preferred."""
    for name, route in settings.routes.items():
        if not route.tiers:
            continue
        skills = _skills_of(name, settings)
        options = [TierOption(entry.name, skills[entry.name], SPEEDS.index(entry.service_tier or STANDARD))
                   for entry in route.tiers]
        start = next((n for n, one in enumerate(options) if one.name == route.tier.start), None)
        if start is None:
            start = next(n for n, one in enumerate(options) if one.skill == options[-1].skill)
        order = [options[n] for n in order_tiers(options, start, down=route.tier.down)]
        words = ", ".join(f"{one.name} ({relation_of(one, options[start])})" for one in order)
        yield f"route {name}: tiers by preference: {words}; the first that answers in time is called"


def _skills_of(route: str, settings: Settings) -> dict[str, int]:
    """The skill of each tier by its name: those with the same model have the same."""
    skills: dict[tuple[str, ...], int] = {}
    found = {}
    for entry in settings.routes[route].tiers:
        models = tuple(sorted({entry.model or settings.model_for(route, up) or route for up in entry.upstreams}))
        found[entry.name] = skills.setdefault(models, len(skills))
    return found


def tier_rows(routes: Mapping[str, Route]) -> Samples:
    """Counters of the choice among tiers, and of the service tiers that were served."""
    found = [(name, route.ladder.speeds) for name, route in routes.items() if route.ladder is not None]
    return {TIER_REQUESTS.name: [((name, *what), float(n)) for name, speeds in found for what, n in speeds.chosen.items()],
            TIER_ANSWERS.name: [((name, *what), float(n)) for name, speeds in found for what, n in speeds.reported.items()]}
