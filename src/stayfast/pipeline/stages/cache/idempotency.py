"""Repeats of a request by its `idempotency-key`: they share a call, or get the answer again (`policy.cache.idempotency`)."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import HOP_HEADER
from stayfast.core.errors import Rejected
from stayfast.core.events import Sink
from stayfast.core.types import CALL, FROM_CACHE, AnswerSummary, CacheControl, Chunk, Usage
from stayfast.pipeline.exchange import Exchange, Ledger, Start
from stayfast.pipeline.plan import Plan, StartedAnswer, StoredStream
from stayfast.pipeline.stages.cache.coalesce import CallKey, SharedCall, join_calls
from stayfast.pipeline.stages.cache.lookup import COALESCED, SAY_NOTHING, Cache, ExactCache
from stayfast.pipeline.tasks import TaskGroupRegistry
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.cache.idempotency import MAX_ANSWER_BYTES, MAX_KEYS, IdempotencyConfig

HEADER = "idempotency-key"
_MARK_BYTES = 16
_NOT_SAID = SAY_NOTHING | {HOP_HEADER}


class IdempotentAnswer(msgspec.Struct, frozen=True, gc=False):
    """What a client was given, byte for byte."""

    data: bytes
    answered_at: float  # monotonic seconds
    usage: Usage | None
    finish_reason: str | None


class Seen(msgspec.Struct):
    """One key of one client."""

    body: bytes  # a hash of it
    first: Ledger  # of the request that made the call, or is about to
    answer: IdempotentAnswer | None = None
    has_failed: bool = False  # its call: whoever made it may hear of that after the others

    @property
    def is_running(self) -> bool:
        return self.answer is None and not self.has_failed and self.first.stage is not None


class IdempotentAnswers:
    """The keys that were seen, the oldest first, and the calls that repeats may join. One loop's; bounded."""

    __slots__ = ("_answered", "_n_bytes", "_open", "calls", "config")

    def __init__(self, config: IdempotencyConfig) -> None:
        self.config = config
        self.calls: dict[CallKey, SharedCall] = {}
        self._open: dict[bytes, Seen] = {}  # that have no answer: they run, or nothing came of them
        self._answered: dict[bytes, Seen] = {}
        self._n_bytes = 0

    def get(self, key: bytes, now: float) -> Seen | None:
        """What is known of a key; nothing once its answer is too old."""
        seen = self._open.get(key) or self._answered.get(key)
        if seen is not None and seen.answer is not None and now - seen.answer.answered_at > self.config.ttl_s:
            self._drop(key)
            return None
        return seen

    def begin(self, key: bytes, body: bytes, first: Ledger) -> Seen:
        """A request with this key is about to be served."""
        self._drop(key)
        self._open[key] = seen = Seen(body, first)
        self._shrink()
        return seen

    def keep(self, key: bytes, answer: IdempotentAnswer) -> None:
        """It was answered."""
        seen = self._open.get(key) or self._answered.get(key)
        if seen is not None and len(answer.data) <= min(MAX_ANSWER_BYTES, self.config.max_bytes):
            self._drop(key)
            seen.answer = answer
            self._answered[key] = seen
            self._n_bytes += len(answer.data)
            self._shrink()

    def _shrink(self) -> None:
        """Answers make room for answers. What runs goes last: its answer could not be kept, nor another body be told."""
        answered, unanswered = self._answered, self._open
        while self._n_bytes > self.config.max_bytes:
            self._drop(next(iter(answered)))
        while len(answered) + len(unanswered) > MAX_KEYS:
            oldest = next(iter(unanswered), None)
            if oldest is not None and answered and unanswered[oldest].is_running:
                unanswered[oldest] = unanswered.pop(oldest)  # looked at again when all others were
                oldest = next(iter(answered))
            self._drop(oldest if oldest is not None else next(iter(answered)))

    def _drop(self, key: bytes) -> None:
        if self._open.pop(key, None) is None:
            seen = self._answered.pop(key, None)
            if seen is not None and seen.answer is not None:
                self._n_bytes -= len(seen.answer.data)

    def __repr__(self) -> str:
        return (f"<IdempotentAnswers: {len(self._open) + len(self._answered)} keys, {self._n_bytes} bytes, "
                f"{len(self.calls)} calls>")


