"""Retries with the same `idempotency-key` share a call, or get the stored answer (`policy.cache.idempotency`)."""

import asyncio
from collections.abc import Callable, Container
from hashlib import blake2b

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import HOP_HEADER
from stayfast.core.errors import Rejected
from stayfast.core.events import Sink
from stayfast.core.types import CALL, FROM_CACHE, AnswerSummary, Chunk, Usage
from stayfast.pipeline.exchange import Exchange, Ledger
from stayfast.pipeline.plan import CallKey, Hit, StartedAnswer, StoredStream
from stayfast.pipeline.stages.cache.lookup import IRRELEVANT
from stayfast.pipeline.timing.token_timings import TokenTimings
from stayfast.policy.cache.idempotency import MAX_ANSWER_BYTES, MAX_KEYS, IdempotencyConfig

HEADER = "idempotency-key"
_DIGEST_BYTES = 16
_NOT_COMPARED = IRRELEVANT | {HOP_HEADER}


class IdempotentAnswer(msgspec.Struct, frozen=True, gc=False):
    """The bytes of an answer that a client received."""

    data: bytes
    answered_at: float  # monotonic seconds
    usage: Usage | None
    finish_reason: str | None


class Seen(msgspec.Struct):
    """One key of one client."""

    body: bytes  # a hash of it
    first: Ledger | None  # of the request that makes the call; None: it is answered
    answer: IdempotentAnswer | None = None
    has_failed: bool = False  # the call; the request that made it may be informed later than others

    @property
    def is_running(self) -> bool:
        return self.first is not None and not self.has_failed and self.first.stage is not None


class IdempotentAnswers:
    """Keys and their answers, oldest first. Belongs to one loop; bounded; survives a reload."""

    __slots__ = ("_answered", "_n_bytes", "_open", "config")

    def __init__(self, config: IdempotencyConfig) -> None:
        self.config = config
        self._open: dict[bytes, Seen] = {}  # without an answer: running, or failed
        self._answered: dict[bytes, Seen] = {}
        self._n_bytes = 0

    def configure(self, config: IdempotencyConfig) -> None:
        self.config = config

    def get(self, key: bytes, now: float) -> Seen | None:
        """None: the key is unknown, or its answer too old."""
        seen = self._open.get(key) or self._answered.get(key)
        if seen is not None and seen.answer is not None and now - seen.answer.answered_at > self.config.ttl_s:
            self._drop(key)
            return None
        return seen

    def begin(self, key: bytes, body: bytes, first: Ledger) -> Seen:
        """A request with this key starts."""
        self._drop(key)
        self._open[key] = seen = Seen(body, first)
        self._shrink()
        return seen

    def store_answer(self, key: bytes, answer: IdempotentAnswer) -> None:
        """Store the answer of a key, unless it is too long."""
        seen = self._open.get(key) or self._answered.get(key)
        if seen is not None and len(answer.data) <= min(MAX_ANSWER_BYTES, self.config.max_bytes):
            self._drop(key)
            seen.answer, seen.first = answer, None
            self._answered[key] = seen
            self._n_bytes += len(answer.data)
            self._shrink()

    def _shrink(self) -> None:
        """Evict the oldest. A running request is evicted last: otherwise its answer could not be stored, and another body
        under its key would not be detected.
        """
        answered, unanswered = self._answered, self._open
        while self._n_bytes > self.config.max_bytes:
            self._drop(next(iter(answered)))
        while len(answered) + len(unanswered) > MAX_KEYS:
            oldest = next(iter(unanswered), None)
            if oldest is not None and answered and unanswered[oldest].is_running:
                unanswered[oldest] = unanswered.pop(oldest)  # move to the end
                oldest = next(iter(answered))
            self._drop(oldest if oldest is not None else next(iter(answered)))

    def _drop(self, key: bytes) -> None:
        if self._open.pop(key, None) is None:
            seen = self._answered.pop(key, None)
            if seen is not None and seen.answer is not None:
                self._n_bytes -= len(seen.answer.data)

    def __repr__(self) -> str:
        return f"<IdempotentAnswers: {len(self._open) + len(self._answered)} keys, {self._n_bytes} bytes>"


