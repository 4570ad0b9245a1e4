"""Background responses as OpenAI's SDK expects them: the object in every state, and its events with their numbers.

The gateway's id replaces the upstream's, so that one id names the response in all its forms. The events of the stream are
those of the upstream, after two of our own, `response.created` and `response.queued`:

    sequence_number = 2 + the number of the stored event

The first `response.created` of the upstream becomes `response.in_progress`. A later one means that the worker died and the
answer starts again; the client drops what it has.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.conversation import RawObject
from stayfast.core.jobs import Job, JobEvent, JobResult, JobState
from stayfast.wire import sse
from stayfast.wire.errors import parse_error_body
from stayfast.wire.request_body import decode_typed
from stayfast.wire.responses.items import read_input_items, reusable_items

Json = dict[str, Any]

RESPONSE_ID: Final = "resp_sf"  # how our ids begin
N_OWN_EVENTS: Final = 2
_OBJECT: Final = msgspec.json.Decoder(RawObject)
_STATES: Final = {
    JobState.QUEUED: "queued", JobState.RUNNING: "in_progress", JobState.COMPLETED: "completed",
    JobState.CANCELLED: "cancelled", JobState.FAILED: "failed", JobState.EXPIRED: "failed", JobState.DEAD: "failed"}
_ECHOED: Final = ("instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p",
                  "max_output_tokens", "max_tool_calls", "previous_response_id", "reasoning", "text", "truncation", "user",
                  "service_tier", "safety_identifier", "prompt_cache_key", "top_logprobs", "store")
_DEFAULTS: Final[Json] = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}}
_TOO_MANY, _FIRST_SERVER_ERROR = 429, 500


def is_own_id(response_id: str) -> bool:
    """Whether the gateway made this id."""
    return response_id.startswith(RESPONSE_ID)


def to_job_body(body: bytes) -> bytes:
    """The request without `background`, as the job's upstream gets it."""
    fields = decode_typed(_OBJECT, body)
    fields.pop("background", None)
    return msgspec.json.encode(fields)


def render_response(job: Job, body: bytes, result: JobResult | None) -> Json:
    """The response object. body: of the request; result: None until the job has ended."""
    answer = parse_response(result.body) if result is not None and job.state is JobState.COMPLETED else None
    if answer is not None:
        return answer | {"id": job.id, "object": "response", "created_at": int(job.created_at), "background": True,
                         "completed_at": _whole(job.finished_at), "status": answer.get("status", "completed")}
    fields = _OBJECT.decode(body)
    given = {name: value for name, value in fields.items() if bytes(value) != b"null"}
    echoed = {name: given.get(name, _DEFAULTS.get(name)) for name in _ECHOED}
    return {"id": job.id, "object": "response", "created_at": int(job.created_at), "background": True,
            "status": _STATES[job.state], "error": _render_failure(job, result), "incomplete_details": None,
            "model": job.model, "output": [], "usage": None} | echoed


def parse_response(body: bytes) -> Json | None:
    """An answer as an object; None if it is none."""
    try:
        return msgspec.json.decode(body, type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _render_failure(job: Job, result: JobResult | None) -> Json | None:
    if not job.state.is_final or job.state in (JobState.CANCELLED, JobState.COMPLETED):
        return None
    details = parse_error_body(result.body if result is not None else b"")
    status = result.status_code if result is not None else _FIRST_SERVER_ERROR
    code = "rate_limit_exceeded" if status == _TOO_MANY else (
        "server_error" if status >= _FIRST_SERVER_ERROR or job.state is JobState.EXPIRED else "invalid_prompt")
    reasons = {JobState.EXPIRED: "The deadline passed before the response was complete.",
               JobState.DEAD: "The response was given up after several attempts."}
    return {"code": code, "message": details.message or reasons.get(job.state, "The response failed.")}


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)


def encode_own_events(job: Job, body: bytes) -> tuple[bytes, bytes]:
    """The events before those of the upstream: created and queued."""
    queued = render_response(msgspec.structs.replace(job, state=JobState.QUEUED), body, None)
    return _encode(0, {"type": "response.created", "response": queued}), _encode(
        1, {"type": "response.queued", "response": queued})


def encode_response_event(event: JobEvent, job_id: str, created_at: float) -> bytes:
    """A stored event with our id and number; empty for a stored event without data, which only marks the end."""
    data = data_of(event.data)
    try:
        fields: Json = dict(_OBJECT.decode(data))
        kind: str = msgspec.json.decode(fields["type"], type=str)
    except (msgspec.DecodeError, KeyError):
        return event.data
    if isinstance(fields.get("response"), Raw):
        response: Mapping[str, object] = _OBJECT.decode(fields["response"])
        fields["response"] = {**response, "id": job_id, "background": True, "created_at": int(created_at)}
    if kind == "response.created" and event.n == 0:
        kind = "response.in_progress"
    return _encode(event.n + N_OWN_EVENTS, {"type": kind} | {
        name: value for name, value in fields.items() if name not in ("type", "sequence_number")})


def encode_end_event(job: Job, body: bytes, result: JobResult | None, n: int) -> bytes:
    """The last event of a response without one from the upstream: failed, cancelled, expired. n: of the stored event that it
    replaces or follows.
    """
    response = render_response(job, body, result)
    kind = "response.completed" if job.state is JobState.COMPLETED else "response.failed"
    return _encode(n + N_OWN_EVENTS, {"type": kind, "response": response})


def is_failure_event(event: JobEvent) -> bool:
    """Whether the stored event is an error in place of a terminal event."""
    return event.is_last and event.data.startswith(b"event: error")


def data_of(block: bytes) -> bytes:
    """The data of one stored event."""
    return b"\n".join(line[5:].strip() for line in block.splitlines() if line.startswith(b"data:"))


def _encode(n: int, fields: Json) -> bytes:
    kind = fields.pop("type")
    return sse.encode_event(msgspec.json.encode({"type": kind, "sequence_number": n} | fields), kind)


def continue_response(body: bytes, before_body: bytes, before: Json) -> bytes:
    """The request `body` with the conversation of the response that it continues in place of its id.

    before_body, before: the request and the answer of that response. Its instructions do not apply to this request.
    """
    fields, earlier = decode_typed(_OBJECT, body), _OBJECT.decode(before_body)
    items = [*read_input_items(earlier.get("input")), *reusable_items(before.get("output") or ())]
    changed: Json = {**fields, "input": [*items, *read_input_items(fields.get("input"))]}
    changed.pop("previous_response_id", None)
    if "previous_response_id" in earlier:  # of the upstream's own
        changed["previous_response_id"] = earlier["previous_response_id"]
    return msgspec.json.encode(changed)
