"""Stores an answer in one form and replays it in any: whole, or as a stream.

The stored form is the whole body in the client's own dialect. Streams are collected into it, and encoded from it with all
text in one event.

Only clean answers are stored: complete by their protocol (a chat without [DONE] is complete with its finish reason), stopped
by the model itself, and text only. Not stored: answers that reached a length limit, a filter or a time-out; degraded answers
of another gateway; refusals, which another sample may not repeat; tool calls, which are actions; answers without text; and
several choices. Another gateway's report (`stream_report`) is removed from the answer.
Clients of a whole answer read its `usage`, but an upstream may report none: for a chat stream, only if requested. So
a stored body always has usage: that of the upstream, or else an estimate, marked by `stayfast_estimated`.

When wrong: a whole body may have fields that the encoder does not write (annotations, citations, unknown ones). Such an
answer is replayed whole, but not as a stream (`_has_only_known_fields`).
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from stayfast.core.types import FROM_CACHE, AnswerSummary, Api, Request, Usage
from stayfast.wire import sse
from stayfast.wire.dialect import TextDelta, parse_object
from stayfast.wire.signatures import read_marked_signature
from stayfast.wire.stream_report import REPORT_MEMBER
from stayfast.wire.transcode import (
    DONE_TERMINATED_APIS,
    SHAPE_ERRORS,
    encode_events,
    make_collector,
    make_decoder,
    make_encoder,
)
from stayfast.wire.usage import (
    ESTIMATED_MEMBER,
    encode_chat_usage,
    encode_messages_usage,
    encode_responses_usage,
    estimate_usage,
)

Json = dict[str, Any]
_STOP_REASONS: Final = frozenset(("stop", "end_turn", "stop_sequence", "completed", "STOP"))
_ANY: Final = msgspec.json.Decoder()
_MEMBER: Final = b'"%b"' % REPORT_MEMBER.encode()


# The fields that encoders write, or that are no part of the answer itself.
_HEAD: Final = frozenset((
    "id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "provider", "x_groq",
    "timings", "prompt_filter_results"))
_CHOICE: Final = frozenset(("index", "message", "text", "finish_reason", "native_finish_reason", "stop_reason",
                            "content_filter_results"))
_MESSAGE: Final = frozenset(("role", "content", "reasoning_content", "reasoning", "extra_content"))  # of a text: optional
_MESSAGES: Final = frozenset(("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"))
_BLOCKS: Final = {"text": frozenset(("type", "text")), "thinking": frozenset(("type", "thinking", "signature"))}
_RESPONSE: Final = frozenset((
    "id", "object", "created_at", "completed_at", "status", "model", "output", "usage", "background", "billing",
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "presence_penalty",
    "frequency_penalty", "prompt_cache_key", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier",
    "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"))
_ITEMS: Final = {"message": frozenset(("id", "type", "status", "role", "content")),
                 "reasoning": frozenset(("id", "type", "status", "summary", "content"))}
_PART: Final = frozenset(("type", "text"))
_ENCODE_USAGE: Final[dict[Api, Callable[[Usage], Json]]] = {
    Api.CHAT: encode_chat_usage, Api.COMPLETIONS: encode_chat_usage, Api.MESSAGES: encode_messages_usage,
    Api.RESPONSES: encode_responses_usage}
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})


def storable_body(request: Request, summary: AnswerSummary, data: bytes) -> bytes | None:
    """The whole body of the answer to `request`, which was sent as `data`; None if it must not be stored."""
    is_good = summary.is_complete and not summary.is_cut and not summary.is_degraded and summary.failure is None
    if not is_good or not summary.n_content:
        return None
    if request.api in (Api.EMBEDDINGS, Api.RERANK):
        return data
    if summary.finish_reason not in _STOP_REASONS:
        return None
    try:
        body = _collect_stream(request, data) if request.stream else _remove_report(data)
        if body is None or not _HAS_TEXT_ONLY[request.api](body):
            return None
    except SHAPE_ERRORS:
        return None
    return body if summary.usage is not None and not request.stream else _add_usage(request, body, summary.usage)


def _add_usage(request: Request, body: bytes, usage: Usage | None) -> bytes:
    """The body with usage, reported or estimated, if it has none."""
    parsed = parse_object(body)
    if parsed.get("usage"):
        return body
    encode = _ENCODE_USAGE[request.api]
    if usage is not None:
        fields = encode(usage)
    else:
        estimate = estimate_usage(request, read_stored_text(request, body))
        if estimate is None:
            return body
        fields = {**encode(estimate), ESTIMATED_MEMBER: True}
    return msgspec.json.encode({**parsed, "usage": fields})


def _collect_stream(request: Request, data: bytes) -> bytes | None:
    """The whole body of a complete stream; None if its report calls it degraded."""
    collector = make_collector(request.api)
    for data_line, _ in sse.parse_events(sse.EventSplitter(), data):
        if data_line.strip() != b"[DONE]":
            event = _ANY.decode(data_line)
            if _MEMBER in data_line and (_pop_degraded(event) or _pop_degraded(event.get("response"))):
                return None
            collector.add_event(event)
    return collector.build_body()


def _remove_report(body: bytes) -> bytes | None:
    """A whole body without another gateway's report; None if the report calls it degraded."""
    if _MEMBER not in body:
        return body
    parsed = parse_object(body)
    if REPORT_MEMBER not in parsed:
        return body
    return None if _pop_degraded(parsed) else msgspec.json.encode(parsed)


