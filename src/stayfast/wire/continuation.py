"""Continues a broken answer on another upstream: the second upstream gets the text so far as a prefix (assistant prefill).

Everything happens in the client's own dialect. The bytes that the client has are decoded. The second request is the client's
request with the text so far as the last assistant message (completions: at the end of the prompt) and a smaller output
limit. Its answer is decoded and encoded again by an encoder in the state where the first half stopped. So every upstream
that can answer the request can also continue it.

Only plain text can be continued: no tool calls, reasoning, refusals or output formats (a schema would start anew), one
choice, and no option without a normal form, such as log probabilities.

The seam (`SeamTrimmer`): the prefix is sent without its trailing blanks, because providers reject them and most tokens
contain the blank before a word. So of the second half:

    it begins with blanks      those that the first half ended with are removed
    it begins without blanks   it passes unchanged: the client has the blanks already

All other text passes unchanged: the upstream is configured (`supports_continuation`) as one that continues exactly.
Repeated text is not removed, because code, tables and lists repeat lines themselves.
When wrong: an upstream that repeats the first half makes the client read it twice.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.conversation import Conversation
from stayfast.core.errors import Rejected
from stayfast.core.types import AnswerSummary, Api, Request, Usage
from stayfast.wire import sse
from stayfast.wire.dialect import Begin, Delta, Finish, Json, TextDelta, ThinkingDelta, parse_object, untranslatable_field
from stayfast.wire.request_body import parse_conversation
from stayfast.wire.transcode import DONE_TERMINATED_APIS, SHAPE_ERRORS, encode_events, make_decoder, make_encoder

MAX_REPLAY_BYTES: Final = 4 * 1024 * 1024  # of events: about 20,000 tokens, one event each
_FORCED: Final = ("required", "named")
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_PROMPT, _INPUT, _MESSAGES = "prompt", "input", "messages"
_TEXT_EVENTS: Final = frozenset((
    "ping", "message_start", "content_block_start", "content_block_delta", "response.created", "response.in_progress",
    "response.output_item.added", "response.content_part.added", "response.output_text.delta"))
_TEXT_KINDS: Final = {"content_block": "text", "delta": "text_delta", "item": "message", "part": "output_text"}
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_INPUTS: Final = msgspec.json.Decoder(str | list[Raw])
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_TRUE, _FALSE = Raw(b"true"), Raw(b"false")


class NotContinuable(Exception):
    """The answer cannot be continued; the message is a reason code."""


class SeamTrimmer:
    """Removes blanks at the start of the second half that the first half ended with. Owned by one task."""

    __slots__ = ("_blanks", "_held", "_is_over", "prefix")

    def __init__(self, sent_text: str) -> None:
        self.prefix = sent_text.rstrip()  # what the second upstream continues
        self._blanks = sent_text[len(self.prefix):]
        self._held = ""
        self._is_over = not self._blanks

    def trim(self, text: str, *, is_last: bool = False) -> str:
        """Trim more of the second half; returns the text for the client. `is_last`: hold nothing back."""
        if self._is_over:
            return text
        self._held += text
        body = self._held.lstrip()
        if not body and not is_last:
            return ""
        self._is_over = True
        blanks = self._held[: len(self._held) - len(body)]
        return (blanks[len(self._blanks):] if blanks.startswith(self._blanks) else "") + body


class Continuation:
    """The second half of one answer. Owned by one task.

    `request`: the request for it. `n_sent_tokens`: tokens of the first half, approximately.
    """

    __slots__ = ("_decoder", "_encoder", "_splitter", "n_sent_tokens", "request", "seam", "summary")

    def __init__(self, request: Request, so_far: bytes, created_at: int) -> None:
        """`so_far`: all bytes of the answer that the client has. Raises NotContinuable."""
        parsed = _parse_conversation(request)
        self._encoder = make_encoder(request, created_at)
        try:
            replayed = self._replay(request, so_far)
        except SHAPE_ERRORS:
            raise NotContinuable("blocks") from None
        text = "".join(replayed)
        self.n_sent_tokens = max(len(replayed), len(text.encode()) // BYTES_A_TOKEN)
        self.seam = SeamTrimmer(text)
        self.request = _make_request(request, parsed, self.seam.prefix, self.n_sent_tokens)
        self.summary = AnswerSummary()
        self._decoder = make_decoder(request.api, request, "", self.summary)
        self._splitter = sse.EventSplitter()

    def _replay(self, request: Request, so_far: bytes) -> list[str]:
        """Bring the encoder to the state after `so_far`; returns its texts. Raises NotContinuable if it is not text."""
        if len(so_far) > MAX_REPLAY_BYTES:
            raise NotContinuable("length")
        check = _check_chunk if request.api in DONE_TERMINATED_APIS else _check_event
        decoder = make_decoder(request.api, request, "", AnswerSummary())
        texts: list[str] = []
        for data, name in sse.parse_events(sse.EventSplitter(MAX_REPLAY_BYTES), so_far):
            decoder.read_event(data, name)
            if decoder.has_ended:
                raise NotContinuable("over")
            parsed = parse_object(data)
            if not parsed:
                raise NotContinuable("blocks")
            check(parsed)
            deltas = decoder.event_deltas()
            positions = [_position(event) for delta in deltas for event in self._encoder.encode_delta(delta)]
            if positions and check is _check_event and _position(parsed) not in positions:
                raise NotContinuable("blocks")  # the sender numbers events or blocks differently from the encoder
            for delta in deltas:
                if isinstance(delta, TextDelta):
                    texts.append(delta.text)
                elif not isinstance(delta, Begin):
                    raise NotContinuable("thinking" if isinstance(delta, ThinkingDelta) else "tools")
        return texts

    def feed(self, data: bytes) -> list[Json]:
        """Read more of the second half; returns the events for the client. Raises NotContinuable for an invalid answer."""
        events: list[Json] = []
        try:
            for event, name in sse.parse_events(self._splitter, data):
                if not self._decoder.has_ended:
                    self._decoder.read_event(event, name)
                    for delta in self._decoder.event_deltas():
                        events += self._encode_delta(delta)
        except SHAPE_ERRORS:
            raise NotContinuable("blocks") from None
        return events

    def _encode_delta(self, delta: Delta) -> list[Json]:
        if isinstance(delta, Begin | ThinkingDelta):  # the client's answer has begun, and its reasoning is over
            return []
        if isinstance(delta, TextDelta):
            return self._encode_text(self.seam.trim(delta.text))
        return [*self._encode_text(self.seam.trim("", is_last=True)), *self._encoder.encode_delta(delta)]

    def _encode_text(self, text: str) -> list[Json]:
        return self._encoder.encode_delta(TextDelta(text)) if text else []

    def encode_end(self, usage: Usage | None) -> list[Json]:
        """The events that end a complete answer. `usage`: of both halves."""
        return [*self._encode_text(self.seam.trim("", is_last=True)), *self._encoder.encode_end(usage)]

    def encode_early_end(self, usage: Usage | None) -> list[Json]:
        """The events that end the answer as if it had reached its length limit. `usage`: of both halves."""
        events = [] if self.summary.finish_reason is not None else self._encode_delta(Finish("length"))
        return [*events, *self.encode_end(usage)]


def encode_client_events(api: Api, events: list[Json], *, is_end: bool = False) -> bytes:
    """Encode events for a client of dialect `api`. `is_end`: they end the stream."""
    ends_with_done = api in DONE_TERMINATED_APIS
    if is_end:
        return encode_events(events, ends_with_done=ends_with_done)
    return b"".join(sse.encode_event(_ENCODER.encode(event), None if ends_with_done else event["type"]) for event in events)


def add_usage(first: Usage, second: Usage | None) -> Usage:
    """The sum of the usage of two attempts."""
    if second is None:
        return first
    one, other = first, second
    return Usage(one.input_total + other.input_total, one.output + other.output, one.cached_read + other.cached_read,
                 one.cache_write_5m + other.cache_write_5m, one.cache_write_1h + other.cache_write_1h,
                 one.reasoning + other.reasoning, other.tier or one.tier)


def encode_continuation_body(body: bytes, client: Api, spoken: Api) -> bytes:
    """The body of a request whose last message the upstream of dialect `spoken` continues: chat gets the fields of vLLM and
    SGLang, messages and completions stay as they are. Raises Rejected for a pair of dialects that cannot continue.
    """
    if spoken in (Api.RESPONSES, Api.GEMINI) or (client is Api.COMPLETIONS) is not (spoken is Api.COMPLETIONS):
        raise untranslatable_field("messages", spoken.value, "it cannot continue an answer")
    if spoken is not Api.CHAT:
        return body
    return _ENCODER.encode(_OBJECT.decode(body) | {"continue_final_message": _TRUE, "add_generation_prompt": _FALSE})


def _parse_conversation(request: Request) -> Conversation:
    """The client's request in the normal form. Raises NotContinuable for an option that a continued answer would break."""
    if not request.stream or request.is_stateful or request.n_choices != 1:
        raise NotContinuable("request")
    try:
        parsed = parse_conversation(request)
    except Rejected:
        raise NotContinuable("request") from None
    if parsed.native or parsed.messages[-1].role != "user":
        raise NotContinuable("request")
    if parsed.output_format is not None:
        raise NotContinuable("format")
    if parsed.tool_choice is not None and parsed.tool_choice.mode in _FORCED:
        raise NotContinuable("tools")
    if parsed.effort is not None:
        raise NotContinuable("thinking")  # the second upstream would reason again, or reject the request
    return parsed


