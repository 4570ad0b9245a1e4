"""Whether the answer is known already, or on its way to somebody else. `NoCache` is the null object: never."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from math import inf
from typing import Any, Protocol

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import Sink
from stayfast.core.types import FROM_CACHE, CacheControl, Chunk
from stayfast.pipeline.cache.route_cache import CacheResult, RouteCache
from stayfast.pipeline.cache.semantic import SemanticCache, SemanticHit, SemanticQuery
from stayfast.pipeline.exchange import Exchange, Start
from stayfast.pipeline.plan import Plan, StartedAnswer, StoredStream
from stayfast.pipeline.stages.cache.coalesce import CallKey, SharedCall, join_calls, start_across_processes
from stayfast.pipeline.tasks import TaskGroupRegistry
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.cache.freshness import FRESH, SPARE, age_of, fresh_for_s, is_too_warm, stricter, use_of
from stayfast.stores.base import CachedAnswer, Store
from stayfast.stores.memory import MemoryStore
from stayfast.wire.canonical import CanonicalRequest, canonicalize, identity_bytes, key_digest, scope_bytes, scope_of
from stayfast.wire.replay import in_events, is_storable

MAX_RENEWING = 64  # answers of one route that are made again at the same time
Renew = Callable[[Exchange, Start, str], Coroutine[Any, Any, None]]
SHARE_OF_ALLOWANCE = 0.9  # of the stage's, after which a look-up in other words is a miss
MISS, COALESCED = CacheResult("miss"), CacheResult("coalesced")
SAY_NOTHING = frozenset(("idempotency-key", "x-stainless-retry-count", "traceparent", "tracestate", "x-session-id"))


class Cache(Protocol):
    """Finds a whole answer that may be served again."""

    def find(self, ex: Exchange) -> Awaitable[StartedAnswer | None]:
        """A whole answer, ready to be relayed in the client's dialect, or None."""


class NoCache:
    __slots__ = ()

    async def find(self, ex: Exchange) -> StartedAnswer | None:
        return None


