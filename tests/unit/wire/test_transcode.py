"""Streamed answers: their summaries, verbatim forwarding, and translation between each pair of dialects."""

import json

import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.request_body import can_translate
from stayfast.wire.transcode import Transcoder, make_transcoder
from tests.unit.wire.recorded import (
    CHAT_USAGE,
    MESSAGES_START,
    ROLE,
    STREAMS,
    WHOLE_STREAMS,
    Json,
    Recorded,
    block,
    chunk,
    events,
    request,
    sse,
    stopped,
)

STREAMED = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
TALKERS = (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
PAIRS = [pytest.param(name, client, id=f"{name}-{client.value}") for name, recorded in WHOLE_STREAMS.items()
         for client in STREAMED if client is not recorded.api and can_translate(client, recorded.api)]
SDK_EVENTS: dict[Api, TypeAdapter[object]] = {
    Api.CHAT: TypeAdapter(ChatCompletionChunk), Api.COMPLETIONS: TypeAdapter(Completion),
    Api.RESPONSES: TypeAdapter(ResponseStreamEvent), Api.MESSAGES: TypeAdapter(RawMessageStreamEvent)}


def drain(coder: Transcoder, data: bytes) -> bytes:
    """Everything a client gets for `data` read at once."""
    chunks = [coder.feed(data), coder.finish()]
    return b"".join(part.data for part in chunks if part is not None)


def relay(recorded: Recorded, client: Api, *, stream: bool = True) -> tuple[bytes, AnswerSummary]:
    """`recorded` for a client of another dialect."""
    coder = make_transcoder(recorded.api, request(client, stream=stream), source_streams=True, upstream="up", created_at=77)
    return drain(coder, recorded.data), coder.summary


def failure(summary: AnswerSummary) -> UpstreamFailed:
    """The failure that was seen."""
    assert isinstance(summary.failure, UpstreamFailed)
    return summary.failure


@pytest.mark.parametrize("name", STREAMS)
def test_stream_recorded_samples_have_the_expected_summary(name: str) -> None:
    """Content events, finish reason, completeness and kind of failure are seen, in every protocol."""
    recorded = STREAMS[name]
    _, summary = relay(recorded, recorded.api)
    assert (summary.n_content, summary.finish_reason) == (recorded.n_content, recorded.finish_reason)
    assert summary.is_complete is (recorded.fault is None)
    assert (failure(summary).fault if recorded.fault else summary.failure) == recorded.fault


@pytest.mark.parametrize("name", WHOLE_STREAMS)
def test_stream_own_dialect_passes_verbatim(name: str) -> None:
    """Only a missing [DONE] is added."""
    recorded = WHOLE_STREAMS[name]
    added = {"chat_no_done": b"data: [DONE]\n\n", "chat_no_last_newline": b"\n\ndata: [DONE]\n\n"}.get(name, b"")
    got, _ = relay(recorded, recorded.api)
    expected = recorded.data + added
    assert got.rstrip(b"\r\n") == expected.rstrip(b"\r\n")
    assert got.endswith((b"\n\n", b"\r\n\r\n"))


def test_stream_truncated_never_looks_complete() -> None:
    """Events before a failure pass; the failing event, later ones and [DONE] do not."""
    for name, recorded in STREAMS.items():
        if recorded.fault is None:
            continue
        got, _ = relay(recorded, recorded.api)
        assert recorded.data.startswith(got), name
        assert b"[DONE]" not in got, name
        assert b"error" not in got.replace(b'"error": null', b""), name


def test_stream_data_before_an_error_in_one_read_is_forwarded() -> None:
    """One read that holds content and then an error gives the content."""
    recorded = STREAMS["chat_error"]
    coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=True), source_streams=True, upstream="up")
    part = coder.feed(recorded.data)
    assert part is not None
    assert part.n_content == 1
    assert [event["choices"][0]["delta"]["content"] for event in events(part.data)] == ["", "Hé"]
    assert coder.feed(sse(chunk({"content": "late"}))) is None
    assert coder.finish() is None


