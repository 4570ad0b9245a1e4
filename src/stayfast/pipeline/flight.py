"""One call to an upstream for all who ask the same at the same time.

Problem: a question that many ask is asked by many at once (a page that went live, a retry of a whole batch), before any
answer could have been kept. Rule: the first one makes the call, in a Task that is nobody's own; whoever asks the same
meanwhile listens. All that comes is written down, and everybody reads it at their own pace, from its first byte:

    a listener leaves       the others go on; with the last one the call is closed at once
    the call fails          before its first token it leaves the table, and of those who wait the first one makes a new call:
                            once. Who has seen two calls fail is told so. Mid-answer, all are told
    nobody reads            the call is not read further than AHEAD_BYTES before the quickest listener
    somebody reads slowly   is told so once more than MAX_BYTES are between them and the end; then nobody can join any more

Retries, hedges and fallbacks are made inside of the call, so a slow one is no slower for all than for one. Its attempts are
accounted to the listener who came first, of those who are still there.
Source: Go's `singleflight`; caching proxies call it request collapsing (RFC 9111, 4).
When wrong: until its first token its deadline is that of whoever made it. One with less patience than the others makes them
begin again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.types import Chunk, Outcome, Sight, Stage
from stayfast.pipeline.attempt import Attempt
from stayfast.pipeline.caching import FlightKey
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Source, Started
from stayfast.pipeline.listener import Listener
from stayfast.pipeline.race import Tasks
from stayfast.pipeline.watch import Watch
from stayfast.upstreams.base import Stream

SUCCESS, DROPPED, _ = Outcome
RELAY = Stage.RELAY
AHEAD_BYTES = 256 * 1024
MAX_BYTES = 8 * 1024 * 1024  # streamed, 30,000 tokens
Begin = Callable[[Exchange, Plan], Awaitable[Started]]


class Flight:
    """One call and its listeners. Changed on one loop; its Task reads, listeners come and go."""

    __slots__ = ("_attempts", "_chunks", "_clock", "_listeners", "_n_gone", "_n_kept", "_quickest", "_resume",
                 "_source", "_stream", "_table", "_task", "_waiting", "_watch", "degraded", "failure", "is_over",
                 "key", "n_bytes", "upstream")

    def __init__(self, key: FlightKey, table: "dict[FlightKey, Flight]", clock: Clock) -> None:
        self.key = key
        self.failure: StayfastError | None = None
        self.is_over = False
        self.upstream: str | None = None
        self.degraded: str | None = None
        self._table = table
        self._clock = clock
        self._attempts: list[Attempt] = []
        self._task: asyncio.Task[None] | None = None
        self._watch: Watch | None = None  # what the call runs under, where that is its leader's
        self._source: Source | None = None
        self._stream: Stream | None = None
        self._chunks: list[Chunk] = []
        self._n_gone = 0  # chunks at the front that are kept no more
        self.n_bytes = 0  # of all that came
        self._n_kept = 0  # of `_chunks`
        self._quickest = 0  # bytes that the quickest listener has read
        self._listeners: dict[Listener, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._resume: asyncio.Future[None] | None = None  # the Task waits for a reader
        table.setdefault(key, self)

    @property
    def sight(self) -> Sight:
        """What has been seen of the answer."""
        assert self._stream is not None
        return self._stream.sight

    def whole(self) -> bytes | None:
        """All of it, after a clean end; None after any other, and where it was too long to be kept."""
        if not self.is_over or self.failure is not None or self._n_gone:
            return None
        chunks = self._chunks
        return chunks[0].data if len(chunks) == 1 else b"".join([chunk.data for chunk in chunks])

    async def lead(self, ex: Exchange, call: Coroutine[Any, Any, None], tasks: Tasks) -> Started:
        """Make the call for `ex`, by a Task that runs `call`, and listen to it.

        A whole answer is made under the leader's own watch, who waits for nothing else; a stream needs one beside it.
        """
        self._attempts = ex.attempts
        if not ex.request.stream:
            self._watch = ex.watch
        self._task = tasks.spawn(call)
        ex.watch.disarm()  # the call has this request's own limits, and says which of them it was
        started = await self._listen(ex, Listener(self, ex))
        ex.watch.move()
        return started

    async def join(self, ex: Exchange) -> Started:
        """Listen. Returns with the first of it; raises what the call failed with before that."""
        ex.watch.arm_bound()
        started = await self._listen(ex, Listener(self, ex))
        ex.upstream, ex.degraded = self.upstream, self.degraded
        return started

    async def _listen(self, ex: Exchange, listener: Listener) -> Started:
        self._listeners[listener] = None
        try:
            lead = await listener.next()
        except BaseException:
            self.leave(listener)
            raise
        assert self._source is not None
        listener.begin(self._source, self._clock.now(), is_own=ex.attempts is self._attempts)
        return Started(listener, listener, lead if lead is not None else Chunk(b""))

    def leave(self, listener: Listener) -> None:
        """One listener less; with the last one the call ends. Never awaits; safe to call again."""
        if self._listeners.pop(listener, self) is self or self.is_over:
            return
        if not self._listeners:
            self._end()
            for attempt in self._attempts:  # now, and not in the Task's next turn: what they came to is this request's
                attempt.abandon()
            if self._task is not None:
                self._task.cancel()
        elif listener.ex.attempts is self._attempts:
            next(iter(self._listeners)).ex.attempts = self._attempts
            if listener.ex.watch is self._watch:
                listener.ex.watch = self._watch.again()  # the call goes on under the one that it has

    def read_from(self, at: int) -> list[Chunk] | None:
        """What came from the chunk of this number on; None where that is kept no more."""
        return self._chunks[at - self._n_gone:] if at >= self._n_gone else None

    def has_read(self, n_bytes: int) -> None:
        """A listener has read so far."""
        if n_bytes > self._quickest:
            self._quickest = n_bytes
            if self._resume is not None and self.n_bytes - n_bytes < AHEAD_BYTES and not self._resume.done():
                self._resume.set_result(None)

    def wait(self) -> "asyncio.Future[None]":
        """Done when there is more, or the end."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def cut(self) -> Chunk | None:
        """End the answer here, for its one listener; one of several cannot end it for the others."""
        if self.is_over or len(self._listeners) > 1 or self._stream is None:
            return None
        return self._stream.cut()

    async def run(self, leader: Exchange, plan: Plan, begin: Begin) -> None:
        """All of the call. Returns at its end, whatever that is; all listeners have been told."""
        watch = self._watch or leader.watch.again()
        ex = leader.again(watch)
        watch.move()
        if ex.ledger.is_shared_out:
            watch.bound(ex.ledger.ends_at, self._clock.now())
        try:
            try:
                started = await begin(ex, plan)
            finally:
                leader.upstream = self.upstream = ex.upstream
                leader.degraded = self.degraded = ex.degraded
            self._source, self._stream = started.source, started.stream
            if self._watch is None:
                watch.unbound()
            await self._read(ex, started)
            self._end()
        except StayfastError as failed:
            self._end(failed)
        except asyncio.CancelledError:
            self._end(StayfastError("The call was given up."))
        except BaseException:
            self._end(StayfastError("The gateway failed at this request. Its log says why."))
            raise
        finally:
            if leader.watch is not watch:
                watch.stop()

    async def _read(self, ex: Exchange, started: Started) -> None:
        """To the end of the answer. Raises what ended it, and has told its source so."""
        source = started.source
        try:
            await self._take_all(ex, started)
        except asyncio.CancelledError:
            late = ex.watch.verdict(RELAY)
            if late is None:
                source.abandon()
                raise
            _drop(source, late)
            raise late from None
        except StayfastError as failed:
            _drop(source, failed)
            raise
        except BaseException:
            source.abandon()
            raise
        source.end(SUCCESS)

    async def _take_all(self, ex: Exchange, started: Started) -> None:
        source, stream, watch, clock = started.source, started.stream, ex.watch, self._clock
        idle_s, is_stream = ex.terms.timeouts.idle_s, ex.request.stream
        self._add(started.lead)
        while True:
            if is_stream:  # of a whole answer all is here; whoever waits for its end has a deadline
                watch.arm("idle_s", idle_s, clock.now())
            chunk = await stream.next()
            if chunk is None:
                return
            if is_stream:
                watch.disarm()
                if chunk.n_content:
                    source.cadence.content(clock.now())
            self._add(chunk)
            if self.n_bytes - self._quickest > AHEAD_BYTES:
                await self._wait_for_a_reader(watch)

    async def _wait_for_a_reader(self, watch: Watch) -> None:
        watch.arm_bound()
        self._resume = asyncio.get_running_loop().create_future()
        try:
            await self._resume
        finally:
            self._resume = None
            watch.disarm()

    def _add(self, chunk: Chunk) -> None:
        n_bytes = len(chunk.data)
        self._chunks.append(chunk)
        self.n_bytes += n_bytes
        self._n_kept += n_bytes
        if self._n_kept > MAX_BYTES:
            self.close()
            while self._n_kept > MAX_BYTES:
                self._n_kept -= len(self._chunks.pop(0).data)
                self._n_gone += 1
        if self._waiting:
            self._wake()

    def _end(self, failure: StayfastError | None = None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.failure = failure
        if failure is not None or not self._listeners:
            self.close()
        self._wake()

    def close(self) -> None:
        """Nobody can join any more: it has failed, or what it brought is kept elsewhere now, or is not to be kept."""
        if self._table.get(self.key) is self:
            del self._table[self.key]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<Flight to {self.upstream}: {len(self._listeners)} listen, {self.n_bytes} bytes{', over' * self.is_over}>"


def _drop(source: Source, failed: StayfastError) -> None:
    """Tell the source what ended its answer."""
    if isinstance(failed, UpstreamFailed):
        source.end(DROPPED, failed.fault.value, upstream_status=failed.upstream_status)
    else:
        source.end(DROPPED, Fault.TIMEOUT.value)
