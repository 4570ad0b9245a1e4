"""A gateway of scripted upstreams on virtual time, for flow tests."""

from collections.abc import Sequence
from random import Random

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.core.types import Api, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.plan import Route, RoutePolicy
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.admit.admission import Admission, Admit, AdmitAll
from stayfast.pipeline.stages.cache.lookup import NoCache
from stayfast.pipeline.stages.call.caller import Caller
from stayfast.pipeline.stages.context import AsSent
from stayfast.pipeline.stages.relay import Relay, Reply
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.stages.settle import Settle
from stayfast.pipeline.stages.template import Template
from stayfast.pipeline.timing.timeouts import TimerWheel
from stayfast.policy.admission.price import Price
from stayfast.policy.budget import BudgetConfig, share_out
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import RecordingSink, Script, Scripted, SimLoop
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.state.upstream_state import Registry, UpstreamState
from stayfast.wire.json_input import decode

MODEL = "m"


class Rig:
    """The parts that a test looks at."""

    def __init__(self, loop: SimLoop, *scripts: Sequence[Script], timeouts: Timeouts | None = None,
                 retry: RetryConfig | None = None, upstreams: Sequence[Upstream] = (), in_turn: bool = False,
                 n_fallback: int = 0, reserve: str = "30%", budget: BudgetConfig | None = None, template: str = "",
                 partial: bool = False, price: Price | None = None, admit: Admit | None = None,
                 limit: LimitConfig | None = None, breaker: BreakerConfig | None = None) -> None:
        self.loop = loop
        self.sink = RecordingSink()
        self.scripted = [Scripted(f"up{n}", script, loop) for n, script in enumerate(scripts)]
        self.registry = Registry(UpstreamState(upstream, limit, breaker, sink=self.sink)
                                 for upstream in (*self.scripted, *upstreams))
        prices = {MODEL: price} if price is not None else {}
        targets = [Target(member, prices=prices) for member in self.registry]
        n_own = len(targets) - n_fallback
        timeouts = timeouts or Timeouts()
        terms = RoutePolicy(timeouts, share_out(budget or BudgetConfig(), timeouts.total_s, reserve if n_fallback else ""),
                      template, partial)
        route = Route(MODEL, tuple(targets[:n_own]), in_turn, terms, retry or RetryConfig(max_attempts=1),
                      (tuple(targets[n_own:]),) if n_fallback else ())
        rng = Random(7)
        settle = Settle(loop, self.sink)
        self.router = router = Router({MODEL: route}, RoutePolicy(), loop, rng)
        caller = Caller(loop, rng, self.sink, admit.is_shedding if isinstance(admit, Admission) else None)
        self.gateway = Gateway(TimerWheel(loop), admit or AdmitAll(), NoCache(), AsSent(), router, caller,
                               Template(loop, self.sink), Relay(loop, settle.done), settle)

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


def said(body: bytes) -> str:
    """The text of an SSE chat body."""
    words = []
    for line in body.split(b"\n\n"):
        if line.startswith(b"data: {"):
            words += [choice["delta"].get("content") or "" for choice in msgspec.json.decode(line[6:])["choices"]]
    return "".join(words)
