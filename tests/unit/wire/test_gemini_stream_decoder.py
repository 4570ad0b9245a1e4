"""generateContent answers, decoded, and translated to each dialect."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, Reason, TextDelta, ThinkingDelta, ToolBegin, ToolDelta
from stayfast.wire.gemini.request import MADE_ID
from stayfast.wire.gemini.stream_decoder import GeminiDecoder
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import request

Json = dict[str, Any]
GOLDEN = Path(__file__).parent / "golden" / "gemini"
CLIENTS = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
COUNTS = {"promptTokenCount": 20, "candidatesTokenCount": 6, "thoughtsTokenCount": 4, "totalTokenCount": 30,
          "cachedContentTokenCount": 8}


def chunk(*parts: Json, reason: str | None = None, **fields: Any) -> Json:
    """One event."""
    candidate: Json = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], "modelVersion": "gemini-3-flash", "responseId": "r1", **fields}


def call(name: str, args: Json | None, **fields: Any) -> Json:
    """A part with a function call."""
    return {"functionCall": {"name": name, "args": args, **fields}}


STREAM = (
    chunk({"text": "Let me", "thought": True}),
    chunk({"text": " see.", "thought": True}, usageMetadata={"promptTokenCount": 20}),
    chunk({"text": "Two calls: "}),
    chunk({**call("weather", {"city": "Köln"}, id="fc1"), "thoughtSignature": "c2ln"}, call("clock", None)),
    chunk(reason="STOP", usageMetadata=COUNTS))
TEXT = (chunk({"text": "Hello"}), chunk({"text": " there"}),
        chunk({"text": "", "thoughtSignature": "c2ln"}, reason="STOP", usageMetadata=COUNTS))


def sse(*events: Json) -> bytes:
    """As Google writes them: with carriage returns, and without an end marker."""
    return b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\r\n\r\n" for event in events)


def read_events(*events: Json) -> tuple[AnswerSummary, list[Delta]]:
    """The summary after these events and the end of the body, and the deltas."""
    summary = AnswerSummary()
    decoder = GeminiDecoder("gem", summary)
    deltas: list[Delta] = []
    for event in events:
        decoder.read_event(json.dumps(event).encode(), b"")
        if summary.failure is None:
            deltas += decoder.event_deltas()
    decoder.finish()
    return summary, deltas


def test_gemini_decoder_stream_gives_thoughts_text_calls_and_usage() -> None:
    """Each kind of part; a call without an id gets one that is marked as made."""
    summary, deltas = read_events(*STREAM)
    made = next(delta for delta in deltas if isinstance(delta, ToolBegin) and delta.ordinal == 1)
    assert made.id.startswith(MADE_ID)
    assert deltas == [
        Begin("r1", "gemini-3-flash"), ThinkingDelta("Let me"), ThinkingDelta(" see."), TextDelta("Two calls: "),
        ToolBegin(0, "fc1", "weather", "c2ln"), ToolDelta(0, '{"city":"K\\u00f6ln"}'),
        ToolBegin(1, made.id, "clock"), ToolDelta(1, "{}"), Finish("tool_calls")]
    assert summary.usage == Usage(20, 10, cached_read=8, reasoning=4)
    assert (summary.is_complete, summary.finish_reason, summary.n_content) == (True, "STOP", 4)


def test_gemini_decoder_signature_of_a_text_comes_at_its_end() -> None:
    """Marked as Gemini's, because other dialects have signatures of their own."""
    _, deltas = read_events(*TEXT)
    assert deltas[1:] == [TextDelta("Hello"), TextDelta(" there"), ThinkingDelta("", "gemini:c2ln"), Finish("stop")]


@pytest.mark.parametrize("events", [TEXT[:2], (), (chunk(),)])
def test_gemini_decoder_end_without_a_finish_reason_is_truncated(events: tuple[Json, ...]) -> None:
    """The protocol has no other end marker."""
    summary, _ = read_events(*events)
    assert isinstance(summary.failure, UpstreamFailed)
    assert (summary.failure.fault, summary.is_complete) == (Fault.TRUNCATED, False)


def test_gemini_decoder_usage_after_the_finish_reason_counts() -> None:
    """The answer is complete only when its body ends."""
    summary, _ = read_events(*TEXT[:2], chunk(reason="MAX_TOKENS"), {"usageMetadata": COUNTS})
    assert summary.is_complete
    assert summary.usage == Usage(20, 10, cached_read=8, reasoning=4)


@pytest.mark.parametrize(("reason", "normal"), [
    ("STOP", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("RECITATION", "content_filter"),
    ("MODEL_ARMOR", "content_filter"), ("OTHER", "content_filter"), ("CONTINUATION", "length"), ("NEW_REASON", "stop")])
def test_gemini_decoder_finish_reason(reason: str, normal: Reason) -> None:
    """The summary has Gemini's own word."""
    summary, deltas = read_events(chunk({"text": "a"}, reason=reason))
    assert (deltas[-1], summary.finish_reason, summary.is_complete) == (Finish(normal), reason, True)


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE",
                                    "TOO_MANY_TOOL_CALLS"])
def test_gemini_decoder_broken_answer_is_a_failure_that_may_be_retried(reason: str) -> None:
    """Another attempt may not have it."""
    summary, deltas = read_events(chunk(reason=reason))
    assert isinstance(summary.failure, UpstreamFailed)
    assert (summary.failure.fault, summary.failure.is_final, deltas) == (Fault.MALFORMED, False, [])


