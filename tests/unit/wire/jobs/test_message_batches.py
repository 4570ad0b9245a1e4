"""Anthropic's message batches: creation cut anywhere, the object, the lines of results."""

import json
from typing import Any

import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.jobs import Batch, BatchState, Door, Job, JobResult, JobState
from stayfast.core.types import Api
from stayfast.wire.jobs.message_batches import (
    RequestChecker,
    RequestSplitter,
    encode_message_batch,
    encode_result_line,
)

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=8)
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}


def split(body: bytes, step: int, max_bytes: int = 10_000) -> list[bytes]:
    """The elements of a body that arrives in parts."""
    splitter = RequestSplitter(max_bytes)
    found = [element for at in range(0, len(body), step) for element in splitter.feed(body[at:at + step])]
    splitter.close()
    return found


def request(custom_id: object = "a", **params: Any) -> bytes:
    """One element, with changes of its params."""
    return json.dumps({"custom_id": custom_id, "params": {"model": "m", "max_tokens": 5, "messages": [], **params}}).encode()


def checked(*elements: bytes) -> list[dict[str, Any]]:
    """The lines of these elements."""
    checker = RequestChecker({"m"}.__contains__, 3)
    lines = [json.loads(checker.encode(element)) for element in elements]
    checker.close()
    return lines


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=4), st.integers(1, 50),
       st.sampled_from([None, 1]), st.booleans())
def test_split_cut_anywhere_gives_the_elements(
        elements: list[dict[str, Any]], step: int, indent: int | None, is_ascii: bool) -> None:
    body = json.dumps({"requests": elements}, indent=indent, ensure_ascii=is_ascii).encode()
    assert [json.loads(element) for element in split(body, step)] == elements


def test_split_escapes_at_every_cut() -> None:
    body = rb' { "requests" : [ {"a":"\\\"}]{\u005c\\"} , {"b\"]":[{}]} ] } '
    for step in range(1, len(body)):
        assert split(body, step) == [rb'{"a":"\\\"}]{\u005c\\"}', rb'{"b\"]":[{}]}']


@pytest.mark.parametrize("body", [
    b"", b"{}", b"[]", b'{"requests":{}}', b'{"requests":[]', b'{"requests":[]}x', b'{"requests":[1]}', b'{"requests":[{}',
    b'{"requests":[{} {}]}', b'{"requests":[{},]}', b'{"requests":[,{}]}', b'{"request', b'{"requests":[]} {',
    b'{"model":"m","requests":[]}', b'{"requests":[[]]}', b'{"requests":["a"]}', b" " * 5000, b'{"requests":null}'])
@pytest.mark.parametrize("step", [1, 7, 5000])
def test_split_malformed_body_is_rejected(body: bytes, step: int) -> None:
    with pytest.raises(Rejected) as caught:
        split(body, step)
    assert (caught.value.status, caught.value.param) == (400, "requests")


