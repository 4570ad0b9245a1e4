"""The messages of a WebSocket of jobs, each one JSON object in one text message.

    client: {"type": "submit", "endpoint": ..., "body": {...}, "idempotency_key": ...} and the other fields of POST /v1/jobs
            {"type": "cancel", "id": "job_..."}
    server: {"type": "queued", "id": "job_...", "place": 3, "estimate_s": 4.2} again whenever the place changes
            {"type": "running", "id": "job_..."}
            {"type": "event", "id": "1-0", "job": "job_...", "event": null, "data": {...}} for a job with a stream
            {"type": "result", "id": "job_...", "status": "completed", "result": {...}, "error": null}
            {"type": "error", "id": "job_...", "status": 404, "error": {...}}
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected, StayfastError
from stayfast.core.jobs import Job, JobEvent, JobResult
from stayfast.core.types import Api
from stayfast.wire.errors import encode_error
from stayfast.wire.jobs.job_objects import render_job
from stayfast.wire.sse import parse_block

Json = dict[str, Any]

SUBMIT, CANCEL = "submit", "cancel"
_TEXT: Final = msgspec.json.Decoder(str)


class SubmitFrame(Struct, frozen=True, gc=False):
    """body: as of POST /v1/jobs."""

    body: bytes
    idempotency_key: str | None


class CancelFrame(Struct, frozen=True, gc=False):
    job_id: str | None  # None: the job of the WebSocket


def read_job_frame(members: RawObject, *, may_submit: bool) -> SubmitFrame | CancelFrame:
    """may_submit: False on the WebSocket of one job. Raises Rejected."""
    kind = _read_text(members, "type")
    if kind == CANCEL:
        return CancelFrame(_read_text(members, "id"))
    if kind != SUBMIT or not may_submit:
        expected = f"{SUBMIT} or {CANCEL}" if may_submit else CANCEL
        raise Rejected(f"type: expected {expected}", code="unknown_event_type", param="type")
    fields = {name: value for name, value in members.items() if name not in ("type", "idempotency_key")}
    return SubmitFrame(msgspec.json.encode(fields), _read_text(members, "idempotency_key"))


def _read_text(members: RawObject, name: str) -> str | None:
    given = members.get(name)
    if given is None or bytes(given) == b"null":
        return None
    try:
        return _TEXT.decode(given)
    except msgspec.DecodeError:
        raise Rejected(f"{name}: expected a text", code="invalid_type", param=name) from None


def encode_place(job: Job, place: int, estimate_s: float | None) -> str:
    """`queued`."""
    return _encode({"type": "queued", "id": job.id, "place": place,
                    "estimate_s": None if estimate_s is None else round(estimate_s, 1)})


def encode_running(job: Job) -> str:
    return _encode({"type": "running", "id": job.id})


def encode_event_frame(job: Job, event: JobEvent) -> str | None:
    """None: the event has no data, and only marks the end of the stream."""
    data, name = parse_block(event.data.strip())
    if data is None:
        return None
    return _encode({"type": "event", "id": f"{event.epoch}-{event.n}", "job": job.id, "event": name.decode() or None,
                    "data": _embed(data)})


def encode_result_frame(job: Job, result: JobResult | None) -> str:
    shown = render_job(job, result=result)
    return _encode({"type": "result", "id": job.id, "status": shown["status"], "result": shown["result"],
                    "error": shown["error"], "attempts": shown["attempts"]})


def encode_job_error(error: StayfastError, request_id: str, job_id: str | None = None) -> str:
    status, headers, body = encode_error(error, Api.CHAT, request_id)
    after = dict(headers).get("retry-after")
    message = {"type": "error", "id": job_id, "status": status, "error": msgspec.json.decode(body)["error"],
               "request_id": request_id}
    return _encode(message if after is None else message | {"retry_after_s": int(after)})


def _embed(data: bytes) -> object:
    """JSON as itself, anything else as text."""
    try:
        msgspec.json.decode(data, type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", "replace")
    return Raw(data)


def _encode(message: Json) -> str:
    return msgspec.json.encode(message).decode()
