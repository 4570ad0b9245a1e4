"""Chunks to the client as they come, under the idle and total time-outs, to a whole end, a cut or the client's leaving."""

import asyncio
from collections.abc import Callable

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.types import Allowance, AnswerSummary, Chunk, Outcome, Stage
from stayfast.pipeline.exchange import Exchange, ReleaseStack, before_silence_ends_s, steps_timing
from stayfast.pipeline.plan import StartedAnswer
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.pipeline.timing.token_timings import STALL_AFTER_S, TokenTimings
from stayfast.wire.stream_report import StreamReport

SUCCESS, DROPPED, IGNORED = Outcome
Settled = Callable[[Exchange, BaseException | None, AnswerSummary | None, TokenTimings | None, int], None]


class Reply:
    """A running answer. Owns all that its request held, and gives it back at the end, exactly once. One task reads it. A
    class, not an async generator: one closed before its first item never runs its `finally`.
    """

    __slots__ = ("_cadence", "_clock", "_ends_at", "_ex", "_held", "_idle_s", "_is_over", "_lead", "_n_chunks", "_settle",
                 "_source", "_stream", "_watch")

    def __init__(self, ex: Exchange, started: StartedAnswer, held: ReleaseStack, settle: Settled, clock: Clock) -> None:
        self._ex = ex
        self._source = started.source
        self._cadence = started.source.cadence
        self._stream = started.stream
        self._lead: Chunk | None = started.first_chunk
        self._held = held
        self._settle = settle
        self._clock = clock
        self._watch = ex.watch
        timeouts = ex.terms.timeouts
        self._idle_s = timeouts.idle_s if started.source.is_incremental else timeouts.total_s
        silence_s = ex.arrival.silence_s
        if silence_s is not None and ex.terms.ends_partial:  # to end it before the client's SDK gives up waiting
            self._idle_s = min(self._idle_s, before_silence_ends_s(silence_s))
        self._ends_at = ex.ledger.ends_at
        self._n_chunks = 0
        self._is_over = False

    @property
    def sight(self) -> AnswerSummary:
        return self._stream.sight

    @property
    def upstream(self) -> str:
        return self._source.name

    @property
    def n_attempts(self) -> int:
        return len(self._ex.attempts)

    @property
    def deadline_at(self) -> float:
        """When its time is up, on the loop's clock."""
        return self._ends_at

    @property
    def degraded(self) -> str | None:
        """What the route did instead of failing: fallback, stale, template or partial."""
        return "partial" if self._stream.sight.is_cut else self._ex.degraded

    @property
    def cache(self) -> str | None:
        """What the route's cache had to do with it; None where it has none."""
        cached = self._ex.cached
        return cached.header(self._ex.cache_key) if cached is not None else None

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        return self._ex.allowances

    def server_timing(self) -> str:
        """The stages so far as a `Server-Timing` value, and a turn's steps."""
        turn = self._stream.sight.turn
        if turn is None:
            return self._ex.ledger.server_timing()
        return self._ex.ledger.server_timing() + steps_timing(turn().steps)

    def report(self) -> StreamReport:
        """What the head says of the answer, or would say, as of now."""
        arrival, timings_ms = self._ex.arrival, self._ex.ledger.spent_ms()
        timings_ms["total"] = round((self._clock.now() - arrival.accepted_at) * 1e3, 3)
        return StreamReport(arrival.request_id, self.upstream, self.n_attempts, timings_ms, self.degraded, self.cache)

    async def next(self) -> Chunk | None:
        """The next bytes for the client; None after the last. Raises StayfastError for an answer that was broken off."""
        if self._lead is not None:
            return self._take_lead(self._lead)
        if self._is_over:
            return None
        now = self._clock.now()
        if now >= self._ends_at and not self._stream.sight.is_complete:  # a source that is always ready never waits
            return self._overrun(self._watch.exceeded(Stage.RELAY), IGNORED)
        self._watch.arm("idle_s", self._idle_s, now)
        try:
            chunk = await self._stream.next()
        except asyncio.CancelledError:
            verdict = self._watch.take_timeout_error(Stage.RELAY)
            if verdict is None:
                raise
            is_flowing = self._clock.now() - self._cadence.last_at <= STALL_AFTER_S
            is_ours = verdict.limit in OF_THE_STAGE and is_flowing  # the request's time is up: not its upstream's fault
            return self._overrun(verdict, IGNORED if is_ours else DROPPED, Fault.TIMEOUT.value)
        except (DeadlineExceeded, UpstreamFailed) as failed:
            return self._failed(failed)
        self._watch.disarm()
        if chunk is None:
            self._end(None, SUCCESS)
            return None
        if chunk.n_content:
            self._cadence.content(self._clock.now())
        if chunk.data:
            self._n_chunks += 1
        return chunk

    def _take_lead(self, lead: Chunk) -> Chunk:
        self._lead = None
        self._n_chunks = 1
        if self._stream.sight.is_cut and not self._ex.request.stream:  # a whole answer of which only a part came in time
            self._end(None, DROPPED, Fault.TIMEOUT.value)
        return lead

    def _failed(self, failed: DeadlineExceeded | UpstreamFailed) -> Chunk:
        """The stream's own failure, or time that ran out while the rest of it was asked for elsewhere."""
        if isinstance(failed, DeadlineExceeded):
            return self._overrun(failed, DROPPED, Fault.TIMEOUT.value)
        self._end(failed, DROPPED, failed.fault.value)
        raise failed

    def _overrun(self, late: DeadlineExceeded, outcome: Outcome, fault: str | None = None) -> Chunk:
        """How an answer ends whose time is up: in its own protocol where the route wants that, else it raises."""
        ending = self._stream.cut() if self._ex.terms.ends_partial else None
        self._end(late if ending is None else None, outcome, fault)
        if ending is None:
            raise late from None
        return ending

    def close(self, why: StayfastError | None = None) -> None:
        """The reader is done: after a whole answer a no-op, else the upstream is closed for `why`, or as the client left."""
        if not self._is_over:
            self._end(why or asyncio.CancelledError(), IGNORED)

    async def aclose(self) -> None:
        """`close` for users of `contextlib.aclosing`."""
        self.close()

    def _end(self, why: StayfastError | asyncio.CancelledError | None, outcome: Outcome, fault: str | None = None) -> None:
        self._is_over = True
        self._lead = None
        if self._stream.sight.is_cut:
            self._ex.degraded = "partial"
        upstream_status = why.upstream_status if isinstance(why, UpstreamFailed) else None
        self._source.end(outcome, fault, upstream_status=upstream_status)
        self._held.release()
        self._settle(self._ex, why, self._stream.sight, self._cadence, self._n_chunks)

    def __repr__(self) -> str:
        return f"<Reply {self._ex!r} {'over' if self._is_over else 'running'}, {self._n_chunks} chunks>"


class Relay:
    __slots__ = ("_clock", "_settle")

    def __init__(self, clock: Clock, settle: Settled) -> None:
        self._clock = clock
        self._settle = settle

    def open(self, ex: Exchange, started: StartedAnswer, held: ReleaseStack) -> Reply:
        """A reply that owns what was held; does not await, so that nothing can come between."""
        return Reply(ex, started, held, self._settle, self._clock)
