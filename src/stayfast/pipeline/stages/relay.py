"""Passes an answer on to the client, chunk by chunk, under the idle and total timeouts, until its end."""

import asyncio
from collections.abc import Callable
from math import inf

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.types import Allowance, AnswerSummary, Chunk, Outcome, Stage
from stayfast.pipeline.exchange import Exchange, before_silence_ends_s, release_all, steps_timing
from stayfast.pipeline.plan import StartedAnswer
from stayfast.pipeline.timing.timeouts import OF_THE_STAGE
from stayfast.pipeline.timing.token_timings import STALL_AFTER_S, SilenceClock, TokenTimings
from stayfast.wire.stream_report import StreamReport

SUCCESS, DROPPED, IGNORED = Outcome
OnEnd = Callable[[Exchange, BaseException | None, AnswerSummary | None, TokenTimings | None, int], None]


class Reply:
    """A running answer. Owns everything that its request held, and releases it at the end, exactly once. One task reads it.
    A class, not an async generator: a generator that is closed before its first item never runs its `finally`.
    """

    __slots__ = ("_cadence", "_clock", "_ends_at", "_ex", "_idle_s", "_is_over", "_lead", "_may_wait", "_n_chunks",
                 "_on_end", "_silence", "_source", "_stream", "_timeouts", "allowances", "summary")

    def __init__(self, ex: Exchange, started: StartedAnswer, on_end: OnEnd, clock: Clock,
                 allowances: tuple[Allowance, ...] = ()) -> None:
        self._timeouts = timeouts = ex.timeouts
        timeouts.disarm()  # waits are timed only while the client reads
        self.allowances = allowances  # what is left of the client's quota
        self._ex = ex
        self._source = source = started.source
        self._cadence = source.timings
        self._stream = stream = started.stream
        self.summary = summary = stream.summary
        self._lead: Chunk | None = started.first_chunk
        self._on_end = on_end
        self._clock = clock
        self._ends_at = ex.ledger.ends_at
        self._may_wait = ex.request.stream or not summary.is_complete  # else the first chunk is the whole answer
        self._idle_s = _idle_s(ex, is_incremental=source.is_incremental) if self._may_wait else inf
        self._silence = SilenceClock(summary.n_progress)
        self._n_chunks = 0
        self._is_over = False

    @property
    def upstream(self) -> str:
        return self._source.name

    @property
    def cost_usd(self) -> float | None:
        """The known cost of the attempts that have ended; None if no cost is known."""
        costs_usd = [attempt.done.cost_usd for attempt in self._ex.record.attempts
                     if attempt.done is not None and attempt.done.cost_usd is not None]
        return sum(costs_usd) if costs_usd else None

    @property
    def n_attempts(self) -> int:
        return len(self._ex.record.attempts)

    @property
    def deadline_at(self) -> float:
        """On the loop's clock."""
        return self._ends_at

    @property
    def degraded(self) -> str | None:
        """What was done instead of failing: fallback, stale, template or partial; capped: our output limit ended it."""
        summary, degraded = self.summary, self._ex.record.degraded
        if summary.is_cut:
            return "partial"
        return "capped" if degraded is None and summary.cap is not None and summary.is_capped else degraded

    @property
    def may_degrade(self) -> bool:
        """Whether it is degraded, or may be by its end."""
        return self.summary.cap is not None or self.degraded is not None

    @property
    def guard(self) -> str | None:
        """The rule by which the guard flagged the request."""
        return self._ex.record.guard

    @property
    def cache(self) -> str | None:
        """The result of the cache lookup, as a header; None: the route has no cache."""
        record = self._ex.record
        return record.cache.header(record.cache_key) if record.cache is not None else None

    def server_timing(self) -> str:
        """The stages so far as a `Server-Timing` value, and the steps of a turn."""
        turn = self.summary.turn
        if turn is None:
            return self._ex.ledger.server_timing()
        return self._ex.ledger.server_timing() + steps_timing(turn().steps)

    def report(self) -> StreamReport:
        """The figures of the response headers, as of now."""
        arrival, timings_ms = self._ex.arrival, self._ex.ledger.spent_ms()
        timings_ms["total"] = round((self._clock.now() - arrival.accepted_at) * 1e3, 3)
        return StreamReport(arrival.request_id, self.upstream, self.n_attempts, timings_ms, self.degraded, self.cache)

    async def next(self) -> Chunk | None:
        """The next bytes for the client; None after the last. Raises StayfastError for an answer that breaks off."""
        if self._lead is not None or self._is_over:
            return self._take_lead()
        now = self._clock.now()
        silence = self._silence
        if self._may_wait:
            if now >= self._ends_at and not self.summary.is_complete:  # a stored answer never waits
                return self._overrun(self._timeouts.timeout_error(Stage.RELAY), IGNORED)
            self._timeouts.arm("idle_s", self._idle_s, now - silence.seconds)
        try:
            chunk = await self._stream.next()
        except asyncio.CancelledError as why:
            return self._interrupted(why)
        except (DeadlineExceeded, UpstreamFailed) as failed:
            return self._failed(failed)
        self._timeouts.disarm()
        if chunk is None:
            self._end(None, SUCCESS)
            return None
        if chunk.n_content:
            self._cadence.note_content(self._clock.now())
            if silence.seconds or silence.n_progress != self.summary.n_progress:
                silence.note_content(self.summary)
        else:
            silence.note_read(self.summary, self._clock.now() - now)
        if chunk.data:
            self._n_chunks += 1
        return chunk

    def _take_lead(self) -> Chunk | None:
        """The first chunk; None after the end."""
        if self._is_over:
            return None
        lead, self._lead = self._lead, None
        self._n_chunks = 1
        if self.summary.is_cut and not self._ex.request.stream:  # a whole answer of which only a part came in time
            self._end(None, DROPPED, Fault.TIMEOUT.value)
        return lead

    def _interrupted(self, why: asyncio.CancelledError) -> Chunk:
        """A read was cancelled: by the timeouts, which end the answer, or from elsewhere."""
        late = self._timeouts.take_timeout_error(Stage.RELAY)
        if late is None:
            try:
                raise why
            finally:
                del why  # else the exception and this frame hold each other, and with them the request
        is_flowing = self._clock.now() - self._cadence.last_at <= STALL_AFTER_S
        is_ours = late.limit in OF_THE_STAGE and is_flowing  # the request's own deadline, not its upstream's fault
        return self._overrun(late, IGNORED if is_ours else DROPPED, Fault.TIMEOUT.value)

    def _failed(self, failed: DeadlineExceeded | UpstreamFailed) -> Chunk:
        """The stream's failure, or the deadline while another upstream was called for the rest."""
        if isinstance(failed, DeadlineExceeded):
            return self._overrun(failed, DROPPED, Fault.TIMEOUT.value)
        self._end(failed, DROPPED, failed.fault.value)
        raise failed

    def _overrun(self, late: DeadlineExceeded, outcome: Outcome, fault: str | None = None) -> Chunk:
        """End an answer whose time is up: in its protocol if the route ends partial answers, else raise."""
        ending = self._stream.cut() if self._ex.policy.ends_partial else None
        self._end(late if ending is None else None, outcome, fault)
        if ending is None:
            raise late from None
        return ending

    def close(self, why: StayfastError | None = None) -> None:
        """The client reads no further: closes the upstream, unless the answer is whole. why: None: the client left."""
        if not self._is_over:
            self._end(why or asyncio.CancelledError(), IGNORED)

    async def aclose(self) -> None:
        """`close` for users of `contextlib.aclosing`."""
        self.close()

    def _end(self, why: StayfastError | asyncio.CancelledError | None, outcome: Outcome, fault: str | None = None) -> None:
        self._is_over = True
        self._lead = None
        if self.summary.is_cut:
            self._ex.record.degrade("partial")
        elif self.summary.cap is not None:
            self._ex.record.degrade(self.degraded)
        upstream_status = why.upstream_status if isinstance(why, UpstreamFailed) else None
        try:
            self._source.end(outcome, fault, upstream_status=upstream_status)
        finally:
            try:
                release_all(self._ex.held)
            finally:
                self._on_end(self._ex, why, self.summary, self._cadence, self._n_chunks)

    def __repr__(self) -> str:
        return f"<Reply {self._ex!r} {'over' if self._is_over else 'running'}, {self._n_chunks} chunks>"


def _idle_s(ex: Exchange, *, is_incremental: bool) -> float:
    """How long an answer may be silent."""
    limits, silence_s = ex.policy.timeouts, ex.arrival.silence_s
    idle_s = limits.idle_s if is_incremental else limits.total_s
    if silence_s is not None and ex.policy.ends_partial:  # end the answer before the client's SDK times out
        return min(idle_s, before_silence_ends_s(silence_s))
    return idle_s