def _pop_degraded(container: object) -> bool:
    """Remove a gateway's report from an object. Returns whether the report calls the answer degraded."""
    report = container.pop(REPORT_MEMBER, None) if isinstance(container, dict) else None
    return isinstance(report, dict) and report.get("degraded") is not None


def _chat_has_text(body: bytes) -> bool:
    choices = parse_object(body)["choices"]
    message = choices[0]["message"]
    has_other = message.get("tool_calls") or message.get("function_call") or message.get("refusal")
    content = message.get("content")
    return len(choices) == 1 and isinstance(content, str) and content != "" and not has_other


def _completions_have_text(body: bytes) -> bool:
    choices = parse_object(body)["choices"]
    return len(choices) == 1 and bool(choices[0]["text"])


def _messages_have_text(body: bytes) -> bool:
    kinds = {block["type"] for block in parse_object(body)["content"]}
    return "text" in kinds and kinds <= {"text", "thinking", "redacted_thinking"}


def _responses_have_text(body: bytes) -> bool:
    output = parse_object(body)["output"]
    items = {item["type"] for item in output}
    parts = {part["type"] for item in output if item["type"] == "message" for part in item["content"]}
    return "message" in items and items <= {"message", "reasoning"} and parts == {"output_text"}


_HAS_TEXT_ONLY: Final[dict[Api, Callable[[bytes], bool]]] = {
    Api.CHAT: _chat_has_text, Api.COMPLETIONS: _completions_have_text, Api.MESSAGES: _messages_have_text,
    Api.RESPONSES: _responses_have_text}


def read_stored_text(request: Request, body: bytes) -> str:
    """The text of a stored body; empty if it cannot be read."""
    decoder = make_decoder(request.api, request, FROM_CACHE, AnswerSummary())
    try:
        decoder.read_body(body)
        return "".join([delta.text for delta in decoder.body_deltas() if isinstance(delta, TextDelta)])
    except SHAPE_ERRORS:
        return ""


def encode_stored_stream(request: Request, body: bytes) -> bytes:
    """A stored body as the stream that `request` asks for. Raises ValueError if a stream would lose a part of it."""
    summary = AnswerSummary()
    decoder = make_decoder(request.api, request, FROM_CACHE, summary)
    decoder.read_body(body)
    if summary.failure is not None:
        raise ValueError("the stored body is no valid answer")
    if not _has_only_known_fields(request.api, parse_object(body)):
        raise ValueError("the stored body has fields that a stream cannot hold")
    encoder = make_encoder(request, 0)
    events = [event for delta in decoder.body_deltas()
              for event in encoder.encode_delta(delta)] + encoder.encode_end(summary.usage)
    return encode_events(events, ends_with_done=request.api in DONE_TERMINATED_APIS)


def _has_only_known_fields(api: Api, parsed: Json) -> bool:
    """Whether a stream encoded from this body has all fields of the body."""
    try:
        return _IS_KNOWN[api](parsed)
    except SHAPE_ERRORS:
        return False


def _is_known_chat(parsed: Json) -> bool:
    (choice,) = parsed["choices"]
    return _is_within(parsed, _HEAD) and _is_within(choice, _CHOICE) and _is_within(choice.get("message") or {}, _MESSAGE)


def _is_known_message(parsed: Json) -> bool:
    return _is_within(parsed, _MESSAGES) and all(_is_within(block, _BLOCKS[block["type"]]) for block in parsed["content"])


def _is_known_response(parsed: Json) -> bool:
    items = parsed["output"]
    parts = [part for item in items for name in ("summary", "content") for part in item.get(name) or ()]
    return (_is_within(parsed, _RESPONSE)
            and all(_is_within(item, _ITEMS[item["type"]]) or _is_signature(item) for item in items)
            and all(_is_within(part, _PART) for part in parts))


def _is_signature(item: Json) -> bool:
    """Whether an item has nothing more than its fields and Gemini's signature of a text, which is optional."""
    return read_marked_signature(item.get("encrypted_content")) is not None and _is_within(
        item, _ITEMS[item["type"]] | {"encrypted_content"})


def _is_within(parsed: Json, known: frozenset[str]) -> bool:
    return parsed.keys() <= known or all(name in known or value in _NOTHING for name, value in parsed.items())


_IS_KNOWN: Final[dict[Api, Callable[[Json], bool]]] = {
    Api.CHAT: _is_known_chat, Api.COMPLETIONS: _is_known_chat, Api.MESSAGES: _is_known_message,
    Api.RESPONSES: _is_known_response}
