"""Routing by cost in front of replicas with prefix caches, against round robin and least-loaded by requests and by tokens.

One gateway with production defaults, in virtual time, in front of N_REPLICAS simulated engines whose caches evict least
recently used blocks. Every policy gets the same requests at the same instants; only the order of the upstreams differs. Two
loads: spare capacity, and near saturation (where least-loaded by tokens just keeps up).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Final

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.types import Request
from stayfast.lab.harness.virtual import serve_and_read, simulated_upstream, virtual_system
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.workloads.chat_traces import ChatRequest
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.routing.selector import PickConfig, RoutingFeedback, Target, UpstreamSelector
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.policy.routing.replica_cost import DECODE_TOKENS
from stayfast.testing.simloop import SimLoop

N_REPLICAS: Final = 4
NAMES: Final = tuple(f"replica-{number}" for number in range(N_REPLICAS))
ENGINE: Final = EngineModel(cache_tokens=400_000)
COST: Final = AffinityConfig("prefix", cache_tokens=400_000)


class RivalSelector(UpstreamSelector):
    """Orders the healthy upstreams by a rule of its own, and learns nothing."""

    def __init__(self, rule: str) -> None:
        super().__init__(PickConfig(affinity=AffinityConfig("prefix", cache_tokens=ENGINE.cache_tokens)), MODEL)
        self._rule = rule
        self._next = 0

    def rank(self, offers: Sequence[Target], request: Request, session: bytes, *, now: float, rng: Random
             ) -> tuple[list[int], RoutingFeedback, list[str]]:
        found, aim, notes = super().rank(offers, request, session, now=now, rng=rng)
        if self._rule == FILTER:
            best = max(work.cached for work in aim.works.values())
            key = [(aim.works[offer.member.upstream.name].cached < best, _tokens(offer)) for offer in offers]
            return sorted(range(len(offers)), key=key.__getitem__), aim, notes
        none = RoutingFeedback(self, aim.n_body, [], 0, aim.is_stored, aim.model)
        first = self._next = (self._next + 1) % len(offers)
        turns = [*range(first, len(offers)), *range(first)]
        if self._rule == ROUND_ROBIN:
            return turns, none, []
        measure = _requests if self._rule == BY_REQUESTS else _tokens
        return sorted(turns, key=lambda index: measure(offers[index])), none, []


def _requests(offer: Target) -> float:
    return float(offer.member.n_in_flight + offer.member.n_waiting)


def _tokens(offer: Target) -> float:
    ahead = offer.member.predictors.ahead.n if offer.member.predictors is not None else 0.0
    return ahead + DECODE_TOKENS * offer.member.n_in_flight


ROUND_ROBIN, BY_REQUESTS, BY_TOKENS, BY_COST, FILTER = (
    "round robin", "least-loaded by requests", "least-loaded by tokens", "by cost", "affinity as a filter")


@dataclass(frozen=True, slots=True)
class RoutedLoad:
    """waits_s: to the first token, infinite without one, in the order of the requests."""

    waits_s: list[float]
    n_refused: int
    hit_ratio: float
    truths: Mapping[str, str]


async def run_policy(loop: SimLoop, rule: str, requests: Sequence[ChatRequest], seed: int, engine: EngineModel = ENGINE,
                     config: AffinityConfig = COST) -> RoutedLoad:
    """Send the requests at their instants through a gateway that chooses by `rule`."""
    provider = ProviderConfig(ttft=Mixture(0.01), gaps=GapConfig(0.01, 0.0, 4), engine=engine, fills_max_tokens=True)
    providers = {name: replace(provider, seed=seed + number) for number, name in enumerate(NAMES)}
    system = virtual_system(loop, providers, seed, affinity=config, hedge=HedgeConfig("off"))
    if rule != BY_COST:
        routes = system.gateway.router.routes
        assert isinstance(routes, dict)
        routes[MODEL] = replace(routes[MODEL], selector=RivalSelector(rule))
    waits_s, n_refused = [inf] * len(requests), 0

    async def send(number: int, chat: ChatRequest) -> None:
        nonlocal n_refused
        try:
            served = await serve_and_read(system.gateway, chat.to_request(), Arrival(f"req_{number:x}", loop.now()), loop)
            waits_s[number] = served.ttft_s
        except StayfastError as failed:
            n_refused += 1

    began_at = loop.now()
    async with asyncio.TaskGroup() as group:
        for number, chat in enumerate(requests):
            await asyncio.sleep(max(0.0, began_at + chat.at_s - loop.now()))
            group.create_task(send(number, chat))
    engines = [simulated_upstream(system, name).provider.engine for name in NAMES]
    n_all = sum(one.n_prefix_tokens for one in engines if one is not None)
    n_hits = sum(one.n_prefix_hits for one in engines if one is not None)
    selector = system.gateway.router.routes[MODEL].selector
    assert selector is not None
    rates = [target.member.predictors.tokens_per_s(MODEL) for target in system.gateway.router.routes[MODEL].targets if target.member.predictors]
    return RoutedLoad(waits_s, n_refused, n_hits / max(1, n_all), {**{name: repr(one) for name, one in selector.beliefs.truths.items()}, "rates": str(rates)})