def _position(event: Json) -> tuple[object, ...]:
    """The fields that give the position of an event in the answer."""
    return tuple(event.get(name) for name in ("type", "index", "sequence_number", "item_id"))


def _check_chunk(chunk: Json) -> None:
    """Raise NotContinuable unless a chat or completions chunk contains only text of one choice."""
    for choice in chunk.get("choices") or ():
        if choice.get("finish_reason"):
            raise NotContinuable("over")
        delta = choice.get("delta") or {}
        if choice.get("index", 0) != 0 or any(value for name, value in delta.items() if name not in ("role", "content")):
            raise NotContinuable("tools" if delta.get("tool_calls") else "blocks")


def _check_event(event: Json) -> None:
    """Raise NotContinuable unless an event of messages or responses belongs to plain text."""
    if event.get("type") not in _TEXT_EVENTS:
        raise NotContinuable("blocks")
    for name, kind in _TEXT_KINDS.items():
        part = event.get(name)
        if isinstance(part, dict) and part.get("type") != kind:
            raise NotContinuable("blocks")


def _make_request(request: Request, parsed: Conversation, prefix: str, n_sent: int) -> Request:
    """The client's request with `prefix` to continue, and its output limit reduced by `n_sent_tokens` tokens."""
    body: dict[str, Any] = _OBJECT.decode(request.body)
    limit = request.max_output_tokens
    for name in _LIMITS:
        if name in body and (most := _ANY.decode(body[name])) is not None:
            if most <= n_sent:
                raise NotContinuable("length")
            body[name] = limit = most - n_sent
    if prefix:
        _append_prefix(body, request.api, parsed, prefix)
    return msgspec.structs.replace(request, body=_ENCODER.encode(body), max_output_tokens=limit)


def _append_prefix(body: dict[str, Any], api: Api, parsed: Conversation, prefix: str) -> None:
    message = {"role": "assistant", "content": prefix}
    if api is Api.COMPLETIONS:
        body[_PROMPT] = parsed.messages[0].text + prefix
    elif api is Api.RESPONSES:
        input_items = _INPUTS.decode(body[_INPUT])
        items = [{"role": "user", "content": input_items}] if isinstance(input_items, str) else input_items
        body[_INPUT] = [*items, message]
    else:
        body[_MESSAGES] = [*msgspec.json.decode(body[_MESSAGES], type=list[Raw]), message]
