"""A gateway of scripted upstreams on virtual time, for flow tests."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from stayfast.compose.assembly import assemble
from stayfast.core.deadline import Timeouts
from stayfast.core.types import Api, Request
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.plan import CallKey, Route, RoutePolicy
from stayfast.pipeline.prompt_versions import PromptVersions
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.pipeline.stages.admit.key_quota import KeyQuotas
from stayfast.pipeline.stages.cache.idempotency import IdempotentAnswers
from stayfast.pipeline.stages.cache.shared_call import SharedCall
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.response_owners import ResponseOwners
from stayfast.policy.budget import BudgetConfig, divide_deadline
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.idempotency import IdempotencyConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.stores.memory import MemoryStore
from stayfast.testing import RecordingSink, Script, ScriptedUpstream, SimLoop
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.wire.request_body import decode

MODEL = "m"


class Rig:
    """The parts that a test looks at."""

    def __init__(self, loop: SimLoop, *scripts: Sequence[Script], timeouts: Timeouts | None = None,
                 retry: RetryConfig | None = None, upstreams: Sequence[Upstream] = (), in_turn: bool = False,
                 n_fallback: int = 0, reserve: str = "30%", budget: BudgetConfig | None = None, template: str = "",
                 partial: bool = False, price: Price | None = None, admit: Admit | None = None,
                 limit: LimitConfig | None = None, breaker: BreakerConfig | None = None, cache: CacheConfig | None = None,
                 idempotency: IdempotencyConfig | None = None, owners: ResponseOwners | None = None,
                 key_quotas: KeyQuotas | None = None) -> None:
        self.loop = loop
        self._key_quotas = key_quotas
        self.sink = RecordingSink()
        self.scripted = [ScriptedUpstream(f"up{n}", script, loop) for n, script in enumerate(scripts)]
        self.registry = Registry(UpstreamState(upstream, limit, breaker, sink=self.sink)
                                 for upstream in (*self.scripted, *upstreams))
        prices = {MODEL: price} if price is not None else {}
        targets = [Target(member, prices=prices) for member in self.registry]
        n_own = len(targets) - n_fallback
        timeouts = timeouts or Timeouts()
        policy = RoutePolicy(
            timeouts, divide_deadline(budget or BudgetConfig(), timeouts.total_s, reserve if n_fallback else ""), template,
            partial, MODEL, RouteCache(cache, MODEL, MemoryStore(cache.max_bytes)) if cache is not None else None)
        self._route = Route(MODEL, tuple(targets[:n_own]), in_turn, policy, retry or RetryConfig(max_attempts=1),
                            (tuple(targets[n_own:]),) if n_fallback else ())
        self._admit = admit
        self._idempotency = idempotency
        self._owners = owners
        self._versions: PromptVersions | None = None
        self._assemble()

    def _assemble(self) -> None:
        self.gateway = assemble({MODEL: self._route}, RoutePolicy(), clock=self.loop, rng=Random(7), sink=self.sink,
                                admit=self._admit, idempotency=self._idempotency, owners=self._owners,
                                key_quotas=self._key_quotas, versions=self._versions)
        self.router = self.gateway.router

    def change_route(self, **fields: Any) -> None:
        """A new gateway, whose route has other fields."""
        self._route = replace(self._route, **fields)
        self._assemble()

    def change_policy(self, **fields: Any) -> None:
        """A new gateway, whose route has another policy."""
        self.change_route(policy=replace(self._route.policy, **fields))

    def track(self, versions: PromptVersions) -> None:
        """A new gateway, which tells system prompts apart."""
        self._versions = versions
        self._assemble()

    @property
    def calls(self) -> dict[CallKey, SharedCall]:
        """Calls that requests may join."""
        return self.gateway.coalescer.calls

    @property
    def answers(self) -> IdempotentAnswers:
        """The idempotency keys."""
        return self.gateway.idempotency.answers

    @property
    def n_in_flight(self) -> int:
        """Requests that any member still counts."""
        return sum(member.n_in_flight for member in self.registry)

    @property
    def n_open(self) -> int:
        """Streams that are still open at the scripted upstreams."""
        return sum(upstream.n_open for upstream in self.scripted)

    async def serve(self, request: Request | None = None, total_s: float | None = None) -> Reply:
        """Serve one request that arrives now."""
        return await self.gateway.serve(request or chat(), Arrival("req_1", self.loop.now(), total_s=total_s))


def chat(*, stream: bool = True, model: str = MODEL, **fields: object) -> Request:
    """A chat request."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": stream, **fields}
    return decode(Api.CHAT, msgspec.json.encode(body))


async def read(reply: Reply) -> bytes:
    """The whole body."""
    parts = []
    while (chunk := await reply.next()) is not None:
        parts.append(chunk.data)
    return b"".join(parts)


def text_of(body: bytes) -> str:
    """The text of an SSE chat body."""
    words = []
    for line in body.split(b"\n\n"):
        if line.startswith(b"data: {"):
            words += [choice["delta"].get("content") or "" for choice in msgspec.json.decode(line[6:])["choices"]]
    return "".join(words)
