"""One upstream call for all equal requests that run at the same time.

Problem: many clients ask a popular question at once (a page that went live, a retry of a whole batch), before an answer is
stored. Rule: a call that others may share runs in a Task of its own and writes into a buffer. Each request that wants the
answer, the first one included, is a subscriber and reads the buffer from its first byte at its own pace:

    a subscriber leaves        the call goes on. Its attempts are accounted to the oldest remaining subscriber
    the last one leaves        the call is cancelled and its attempts are abandoned at once
    the call fails             before its first token: one of the waiting subscribers makes a new call, once; a subscriber
                               that has seen two calls fail raises. Mid-answer: all raise
    the maker's time ends      before the first token: the subscriber with the latest deadline makes a new call, which
                               outlasts them all. No subscriber waits for more than two such calls, and one whose time is
                               over makes none
    all subscribers stop       the call is read at most AHEAD_BYTES ahead of its fastest subscriber
    a subscriber is too slow   it fails once it is more than MAX_BYTES behind; from then on no request can join

Retries, hedges and fallbacks are made inside the call. It has its maker's deadline until its first token; after that it has
only its idle timeout, and each subscriber has its own deadline.
Source: Go's `singleflight`, with a stream as the result; caching proxies call it request collapsing (RFC 9111, 4).
When wrong: a maker with a short deadline makes the others begin again, once.
"""

import asyncio
from collections.abc import Awaitable, Callable

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.types import CALL, RELAY, AnswerSummary, Chunk, Outcome
from stayfast.pipeline.exchange import Exchange, Start
from stayfast.pipeline.plan import CallKey, Plan, StartedAnswer
from stayfast.pipeline.stages.cache.idempotency import KeyClaim
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.pipeline.timing.timeouts import RequestTimeouts
from stayfast.pipeline.timing.token_timings import SILENT, SilenceClock, TokenTimings

SUCCESS, DROPPED, IGNORED = Outcome
AHEAD_BYTES = 256 * 1024
MAX_BYTES = 8 * 1024 * 1024  # streamed, 30,000 tokens
StoreShared = Callable[[Exchange, AnswerSummary, bytes | None], Awaitable[None]]


