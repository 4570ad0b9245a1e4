"""One answer of two upstreams: in every pair of dialects the client reads one text, once, with one id and one end."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import Api, Request, Usage
from stayfast.wire.continuation import (
    Continuation,
    NotContinuable,
    add_usage,
    encode_client_events,
    encode_continuation_body,
)
from stayfast.wire.dialect import Begin, Delta, Finish, TextDelta
from stayfast.wire.request_body import can_translate, encode
from stayfast.wire.transcode import make_encoder, make_transcoder
from tests.flow.dialects import LENGTH, STOP, parse_answer
from tests.unit.wire.recorded import STREAMS, pieces_of, request

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80) | st.text("ab \n", max_size=80)
CUTS = st.lists(st.integers(0, 500), max_size=8)
SPEAKERS = (Api.CHAT, Api.MESSAGES, Api.RESPONSES, Api.COMPLETIONS)
PAIRS = [(client, first, second) for client in SPEAKERS for first in SPEAKERS for second in (Api.CHAT, Api.MESSAGES)
         if can_translate(client, first) and can_translate(client, second) and Api.COMPLETIONS not in (client, first)
         ] + [(Api.COMPLETIONS, Api.COMPLETIONS, Api.COMPLETIONS), (Api.COMPLETIONS, Api.CHAT, Api.COMPLETIONS)]
LIMIT = {Api.CHAT: "max_completion_tokens", Api.MESSAGES: "max_tokens", Api.RESPONSES: "max_output_tokens",
         Api.COMPLETIONS: "max_tokens"}
FIRST, SECOND = Usage(20, 9), Usage(30, 6)


def asked(client: Api, **fields: Any) -> Request:
    """A request that may go on for long."""
    return request(client, stream=True, **{LIMIT[client]: 100_000, **fields})


def spoken(api: Api, texts: Sequence[str], usage: Usage | None, answer_id: str) -> bytes:
    """The stream of an upstream of dialect `api`; without `usage` it has no end."""
    writer = make_encoder(request(api, stream=True, **({"stream_options": {"include_usage": True}} if api in (
        Api.CHAT, Api.COMPLETIONS) else {})), 1766000000)
    deltas: list[Delta] = [Begin(answer_id, "its-model", 1766000000, Usage(usage.input_total) if usage else None),
                           *(TextDelta(text) for text in texts if text)]
    events = [event for delta in deltas for event in writer.encode_delta(delta)]
    if usage is None:
        return encode_client_events(api, events)
    return encode_client_events(api, events) + encode_client_events(api, [*writer.encode_delta(Finish("stop")),
                                                                          *writer.encode_end(usage)], is_end=True)


@dataclass
class Client:
    """What one client has received."""

    body: bytes = b""

    def reads(self, source: Api, asked_for: Request, data: bytes, cuts: Sequence[int], rest: Continuation | None) -> None:
        """A body of an upstream that speaks `source` comes, in pieces."""
        translated = make_transcoder(source, asked_for, source_streams=True, upstream="up",
                                hide_usage=not asked_for.include_usage)
        chunks = [translated.feed(piece) for piece in split(data, cuts)]
        chunks += [translated.finish()] if rest is not None else []
        for chunk in chunks:
            if chunk is not None:
                self.body += chunk.data if rest is None else encode_client_events(asked_for.api, rest.feed(chunk.data))
        if rest is not None:
            assert translated.summary.is_complete
            self.body += encode_client_events(asked_for.api, rest.encode_end(add_usage(FIRST, translated.summary.usage)),
                                              is_end=True)


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Bytes in pieces, cut anywhere."""
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def read(client: Api, body: bytes) -> tuple[str, str | None, bool]:
    """Text, reason and whether it has its end, as a client reads them."""
    if client is not Api.COMPLETIONS:
        got = parse_answer(client, body, stream=True)
        return got.text, got.reason, got.is_whole
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len({event["id"] for event in events}) == 1
    return "".join(choice["text"] for choice in choices), *reasons, body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("client", "first", "second"), PAIRS)
