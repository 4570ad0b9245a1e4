"""Streams of routes with `resumable: true`: generated here, sent to the client as they come, stored behind.

Problem: a client whose connection breaks in the middle of an answer has paid for it, and pays again for another one. Rule:
the stream is a job that runs from the start at this gateway. Its generation does not depend on the client's connection.
Events get the ids `<epoch>-<n>`; they go to the client at once, and to the store in groups of PAUSE_S, so no token waits for
a disk. A reconnect reads the store, at any gateway.

If this process dies, the events of the last PAUSE_S and of the commit in progress are lost. The lease ends, another worker
runs the job again with the next epoch, and its first event is `reset`: the client drops what it has of the answer. If the
store fails, the client's stream goes on, and cannot be picked up from where the store failed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.jobs import JobEvent, JobResult, JobState, NewJob
from stayfast.core.types import Request
from stayfast.http.server.connection import ConnectionTasks
from stayfast.jobs.service import WORK, JobService, job_topic
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.jobs.event_stream import KEEP_ALIVE
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import HeldJob
from stayfast.wire import sse
from stayfast.wire.errors import encode_error, encode_error_event
from stayfast.wire.jobs.collected_answer import StreamedAnswer, is_end_marker
from stayfast.wire.jobs.job_objects import encode_job_event

PAUSE_S = 0.05
RETRY_S = 0.5
FIRST_EPOCH = 1
CANCELLED_STATUS = 499
Serve = Callable[[Request, Arrival], Awaitable[Reply]]


class LiveStream:
    """One stream that is generated here. One task generates, one stores, one client reads."""

    def __init__(self, job: NewJob, request_id: str) -> None:
        self.job = job
        self.reply: Reply | None = None  # from the first token on
        self.failure: StayfastError | None = None
        self.is_over = False
        self.is_lost = False  # another worker has the job
        self.is_stored = False
        self.result: JobResult | None = None
        self.pending: list[JobEvent] = []
        self.changed = asyncio.Event()  # for the client
        self.stored_changed = asyncio.Event()  # for the store
        self._request_id = request_id
        self._sent: list[bytes] = []
        self._n = 0
        self._last: JobEvent | None = None  # the end marker, which is stored only once the stream is over
        self._splitter = sse.EventSplitter()
        self._answer = StreamedAnswer(job.api)

    async def generate(self, serve: Serve, request: Request, arrival: Arrival) -> None:
        """Run the request to its end. Never raises a StayfastError."""
        try:
            self.reply = reply = await serve(request, arrival)
            self.changed.set()
            try:
                while (chunk := await reply.next()) is not None:
                    self.add(chunk.data)
            finally:
                reply.close()
        except StayfastError as error:
            self.fail(error)
        else:
            self._end(JobState.COMPLETED, 200, self._answer.build_body() or b"".join(self._sent))

    def add(self, data: bytes) -> None:
        """The next bytes of the answer."""
        for event_data, name in sse.parse_events(self._splitter, data):
            self._answer.add_event(event_data)
            event = JobEvent(self._n, FIRST_EPOCH, sse.encode_event(event_data, name.decode() or None))
            if self._last is not None:
                self.pending.append(self._last)
                self._last = None
            if is_end_marker(self.job.api, event_data, name):
                self._last = event
            else:
                self.pending.append(event)
            self._send(event)
        self.stored_changed.set()

    def fail(self, error: StayfastError, state: JobState = JobState.FAILED) -> None:
        """End with an error, which is the last event of a stream that has begun."""
        if self.is_over:
            return
        self.failure = error
        status, _, body = encode_error(error, self.job.api, self._request_id)
        if self._last is not None:
            self.pending.append(self._last)
        summary = self.reply.summary if self.reply is not None else None
        self._last = JobEvent(self._n, FIRST_EPOCH, encode_error_event(error, self.job.api, self._request_id, summary))
        if self._n:
            self._send(self._last)
        self._end(state, status, body, error.code)

    async def read(self, keepalive_s: float) -> AsyncIterator[bytes]:
        """All events, as they come. Raises the StayfastError that ended them, after its event. keepalive_s: silence before a
        comment; 0: none.
        """
        n_read = 0
        while True:
            self.changed.clear()
            if n_read < len(self._sent):
                data, n_read = b"".join(self._sent[n_read:]), len(self._sent)
                yield data
            elif self.is_over:
                if self.failure is not None:
                    raise self.failure
                return
            elif not await self.wait_changed(keepalive_s):
                yield KEEP_ALIVE

    async def wait_changed(self, timeout_s: float) -> bool:
        """False: nothing has changed in `timeout_s` (0: wait without end)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s or None):
                await self.changed.wait()
                return True
        return False

    def take_pending(self) -> list[JobEvent]:
        """The events that are not stored yet."""
        events, self.pending = self.pending, []
        return events

    def _send(self, event: JobEvent) -> None:
        self._sent.append(encode_job_event(event))
        self._n = event.n + 1
        self.changed.set()

    def _end(self, state: JobState, status: int, body: bytes, why: str = "") -> None:
        last = self._last or JobEvent(self._n, FIRST_EPOCH, b"")
        self.pending.append(JobEvent(last.n, last.epoch, last.data, is_last=True))
        reply = self.reply
        self.result = JobResult(self.job.id, FIRST_EPOCH, state, status, body, self._request_id,
                                reply.upstream if reply is not None else "",
                                reply.summary.usage if reply is not None else None, why=why)
        self.is_over = True
        self.changed.set()
        self.stored_changed.set()


