"""Embeddings by batchEmbedContents."""

import json
from base64 import b64decode
from struct import unpack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.request_body import encode
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import request


def answer(body: bytes, **fields: Any) -> tuple[dict[str, Any], AnswerSummary]:
    """What the client gets."""
    coder = make_transcoder(Api.GEMINI, request(Api.EMBEDDINGS, **fields), source_streams=False, upstream="gem")
    coder.feed(body)
    chunk = coder.finish()
    return json.loads(chunk.data) if chunk is not None else {}, coder.summary


def test_encode_embeddings_each_text_is_a_request() -> None:
    """With the model's full name in each."""
    body = json.loads(encode(request(Api.EMBEDDINGS, input=["a", "b"], dimensions=3), Api.GEMINI, "models/e", stream=False))
    assert body == {"requests": [
        {"model": "models/e", "content": {"parts": [{"text": text}]}, "outputDimensionality": 3} for text in ("a", "b")]}


def test_encode_embeddings_tokens_are_rejected() -> None:
    """Gemini takes text."""
    with pytest.raises(Rejected, match="use text"):
        encode(request(Api.EMBEDDINGS, input=[1, 2]), Api.GEMINI, "e", stream=False)


def test_embeddings_answer_keeps_its_numbers() -> None:
    """As Gemini writes them; with its usage."""
    got, summary = answer(b'{"embeddings":[{"values":[0.10, 2]},{"values":[]}],"usageMetadata":{"promptTokenCount":4}}')
    assert [item["embedding"] for item in got["data"]] == [[0.1, 2], []]
    assert [item["index"] for item in got["data"]] == [0, 1]
    assert got["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert (summary.usage, summary.is_complete) == (Usage(4), True)


def test_embeddings_answer_without_usage_is_estimated() -> None:
    """Marked as such; the summary has none, so that nothing is charged by an estimate."""
    got, summary = answer(b'{"embeddings":[{"values":[1]}]}', input="four tokens of text")
    assert got["usage"]["prompt_tokens"] > 0
    assert got["usage"]["stayfast_estimated"] is True
    assert summary.usage is None


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=5))
def test_embeddings_answer_as_base64_has_the_same_numbers(numbers: list[float]) -> None:
    """OpenAI's SDK requests it; 32-bit numbers are exact in it."""
    body = json.dumps({"embeddings": [{"values": numbers}]}).encode()
    got, _ = answer(body, encoding_format="base64")
    assert list(unpack(f"<{len(numbers)}f", b64decode(got["data"][0]["embedding"]))) == numbers


@pytest.mark.parametrize(("body", "fault"), [
    (b"{", Fault.MALFORMED), (b"{}", Fault.MALFORMED), (b'{"embeddings":5}', Fault.MALFORMED),
    (b'{"error":{"code":503,"status":"UNAVAILABLE","message":"m"}}', Fault.IN_BAND)])
def test_embeddings_answer_other_bodies_are_failures(body: bytes, fault: Fault) -> None:
    """Nothing is raised."""
    _, summary = answer(body, encoding_format="base64")
    assert isinstance(summary.failure, UpstreamFailed)
    assert summary.failure.fault is fault