def test_stream_bytes_after_the_end_are_ignored() -> None:
    """Events after [DONE] are dropped."""
    coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=True), source_streams=True, upstream="up")
    whole = STREAMS["chat_text"].data
    part = coder.feed(whole + sse(chunk({"content": "late"})))
    assert part is not None
    assert part.data == whole
    assert coder.feed(b"data: {oops\n\n") is None
    assert coder.summary.failure is None


def test_stream_endless_event_is_malformed() -> None:
    """4 MiB without the end of an event fail the answer."""
    coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=True), source_streams=True, upstream="up")
    assert coder.feed(b"data: " + b"x" * (4 << 20)) is None
    assert failure(coder.summary).fault == "malformed"


def test_stream_requested_usage_is_hidden() -> None:
    """The usage chunk is read but not shown, alone in its read and among others; comments stay."""
    usage = sse(chunk(None, usage=CHAT_USAGE))
    before = sse(ROLE, chunk({"content": "a"}), chunk({}, "stop"))
    after = b": bye\n\ndata: [DONE]\n\n"
    for reads in ([before + usage + after], [before, usage, after]):
        coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=True), source_streams=True, upstream="up",
                                hide_usage=True)
        got = b"".join(part.data for read in reads if (part := coder.feed(read)) is not None)
        assert got == before + after
        assert coder.summary.usage == Usage(input_total=20, output=6, cached_read=8, reasoning=2)
        assert coder.summary.is_complete


def test_stream_is_complete_only_when_every_choice_has_finished() -> None:
    """With n=2, one finish reason does not make the answer whole."""
    one = {"index": 0, "delta": {}, "finish_reason": "stop"}
    for choices, is_complete in (([one], False), ([one, one | {"index": 1}], True)):
        coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=True, n=2), source_streams=True, upstream="up")
        coder.feed(sse(chunk(None) | {"choices": choices}, done=True))
        coder.finish()
        assert coder.summary.is_complete is is_complete


def test_stream_empty_finish_reason_is_ignored() -> None:
    """Servers that say "" until they finish have not finished."""
    for data, is_complete in ((sse(chunk({"content": "a"}, ""), done=True), False),
                              (sse(chunk({"content": "a"}, ""), chunk({}, "stop"), done=True), True)):
        _, summary = relay(Recorded(Api.CHAT, data, 1), Api.MESSAGES)
        assert summary.is_complete is is_complete


@pytest.mark.parametrize("delta", [
    {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}, {"reasoning_content": ""},
    {"audio": {"expires_at": 1}}, {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}])
def test_stream_chunks_without_content_are_no_first_token(delta: Json) -> None:
    """Role-only, empty, encrypted-only and expiry-only chunks do not count."""
    coder = make_transcoder(Api.CHAT, request(Api.CHAT, stream=True), source_streams=True, upstream="up")
    part = coder.feed(sse(chunk(delta)))
    assert part is not None
    assert part.n_content == 0


@pytest.mark.parametrize(("name", "client"), PAIRS)
def test_translated_stream_validates_with_the_official_sdk(name: str, client: Api) -> None:
    """Every event of every translated stream validates against the SDK's own model of the client's dialect."""
    got, summary = relay(WHOLE_STREAMS[name], client)
    assert summary.is_complete
    for event in events(got):
        if client is Api.COMPLETIONS:  # the SDK has no model of its own for the chunks, whose reason is null but for one
            event["choices"] = [choice | {"finish_reason": choice["finish_reason"] or "stop"}
                                for choice in event["choices"]]
        SDK_EVENTS[client].validate_python(event)
    assert got.endswith(b"data: [DONE]\n\n") is (client in (Api.CHAT, Api.COMPLETIONS))


