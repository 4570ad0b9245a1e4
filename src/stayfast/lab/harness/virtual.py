"""Virtual time: the whole pipeline with simulated providers, on an event loop whose clock skips all waiting."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from random import Random
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import msgspec

from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fact, Fanout, RequestDone, Sink
from stayfast.core.types import Api, Request
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.load.measure import LoadOrigin, run_plan
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.runner import LoadTarget
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.virtual import PipelineTarget, build_virtual_system
from stayfast.lab.simulated import Mixture, ProviderConfig, Simulated
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.wire.request_body import decode

P = ParamSpec("P")
T = TypeVar("T")
SEED_STEP: Final = 0x9E3779B1  # odd, so that no two seeds give the same; large, so that seeds of neighbours differ
HEAVY_TAIL: Final = Mixture(0.191, 0.5, 0.068, 3.66, 0.745)  # p99 8 s


def run_virtual(measure: Callable[Concatenate[SimLoop, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
    """Run `measure(loop, ...)` on a new virtual loop."""
    return run(lambda loop: measure(loop, *args, **options))


async def run_virtual_in_thread(measure: Callable[Concatenate[SimLoop, P], Coroutine[Any, Any, T]], *args: P.args,
                                **options: P.kwargs) -> T:
    """The same on another thread: a run takes minutes of real time, in which signals must be handled."""
    return await asyncio.to_thread(lambda: run_virtual(measure, *args, **options))


@dataclass(frozen=True, slots=True)
class VirtualClaim:
    """A claim that is measured in virtual time only, by `measure(loop, n, seed)`. `progress` is formatted with n."""

    name: str
    statement: str
    measure: Callable[[SimLoop, int, int], Coroutine[Any, Any, ClaimResult]]
    progress: str
    n: int
    n_quick: int

    async def run(self, conditions: Conditions) -> ClaimResult:
        n = conditions.choose(self.n, self.n_quick)
        conditions.report_progress(self.progress.format(n))
        return await run_virtual_in_thread(self.measure, n, conditions.seed)


def virtual_system(loop: SimLoop, providers: Mapping[str, ProviderConfig], seed: int,
                   upstream: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None,
                   **route: Any) -> System:
    """A system with one route, "m", to simulated providers. upstream: additional settings of each upstream. settings: of the
    gateway. route: of the route.
    """
    upstreams = {name: SimulatedUpstream(provider=provider, probe=False, **(upstream or {}))
                 for name, provider in providers.items()}
    return build_virtual_system(Settings(upstreams=upstreams, routes={MODEL: RouteSettings(tuple(providers), **route)},
                            **(settings or {})), loop, seed)


def system_with_sink(settings: Settings, sink: Sink, loop: SimLoop, rng: Random) -> System:
    """A system whose facts go to `sink` instead of the usual observers."""
    observers = Observers(settings, loop)
    observers.sink = sink
    return build(settings, observers, {}, loop, rng)


def seed_provider(config: ProviderConfig, seed: int) -> ProviderConfig:
    """The provider with draws of its own for each seed of a run, and for each seed that it has itself."""
    return replace(config, seed=(config.seed + seed * SEED_STEP) % 2**32)


def simulated_upstream(system: System, name: str) -> Simulated:
    upstream = system.registry[name].upstream
    assert isinstance(upstream, Simulated)
    return upstream


async def run_load_virtual(system: System, load: LoadSpec, loop: SimLoop, seed: int, *, tenant: str | None = None,
                           prompts: Prompts | None = None,
                           wrap_target: Callable[[LoadTarget], LoadTarget] = lambda target: target) -> Result:
    """Put the bench's load on a system in virtual time."""
    target = wrap_target(PipelineTarget(system.gateway, load.request_config(), prompts or Prompts(seed), loop, tenant))
    subject = Subject("virtual", "virtual:", load.api.value, load.model)
    [result] = await run_plan(load.plan(seed), [(subject, target)], loop, LoadOrigin(), is_virtual=True)
    return result


