"""The requests to LLM endpoints that durable work answers: background responses, `Prefer: respond-async`, streams that can
be picked up, reconnects, and requests that continue a background response.
"""

from collections.abc import Callable
from hashlib import blake2b

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected
from stayfast.core.jobs import Door, Job, NewJob
from stayfast.core.types import Request
from stayfast.jobs.service import JobService
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.backend import ActiveSystem
from stayfast.server.http_request import LaterWish, LlmHttpRequest, client_request_id
from stayfast.server.jobs.app import jobs_unavailable
from stayfast.server.jobs.endpoint import EndpointReply
from stayfast.server.jobs.event_stream import EVENT_STREAM, STREAM_HEADERS, EventStream
from stayfast.server.jobs.jobs import describe_submission, result_reply
from stayfast.server.jobs.new_jobs import (
    JobTerms,
    check_model,
    headers_to_forward,
    make_job,
    new_id,
    read_idempotency_key,
)
from stayfast.server.jobs.responses import continue_stored, describe_response, find_body, stream_response
from stayfast.server.jobs.resumable import LiveStream, LiveStreams
from stayfast.wire.jobs.job_objects import parse_event_id
from stayfast.wire.jobs.prefer import AsyncPreference
from stayfast.wire.jobs.response_objects import RESPONSE_ID, to_job_body

Headers = tuple[tuple[str, str], ...]


