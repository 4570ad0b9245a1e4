"""Background calls that no client waits for: a stale answer, or an audited one, is made again after it was returned.

Such a call is served like any other request: admitted as a batch request of the tenant whose request caused it, charged to
its quota, with the route's time from its own start. It is reported as `Renewed`, not among the requests of clients.
"""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Request
from stayfast.pipeline.exchange import AUDIT, REFRESH, Arrival, Exchange
from stayfast.pipeline.plan import Miss
from stayfast.pipeline.stages.relay import Reply
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.policy.admission.priority import Urgency

ServeRefresh = Callable[[Request, Arrival, Miss], Awaitable[Reply]]


class BackgroundRefresh:
    """The background calls of one gateway."""

    __slots__ = ("_clock", "_tasks")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = BackgroundTasks()

    def start(self, serve: ServeRefresh, ex: Exchange, miss: Miss) -> None:
        """Make the call of this request in the background, for all that get the stored answer meanwhile."""
        arrival = replace(ex.arrival, accepted_at=self._clock.now(), total_s=None, silence_s=None, urgency=Urgency.BATCH,
                          role=REFRESH if miss.query is None else AUDIT)
        miss.cache.refreshing.add(miss.key)
        self._tasks.spawn(_read_all(serve, ex.request, arrival, miss))


async def _read_all(serve: ServeRefresh, request: Request, arrival: Arrival, miss: Miss) -> None:
    try:
        reply = await serve(request, arrival, replace(miss, stale=None, may_join=False))
        try:
            while await reply.next() is not None:
                pass
        finally:
            reply.close()
    except StayfastError:
        return  # reported as Renewed
    finally:
        miss.cache.refreshing.discard(miss.key)