async def run_arrivals(n: int, rate: float, rng: Random, begin: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    """Run `begin(number)` for each of n Poisson arrivals (`rate` per second), and wait for all of them."""
    async with asyncio.TaskGroup() as group:
        for number in range(n):
            group.create_task(begin(number))
            await asyncio.sleep(rng.expovariate(rate))


async def read_body(reply: Reply) -> bytes:
    """The whole body. The reply is closed in any case."""
    parts = []
    try:
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
    finally:
        reply.close()
    return b"".join(parts)


class VirtualReply(NamedTuple):
    """A reply that was read to its end. ttft_s: from the call to the first chunk."""

    reply: Reply
    ttft_s: float
    body: bytes


async def serve_and_read(gateway: Gateway, request: Request, arrival: Arrival, clock: Clock) -> VirtualReply:
    """Send one request through a gateway and read the whole answer. Raises StayfastError."""
    began_at = clock.now()
    reply = await gateway.serve(request, arrival)
    ttft_s = clock.now() - began_at
    return VirtualReply(reply, ttft_s, await read_body(reply))


UPSTREAM = "provider"
DAY_S = 86_400.0


@dataclass(slots=True)
class TenantTotals:
    """Sums over one tenant's finished requests."""

    n: int = 0
    n_shed: int = 0
    requests: int = 0  # with at least one upstream attempt
    tokens: int = 0
    input_tokens: int = 0
    cost_usd: float = 0.0
    ttft_s: list[float] = field(default_factory=list)


class TenantLedger:
    """A sink that sums requests by tenant. While `is_open` is false, finished requests are not counted."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, TenantTotals] = {}
        self.is_open = True

    def open(self) -> None:
        """Start counting."""
        self.is_open = True

    def emit(self, fact: Fact) -> None:
        if not isinstance(fact, RequestDone) or not self.is_open:
            return
        totals = self.by_tenant.setdefault(fact.tenant or "", TenantTotals())
        totals.n += 1
        totals.n_shed += fact.shed is not None
        totals.requests += fact.n_attempts > 0
        totals.cost_usd += fact.cost_usd or 0.0
        if fact.ttft_s is not None:
            totals.ttft_s.append(fact.ttft_s)
        if fact.usage is not None:
            totals.tokens += fact.usage.input_total + fact.usage.output
            totals.input_tokens += fact.usage.input_total


class VirtualTenants:
    """A gateway with tenants, on one virtual loop. The provider's draws depend on `seed`. sink: receives the facts in place
    of `ledger`.
    """

    def __init__(self, provider: ProviderConfig, tenants: Mapping[str, TenantConfig], admission: AdmissionConfig,
                 loop: SimLoop, seed: int, *, price: Price | None = None, sink: Sink | None = None) -> None:
        prices = {MODEL: price} if price is not None else {}
        upstream = SimulatedUpstream(provider=seed_provider(provider, seed), probe=False, prices=prices,
                                     limit=LimitConfig(mode="off"))
        settings = Settings(upstreams={UPSTREAM: upstream}, routes={MODEL: RouteSettings((UPSTREAM,))}, tenants=tenants,
                            admission=admission, log=LogSettings(level="error", requests=False))
        self.ledger = TenantLedger()
        observers = Observers(settings, loop)
        observers.sink = Fanout(observers.sink, self.ledger if sink is None else sink)
        self.system = build(settings, observers, {}, loop, Random(seed))
        self._loop = loop
        self._numbers = count()

    @property
    def admission(self) -> Admission:
        admit = self.system.gateway.admit
        assert isinstance(admit, Admission)
        return admit

    async def send(self, tenant: str | None, request: Request, leave_after_s: float = DAY_S, *, prefix: str = "req",
                   urgency: Urgency | None = None) -> float:
        """Send a request and read the answer; the client leaves after `leave_after_s`. Returns the wait for the first token,
        infinite if the answer was not complete. prefix: of the request's id.
        """
        arrival = Arrival(f"{prefix}_{next(self._numbers):x}", self._loop.now(), tenant, urgency=urgency)
        try:
            async with asyncio.timeout(leave_after_s):
                return (await serve_and_read(self.system.gateway, request, arrival, self._loop)).ttft_s
        except (StayfastError, TimeoutError):
            return inf  # the gateway's facts contain the reason

    def leftover_figure(self, n_more: int = 0) -> Figure:
        """The places that are still occupied, which must be none. n_more: other things that must be gone."""
        return Figure.count("places still taken at the end", self.admission.places.n_taken + n_more)


def leftover_tasks_figure() -> Figure:
    """The tasks other than the current one; there must be none."""
    return Figure.count("Tasks left behind", len(asyncio.all_tasks()) - 1)


def chat_request(n_input: int, n_output: int) -> Request:
    """A streamed request of about n_input tokens, whose answer has at most n_output."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word" * n_input}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": n_output}
    return decode(Api.CHAT, msgspec.json.encode(body))