@settings(max_examples=40)
@given(text=TEXTS, at=st.integers(0, 80), cuts=CUTS, pieces=CUTS)
def test_continuation_gives_one_answer(*, client: Api, first: Api, second: Api, text: str, at: int, cuts: list[int],
                                   pieces: list[int]) -> None:
    """Split anywhere, in pieces of any size: the exact text, one id, one end, the usage of both halves."""
    said = text[: at % (len(text) + 1)]
    ask, got = asked(client), Client()
    got.reads(first, ask, spoken(first, pieces_of(said, pieces), None, "id-1"), cuts, None)
    rest = Continuation(ask, got.body, 0)
    assert rest.seam.prefix == said.rstrip()
    more = text[len(rest.seam.prefix):]
    got.reads(second, rest.request, spoken(second, pieces_of(more, pieces), SECOND, "id-2"), cuts, rest)
    assert read(client, got.body) == (text, STOP.get(client, "stop"), True)
    assert b"id-2" not in got.body
    if client in (Api.MESSAGES, Api.RESPONSES):
        assert parse_answer(client, got.body, stream=True).n_output == FIRST.output + SECOND.output


@pytest.mark.parametrize(("client", "first", "second"), PAIRS)
def test_continuation_request_has_the_prefix_and_a_smaller_limit(client: Api, first: Api, second: Api) -> None:
    """The text so far, without trailing blanks, is the end of the request; the limit is reduced by its tokens."""
    ask, got = asked(client, **{LIMIT[client]: 50}), Client()
    got.reads(first, ask, spoken(first, ["One ", "slow ", "answer "], None, "id-1"), [], None)
    rest = Continuation(ask, got.body, 0)
    assert rest.n_sent_tokens == 4  # characters of 16; 3 pieces
    sent = json.loads(encode_continuation_body(encode(rest.request, second, "m", stream=True), client, second))
    assert sent[LIMIT[second]] == 46
    if second is Api.COMPLETIONS:
        assert sent["prompt"] == "hiOne slow answer"
        return
    last = sent["messages"][-1]
    content = last["content"] if isinstance(last["content"], str) else "".join(part["text"] for part in last["content"])
    assert (last["role"], content) == ("assistant", "One slow answer")
    assert [message["role"] for message in sent["messages"]].count("assistant") == 1
    is_marked = (sent.get("continue_final_message"), sent.get("add_generation_prompt")) == (True, False)
    assert is_marked is (second is Api.CHAT)


@pytest.mark.parametrize(("client", "first", "second"), PAIRS)
def test_continuation_can_be_ended_early(client: Api, first: Api, second: Api) -> None:
    """An answer of two halves that is ended by us has its protocol's end and the reason of a met length limit."""
    ask, got = asked(client), Client()
    got.reads(first, ask, spoken(first, ["One "], None, "id-1"), [], None)
    rest = Continuation(ask, got.body, 0)
    translated = make_transcoder(second, rest.request, source_streams=True, upstream="up")
    chunk = translated.feed(spoken(second, [" slow", " answer"], None, "id-2"))
    assert chunk is not None
    got.body += encode_client_events(client, rest.feed(chunk.data)) + encode_client_events(client,
                                                                                           rest.encode_early_end(FIRST),
                                                                                           is_end=True)
    assert read(client, got.body) == ("One slow answer", LENGTH.get(client, "length"), True)


@pytest.mark.parametrize(("name", "why"), [
    ("chat_tools", "tools"), ("chat_reasoning", "blocks"), ("chat_text", "over"), ("responses_text", "blocks"),
    ("responses_truncated", "blocks"), ("responses_tools", "blocks"), ("messages_tools", "blocks"),
    ("messages_truncated", "blocks"), ("messages_error", "over")])
