"""OpenAI's batch object, its creation, and the lines of its files."""

import json
from typing import Any

import pytest
from openai.types import Batch as SdkBatch

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Batch, BatchProblem, BatchState, Door, Job, JobResult, JobState
from stayfast.core.types import Api, Usage
from stayfast.wire.jobs.batches import encode_batch, encode_output_line, end_state, is_output, parse_new_batch, read_key

NEW = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def batch(**fields: Any) -> Batch:
    """A batch, with changes."""
    return Batch(**{"id": "batch_1", "door": Door.BATCH, "tenant": "t", "endpoint": "/v1/chat/completions",
                    "input_file_id": "file-1", "state": BatchState.VALIDATING, "created_at": 10.5, "expires_at": 20.5,
                    **fields})


def job(state: JobState = JobState.COMPLETED, **fields: Any) -> Job:
    """An ended line."""
    return Job(**{"id": "job_1_1", "door": Door.BATCH, "api": Api.CHAT, "model": "m", "state": state, "tenant": "t",
                  "created_at": 1.0, "batch_id": "batch_1", "line": 3, "custom_id": "c", **fields})


def result(state: JobState = JobState.COMPLETED, **fields: Any) -> JobResult:
    """Its result."""
    return JobResult("job_1_1", 1, state, **{"body": b'{"id": "x"}', **fields})


def test_parse_new_batch_with_all_fields() -> None:
    new = parse_new_batch(json.dumps({**NEW, "metadata": {"a": "b"}, "unknown": 1, "output_expires_after": {
        "anchor": "created_at", "seconds": 3600}}).encode())
    assert (new.input_file_id, new.endpoint, new.metadata) == ("file-1", NEW["endpoint"], {"a": "b"})
    assert new.output_keep_s == 3600
    assert parse_new_batch(json.dumps(NEW).encode()).output_keep_s is None


@pytest.mark.parametrize(("changes", "param"), [
    ({"endpoint": "/v1/videos"}, "endpoint"), ({"endpoint": "/v1/messages"}, "endpoint"), ({"endpoint": 1}, "endpoint"),
    ({"completion_window": "1h"}, "completion_window"), ({"input_file_id": None}, "input_file_id"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"), ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata[...]"), ({"metadata": {"k": 1}}, "metadata[...]")])
def test_parse_new_batch_bad_field_is_rejected(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse_new_batch(json.dumps(NEW | changes).encode())
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(param.partition("[")[0])


def test_parse_new_batch_endpoint_error_names_the_endpoints() -> None:
    with pytest.raises(Rejected, match="/v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses"):
        parse_new_batch(json.dumps({**NEW, "endpoint": "/v1/images/edits"}).encode())


def test_output_keep_s_outside_is_rejected() -> None:
    new = parse_new_batch(json.dumps({**NEW, "output_expires_after": {"anchor": "created_at", "seconds": 60}}).encode())
    with pytest.raises(Rejected, match="3600 to 2592000"):
        _ = new.output_keep_s


def test_encode_batch_is_the_sdk_type() -> None:
    whole = batch(state=BatchState.COMPLETED, n_total=3, n_completed=2, n_failed=1, usage=Usage(10, 5, 2, reasoning=1),
                  metadata={"a": "b"}, model="m", output_file_id="file-o", error_file_id="file-e", in_progress_at=11.0,
                  finalizing_at=12.0, completed_at=13.9)
    typed = SdkBatch.model_validate(encode_batch(whole), strict=True)
    assert (typed.status, typed.completed_at, typed.in_progress_at, typed.expires_at) == ("completed", 13, 11, 20)
    assert typed.request_counts is not None
    assert (typed.request_counts.total, typed.request_counts.completed, typed.request_counts.failed) == (3, 2, 1)
    assert typed.usage is not None
    assert (typed.usage.total_tokens, typed.usage.input_tokens_details.cached_tokens) == (15, 2)
    assert (typed.metadata, typed.model, typed.errors) == ({"a": "b"}, "m", None)


@pytest.mark.parametrize("state", BatchState)
def test_encode_batch_of_every_state_is_the_sdk_type(state: BatchState) -> None:
    failed = batch(state=state, problems=(BatchProblem("empty_file", "Empty.", None), BatchProblem("a", "b", 7, "url")))
    typed = SdkBatch.model_validate(encode_batch(failed), strict=True)
    assert typed.status == state.value
    assert typed.errors is not None
    assert [(one.code, one.line, one.param) for one in typed.errors.data or []] == [
        ("empty_file", None, None), ("a", 7, "url")]


def test_output_line_of_an_answer() -> None:
    line = encode_output_line(job(), result(body=b'{\n "id": "x",\n "n": 1.50}'), "abc")
    assert line.endswith(b'}\n')
    assert line.count(b"\n") == 1
    assert b'"n":1.50' in line
    fields = json.loads(line)
    assert fields["custom_id"] == "c"
    assert fields["error"] is None
    assert fields["response"] | {"request_id": ""} == {"status_code": 200, "request_id": "", "body": {"id": "x", "n": 1.5}}
    assert fields["id"].startswith("batch_req_")
    assert is_output(job())


def test_output_line_of_an_error_has_its_status() -> None:
    fields = json.loads(encode_output_line(job(JobState.FAILED), result(JobState.FAILED, status_code=400), "abc"))
    assert (fields["response"]["status_code"], fields["error"]) == (400, None)
    assert not is_output(job(JobState.FAILED))


@pytest.mark.parametrize(("state", "code"), [(JobState.CANCELLED, "batch_cancelled"), (JobState.EXPIRED, "batch_expired"),
                                             (JobState.DEAD, "worker_lost")])
def test_output_line_of_a_request_that_did_not_run(state: JobState, code: str) -> None:
    for stored in (None, result(state, body=b"")):
        fields = json.loads(encode_output_line(job(state, why="worker_lost"), stored, "abc"))
        assert (fields["response"], fields["error"]["code"]) == (None, code)


@pytest.mark.parametrize("body", [b"not json\n", b"[" * 3000, b"\xff"])
def test_output_line_of_what_is_no_json_stays_one_line(body: bytes) -> None:
    line = encode_output_line(job(), result(body=body), "abc")
    assert line.count(b"\n") == 1
    assert isinstance(json.loads(line)["response"]["body"], str)


def test_output_line_does_not_depend_on_the_batch() -> None:
    one = encode_output_line(job(), result(request_id="req_1"), "abc")
    assert one == encode_output_line(job(id="job_2_1", batch_id="batch_2"), result(request_id="req_2"), "abc")
    assert one != encode_output_line(job(line=4), result(), "abc")


@pytest.mark.parametrize(("fields", "state"), [
    ({"state": BatchState.FINALIZING, "n_completed": 1}, BatchState.COMPLETED),
    ({"state": BatchState.FINALIZING, "n_completed": 1, "n_failed": 1}, BatchState.COMPLETED),
    ({"state": BatchState.FINALIZING, "n_expired": 1}, BatchState.EXPIRED),
    ({"state": BatchState.CANCELLING, "n_cancelled": 1}, BatchState.CANCELLED),
    ({"state": BatchState.CANCELLING, "n_expired": 1}, BatchState.CANCELLED)])
def test_end_state(fields: dict[str, Any], state: BatchState) -> None:
    assert end_state(batch(**fields)) is state


def test_read_key_too_long_is_rejected() -> None:
    assert read_key({}) is None
    assert read_key({"idempotency-key": "k"}) == "k"
    with pytest.raises(Rejected):
        read_key({"idempotency-key": "k" * 256})
