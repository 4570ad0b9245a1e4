"""Jobs as JSON, and the ids of their events."""

import json

import pytest

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Door, Job, JobEvent, JobResult, JobState
from stayfast.core.types import Api
from stayfast.wire.jobs.job_objects import encode_job, encode_job_event, parse_event_id, parse_submission, render_job_list

JOB = Job("job_1", Door.JOBS, Api.CHAT, "m", JobState.COMPLETED, None, 1000.7)


def test_encode_job_embeds_json_and_quotes_other_answers() -> None:
    """A JSON answer is embedded as it is; an answer that is no JSON becomes a string."""
    for body, shown in ((b'{"a": 1.50}', {"a": 1.5}), (b"data: x\n\n", "data: x\n\n")):
        encoded = encode_job(JOB, result=JobResult("job_1", 1, JobState.COMPLETED, body=body))
        assert json.loads(encoded)["result"]["body"] == shown
    assert b"1.50" in encode_job(JOB, result=JobResult("job_1", 1, JobState.COMPLETED, body=b'{"a": 1.50}'))
    assert json.loads(encode_job(JOB))["created_at"] == 1000


def test_render_job_list_without_jobs_has_no_ids() -> None:
    """An empty page."""
    assert json.loads(render_job_list([], has_more=False)) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_encode_job_event_adds_id_and_ends_the_event() -> None:
    """Whether or not the stored event has its blank line."""
    for data in (b"data: x", b"data: x\n", b"data: x\n\n"):
        assert encode_job_event(JobEvent(3, 2, data)) == b"id: 2-3\ndata: x\n\n"


@pytest.mark.parametrize(("text", "parsed"), [("1-0", (1, 0)), ("12-345", (12, 345)), (" 7 ", (None, 7))])
def test_parse_event_id_returns_epoch_and_number(text: str, parsed: tuple[int | None, int]) -> None:
    """With or without the epoch."""
    assert parse_event_id(text) == parsed


@pytest.mark.parametrize("text", ["", "-", "1-", "-1", "a-1", "1-b", "1-2-3", "1" * 13, "\u0661-\u0661"])
def test_parse_event_id_with_other_text_is_rejected(text: str) -> None:
    """A 400 that names the form."""
    with pytest.raises(Rejected, match="EPOCH-NUMBER"):
        parse_event_id(text)


def test_parse_submission_needs_one_endpoint() -> None:
    """`endpoint` or `url`, not both, not none."""
    assert parse_submission(b'{"url":"/v1/embeddings","body":{}}').path == "/v1/embeddings"
    for body in (b'{"body":{}}', b'{"url":"/a","endpoint":"/b","body":{}}'):
        with pytest.raises(Rejected, match="endpoint"):
            _ = parse_submission(body).path
