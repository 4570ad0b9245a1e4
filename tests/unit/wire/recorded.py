"""Streams and bodies in the forms that providers and engines send, with the expected summary of each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stayfast.core.types import Api, Request
from stayfast.wire.request_body import decode

Json = dict[str, Any]


def sse(*events: Json, named: bool = False, done: bool = False) -> bytes:
    """Events as a provider writes them."""
    out = b""
    for event in events:
        name = f"event: {event['type']}\n".encode() if named else b""
        out += name + b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
    return out + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: Json | None, finish: str | None = None, **fields: Any) -> Json:
    """One chat chunk; `delta` None: no choices."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1766000000, "model": "up-1",
            "choices": choices, **fields}


ROLE = chunk({"role": "assistant", "content": ""})
CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26,
              "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 2}}
CALLS = (
    chunk({"tool_calls": [{"index": 0, "id": "call_a", "type": "function",
                           "function": {"name": "weather", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ' "Köln"}'}}]}),
    chunk({"tool_calls": [{"index": 1, "id": "call_b", "type": "function",
                           "function": {"name": "clock", "arguments": "{}"}}]}),
)


def response(status: str, output: list[Json], **fields: Any) -> Json:
    """A response object as events carry it."""
    return {"id": "resp_9", "object": "response", "created_at": 1766000001, "status": status, "error": None,
            "incomplete_details": None, "instructions": None, "metadata": {}, "model": "up-2", "output": output,
            "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
            "usage": None, **fields}


RESPONSES_USAGE = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
                   "output_tokens": 6, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 26}
MESSAGE_ITEM = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "Héllo", "annotations": [], "logprobs": []}]}
CALL_ITEM = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_a", "name": "weather",
             "arguments": '{"city": "Köln"}'}
RESPONSES_TEXT = (
    {"type": "response.created", "sequence_number": 0, "response": response("in_progress", [])},
    {"type": "response.in_progress", "sequence_number": 1, "response": response("in_progress", [])},
    {"type": "response.output_item.added", "sequence_number": 2, "output_index": 0,
     "item": MESSAGE_ITEM | {"status": "in_progress", "content": []}},
    {"type": "response.content_part.added", "sequence_number": 3, "item_id": "msg_1", "output_index": 0,
     "content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}},
    {"type": "response.output_text.delta", "sequence_number": 4, "item_id": "msg_1", "output_index": 0,
     "content_index": 0, "delta": "Hé", "logprobs": []},
    {"type": "response.output_text.delta", "sequence_number": 5, "item_id": "msg_1", "output_index": 0,
     "content_index": 0, "delta": "llo", "logprobs": []},
    {"type": "response.output_text.done", "sequence_number": 6, "item_id": "msg_1", "output_index": 0,
     "content_index": 0, "text": "Héllo", "logprobs": []},
    {"type": "response.output_item.done", "sequence_number": 7, "output_index": 0, "item": MESSAGE_ITEM},
)
RESPONSES_CALL = (
    RESPONSES_TEXT[0],
    {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0,
     "item": CALL_ITEM | {"status": "in_progress", "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "sequence_number": 2, "item_id": "fc_1", "output_index": 0,
     "delta": '{"city": '},
    {"type": "response.function_call_arguments.delta", "sequence_number": 3, "item_id": "fc_1", "output_index": 0,
     "delta": '"Köln"}'},
    {"type": "response.function_call_arguments.done", "sequence_number": 4, "item_id": "fc_1", "output_index": 0,
     "arguments": '{"city": "Köln"}', "name": "weather"},
    {"type": "response.output_item.done", "sequence_number": 5, "output_index": 0, "item": CALL_ITEM},
)

MESSAGES_START = {
    "type": "message_start",
    "message": {"id": "msg_5", "type": "message", "role": "assistant", "model": "up-3", "content": [],
                "stop_reason": None, "stop_sequence": None,
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2,
                          "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 0},
                          "output_tokens": 1}}}
PING = {"type": "ping"}


def block(index: int, start: Json, *deltas: Json) -> list[Json]:
    """One content block, whole."""
    return [{"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index}]


def stopped(reason: str, **usage: Any) -> list[Json]:
    """The two events that end a message."""
    return [{"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None},
             "usage": {"output_tokens": 6, **usage}}, {"type": "message_stop"}]


TEXT_BLOCK = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hé"},
                   {"type": "text_delta", "text": "llo"})
MESSAGES_TOOLS: tuple[Json, ...] = (
    MESSAGES_START, PING,
    *block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "Hm."},
           {"type": "signature_delta", "signature": "c2ln"}),
    *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Looking."}),
    *block(2, {"type": "tool_use", "id": "toolu_a", "name": "weather", "input": {}},
           {"type": "input_json_delta", "partial_json": ""},
           {"type": "input_json_delta", "partial_json": '{"city": "K'},
           {"type": "input_json_delta", "partial_json": 'öln"}'}),
    *block(3, {"type": "tool_use", "id": "toolu_b", "name": "clock", "input": {}},
           {"type": "input_json_delta", "partial_json": ""}),
    *stopped("tool_use"),
)


