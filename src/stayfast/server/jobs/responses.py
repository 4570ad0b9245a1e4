"""Background responses: create, poll, resume the stream, cancel, delete (OpenAI's Responses with `background: true`).

The gateway runs them itself, so they work with every upstream that can answer a Responses request.
"""

from collections.abc import AsyncIterator

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Door, Job, JobEvent, JobResult, JobState
from stayfast.core.types import Api, Request
from stayfast.jobs.service import JobService, store_error
from stayfast.server.backend import ActiveSystem
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest
from stayfast.server.jobs.event_stream import EventStream
from stayfast.stores.base import StoreUnavailable
from stayfast.wire.jobs.response_objects import (
    N_OWN_EVENTS,
    continue_response,
    encode_end_event,
    encode_own_events,
    encode_response_event,
    is_failure_event,
    is_own_id,
    parse_response,
    render_response,
)
from stayfast.wire.request_body import decode

_DELETE_WAIT_S = 5.0  # for the worker of a response that is deleted while it runs


class ResponseEndpoints:
    """`/v1/responses/{id}` and what is below it, for the responses of the client's own key."""

    def __init__(self, service: JobService, current: ActiveSystem) -> None:
        self._service = service
        self._current = current

    def endpoints(self) -> tuple[Endpoint, ...]:
        """For the server's table."""
        return (Endpoint("GET", "/v1/responses/{id}", self.retrieve), Endpoint("DELETE", "/v1/responses/{id}", self.delete),
                Endpoint("POST", "/v1/responses/{id}/cancel", self.cancel))

    async def retrieve(self, request: EndpointRequest) -> EndpointReply:
        """The object in its present state; with `stream=true` its events after number `starting_after`."""
        job = await self._find(request)
        if request.query.get("stream", "false").lower() in ("true", "1"):
            return await self._resume(job, request)
        return await describe_response(self._service, job)

    async def cancel(self, request: EndpointRequest) -> EndpointReply:
        """Cancel a response; one that has ended stays as it is."""
        job = await self._find(request)
        job = await self._service.cancel(job.id, request.tenant)
        if job.is_cancelling and not job.state.is_final:
            job = await self._service.wait(job.id, request.tenant, _DELETE_WAIT_S)
        return await describe_response(self._service, job)

    async def delete(self, request: EndpointRequest) -> EndpointReply:
        """Delete a response; one that runs is cancelled first."""
        job = await self._find(request)
        if not job.state.is_final:
            await self._service.cancel(job.id, request.tenant)
            job = await self._service.wait(job.id, request.tenant, _DELETE_WAIT_S)
        try:
            is_deleted = await self._service.store.delete(job.id)
        except StoreUnavailable as error:
            raise store_error(error) from None
        if not is_deleted:
            raise Rejected("The response is being cancelled. Delete it again in a few seconds.", status=409,
                           code="response_not_finished", param="response_id", retry_after_s=_DELETE_WAIT_S)
        return EndpointReply(body=msgspec.json.encode({"id": job.id, "object": "response", "deleted": True}))

    async def _resume(self, job: Job, request: EndpointRequest) -> EndpointReply:
        if not job.is_stream:
            raise Rejected("This response cannot be streamed, because it was not created with stream=true. Poll it instead.",
                           code="response_not_streamed", param="stream")
        after = request.query.get("starting_after", "-1")
        if not (after.removeprefix("-").isdigit() and after.isascii() and len(after) <= 12):
            raise Rejected("starting_after must be the sequence_number of an event.", code="invalid_type",
                           param="starting_after")
        return await stream_response(self._service, self._current, job, int(after), request.request_id)

    async def _find(self, request: EndpointRequest) -> Job:
        response_id = request.parameters["id"]
        try:
            job = await self._service.find(response_id, request.tenant)
        except Rejected:
            raise unknown_response(response_id) from None
        if job.door is not Door.RESPONSES:
            raise unknown_response(response_id)
        return job


