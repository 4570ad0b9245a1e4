"""Jobs over a WebSocket: submit, see the place in the queue, get the events, get the result.

`/v1/jobs/{id}/ws` follows one job and ends after its result. `/v1/jobs/ws` takes submissions until its client closes it. The
end of the WebSocket changes nothing for its jobs: they are stored, and can be followed again.
"""

import asyncio
from functools import partial
from urllib.parse import parse_qsl, unquote

from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.core.jobs import Job, JobEvent, JobState
from stayfast.http.server.websocket import WebSocketConnection
from stayfast.jobs.service import JobService, job_topic, store_error
from stayfast.server.arrivals import run_if_large
from stayfast.server.http_request import LlmHttpRequest
from stayfast.server.job_paths import NEW_JOBS_SOCKET, job_socket_label, strip_prefix
from stayfast.server.jobs.app import jobs_unavailable
from stayfast.server.jobs.endpoint import EndpointRequest
from stayfast.server.jobs.event_stream import RESULT_WAIT_S
from stayfast.server.jobs.jobs import JobEndpoints
from stayfast.server.jobs.positions import find_position
from stayfast.server.sockets.hub import SocketHub
from stayfast.stores.base import StoreUnavailable
from stayfast.wire.jobs.job_objects import parse_event_id
from stayfast.wire.sockets.job_frames import (
    CancelFrame,
    SubmitFrame,
    encode_event_frame,
    encode_job_error,
    encode_place,
    encode_result_frame,
    encode_running,
    read_job_frame,
)
from stayfast.wire.sockets.response_frames import parse_members

MAX_FOLLOWED = 16  # jobs of one WebSocket that have not ended
PLACE_EVERY_S = 1.0
RETRY_S = 1.0


class JobSocket:
    """One WebSocket. Its handler reads the messages; one Task follows each job."""

    __slots__ = ("_followed", "_hub", "_job_id", "_request", "_request_id", "_service", "_socket", "_tasks")

    def __init__(self, hub: SocketHub, request: LlmHttpRequest, socket: WebSocketConnection, request_id: str) -> None:
        """Raises Shed without a store of jobs."""
        service = hub.active.backend.jobs
        if service is None:
            raise jobs_unavailable()
        self._hub = hub
        self._request = request
        self._request_id = request_id
        self._socket = socket
        self._service: JobService = service
        self._followed: set[str] = set()
        self._job_id: str | None = None  # of the path
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Raises StayfastError before the handshake is accepted: 404 for another key's job, 410 for a lost position."""
        headers = [("x-request-id", self._request_id)]
        if job_socket_label(self._request.path) == NEW_JOBS_SOCKET:
            await self._socket.accept(headers=headers)
            async with self._tasks:
                await self._read()
            return
        job_id = unquote(strip_prefix(self._request.path).split("/")[3])
        job = await self._service.find(job_id, self._request.tenant)
        self._job_id = job.id
        follower = _Follower(self._socket, self._service, job, await self._find_start(job))
        await follower.check_start()
        await self._socket.accept(headers=headers)
        async with self._tasks:
            reading = self._tasks.create_task(self._read())
            await self._follow(follower)
            reading.cancel()

    async def _find_start(self, job: Job) -> int:
        """The number of the event after which to go on, from `?after=`. Raises Rejected."""
        query = dict(parse_qsl(self._request.query.decode("latin-1"), keep_blank_values=True))
        after = query.get("after", "")
        if not after or not job.is_stream:
            return -1
        epoch, n = parse_event_id(after)
        return n if epoch is None else await find_position(self._service, job.id, epoch, n)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            try:
                depth = self._hub.active.config.max_depth
                members = await run_if_large(len(message), partial(parse_members, message, depth))
                frame = read_job_frame(members, may_submit=self._job_id is None)
                if isinstance(frame, CancelFrame):
                    await self._cancel(frame)
                else:
                    await self._submit(frame)
            except StayfastError as error:
                await self._socket.send(encode_job_error(error, self._request_id))

    async def _cancel(self, frame: CancelFrame) -> None:
        """The end of the job is reported by its follower."""
        job_id = frame.job_id or self._job_id
        if job_id is None or (self._job_id is not None and job_id != self._job_id):
            raise Rejected("id: expected the id of a job of this WebSocket", code="invalid_type", param="id")
        self._hub.check_key(self._request)
        await self._service.cancel(job_id, self._request.tenant)

    async def _submit(self, frame: SubmitFrame) -> None:
        if len(self._followed) >= MAX_FOLLOWED:
            raise Shed(f"{MAX_FOLLOWED} jobs of this WebSocket are unfinished, the limit. Wait for the end of one, or "
                       "submit it with POST /v1/jobs.", reason="jobs_followed", status=429, code="too_many_jobs",
                       retry_after_s=RETRY_S)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._request.fields.items()
                   if name != b"idempotency-key"}
        if frame.idempotency_key is not None:
            headers["idempotency-key"] = frame.idempotency_key
        endpoints = JobEndpoints(self._service, self._hub.active)
        submitted = await endpoints.accept(EndpointRequest(
            method="POST", path="/v1/jobs", parameters={}, query={}, headers=headers, tenant=self._request.tenant,
            caller=self._hub.check_key(self._request), request_id=self._request_id, accepted_at=self._hub.clock.now(),
            body=_Message(frame.body)))
        job = submitted.job
        if job.id not in self._followed:
            self._followed.add(job.id)
            self._tasks.create_task(self._follow(_Follower(self._socket, self._service, job, -1)))

    async def _follow(self, follower: "_Follower") -> None:
        job_id = follower.job.id
        try:
            await follower.run()
        except StayfastError as error:
            await self._socket.send(encode_job_error(error, self._request_id, job_id))
        finally:
            self._followed.discard(job_id)

    def __repr__(self) -> str:
        return f"<JobSocket: {len(self._followed)} jobs>"


