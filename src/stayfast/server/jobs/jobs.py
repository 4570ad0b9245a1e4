"""The endpoints of single jobs: submit, list, show, result, events, cancel, delete."""

from http import HTTPStatus

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Door, Job, JobFilter, JobResult, JobState, Submitted
from stayfast.jobs.service import JobPlace, JobService, store_error, unknown_job
from stayfast.policy.jobs.windows import FORM_TEXT, parse_window
from stayfast.server.backend import ActiveSystem
from stayfast.server.jobs.endpoint import JSON, Endpoint, EndpointReply, EndpointRequest
from stayfast.server.jobs.event_stream import EVENT_STREAM, EventStream
from stayfast.server.jobs.new_jobs import (
    JobTerms,
    decode_for_job,
    headers_to_forward,
    make_job,
    parse_job_urgency,
    read_idempotency_key,
)
from stayfast.server.jobs.query import check_parameters, parse_whole
from stayfast.server.jobs.responses import continue_stored
from stayfast.server.paths import LLM_ENDPOINTS, LLM_PATHS
from stayfast.stores.base import StoreUnavailable
from stayfast.wire.jobs.job_objects import (
    MAX_WAIT_S,
    JobSubmission,
    encode_job,
    end_message,
    parse_event_id,
    parse_submission,
    render_job_list,
)

DEFAULT_PAGE = 20
MAX_PAGE = 100
MIN_RETRY_S = 1
_STATES = {state.value: state for state in JobState}
_SINGLE_DOORS = (Door.JOBS, Door.ASYNC, Door.RESPONSES, Door.STREAM)
_WITH_ANSWER = (JobState.COMPLETED, JobState.FAILED)  # an error is an answer, too


class JobEndpoints:
    """`/v1/jobs` and what is below it, for the jobs of the client's own key."""

    def __init__(self, service: JobService, current: ActiveSystem) -> None:
        self._service = service
        self._current = current

    def endpoints(self) -> tuple[Endpoint, ...]:
        """For the server's table."""
        return (
            Endpoint("POST", "/v1/jobs", self.submit), Endpoint("GET", "/v1/jobs", self.list_jobs),
            Endpoint("GET", "/v1/jobs/{id}", self.show), Endpoint("DELETE", "/v1/jobs/{id}", self.delete),
            Endpoint("GET", "/v1/jobs/{id}/result", self.result), Endpoint("GET", "/v1/jobs/{id}/events", self.events),
            Endpoint("POST", "/v1/jobs/{id}/cancel", self.cancel))

    async def submit(self, request: EndpointRequest) -> EndpointReply:
        """202 with the job, once it is stored; 200 for a repeated idempotency key whose job has ended."""
        submitted = await self.accept(request)
        return await describe_submission(self._service, submitted.job, n_ahead=submitted.n_ahead)

    async def accept(self, request: EndpointRequest) -> Submitted:
        """Check and store a submission."""
        submission = parse_submission(await request.read_body(self._current.config.max_body_bytes))
        api = LLM_ENDPOINTS.get(submission.path)
        if api is None:
            raise Rejected(f"Jobs run requests to {', '.join(LLM_PATHS)}.", code="bad_endpoint", param="endpoint")
        try:
            decoded = decode_for_job(api, bytes(submission.body), self._current)
        except Rejected as error:
            error.param = f"body.{error.param}" if error.param else "body"
            raise
        if request.caller is not None:
            request.caller.check_route(decoded.model, "body.model")
        if decoded.is_background:
            raise Rejected("A job runs in the background anyway. Leave background out, or send the body to /v1/responses.",
                           code="background_job", param="body.background")
        if decoded.previous_response_id is not None:
            decoded = await continue_stored(self._service, decoded, request.tenant, self._current)
        now = self._service.clock.wall()
        job = make_job(decoded, Door.JOBS, read_terms(submission, request, now), self._service, tenant=request.tenant,
                       headers=headers_to_forward(request.headers), key_id=request.key_id)
        return await self._service.submit_one(job)

    async def show(self, request: EndpointRequest) -> EndpointReply:
        """The job, with its place while it waits and its answer once it has ended."""
        return await self._describe(await self._find(request))

    async def list_jobs(self, request: EndpointRequest) -> EndpointReply:
        """The client's jobs, newest first. `state`: some states; `batch`: the lines of one; `after`, `limit`. Raises
        Rejected (404) for an unknown `after`.
        """
        what = read_filter(request)
        if what.after_id is not None:
            await self._service.find(what.after_id, request.tenant)
        jobs = await self._service.list_jobs(what)
        return EndpointReply(body=render_job_list(jobs[:what.limit - 1], has_more=len(jobs) == what.limit))

    async def result(self, request: EndpointRequest) -> EndpointReply:
        """The answer with its status, byte for byte. Raises Rejected (409) if there is none yet, or none will come."""
        job = await self._find(request)
        if not job.state.is_final:
            raise Rejected("The job has not ended. Ask again later, or read its events.", status=409,
                           code="job_not_finished", param="id", retry_after_s=MIN_RETRY_S)
        result = await self._service.result(job)
        if result is None or not result.body or job.state not in _WITH_ANSWER:
            raise Rejected(end_message(job.state), status=409, code=f"job_{job.state.value}", param="id")
        return result_reply(result)

    async def events(self, request: EndpointRequest) -> EndpointReply:
        """The stream of a job, after `last-event-id` or `?after=`. Raises Rejected: 404 for a job without a stream, 410 for
        a position that is no longer stored.
        """
        job = await self._find(request)
        if not job.is_stream:
            raise Rejected("The job has no events: its body does not set stream to true. "
                           f"GET /v1/jobs/{job.id}/result has its answer.", status=404, code="job_not_streamed",
                           param="id")
        after = request.query.get("after", request.headers.get("last-event-id"))
        epoch, after_n = parse_event_id(after) if after else (None, -1)
        stream = EventStream(self._service, job, after_n, self._current.config.sse_keepalive_s, request.request_id,
                             epoch=epoch)
        return await stream.start()

    async def cancel(self, request: EndpointRequest) -> EndpointReply:
        """Cancel a job; one that has ended stays as it is."""
        return await self._describe(await self._service.cancel(request.parameters["id"], request.tenant))

    async def delete(self, request: EndpointRequest) -> EndpointReply:
        """Delete an ended job with its answer and events. Raises Rejected (409) for one that has not ended."""
        job = await self._find(request)
        if not job.state.is_final:
            raise Rejected("The job has not ended. Cancel it first.", status=409, code="job_not_finished", param="id")
        try:
            if not await self._service.store.delete(job.id):
                raise unknown_job(job.id)
        except StoreUnavailable as error:
            raise store_error(error) from None
        return EndpointReply(body=b'{"id":"%b","object":"job","deleted":true}' % job.id.encode())

    async def _find(self, request: EndpointRequest) -> Job:
        return await self._service.find(request.parameters["id"], request.tenant)

    async def _describe(self, job: Job) -> EndpointReply:
        result = await self._service.result(job) if job.state.is_final else None
        place = await self._service.place_of(job)
        headers = () if job.state.is_final else (("retry-after", str(place.poll_after_s)),)
        return EndpointReply(body=_encode(job, result, place), headers=headers)


