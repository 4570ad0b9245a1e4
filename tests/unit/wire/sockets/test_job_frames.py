"""The messages of a WebSocket of jobs."""

import json

import pytest

from stayfast.core.errors import Rejected, Shed
from stayfast.core.jobs import Door, Job, JobEvent, JobResult, JobState
from stayfast.core.types import Api
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

JOB = Job("job_1", Door.JOBS, Api.CHAT, "m", JobState.COMPLETED, None, 0.0, is_stream=True, token=1)


def read(message: str, *, may_submit: bool = True) -> SubmitFrame | CancelFrame:
    """A client's message."""
    return read_job_frame(parse_members(message, 64), may_submit=may_submit)


def test_read_job_frame_of_a_submission_has_the_body_of_a_post() -> None:
    """Without what is of the message alone."""
    frame = read('{"type": "submit", "endpoint": "/x", "body": {"a": 1}, "idempotency_key": "k"}')
    assert isinstance(frame, SubmitFrame)
    assert (json.loads(frame.body), frame.idempotency_key) == ({"endpoint": "/x", "body": {"a": 1}}, "k")
    assert read('{"type": "cancel", "id": "job_1"}') == CancelFrame("job_1")


@pytest.mark.parametrize(("message", "may_submit", "param"), [
    ("{}", True, "type"), ('{"type": "submit", "body": {}}', False, "type"), ('{"type": "cancel", "id": 3}', True, "id"),
    ('{"type": "submit", "idempotency_key": []}', True, "idempotency_key")])
def test_read_job_frame_rejects_with_the_field(message: str, *, may_submit: bool, param: str) -> None:
    """And what was expected."""
    with pytest.raises(Rejected, match="expected") as refused:
        read(message, may_submit=may_submit)
    assert refused.value.param == param


def test_frames_of_a_job_are_json_objects_with_a_type() -> None:
    """From its place to its result."""
    assert json.loads(encode_place(JOB, 3, 1.26)) == {"type": "queued", "id": "job_1", "place": 3, "estimate_s": 1.3}
    assert json.loads(encode_running(JOB)) == {"type": "running", "id": "job_1"}
    event = encode_event_frame(JOB, JobEvent(4, 2, b'event: x\ndata: {"a": 1}\n\n'))
    assert json.loads(event or "") == {"type": "event", "id": "2-4", "job": "job_1", "event": "x", "data": {"a": 1}}
    assert json.loads(encode_event_frame(JOB, JobEvent(5, 2, b"data: [DONE]\n\n")) or "")["data"] == "[DONE]"
    assert encode_event_frame(JOB, JobEvent(6, 2, b"", is_last=True)) is None
    result = json.loads(encode_result_frame(JOB, JobResult("job_1", 1, JobState.COMPLETED, body=b'{"b": 2}')))
    assert (result["type"], result["status"], result["result"]["body"]) == ("result", "completed", {"b": 2})


def test_encode_job_error_names_job_and_wait() -> None:
    """In OpenAI's form."""
    error = json.loads(encode_job_error(Shed("Full.", status=429, code="full", retry_after_s=2), "req_1", "job_1"))
    assert (error["id"], error["status"], error["error"]["code"], error["retry_after_s"]) == ("job_1", 429, "full", 2)
