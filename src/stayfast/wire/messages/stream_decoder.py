"""Decodes messages answers, and collects their events into the whole message.

An answer is complete at `message_stop`. Content begins with the first `content_block_delta`.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import AnswerSummary, Usage
from stayfast.wire import usage
from stayfast.wire.dialect import (
    Begin,
    Delta,
    Finish,
    Json,
    Reason,
    StreamDecoder,
    TextDelta,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
    parse_object,
    text_or_empty,
    text_or_none,
)


class Start(Struct, gc=False):
    id: Any = None
    model: Any = None
    usage: Any = None


class EventDelta(Struct, gc=False):
    type: str | None = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    signature: Any = None
    stop_reason: str | None = None
    stop_sequence: Any = None


class MessagesEvent(Struct, gc=False):
    type: str = ""
    index: int = 0
    message: Start | None = None
    content_block: Any = None
    delta: EventDelta | None = None
    usage: Any = None


_EVENT: Final = msgspec.json.Decoder(MessagesEvent)
_REASONS: Final[dict[str, Reason]] = {
    "end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "max_tokens": "length",
    "model_context_window_exceeded": "length", "tool_use": "tool_calls", "refusal": "content_filter"}


class MessagesDecoder(StreamDecoder):
    """Decodes one messages answer."""

    __slots__ = ("_calls", "_event", "_n_calls", "_open_index", "_silent", "_whole")

    def __init__(self, upstream: str, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._whole: Json = {}
        self._event = MessagesEvent()
        self._calls: dict[int, int] = {}  # ordinals by the block's index
        self._silent: set[int] = set()  # indexes of calls without arguments so far
        self._n_calls = 0
        self._open_index: int | None = None  # of the open block

    def read_event(self, data: bytes, name: bytes) -> int:
        try:
            event = self._event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._event = MessagesEvent()
            self.fail_malformed("an event of the wrong form")
            return 0
        kind = event.type
        if kind == "content_block_delta":
            delta = event.delta
            if delta is not None and (delta.text or delta.thinking or delta.type == "input_json_delta"):
                self.summary.n_content += 1
                return 1
            self.summary.n_progress += 1  # a signature, a citation
        elif kind == "content_block_start":
            self._open_index = event.index
            self.summary.n_progress += 1
        elif kind == "content_block_stop":
            self._open_index = None
            self.summary.n_progress += 1
        elif kind in ("message_delta", "message_start"):
            self._read_metadata(event)
        elif kind == "message_stop":
            self.has_ended = True
            self.summary.is_complete = True
        elif kind == "error" or name == b"error":
            self.fail_in_band(parse_object(data))
        return 0

    def _read_metadata(self, event: MessagesEvent) -> None:
        summary = self.summary
        counts = event.usage
        if event.message is not None:
            counts = event.message.usage
            if isinstance(event.message.id, str):
                summary.response_id, summary.model = event.message.id, text_or_none(event.message.model)
        summary.usage = usage.parse_anthropic_usage(counts, summary.usage)
        if event.delta is not None and event.delta.stop_reason is not None:
            summary.finish_reason = event.delta.stop_reason

    def event_deltas(self) -> list[Delta]:
        event = self._event
        match event.type:
            case "message_start":
                start = event.message or Start()
                return [Begin(text_or_empty(start.id), text_or_empty(start.model), usage=self.summary.usage)]
            case "content_block_start":
                return self._begin_block(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                return self._block_deltas(event.index, event.delta)
            case "content_block_stop" if event.index in self._silent:
                self._silent.discard(event.index)
                return [ToolDelta(self._calls[event.index], "{}")]  # a call without arguments sends no input_json_delta
            case "message_delta" if event.delta is not None and event.delta.stop_reason is not None:
                return [_finish(event.delta.stop_reason, event.delta.stop_sequence)]
        return []

    def _begin_block(self, index: int, block: object) -> list[Delta]:
        if not isinstance(block, dict):
            return []
        match block.get("type"):
            case "text":
                return [TextDelta(text)] if (text := text_or_empty(block.get("text"))) else []
            case "thinking":
                return [ThinkingDelta(text)] if (text := text_or_empty(block.get("thinking"))) else []
            case "redacted_thinking":
                return [ThinkingDelta("", redacted=text)] if (text := text_or_empty(block.get("data"))) else []
            case "tool_use":
                ordinal = self._calls[index] = self._n_calls
                self._n_calls += 1
                begin = ToolBegin(ordinal, text_or_empty(block.get("id")), text_or_empty(block.get("name")))
                if block.get("input"):
                    return [begin, ToolDelta(ordinal, msgspec.json.encode(block["input"]).decode())]
                self._silent.add(index)
                return [begin]
        return []

    def _block_deltas(self, index: int, delta: EventDelta) -> list[Delta]:
        match delta.type:
            case "text_delta":
                return [TextDelta(text)] if (text := text_or_empty(delta.text)) else []
            case "thinking_delta":
                return [ThinkingDelta(text)] if (text := text_or_empty(delta.thinking)) else []
            case "signature_delta":
                return [ThinkingDelta("", text_or_empty(delta.signature))]
            case "input_json_delta" if index in self._calls and (text := text_or_empty(delta.partial_json)):
                self._silent.discard(index)
                return [ToolDelta(self._calls[index], text)]
        return []

    def early_end_events(self) -> list[Json]:
        summary = self.summary
        events: list[Json] = []
        if self._open_index is not None:
            events.append({"type": "content_block_stop", "index": self._open_index})
        if summary.finish_reason is None:
            summary.finish_reason = "max_tokens"
            events.append({"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
                           "usage": usage.encode_messages_usage(summary.usage or Usage())})
        return [*events, {"type": "message_stop"}]

    def read_body(self, body: bytes) -> None:
        self.has_ended = True
        parsed = parse_object(body)
        if parsed.get("type") == "error" or parsed.get("error"):
            return self.fail_in_band(parsed)
        if not isinstance(parsed.get("content"), list):
            return self.fail_malformed("an answer without content")
        self._complete(usage.parse_anthropic_usage(parsed.get("usage")), text_or_empty(parsed.get("stop_reason")) or None,
                       text_or_none(parsed.get("id")), text_or_none(parsed.get("model")))
        self._whole = parsed
        return None

    def body_deltas(self) -> list[Delta]:
        parsed = self._whole
        found: list[Delta] = [Begin(text_or_empty(parsed.get("id")), text_or_empty(parsed.get("model")),
                                    usage=self.summary.usage)]
        for index, block in enumerate(parsed["content"]):
            found += self._begin_block(index, block)
            if index in self._silent:
                found.append(ToolDelta(self._calls[index], "{}"))
            elif isinstance(block, dict) and block.get("type") == "thinking" and block.get("signature"):
                found.append(ThinkingDelta("", text_or_empty(block["signature"])))
        found.append(_finish(text_or_empty(parsed.get("stop_reason")), parsed.get("stop_sequence")))
        return found


def _finish(reason: str, stop_sequence: object) -> Finish:
    return Finish(_REASONS.get(reason, "stop"), text_or_empty(stop_sequence) or None)


_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessagesCollector:
    """Collects messages events."""

    __slots__ = ("_blocks", "_message", "_pieces")

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}  # by block and field: its text, joined once at the end

    def add_event(self, event: Json) -> None:
        match event.get("type"):
            case "message_start":
                self._message = event["message"]
            case "content_block_start":
                self._blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                self._add_delta(event["index"], event["delta"])
            case "message_delta":
                self._message |= event["delta"]
                counts = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
                self._message["usage"] = (self._message.get("usage") or {}) | counts

    def _add_delta(self, index: int, delta: Json) -> None:
        kind = delta["type"]
        if kind in _DELTA_FIELDS:
            self._pieces.setdefault((index, _DELTA_FIELDS[kind]), []).append(delta[_DELTA_FIELDS[kind]])
        elif kind == "input_json_delta":
            self._pieces.setdefault((index, "input"), []).append(delta["partial_json"])
        elif kind == "citations_delta":
            block = self._blocks[index]
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]

    def build_body(self) -> bytes:
        """The whole message. Raises ValueError if the input of a tool call is not JSON and was not cut off by the limit."""
        for (index, name), pieces in self._pieces.items():
            text = "".join(pieces)
            block = self._blocks[index]
            if name == "input":
                block["input"] = self._parse_input(text, is_last=index == max(self._blocks))
            else:
                block[name] = (block.get(name) or "") + text
        self._message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        return msgspec.json.encode(self._message)

    def _parse_input(self, text: str, *, is_last: bool) -> object:
        try:
            return msgspec.json.decode(text) if text.strip() else {}
        except msgspec.DecodeError:
            if is_last and self._message.get("stop_reason") == "max_tokens":
                return {}  # cut off by max_tokens: with this stop_reason clients do not run the call
            raise
