"""Background responses as OpenAI's SDK reads them, in every state, and their events."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from stayfast.core.jobs import Door, Job, JobEvent, JobResult, JobState
from stayfast.core.types import Api
from stayfast.wire.jobs.response_objects import (
    continue_response,
    encode_end_event,
    encode_own_events,
    encode_response_event,
    is_own_id,
    render_response,
    to_job_body,
)

BODY = b'{"model":"m","input":"hi","background":true,"tools":null,"metadata":{"a":"b"},"temperature":0.5}'
ANSWER: dict[str, Any] = {
    "id": "resp_upstream", "object": "response", "created_at": 5, "status": "completed", "model": "m-1",
    "output": [{
        "id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}]}],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def job_in(state: JobState) -> Job:
    """A background response in a state."""
    return Job("resp_sf1", Door.RESPONSES, Api.RESPONSES, "m", state, None, 100.0, is_stream=True, finished_at=200.5)


def shown(job: Job, result: JobResult | None = None) -> dict[str, Any]:
    """The object as its client parses it; the SDK's type accepts it."""
    parsed: dict[str, Any] = json.loads(msgspec.json.encode(render_response(job, BODY, result)))
    Response.model_validate(parsed, strict=False)
    return parsed


@pytest.mark.parametrize(("state", "status"), [
    (JobState.QUEUED, "queued"), (JobState.RUNNING, "in_progress"), (JobState.CANCELLED, "cancelled"),
    (JobState.EXPIRED, "failed"), (JobState.DEAD, "failed"), (JobState.FAILED, "failed")])
def test_render_response_without_answer_echoes_the_request(state: JobState, status: str) -> None:
    """In the SDK's type; a failure has an error, the others none."""
    parsed = shown(job_in(state))
    assert (parsed["id"], parsed["status"], parsed["background"]) == ("resp_sf1", status, True)
    assert (parsed["metadata"], parsed["tools"], parsed["temperature"]) == ({"a": "b"}, [], 0.5)
    assert (parsed["error"] is not None) == (status == "failed")


def test_render_response_with_answer_has_our_id_and_the_upstreams_output() -> None:
    """The upstream's status is preserved: a response may be incomplete."""
    for status in ("completed", "incomplete"):
        body = json.dumps(ANSWER | {"status": status}).encode()
        parsed = shown(job_in(JobState.COMPLETED), JobResult("resp_sf1", 1, JobState.COMPLETED, body=body))
        assert (parsed["id"], parsed["status"], parsed["output"]) == ("resp_sf1", status, ANSWER["output"])
        assert (parsed["created_at"], parsed["completed_at"]) == (100, 200)


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (400, "invalid_prompt"), (502, "server_error")])
def test_render_response_of_failure_has_a_code_of_the_sdk(status: int, code: str) -> None:
    """And the upstream's message."""
    result = JobResult("resp_sf1", 1, JobState.FAILED, status, b'{"error":{"message":"why","type":"x"}}')
    assert shown(job_in(JobState.FAILED), result)["error"] == {"code": code, "message": "why"}


def test_events_are_numbered_after_our_own() -> None:
    """Created and queued are 0 and 1; the stored event n is n + 2, with our id; each is an event of the SDK."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    stored = [b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":%b}\n\n'
              % json.dumps(ANSWER).encode(),
              b'event: response.completed\ndata: {"type":"response.completed","sequence_number":1,"response":%b}\n\n'
              % json.dumps(ANSWER).encode()]
    job = job_in(JobState.RUNNING)
    blocks = [*encode_own_events(job, BODY),
              *(encode_response_event(JobEvent(n, 1, data), job.id, job.created_at) for n, data in enumerate(stored)),
              encode_end_event(job_in(JobState.CANCELLED), BODY, None, 2)]
    parsed = [json.loads(block.split(b"data: ")[1]) for block in blocks]
    assert [event["sequence_number"] for event in parsed] == [0, 1, 2, 3, 4]
    assert [event["type"] for event in parsed] == [
        "response.created", "response.queued", "response.in_progress", "response.completed", "response.failed"]
    assert {event["response"]["id"] for event in parsed} == {"resp_sf1"}
    for event in parsed:
        adapter.validate_python(event)


def test_created_event_of_a_later_attempt_stays_created() -> None:
    """It means that the answer starts again."""
    data = b'event: response.created\ndata: {"type":"response.created","sequence_number":7,"response":{"id":"x"}}\n\n'
    assert b'"type":"response.created"' in encode_response_event(JobEvent(7, 2, data), "resp_sf1", 1.0)


def test_continue_response_joins_input_output_and_new_input() -> None:
    """Ids and unreadable reasoning are left out; instructions of the earlier request do not apply."""
    before = {"output": [{"id": "rs_1", "type": "reasoning", "summary": []},
                         {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": "x"}, *ANSWER["output"]]}
    body = b'{"model":"m","input":[{"role":"user","content":"more"}],"previous_response_id":"resp_sf1","store":false}'
    earlier = b'{"model":"m","input":"hi","instructions":"be brief","previous_response_id":"resp_theirs"}'
    continued = json.loads(continue_response(body, earlier, before))
    assert [item.get("type", "message") for item in continued["input"]] == ["message", "reasoning", "message", "message"]
    assert all("id" not in item for item in continued["input"])
    assert continued["input"][0]["content"] == "hi"
    assert continued["input"][-1]["content"] == "more"
    assert continued["previous_response_id"] == "resp_theirs"
    assert "instructions" not in continued


def test_job_body_has_no_background_and_own_ids_are_recognised() -> None:
    """The upstream gets an ordinary request."""
    assert "background" not in json.loads(to_job_body(BODY))
    assert is_own_id("resp_sf0123")
    assert not is_own_id("resp_0123")
