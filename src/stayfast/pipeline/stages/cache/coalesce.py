"""One upstream call for all identical requests that run at the same time.

Problem: a question that many clients ask is asked by many at once (a page that went live, a retry of a whole batch), before
an answer could be stored. Rule: a call that others may share runs in a Task of its own from its start and writes into a
buffer. Each request that wants the answer, the first one included, is a subscriber and reads the buffer from its first byte
at its own pace:

    a subscriber leaves     the call goes on. Its attempts are accounted to the oldest subscriber that is left
    the last one leaves     the call is cancelled and its attempts are abandoned at once
    the call fails          before its first token: one of the waiting subscribers makes a new call, once; a subscriber that
                            has seen two calls fail raises. Mid-answer: all raise
    the maker's time ends   before the first token: the most patient waiting subscriber makes a new call, which outlasts them
                            all. Nobody waits for more than two such calls, and a subscriber whose time is over makes none
    nobody reads            the call is not read further than AHEAD_BYTES ahead of its fastest subscriber
    one reads too slowly    it fails once it is more than MAX_BYTES behind; from then on nobody can join

Retries, hedges and fallbacks are made inside of the call. It has its maker's deadline until its first token; after that it
has only its idle time-out, and each subscriber has its own deadline.
Source: Go's `singleflight`, with a stream as the result; caching proxies call it request collapsing (RFC 9111, 4).
When wrong: a maker of little patience makes the others begin again, once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from stayfast.core.clock import Clock
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, StayfastError, UpstreamFailed
from stayfast.core.types import CALL, RELAY, AnswerSummary, Chunk, Outcome
from stayfast.pipeline.exchange import Exchange, Start
from stayfast.pipeline.plan import Plan, StartedAnswer
from stayfast.pipeline.tasks import TaskGroupRegistry
from stayfast.pipeline.timing.timeouts import RequestTimeouts
from stayfast.pipeline.timing.token_timings import SILENT, TokenTimings
from stayfast.stores.base import CachedAnswer, Store

SUCCESS, DROPPED, IGNORED = Outcome
AHEAD_BYTES = 256 * 1024
MAX_BYTES = 8 * 1024 * 1024  # streamed, 30,000 tokens
N_CALLS = 2  # calls of others whose failure is waited for, before it is one's own

CallKey = tuple[bytes, bool, bool]  # the question's key; streamed; with usage at its end
StoreResult = Callable[["SharedCall", bytes | None], Awaitable[None]]


class SharedCall:
    """One call, its buffer and its subscribers. Its Task writes, subscribers read; all on one loop."""

    __slots__ = ("_calls", "_chunks", "_ending", "_n_bytes_gone", "_n_gone", "_resume", "_started", "_subscribers", "_task",
                 "clock", "ex", "failure", "is_over", "key", "n_bytes", "n_bytes_read")

    def __init__(self, key: CallKey, calls: "dict[CallKey, SharedCall]", ex: Exchange, clock: Clock) -> None:
        """ex: of the request that makes the call. calls: where others find it."""
        self.key = key
        self.ex = ex.again()  # upstream, attempts and time-outs of the call; the maker may be gone before it
        self.failure: Exception | None = None
        self.is_over = False
        self._calls = calls
        self.clock = clock
        self._task: asyncio.Task[None] | None = None
        self._started: StartedAnswer | None = None
        self._chunks: list[Chunk] = []
        self._n_gone = 0  # chunks dropped at the front
        self.n_bytes = self._n_bytes_gone = 0  # of all chunks, and of those dropped
        self.n_bytes_read = 0  # by the fastest subscriber
        self._ending: Chunk | None = None  # ends the answer in its protocol where its time was up
        self._subscribers: dict[Subscriber, None] = {}  # in the order of their coming
        self._resume: asyncio.Future[None] | None = None  # the Task waits for a reader

    @property
    def started(self) -> StartedAnswer:
        """Source and stream of the call, from its first content on."""
        assert self._started is not None
        return self._started

    async def start(self, ex: Exchange, plan: Plan, make_call: Start, store_result: StoreResult,
                    tasks: TaskGroupRegistry) -> StartedAnswer:
        """Begin the call in a Task and read it as its first subscriber. Raises what it failed with before its first content.
        store_result: called after a clean end, with the whole answer where all of it is still here; others can join until it
        returns.
        """
        self._calls.setdefault(self.key, self)
        ex.watch.disarm()  # until the first content the call's own watch has the same limits
        maker = Subscriber(self, ex, is_maker=True)
        self._subscribers[maker] = None
        self._task = task = tasks.spawn(self._run(plan, make_call, store_result))
        try:
            started = await maker.first()
        finally:
            ex.upstream, ex.degraded = self.ex.upstream, self.ex.degraded
        if not ex.request.stream and not task.done():  # a client that has a whole answer finds it stored when it asks again
            await asyncio.wait((task,))
        return started

    async def join(self, ex: Exchange) -> StartedAnswer:
        """Subscribe. Returns with the first content; raises what the call failed with before that."""
        ex.watch.arm_bound()
        subscriber = Subscriber(self, ex, is_maker=False)
        self._subscribers[subscriber] = None
        started = await subscriber.first()
        ex.upstream, ex.degraded = self.ex.upstream, self.ex.degraded
        return started

    def leave(self, subscriber: "Subscriber", outcome: Outcome = IGNORED, fault: str | None = None,
              upstream_status: int | None = None) -> None:
        """Unsubscribe; the last one ends the call, with this outcome. Never awaits; safe to call again."""
        if self._subscribers.pop(subscriber, self) is self or self.is_over:
            return
        if self._subscribers:
            if subscriber.ex.attempts is self.ex.attempts:
                next(iter(self._subscribers)).ex.attempts = self.ex.attempts
            return
        self._end(_abandoned())
        if self._started is not None:
            self._started.source.end(outcome, fault, upstream_status=upstream_status)
        for attempt in self.ex.attempts:  # now, not when the Task hears of it: what they came to is this request's
            attempt.abandon()
        assert self._task is not None
        self._task.cancel()

    def chunks_from(self, at: int) -> list[Chunk] | None:
        """The chunks from this number on; None where the first of them was dropped."""
        return self._chunks[at - self._n_gone:] if at >= self._n_gone else None

    def note_read(self, n_bytes: int) -> None:
        if n_bytes > self.n_bytes_read:
            self.n_bytes_read = n_bytes
            if self._resume is not None and self.n_bytes - n_bytes < AHEAD_BYTES and not self._resume.done():
                self._resume.set_result(None)

    def cut(self) -> Chunk | None:
        """What ends the answer in its protocol, where the call's time is up or only one subscriber is left."""
        if self.is_over:
            return self._ending
        return self.started.stream.cut() if len(self._subscribers) == 1 else None

    async def _run(self, plan: Plan, make_call: Start, store_result: StoreResult) -> None:
        """The call's Task, to the end of the answer. Its errors are raised by the subscribers."""
        ex = self.ex
        ex.watch = watch = ex.watch.clone()
        watch.arm_bound()
        try:
            self._started = started = await make_call(ex, plan)
            self._add(started.first_chunk)
            watch.unbound()  # each subscriber has a watch of its own
            if ex.request.stream:
                await self._read_stream(started, watch)
            else:
                await self._read_whole(started)
            self._end()
        except asyncio.CancelledError:
            self._fail(watch.take_timeout_error(CALL if self._started is None else RELAY) or _abandoned())
        except StayfastError as failed:
            self._fail(failed)
        except Exception as error:
            has_maker = any(subscriber.is_maker for subscriber in self._subscribers)
            self._fail(error)
            if not has_maker:  # else that request raises it
                raise
        finally:
            watch.stop()
        if self.failure is None:
            try:
                if ex.request.stream:
                    await asyncio.sleep(0)  # the readers have their end first: joining a long answer takes a while
                if ex.degraded is None:
                    await store_result(self, self._whole())
            finally:
                self._close()

    async def _read_stream(self, started: StartedAnswer, watch: RequestTimeouts) -> None:
        stream, cadence, clock, idle_s = started.stream, started.source.cadence, self.clock, self.ex.terms.timeouts.idle_s
        while True:
            if self.n_bytes - self.n_bytes_read > AHEAD_BYTES:
                await self._wait_for_a_reader(watch)
            watch.arm("idle_s", idle_s, clock.now())
            chunk = await stream.next()
            if chunk is None:
                break
            watch.disarm()
            if chunk.n_content:
                cadence.content(clock.now())
            self._add(chunk)
        started.source.end(SUCCESS)

    async def _read_whole(self, started: StartedAnswer) -> None:
        """The rest of an answer whose content is here: it needs no limit."""
        if started.stream.sight.is_cut:
            started.source.end(DROPPED, Fault.TIMEOUT.value)
            return
        while (chunk := await started.stream.next()) is not None:
            self._add(chunk)
        started.source.end(SUCCESS)

    async def _wait_for_a_reader(self, watch: RequestTimeouts) -> None:
        watch.disarm()
        self._resume = asyncio.get_running_loop().create_future()
        try:
            await self._resume
        finally:
            self._resume = None

    def _whole(self) -> bytes | None:
        """All of the answer; None where its beginning was dropped."""
        if self._n_gone:
            return None
        return self._chunks[0].data if len(self._chunks) == 1 else b"".join([chunk.data for chunk in self._chunks])

    def _add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.n_bytes = n_bytes = self.n_bytes + len(chunk.data)
        if n_bytes - self._n_bytes_gone > MAX_BYTES and self.ex.request.stream:
            self._close()
            while n_bytes - self._n_bytes_gone > MAX_BYTES:
                self._n_bytes_gone += len(self._chunks.pop(0).data)
                self._n_gone += 1
        for subscriber in self._subscribers:
            subscriber.wake()

    def _fail(self, failure: Exception) -> None:
        """End the call in this error, and its attempt with what the error says of it."""
        started = self._started
        if started is not None and not self.is_over:
            if isinstance(failure, DeadlineExceeded):
                self._ending = started.stream.cut() if self.ex.terms.ends_partial else None
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
            subscribers.sort(key=lambda one: one.ex.deadline.at, reverse=True)  # the first to wake makes the next call
        for subscriber in subscribers:
            subscriber.wake()

    def _close(self) -> None:
        """Nobody can join any more."""
        if self._calls.get(self.key) is self:
            del self._calls[self.key]

    def __repr__(self) -> str:
        return (f"<SharedCall to {self.ex.upstream}: {len(self._subscribers)} subscribers, {self.n_bytes} bytes"
                f"{', over' * self.is_over}>")


