"""Several tenants at one gateway in virtual time, and what the gateway says of each request that is over."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.errors import StayfastError
from stayfast.core.events import Fact, Fanout, RequestDone, Sink
from stayfast.core.types import Api, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit import Admission
from stayfast.policy.admission import AdmissionConfig, TenantConfig
from stayfast.policy.limits import LimitConfig
from stayfast.policy.price import Price
from stayfast.settings import Log, Route, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.simulated import ProviderConfig
from stayfast.upstreams.simulated.settings import SimulatedUpstream
from stayfast.wire.json_input import decode

MODEL = "m"
_DAY_S = 86_400.0


@dataclass(slots=True)
class Book:
    """What the ends of one tenant's requests come to."""

    n: int = 0
    n_shed: int = 0
    requests: int = 0  # for which an upstream was asked
    tokens: int = 0
    input_tokens: int = 0
    cost_usd: float = 0.0
    ttft_s: list[float] = field(default_factory=list)


class Books:
    """A sink that keeps a book for each tenant. `is_open` False: what ends is not counted."""

    def __init__(self) -> None:
        self.of: dict[str, Book] = {}
        self.is_open = True

    def begin(self) -> None:
        """Count from here on."""
        self.is_open = True

    def emit(self, fact: Fact) -> None:
        """Take one fact."""
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


class Crowd:
    """A gateway and its tenants. One virtual loop's."""

    def __init__(self, provider: ProviderConfig, tenants: Mapping[str, TenantConfig], admission: AdmissionConfig,
                 loop: SimLoop, seed: int, *, price: Price | None = None, also: Sink | None = None) -> None:
        prices = {MODEL: price} if price is not None else {}
        upstream = SimulatedUpstream(provider=provider, probe=False, prices=prices, limit=LimitConfig(mode="off"))
        settings = Settings(upstreams={"provider": upstream}, routes={MODEL: Route(("provider",))}, tenants=tenants,
                            admission=admission, log=Log(level="error", requests=False))
        self.books = Books()
        observers = Observers(settings, loop)
        observers.sink = Fanout(observers.sink, self.books if also is None else also)
        self.system = build(settings, observers, {}, loop, Random(seed))
        self._loop = loop
        self._numbers = count()

    @property
    def admission(self) -> Admission:
        """What is on trial."""
        admit = self.system.gateway.admit
        assert isinstance(admit, Admission)
        return admit

    async def ask(self, tenant: str, request: Request, leave_after_s: float = _DAY_S) -> None:
        """Ask and read to the end, or leave."""
        arrival = Arrival(f"req_{next(self._numbers):x}", self._loop.now(), tenant)
        try:
            async with asyncio.timeout(leave_after_s):
                reply = await self.system.gateway.serve(request, arrival)
                try:
                    while await reply.next() is not None:
                        pass
                finally:
                    reply.close()
        except (StayfastError, TimeoutError):
            pass  # the gateway tells of it


def chat(n_input: int, n_output: int) -> Request:
    """A streamed request of about so many tokens; its answer has at most `n_output`."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word" * n_input}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": n_output}
    return decode(Api.CHAT, msgspec.json.encode(body))
