"""wire.rerank: requests with field errors, and the forms of answers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.canonical import canonicalize
from stayfast.wire.request_body import decode, decode_typed, encode
from stayfast.wire.rerank import RERANK_DECODER, RerankDecoder, read_documents
from stayfast.wire.transcode import make_transcoder
from stayfast.wire.usage import estimate_input_tokens_high
from tests.unit.wire.recorded import request

COMMON = [{"index": 1, "relevance_score": 0.5}]


def passed(answer: Any) -> tuple[Any, AnswerSummary]:
    """The client's body of an upstream's answer, None for a failure."""
    coder = make_transcoder(Api.RERANK, request(Api.RERANK, documents=["a", "b"]), source_streams=False, upstream="up")
    coder.feed(json.dumps(answer).encode())
    chunk = coder.finish()
    return (json.loads(chunk.data) if chunk is not None else None), coder.summary


@pytest.mark.parametrize(("fields", "param"), [
    ({"query": ""}, "query"), ({"query": None}, "query"), ({"documents": []}, "documents"),
    ({"documents": "a"}, "documents"),
    ({"documents": [1]}, "documents[0]"), ({"documents": ["a", {}]}, "documents[1].text"), ({"top_n": 0}, "top_n"),
    ({"top_n": -1}, "top_n"), ({"top_n": 1.5}, "top_n"), ({"top_n": 10**30}, "top_n"), ({"query": 7}, "query"),
    ({"documents": None}, "documents"), ({"documents": [None]}, "documents[0]"),
    ({"documents": [{"text": 1}]}, "documents[0].text"), ({"documents": {"text": "a"}}, "documents"),
    ({"top_n": "2"}, "top_n"), ({"return_documents": 1}, "return_documents"), ({"documents": ["a"] * 10_001}, "documents"),
])
def test_decode_rerank_with_a_wrong_field_names_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Rejected) as caught:
        request(Api.RERANK, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("missing", ["query", "documents", "model"])
def test_decode_rerank_without_a_required_field_names_it(missing: str) -> None:
    fields = {"model": "m", "query": "q", "documents": ["a"]}
    del fields[missing]
    with pytest.raises(Rejected) as caught:
        decode(Api.RERANK, json.dumps(fields).encode())
    assert caught.value.param == missing


def test_read_documents_accepts_texts_and_objects_mixed() -> None:
    body = json.dumps({"model": "m", "query": "q", "documents": ["a", {"text": "b", "title": "t"}]}).encode()
    assert read_documents(decode_typed(RERANK_DECODER, body)) == ["a", "b"]


def test_encode_rerank_replaces_the_model_only() -> None:
    sent = json.loads(encode(request(Api.RERANK, max_tokens_per_doc=5), Api.RERANK, "other", stream=False))
    assert sent == {"model": "other", "query": "hi", "documents": ["hello"], "max_tokens_per_doc": 5}


def test_estimated_tokens_of_rerank_include_query_and_documents() -> None:
    few, many = (estimate_input_tokens_high(request(Api.RERANK, query="word " * n, documents=["one two"])) for n in (1, 100))
    more = estimate_input_tokens_high(request(Api.RERANK, documents=[{"text": "word " * 100}]))
    assert few < 10 < min(many, more)


def test_canonical_form_differs_by_query_and_documents() -> None:
    forms = {canonicalize(request(Api.RERANK, **fields)).question for fields in (
        {}, {"query": "other"}, {"documents": ["other"]})}
    assert len(forms) == 3


@pytest.mark.parametrize(("answer", "usage"), [
    ({"results": COMMON, "usage": {"total_tokens": 7}}, Usage(7)),  # Jina
    ({"results": COMMON, "usage": {"prompt_tokens": 7, "total_tokens": 7}}, Usage(7)),  # vLLM, llama.cpp
    ({"id": "x", "results": COMMON, "meta": {"billed_units": {"search_units": 1}}}, None),  # Cohere
    ({"results": COMMON, "meta": {"tokens": {"input_tokens": 7, "output_tokens": 0}}}, Usage(7)),
])
def test_rerank_answer_in_the_common_form_passes_unchanged(answer: Any, usage: Usage | None) -> None:
    got, summary = passed(answer)
    assert (got, summary.usage, summary.is_complete) == (answer, usage, True)


def test_rerank_answer_as_a_bare_list_gets_the_common_form() -> None:
    """SGLang sends documents as text, TEI in `text`."""
    got, summary = passed([{"score": 0.9, "document": "b", "index": 1, "meta_info": {}},
                           {"score": 0.1, "text": "a", "index": 0}])
    assert got["results"] == [{"index": 1, "relevance_score": 0.9, "document": {"text": "b"}},
                              {"index": 0, "relevance_score": 0.1, "document": {"text": "a"}}]
    assert summary.is_complete


def test_rerank_answer_with_data_keeps_its_usage() -> None:
    got, summary = passed({"object": "list", "data": COMMON, "usage": {"total_tokens": 3}})
    assert (got["results"], got["usage"], summary.usage) == (COMMON, {"total_tokens": 3}, Usage(3))


@pytest.mark.parametrize("answer", [[], {}, {"results": None}, {"results": [{"index": 0}]}, {"results": [{"score": 1}]},
                                    [{"index": "0", "score": 1}], {"error": {"message": "m"}}, "text"])
def test_rerank_answer_without_its_content_is_a_failure(answer: Any) -> None:
    got, summary = passed(answer)
    assert got is None
    assert summary.failure is not None


@given(st.binary(max_size=200))
def test_rerank_decoder_never_raises(body: bytes) -> None:
    summary = AnswerSummary()
    RerankDecoder("up", request(Api.RERANK), summary).read_body(body)
    assert summary.is_complete is (summary.failure is None)
