"""Encodes one answer as its provider would send it: events for a stream, one body for a whole answer.

Uses the encoders and collectors of `wire`, and adds the vendors' extra fields. Fast path for plain words: the event is
encoded once around a placeholder, and each chunk is inserted between its two halves.
"""

from array import array
from base64 import b64encode
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.types import COUNT_APIS, Api, Request, Usage
from stayfast.lab.simulated.faults import Form
from stayfast.lab.simulated.filler_text import make_words, split_tokens, word_bytes
from stayfast.lab.simulated.request import SimulatedRequest
from stayfast.lab.simulated.timing_plan import RequestPace
from stayfast.wire import sse
from stayfast.wire.chat.stream_decoder import ChatCollector
from stayfast.wire.chat.stream_encoder import ChatEncoder, CompletionsEncoder
from stayfast.wire.dialect import (
    AnswerCollector,
    Begin,
    Delta,
    Finish,
    Reason,
    StreamEncoder,
    TextDelta,
    ToolBegin,
    ToolDelta,
)
from stayfast.wire.messages.stream_decoder import MessagesCollector
from stayfast.wire.messages.stream_encoder import MessagesEncoder
from stayfast.wire.rerank import RankedDocument
from stayfast.wire.responses.stream_decoder import ResponsesCollector
from stayfast.wire.responses.stream_encoder import ResponsesEncoder
from stayfast.wire.token_counts import UpstreamCount, encode_count_answer

Json = dict[str, Any]

_RESPONSE: Final[Json] = {
    "background": False, "max_output_tokens": None, "max_tool_calls": None, "previous_response_id": None,
    "prompt_cache_key": None, "reasoning": {"effort": None, "summary": None}, "safety_identifier": None,
    "service_tier": "default", "store": True, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "top_logprobs": 0,
    "truncation": "disabled", "user": None}
_MESSAGE_USAGE: Final[Json] = {
    "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0}, "service_tier": "standard", "speed": "standard",
    "inference_geo": None}


