"""A gateway of scripted upstreams whose route has a cache, on virtual time."""

from stayfast.core.deadline import Timeouts
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import CacheControl, Request
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.idempotency import IdempotencyConfig
from stayfast.testing import Script, SendText, SimLoop, Wait
from tests.flow.rig import MODEL, Rig, chat, read, text_of

HELLO: Script = [Wait(0.25), SendText("Hel"), Wait(0.1), SendText("lo")]
OTHER: Script = [Wait(0.25), SendText("other")]


def strip_key(cache: str | None) -> str | None:
    """What `x-cache` says, but for the key of the answer."""
    return cache.partition("; key=")[0] if cache is not None else None


class CacheRig(Rig):
    """A route with a cache."""

    def __init__(self, loop: SimLoop, *scripts: Script, config: CacheConfig | None = None, partial: bool = False,
                 timeouts: Timeouts | None = None, budget: BudgetConfig | None = None, admit: Admit | None = None,
                 idempotency: IdempotencyConfig | None = None) -> None:
        super().__init__(loop, scripts, partial=partial, timeouts=timeouts, budget=budget, admit=admit,
                         idempotency=idempotency, cache=config or CacheConfig("exact", max_temperature=1.0))

    @property
    def route_cache(self) -> RouteCache:
        """The route's cache."""
        cache = self.router.routes[MODEL].policy.cache
        assert cache is not None
        return cache

    async def serve_request(self, request: Request | None = None, control: CacheControl | None = None,
                            tenant: str | None = None,
                  total_s: float | None = None) -> Reply:
        """Serve one request that arrives now."""
        arrival = Arrival("req_1", self.loop.now(), tenant, total_s=total_s, cache=control)
        return await self.gateway.serve(request or chat(), arrival)

    async def text(self, request: Request | None = None, control: CacheControl | None = None, tenant: str | None = None,
                   total_s: float | None = None) -> str:
        """What it says, read to its end."""
        reply = await self.serve_request(request, control, tenant, total_s)
        try:
            return text_of(await read(reply))
        finally:
            reply.close()

    @property
    def n_calls(self) -> int:
        """Calls that have ended."""
        return len(self.sink.facts_of(AttemptDone))

    @property
    def results(self) -> list[str | None]:
        """What the cache had to say, request by request."""
        return [done.cache for done in self.sink.facts_of(RequestDone)]

    def check_clean(self) -> None:
        """Nothing is left behind."""
        assert (self.n_in_flight, self.n_open, len(self.calls)) == (0, 0, 0)