class ExactCache:
    """Answers to the same question, on the routes that keep them. Task-safe: what is kept is the routes' own."""

    __slots__ = ("_clock", "_make_call", "_renew", "_sink", "_tasks", "calls")

    def __init__(self, make_call: Start, clock: Clock, sink: Sink, renew: Renew | None = None,
                 calls: dict[CallKey, SharedCall] | None = None) -> None:
        """calls: those that others may join; a reload hands them on."""
        self._make_call = make_call
        self._renew = renew  # has those made that nobody waits for; None: nothing is given that would need one
        self._clock = clock
        self._sink = sink
        self._tasks = TaskGroupRegistry()
        self.calls: dict[CallKey, SharedCall] = {} if calls is None else calls

    async def find(self, ex: Exchange) -> StartedAnswer | None:
        """What is kept, or what is on its way to somebody who asked the same. On a miss `ex.share` will make the call.
        Raises what the call of somebody else failed with, where there is no use in making another, and Shed for what may
        only come from here.
        """
        caching = ex.terms.cache
        if caching is None:
            return None
        control = ex.arrival.cache if ex.request.cache is None else stricter(ex.arrival.cache, ex.request.cache)
        sought = _sought(ex, caching, control)
        if isinstance(sought, str):
            _passed_by(ex, control, why=sought)
            return None
        call_key, what, terms = sought
        ex.cache_key = key = call_key[0]
        if control is None or not control.no_cache:
            store = caching.store
            stored = store.peek(key) if isinstance(store, MemoryStore) else await self._read_store(ex, store, key)
            if stored is not None and (started := self._given(ex, caching, call_key, control, stored)) is not None:
                return started
            if caching.semantic is not None and (call_key not in self.calls or key in caching.renewing):
                started = await self._in_other_words(ex, caching, caching.semantic, call_key, control,
                                                     what=what, terms=terms)
                if started is not None:
                    return started
            if control is not None and (started := _all_there_is(ex, control)) is not None:
                return started
            if call_key in self.calls and (started := await self._joined(ex, call_key)) is not None:
                return started
        else:
            _refuse_others(control)
        ex.cached = MISS
        ex.share = partial(self._call, caching, call_key, control)
        return None

    async def _read_store(self, ex: Exchange, store: Store, key: bytes) -> CachedAnswer | None:
        """What is kept elsewhere; nothing where the store is late: the request's watch would end the request."""
        watch = ex.watch
        watch.disarm()
        stored = await store.get(key, ex.ledger.ends_at)
        if not watch.is_over(self._clock.now()):
            watch.arm_bound()
        return stored

    def _given(self, ex: Exchange, caching: RouteCache, key: CallKey, control: CacheControl | None, stored: CachedAnswer
               ) -> StartedAnswer | None:
        """The answer that is kept, as far as its age allows. What is only good for want of another is put by."""
        max_age_s = inf if control is None or control.max_age_s is None else control.max_age_s
        use = use_of(caching.config, age_of(stored.kept_at, self._clock.wall()), max_age_s)
        if use is None or use is FRESH:
            return self._hit(ex, stored, inf) if use is FRESH else None
        if use is SPARE or self._renew is None:
            ex.stale = partial(self._stale, ex, stored, "stale")
            return None
        started = self._stale(ex, stored, None)
        if started is not None and (control is None or not control.only_if_cached):
            self._make_again(self._renew, ex, caching, key, control)
        return started

    def _stale(self, ex: Exchange, stored: CachedAnswer, degraded: str | None) -> StartedAnswer | None:
        """An answer that is older than its route wants it."""
        started = self._hit(ex, stored, inf)
        if started is not None and ex.cached is not None:
            ex.cached, ex.degraded = replace(ex.cached, result="stale"), degraded
            ex.notes.append(f"given though it is {ex.cached.age_s:.0f} s old")
        return started

    def _make_again(self, renew: Renew, ex: Exchange, caching: RouteCache, key: CallKey, control: CacheControl | None, *,
                    asking: SemanticQuery | None = None) -> bool:
        """One call in the background, for all who are given the old answer meanwhile. asking: what it is an audit of. False:
        one is under way, or too many are.
        """
        renewing = caching.renewing
        if key[0] in renewing or key in self.calls or len(renewing) >= MAX_RENEWING:
            return False

        async def again() -> None:
            try:
                await renew(ex, partial(self._call, caching, key, control, asking=asking),
                            "refresh" if asking is None else "audit")
            finally:
                renewing.discard(key[0])

        renewing.add(key[0])
        self._tasks.spawn(again())
        return True

    def _hit(self, ex: Exchange, answer: CachedAnswer, fresh_for_s: float,
             like: SemanticHit | None = None) -> StartedAnswer | None:
        """The answer that is kept, if it is fresh. like: it was made for another question."""
        wall = self._clock.wall()
        age_s = age_of(answer.kept_at, wall)
        if age_s > fresh_for_s or age_s == inf or wall > answer.drop_at:
            return None
        try:
            body = in_events(ex.request, answer.body) if ex.request.stream else answer.body
        except ValueError:  # it has no words in a stream
            return None
        saved_usd = ex.terms.cache.worth_usd(answer.usage, ex.request.model) if ex.terms.cache is not None else None
        if like is None:
            ex.cached = CacheResult("hit", age_s, saved_usd=saved_usd)
        else:
            ex.cached = CacheResult("semantic", age_s, saved_usd=saved_usd, likeness=(like.cosine, like.p))
            ex.cache_key = like.key
            ex.notes.append(f"asked in other words {int(age_s)} s ago: cosine {like.cosine:.3f}, p {like.p:.3f}")
        ex.upstream = FROM_CACHE
        cadence = TokenTimings(ex.route or "", FROM_CACHE, self._sink)
        cadence.begin(self._clock.now())
        stored = StoredStream(FROM_CACHE, cadence, answer.usage, answer.finish_reason)
        return StartedAnswer(stored, stored, Chunk(body, 1))

    async def _in_other_words(self, ex: Exchange, caching: RouteCache, semantic: SemanticCache, key: CallKey,
                              control: CacheControl | None, *, what: CanonicalRequest, terms: bytes) -> StartedAnswer | None:
        """An answer to a question that means the same; on a miss `ex.asking` knows what was found out."""
        now, max_age_s = self._clock.now(), fresh_for_s(caching.config, control)
        until = now + min(semantic.config.lookup_timeout_s, SHARE_OF_ALLOWANCE * (ex.ledger.ends_at - now))
        why, found = await semantic.find(ex.request, what, scope_of(terms), max_age_s, until, tenant=ex.arrival.tenant)
        if isinstance(found, SemanticHit):
            started = self._hit(ex, found.answer, max_age_s, found)
            is_only_cached = control is not None and control.only_if_cached  # then nobody pays for a call
            if started is not None:
                semantic.count("hit")
                if (found.is_audited and self._renew is not None and not is_only_cached
                        and self._make_again(self._renew, ex, caching, key, control, asking=found.asking)):
                    semantic.note_audit_started(found.asking)
                return started
            why = "unstreamable" if ex.request.stream else "old"
            semantic.count(why)
            found.asking.was_given = False
            found = found.asking
        ex.asking = found
        ex.notes.append(f"no answer in other words: {why}")
        return None

    async def _joined(self, ex: Exchange, key: CallKey) -> StartedAnswer | None:
        """What the calls of others bring; None where there is none, or they failed and another one may not."""
        try:
            started = await join_calls(ex, self.calls, key, self._clock)
        except StayfastError:
            ex.cached = COALESCED
            raise
        if started is not None:
            ex.cached = COALESCED
        return started

    def _call(self, caching: RouteCache, key: CallKey, control: CacheControl | None, ex: Exchange, plan: Plan, *,
              asking: SemanticQuery | None = None) -> Awaitable[StartedAnswer]:
        """Make the call, for this request and for all who ask the same before it is over."""
        if ex.stale is not None and _is_left_alone(plan, self._clock.now()):
            return self._spare(ex, plan)
        ex.asking = asking or ex.asking
        make_call = self._make_call
        if caching.store.is_shared and not ex.request.stream and not (control is not None and control.no_cache):
            fresh_s = fresh_for_s(caching.config, control)
            make_call = partial(start_across_processes, make_call, store=caching.store, key=key[0], fresh_s=fresh_s,
                                read=partial(self._made, ex, fresh_s), clock=self._clock)
        call = SharedCall(key, self.calls, ex, self._clock)
        return call.start(ex, plan, make_call, partial(self._store_result, caching, control), self._tasks)

    async def _spare(self, ex: Exchange, plan: Plan) -> StartedAnswer:
        """An old answer, where all who could make another are left alone; the call, where it has no words in a stream."""
        started = ex.stale() if ex.stale is not None else None
        return started if started is not None else await self._make_call(ex, plan)

    def _made(self, ex: Exchange, fresh_for_s: float, stored: CachedAnswer) -> StartedAnswer | None:
        """What another process has made meanwhile."""
        started = self._hit(ex, stored, fresh_for_s)
        if started is not None:
            ex.cached = COALESCED
        return started

    async def _store_result(self, caching: RouteCache, control: CacheControl | None, call: SharedCall, data: bytes | None
                            ) -> None:
        """Keep the answer of a call that came to a clean end, where it may be given again. data: None: it was too long."""
        store, ex, key = caching.store, call.ex, call.key[0]
        stored = self._answer_to_store(caching, control, call, data)
        if stored is not None:
            if isinstance(store, MemoryStore):
                store.keep(key, stored)
            else:
                await store.put(key, stored)
            if ex.asking is not None and caching.semantic is not None:
                caching.semantic.answered(ex.asking, ex.request, key, stored)
        if not isinstance(store, MemoryStore):
            store.led(key)

    def _answer_to_store(self, caching: RouteCache, control: CacheControl | None, call: SharedCall,
                         data: bytes | None) -> CachedAnswer | None:
        ex, sight = call.ex, call.started.stream.sight
        if data is None or ex.upstream == FROM_CACHE:
            return None
        body = is_storable(ex.request, sight, data)
        if body is None or len(body) > caching.config.max_answer_bytes:
            if ex.asking is not None and caching.semantic is not None and (
                    sight.is_complete and not sight.is_cut and sight.failure is None):  # all that the model had to say
                caching.semantic.unkept(ex.asking)
            return None
        stored_at, keep_s = self._clock.wall(), caching.keep_s
        if control is None:
            return CachedAnswer(body, stored_at, sight.usage, sight.finish_reason, stored_at + keep_s, ex.route or "",
                                ex.arrival.tenant)
        if control.keep_s is not None:
            keep_s = min(keep_s, control.keep_s)
        return CachedAnswer(body, stored_at, sight.usage, sight.finish_reason, stored_at + keep_s, ex.route or "",
                            ex.arrival.tenant,
                    control.tags)