def _add_chat_fields(event: Json, request: SimulatedRequest) -> Json:
    event |= {"service_tier": "default", "system_fingerprint": "fp_simulated"}
    usage = event.get("usage")
    if usage is not None:
        usage["prompt_tokens_details"] |= {"audio_tokens": 0, "image_tokens": 0, "text_tokens": usage["prompt_tokens"]}
        usage["completion_tokens_details"] |= {
            "audio_tokens": 0, "text_tokens": usage["completion_tokens"], "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0}
    elif request.include_usage and request.stream:
        event["usage"] = None
    for choice in event["choices"]:
        if "role" in choice.get("delta", ()):
            choice["delta"]["refusal"] = None
            if not request.stream:
                choice["delta"]["annotations"] = []
    return event


_ENCODER: Final = msgspec.json.Encoder()
_PLACEHOLDER: Final = "@words@"
_PLACEHOLDER_BYTES: Final = _PLACEHOLDER.encode()
_DONE: Final = b"data: [DONE]\n\n"
_PING: Final = sse.encode_event(b'{"type":"ping"}', "ping")
_COMMENT: Final = sse.encode_comment("keep-alive")
_CHOICE_OFFSET: Final = 13  # words between the starts of two choices
_ID_PREFIXES: Final = {Api.CHAT: "chatcmpl-", Api.COMPLETIONS: "cmpl-", Api.RESPONSES: "resp_", Api.MESSAGES: "msg_"}
_FLOATS: Final = tuple((byte - 127.5) / 73.9 for byte in range(256))  # uniform, variance 1


class AnswerEncoder:
    """The encoder of one answer. One task owns it."""

    __slots__ = ("_id", "_is_incomplete", "_is_openai", "_is_tool_open", "_request", "_wraps", "_writer")

    def __init__(self, simulated_request: SimulatedRequest, name: str, created_at: int) -> None:
        request = Request(simulated_request.api, simulated_request.model, simulated_request.stream, b"",
                          simulated_request.include_usage)
        self._request = simulated_request
        self._id = _ID_PREFIXES[simulated_request.api] + name
        self._is_openai = simulated_request.api in (Api.CHAT, Api.COMPLETIONS)
        self._writer: StreamEncoder
        match simulated_request.api:
            case Api.MESSAGES:
                self._writer = MessagesEncoder(request)
            case Api.RESPONSES:
                self._writer = ResponsesEncoder(request, created_at)
            case Api.COMPLETIONS:
                self._writer = CompletionsEncoder(request, created_at)
            case _:
                self._writer = ChatEncoder(request, created_at)
        self._wraps: tuple[tuple[bytes, bytes], ...] = ()  # per choice: the bytes before and after the words
        self._is_incomplete = False
        self._is_tool_open = False

    def encode_start(self) -> bytes:
        """The events before any content: a role, `message_start`, `response.created`."""
        begin = Begin(self._id, self._request.model, None, self._usage(1))
        head = self._encode_delta(begin)
        ping = _PING if self._request.api is Api.MESSAGES else b""
        if self._request.value is not None or self._request.api is Api.RESPONSES:
            return head + ping  # JSON needs escapes; responses numbers its events and repeats the text at the end
        *opening, content = self._writer.encode_delta(TextDelta(_PLACEHOLDER))
        halves = (self._to_bytes([one]).split(_PLACEHOLDER_BYTES) for one in self._for_choices([content]))
        self._wraps = tuple((before, after) for before, after in halves)
        return head + self._to_bytes(self._for_choices(opening)) + ping

    def encode_keepalive(self) -> bytes:
        """What keeps a waiting connection open: a comment, or Anthropic's event."""
        return _PING if self._request.api is Api.MESSAGES else _COMMENT

    def encode_words(self, start: int, n: int) -> bytes:
        """The events for `n` plain words from the `start`-th; each choice has its own words."""
        wraps = self._wraps
        if len(wraps) == 1:
            before, after = wraps[0]
            return before + word_bytes(start, n) + after
        if wraps:
            return b"".join(before + word_bytes(start + _CHOICE_OFFSET * index, n) + after
                            for index, (before, after) in enumerate(wraps))
        return self._encode_delta(TextDelta(make_words(start, n)))

    def encode_piece(self, text: str) -> bytes:
        """The events for a piece of JSON: of the answer, or of the arguments of the requested tool call."""
        tool = self._request.tool
        if tool is None:
            return self._encode_delta(TextDelta(text))
        opening = b""
        if not self._is_tool_open:
            self._is_tool_open = True
            opening = self._encode_delta(ToolBegin(0, self._call_id, tool))
        return opening + self._encode_delta(ToolDelta(0, text))

    def encode_end(self, reason: Reason, n_output: int) -> bytes:
        """The last events; `n_output`: output tokens of all choices, for the usage."""
        last = self._encode_delta(self._finish(reason))
        return last + self._to_bytes(self._end_events(n_output)) + (_DONE if self._is_openai else b"")

    def encode_malformed(self) -> bytes:
        """An event with content and truncated JSON."""
        delta = ToolDelta(0, _PLACEHOLDER) if self._is_tool_open else TextDelta(_PLACEHOLDER)
        return self._encode_delta(delta).partition(_PLACEHOLDER_BYTES)[0] + b"\n\n"

    def encode_error(self, body: Json, headers: dict[str, str], form: Form) -> bytes:
        """An error as the last event. `body` and `headers`: of an error answer in this dialect."""
        if self._request.api is not Api.RESPONSES:
            return sse.encode_event(_ENCODER.encode(body), None if self._is_openai and form != "named" else "error")
        error = body["error"]
        *closing, last = self._end_events(0)
        event = {"type": "error", "sequence_number": (closing[0] if closing else last)["sequence_number"]}
        match form:
            case "failed":
                why = {"code": error["code"] or error["type"], "message": error["message"]}
                event |= {"type": "response.failed", "response": last["response"] | {
                    "status": "failed", "error": why, "incomplete_details": None, "output": [], "usage": None}}
            case "flat":
                event |= {"code": error["code"], "message": error["message"], "param": error["param"]}
            case _:
                event |= {"error": error | {"headers": headers}}
        return self._to_bytes([event])

    def encode_whole(self, texts: list[str], reason: Reason, n_output: int) -> bytes:
        """The body of a whole answer. `texts`: of each choice, or the arguments of the tool call."""
        fold: AnswerCollector
        match self._request.api:
            case Api.MESSAGES:
                fold = MessagesCollector()
            case Api.RESPONSES:
                fold = ResponsesCollector()
            case api:
                fold = ChatCollector(is_chat=api is Api.CHAT)
        tool = self._request.tool
        events = self._for_choices(self._writer.encode_delta(Begin(self._id, self._request.model)))
        if tool is not None:
            for delta in (ToolBegin(0, self._call_id, tool), ToolDelta(0, texts[0])):
                events += self._for_choices(self._writer.encode_delta(delta))
        else:
            for index, text in enumerate(texts):
                *opening, content = self._writer.encode_delta(TextDelta(text))
                events += self._for_choices(opening)
                events.append(self._add_vendor_fields(content if index == 0 else _copy_for_choice(content, index)))
        events += self._for_choices(self._writer.encode_delta(self._finish(reason)))
        for event in (*events, *self._end_events(n_output)):
            fold.add_event(event)
        return fold.build_body()

    def _finish(self, reason: Reason) -> Finish:
        self._is_incomplete = reason in ("length", "content_filter")
        return Finish("tool_calls" if self._request.tool is not None and reason == "stop" else reason)

    def _end_events(self, n_output: int) -> list[Json]:
        return [self._add_vendor_fields(event) for event in self._writer.encode_end(self._usage(n_output))]

    def _usage(self, n_output: int) -> Usage:
        request = self._request
        return Usage(request.n_prompt_tokens, n_output, request.n_cached_tokens, request.n_written_tokens,
                     request.n_written_1h_tokens)

    @property
    def _call_id(self) -> str:
        name = self._id.partition("_" if "_" in self._id else "-")[2]
        return f"toolu_{name}" if self._request.api is Api.MESSAGES else f"call_{name}"

    def _encode_delta(self, delta: Delta) -> bytes:
        return self._to_bytes(self._for_choices(self._writer.encode_delta(delta)))

    def _for_choices(self, events: list[Json]) -> list[Json]:
        """The events; for chat and completions once for each choice."""
        if self._request.n_choices == 1 or not self._is_openai:
            return [self._add_vendor_fields(event) for event in events]
        return [self._add_vendor_fields(_copy_for_choice(event, index)) for event in events
                for index in range(self._request.n_choices)]

    def _add_vendor_fields(self, event: Json) -> Json:
        """The event with the vendor's extra fields."""
        match self._request.api:
            case Api.RESPONSES:
                if self._is_incomplete and event["type"] == "response.output_item.done":
                    event["item"]["status"] = "incomplete"
                if "response" in event:
                    event["response"] = _RESPONSE | event["response"] | {name: Raw(value) for name,
                                                                         value in self._request.echo}
                return event
            case Api.MESSAGES:
                if event["type"] == "message_start":
                    event["message"]["usage"] |= _MESSAGE_USAGE
                return event
        return _add_chat_fields(event, self._request)

    def _to_bytes(self, events: list[Json]) -> bytes:
        if self._is_openai:
            return b"".join([b"data: " + _ENCODER.encode(event) + b"\n\n" for event in events])
        return b"".join([sse.encode_event(_ENCODER.encode(event), event["type"]) for event in events])


def _copy_for_choice(event: Json, index: int) -> Json:
    """A copy of an event of the first choice for another choice."""
    return event | {"choices": [choice | {"index": index, **({"delta": dict(choice["delta"])} if "delta" in choice else {})}
                               for choice in event["choices"]]}


def encode_whole_body(request: SimulatedRequest, pace: RequestPace, name: str, created_at: int) -> bytes:
    if request.api is Api.EMBEDDINGS:
        data = [{"object": "embedding", "index": index, "embedding": _make_vector(digest, request.n_dimensions,
                                                                                  request.is_base64)}
                for index, digest in enumerate(request.inputs)]
        usage = {"prompt_tokens": request.n_prompt_tokens, "total_tokens": request.n_prompt_tokens}
        return _ENCODER.encode({"object": "list", "data": data, "model": request.model, "usage": usage})
    if request.api is Api.RERANK:
        ranked = [RankedDocument(index, (digest & 0xFFFF) / 0xFFFF) for index, digest in enumerate(request.inputs)]
        ranked.sort(key=lambda result: -result.relevance_score)
        return _ENCODER.encode({"id": f"rerank-{request.number or 0}", "object": "list", "model": request.model,
                                "results": ranked[:request.top_n], "usage": {"prompt_tokens": request.n_prompt_tokens,
                                                                             "total_tokens": request.n_prompt_tokens}})
    if request.api in COUNT_APIS:
        return encode_count_answer(request.api, UpstreamCount(request.n_prompt_tokens), is_estimated=False)
    n_texts = request.n_choices if request.api in (Api.CHAT, Api.COMPLETIONS) else 1
    if request.value is not None:
        texts = ["".join(split_tokens(request.value)[: pace.n_output])] * n_texts
    else:
        texts = [make_words(pace.words_from + _CHOICE_OFFSET * index, pace.n_output) for index in range(n_texts)]
    return AnswerEncoder(request, name, created_at).encode_whole(texts, pace.reason, pace.n_output * request.n_choices)


def _make_vector(digest: int, n_dimensions: int, is_base64: bool) -> list[float] | str:
    """A vector of length about 1; equal inputs have equal vectors."""
    length = n_dimensions**0.5
    values = [_FLOATS[byte] / length for byte in Random(digest).randbytes(n_dimensions)]
    return b64encode(array("f", values).tobytes()).decode() if is_base64 else values