class Idempotent:
    """Finds the answer to an earlier request with the same key, then looks where `inner` does. Task-safe."""

    __slots__ = ("_clock", "_make_call", "_sink", "_tasks", "answers", "inner")

    def __init__(self, inner: Cache, make_call: Start, clock: Clock, sink: Sink, answers: IdempotentAnswers) -> None:
        self.inner = inner
        self.answers = answers
        self._make_call = make_call
        self._clock = clock
        self._sink = sink
        self._tasks = TaskGroupRegistry()

    def find(self, ex: Exchange) -> Awaitable[StartedAnswer | None]:
        """Raises Rejected for a key that came with another body (422), or whose request runs and cannot be shared (409)."""
        arrival, control = ex.arrival, ex.request.cache or ex.arrival.cache
        if arrival.headers and arrival.events is None and not (control is not None and control.no_store):
            for name, value in arrival.headers:
                if name == HEADER and value:
                    return self._find(ex, value, control)
        return self.inner.find(ex)

    async def _find(self, ex: Exchange, word: str, control: CacheControl | None) -> StartedAnswer | None:
        tenant, request, answers = ex.arrival.tenant, ex.request, self.answers
        hop = next((said for name, said in ex.arrival.headers if name == HOP_HEADER), "")  # a circle is no repeat
        key = _mark(word.encode(), f"{hop} {tenant or ''}".encode())
        calls, headers = answers.calls, [pair for pair in ex.arrival.headers if pair[0] not in _NOT_SAID]
        body = _mark(request.body, f"{request.api.value} {headers}".encode())
        call_key = (key, False, False)  # the body says whether it is streamed, and repeats have the same
        seen = answers.get(key, self._clock.now())
        if seen is not None and seen.body != body and (seen.answer or seen.is_running or call_key in calls):
            raise Rejected(f"This {HEADER} came with another body: send each request under a key of its own.", status=422,
                           code="idempotency_key_reused", param=HEADER)
        if seen is not None and seen.answer is not None:
            return self._given(ex, seen.answer)
        if call_key in calls:
            started = await join_calls(ex, calls, call_key, self._clock)
            if started is not None:
                ex.notes.append(f"shared the call of an earlier request with the same {HEADER}")
                return started
            failed, seen = seen, answers.get(key, self._clock.now())
            if failed is not None and seen is failed:  # the call of the first, who may not know yet
                failed.has_failed = True
        return await self._asked(ex, call_key, seen, body, control)

    async def _asked(self, ex: Exchange, call_key: CallKey, seen: Seen | None, body: bytes, control: CacheControl | None
                     ) -> StartedAnswer | None:
        """What the route's cache has to say; nothing where a call is to be made. seen: of the same request, or over."""
        key, answers, inner = call_key[0], self.answers, self.inner
        is_running = seen is not None and seen.is_running
        if seen is None or not is_running:
            seen = answers.begin(key, body, ex.ledger)
        started = await inner.find(ex)
        if started is None and is_running and control is not None and control.no_cache and isinstance(inner, ExactCache):
            started = await self._route_call(ex, inner)
        if started is not None:
            is_shared = ex.cached is COALESCED and ex.degraded is None  # and kept: whoever made the call may leave it
            return self._kept_at_end(key, started) if is_shared else started
        if is_running:
            if ex.ledger.stage is not CALL:
                await asyncio.sleep(0)  # of a call that has just failed its maker hears in this turn
                if seen.answer is not None:  # since the cache was asked
                    return self._given(ex, seen.answer)
            if ex.ledger.stage is not CALL and seen.is_running:
                raise Rejected(f"A request with this {HEADER} is under way, and its answer cannot be shared. Please try "
                               "again when it is over.", status=409, code="idempotency_key_in_use", param=HEADER)
            seen = answers.begin(key, body, ex.ledger)  # it waited for the route's call, which failed
        ex.share = (partial(self._noted, key, seen, ex.share) if ex.share is not None
                    else partial(self._call, call_key, seen))
        return None

    async def _route_call(self, ex: Exchange, cache: ExactCache) -> StartedAnswer | None:
        """What the call brings that a route's cache is having made for the first, which wanted no earlier answer either."""
        if ex.cache_key is None:
            return None
        started = await join_calls(ex, cache.calls, (ex.cache_key, ex.request.stream, ex.request.include_usage), self._clock)
        if started is not None:
            ex.cached, ex.share = COALESCED, None
        return started

    def _given(self, ex: Exchange, answer: IdempotentAnswer) -> StartedAnswer:
        age_s = self._clock.now() - answer.answered_at
        ex.notes.append(f"given the answer to an earlier request with the same {HEADER}, {age_s:.0f} s ago")
        ex.upstream = FROM_CACHE
        cadence = TokenTimings(ex.route or "", FROM_CACHE, self._sink)
        cadence.begin(self._clock.now())
        stored = StoredStream(FROM_CACHE, cadence, answer.usage, answer.finish_reason)
        return StartedAnswer(stored, stored, Chunk(answer.data, 1))

    def _call(self, key: CallKey, seen: Seen, ex: Exchange, plan: Plan) -> Awaitable[StartedAnswer]:
        """Make the call, for this request and for its repeats."""
        call = SharedCall(key, self.answers.calls, ex, self._clock)
        return call.start(ex, plan, partial(_told, seen, self._make_call), self._keep_shared, self._tasks)

    async def _keep_shared(self, call: SharedCall, data: bytes | None) -> None:
        if data is not None:
            self._keep(call.key[0], data, call.started.stream.sight)

    async def _noted(self, key: bytes, seen: Seen, share: Start, ex: Exchange, plan: Plan) -> StartedAnswer:
        """The call of a route's cache, which repeats join there, as all do who ask the same."""
        started = await _told(seen, share, ex, plan)
        if ex.degraded is not None:
            return started
        return self._kept_at_end(key, started)

    def _kept_at_end(self, key: bytes, started: StartedAnswer) -> StartedAnswer:
        return StartedAnswer(started.source, _NotedStream(started, partial(self._keep, key)), started.first_chunk)

    def _keep(self, key: bytes, data: bytes, sight: AnswerSummary) -> None:
        if sight.is_complete and not sight.is_cut and sight.failure is None:
            self.answers.keep(key, IdempotentAnswer(data, self._clock.now(), sight.usage, sight.finish_reason))

    def __repr__(self) -> str:
        return f"<Idempotent: {self.answers!r}>"