@dataclass(frozen=True)
class Recorded:
    """A stream, and the expected summary of its transcoder."""

    api: Api
    data: bytes
    n_content: int
    finish_reason: str | None = None
    fault: str | None = None  # of the failure (None: whole)


STREAMS = {
    "chat_text": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}), chunk({"content": "llo"}), chunk({}, "stop"),
                                        done=True), 2, "stop"),
    "chat_usage": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}, usage=None), chunk({}, "length"),
                                         chunk(None, usage=CHAT_USAGE), done=True), 1, "length"),
    "chat_tools": Recorded(Api.CHAT, sse(ROLE, *CALLS, chunk({}, "tool_calls"), done=True), 4, "tool_calls"),
    "chat_reasoning": Recorded(Api.CHAT, sse(ROLE, chunk({"reasoning_content": "Hm"}), chunk({"reasoning": "m."}),
                                             chunk({"content": "Hé"}), chunk({}, "stop"), done=True), 3, "stop"),
    "chat_comments": Recorded(Api.CHAT, b": OPENROUTER PROCESSING\n\n: ping\n" + sse(
        ROLE, chunk({"content": "Hé"}), chunk({}, "stop"), done=True), 1, "stop"),
    "chat_crlf": Recorded(Api.CHAT, b"\xef\xbb\xbf" + sse(
        ROLE, chunk({"content": "Hé"}), chunk({}, "stop"), done=True).replace(b"\n", b"\r\n"), 1, "stop"),
    "chat_cr": Recorded(Api.CHAT, sse(
        ROLE, chunk({"content": "Hé"}), chunk({}, "stop"), done=True).replace(b"\n", b"\r"), 1, "stop"),
    "chat_no_done": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}), chunk({}, "stop")), 1, "stop"),
    "chat_no_last_newline": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}), chunk({}, "stop"))[:-2], 1, "stop"),
    "chat_truncated": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"})), 1, None, "truncated"),
    "chat_cut": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}), chunk({"content": "llo"}))[:-20], 1, None,
                         "truncated"),
    "chat_done_alone": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}), done=True), 1, None, "truncated"),
    "chat_error": Recorded(Api.CHAT, sse(ROLE, chunk({"content": "Hé"}), {"error": {
        "message": "The server had an error", "type": "server_error", "param": None, "code": None}}, done=True),
        1, None, "in_band"),
    "chat_error_named": Recorded(Api.CHAT, sse(ROLE) + b'event: error\ndata: {"message": "broken"}\n\n', 0, None,
                                 "in_band"),
    "chat_error_vllm": Recorded(Api.CHAT, sse({"object": "error", "message": "bad", "type": "BadRequestError",
                                               "param": None, "code": 400}), 0, None, "in_band"),
    "chat_malformed": Recorded(Api.CHAT, sse(ROLE) + b"data: {oops\n\n", 0, None, "malformed"),
    "chat_bare_error": Recorded(Api.CHAT, b'{"error": {"message": "no", "type": "server_error"}}', 0, None, "in_band"),
    "completions_text": Recorded(Api.COMPLETIONS, sse(*(
        {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up", "choices": [
            {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}
        for text, finish in (("Hé", None), ("llo", None), ("", "stop"))), done=True), 2, "stop"),
    "responses_text": Recorded(Api.RESPONSES, sse(*RESPONSES_TEXT, {
        "type": "response.completed", "sequence_number": 8,
        "response": response("completed", [MESSAGE_ITEM], usage=RESPONSES_USAGE)}, named=True), 2, "completed"),
    "responses_tools": Recorded(Api.RESPONSES, sse(*RESPONSES_CALL, {
        "type": "response.completed", "sequence_number": 6,
        "response": response("completed", [CALL_ITEM], usage=RESPONSES_USAGE)}, named=True), 2, "completed"),
    "responses_incomplete": Recorded(Api.RESPONSES, sse(*RESPONSES_TEXT, {
        "type": "response.incomplete", "sequence_number": 8, "response": response(
            "incomplete", [MESSAGE_ITEM], incomplete_details={"reason": "max_output_tokens"}, usage=RESPONSES_USAGE)},
        named=True), 2, "max_output_tokens"),
    "responses_failed": Recorded(Api.RESPONSES, sse(*RESPONSES_TEXT[:5], {
        "type": "response.failed", "sequence_number": 5, "response": response(
            "failed", [], error={"code": "server_error", "message": "boom"})}, named=True), 1, "failed", "in_band"),
    "responses_error_flat": Recorded(Api.RESPONSES, sse(*RESPONSES_TEXT[:5], {
        "type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None, "sequence_number": 5},
        named=True), 1, None, "in_band"),
    "responses_error_nested": Recorded(Api.RESPONSES, sse(RESPONSES_TEXT[0], {
        "type": "error", "sequence_number": 2, "error": {"type": "tokens", "code": "rate_limit_exceeded",
                                                         "message": "slow", "param": None, "headers": {}}},
        named=True), 0, None, "in_band"),
    "responses_truncated": Recorded(Api.RESPONSES, sse(*RESPONSES_TEXT, named=True), 2, None, "truncated"),
    "messages_text": Recorded(Api.MESSAGES, sse(MESSAGES_START, PING, *TEXT_BLOCK, *stopped("end_turn"), named=True),
                              2, "end_turn"),
    "messages_tools": Recorded(Api.MESSAGES, sse(*MESSAGES_TOOLS, named=True), 6, "tool_use"),
    "messages_refusal": Recorded(Api.MESSAGES, sse(MESSAGES_START, *stopped("refusal"), named=True), 0, "refusal"),
    "messages_error": Recorded(Api.MESSAGES, sse(MESSAGES_START, *TEXT_BLOCK[:2], {
        "type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"},
        named=True), 1, None, "in_band"),
    "messages_truncated": Recorded(Api.MESSAGES, sse(MESSAGES_START, *TEXT_BLOCK, named=True), 2, None, "truncated"),
    "messages_malformed": Recorded(Api.MESSAGES, sse(MESSAGES_START, named=True) + b"event: ping\ndata: }\n\n", 0, None,
                                   "malformed"),
}
WHOLE_STREAMS = {name: recorded for name, recorded in STREAMS.items() if recorded.fault is None}

_MINIMAL: dict[Api, Json] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Api.COMPLETIONS: {"prompt": "hi"},
    Api.RESPONSES: {"input": "hi"},
    Api.MESSAGES: {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]},
    Api.EMBEDDINGS: {"input": "hi"},
    Api.RERANK: {"query": "hi", "documents": ["hello"]},
    Api.COUNT_TOKENS: {"messages": [{"role": "user", "content": "hi"}]},
    Api.INPUT_TOKENS: {"input": "hi"},
    Api.TOKENIZE: {"prompt": "hi"},
}


def body(api: Api, **fields: Any) -> bytes:
    """The smallest valid request, with `fields`."""
    return json.dumps({"model": "route", **_MINIMAL[api], **fields}).encode()


def request(api: Api, *, stream: bool = False, **fields: Any) -> Request:
    """The smallest valid request, decoded."""
    return decode(api, body(api, **({"stream": True} if stream else {}), **fields))


def events(data: bytes) -> list[Json]:
    """The JSON events of a stream in the plain form that we write ourselves."""
    found: list[Json] = []
    for part in data.split(b"\n\n"):
        found += [json.loads(line[6:]) for line in part.split(b"\n") if line.startswith(b"data: {")]
    return found


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """A text in pieces."""
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

