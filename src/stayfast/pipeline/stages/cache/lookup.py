"""Whether an answer to this request is stored: to the same question (exact), or to one that means the same (semantic)."""

from collections.abc import Container
from math import inf

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed
from stayfast.core.events import Sink
from stayfast.core.types import FROM_CACHE, AnswerSummary, CacheControl, Chunk
from stayfast.pipeline.cache.route_cache import CacheResult, RouteCache
from stayfast.pipeline.cache.semantic import SemanticCache, SemanticHit
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.plan import CallKey, Hit, Miss, Plan, StartedAnswer, StoredStream
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.cache.freshness import (
    FRESH,
    SPARE,
    age_of,
    freshness_of,
    is_too_random,
    max_fresh_age_s,
    merge_directives,
)
from stayfast.stores.base import CachedAnswer, Store
from stayfast.stores.memory import MemoryStore
from stayfast.wire.canonical import CanonicalRequest, canonicalize, identity_bytes, key_digest, scope_bytes, scope_digest
from stayfast.wire.stored_answer import encode_stored_stream, storable_body

MAX_RENEWING = 64  # background calls of one route at the same time
SHARE_OF_ALLOWANCE = 0.9  # of the stage's time; a semantic lookup that takes longer is a miss
MISS, COALESCED = CacheResult("miss"), CacheResult("coalesced")
# Headers of a request that do not change its answer.
IRRELEVANT = frozenset(("idempotency-key", "x-stainless-retry-count", "traceparent", "tracestate", "x-session-id"))