def _sought(ex: Exchange, caching: RouteCache, control: CacheControl | None) -> tuple[CallKey, CanonicalRequest,
                                                                                      bytes] | str:
    """Where the answer is kept and, for a likeness, the question and its terms; or why no cache has a part in it."""
    request = ex.request
    if control is not None and control.no_store:
        return "no-store"
    if ex.arrival.events is not None:
        return "events"
    arrival, api = ex.arrival, request.api
    if arrival.headers or (control is not None and control.namespace):
        identity = _identity_of(ex, caching, control)
    else:
        identity = caching.identity_of(arrival.tenant, api)
    what = canonicalize(request)
    if what.why_not:
        return what.why_not
    if what.is_sampled and is_too_warm(caching.config, what.temperature, is_seeded=what.is_seeded):
        return "temperature"
    terms = scope_bytes(what, identity)
    return (key_digest(terms, what), request.stream, request.include_usage), what, terms


def _passed_by(ex: Exchange, control: CacheControl | None, *, why: str) -> None:
    """No cache may have a part in it. Raises Shed for what may only come from one."""
    ex.cached = CacheResult("bypass", why=why)
    ex.notes.append(f"not for the cache: {why}")
    if control is not None:
        _refuse_others(control)


def _identity_of(ex: Exchange, caching: RouteCache, control: CacheControl | None) -> bytes:
    """What decides an answer and does not stand in the body, where this request may say some of it."""
    words = [f"{name}: {value}" for name, value in ex.arrival.headers if name not in SAY_NOTHING]  # asked of an upstream
    if control is not None and control.namespace:
        words.append(f"namespace: {control.namespace}")
    tenant, api = ex.arrival.tenant, ex.request.api
    if not words:
        return caching.identity_of(tenant, api)
    return identity_bytes(tenant, caching.origin, api, *words)


def _is_left_alone(plan: Plan, now: float) -> bool:
    """Whether the breakers of all who may be asked are open, and none of them wants to be tried."""
    targets = [*plan.candidates, *(target for tier in plan.fallback for target in tier)]
    loads = [target.member.load(now, target.model or plan.prompt.request.model) for target in targets]
    return not any(load.share > 0 or load.wants_probe for load in loads)


def _all_there_is(ex: Exchange, control: CacheControl) -> StartedAnswer | None:
    """For who wants no call made: what else is given where a call has failed. Raises Shed where there is none."""
    started = ex.stale() if control.only_if_cached and ex.stale is not None else None
    if started is None:
        _refuse_others(control)
    return started


def _refuse_others(control: CacheControl) -> None:
    if control.only_if_cached:
        raise Shed("No answer to this request is kept, and only-if-cached asks for no other.", reason="only_if_cached",
                   status=504, code="not_cached", is_final=True)
