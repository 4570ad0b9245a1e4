"""The path of a request through the gateway. Read this first: the stages are in `pipeline.stages`, and run in this order."""

from dataclasses import dataclass

from stayfast.core.types import ADMIT, CACHE, CALL, CONTEXT, RELAY, ROUTE, Request
from stayfast.pipeline.exchange import Arrival, Exchange, release_all
from stayfast.pipeline.plan import Admitted, Hit, Miss, StartedAnswer
from stayfast.pipeline.refresh import BackgroundRefresh
from stayfast.pipeline.stages.admit.admission import ADMITTED, Admit
from stayfast.pipeline.stages.admit.entry import EntryLimits
from stayfast.pipeline.stages.cache.coalesce import Coalescer
from stayfast.pipeline.stages.cache.idempotency import Idempotency, KeyClaim
from stayfast.pipeline.stages.cache.lookup import Cache
from stayfast.pipeline.stages.context import shorten_request
from stayfast.pipeline.stages.degrade import ENDINGS, Degrade
from stayfast.pipeline.stages.relay import Reply
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.stages.settle import Settle
from stayfast.pipeline.timing.timeouts import TimerWheel


@dataclass(frozen=True, slots=True)
class Gateway:
    """The stages of one set of settings; `compose` constructs them. A client that disconnects cancels `serve`."""
    timers: TimerWheel
    entry: EntryLimits
    admit: Admit
    idempotency: Idempotency
    cache: Cache
    router: Router
    coalescer: Coalescer
    degrade: Degrade
    settle: Settle
    refresh: BackgroundRefresh

    async def serve(self, request: Request, arrival: Arrival, known: Miss | None = None) -> Reply:
        """Run the stages up to the first token; the Reply relays the rest. known: of a refresh. Raises StayfastError."""
        ex = Exchange(request, arrival, self.router.policy_of(request.model), self.timers)  # its deadline starts now
        admitted, answer = ADMITTED, None
        found: Hit | Miss | None = known  # None: it has no part in a cache
        try:
            try:
                ex.ledger.enter(ADMIT)
                ex = self.entry.check(ex) if ex.policy.size is not None or arrival.key_id else ex  # size, key quota
                admitted = await self.admit.admit(ex)
                ex.held.append(admitted.release)
                ex.ledger.enter(CACHE)
                ex = ex if ex.policy.hooks is None or known is not None else await ex.apply_hooks(ex.policy.hooks)
                ex = ex if ex.policy.screen is None or known else await self.entry.screen(ex)  # guard, class
                claim = self.idempotency.claim(ex) if arrival.headers and known is None else None
                if claim is not None and isinstance(claim, Hit):  # an earlier request with its key was answered
                    found, claim = claim, None
                elif ex.policy.cache is not None and known is None and not arrival.is_judgement:
                    found = await self.cache.lookup(ex)
                if found is not None and isinstance(found, Hit):
                    answer = found.answer
                    if found.refresh is not None:  # it is stale, or was chosen for an audit
                        self.refresh.start(self.serve, ex, found.refresh)
                else:
                    joined = None if found is None and claim is None else await self.coalescer.join(ex, found, claim)
                    answer = joined or await self._call(ex, admitted, found, claim)
            except ENDINGS as failure:
                answer = self.degrade.answer(ex, failure, found if isinstance(found, Miss) else None)
            answer = answer if ex.hooked is None else answer.begin_with(await ex.hooked.after(answer.first_chunk))
            ex.ledger.enter(RELAY)
            admitted.start_reply()
            return Reply(ex, answer, self.settle.finish, self.timers.clock, admitted.allowances)
        except BaseException as why:
            release_all(ex.held, answer.source.abandon if answer is not None else None)
            self.settle.finish(ex, why)
            raise

    async def _call(self, ex: Exchange, admitted: Admitted, found: Miss | None, claim: KeyClaim | None) -> StartedAnswer:
        ex.ledger.enter(CONTEXT)
        prompt = self.router.lay_out(ex, await shorten_request(ex) if ex.policy.context else ex.request)
        ex.ledger.enter(ROUTE)
        plan = self.router.plan(ex, prompt, admitted)  # the targets, best first
        ex.ledger.enter(CALL)
        stale = self.cache.open_unless_callable(ex, found, plan) if found is not None else None
        return stale or await self.coalescer.call(ex, plan, found, claim, store=self.cache.store)
