"""A gateway of upstreams that fail by model, on virtual time."""

from collections.abc import Mapping
from random import Random

from stayfast.compose.assembly import assemble
from stayfast.compose.routes import bind_routes
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import RequestDone
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.plan import Route, RoutePolicy
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import RecordingSink, ScriptedUpstream, SendText, SimLoop, Wait
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.state.registry import Registry
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.wire.errors import make_failure, read_error_details
from tests.flow.rig import chat, read

NO_MODEL = {"error": {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found"}}
TWICE = RetryConfig(max_attempts=2)


def failure(status: int, said: object = None, retry_after_s: float | None = None) -> UpstreamFailed:
    """What an upstream answers."""
    return make_failure("up", Fault.STATUS, status, read_error_details(said or {}), b"", retry_after_s=retry_after_s)


class FailingUpstream(ScriptedUpstream):
    """Fails by the model that it is asked for; else answers after a tenth of a second."""

    def __init__(self, name: str, loop: SimLoop, **fails: UpstreamFailed | None) -> None:
        super().__init__(name, [[Wait(0.1), SendText("ok")]], loop)
        self.failures = fails
        self.called_models: list[str] = []

    async def open(self, call: Call) -> AnswerStream:
        self.called_models.append(call.model)
        error = self.failures.get(call.model) or self.failures.get("any")
        if error is not None:
            raise error
        return await super().open(call)


class FailureRig:
    """A gateway of such upstreams; all of them serve all routes, in this order."""

    def __init__(self, loop: SimLoop, *upstreams: FailingUpstream, routes: tuple[str, ...] = ("m",),
                 retry: RetryConfig = TWICE,
                 hedge: HedgeConfig | None = None, in_turn: bool = True, breaker: BreakerConfig | None = None) -> None:
        self.loop = loop
        self.sink = RecordingSink()
        self.registry = Registry(UpstreamState(upstream, None, breaker, sink=self.sink) for upstream in upstreams)
        self.routes = {name: Route(name, tuple(Target(member) for member in self.registry), in_turn, retry=retry,
                                   hedging=Hedging(hedge or HedgeConfig(mode="off"), retry)) for name in routes}
        bind_routes(self.registry, self.routes)
        self.gateway = assemble(self.routes, RoutePolicy(), clock=loop, rng=Random(7), sink=self.sink)
        self.notes: list[str] = []

    async def request(self, model: str = "m", headers: Mapping[str, str] | None = None, *, store: bool = False) -> str:
        """Who answered one request, read to its end."""
        reply: Reply = await self.gateway.serve(
            chat(model=model, store=store), Arrival("req_1", self.loop.now(), headers=tuple((headers or {}).items())))
        await read(reply)
        self.notes = list(self.sink.facts_of(RequestDone)[-1].notes)
        return reply.upstream