class Subscriber:
    """One request that reads a shared call: source and stream to its relay. One task reads it."""

    __slots__ = ("_at", "_call", "_n_bytes", "_waiter", "cadence", "ex", "is_incremental", "is_maker", "name",
                 "sight")

    def __init__(self, call: SharedCall, ex: Exchange, *, is_maker: bool) -> None:
        self.ex = ex
        self.name = ""
        self.is_incremental = False  # the call itself watches the gaps
        self.is_maker = is_maker
        self.cadence: TokenTimings
        self.sight: AnswerSummary  # of the whole call; by the time that all is read, of no more than that
        self._call = call
        self._at = 0  # chunks read
        self._n_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    async def first(self) -> StartedAnswer:
        """The first content, or of a whole answer all of it. Raises what the call failed with."""
        try:
            lead = await self.next()
        except BaseException:
            self.abandon()
            raise
        started, is_stream = self._call.started, self.ex.request.stream
        source, self.sight = started.source, started.stream.sight
        self.name = source.name
        if self.is_maker and not is_stream:
            self.cadence = source.cadence  # of its parts, which came before anything was read here
        else:
            now, first_at = self._call.clock.now(), source.cadence.first_at
            self.cadence = TokenTimings("", "", SILENT)
            self.cadence.begin(now if is_stream or first_at is None else max(first_at, self.ex.arrival.accepted_at))
        return StartedAnswer(self, self, lead if lead is not None else Chunk(b""))

    async def next(self) -> Chunk | None:
        """All that came since the last one; None after the end. Raises what the call failed with."""
        call = self._call
        while True:
            chunk = self._unread()
            if chunk is not None:
                return chunk
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

    def _unread(self) -> Chunk | None:
        chunks = self._call.chunks_from(self._at)
        if chunks is None:
            raise UpstreamFailed(self.name, Fault.TIMEOUT, "the answer was read too slowly to be kept for this reader",
                                 code="read_too_slowly")
        if not chunks:
            return None
        self._at += len(chunks)
        chunk = chunks[0] if len(chunks) == 1 else Chunk(
            b"".join([chunk.data for chunk in chunks]), sum([chunk.n_content for chunk in chunks]))
        self._n_bytes += len(chunk.data)
        self._call.note_read(self._n_bytes)
        return chunk

    def _error_for(self, failure: Exception) -> Exception:
        """The error of the call for this request: each writes into its own where its time went."""
        if isinstance(failure, StayfastError):
            error = type(failure).__new__(type(failure), *failure.args)
            error.__dict__.update(failure.__dict__)
            error.server_timing = None
            return error
        return failure if self.is_maker else StayfastError("The gateway failed at this request. Its log says why.")

    def cut(self) -> Chunk | None:
        """End the answer here, after what is unread, where that is possible."""
        if self._call.chunks_from(self._at) is None or (ending := self._call.cut()) is None:
            return None
        unread = self._unread()
        return ending if unread is None else Chunk(unread.data + ending.data, unread.n_content + ending.n_content)

    def close(self) -> None:
        self._call.leave(self)

    def end(self, outcome: Outcome, fault: str | None = None, *, upstream_status: int | None = None) -> None:
        """Unsubscribe; what came of the answer counts where nobody else reads it."""
        self._call.leave(self, outcome, fault, upstream_status)

    def abandon(self) -> None:
        self._call.leave(self)