class StreamCancelled(StayfastError):
    """The client cancelled the job of its stream."""

    status = CANCELLED_STATUS
    code = "cancelled"


class LiveStreams:
    """The live streams of one loop, and the lease of their jobs."""

    def __init__(self, clock: Clock, report: Callable[[BaseException], None]) -> None:
        """report: gets unexpected exceptions."""
        self._clock = clock
        self._report = report
        self._streams: dict[str, tuple[LiveStream, asyncio.Task[None]]] = {}
        self._tasks = ConnectionTasks(report)
        self._is_beating = False

    def __len__(self) -> int:
        return len(self._streams)

    def find(self, job_id: str) -> LiveStream | None:
        """The stream of a job that is generated here."""
        found = self._streams.get(job_id)
        return found[0] if found is not None else None

    def start(self, service: JobService, job: NewJob, serve: Serve, request: Request, arrival: Arrival) -> LiveStream:
        """Begin to generate."""
        stream = LiveStream(job, arrival.request_id)
        generating = self._tasks.spawn(stream.generate(serve, request, arrival))
        self._streams[job.id] = stream, generating
        self._tasks.spawn(self._store(service, stream))
        if not self._is_beating:
            self._is_beating = True
            self._tasks.spawn(self._beat(service))
        return stream

    async def _store(self, service: JobService, stream: LiveStream) -> None:
        try:
            (submitted,) = await service.submit([stream.job], is_served=True)
            if not submitted.is_new:  # another gateway got the same request at the same time: the stored stream is its own
                return
            stream.is_stored = True
            while not stream.is_over or stream.pending:
                await self._wait_for_events(stream)
                await self._append(service, stream)
                if stream.is_lost:
                    return
            if stream.result is not None:
                await _until_available(service.store.finish, [stream.result])
                await _until_available(service.store.notify, job_topic(stream.job.id))
        except StayfastError as error:
            self._report(error)  # the stream goes on, and cannot be picked up
        finally:
            self._streams.pop(stream.job.id, None)

    async def _wait_for_events(self, stream: LiveStream) -> None:
        stream.stored_changed.clear()
        if not stream.pending and not stream.is_over:
            await stream.stored_changed.wait()
        if not stream.is_over:
            await asyncio.sleep(PAUSE_S)

    async def _append(self, service: JobService, stream: LiveStream) -> None:
        events = stream.take_pending()
        if events:
            stream.is_lost = not await _until_available(
                service.store.append_events, stream.job.id, FIRST_EPOCH, events)
            await _until_available(service.store.notify, job_topic(stream.job.id))

    async def _beat(self, service: JobService) -> None:
        """Extend the leases, and end what its client has cancelled."""
        try:
            beat_at = self._clock.now()
            while self._streams:
                config = service.config
                with suppress(StoreUnavailable):
                    await service.store.wait(WORK, config.heartbeat_s)
                await asyncio.sleep(max(0.0, beat_at + min(1.0, config.heartbeat_s) - self._clock.now()))
                beat_at = self._clock.now()
                held = [HeldJob(job_id, FIRST_EPOCH) for job_id, (stream, _) in self._streams.items() if stream.is_stored]
                if not held:
                    continue
                try:
                    heartbeat = await service.store.extend(service.worker, held, config.lease_s)
                except StoreUnavailable:
                    continue
                for job_id in heartbeat.cancelled:
                    self._cancel(job_id)
        finally:
            self._is_beating = False

    def _cancel(self, job_id: str) -> None:
        found = self._streams.get(job_id)
        if found is None:  # it ended while the heartbeat was under way
            return
        stream, generating = found
        generating.cancel()
        stream.fail(StreamCancelled("The job was cancelled."), JobState.CANCELLED)


async def _until_available(call: Callable[..., Awaitable[object]], *arguments: object) -> object:
    """The result of a call to the store, repeated while it is unavailable."""
    while True:
        try:
            return await call(*arguments)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
