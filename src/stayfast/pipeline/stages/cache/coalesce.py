"""How a request joins the call of an equal one, or makes a call that equal ones can join."""

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Rejected, StayfastError, UpstreamFailed
from stayfast.core.types import CALL, AnswerSummary
from stayfast.pipeline.exchange import Exchange, Start
from stayfast.pipeline.plan import CallKey, Miss, Plan, StartedAnswer
from stayfast.pipeline.stages.cache.idempotency import HEADER, KeyClaim
from stayfast.pipeline.stages.cache.lookup import COALESCED, Cache
from stayfast.pipeline.stages.cache.shared_call import SharedCall
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.policy.cache.freshness import max_fresh_age_s
from stayfast.policy.context.output_cap import may_share

N_CALLS = 2  # shared calls whose failure a request waits for
StoreAnswer = Callable[[Miss, Exchange, AnswerSummary, bytes | None], Awaitable[None]]


class Coalescer:
    """The calls that run, and how a request joins or makes one. Holds no state of a request; `calls` survives a reload."""

    __slots__ = ("_cache", "_clock", "_start", "_tasks", "calls")

    def __init__(self, start: Start, cache: Cache, clock: Clock, calls: dict[CallKey, SharedCall]) -> None:
        self.calls = calls
        self._start = start
        self._cache = cache
        self._clock = clock
        self._tasks = BackgroundTasks()

    async def join(self, ex: Exchange, found: Miss | None, claim: KeyClaim | None) -> StartedAnswer | None:
        """The answer of an equal request's call that runs; None: this request has to make a call. Raises the call's failure
        if another call would not help, and Rejected (409) if a request with the same idempotency key runs and cannot be
        joined.
        """
        if claim is not None and claim.call_key in self.calls:
            started = await self._join_calls(ex, claim.call_key, None)
            if started is not None:
                ex.record.note(f"shared the call of an earlier request with the same {HEADER}")
                return started
            claim.retake()
        is_retry = claim is not None and claim.is_retry
        if found is not None and (found.may_join or is_retry) and self._can_join(ex, found.call_key):
            try:
                started = await self._join_calls(ex, found.call_key, claim)
            except StayfastError:
                ex.record.set_cache_result(COALESCED)
                raise
            if started is not None:
                ex.record.set_cache_result(COALESCED)
                return started
        return await claim.require() if claim is not None else None

    def call(self, ex: Exchange, plan: Plan, found: Miss | None, claim: KeyClaim | None,
             store: StoreAnswer) -> Awaitable[StartedAnswer]:
        """Make the call, for this request and all equal ones that come before it ends. `store` gets its answer."""
        if found is not None:
            key = found.call_key
        elif claim is not None:
            key = claim.call_key
        else:
            return self._start(ex, plan)
        start = self._start
        if found is not None and found.cache.store.is_shared and not ex.request.stream and (
                found.control is None or not found.control.no_cache):
            start = partial(self._start_across_processes, start, ex, found)
        call = SharedCall(key, self.calls, ex, self._clock)
        if claim is not None:
            call.claims.append(claim)
            start = partial(_start_claimed, start, claim)
        return call.start(plan, start, partial(store, found) if found is not None else None, self._tasks)

    def _can_join(self, ex: Exchange, key: CallKey) -> bool:
        """Whether an equal call runs. One whose answer is fitted to its maker's deadline suits only similar deadlines: by a
        cap, or by a smaller model. One with a latest start suits those that have a later one.
        """
        call, caps = self.calls.get(key), ex.policy.cap
        if call is None or call.start_by > ex.start_by or (call.start_by < inf) != (ex.start_by < inf):
            return False
        if not call.is_reduced and (caps is None or not caps.config.fit_deadline):
            return True
        return may_share(call.deadline_at, ex.deadline.at, self._clock.now())

    async def _join_calls(self, ex: Exchange, key: CallKey, claim: KeyClaim | None) -> StartedAnswer | None:
        """None: no call runs any more, and this request may make another one."""
        n_left = N_CALLS
        while (call := self.calls.get(key)) is not None:
            if claim is not None:
                call.claims.append(claim)
            started = await self._join(ex, call, is_last=n_left == 1)
            if started is not None:
                return started
            if type(call.failure) is not DeadlineExceeded:
                n_left -= 1
        return None

    async def _join(self, ex: Exchange, call: SharedCall, *, is_last: bool) -> StartedAnswer | None:
        """None: the call failed, and another one may not."""
        ex.ledger.enter(CALL)
        try:
            return await call.join(ex)
        except StayfastError as failed:
            if type(call.failure) is DeadlineExceeded:  # of its maker, which is no sign of a bad upstream
                if ex.timeouts.is_over(self._clock.now()):
                    raise ex.timeouts.timeout_error(CALL) from None
                ex.record.note("the shared call ended at the deadline of the request that made it")
                return None
            if is_last or call.failure is None or not _may_differ(failed):
                raise
            ex.record.note("the shared call of an equal request failed")
            return None

    async def _start_across_processes(self, start: Start, maker: Exchange, miss: Miss, ex: Exchange, plan: Plan
                                      ) -> StartedAnswer:
        """One call for all processes that share a store: make it, or wait for the answer of the process that does.

        The wait ends after the store's own `coalesce_wait_s`, and after half of the time that is left: then there is time
        for an own call. Not for streams: an own call's first token comes before another call's last one.
        """
        store, ends_at = miss.cache.store, ex.ledger.ends_at
        if await store.acquire_lead(miss.key, ends_at):
            try:
                started = await start(ex, plan)
            except BaseException:
                store.release_lead(miss.key)
                raise
            if ex.record.degraded is not None:  # it will not be stored
                store.release_lead(miss.key)
            return started
        now = self._clock.now()
        max_age_s = max_fresh_age_s(miss.cache.config, miss.control)
        stored = await store.wait_for_leader(miss.key, now + (ends_at - now) / 2, self._clock.wall() - max_age_s)
        shared = self._cache.open_shared(maker, miss, stored) if stored is not None else None
        if shared is None:
            return await start(ex, plan)
        ex.record.use_upstream(shared.source.name)
        return shared

    def __repr__(self) -> str:
        return f"<Coalescer: {len(self.calls)} calls>"


async def _start_claimed(start: Start, claim: KeyClaim, ex: Exchange, plan: Plan) -> StartedAnswer:
    try:
        return await start(ex, plan)
    except BaseException:
        claim.fail()
        raise


def _may_differ(failed: StayfastError) -> bool:
    """Whether the same request may succeed a second time."""
    if isinstance(failed, UpstreamFailed):
        return not failed.is_clients_fault
    return not isinstance(failed, Rejected)
