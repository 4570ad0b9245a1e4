"""Embedded models as upstreams, and the counters of their speculation."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random

from stayfast.core.clock import Clock
from stayfast.core.types import Api
from stayfast.engine.config import TINY, EngineConfig
from stayfast.engine.speculation import configs_of_arms, name_engine
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    SPECULATION_ANSWERS,
    SPECULATION_DECODE_S,
    SPECULATION_DRAFTS,
    SPECULATION_TOKENS,
)
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.speculation.config import AUTO, OFF
from stayfast.policy.speculation.controller import SpeculationController
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.embedded import Address, EngineEndpoint, LocalUpstream
from stayfast.upstreams.speculating import SpeculatingUpstream
from stayfast.upstreams.state.upstream_state import UpstreamState


def make_embedded(name: str, config: EngineConfig, doors: Mapping[str, EngineEndpoint],
                  dial: Callable[[Address], Upstream], clock: Clock, *, apis: frozenset[Api], rng: Random) -> Upstream:
    """doors: to the engine processes, by their names (`Settings.engines`). apis: that the engine's task can serve."""
    engines = {arm: doors[name_engine(name, config, arm)] for arm in configs_of_arms(config)}
    arms = {arm: LocalUpstream(name, engine, dial, clock, calls_tools=config.model != TINY, apis=apis)
            for arm, engine in engines.items()}
    settings = config.speculation
    if settings.mode != AUTO:
        return arms[settings.mode]
    controller = SpeculationController(tuple(arms), engines[OFF].n_slots or 1, rng, explore_share=settings.explore_share,
                                       min_output_tokens=settings.min_output_tokens)
    return SpeculatingUpstream(name, arms, engines, controller, clock)


def limit_to_slots(limit: LimitConfig, n_slots: int | None) -> LimitConfig:
    """Requests beyond the slots wait in the gateway, by priority and deadline, and not in the engine. A limit that was set
    stays. n_slots: None: not known to a worker; the engine then queues.
    """
    if limit.mode == "off" or limit.max is not None or n_slots is None:
        return limit
    return replace(limit, max=n_slots, min=None if limit.min is None else min(limit.min, n_slots))


def speculation_rows(members: Iterable[UpstreamState]) -> Samples:
    """Counters of the arms. Without a choice among arms there is no series."""
    found = [(member.upstream.name, member.upstream) for member in members
             if isinstance(member.upstream, SpeculatingUpstream)]
    if not found:
        return {}
    return {
        SPECULATION_ANSWERS.name: [((name, *what), float(n)) for name, upstream in found
                                   for what, n in upstream.n_chosen.items()],
        SPECULATION_TOKENS.name: [((name, *where), float(n)) for name, upstream in found
                                  for where, n in upstream.n_tokens.items()],
        SPECULATION_DECODE_S.name: [((name, *where), seconds) for name, upstream in found
                                    for where, seconds in upstream.decode_s.items()],
        SPECULATION_DRAFTS.name: [((name, *where, result), float(n)) for name, upstream in found
                                  for where, n_drafted in upstream.n_drafted.items() if n_drafted
                                  for result, n in (("accepted", upstream.n_accepted[where]),
                                                    ("rejected", n_drafted - upstream.n_accepted[where]))],
    }