class LlmDoors:
    """Answers what `choose` selects. One loop's."""

    def __init__(self, current: ActiveSystem, clock: Clock, live: LiveStreams) -> None:
        self._current = current
        self._clock = clock
        self._live = live

    async def answer(self, request: Request, arrival: Arrival, wish: LaterWish | None, inbound: LlmHttpRequest,
                     describe: Callable[[Reply], Headers]) -> tuple[EndpointReply | None, Request]:
        """The reply, or None: the returned request is to be served as usual. describe: the headers of an answer. Raises
        StayfastError.
        """
        service = self._current.backend.jobs
        if service is None:
            if request.is_background or wish is not None:
                raise jobs_unavailable()
            return None, request
        if request.previous_response_id is not None:
            request = await continue_stored(service, request, arrival.tenant, self._current)
        if wish is not None and request.stream and (wish.last_event is not None or wish.job_id is not None):
            return await self._reconnect(service, request, arrival, wish), request
        if request.is_background:
            return await self._run_in_background(service, request, arrival, inbound), request
        if wish is not None and wish.preference is not None:
            return await self._respond_later(service, request, arrival, inbound, wish.preference), request
        if request.stream and request.model in self._current.resumable and arrival.events is None:
            return await self._stream(service, request, arrival, inbound, describe), request
        return None, request

    async def _run_in_background(self, service: JobService, request: Request, arrival: Arrival, inbound: LlmHttpRequest
                                 ) -> EndpointReply:
        check_model(request, self._current)
        is_stored = msgspec.json.decode(request.body, type=_StoreMember).store is True
        terms = JobTerms(idempotency_key=_idempotency_key(inbound),
                         keep_s=None if is_stored else service.config.keep_responses_s)
        without = msgspec.structs.replace(request, body=to_job_body(request.body))
        job = (await service.submit_one(self._make_job(without, Door.RESPONSES, terms, arrival,
                                                       new_id(RESPONSE_ID, self._clock.wall())))).job
        if job.is_stream:
            return await stream_response(service, self._current, job, -1, arrival.request_id)
        return await describe_response(service, job)

    async def _respond_later(self, service: JobService, request: Request, arrival: Arrival, inbound: LlmHttpRequest,
                             preference: AsyncPreference) -> EndpointReply:
        check_model(request, self._current)
        terms = JobTerms(idempotency_key=_idempotency_key(inbound))
        job = (await service.submit_one(self._make_job(request, Door.ASYNC, terms, arrival, None))).job
        if preference.wait_s and not job.state.is_final:
            job = await service.wait(job.id, arrival.tenant, preference.wait_s)
        applied = (("preference-applied", preference.applied), ("vary", "prefer"))
        result = await service.result(job) if job.state.is_final else None
        if result is None or not result.body:
            return await describe_submission(service, job, applied)
        if job.is_stream:
            return await self._open_stored(service, job, arrival, None).start(applied)
        return result_reply(result, (("location", f"/v1/jobs/{job.id}"), *applied))

    async def _reconnect(self, service: JobService, request: Request, arrival: Arrival, wish: LaterWish) -> EndpointReply:
        """The rest of a stream that broke off. Raises Rejected (410) instead of a second generation."""
        if wish.job_id is None and request.model not in self._current.resumable:
            raise Rejected("This model's streams are not stored (its route needs resumable: true), so this one cannot go on "
                           "after an event. Nothing was generated again. Send the request without last-event-id for a new "
                           "answer.", status=410, code="not_resumable", param="last-event-id")
        job_id = wish.job_id or stream_job_id(arrival.tenant, arrival.request_id)
        try:
            job = await service.find(job_id, arrival.tenant)
        except Rejected:
            raise Rejected("This stream is not stored: its time is over, or neither x-stayfast-job nor x-request-id names "
                           "one. Nothing was generated again. Send the request without last-event-id for a new answer.",
                           status=410, code="stream_gone", param="last-event-id") from None
        if job.api is not request.api or not job.is_stream or (
                wish.job_id is None and await find_body(service, job) != request.body):
            raise Rejected("last-event-id belongs to another request: name its job in x-stayfast-job.", status=409,
                           code="stream_conflict", param="last-event-id")
        return await self._replay(service, job, arrival, wish.last_event)

    async def _replay(self, service: JobService, job: Job, arrival: Arrival, last_event: str | None) -> EndpointReply:
        return await self._open_stored(service, job, arrival, last_event).start(_job_headers(job.id))

    def _open_stored(self, service: JobService, job: Job, arrival: Arrival, last_event: str | None) -> EventStream:
        epoch, after_n = parse_event_id(last_event) if last_event is not None else (None, -1)
        return EventStream(service, job, after_n, self._current.config.sse_keepalive_s, arrival.request_id, epoch=epoch)

    async def _stream(self, service: JobService, request: Request, arrival: Arrival, inbound: LlmHttpRequest,
                      describe: Callable[[Reply], Headers]) -> EndpointReply:
        job_id = None
        if client_request_id(inbound.fields) is not None:
            job_id = stream_job_id(arrival.tenant, arrival.request_id)
            job = await self._find_same(service, job_id, request, arrival)
            if job is not None:
                if job.id:
                    return await self._replay(service, job, arrival, None)
                job_id = None
            live = self._live.find(job_id) if job_id is not None else None  # not stored yet
            if live is not None and live.job.body == request.body:
                return await self._read_live(live, describe)
            if live is not None:
                job_id = None
        config = service.config
        new = msgspec.structs.replace(
            self._make_job(request, Door.STREAM, JobTerms(), arrival, job_id), worker=service.worker, lease_s=config.lease_s)
        live = self._live.start(service, new, self._current.backend.gateway.serve, request, arrival)
        return await self._read_live(live, describe)

    async def _find_same(self, service: JobService, job_id: str, request: Request, arrival: Arrival) -> Job | None:
        """The stream of an earlier request with the same id; without an id if that had another body."""
        try:
            job = await service.find(job_id, arrival.tenant)
            if await find_body(service, job) != request.body:
                return msgspec.structs.replace(job, id="")
        except Rejected:
            return None
        return job

    async def _read_live(self, live: LiveStream, describe: Callable[[Reply], Headers]) -> EndpointReply:
        """The reply at the first token, or at the first comment. Raises the error of an answer without a token."""
        keepalive_s = self._current.config.sse_keepalive_s
        while live.reply is None and not live.is_over and await live.wait_changed(keepalive_s):
            live.changed.clear()
        if live.reply is None and live.failure is not None:
            raise live.failure
        headers = describe(live.reply) if live.reply is not None else ()
        return EndpointReply(content_type=EVENT_STREAM, headers=(*STREAM_HEADERS, *_job_headers(live.job.id), *headers),
                             parts=live.read(keepalive_s))

    def _make_job(self, request: Request, door: Door, terms: JobTerms, arrival: Arrival, job_id: str | None) -> NewJob:
        service = self._current.backend.jobs
        assert service is not None
        headers = headers_to_forward(dict(arrival.headers))
        return make_job(request, door, terms, service, tenant=arrival.tenant, headers=headers, job_id=job_id,
                        key_id=arrival.key_id)


class _StoreMember(msgspec.Struct):
    store: bool | None = None


def stream_job_id(tenant: str | None, request_id: str) -> str:
    """The job of a stream whose client chose the request's id: the same at every gateway."""
    return "job_" + blake2b(f"{tenant or ''}\0{request_id}".encode(), digest_size=16).hexdigest()


def _job_headers(job_id: str) -> Headers:
    return (("x-stayfast-job", job_id), ("location", f"/v1/jobs/{job_id}"))


def _idempotency_key(inbound: LlmHttpRequest) -> str | None:
    value = inbound.fields.get(b"idempotency-key")
    return read_idempotency_key({"idempotency-key": value.decode("latin-1")}) if value is not None else None