def unknown_response(response_id: str) -> Rejected:
    """The error for a response that is unknown, belongs to another key, or was not created in the background."""
    return Rejected(f"Response with id '{response_id[:80]}' not found. Responses that were created with background=true can "
                    "be retrieved until their time is over.", status=404, code="response_not_found", param="response_id")


async def describe_response(service: JobService, job: Job) -> EndpointReply:
    """The response object, with `retry-after` until it has ended."""
    result = await service.result(job) if job.state.is_final else None
    headers = () if job.state.is_final else (("retry-after", str((await service.place_of(job)).poll_after_s)),)
    return EndpointReply(body=msgspec.json.encode(render_response(job, await find_body(service, job), result)),
                         headers=headers)


async def find_body(service: JobService, job: Job) -> bytes:
    """The request of a job. Raises Rejected (404) if it was purged meanwhile."""
    try:
        body = await service.store.find_body(job.id)
    except StoreUnavailable as error:
        raise store_error(error) from None
    if body is None:
        raise unknown_response(job.id)
    return body


async def stream_response(service: JobService, current: ActiveSystem, job: Job, after: int, request_id: str
                          ) -> EndpointReply:
    """The events after sequence number `after` (-1: all), stored and live ones."""
    stream = ResponseStream(service, job, after - N_OWN_EVENTS, current.config.sse_keepalive_s, request_id)
    stream.body = await find_body(service, job)
    own = encode_own_events(job, stream.body)[max(0, after + 1):] if after + 1 < N_OWN_EVENTS else ()
    reply = await stream.start()
    return _with_parts(reply, _joined(own, reply.parts)) if own else reply


def _with_parts(reply: EndpointReply, parts: AsyncIterator[bytes]) -> EndpointReply:
    """The reply with other parts."""
    return EndpointReply(reply.status, b"", reply.content_type, reply.headers, parts)


async def _joined(own: tuple[bytes, ...], parts: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    yield b"".join(own)
    if parts is not None:
        async for part in parts:
            yield part


class ResponseStream(EventStream):
    """A stream of events of one response. `body`: its request, set before the start."""

    body = b"{}"

    async def encode_event(self, event: JobEvent) -> bytes:
        if not is_failure_event(event):
            return encode_response_event(event, self.job.id, self.job.created_at) if event.data else b""
        self.n_read = event.n - 1
        return await self.encode_end(await self.service.find(self.job.id, self.job.tenant))

    async def encode_end(self, job: Job) -> bytes:
        result = await self.service.result(job)
        if not job.state.is_final:  # its last event is stored, its result is about to be
            job = msgspec.structs.replace(job, state=JobState.FAILED)
        return encode_end_event(job, self.body, result, self.n_read + 1)


async def continue_stored(service: JobService, request: Request, tenant: str | None, current: ActiveSystem) -> Request:
    """A request whose `previous_response_id` is ours, with that conversation in its place. Raises Rejected: 400 if there is
    no such response (as OpenAI), or it has no answer.
    """
    before_id = request.previous_response_id
    if before_id is None or not is_own_id(before_id):
        return request
    try:
        before = await service.find(before_id, tenant)
        before_body = await find_body(service, before)
    except Rejected:
        raise Rejected(f"Previous response with id '{before_id[:80]}' not found. Send the whole conversation as input.",
                       code="previous_response_not_found", param="previous_response_id") from None
    result: JobResult | None = await service.result(before)
    answer = parse_response(result.body) if result is not None and before.state is JobState.COMPLETED else None
    if answer is None:
        raise Rejected(f"The previous response is {before.state.value}: only a completed one can be continued.",
                       code="previous_response_not_completed", param="previous_response_id")
    continued = decode(Api.RESPONSES, continue_response(request.body, before_body, answer), current.limits)
    return msgspec.structs.replace(continued, client_timeout_s=request.client_timeout_s, cache=request.cache)