class _NotedStream:
    """A stream whose bytes are kept when it has come to its end. One task reads it."""

    __slots__ = ("_keep", "_n_bytes", "_parts", "_stream")

    def __init__(self, started: StartedAnswer, keep: Callable[[bytes, AnswerSummary], None]) -> None:
        self._stream = started.stream
        self._keep = keep
        self._parts = [started.first_chunk.data]
        self._n_bytes = len(started.first_chunk.data)

    @property
    def sight(self) -> AnswerSummary:
        return self._stream.sight

    async def next(self) -> Chunk | None:
        chunk = await self._stream.next()
        if chunk is None:
            if self._n_bytes <= MAX_ANSWER_BYTES:
                self._keep(b"".join(self._parts), self.sight)
        elif self._n_bytes <= MAX_ANSWER_BYTES:
            self._parts.append(chunk.data)
            self._n_bytes += len(chunk.data)
        return chunk

    def cut(self) -> Chunk | None:
        return self._stream.cut()

    def close(self) -> None:
        self._stream.close()


async def _told(seen: Seen, make_call: Start, ex: Exchange, plan: Plan) -> StartedAnswer:
    """Make a call; where it fails its key is free before anybody hears of that."""
    try:
        return await make_call(ex, plan)
    except BaseException:
        seen.has_failed = True
        raise


def _mark(data: bytes, scope: bytes) -> bytes:
    return blake2b(data, digest_size=_MARK_BYTES, key=blake2b(scope, digest_size=_MARK_BYTES).digest()).digest()
