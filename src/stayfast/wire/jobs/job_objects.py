"""Jobs as JSON: what a client submits, and what it gets.

    {"id": "job_...", "object": "job", "status": "queued", "endpoint": "/v1/chat/completions", "model": "m", "stream": false,
     "created_at": 1766500000, "place": 3, "result_url": "/v1/jobs/job_.../result", ...}

Instants are Unix seconds. `place`: 1 for the job of a model that runs next. `result`: the status and body of the answer,
once it exists; `error`: why there is none.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Job, JobEvent, JobResult, JobState
from stayfast.core.types import Api
from stayfast.wire.request_body import decode_typed

Json = dict[str, Any]

MAX_WAIT_S: Final = 2_592_000.0  # 30 days: for deadlines and starts
MAX_PAIRS: Final = 16  # of metadata, as OpenAI's
PATHS: Final = {
    Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions", Api.EMBEDDINGS: "/v1/embeddings",
    Api.RERANK: "/v1/rerank", Api.RESPONSES: "/v1/responses", Api.MESSAGES: "/v1/messages",
    Api.COUNT_TOKENS: "/v1/messages/count_tokens",
    Api.INPUT_TOKENS: "/v1/responses/input_tokens", Api.TOKENIZE: "/tokenize"}
_WORDS: Final = {
    "": "The job failed.",
    "cancelled": "The job was cancelled before it had an answer.",
    "expired": "The job's deadline passed before it had an answer. Submit it again with a later deadline.",
    "dead": "The job was given up: its attempts are used up, or its workers stopped while it ran. The operator can run it "
            "again with `stayfast jobs retry`.",
}
Name = Annotated[str, Meta(max_length=64)]
Value = Annotated[str, Meta(max_length=512)]


class JobSubmission(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/jobs. `url` is another name of `endpoint`, as in batch files. `deadline`: seconds until the job
    must have ended. `run_at`: Unix seconds, not before.
    """

    body: Raw
    endpoint: str | None = None
    url: str | None = None
    deadline: Annotated[float, Meta(gt=0, le=MAX_WAIT_S)] | None = None
    run_at: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    window: Annotated[str, Meta(max_length=100)] | None = None
    priority: str | None = None
    metadata: Annotated[dict[Name, Value], Meta(max_length=MAX_PAIRS)] | None = None

    @property
    def path(self) -> str:
        """Raises Rejected unless exactly one of `endpoint` and `url` is set."""
        if (self.endpoint is None) == (self.url is None):
            raise Rejected("Set endpoint (or url, its other name) to the path that answers the body, for example "
                           "/v1/chat/completions.", code="bad_endpoint", param="endpoint")
        return self.endpoint or self.url or ""


_SUBMISSION: Final = msgspec.json.Decoder(JobSubmission)


def parse_submission(body: bytes) -> JobSubmission:
    """Raises Rejected (400) with the offending field as `param`."""
    return decode_typed(_SUBMISSION, body)


def encode_job(job: Job, *, result: JobResult | None = None, place: int | None = None,
               estimate_s: float | None = None) -> bytes:
    """The job object. `place`: of a queued job. `estimate_s`: until its end."""
    return msgspec.json.encode(render_job(job, result=result, place=place, estimate_s=estimate_s))


def render_job(job: Job, *, result: JobResult | None = None, place: int | None = None,
               estimate_s: float | None = None) -> Json:
    """The job object, to be encoded as JSON."""
    shown: Json = {
        "id": job.id, "object": "job", "status": job.state.value, "endpoint": PATHS[job.api], "model": job.model,
        "door": job.door.value, "stream": job.is_stream, "created_at": int(job.created_at),
        "started_at": _whole(job.started_at), "finished_at": _whole(job.finished_at), "expires_at": _whole(job.expires_at),
        "deadline_at": _whole(job.deadline_at), "run_at": _whole(job.run_at or None),
        "cancelling": job.is_cancelling and not job.state.is_final,
        "attempts": job.token, "failures": job.n_failures, "place": place,
        "estimate_s": None if estimate_s is None else round(estimate_s, 1),
        "batch_id": job.batch_id, "custom_id": job.custom_id, "metadata": dict(job.metadata),
        "result_url": f"/v1/jobs/{job.id}/result", "events_url": f"/v1/jobs/{job.id}/events" if job.is_stream else None,
        "error": None, "result": None,
    }
    if job.state in (JobState.COMPLETED, JobState.FAILED) and result is not None and result.body:
        shown["result"] = {"status_code": result.status_code, "request_id": result.request_id or None,
                           "body": _embed(result.body)}
    if job.state.is_final and job.state is not JobState.COMPLETED:
        shown["error"] = {"code": result.why if result is not None and result.why else job.why or job.state.value,
                          "message": end_message(job.state)}
    return shown


def render_job_list(jobs: Sequence[Job], *, has_more: bool) -> bytes:
    """One page, newest first."""
    return msgspec.json.encode({
        "object": "list", "data": [render_job(job) for job in jobs], "first_id": jobs[0].id if jobs else None,
        "last_id": jobs[-1].id if jobs else None, "has_more": has_more})


def end_message(state: JobState) -> str:
    """Why a job has no answer, in one sentence."""
    return _WORDS.get(state.value, _WORDS[""])


def encode_job_event(event: JobEvent) -> bytes:
    """A stored event with its id, `<epoch>-<n>`."""
    end = b"" if event.data.endswith(b"\n\n") else b"\n\n" if not event.data.endswith(b"\n") else b"\n"
    return b"id: %d-%d\n%b%b" % (event.epoch, event.n, event.data, end)


def parse_event_id(text: str) -> tuple[int | None, int]:
    """The epoch and the number in `<epoch>-<n>`; a bare number has no epoch. Raises Rejected."""
    epoch, dash, n = text.strip().rpartition("-")
    if not _is_count(n) or (dash and not _is_count(epoch)):
        raise Rejected("The id of the last event must be EPOCH-NUMBER, as this stream sends it in its id lines.",
                       code="bad_last_event_id", param="last-event-id")
    return int(epoch) if dash else None, int(n)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)


def _embed(body: bytes) -> object:
    """A JSON body as itself, any other as text."""
    try:
        msgspec.json.decode(body, type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")
    return Raw(body)
