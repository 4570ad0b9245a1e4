"""Several tenants at one gateway in virtual time, and what the gateway reports of each request that is over."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fact, Fanout, RequestDone, Sink
from stayfast.core.types import Api, Request
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.simulated import ProviderConfig
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import Log, Route, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.wire.json_input import decode

UPSTREAM = "provider"
DAY_S = 86_400.0


@dataclass(slots=True)
class Book:
    """The sums over one tenant's requests that have ended."""

    n: int = 0
    n_shed: int = 0
    requests: int = 0  # for which an upstream was asked
    tokens: int = 0
    input_tokens: int = 0
    cost_usd: float = 0.0
    ttft_s: list[float] = field(default_factory=list)


class Books:
    """A sink with a book for each tenant. While `is_open` is false, requests that end are not counted."""

    def __init__(self) -> None:
        self.of: dict[str, Book] = {}
        self.is_open = True

    def begin(self) -> None:
        """Count from here on."""
        self.is_open = True

    def emit(self, fact: Fact) -> None:
        if not isinstance(fact, RequestDone) or not self.is_open:
            return
        book = self.of.setdefault(fact.tenant or "", Book())
        book.n += 1
        book.n_shed += fact.shed is not None
        book.requests += fact.n_attempts > 0
        book.cost_usd += fact.cost_usd or 0.0
        if fact.ttft_s is not None:
            book.ttft_s.append(fact.ttft_s)
        if fact.usage is not None:
            book.tokens += fact.usage.input_total + fact.usage.output
            book.input_tokens += fact.usage.input_total


class Tenants:
    """A gateway and its tenants, on one virtual loop. sink: gets the facts instead of `books`."""

    def __init__(self, provider: ProviderConfig, tenants: Mapping[str, TenantConfig], admission: AdmissionConfig,
                 loop: SimLoop, seed: int, *, price: Price | None = None, sink: Sink | None = None) -> None:
        prices = {MODEL: price} if price is not None else {}
        upstream = SimulatedUpstream(provider=provider, probe=False, prices=prices, limit=LimitConfig(mode="off"))
        settings = Settings(upstreams={UPSTREAM: upstream}, routes={MODEL: Route((UPSTREAM,))}, tenants=tenants,
                            admission=admission, log=Log(level="error", requests=False))
        self.books = Books()
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
