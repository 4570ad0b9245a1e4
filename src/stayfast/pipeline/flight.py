"""One call to an upstream for all who ask the same at the same time.

Problem: a question that many ask is asked by many at once (a page that went live, a retry of a whole batch), before any
answer could have been kept. Rule: the first one makes the call, and whoever asks the same meanwhile listens. All that comes
is written down, and everybody reads it at their own pace, from its first byte:

    nobody else listens     the call runs in the Task of its leader, under its watch, as if there were no cache; of a whole
                            answer the leader is then given the call's own source and stream, as all is there
    somebody joins          from the first token on it runs in a Task that is nobody's own
    the leader leaves       so it does then at once, wherever it is (`pipeline.carried`), as long as anybody listens
    the last one leaves     it is closed at once
    the call fails          before its first token it leaves the table, and of those who wait the first one makes a new call:
                            once. Who has seen two calls fail is told so. Mid-answer, all are told
    its leader's time ends  before its first token: the most patient of those who wait makes a new call, which outlasts them
                            all. So nobody waits for more than two such calls, and whoever's own time is over makes none
    nobody reads            the call is not read further than AHEAD_BYTES before the quickest listener
    somebody reads slowly   is told so once more than MAX_BYTES are between them and the end; then nobody can join any more

Retries, hedges and fallbacks are made inside of the call, so a slow one is no slower for all than for one. Its attempts are
accounted to the listener who came first, of those who are still there.
Source: Go's `singleflight`; caching proxies call it request collapsing (RFC 9111, 4).
When wrong: until its first token it has its maker's deadline. One of less patience makes the others begin again, once.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from operator import itemgetter
from typing import Any

from stayfast.core.errors import DeadlineExceeded, StayfastError
from stayfast.core.types import RELAY, CacheControl, Chunk, Outcome, Sight
from stayfast.pipeline.attempt import Attempt
from stayfast.pipeline.caching import Begin, Caching, FlightKey, Keeper
from stayfast.pipeline.carried import Step, carry, go_on
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.handoffs import Plan, Source, Started
from stayfast.pipeline.listener import Leader, Listener, drop, given_up
from stayfast.pipeline.watch import Watch
from stayfast.upstreams.base import Stream

SUCCESS = Outcome.SUCCESS
AHEAD_BYTES = 256 * 1024
MAX_BYTES = 8 * 1024 * 1024  # streamed, 30,000 tokens


class Flight:
    """One call and its listeners. Changed on one loop; listeners come and go."""

    __slots__ = ("_chunks", "_is_apart", "_is_reading", "_keeper", "_leader", "_left", "_listeners", "_n_bytes_gone",
                 "_n_gone", "_quickest", "_resume", "_source", "_stream", "_task", "_waiting", "caching", "call", "control",
                 "degraded", "failure", "is_over", "key", "n_bytes", "upstream")

    def __init__(self, key: FlightKey, caching: Caching, control: CacheControl | None, keeper: Keeper) -> None:
        self.key = key
        self.caching = caching
        self.call: Exchange  # the leader's, for whoever makes the call
        self.control = control  # the leader's
        self.failure: StayfastError | None = None
        self.is_over = False
        self.upstream: str | None = None
        self.degraded: str | None = None
        self._keeper = keeper
        self._task: asyncio.Task[None] | None = None  # None: its leader makes it, as it waits and reads
        self._leader: Leader | None = None  # until it leaves: nothing here is to be found by the garbage collector only
        self._is_apart = False  # `call` is a copy of the leader's own
        self._is_reading = False  # the leader waits for its next part
        self._left: Step | None = None  # where the leader has left it, until the Task goes on with it
        self._source: Source | None = None
        self._stream: Stream | None = None
        self._chunks: list[Chunk] = []
        self._n_gone = 0  # chunks at the front that are kept no more
        self.n_bytes = self._n_bytes_gone = 0  # of all that came, and of those that are kept no more
        self._quickest = 0  # bytes that the quickest listener has read
        self._listeners: dict[Listener, None] = {}
        self._waiting: list[tuple[float, asyncio.Future[None]]] | None = None  # with their deadlines
        self._resume: asyncio.Future[None] | None = None  # the Task waits for a reader

    @property
    def sight(self) -> Sight:
        """What has been seen of the answer."""
        assert self._stream is not None
        return self._stream.sight

    def _whole(self) -> bytes | None:
        """All of it, after a clean end; None after any other, before it has begun, and where it was too long to be kept."""
        chunks = self._chunks
        if not self.is_over or self.failure is not None or self._n_gone or not chunks:
            return None
        return chunks[0].data if len(chunks) == 1 else b"".join([chunk.data for chunk in chunks])

    async def lead(self, ex: Exchange, plan: Plan, begin: Begin | None = None) -> Started:
        """Make the call for `ex`, up to its first content: others can join from here on. Raises what it failed with."""
        self.caching.flights.setdefault(self.key, self)
        is_stream, ex.share, begin = ex.request.stream, None, begin or self._keeper.begin
        self._is_apart = is_apart = is_stream or plan.route.on_stall != "wait"  # else nothing holds it once it has begun
        self.call = call = ex.again(ex.watch) if is_apart else ex
        if is_apart:
            self._led_by(ex)
        try:
            started = await carry(begin(call, plan), self)
        except BaseException as why:
            if self._task is None:
                self._end(why if isinstance(why, StayfastError) else given_up(why))
            if self._leader is not None:
                self.leave(self._leader)
            raise
        finally:
            if is_apart:
                ex.upstream, ex.degraded = call.upstream, call.degraded
        if not is_stream and len(self._listeners) < 2 and started.stream.sight.is_complete:
            self.is_over, self._leader, self._source, self._stream = True, None, started.source, started.stream
            self._listeners.clear()
            self.upstream, self.degraded = call.upstream, call.degraded
            if (told := self._land(started.lead)) is not None:
                await told
            return started
        self._has_begun(started)
        leader = self._leader or self._led_by(ex)
        leader.begin(started.source, self._keeper.clock.now(), is_own=True)
        if len(self._listeners) > 1 or type(started.source) is not Attempt:
            self._fly()
        return Started(leader, leader, started.lead)

    async def read(self, leader: Leader) -> Chunk | None:
        """The leader's next part, for itself and for whoever joins meanwhile."""
        stream, is_stream, self._is_reading = self._stream, self.key[1], True
        assert stream is not None
        try:  # of a whole answer all has come: there is no wait to be taken over
            chunk = await (carry(stream.next(), self) if is_stream else stream.next())
        except StayfastError as failed:
            self._end(failed)
            raise
        finally:
            self._is_reading = False
        if chunk is None:
            self._end()
            if is_stream:  # who waits for its end first: putting a stream together takes longer
                asyncio.get_running_loop().call_soon(self._land_later)
            elif (told := self._land()) is not None:
                await told
            return None
        self._add(chunk)
        if len(self._listeners) > 1:
            self._fly()
        return chunk

    @property
    def is_led(self) -> bool:
        """Whether its leader makes the call, as it waits and reads."""
        return self._task is None

    def is_wanted(self) -> bool:
        """See `Carrier`: somebody else listens. Until its first content the call ends with its leader's time."""
        return len(self._listeners) > 1 and (self._stream is not None or not self.call.watch.has_cancelled)

    def take(self, call: Step, waits_for: Any) -> None:
        """See `Carrier`. What has not begun keeps the watch that it is under; the leader, who leaves, has another."""
        self._left, leader = call, self._leader
        assert leader is not None
        if self._stream is None:
            watch = self.call.watch
            leader.ex.watch = watch.again()
            watch.move(self._fly(begun=go_on(call, waits_for), watch=watch))
        else:
            self._fly(part=go_on(call, waits_for))

    def end(self, leader: Leader, outcome: Outcome, fault: str | None, upstream_status: int | None) -> None:
        """The leader reads no more of what it makes itself: it has come to its end, or somebody else goes on with it."""
        if leader is not self._leader:
            return
        source = self._source
        if source is None or (not self.is_over and len(self._listeners) > 1):
            self.leave(leader)
            return
        if not self.is_over:
            self._end(given_up(None))
        source.end(outcome, fault, upstream_status=upstream_status)
        self.leave(leader)

    async def join(self, ex: Exchange) -> Started:
        """Listen. Returns with the first of it; raises what the call failed with before that."""
        ex.watch.arm_bound()
        if not self._listeners and not self.is_over:
            self._led_by(self.call)
        listener = Listener(self, ex)
        self._listeners[listener] = None
        if self._task is None and self._stream is not None and not self._is_reading and not self.is_over:
            self._fly()
        try:
            lead = await listener.next()
        except BaseException:
            self.leave(listener)
            raise
        assert self._source is not None
        listener.begin(self._source, self._keeper.clock.now(), is_own=False)
        ex.upstream, ex.degraded = self.upstream, self.degraded
        return Started(listener, listener, lead if lead is not None else Chunk(b""))

    def leave(self, listener: Listener) -> None:
        """One listener less; with the last one the call ends. Never awaits; safe to call again."""
        is_leader = listener is self._leader
        if is_leader:
            self._leader = None
        if self._listeners.pop(listener, self) is self or self.is_over:
            return
        if not self._listeners:
            self._end()
            for attempt in self.call.attempts:  # now, and not in the Task's next turn: what they came to is this request's
                attempt.abandon()
            if self._left is not None:
                self._left.close()
            if self._task is not None:
                self._task.cancel()
            return
        if listener.ex.attempts is self.call.attempts:
            next(iter(self._listeners)).ex.attempts = self.call.attempts
        if is_leader and self._task is None:
            self._fly()

    def read_from(self, at: int) -> list[Chunk] | None:
        """What came from the chunk of this number on; None where that is kept no more."""
        return self._chunks[at - self._n_gone:] if at >= self._n_gone else None

    def has_read(self, n_bytes: int) -> None:
        """A listener has read so far."""
        if n_bytes > self._quickest:
            self._quickest = n_bytes
            if self._resume is not None and self.n_bytes - n_bytes < AHEAD_BYTES and not self._resume.done():
                self._resume.set_result(None)

    def wait(self, until: float) -> "asyncio.Future[None]":
        """Done when there is more, or the end. until: the deadline of who waits."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting = self._waiting or []
        self._waiting.append((until, waiter))
        return waiter

    def cut(self) -> Chunk | None:
        """End the answer here, for its one listener; one of several cannot end it for the others."""
        if self.is_over or len(self._listeners) > 1 or self._stream is None:
            return None
        return self._stream.cut()

    def _led_by(self, ex: Exchange) -> Leader:
        """Its leader, as one of those who listen; of a whole answer that nobody else waits for none is needed."""
        self._leader = leader = Leader(self, ex)
        self._listeners[leader] = None
        return leader

    def _has_begun(self, started: Started) -> None:
        self._source, self._stream = started.source, started.stream
        self.upstream, self.degraded = self.call.upstream, self.call.degraded
        self._add(started.lead)

    def _fly(self, begun: Awaitable[Started] | None = None, part: Awaitable[Chunk | None] | None = None,
             watch: Watch | None = None) -> "asyncio.Task[None]":
        """From here on the call has a Task of its own, which goes on with its beginning, or with the part it waits for.

        watch: that of the beginning, whose leader has another one for the rest of its way out.
        """
        if begun is None and not self._is_apart:
            self._is_apart, self.call = True, self.call.again(self.call.watch)
        source = self._source
        if self._leader is not None:
            self._leader.is_at(self._n_gone + len(self._chunks), self.n_bytes)
        if source is not None and self.call.request.stream and self._leader is not None:
            source.cadence = source.cadence.handed_on()  # the leader's relay has that one, and reads at its own pace
        self._task = self._keeper.tasks.spawn(self._run(begun, part, watch))
        return self._task

    async def _run(self, begun: Awaitable[Started] | None, part: Awaitable[Chunk | None] | None, watch: Watch | None
                   ) -> None:
        """The call's Task. Returns at its end, whatever that is; all listeners have been told."""
        ex, self._left = self.call, None
        ex.watch = ex.watch.beside() if watch is None else watch  # its leader has gone by now
        try:
            if begun is not None:
                self._has_begun(await begun)
            ex.watch.unbound()
            await self._read(ex, part)
            self._end()
        except StayfastError as failed:
            self._end(failed)
        except asyncio.CancelledError:
            self._end(given_up(None))
        except BaseException as why:
            self._end(given_up(why))
            raise
        finally:
            ex.watch.stop()
            if (told := self._land()) is not None:
                await told

    def _land(self, whole: Chunk | None = None) -> Coroutine[Any, Any, None] | None:
        """After its end: what may be given again is kept, and until then found here. Returns what waits, and closes it."""
        told = None
        try:
            if self.failure is None and self.degraded is None:
                told = self._keeper.keep(self, self._whole() if whole is None else whole.data)
                if told is not None and whole is not None:
                    self._chunks.append(whole)
        finally:
            if told is None:
                self.close()
        return told

    def _land_later(self) -> None:
        if (told := self._land()) is not None:
            self._keeper.tasks.spawn(told)

    async def _read(self, ex: Exchange, part: Awaitable[Chunk | None] | None) -> None:
        """To the end of the answer. Raises what ended it, and has told its source so."""
        source = self._source
        assert source is not None
        try:
            await self._take_all(ex, source, part)
        except asyncio.CancelledError:
            late = ex.watch.verdict(RELAY)
            if late is None:
                source.abandon()
                raise
            drop(source, late)
            raise late from None
        except StayfastError as failed:
            drop(source, failed)
            raise
        except BaseException:
            source.abandon()
            raise
        source.end(SUCCESS)

    async def _take_all(self, ex: Exchange, source: Source, part: Awaitable[Chunk | None] | None) -> None:
        stream, watch, clock = self._stream, ex.watch, self._keeper.clock
        assert stream is not None
        idle_s, is_stream = ex.terms.timeouts.idle_s, ex.request.stream
        while True:
            if self.n_bytes - self._quickest > AHEAD_BYTES and part is None:
                await self._wait_for_a_reader(watch)
            if is_stream:  # of a whole answer all is here; whoever waits for its end has a deadline
                watch.arm("idle_s", idle_s, clock.now())
            chunk = await (stream.next() if part is None else part)
            if chunk is None:
                return
            part = None
            if is_stream:
                watch.disarm()
                if chunk.n_content:
                    source.cadence.content(clock.now())
            self._add(chunk)

    async def _wait_for_a_reader(self, watch: Watch) -> None:
        watch.arm_bound()
        self._resume = asyncio.get_running_loop().create_future()
        try:
            await self._resume
        finally:
            self._resume = None
            watch.disarm()

    def _add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.n_bytes = n_bytes = self.n_bytes + len(chunk.data)
        if n_bytes - self._n_bytes_gone > MAX_BYTES:
            self.close()
            while n_bytes - self._n_bytes_gone > MAX_BYTES:
                self._n_bytes_gone += len(self._chunks.pop(0).data)
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
            if type(failure) is DeadlineExceeded and self._waiting:
                self._waiting.sort(key=itemgetter(0), reverse=True)  # who wakes first makes the next call
        self._wake()

    def close(self) -> None:
        """Nobody can join any more: it has failed, or what it brought is kept elsewhere now, or is not to be kept."""
        flights, key = self.caching.flights, self.key
        if flights.get(key) is self:
            del flights[key]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        for _, waiter in waiting or ():
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<Flight to {self.upstream}: {len(self._listeners)} listen, {self.n_bytes} bytes{', over' * self.is_over}>"