class AnswerBuffer:
    """The chunks of one answer, whose beginning may be dropped."""

    __slots__ = ("_chunks", "_n_bytes_gone", "_n_gone", "n_bytes", "n_chunks")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._n_gone = 0  # chunks dropped at the front
        self.n_chunks = 0  # the dropped ones included
        self.n_bytes = self._n_bytes_gone = 0  # of all chunks, and of those dropped

    def append(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.n_chunks += 1
        self.n_bytes += len(chunk.data)

    @property
    def n_bytes_held(self) -> int:
        return self.n_bytes - self._n_bytes_gone

    def drop_first(self) -> None:
        self._n_bytes_gone += len(self._chunks.pop(0).data)
        self._n_gone += 1

    def chunks_from(self, at: int) -> list[Chunk] | None:
        """The chunks from this number on; None if the first of them was dropped."""
        return self._chunks[at - self._n_gone:] if at >= self._n_gone else None

    def join(self) -> bytes | None:
        """The whole answer; None if its beginning was dropped."""
        if self._n_gone:
            return None
        return self._chunks[0].data if len(self._chunks) == 1 else b"".join([chunk.data for chunk in self._chunks])


class SharedCall:
    """One call, its buffer and its subscribers. Its Task writes, subscribers read; all on one loop."""

    __slots__ = ("_calls", "_ending", "_ex", "_n_bytes_read", "_resume", "_started", "_subscribers", "_task", "buffer",
                 "claims", "clock", "failure", "is_over", "is_reduced", "key", "record")

    def __init__(self, key: CallKey, calls: "dict[CallKey, SharedCall]", ex: Exchange, clock: Clock) -> None:
        """ex: of the request that makes the call. calls: where others find it."""
        self.key = key
        self.record = ex.record.fork()  # the maker may leave before the call ends
        self.claims: list[KeyClaim] = []  # of subscribers with an idempotency key
        self.failure: Exception | None = None
        self.is_over = False
        self.is_reduced = False  # a smaller model is called than the one that is enough
        self.clock = clock
        self._ex = ex
        self._calls = calls
        self._task: asyncio.Task[None] | None = None
        self._started: StartedAnswer | None = None
        self.buffer = AnswerBuffer()
        self._n_bytes_read = 0  # by the fastest subscriber
        self._ending: Chunk | None = None  # ends the answer in its protocol, if its time was up
        self._subscribers: dict[Subscriber, None] = {}  # oldest first
        self._resume: asyncio.Future[None] | None = None  # the Task waits for a reader

    @property
    def n_subscribers(self) -> int:
        """Requests that wait for the answer or read it."""
        return len(self._subscribers)

    @property
    def deadline_at(self) -> float:
        """Of the request that made the call."""
        return self._ex.deadline.at

    @property
    def start_by(self) -> float:
        """The latest first token that the request wants which made the call; infinite: it set no limit."""
        return self._ex.start_by

    @property
    def started(self) -> StartedAnswer:
        """Source and stream of the call, from its first content on."""
        assert self._started is not None
        return self._started

    async def start(self, plan: Plan, make_call: Start, store: StoreShared | None, tasks: BackgroundTasks
                    ) -> StartedAnswer:
        """Begin the call in a Task and read it as its first subscriber. Raises the call's failure before its first content.
        store: called after a clean end, with the whole answer unless its beginning was dropped; others can join until it
        returns.
        """
        ex = self._ex
        self.is_reduced = plan.ladder is not None and plan.ladder.is_reduced
        self._calls.setdefault(self.key, self)
        ex.timeouts.disarm()  # until the first content the call's own timeouts have the same limits
        maker = Subscriber(self, ex, is_maker=True)
        self._subscribers[maker] = None
        self._task = task = tasks.spawn(self._run(ex, plan, make_call, store))
        try:
            started = await maker.first()
        finally:
            ex.record.merge_call(self.record)
        if not ex.request.stream and not task.done():  # after a whole answer, its client's next request finds it stored
            await asyncio.wait((task,))
        return started

    async def join(self, ex: Exchange) -> StartedAnswer:
        """Subscribe. Returns with the first content; raises the call's failure before that."""
        ex.timeouts.arm_bound()
        subscriber = Subscriber(self, ex, is_maker=False)
        self._subscribers[subscriber] = None
        started = await subscriber.first()
        ex.record.merge_call(self.record)
        return started

    def leave(self, subscriber: "Subscriber", outcome: Outcome = IGNORED, fault: str | None = None,
              upstream_status: int | None = None) -> None:
        """Unsubscribe; the last one ends the call, with this outcome. Never awaits; safe to call again."""
        if self._subscribers.pop(subscriber, self) is self or self.is_over:
            return
        if self._subscribers:
            if subscriber.ex.record.attempts is self.record.attempts:
                next(iter(self._subscribers)).ex.record.take_attempts(self.record)
            return
        self._end(_abandoned())
        if self._started is not None:
            self._started.source.end(outcome, fault, upstream_status=upstream_status)
        for attempt in self.record.attempts:  # before the Task is cancelled, so that this request's log line has them
            attempt.abandon()
        assert self._task is not None
        self._task.cancel()

    def note_read(self, n_bytes: int) -> None:
        if n_bytes > self._n_bytes_read:
            self._n_bytes_read = n_bytes
            if self._resume is not None and self.buffer.n_bytes - n_bytes < AHEAD_BYTES and not self._resume.done():
                self._resume.set_result(None)

    def cut(self) -> Chunk | None:
        """What ends the answer in its protocol, if the call's time is up or only one subscriber is left."""
        if self.is_over:
            return self._ending
        return self.started.stream.cut() if len(self._subscribers) == 1 else None

    async def _run(self, maker: Exchange, plan: Plan, make_call: Start, store: StoreShared | None) -> None:
        """The call's Task, to the end of the answer. Its errors are raised by the subscribers."""
        self._ex = ex = maker.detach(self.record)
        timeouts = ex.timeouts
        timeouts.arm_bound()
        try:
            self._started = started = await make_call(ex, plan)
            self._add(started.first_chunk)
            timeouts.remove_bound()  # from here on each subscriber has its own deadline
            if ex.request.stream:
                await self._read_stream(started, timeouts)
            else:
                await self._read_whole(started)
            self._end()
        except asyncio.CancelledError:
            self._fail(timeouts.take_timeout_error(CALL if self._started is None else RELAY) or _abandoned())
        except StayfastError as failed:
            self._fail(failed)
        except Exception as error:
            has_maker = any(subscriber.is_maker for subscriber in self._subscribers)
            self._fail(error)
            if not has_maker:  # else that request raises it
                raise
        finally:
            timeouts.stop()
        if self.failure is None:
            try:
                if self.claims:
                    self._keep_for_claims()  # before the end is read: a client may retry at once
                if ex.request.stream:
                    await asyncio.sleep(0)  # the readers get the end first: joining a long answer takes a while
                if store is not None and self.record.degraded is None:
                    await store(ex, self.started.stream.summary, self.buffer.join())
            finally:
                self._close()

    def _keep_for_claims(self) -> None:
        is_good = self.record.degraded is None and not self.started.stream.summary.is_capped
        data = self.buffer.join() if is_good else None
        if data is not None:
            for claim in self.claims:
                claim.keep(data, self.started.stream.summary)

    async def _read_stream(self, started: StartedAnswer, timeouts: RequestTimeouts) -> None:
        stream, cadence, clock, idle_s = started.stream, started.source.timings, self.clock, self._ex.policy.timeouts.idle_s
        silence = SilenceClock(stream.summary.n_progress)
        while True:
            if self.buffer.n_bytes - self._n_bytes_read > AHEAD_BYTES:
                await self._wait_for_reader(timeouts)
            began_at = clock.now()
            timeouts.arm("idle_s", idle_s, began_at - silence.seconds)
            chunk = await stream.next()
            if chunk is None:
                break
            timeouts.disarm()
            if chunk.n_content:
                cadence.note_content(clock.now())
                silence.note_content(stream.summary)
            else:
                silence.note_read(stream.summary, clock.now() - began_at)
            self._add(chunk)
        started.source.end(SUCCESS)

    async def _read_whole(self, started: StartedAnswer) -> None:
        """The rest of an answer whose content is complete: no timeout is needed."""
        if started.stream.summary.is_cut:
            started.source.end(DROPPED, Fault.TIMEOUT.value)
            return
        while (chunk := await started.stream.next()) is not None:
            self._add(chunk)
        started.source.end(SUCCESS)

    async def _wait_for_reader(self, timeouts: RequestTimeouts) -> None:
        timeouts.disarm()
        self._resume = asyncio.get_running_loop().create_future()
        try:
            await self._resume
        finally:
            self._resume = None

    def _add(self, chunk: Chunk) -> None:
        buffer = self.buffer
        buffer.append(chunk)
        if buffer.n_bytes_held > MAX_BYTES and self._ex.request.stream:
            self._close()
            while buffer.n_bytes_held > MAX_BYTES:
                buffer.drop_first()
        for subscriber in self._subscribers:
            subscriber.wake()

    def _fail(self, failure: Exception) -> None:
        """End the call with this error, and its attempt with the outcome that the error implies."""
        started = self._started
        if started is not None and not self.is_over:
            if isinstance(failure, DeadlineExceeded):
                self._ending = started.stream.cut() if self._ex.policy.ends_partial else None
                started.source.end(DROPPED, Fault.TIMEOUT.value)
            elif isinstance(failure, UpstreamFailed):
                started.source.end(DROPPED, failure.fault.value, upstream_status=failure.upstream_status)
            else:
                started.source.abandon()
        self._end(failure)

    def _end(self, failure: Exception | None = None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.failure = failure.with_traceback(None) if isinstance(failure, StayfastError) else failure
        if failure is not None:
            self._close()
        subscribers = list(self._subscribers)
        if type(failure) is DeadlineExceeded:
            # the first one to run makes the next call
            subscribers.sort(key=lambda subscriber: subscriber.ex.deadline.at, reverse=True)
        for subscriber in subscribers:
            subscriber.wake()

    def _close(self) -> None:
        """From now on no request can join."""
        if self._calls.get(self.key) is self:
            del self._calls[self.key]

    def __repr__(self) -> str:
        return (f"<SharedCall to {self.record.upstream}: {self.n_subscribers} subscribers, {self.buffer.n_bytes} bytes"
                f"{', over' * self.is_over}>")


class Subscriber:
    """One request that reads a shared call: source and stream to its relay. One task reads it."""

    __slots__ = ("_at", "_call", "_n_bytes", "_waiter", "ex", "is_incremental", "is_maker", "name", "summary", "timings")

    def __init__(self, call: SharedCall, ex: Exchange, *, is_maker: bool) -> None:
        self.ex = ex
        self.name = ""
        self.is_incremental = False  # the call itself has the idle timeout
        self.is_maker = is_maker
        self.timings: TokenTimings
        self.summary: AnswerSummary  # the call's, which may be ahead of this reader
        self._call = call
        self._at = 0  # chunks read
        self._n_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    async def first(self) -> StartedAnswer:
        """The first content, or all of a whole answer. Raises the call's failure."""
        try:
            lead = await self.next()
        except BaseException:
            self.abandon()
            raise
        started, is_stream = self._call.started, self.ex.request.stream
        source, self.summary = started.source, started.stream.summary
        self.name = source.name
        if self.is_maker and not is_stream:
            self.timings = source.timings  # the parts arrived before anything was read here
        else:
            now, first_at = self._call.clock.now(), source.timings.first_at
            self.timings = TokenTimings("", "", SILENT)
            self.timings.start(now if is_stream or first_at is None else max(first_at, self.ex.arrival.accepted_at))
        return StartedAnswer(self, self, lead if lead is not None else Chunk(b""))

    async def next(self) -> Chunk | None:
        """All chunks since the last read as one; None after the end. Raises the call's failure."""
        call = self._call
        while True:
            if self._at < call.buffer.n_chunks:
                return self._take_unread()
            if call.is_over:
                if call.failure is not None:
                    raise self._error_for(call.failure)
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take_unread(self) -> Chunk:
        chunks = self._call.buffer.chunks_from(self._at)
        if chunks is None:
            raise UpstreamFailed(self.name, Fault.TIMEOUT, "the client read the answer too slowly: what it has not read is "
                                 "no longer buffered", code="read_too_slowly")
        self._at += len(chunks)
        chunk = chunks[0] if len(chunks) == 1 else Chunk(
            b"".join([chunk.data for chunk in chunks]), sum([chunk.n_content for chunk in chunks]))
        self._n_bytes += len(chunk.data)
        self._call.note_read(self._n_bytes)
        return chunk

    def _error_for(self, failure: Exception) -> Exception:
        """A copy of the call's error for this request, which adds its own Server-Timing to it."""
        if isinstance(failure, StayfastError):
            error = type(failure).__new__(type(failure), *failure.args)
            error.__dict__.update(failure.__dict__)
            error.server_timing = None
            return error
        return failure if self.is_maker else StayfastError("Internal error of the gateway; see its log.")

    def cut(self) -> Chunk | None:
        """End the answer here, after what is unread, if that is possible."""
        if self._call.buffer.chunks_from(self._at) is None or (ending := self._call.cut()) is None:
            return None
        if self._at == self._call.buffer.n_chunks:
            return ending
        unread = self._take_unread()
        return Chunk(unread.data + ending.data, unread.n_content + ending.n_content)

    def close(self) -> None:
        self._call.leave(self)

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Unsubscribe; the last subscriber's outcome is the call's."""
        self._call.leave(self, outcome, fault, upstream_status)

    def abandon(self) -> None:
        self._call.leave(self)


def _abandoned() -> StayfastError:
    return StayfastError("The call was abandoned.")