async def describe_submission(service: JobService, job: Job, more: tuple[tuple[str, str], ...] = (), *,
                              n_ahead: int | None = None) -> EndpointReply:
    """The reply to an accepted job: 202 with its address, or 200 if a repeated submission finds it ended. more: headers.
    n_ahead: as in `Submitted`.
    """
    result = await service.result(job) if job.state.is_final else None
    place = await service.place_of(job, n_ahead)
    body, location = _encode(job, result, place), ("location", f"/v1/jobs/{job.id}")
    if job.state.is_final:
        return EndpointReply(body=body, headers=(location, *more))
    return EndpointReply(HTTPStatus.ACCEPTED, body, headers=(location, ("retry-after", str(place.poll_after_s)), *more))


def _encode(job: Job, result: JobResult | None, place: JobPlace) -> bytes:
    return encode_job(job, result=result, place=place.place, estimate_s=place.left_s)


def result_reply(result: JobResult, more: tuple[tuple[str, str], ...] = ()) -> EndpointReply:
    """An answer as its client would have got it, byte for byte. more: headers."""
    headers = (("x-stayfast-upstream", result.upstream), ("x-stayfast-job-request", result.request_id))
    media = JSON if result.body[:1] in b"{[" else EVENT_STREAM
    return EndpointReply(result.status_code, result.body, media, (*(pair for pair in headers if pair[1]), *more))


def read_terms(submission: JobSubmission, request: EndpointRequest, now_wall: float) -> JobTerms:
    """Raises Rejected for a deadline before the start, an unknown priority or a bad idempotency key."""
    run_at = find_start(submission, now_wall)
    deadline_at = now_wall + submission.deadline if submission.deadline is not None else None
    if deadline_at is not None and run_at >= deadline_at:
        raise Rejected("run_at, or the window's opening, lies after the deadline, which counts from now: the job could "
                       "never run.", code="bad_deadline", param="deadline")
    return JobTerms(parse_job_urgency(submission.priority), run_at, deadline_at, read_idempotency_key(request.headers),
                    submission.metadata or {})


def find_start(submission: JobSubmission, now_wall: float) -> float:
    """When a job may start: at `run_at`, or at the next opening of its window after that; 0: at once. Raises Rejected."""
    if (submission.run_at or 0.0) > now_wall + MAX_WAIT_S:
        raise Rejected(f"run_at lies more than {MAX_WAIT_S / 86_400:.0f} days ahead; it is in Unix seconds. Submit the job "
                       "later.", code="bad_run_at", param="run_at")
    if submission.window is None:
        return submission.run_at or 0.0
    try:
        return parse_window(submission.window).next_opening(max(now_wall, submission.run_at or 0.0))
    except ValueError:
        raise Rejected(f"window must be {FORM_TEXT}.", code="bad_window", param="window") from None


def read_filter(request: EndpointRequest) -> JobFilter:
    """The filter of a query, for one job more than the page has. Raises Rejected."""
    query = request.query
    check_parameters(query, ("state", "batch", "after", "limit"))
    words = [word for word in query.get("state", "").split(",") if word]
    for word in words:
        if word not in _STATES:
            raise Rejected(f"state must be some of {', '.join(_STATES)}, separated by commas.", param="state")
    limit = parse_whole(query, "limit", DEFAULT_PAGE, MAX_PAGE)
    batch_id = query.get("batch")
    return JobFilter(request.tenant, states=tuple(_STATES[word] for word in words), batch_id=batch_id,
                     doors=() if batch_id is not None else _SINGLE_DOORS, after_id=query.get("after"), limit=limit + 1)