class Cache:
    """Stored answers, on the routes that have a cache. Holds no state of a request; the stores belong to the routes."""

    __slots__ = ("_clock", "_running", "_sink")

    def __init__(self, clock: Clock, sink: Sink, running: Container[CallKey]) -> None:
        """running: the keys of the calls that requests may join."""
        self._clock = clock
        self._sink = sink
        self._running = running

    async def lookup(self, ex: Exchange) -> Hit | Miss | None:
        """None: the request has no part in a cache. Raises Shed (504) if the client accepts only a stored answer and there
        is none.
        """
        cache = ex.policy.cache
        if cache is None:
            return None
        control = ex.arrival.cache if ex.request.cache is None else merge_directives(ex.arrival.cache, ex.request.cache)
        question = _question_of(ex, cache, control)
        if isinstance(question, str):
            ex.record.set_cache_result(CacheResult("bypass", why=question))
            ex.record.note(f"not for the cache: {question}")
            _refuse_if_only_cached(control)
            return None
        call_key, canonical_request, terms = question
        key = call_key[0]
        ex.record.set_cache_key(key)
        miss = Miss(cache, key, call_key, control)
        if control is not None and control.no_cache:
            _refuse_if_only_cached(control)
            ex.record.set_cache_result(MISS)
            return replace(miss, may_join=False)
        store = cache.store
        stored = store.get_sync(key) if isinstance(store, MemoryStore) else await self._read_store(ex, store, key)
        if stored is not None:
            found = self._use_stored(ex, miss, stored)
            if isinstance(found, Hit):
                return found
            miss = found
        if cache.semantic is not None and (call_key not in self._running or key in cache.refreshing):
            found = await self._lookup_semantic(ex, miss, cache.semantic, canonical_request, terms)
            if isinstance(found, Hit):
                return found
            miss = found
        if control is not None and control.only_if_cached:
            started = self.open_stale(ex, miss)
            if started is not None:
                return Hit(started)
            _refuse_if_only_cached(control)
        ex.record.set_cache_result(MISS)
        return miss

    async def _read_store(self, ex: Exchange, store: Store, key: bytes) -> CachedAnswer | None:
        """None also where the store is late: the request's own timeout would end the request instead of the lookup."""
        timeouts = ex.timeouts
        timeouts.disarm()
        stored = await store.get(key, ex.ledger.ends_at)
        if not timeouts.is_over(self._clock.now()):
            timeouts.arm_bound()
        return stored

    def _use_stored(self, ex: Exchange, miss: Miss, stored: CachedAnswer) -> Hit | Miss:
        """A hit if the answer's age allows it; else a miss, with the stale answer if it may replace a failed call."""
        control = miss.control
        max_age_s = inf if control is None or control.max_age_s is None else control.max_age_s
        use = freshness_of(miss.cache.config, age_of(stored.kept_at, self._clock.wall()), max_age_s)
        if use is None:
            return miss
        if use is SPARE:
            return replace(miss, stale=stored)
        started = self._open(ex, miss.cache, stored) if use is FRESH else self._open_stale(ex, miss.cache, stored)
        if started is None:
            return miss
        if use is FRESH or (control is not None and control.only_if_cached) or not self._may_refresh(miss):
            return Hit(started)
        return Hit(started, miss)

    def _may_refresh(self, miss: Miss) -> bool:
        """Whether a background call may be made: one at a time for a question."""
        renewing = miss.cache.refreshing
        return miss.key not in renewing and miss.call_key not in self._running and len(renewing) < MAX_RENEWING

    async def _lookup_semantic(self, ex: Exchange, miss: Miss, semantic: SemanticCache, canonical_request: CanonicalRequest,
                               terms: bytes) -> Hit | Miss:
        """An answer to a question that means the same; on a miss, with what was found out about the question."""
        now, max_age_s = self._clock.now(), max_fresh_age_s(miss.cache.config, miss.control)
        until = now + min(semantic.config.lookup_timeout_s, SHARE_OF_ALLOWANCE * (ex.ledger.ends_at - now))
        why, found = await semantic.find(ex.request, canonical_request, scope_digest(terms), max_age_s, until,
                                         tenant=ex.arrival.tenant)
        if isinstance(found, SemanticHit):
            query = found.query
            started = self._open(ex, miss.cache, found.answer, max_age_s, found)
            if started is not None:
                semantic.count("hit")
                is_only_cached = miss.control is not None and miss.control.only_if_cached  # then no call is made
                if not found.is_audited or is_only_cached or not self._may_refresh(miss):
                    return Hit(started)
                semantic.note_audit_started(query)
                return Hit(started, replace(miss, query=query))
            why = "unstreamable" if ex.request.stream else "old"
            semantic.count(why)
            query.was_given, query.is_unusable = False, True
            found = query
        ex.record.note(f"no answer in other words: {why}")
        return replace(miss, query=found)

    def open_stale(self, ex: Exchange, miss: Miss) -> StartedAnswer | None:
        """The stale answer in place of a call; None where there is none, or it cannot be streamed."""
        if miss.stale is None:
            return None
        started = self._open_stale(ex, miss.cache, miss.stale)
        if started is not None:
            ex.record.degrade("stale")
        return started

    def open_unless_callable(self, ex: Exchange, miss: Miss, plan: Plan) -> StartedAnswer | None:
        """The stale answer, if the breakers of all targets are open and none of them wants a probe."""
        if miss.stale is None:
            return None
        now, model = self._clock.now(), plan.prompt.request.model
        for target in (*plan.candidates, *(target for tier in plan.fallback for target in tier)):
            load = target.member.load_of(now, target.model or model)
            if load.share > 0 or load.needs_probe:
                return None
        return self.open_stale(ex, miss)

    def open_shared(self, ex: Exchange, miss: Miss, stored: CachedAnswer) -> StartedAnswer | None:
        """The answer of a call that another process has made meanwhile."""
        started = self._open(ex, miss.cache, stored, max_fresh_age_s(miss.cache.config, miss.control))
        if started is not None:
            ex.record.set_cache_result(COALESCED)
        return started

    def _open_stale(self, ex: Exchange, cache: RouteCache, stored: CachedAnswer) -> StartedAnswer | None:
        started = self._open(ex, cache, stored)
        result = ex.record.cache
        if started is not None and result is not None:
            ex.record.set_cache_result(replace(result, result="stale"))
            ex.record.note(f"returned although it is {result.age_s:.0f} s old")
        return started

    def _open(self, ex: Exchange, cache: RouteCache, answer: CachedAnswer, fresh_for_s: float = inf,
              hit: SemanticHit | None = None) -> StartedAnswer | None:
        """The stored answer as one that has started; None if it is too old, or cannot be streamed. hit: it answers another
        question, which means the same.
        """
        wall = self._clock.wall()
        age_s = age_of(answer.kept_at, wall)
        if age_s > fresh_for_s or age_s == inf or wall > answer.drop_at:
            return None
        try:
            body = encode_stored_stream(ex.request, answer.body) if ex.request.stream else answer.body
        except ValueError:
            return None
        record, saved_usd = ex.record, cache.worth_usd(answer.usage, ex.request.model)
        if hit is None:
            record.set_cache_result(CacheResult("hit", age_s, saved_usd=saved_usd))
        else:
            likeness = (hit.cosine, hit.p)
            record.set_cache_result(CacheResult("semantic", age_s, saved_usd=saved_usd, likeness=likeness))
            record.set_cache_key(hit.key)
            record.note(f"similar question {int(age_s)} s ago: cosine {hit.cosine:.3f}, p {hit.p:.3f}")
        record.use_upstream(FROM_CACHE)
        cadence = TokenTimings(ex.route or "", FROM_CACHE, self._sink)
        cadence.start(self._clock.now())
        stored = StoredStream(FROM_CACHE, cadence, answer.usage, answer.finish_reason)
        return StartedAnswer(stored, stored, Chunk(body, 1))

    async def store(self, miss: Miss, ex: Exchange, summary: AnswerSummary, data: bytes | None) -> None:
        """Store the whole answer of a call, if it may be returned to others. data: None: it was too long to be buffered."""
        cache, store = miss.cache, miss.cache.store
        stored = self._answer_to_store(ex, miss, summary, data)
        if stored is not None:
            if isinstance(store, MemoryStore):
                store.put_sync(miss.key, stored)
            else:
                await store.put(miss.key, stored)
            if miss.query is not None and cache.semantic is not None:
                cache.semantic.sameness.note_call()
                cache.semantic.learn_answer(miss.query, ex.request, miss.key, stored)
        if not isinstance(store, MemoryStore):
            store.release_lead(miss.key)

    def _answer_to_store(self, ex: Exchange, miss: Miss, summary: AnswerSummary, data: bytes | None) -> CachedAnswer | None:
        if data is None or ex.record.upstream == FROM_CACHE:
            return None
        cache, control = miss.cache, miss.control
        body = storable_body(ex.request, summary, data)
        if body is None or len(body) > cache.config.max_answer_bytes:
            if miss.query is not None and cache.semantic is not None and (
                    summary.is_complete and not summary.is_cut and summary.failure is None):
                cache.semantic.learn_unstorable(miss.query)
            return None
        stored_at, keep_s = self._clock.wall(), cache.keep_s
        if control is not None and control.keep_s is not None:
            keep_s = min(keep_s, control.keep_s)
        return CachedAnswer(body, stored_at, summary.usage, summary.finish_reason, stored_at + keep_s, ex.route or "",
                            ex.arrival.tenant, control.tags if control is not None else ())