@pytest.mark.parametrize("element", [b'{"a":"' + b"x" * 20_000, b"{" * 20_000])
def test_split_large_element_is_413(element: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        split(b'{"requests":[{},' + element, 100)
    assert (caught.value.status, caught.value.param) == (413, "requests.1")


@given(st.binary(max_size=60), st.integers(1, 60))
def test_split_any_bytes_is_elements_or_rejected(tail: bytes, step: int) -> None:
    try:
        split(b'{"requests":[' + tail, step)
    except Rejected as error:
        assert error.status in (400, 413)  # noqa: PT017


def test_checker_writes_lines_of_a_batch_file() -> None:
    assert checked(request("a"), request("b-_9", temperature=1)) == [
        {"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": {"model": "m", "max_tokens": 5, "messages": []}},
        {"custom_id": "b-_9", "method": "POST", "url": "/v1/messages",
         "body": {"model": "m", "max_tokens": 5, "messages": [], "temperature": 1}}]


@pytest.mark.parametrize(("bad", "status", "param"), [
    (b"{", 400, None), (b"{}", 400, "requests.1.custom_id"), (request(1), 400, "requests.1.custom_id"),
    (request(""), 400, "requests.1.custom_id"), (request("a b"), 400, "requests.1.custom_id"),
    (request("x" * 65), 400, "requests.1.custom_id"), (request("a"), 400, "requests.1.custom_id"),
    (b'{"custom_id":"b","params":[]}', 400, "requests.1.params"),
    (b'{"custom_id":"b","params":{"max_tokens":1}}', 400, "requests.1.params.model"),
    (request("b", model="gone"), 404, "requests.1.params.model"),
    (request("b", stream=True), 400, "requests.1.params.stream"),
    (request("b", max_tokens=0), 400, "requests.1.params.max_tokens"),
    (b'{"custom_id":"b","params":{},"more":1}', 400, "requests.1"),
])
def test_checker_bad_request_is_named(bad: bytes, status: int, param: str | None) -> None:
    with pytest.raises(Rejected) as caught:
        checked(request("a"), bad)
    assert (caught.value.status, caught.value.param) == (status, param)


def test_checker_none_or_too_many_is_rejected() -> None:
    with pytest.raises(Rejected):
        checked()
    with pytest.raises(Rejected) as caught:
        checked(*(request(f"c{n}") for n in range(4)))
    assert caught.value.status == 413


def batch(state: BatchState, **fields: Any) -> Batch:
    """A batch of four requests."""
    return Batch(**{"id": "msgbatch_1", "door": Door.MESSAGE_BATCH, "tenant": "t", "endpoint": "/v1/messages",
                    "input_file_id": "file-1", "state": state, "created_at": 1_700_000_000.25,
                    "expires_at": 1_700_086_400.25, "n_total": 4, **fields})


@pytest.mark.parametrize("state", BatchState)
def test_encode_message_batch_counts_are_whole(state: BatchState) -> None:
    """Zero until the end; the sum is always the number of requests."""
    fields = {"cancelling_at": 1_700_000_002.0} if state in (BatchState.CANCELLING, BatchState.CANCELLED) else {}
    typed = MessageBatch.model_validate(encode_message_batch(batch(state, n_completed=2, n_failed=1, **fields)))
    counts = typed.request_counts
    assert counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired == 4
    if state.is_final:
        assert (typed.processing_status, counts.processing, counts.succeeded) == ("ended", 0, 2)
        assert counts.canceled == (1 if state is BatchState.CANCELLED else 0)
    else:
        assert counts.processing == 4
        assert typed.processing_status == ("canceling" if state is BatchState.CANCELLING else "in_progress")


def test_encode_message_batch_is_the_sdk_type() -> None:
    raw = encode_message_batch(batch(BatchState.COMPLETED, n_completed=4, completed_at=1_700_000_100.0, output_file_id="f"))
    assert raw["created_at"] == "2023-11-14T22:13:20.250000Z"
    typed = MessageBatch.model_validate(raw)
    assert typed.ended_at is not None
    assert typed.results_url == "/v1/messages/batches/msgbatch_1/results"
    assert encode_message_batch(batch(BatchState.IN_PROGRESS))["results_url"] is None


@pytest.mark.parametrize(("state", "body", "kind"), [
    (JobState.COMPLETED, MESSAGE, "succeeded"),
    (JobState.FAILED, {"type": "error", "error": {"type": "api_error", "message": "x"}, "request_id": "r"}, "errored"),
    (JobState.DEAD, None, "errored"), (JobState.CANCELLED, None, "canceled"), (JobState.EXPIRED, None, "expired")])
def test_encode_result_line_is_the_sdk_type(state: JobState, body: dict[str, Any] | None, kind: str) -> None:
    job = Job(id="j", door=Door.MESSAGE_BATCH, api=Api.MESSAGES, model="m", state=state, tenant="t", created_at=1.0,
              custom_id="c", line=1)
    stored = JobResult("j", 1, state, body=json.dumps(body, indent=2).encode()) if body is not None else None
    line = encode_result_line(job, stored)
    assert line.count(b"\n") == 1
    typed = MessageBatchIndividualResponse.model_validate_json(line)
    assert (typed.custom_id, typed.result.type) == ("c", kind)
