"""A job's stored events as server-sent events, from any position, while the job runs and after it."""

from collections.abc import AsyncIterator, Sequence

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Job, JobEvent, JobState
from stayfast.jobs.service import JobService, gone_error
from stayfast.server.jobs.endpoint import EndpointReply
from stayfast.server.jobs.positions import find_position
from stayfast.wire.errors import encode_error_event
from stayfast.wire.jobs.job_objects import encode_job_event, end_message
from stayfast.wire.sse import encode_comment

EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
KEEP_ALIVE = encode_comment("keep-alive")
STATE_CHECK_S = 2.0  # a job may end without a last event: cancelled or expired in the queue, or dead
RESULT_WAIT_S = 5.0  # the result is stored in the next commit after the last event


class EventStream:
    """One client's reading of a job's stream. One task reads it."""

    def __init__(self, service: JobService, job: Job, after_n: int, keepalive_s: float, request_id: str, *,
                 epoch: int | None = None) -> None:
        """after_n, epoch: of the last event that the client has. keepalive_s: silence before a comment; 0: none."""
        self.service = service
        self.job = job
        self.n_read = max(-1, after_n)  # the last event that the client has
        self._reader = service.read_events(job, self.n_read)
        self._keepalive_s = keepalive_s
        self._request_id = request_id
        self._epoch = epoch

    async def start(self, headers: tuple[tuple[str, str], ...] = ()) -> EndpointReply:
        """The reply, once the position is known to be stored. Raises Rejected (410) if it is gone."""
        first = await self._enter_epoch(await self._reader.read(0))
        parts = None if not first and await self._was_last() else self._parts(first)
        if parts is not None and not first and self.n_read >= 0 and self.job.state is JobState.COMPLETED:
            raise gone_error(self.job.id)  # past the end, or of events that were lost with their gateway
        return EndpointReply(content_type=EVENT_STREAM, headers=(*STREAM_HEADERS, *headers), parts=parts)

    async def encode_event(self, event: JobEvent) -> bytes:
        """An event as this client gets it."""
        return encode_job_event(event) if event.data else b""

    async def encode_end(self, job: Job) -> bytes:
        """The last event of a job that ended without one: cancelled or expired in the queue, or dead."""
        error = Rejected(end_message(job.state), status=409, code=f"job_{job.state.value}")
        return encode_error_event(error, job.api, self._request_id)

    async def _was_last(self) -> bool:
        """Whether the client already has the last event."""
        if self.n_read < 0:
            return False
        before = await self.service.read_events(self.job, self.n_read - 1).read(0)
        return bool(before) and before[0].is_last

    async def _parts(self, events: Sequence[JobEvent]) -> AsyncIterator[bytes]:
        silent_s = 0.0
        while True:
            data = await self._encode(events)
            if data:
                yield data
                silent_s = 0.0
            if self._reader.is_over:
                return
            wait_s = min(STATE_CHECK_S, self._keepalive_s - silent_s) if self._keepalive_s else STATE_CHECK_S
            events = await self._enter_epoch(await self._reader.read(wait_s))
            silent_s += wait_s
            if events or self._reader.is_over:
                continue
            job = await self.service.find(self.job.id, self.job.tenant)
            if job.state.is_final:
                events = await self._reader.read(0)  # those that were stored before the state was read
                if not events:
                    yield await self.encode_end(job)
                    return
            elif self._keepalive_s and silent_s >= self._keepalive_s:
                silent_s = 0.0
                yield KEEP_ALIVE

    async def _enter_epoch(self, events: list[JobEvent]) -> list[JobEvent]:
        """The events, from the first one of a later epoch if they are of one: the client may lack its beginning."""
        if self._epoch is None or not events or events[0].epoch <= self._epoch:
            return events
        position = await find_position(self.service, self.job.id, self._epoch, self.n_read)
        self._epoch = None
        if position == self.n_read:
            return events
        self._reader = self.service.read_events(self.job, position)
        return await self._reader.read(0)

    async def _encode(self, events: Sequence[JobEvent]) -> bytes:
        out = []
        for event in events:
            if event.is_last:  # a client that has the last event finds the result
                await self.service.wait(self.job.id, self.job.tenant, RESULT_WAIT_S)
            out.append(await self.encode_event(event))
            self.n_read = event.n
        return b"".join(out)