def test_continuation_of_anything_but_text_is_rejected(name: str, why: str) -> None:
    """Calls, reasoning, closed blocks, foreign ids, and answers that have ended."""
    recorded = STREAMS[name]
    with pytest.raises(NotContinuable) as cannot:
        Continuation(asked(recorded.api), recorded.data, 0)
    assert str(cannot.value) == why


@pytest.mark.parametrize(("client", "fields", "why"), [
    (Api.CHAT, {"n": 2}, "request"),
    (Api.CHAT, {"logprobs": True}, "request"),
    (Api.CHAT, {"store": True}, "request"),
    (Api.CHAT, {"response_format": {"type": "json_object"}}, "format"),
    (Api.CHAT, {"reasoning_effort": "low"}, "thinking"),
    (Api.CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "tools"),
    (Api.CHAT, {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]}, "request"),
    (Api.CHAT, {"max_completion_tokens": 1}, "length"),
    (Api.MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
    (Api.MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "request"),
    (Api.RESPONSES, {"previous_response_id": "resp_1"}, "request"),
    (Api.COMPLETIONS, {"echo": True}, "request"),
])
def test_continuation_of_unsupported_requests_is_rejected(client: Api, fields: dict[str, Any], why: str) -> None:
    """Options that a second upstream would start anew, or that have no normal form."""
    ask = asked(client, **fields)
    with pytest.raises(NotContinuable) as cannot:
        Continuation(ask, spoken(client, ["Hello"], None, "id-1"), 0)
    assert str(cannot.value) == why


@pytest.mark.parametrize(("client", "upstream"), [(Api.CHAT, Api.RESPONSES), (Api.COMPLETIONS, Api.CHAT)])
def test_continuation_body_for_unsupported_dialects_is_rejected(client: Api, upstream: Api) -> None:
    """Responses has no prefill, and completions and chat cannot continue each other."""
    with pytest.raises(Rejected):
        encode_continuation_body(b"{}", client, upstream)


def test_continuation_may_call_a_tool_after_the_seam() -> None:
    """The call follows the text, and text that was held back comes before it."""
    ask, got = asked(Api.CHAT), Client()
    got.reads(Api.CHAT, ask, spoken(Api.CHAT, ["Let me "], None, "id-1"), [], None)
    rest = Continuation(ask, got.body, 0)
    call = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chunks = [{"id": "id-2", "model": "m", "created": 1, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
              for delta, reason in (({"content": " "}, None), ({"tool_calls": [call]}, None), ({}, "tool_calls"))]
    events = rest.feed(b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks))
    assert [choice["delta"].get("tool_calls", [{}])[0].get("id") for event in events for choice in event["choices"]
            ] == ["call_a", None, None]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert {event["id"] for event in events} == {"id-1"}


ODD = st.recursive(st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=4), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "type", "index", "choices", "delta", "content", "tool_calls", "text", "message", "content_block", "item", "response",
        "function", "id", "sequence_number", "part", "usage"]), inner, max_size=5)), max_leaves=12)
KINDS = ["content_block_delta", "content_block_start", "message_start", "response.created", "response.output_text.delta",
         "response.output_item.added", "text", "text_delta", "tool_use", "message"]


@settings(max_examples=60)
@given(st.sampled_from(SPEAKERS), st.lists(ODD, max_size=3), st.lists(st.sampled_from(KINDS), max_size=3),
       st.binary(max_size=20))
def test_continuation_of_any_bytes_is_read_or_rejected(client: Api, odd: list[Any], kinds: list[str], raw: bytes) -> None:
    """As the first half and as the second: CannotGoOn, or events; nothing else is raised."""
    said = [one | {"type": kind} if isinstance(one, dict) else one for one, kind in zip(odd, kinds, strict=False)] or odd
    data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in said) + raw
    rest = Continuation(asked(client), spoken(client, ["Hello "], None, "id-1"), 0)
    with contextlib.suppress(NotContinuable):
        Continuation(asked(client), data, 0)
    with contextlib.suppress(NotContinuable):
        encode_client_events(client, rest.feed(data))