def _question_of(ex: Exchange, cache: RouteCache, control: CacheControl | None
                 ) -> tuple[CallKey, CanonicalRequest, bytes] | str:
    """The key of the answer, the canonical request and its terms; or why the request bypasses the cache."""
    request, arrival = ex.request, ex.arrival
    if control is not None and control.no_store:
        return "no-store"
    if arrival.events is not None:
        return "events"
    identity = cache.identity_of(arrival.tenant, request.api)
    if arrival.headers or (control is not None and control.namespace):
        relevant = [f"{name}: {value}" for name, value in arrival.headers if name not in IRRELEVANT]
        if control is not None and control.namespace:
            relevant.append(f"namespace: {control.namespace}")
        if relevant:
            identity = identity_bytes(arrival.tenant, cache.origin, request.api, *relevant)
    canonical_request = canonicalize(request)
    if canonical_request.why_not:
        return canonical_request.why_not
    if canonical_request.is_sampled and is_too_random(cache.config, canonical_request.temperature,
                                                    is_seeded=canonical_request.is_seeded):
        return "temperature"
    terms = scope_bytes(canonical_request, identity)
    return (key_digest(terms, canonical_request), request.stream, request.include_usage), canonical_request, terms


def _refuse_if_only_cached(control: CacheControl | None) -> None:
    if control is not None and control.only_if_cached:
        raise Shed("No stored answer to this request, and only-if-cached allows no call.", reason="only_if_cached",
                   status=504, code="not_cached", is_final=True)