async def join_calls(ex: Exchange, calls: Mapping[CallKey, SharedCall], key: CallKey, clock: Clock) -> StartedAnswer | None:
    """What the calls of others bring; None where there is none, or they failed and another one may not. Raises what they
    failed with where there is no use in making another.
    """
    n_left = N_CALLS
    while (call := calls.get(key)) is not None:
        started = await _join(ex, call, clock, is_last=n_left == 1)
        if started is not None:
            return started
        if type(call.failure) is not DeadlineExceeded:
            n_left -= 1
    return None


async def _join(ex: Exchange, call: SharedCall, clock: Clock, *, is_last: bool) -> StartedAnswer | None:
    """What the call of somebody else brings; None where it failed and another one may not."""
    ex.enter(CALL)
    try:
        return await call.join(ex)
    except StayfastError as failed:
        if type(call.failure) is DeadlineExceeded:  # of its leader's time, which says nothing of the upstream
            if ex.watch.is_over(clock.now()):
                raise ex.watch.exceeded(CALL) from None
            ex.notes.append("the time of the request that made the call for the same was over")
            return None
        if is_last or call.failure is None or not _may_differ(failed):
            raise
        ex.notes.append("the call of another request for the same failed")
        return None


def _may_differ(failed: StayfastError) -> bool:
    """Whether the same request may fare better a second time."""
    if isinstance(failed, UpstreamFailed):
        return not failed.is_clients_fault
    return not isinstance(failed, Rejected)


def _abandoned() -> StayfastError:
    return StayfastError("The call was given up.")


async def start_across_processes(start: Start, ex: Exchange, plan: Plan, *, store: Store, key: bytes, fresh_s: float,
                                 read: Callable[[CachedAnswer], StartedAnswer | None], clock: Clock) -> StartedAnswer:
    """One call for all processes that share a store: `start` it, or wait for the answer of the process that does.

    It waits at most the store's `coalesce_wait_s`, and never more than half of the time that is left: then there is time
    for a call of its own. Not for streams: the first token of an own call comes before the last one of another's.
    read: of the other's answer, None where it will not do. fresh_s: how old that may be.
    """
    ends_at = ex.ledger.ends_at
    if await store.lead(key, ends_at):
        try:
            started = await start(ex, plan)
        except BaseException:
            store.led(key)
            raise
        if ex.degraded is not None:  # it will not be stored
            store.led(key)
        return started
    now = clock.now()
    stored = await store.follow(key, now + (ends_at - now) / 2, clock.wall() - fresh_s)
    made = read(stored) if stored is not None else None
    if made is None:
        return await start(ex, plan)
    ex.upstream = made.source.name
    return made
