"""A job's stored events as server-sent events, from any position, while the job runs and after it."""

from collections.abc import AsyncIterator

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Job, JobEvent
from stayfast.jobs.service import JobEventReader, JobService
from stayfast.server.jobs.endpoint import EndpointReply
from stayfast.wire.errors import encode_error_event
from stayfast.wire.jobs.job_objects import encode_job_event, end_message
from stayfast.wire.sse import encode_comment

EVENT_STREAM = "text/event-stream; charset=utf-8"
_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
_KEEP_ALIVE = encode_comment("keep-alive")
_DEFAULT_KEEPALIVE_S = 15.0


class EventStream:
    """One client's reading of a job's stream. One task reads it."""

    def __init__(self, service: JobService, job: Job, after_n: int, keepalive_s: float, request_id: str) -> None:
        """keepalive_s: silence before a comment; 0: none."""
        self._service = service
        self._job = job
        self._after_n = after_n
        self._reader: JobEventReader = service.read_events(job, after_n)
        self._keepalive_s = keepalive_s
        self._request_id = request_id
        self.encode = encode_job_event  # may be replaced before the first part

    async def start(self) -> EndpointReply:
        """The reply, once the position is known to be stored. Raises Rejected (410) if it is gone."""
        first = await self._reader.read(0)
        if not first and await self._was_last():
            return EndpointReply(content_type=EVENT_STREAM, headers=_HEADERS)
        return EndpointReply(content_type=EVENT_STREAM, headers=_HEADERS, parts=self._parts(first))

    async def _was_last(self) -> bool:
        """Whether the client already has the last event."""
        if self._after_n < 0:
            return False
        before = await self._service.read_events(self._job, self._after_n - 1).read(0)
        return bool(before) and before[0].is_last

    async def _parts(self, events: list[JobEvent]) -> AsyncIterator[bytes]:
        wait_s = self._keepalive_s or _DEFAULT_KEEPALIVE_S
        while True:
            data = b"".join(map(self.encode, events))
            if data:
                yield data
            if self._reader.is_over:
                return
            events = await self._reader.read(wait_s)
            if events or self._reader.is_over:
                continue
            job = await self._service.find(self._job.id, self._job.tenant)
            if job.state.is_final:
                events = await self._reader.read(0)  # those stored between the read and the look at the state
                if not events:
                    yield self._end(job)
                    return
            elif self._keepalive_s:
                yield _KEEP_ALIVE

    def _end(self, job: Job) -> bytes:
        """The last event of a job that ended without one: cancelled or expired in the queue, or dead."""
        error = Rejected(end_message(job.state), status=409, code=f"job_{job.state.value}")
        return encode_error_event(error, job.api, self._request_id)
