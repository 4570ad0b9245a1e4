"""Virtual time: runs of the whole pipeline on a loop on which waiting costs nothing, with simulated providers.. For several
tenants at one gateway: what that reports of each request that is over.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from stayfast.compose.system import Observers, System, build
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fact, Fanout, RequestDone, Sink
from stayfast.core.types import Api, Request
from stayfast.lab.harness.claim import Conditions, Finding
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.load.measure import LoadOrigin, perform
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.runner import LoadTarget
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.virtual import PipelineTarget, virtual
from stayfast.lab.simulated import Mixture, ProviderConfig, Simulated
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.wire.json_input import decode

P = ParamSpec("P")
T = TypeVar("T")
HEAVY_TAIL: Final = Mixture(0.191, 0.5, 0.068, 3.66, 0.745)  # p99 8 s


def run_virtual(play: Callable[Concatenate[SimLoop, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
    """Run `play(loop, ...)` to its end on a virtual loop of its own."""
    return run(lambda loop: play(loop, *args, **options))


async def run_virtual_in_thread(play: Callable[Concatenate[SimLoop, P], Coroutine[Any, Any, T]], *args: P.args,
                                **options: P.kwargs) -> T:
    """The same on another thread: virtual time takes minutes, in which signals must be handled."""
    return await asyncio.to_thread(lambda: run_virtual(play, *args, **options))


@dataclass(frozen=True, slots=True)
class VirtualClaim:
    """A claim that is proven in virtual time alone. `play(loop, n, seed)` measures; `progress` is formatted with n."""

    name: str
    says: str
    play: Callable[[SimLoop, int, int], Coroutine[Any, Any, Finding]]
    progress: str
    n: int
    n_quick: int

    async def run(self, conditions: Conditions) -> Finding:
        n = conditions.choose(self.n, self.n_quick)
        conditions.report_progress(self.progress.format(n))
        return await run_virtual_in_thread(self.play, n, conditions.seed)


def virtual_system(loop: SimLoop, providers: Mapping[str, ProviderConfig], seed: int,
                   upstream: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None,
                   **route: Any) -> System:
    """A system with one route, "m", to these simulated providers. upstream: more settings of each of them. settings: more of
    the gateway.
    """
    upstreams = {name: SimulatedUpstream(provider=provider, probe=False, **(upstream or {}))
                 for name, provider in providers.items()}
    return virtual(Settings(upstreams=upstreams, routes={MODEL: RouteSettings(tuple(providers), **route)},
                            **(settings or {})), loop,
                   seed)


def simulated(system: System, name: str) -> Simulated:
    upstream = system.registry[name].upstream
    assert isinstance(upstream, Simulated)
    return upstream


async def ask_pipeline(system: System, load: LoadSpec, loop: SimLoop, seed: int, *, tenant: str | None = None,
                       prompts: Prompts | None = None,
                       through: Callable[[LoadTarget], LoadTarget] = lambda target: target) -> Result:
    """Put the bench's load on a system in virtual time. through: wraps the target."""
    target = through(PipelineTarget(system.gateway, load.asking(), prompts or Prompts(seed), loop, tenant))
    subject = Subject("virtual", "virtual:", load.api.value, load.model)
    [found] = await perform(load.plan(seed), [(subject, target)], loop, LoadOrigin(), is_virtual=True)
    return found


async def arrive(n: int, rate: float, rng: Random, begin: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    """Run `begin(number)` for each of n arrivals, which come at random (Poisson), to the end of all."""
    async with asyncio.TaskGroup() as group:
        for number in range(n):
            group.create_task(begin(number))
            await asyncio.sleep(rng.expovariate(rate))


async def read(reply: Reply) -> bytes:
    """The whole body. The reply is closed whatever happens."""
    parts = []
    try:
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
    finally:
        reply.close()
    return b"".join(parts)


UPSTREAM = "provider"
DAY_S = 86_400.0


@dataclass(slots=True)
class TenantTotals:
    """The sums over one tenant's requests that have ended."""

    n: int = 0
    n_shed: int = 0
    requests: int = 0  # for which an upstream was asked
    tokens: int = 0
    input_tokens: int = 0
    cost_usd: float = 0.0
    ttft_s: list[float] = field(default_factory=list)


class TenantLedger:
    """A sink with a book for each tenant. While `is_open` is false, requests that end are not counted."""

    def __init__(self) -> None:
        self.of: dict[str, TenantTotals] = {}
        self.is_open = True

    def begin(self) -> None:
        """Count from here on."""
        self.is_open = True

    def emit(self, fact: Fact) -> None:
        if not isinstance(fact, RequestDone) or not self.is_open:
            return
        book = self.of.setdefault(fact.tenant or "", TenantTotals())
        book.n += 1
        book.n_shed += fact.shed is not None
        book.requests += fact.n_attempts > 0
        book.cost_usd += fact.cost_usd or 0.0
        if fact.ttft_s is not None:
            book.ttft_s.append(fact.ttft_s)
        if fact.usage is not None:
            book.tokens += fact.usage.input_total + fact.usage.output
            book.input_tokens += fact.usage.input_total


class VirtualTenants:
    """A gateway and its tenants, on one virtual loop. sink: gets the facts instead of `books`."""

    def __init__(self, provider: ProviderConfig, tenants: Mapping[str, TenantConfig], admission: AdmissionConfig,
                 loop: SimLoop, seed: int, *, price: Price | None = None, sink: Sink | None = None) -> None:
        prices = {MODEL: price} if price is not None else {}
        upstream = SimulatedUpstream(provider=provider, probe=False, prices=prices, limit=LimitConfig(mode="off"))
        settings = Settings(upstreams={UPSTREAM: upstream}, routes={MODEL: RouteSettings((UPSTREAM,))}, tenants=tenants,
                            admission=admission, log=LogSettings(level="error", requests=False))
        self.books = TenantLedger()
        observers = Observers(settings, loop)
        observers.sink = Fanout(observers.sink, self.books if sink is None else sink)
        self.system = build(settings, observers, {}, loop, Random(seed))
        self._loop = loop
        self._numbers = count()

    @property
    def admission(self) -> Admission:
        """The stage on trial."""
        admit = self.system.gateway.admit
        assert isinstance(admit, Admission)
        return admit

    async def ask(self, tenant: str | None, request: Request, leave_after_s: float = DAY_S, *, prefix: str = "req",
                  urgency: Urgency | None = None) -> float:
        """Send a request and read to the end, or leave. Returns the wait for the first token, infinite where the answer
        did not come whole. `prefix` begins the request's id.
        """
        began_at = self._loop.now()
        arrival = Arrival(f"{prefix}_{next(self._numbers):x}", began_at, tenant, urgency=urgency)
        try:
            async with asyncio.timeout(leave_after_s):
                reply = await self.system.gateway.serve(request, arrival)
                wait_s = self._loop.now() - began_at
                try:
                    while await reply.next() is not None:
                        pass
                finally:
                    reply.close()
        except (StayfastError, TimeoutError):
            return inf  # the gateway's facts have the reason
        return wait_s


def chat(n_input: int, n_output: int) -> Request:
    """A streamed request of about so many tokens; its answer has at most `n_output`."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word" * n_input}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": n_output}
    return decode(Api.CHAT, msgspec.json.encode(body))
