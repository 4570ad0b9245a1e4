"""Routing by cost in front of replicas with prefix caches, against round robin and least-loaded by requests and by tokens.

One gateway with production defaults, in virtual time, in front of four simulated engines whose caches evict least recently
used blocks. Every policy gets the same requests at the same instants; only the order of the upstreams differs. A rival
counts what the gateway counts: by requests, those in flight; by tokens, prompts without a first token plus DECODE_TOKENS for
each running call, which is the cost without a cache. Two more are shown without a goal: the cache as a filter (the replicas
with the most of the prompt, then the least loaded), and each conversation at one replica, by a hash.

Made-up conversations always run. They are built to be reused: turns repeat the conversation, and eight applications share
instructions. Two loads, chosen by what least-loaded by tokens uses of the prefill capacity: nearly 40 %, and about 75 %. The
first RAMP_S are not measured. With `--data` also the arrivals and lengths of two traces: Mooncake's conversations, whose
prompts continue earlier ones as the trace says, at prompts of up to LIMIT_TOKENS; and Azure's of 2023, whose prompts are
not known to share anything. There routing by cost can gain nothing, and must not lose. They are measured from the start.

When wrong: real engines preempt, chunk their prefills and share memory between cache and batch; the traces' texts are
reconstructed; there is one gateway, so none sees the load of another.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, nan
from random import Random
from statistics import fmean, median
from typing import Final

from stayfast.core.errors import StayfastError
from stayfast.core.types import Request
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, NeedsData, ratio
from stayfast.lab.harness.intervals import block_interval, mean_interval, ratio_interval
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import run_virtual_in_thread, serve_and_read, simulated_upstream, virtual_system
from stayfast.lab.load.arrivals import read_trace
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.workloads.chat_traces import ConversationTurn, link_trace, make_conversations, offered_tokens_per_s
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.routing.selector import PickConfig, RoutingFeedback, Target, UpstreamSelector
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.policy.routing.replica_cost import DECODE_TOKENS
from stayfast.testing.simloop import SimLoop

MEAN_GOAL, P99_GOAL = 0.80, 0.80  # of the best rival, on conversations
NO_LOSS: Final = 1.05  # on traces
LATE_S: Final = 2.0
LIMIT_TOKENS: Final = 60_000
CONVERSATION_BLOCK: Final = 17  # of affinity's blocks: behind an application's instructions, in the first message
N_REPLICAS: Final = 4
N_BLOCKS: Final = 10
NAMES: Final = tuple(f"replica-{number}" for number in range(N_REPLICAS))
ENGINE: Final = EngineModel(prefill_tokens_per_s=10_000.0, cache_tokens=400_000)
COST: Final = AffinityConfig("prefix", cache_tokens=400_000)
MOONCAKE, AZURE = "mooncake_conversation.csv", "azure_llm_2023_conv.csv"
CONVERSATION_RPS: Final = {"spare capacity": 5.0, "near saturation": 8.0}
RAMP_S: Final = 90.0  # until conversations begin and end equally often, and the caches are full
TRACE_SCALES: Final = {  # of their times
    MOONCAKE: {"spare capacity": 2.0, "near saturation": 1.2}, AZURE: {"spare capacity": 0.4, "near saturation": 0.16}}
ROUND_ROBIN, BY_REQUESTS, BY_TOKENS, BY_COST, FILTER, STICKY = (
    "round robin", "least-loaded by requests", "least-loaded by tokens", "by cost", "affinity as a filter",
    "each conversation at one replica")
RIVALS: Final = (ROUND_ROBIN, BY_REQUESTS, BY_TOKENS)


class RivalSelector(UpstreamSelector):
    """Orders the healthy upstreams by a rule of its own, and learns nothing."""

    def __init__(self, rule: str) -> None:
        super().__init__(PickConfig(affinity=AffinityConfig("prefix", cache_tokens=ENGINE.cache_tokens)), MODEL)
        self._rule = rule
        self._next = 0

    def rank(self, offers: Sequence[Target], request: Request, session: bytes, *, now: float, rng: Random
             ) -> tuple[list[int], RoutingFeedback, list[str]]:
        _, aim, notes = super().rank(offers, request, session, now=now, rng=rng)
        if self._rule == FILTER and aim.works:
            best = max(work.cached for work in aim.works.values())
            key = [(aim.works[offer.member.upstream.name].cached < best, _tokens(offer)) for offer in offers]
            return sorted(range(len(offers)), key=key.__getitem__), aim, notes
        none = RoutingFeedback(self, aim.n_body, [], 0, aim.is_stored, aim.model)
        if self._rule == STICKY and aim.blocks:
            first = aim.blocks[min(CONVERSATION_BLOCK, len(aim.blocks) - 1)] % len(offers)
        else:
            first = self._next = (self._next + 1) % len(offers)
        turns = [*range(first, len(offers)), *range(first)]
        if self._rule in (ROUND_ROBIN, STICKY):
            return turns, none, []
        measure = _requests if self._rule == BY_REQUESTS else _tokens
        return sorted(turns, key=lambda index: measure(offers[index])), none, []


def _requests(offer: Target) -> float:
    return float(offer.member.n_in_flight + offer.member.n_waiting)


def _tokens(offer: Target) -> float:
    ahead = offer.member.predictors.ahead.n if offer.member.predictors is not None else 0.0
    return ahead + DECODE_TOKENS * offer.member.n_in_flight


@dataclass(frozen=True, slots=True)
class RoutedLoad:
    """waits_s: to the first token, infinite without one, in the order of the requests."""

    waits_s: list[float]
    n_refused: int
    hit_ratio: float  # of prompt tokens, as the engines count them
    used: float  # of the engines' prefill capacity; more than 1: queues grew until the end
    believed_off: float  # largest difference of belief and reported hits, over the upstreams
    rates: tuple[float | None, ...]  # learned prefill rates

    @property
    def mean_s(self) -> float:
        """Of the answered requests."""
        return fmean([wait_s for wait_s in self.waits_s if wait_s < inf])

    @property
    def p99_s(self) -> float:
        return ExactDistribution(self.waits_s).quantile(0.99)

    @property
    def n_late(self) -> int:
        """Answered requests whose first token came after LATE_S."""
        return sum(LATE_S < wait_s < inf for wait_s in self.waits_s)

    def figures(self, where: str) -> list[Figure]:
        low, high = block_interval(self.waits_s, 0.99)
        return [Figure(f"{where}: TTFT mean", self.mean_s, "s"),
                Figure(f"{where}: TTFT p99", self.p99_s, "s", low=low, high=high),
                Figure.count(f"{where}: first tokens after {LATE_S:g} s", self.n_late, None),
                Figure.count(f"{where}: requests refused or failed", self.n_refused, None),
                Figure.percent(f"{where}: prompt tokens found in the caches", self.hit_ratio),
                Figure.percent(f"{where}: prefill capacity used", self.used)]


async def run_policy(loop: SimLoop, rule: str, requests: Sequence[ConversationTurn], n_before: int, seed: int
                     ) -> RoutedLoad:
    """Send the requests at their instants through a gateway that chooses by `rule`. n_before: that only fill the caches."""
    provider = ProviderConfig(ttft=Mixture(0.01), gaps=GapConfig(0.01, 0.0, 4), engine=ENGINE, fills_max_tokens=True)
    providers = {name: replace(provider, seed=seed + number) for number, name in enumerate(NAMES)}
    system = virtual_system(loop, providers, seed, affinity=COST, hedge=HedgeConfig("off"))
    if rule != BY_COST:
        routes = system.gateway.router.routes
        assert isinstance(routes, dict)
        routes[MODEL] = replace(routes[MODEL], selector=RivalSelector(rule))
    waits_s = [inf] * len(requests)

    async def send(number: int, chat: ConversationTurn) -> None:
        try:
            served = await serve_and_read(system.gateway, chat.to_request(), Arrival(f"req_{number:x}", loop.now()), loop)
            waits_s[number] = served.ttft_s
        except StayfastError:
            return  # it stays infinite

    began_at = loop.now()
    engines = [one for name in NAMES if (one := simulated_upstream(system, name).provider.engine) is not None]
    n_tokens = n_hits = 0
    async with asyncio.TaskGroup() as group:
        for number, chat in enumerate(requests):
            await asyncio.sleep(max(0.0, began_at + chat.at_s - loop.now()))
            if number == n_before:
                n_tokens, n_hits = sum(one.n_prefix_tokens for one in engines), sum(one.n_prefix_hits for one in engines)
            group.create_task(send(number, chat))
    n_tokens, n_hits = (sum(one.n_prefix_tokens for one in engines) - n_tokens,
                        sum(one.n_prefix_hits for one in engines) - n_hits)
    span_s = requests[-1].at_s - requests[n_before].at_s
    route = system.gateway.router.routes[MODEL]
    assert route.selector is not None
    truths = route.selector.beliefs.truths.values()
    measured_s = waits_s[n_before:]
    return RoutedLoad(
        measured_s, sum(wait_s == inf for wait_s in measured_s), ratio(n_hits, n_tokens),
        ratio(n_tokens - n_hits, N_REPLICAS * ENGINE.prefill_tokens_per_s * span_s),
        max([truth.belief - truth.truth for truth in truths if truth.belief is not None and truth.truth is not None],
            default=0.0),
        tuple(target.member.predictors.tokens_per_s(MODEL) for target in route.targets
              if target.member.predictors is not None))


@dataclass(frozen=True, slots=True)
class AffinityClaim:
    """n of an extent: requests of each load. rule: the policy under test. shown: others without a goal. loads: of made-up
    conversations, requests per second. ramp_s: of them, not measured.
    """

    full: Extent = Extent(2000)
    quick: Extent = Extent(500)
    rule: str = BY_COST
    shown: Sequence[str] = (STICKY, FILTER)
    loads: Mapping[str, float] = field(default_factory=lambda: CONVERSATION_RPS)
    ramp_s: float = RAMP_S

    name = "affinity"
    statement = (f"In front of {N_REPLICAS} simulated engines with prefix caches, on made-up conversations that are built "
                 f"to reuse prompts, routing by cost has at most {MEAN_GOAL:.0%} of the mean and {P99_GOAL:.0%} of the p99 "
                 "time to the first token of the best of round robin and least-loaded by requests and by tokens, with spare "
                 "capacity and near saturation. On Mooncake's and Azure's traces (`--data`) both are at most "
                 f"{NO_LOSS - 1:.0%} above the best of them. No load has more refused requests than with the best of them.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n, seed = conditions.choose(self.full, self.quick).n, conditions.seed
        figures: list[Figure] = []
        for load, rate_rps in self.loads.items():
            n_before = round(rate_rps * self.ramp_s)
            requests = make_conversations(rate_rps, n_before + n, seed)
            figures += await self._compare(conditions, f"conversations, {load}", requests, n_before, is_made_up=True)
        for trace, scales in TRACE_SCALES.items() if conditions.data is not None else ():
            assert conditions.data is not None
            path = conditions.data / trace
            if not path.is_file():
                raise NeedsData(f"--data: there is no file {trace} (source: docs/proofs.md)")
            for load, scale in scales.items():
                rows = read_trace(path.read_text().splitlines(), scale)[:n]
                requests = link_trace(rows, LIMIT_TOKENS)
                figures += await self._compare(conditions, f"{trace}, {load}", requests)
        return ClaimResult(tuple(figures))

    async def _compare(self, conditions: Conditions, where: str, requests: Sequence[ConversationTurn], n_before: int = 0,
                       *, is_made_up: bool = False) -> list[Figure]:
        """n_before: requests that are not measured."""
        mean_goal, p99_goal = (MEAN_GOAL, P99_GOAL) if is_made_up else (NO_LOSS, NO_LOSS)
        found: dict[str, RoutedLoad] = {}
        for rule in (*RIVALS, *[rule for rule in self.shown if is_made_up or rule != STICKY], self.rule):
            conditions.report_progress(f"{where}: {len(requests):,} requests, {rule}")
            found[rule] = await run_virtual_in_thread(run_policy, rule, requests, n_before, conditions.seed)
        ours, rivals = found[self.rule], [found[rule] for rule in RIVALS]
        best = min(rivals, key=lambda one: (one.n_refused, one.mean_s))
        best_p99 = min(rivals, key=lambda one: one.p99_s)
        low, high = ratio_interval(ours.waits_s, best_p99.waits_s, 0.99)
        mean_low, mean_high = mean_interval(_block_ratios(ours.waits_s, best.waits_s))
        figures = [Figure(f"{where}: offered prompt tokens", offered_tokens_per_s(requests), "tokens/s")]
        for rule, load in found.items():
            figures += load.figures(f"{where}, {rule}")
        rates = [rate for rate in ours.rates if rate is not None]
        return [*figures,
                Figure(f"{where}: mean over the best rival's", ours.mean_s / best.mean_s, "x", mean_goal, low=mean_low,
                       high=mean_high),
                Figure(f"{where}: p99 over the best rival's", ours.p99_s / best_p99.p99_s, "x", p99_goal, low=low,
                       high=high),
                Figure.count(f"{where}: requests refused, more than with the best rival", ours.n_refused - best.n_refused),
                Figure.exact(f"{where}: belief over reported hits, at most", ours.believed_off * 100, "points", 15.0),
                Figure(f"{where}: learned prefill rate of {ENGINE.prefill_tokens_per_s:g} (median)",
                       median(rates) if rates else nan, "tokens/s")]


def _block_ratios(ours_s: Sequence[float], theirs_s: Sequence[float]) -> list[float]:
    """The ratio of the means of answered requests in each of N_BLOCKS blocks of neighbours."""
    ends = [len(ours_s) * block // N_BLOCKS for block in range(N_BLOCKS + 1)]
    means = [[fmean([wait_s for wait_s in waits_s[begin:end] if wait_s < inf] or [inf]) for begin, end in pairwise(ends)]
             for waits_s in (ours_s, theirs_s)]
    return [ours / theirs for ours, theirs in zip(*means, strict=True)]