@pytest.mark.parametrize(("name", "client"), PAIRS)
def test_translated_stream_has_the_same_text_and_calls(name: str, client: Api) -> None:
    """Read back in the client's dialect, a translation has the text, the calls, the usage and the end of the original."""
    recorded = WHOLE_STREAMS[name]
    got, summary = relay(recorded, client)
    original = meaning(recorded.api, recorded.data)
    translated = meaning(client, got)
    if client is Api.COMPLETIONS:
        original = original | {"thinking": "", "calls": [], "finish": "stop" if original["calls"] else original["finish"]}
    assert translated == original
    _, read_back = relay(Recorded(client, got, 0), client)
    if client is Api.RESPONSES:
        assert read_back.usage == summary.usage
    elif client is Api.MESSAGES:
        assert read_back.usage == (summary.usage or Usage())  # it cannot leave the counts out


def meaning(api: Api, data: bytes) -> Json:
    """Text, reasoning, calls and end of a stream, by way of the whole chat answer that it folds to."""
    coder = make_transcoder(api, request(Api.CHAT if api is not Api.COMPLETIONS else api), source_streams=True,
                            upstream="up")
    choice = json.loads(drain(coder, data))["choices"][0]
    message = choice.get("message", {"content": choice.get("text")})
    return {"text": message.get("content") or "", "finish": choice["finish_reason"],
            "thinking": (message.get("reasoning_content") or "") + (message.get("reasoning") or ""),
            "calls": [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                      for call in message.get("tool_calls", [])]}