class _Follower:
    """One job, from its place in the queue to its result."""

    __slots__ = ("_first", "_is_running", "_place", "_reader", "_service", "_socket", "job")

    def __init__(self, socket: WebSocketConnection, service: JobService, job: Job, after_n: int) -> None:
        self._socket = socket
        self._service = service
        self.job = job
        self._reader = service.read_events(job, after_n) if job.is_stream else None
        self._first: list[JobEvent] = []  # events that were read before the start
        self._place: int | None = None  # the last one that the client got
        self._is_running = False

    async def check_start(self) -> None:
        """Raises Rejected (410) if the client's position in the stream is lost."""
        if self._reader is not None:
            self._first = await self._reader.read(0)

    async def run(self) -> None:
        """Raises StayfastError."""
        while not self.job.state.is_final:
            await self._send_state()
            await self._send_events(PLACE_EVERY_S)
            self.job = await self._service.find(self.job.id, self.job.tenant)
        await self._send_events(0)
        result = await self._service.result(self.job)
        await self._socket.send(encode_result_frame(self.job, result))

    async def _send_state(self) -> None:
        if self.job.state is JobState.RUNNING:
            await self._send_running()
            return
        self._is_running = False
        place, left_s = await self._service.place_of(self.job)
        if place is not None and place != self._place:
            self._place = place
            await self._socket.send(encode_place(self.job, place, left_s))

    async def _send_running(self) -> None:
        if not self._is_running:
            self._is_running = True
            await self._socket.send(encode_running(self.job))

    async def _send_events(self, silence_s: float) -> None:
        """Send events until there are none for `silence_s`; without a stream, wait so long for a change of the job."""
        if self._reader is None or (self._reader.is_over and not self._first):
            if silence_s:
                await self._wait_changed(silence_s)
            return
        while events := self._first or await self._reader.read(silence_s):
            self._first = []
            await self._send_running()
            for event in events:
                message = encode_event_frame(self.job, event)
                if message is not None:
                    await self._socket.send(message)
            if events[-1].is_last:  # the result is stored in the next commit
                self.job = await self._service.wait(self.job.id, self.job.tenant, RESULT_WAIT_S)

    async def _wait_changed(self, timeout_s: float) -> None:
        try:
            await self._service.store.wait(job_topic(self.job.id), timeout_s)
        except StoreUnavailable as error:
            raise store_error(error) from None


class _Message:
    """A body that is complete."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body