def test_gemini_decoder_missing_signature_is_the_clients_error() -> None:
    """A retry would fail again."""
    summary, _ = read_events(chunk(reason="MISSING_THOUGHT_SIGNATURE"))
    assert isinstance(summary.failure, UpstreamFailed)
    assert (summary.failure.status, summary.failure.is_final) == (400, True)


def test_gemini_decoder_blocked_prompt_is_an_answer_stopped_by_a_filter() -> None:
    """It has no candidate; another attempt would be blocked as well."""
    summary, deltas = read_events({"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r1"})
    assert deltas[-1] == Finish("content_filter")
    assert (summary.is_complete, summary.finish_reason) == (True, "SAFETY")


@pytest.mark.parametrize("data", [b"{", b"[1]", b'{"candidates": 5}', b'{"candidates":[{"content":{"parts":"x"}}]}'])
def test_gemini_decoder_invalid_event_fails_the_answer(data: bytes) -> None:
    """The failure is in the summary; nothing is raised."""
    summary = AnswerSummary()
    decoder = GeminiDecoder("gem", summary)
    assert decoder.read_event(data, b"") == 0
    assert isinstance(summary.failure, UpstreamFailed)
    assert summary.failure.fault is Fault.MALFORMED


def test_gemini_decoder_error_event_keeps_status_and_wait() -> None:
    """In the middle of a stream."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2s"}]
    summary, _ = read_events(TEXT[0], {"error": {"code": 503, "status": "UNAVAILABLE", "message": "m", "details": details}})
    assert isinstance(summary.failure, UpstreamFailed)
    assert (summary.failure.status, summary.failure.retry_after_s) == (503, 2.0)


@pytest.mark.parametrize(("body", "fault"), [
    (chunk({"text": "a"}), Fault.TRUNCATED), ({"usageMetadata": {}}, Fault.MALFORMED),
    ({"error": {"code": 500, "status": "INTERNAL", "message": "m"}}, Fault.IN_BAND)])
def test_gemini_decoder_whole_answer_without_its_end_is_a_failure(body: Json, fault: Fault) -> None:
    """A whole answer has the rules of an event."""
    summary = AnswerSummary()
    GeminiDecoder("gem", summary).read_body(json.dumps(body).encode())
    assert isinstance(summary.failure, UpstreamFailed)
    assert summary.failure.fault is fault


def translate(client: Api, data: bytes, *, source_streams: bool, **fields: Any) -> tuple[bytes, AnswerSummary]:
    """What the client gets for this body of Gemini."""
    coder = make_transcoder(Api.GEMINI, request(client, **fields), source_streams=source_streams, upstream="gem",
                            created_at=7)
    chunks = [coder.feed(data), coder.finish()]
    return b"".join(piece.data for piece in chunks if piece is not None), coder.summary


def clean(data: bytes) -> str:
    """As in the golden files, without carriage returns."""
    return data.decode().replace("\r\n", "\n")


def merged() -> Json:
    """The whole answer that the stream carries."""
    parts = [part for event in STREAM for part in event["candidates"][0]["content"]["parts"]]
    parts[0:2] = [{"text": "Let me see.", "thought": True}]
    return chunk(*parts, reason="STOP", usageMetadata=COUNTS)


@pytest.mark.parametrize("client", CLIENTS)
def test_gemini_stream_for_each_client_equals_the_golden_file(client: Api) -> None:
    """Thoughts, text, two calls, signature, usage, and the client's own end marker."""
    out, summary = translate(client, sse(*STREAM), source_streams=True, stream=True)
    assert summary.is_complete
    assert clean(out) == (GOLDEN / f"stream-{client.value}.txt").read_text()


@pytest.mark.parametrize("client", CLIENTS)
def test_gemini_whole_answer_equals_its_collected_stream(client: Api) -> None:
    """One rule for both; the golden file holds the body."""
    whole, _ = translate(client, json.dumps(merged(), indent=2).encode(), source_streams=False)
    collected, _ = translate(client, sse(*STREAM), source_streams=True)
    golden = json.loads((GOLDEN / f"whole-{client.value}.json").read_text())
    made = MADE_ID.encode()
    assert json.loads(whole)["usage"] == golden["usage"] == json.loads(collected)["usage"]
    assert (json.loads(collected) == golden) or made in collected
    assert json.loads(whole) == golden


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, len(sse(*STREAM))), max_size=8), client=st.sampled_from(CLIENTS))
def test_gemini_stream_split_anywhere_is_the_same(cuts: list[int], client: Api) -> None:
    """Bytes for the client and summary."""
    data = sse(*STREAM)
    coder = make_transcoder(Api.GEMINI, request(client, stream=True), source_streams=True, upstream="gem", created_at=7)
    edges = [0, *sorted(cuts), len(data)]
    pieces = [coder.feed(data[start:end]) for start, end in pairwise(edges)] + [coder.finish()]
    assert b"".join(piece.data for piece in pieces if piece) == translate(client, data, source_streams=True, stream=True)[0]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "args", "name", "id",
        "finishReason", "usageMetadata", "promptTokenCount", "promptFeedback", "blockReason", "error", "index"]),
        inner, max_size=5), max_leaves=15)


@given(st.lists(VALUES, max_size=3), st.sampled_from(CLIENTS))
def test_gemini_stream_any_json_never_raises(events: list[Any], client: Api) -> None:
    """An upstream's bytes are not trusted: the answer is complete, or has a failure."""
    _, summary = translate(client, sse(*events), source_streams=True, stream=True)
    assert summary.is_complete is (summary.failure is None)