def test_translated_stream_messages_to_chat() -> None:
    """Reasoning, text and two calls, and usage because the client asked for it."""
    coder = make_transcoder(Api.MESSAGES, request(Api.CHAT, stream=True, stream_options={"include_usage": True}),
                       source_streams=True, upstream="up", created_at=77)
    got = events(drain(coder, STREAMS["messages_tools"].data))
    deltas = [event["choices"][0]["delta"] for event in got if event["choices"]]
    assert deltas[:3] == [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm."}, {"content": "Looking."}]
    assert [call["function"].get("name") or call["function"]["arguments"]
            for delta in deltas[3:-1] for call in delta["tool_calls"]] == ["weather", '{"city": "K', 'öln"}', "clock", "{}"]
    assert got[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert got[-1]["usage"]["prompt_tokens"] == 20
    assert {event["created"] for event in got} == {77}


def test_translated_stream_usage_for_chat_only_if_requested() -> None:
    """As OpenAI does it."""
    got, summary = relay(STREAMS["messages_text"], Api.CHAT)
    assert all(event["choices"] for event in events(got))
    assert summary.usage == Usage(input_total=20, output=6, cached_read=8, cache_write_5m=2)


def test_translated_stream_chat_to_messages_has_one_open_block() -> None:
    """Blocks start, grow and stop in order, and the end carries the reason and the usage."""
    got, _ = relay(STREAMS["chat_tools"], Api.MESSAGES)
    kinds = [(event["type"], event.get("index")) for event in events(got)]
    assert kinds == [
        ("message_start", None), ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0),
        ("content_block_stop", 0), ("content_block_start", 1), ("content_block_delta", 1), ("content_block_stop", 1),
        ("message_delta", None), ("message_stop", None)]
    assert events(got)[-2]["delta"]["stop_reason"] == "tool_use"


def test_translated_stream_chat_to_responses_is_one_numbered_sequence() -> None:
    """Sequence numbers count from 0 without a gap, and the terminal event holds the output, the usage and the status."""
    got, _ = relay(STREAMS["chat_usage"], Api.RESPONSES)
    found = events(got)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[-1]["type"] == "response.incomplete"
    final = found[-1]["response"]
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["output"][0]["content"][0]["text"] == "Hé"
    assert final["usage"] == {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
                              "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 26}


def test_translated_stream_length_limit_makes_an_incomplete_item() -> None:
    """The last item of an incomplete response is incomplete, in the event of its end and in the response."""
    said = events(relay(STREAMS["chat_usage"], Api.RESPONSES)[0])
    last = said[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    ended = [body["item"]["status"] for body in said if body["type"] == "response.output_item.done"]
    assert ended == [item["status"] for item in last["response"]["output"]] == ["incomplete"]


def test_translated_stream_calls_with_index_0_are_separated_by_id() -> None:
    """Servers that number every call 0 still yield two calls."""
    calls = [chunk({"tool_calls": [{"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}}]})
             for name in ("a", "b")]
    data = sse(ROLE, *calls, chunk({}, "stop"), done=True)
    assert [call[0] for call in meaning(Api.CHAT, data)["calls"]] == ["a", "b"]
    got, _ = relay(Recorded(Api.CHAT, data, 0), Api.MESSAGES)
    assert events(got)[-2]["delta"]["stop_reason"] == "tool_use"  # though the server said "stop"


@pytest.mark.parametrize("client", TALKERS)
@pytest.mark.parametrize("name", ["chat_text", "chat_tools", "responses_text", "responses_tools", "messages_tools"])
def test_collected_stream_is_a_whole_answer(name: str, client: Api) -> None:
    """Content is counted as it arrives; the body follows at the end."""
    recorded = STREAMS[name]
    coder = make_transcoder(recorded.api, request(client), source_streams=True, upstream="up")
    part = coder.feed(recorded.data)
    assert part is not None
    assert (part.data, part.n_content) == (b"", recorded.n_content)
    last = coder.finish()
    assert last is not None
    again = make_transcoder(client, request(client), source_streams=False, upstream="up")
    assert drain(again, last.data) == last.data
    assert again.summary.is_complete
    assert again.summary.usage == coder.summary.usage or client is Api.MESSAGES


def test_collected_stream_keeps_unknown_chat_fields() -> None:
    """Log-probabilities and several choices survive the folding."""
    parts = [{"index": index, "delta": {"content": text}, "logprobs": {"content": [{"token": text}]},
              "finish_reason": None} for index, text in ((0, "a"), (1, "b"), (0, "c"))]
    ends: list[Json] = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in (0, 1)]
    data = sse(*(chunk(None) | {"choices": [part]} for part in parts + ends), done=True)
    coder = make_transcoder(Api.CHAT, request(Api.CHAT, n=2, logprobs=True), source_streams=True, upstream="up")
    choices = json.loads(drain(coder, data))["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["ac", "b"]
    assert [token["token"] for token in choices[0]["logprobs"]["content"]] == ["a", "c"]


def test_collected_stream_broken_call_is_valid_only_at_the_limit() -> None:
    """Input that is no JSON is an empty object where the limit cut the last call, and a failure everywhere else."""
    half = block(0, {"type": "tool_use", "id": "t", "name": "f", "input": {}},
                 {"type": "input_json_delta", "partial_json": '{"a": '})
    cut, summary = relay(Recorded(Api.MESSAGES, sse(MESSAGES_START, *half, *stopped("max_tokens"), named=True), 0),
                       Api.MESSAGES, stream=False)
    assert summary.failure is None
    assert json.loads(cut)["content"][0]["input"] == {}
    _, summary = relay(Recorded(Api.MESSAGES, sse(MESSAGES_START, *half, *stopped("tool_use"), named=True), 0),
                     Api.MESSAGES, stream=False)
    assert failure(summary).fault == "malformed"
    assert not summary.is_complete


def test_transcoder_unsupported_pairs_raise() -> None:
    """A whole answer for a client that streams, and pairs without a translation, are mistakes of the caller."""
    with pytest.raises(ValueError, match="cannot be streamed"):
        make_transcoder(Api.CHAT, request(Api.CHAT, stream=True), source_streams=False, upstream="up")
    with pytest.raises(ValueError, match="cannot be translated"):
        make_transcoder(Api.MESSAGES, request(Api.EMBEDDINGS), source_streams=False, upstream="up")
    assert not can_translate(Api.COMPLETIONS, Api.MESSAGES)
    assert can_translate(Api.COMPLETIONS, Api.CHAT)
