"""The story of a request. Read this first: the stages are the modules and packages of `stages`, in this order."""

from dataclasses import dataclass

from stayfast.core.types import ADMIT, CACHE, CALL, CONTEXT, RELAY, ROUTE, Request
from stayfast.pipeline.exchange import Arrival, Exchange, ReleaseStack
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.pipeline.stages.cache.lookup import Cache
from stayfast.pipeline.stages.call.caller import Caller
from stayfast.pipeline.stages.context import Context
from stayfast.pipeline.stages.relay import Relay, Reply
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.stages.settle import Settle
from stayfast.pipeline.stages.template import ENDINGS, Template
from stayfast.pipeline.timing.timeouts import TimerWheel


@dataclass(frozen=True, slots=True)
class Gateway:
    """The stages of one set of settings, chosen in `compose`. Task-safe: a request's state is in its Exchange."""
    alarms: TimerWheel
    admit: Admit
    cache: Cache
    context: Context
    router: Router
    caller: Caller
    template: Template
    relay: Relay
    settle: Settle

    async def serve(self, request: Request, arrival: Arrival) -> Reply:
        """A request's whole life, up to the first token; the reply lives the rest of it. Raises StayfastError (rejected,
        shed, upstream failed, deadline exceeded). Cancelling it is how a client leaves.
        """
        ex = Exchange(request, arrival, self.router.terms(request.model), self.alarms)  # deadline and ledger start
        held = ReleaseStack()
        try:
            try:
                ex.enter(ADMIT)
                held.add(await self.admit.admit(ex))
                ex.enter(CACHE)
                started = await self.cache.find(ex)
                if started is None:
                    ex.enter(CONTEXT)
                    prompt = await self.context.fit(ex)
                    ex.enter(ROUTE)
                    plan = self.router.plan(ex, prompt)  # candidates, best first
                    ex.enter(CALL)
                    started = await (ex.share or self.caller.start)(ex, plan)  # to the first content token, with retries
            except ENDINGS as why:
                started = self.template.answer(ex, why)  # or raises what `why` stands for
            held.add(started.source.abandon)
            ex.enter(RELAY)
            return self.relay.open(ex, started, held.hand_over())  # the reply owns what was held
        except BaseException as why:
            held.release()
            self.settle.done(ex, why)
            raise
