"""A route with tiers of scripted upstreams on virtual time."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from stayfast.compose.assembly import assemble
from stayfast.core.deadline import Timeouts
from stayfast.core.events import RequestDone
from stayfast.core.types import Api
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.plan import Route, RoutePolicy, targets_for
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.relay import Reply
from stayfast.pipeline.tiers.ladder import RouteTier, RouteTiers, TierLearner, TierSpeeds
from stayfast.pipeline.tiers.verification import TierAdvisor, TierVerifier
from stayfast.policy.budget import BudgetConfig, divide_deadline
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.tiers.config import STANDARD, TierConfig, TierEntry, TierLadder
from stayfast.stores.memory import MemoryStore
from stayfast.testing import RecordingSink, Script, ScriptedUpstream, SendText, SimLoop, Wait
from stayfast.upstreams.state.upstream_state import UpstreamState
from tests.flow.rig import MODEL, chat, read, text_of


def answers(word: str, first_s: float, gap_s: float = 0.0, n: int = 3) -> list[Script]:
    """An answer of `n` equal words."""
    return [[step for number in range(n) for step in (Wait(gap_s if number else first_s), SendText(word))]]


class TiersRig:
    """One route whose tiers have one upstream each. Tiers whose names begin alike ("large", "large-fast") have one model."""

    def __init__(self, loop: SimLoop, tiers: Mapping[str, Sequence[Script]], *, total_s: float = 10.0,
                 config: TierConfig | None = None, fallback: Sequence[Script] = (), limit: LimitConfig | None = None,
                 hedge: HedgeConfig | None = None, advisor: TierAdvisor | None = None,
                 verifier: TierVerifier | None = None, cache: CacheConfig | None = None) -> None:
        self.loop, self.sink = loop, RecordingSink()
        self.speeds = TierSpeeds()
        self.upstreams = {name: ScriptedUpstream(name, scripts, loop) for name, scripts in tiers.items()}
        self.members = {name: UpstreamState(up, limit, sink=self.sink) for name, up in self.upstreams.items()}
        entries, made, skills = [], [], dict[str, int]()
        for name in tiers:
            model, _, speed = name.partition("-")
            entries.append(TierEntry(name, (name,), model))
            by_api: dict[Api, tuple[Target, ...]] = {}
            tier = RouteTier(name, skills.setdefault(model, len(skills)), speed or STANDARD, by_api)
            own = (Target(self.members[name], model, learner=TierLearner(self.speeds, tier)),)
            by_api.update({api: targets_for(own, api) for api in Api})
            made.append(tier)
        self.ladder = RouteTiers(MODEL, TierLadder(tuple(entries), config or TierConfig()), made, self.speeds,
                                 advisor=advisor, verifier=verifier)
        spare = [UpstreamState(ScriptedUpstream("spare", fallback, loop), sink=self.sink)] if fallback else []
        timeouts = Timeouts(total_s=total_s)
        policy = RoutePolicy(timeouts, divide_deadline(BudgetConfig(), total_s, "30%" if spare else ""), route=MODEL,
                             cache=RouteCache(cache, MODEL, MemoryStore(cache.max_bytes)) if cache is not None else None)
        retry = RetryConfig(max_attempts=1)
        targets = tuple(target for tier in made for target in tier.by_api[Api.CHAT])
        route = Route(MODEL, targets, False, policy, retry, tuple((Target(member),) for member in spare),
                      Hedging(hedge or HedgeConfig(mode="off"), retry), ladder=self.ladder)
        self.gateway = assemble({MODEL: route}, RoutePolicy(), clock=loop, rng=Random(7), sink=self.sink)

    async def serve(self, *, stream: bool = True, total_s: float | None = None, **fields: Any) -> Reply:
        """Serve one request that arrives now."""
        return await self.gateway.serve(chat(stream=stream, **fields), Arrival("req_1", self.loop.now(), total_s=total_s))

    async def text(self, *, stream: bool = True, total_s: float | None = None, **fields: Any) -> str:
        """The first word of the answer, which names its tier."""
        body = await read(await self.serve(stream=stream, total_s=total_s, **fields))
        return (text_of(body) if stream else body.decode().partition('"content":"')[2]).split()[0]

    async def warm(self, **seconds: float) -> None:
        """Some samples of tiers: the time to the end of an answer of three words, a third of which is the first token."""
        for tier in self.ladder.tiers:
            end_s = seconds.get(tier.name.replace("-", "_"))
            for _ in range(5 if end_s is not None else 0):
                samples = self.speeds.speed_of(tier.skill, tier.speed)
                samples.record_stream(100, (end_s or 0) / 3, (end_s or 0) / 3, self.loop.now())
                samples.record_length(2, self.loop.now())

    @property
    def last(self) -> RequestDone:
        """The newest request that has ended."""
        return self.sink.facts_of(RequestDone)[-1]

    def n_calls(self, name: str) -> int:
        """Calls at the upstream of a tier."""
        return self.upstreams[name].n_calls