class KeyClaim:
    """One request's claim on its idempotency key: the earlier call of the key, or the call that this request makes."""

    __slots__ = ("_answers", "_body", "_clock", "_ex", "_open", "_seen", "call_key", "is_retry")

    def __init__(self, answers: IdempotentAnswers, call_key: CallKey, body: bytes, seen: Seen | None, *, ex: Exchange,
                 clock: Clock, open_answer: Callable[[Exchange, IdempotentAnswer], StartedAnswer]) -> None:
        """seen: the record of the key if its call runs, else None."""
        self.call_key = call_key
        self._answers = answers
        self._body = body
        self._ex = ex
        self._clock = clock
        self._open = open_answer
        self._seen = seen
        self.is_retry = False  # an earlier request with this key runs

    def take(self) -> None:
        """Claim the key for this request, unless an earlier one with the same body runs."""
        seen = self._answers.get(self.call_key[0], self._clock.now())
        self.is_retry = seen is not None and seen.is_running
        self._seen = seen if self.is_retry else self._begin()

    def _begin(self) -> Seen:
        return self._answers.begin(self.call_key[0], self._body, self._ex.ledger)

    def retake(self) -> None:
        """Claim the key again after its running call failed, even if the request that made the call is not informed yet."""
        if self._seen is not None and self._seen is self._answers.get(self.call_key[0], self._clock.now()):
            self._seen.has_failed = True
        self.take()

    async def require(self) -> StartedAnswer | None:
        """Before this request calls: the earlier request's answer, if it exists by now; None: this request makes the call.
        Raises Rejected (409) if the earlier request still runs and its call cannot be shared.
        """
        if not self.is_retry or self._seen is None:
            return None
        ledger = self._ex.ledger
        if ledger.stage is not CALL:  # else it waited for a shared call, which failed
            await asyncio.sleep(0)  # in this turn of the loop, the request that made a failed call is informed
            if self._seen.answer is not None:
                return self._open(self._ex, self._seen.answer)
            if self._seen.is_running:
                raise Rejected(f"A request with this {HEADER} is running, and its answer cannot be shared. Please retry "
                               "when it is over.", status=409, code="idempotency_key_in_use", param=HEADER)
        self._seen = self._begin()
        return None

    def fail(self) -> None:
        """The call failed: free the key, before any subscriber is informed."""
        if self._seen is not None:
            self._seen.has_failed = True

    def keep(self, data: bytes, summary: AnswerSummary) -> None:
        """Store the answer under the key, if it is whole."""
        if summary.is_complete and not summary.is_cut and summary.failure is None:
            answer = IdempotentAnswer(data, self._clock.now(), summary.usage, summary.finish_reason)
            self._answers.store_answer(self.call_key[0], answer)


class Idempotency:
    """Finds the calls and answers of earlier requests with the same key. Holds no state of a request."""

    __slots__ = ("_clock", "_running", "_sink", "answers")

    def __init__(self, answers: IdempotentAnswers, clock: Clock, sink: Sink, running: Container[CallKey]) -> None:
        """running: the keys of the calls that requests may join."""
        self.answers = answers
        self._clock = clock
        self._sink = sink
        self._running = running

    def claim(self, ex: Exchange) -> KeyClaim | Hit | None:
        """None: the request has no key, must not be stored, or is a job, whose store has its answers. Raises Rejected (422)
        for a key that was used with another body.
        """
        arrival, request, answers = ex.arrival, ex.request, self.answers
        control = request.cache or arrival.cache
        value = next((value for name, value in arrival.headers if name == HEADER), "")
        if not value or not answers.config.ttl_s or arrival.events is not None or arrival.is_job or (
                control is not None and control.no_store):
            return None
        hop = next((value for name, value in arrival.headers if name == HOP_HEADER), "")  # a circle is not a retry
        key = _digest(value.encode(), f"{hop} {arrival.tenant or ''}".encode())
        headers = [pair for pair in arrival.headers if pair[0] not in _NOT_COMPARED]
        body = _digest(request.body, f"{request.api.value} {headers}".encode())
        call_key = (key, False, False)  # retries have the same body, so they are all streamed or all not
        seen, is_shared = answers.get(key, self._clock.now()), call_key in self._running
        if seen is not None and seen.body != body and (seen.answer or seen.is_running or is_shared):
            raise Rejected(f"This {HEADER} was used with another body: send each request with its own key.", status=422,
                           code="idempotency_key_reused", param=HEADER)
        if seen is not None and seen.answer is not None:
            return Hit(self._open(ex, seen.answer))
        claim = KeyClaim(answers, call_key, body, seen, ex=ex, clock=self._clock, open_answer=self._open)
        if not is_shared:
            claim.take()
        return claim

    def _open(self, ex: Exchange, answer: IdempotentAnswer) -> StartedAnswer:
        now = self._clock.now()
        ex.record.note(f"returned the answer to an earlier request with the same {HEADER}, "
                       f"{now - answer.answered_at:.0f} s ago")
        ex.record.use_upstream(FROM_CACHE)
        cadence = TokenTimings(ex.route or "", FROM_CACHE, self._sink)
        cadence.start(now)
        stored = StoredStream(FROM_CACHE, cadence, answer.usage, answer.finish_reason)
        return StartedAnswer(stored, stored, Chunk(answer.data, 1))

    def __repr__(self) -> str:
        return f"<Idempotency: {self.answers!r}>"


def _digest(data: bytes, scope: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES, key=blake2b(scope, digest_size=_DIGEST_BYTES).digest()).digest()
