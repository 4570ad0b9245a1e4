"""Reads messages answers, and puts their events together into the whole message.

Whole means: `message_stop`. Content begins with the first `content_block_delta`.
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
    object_in,
    optional_text,
    text_or_empty,
)
from stayfast.wire.errors import in_band, malformed


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


class MessagesSource(StreamDecoder):
    """One messages answer. One task owns it."""

    __slots__ = ("_calls", "_event", "_n_calls", "_open_index", "_silent", "_whole")

    def __init__(self, upstream: str, sight: AnswerSummary) -> None:
        super().__init__(upstream, sight)
        self._whole: Json = {}
        self._event = MessagesEvent()
        self._calls: dict[int, int] = {}  # the block's index: our ordinal
        self._silent: set[int] = set()  # blocks of calls whose arguments have not begun
        self._n_calls = 0
        self._open_index: int | None = None  # of the running block

    def see(self, data: bytes, name: bytes) -> int:
        try:
            event = self._event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._event = MessagesEvent()
            self.fail(malformed(self._upstream, "an event that is not one"))
            return 0
        kind = event.type
        if kind == "content_block_delta":
            delta = event.delta
            if delta is not None and (delta.text or delta.thinking or delta.type == "input_json_delta"):
                self.sight.n_content += 1
                return 1
        elif kind == "content_block_start":
            self._open_index = event.index
        elif kind == "content_block_stop":
            self._open_index = None
        elif kind in ("message_delta", "message_start"):
            self._see_message(event)
        elif kind == "message_stop":
            self.ended = True
            self.sight.is_complete = True
        elif kind == "error" or name == b"error":
            self.fail(in_band(self._upstream, object_in(data)))
        return 0

    def _see_message(self, event: MessagesEvent) -> None:
        sight = self.sight
        counts = event.usage
        if event.message is not None:
            counts = event.message.usage
            if isinstance(event.message.id, str):
                sight.response_id, sight.model = event.message.id, optional_text(event.message.model)
        sight.usage = usage.from_anthropic(counts, sight.usage)
        if event.delta is not None and event.delta.stop_reason is not None:
            sight.finish_reason = event.delta.stop_reason

    def deltas(self) -> list[Delta]:
        event = self._event
        match event.type:
            case "message_start":
                start = event.message or Start()
                return [Begin(text_or_empty(start.id), text_or_empty(start.model), usage=self.sight.usage)]
            case "content_block_start":
                return self._begin_block(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                return self._grow(event.index, event.delta)
            case "content_block_stop" if event.index in self._silent:
                self._silent.discard(event.index)
                return [ToolDelta(self._calls[event.index], "{}")]  # a call without arguments sends no text at all
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
            case "tool_use":
                ordinal = self._calls[index] = self._n_calls
                self._n_calls += 1
                begin = ToolBegin(ordinal, text_or_empty(block.get("id")), text_or_empty(block.get("name")))
                if block.get("input"):
                    return [begin, ToolDelta(ordinal, msgspec.json.encode(block["input"]).decode())]
                self._silent.add(index)
                return [begin]
        return []

    def _grow(self, index: int, delta: EventDelta) -> list[Delta]:
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

    def ending(self) -> list[Json]:
        """The end of the running block, the reason, and the last word."""
        sight = self.sight
        events: list[Json] = []
        if self._open_index is not None:
            events.append({"type": "content_block_stop", "index": self._open_index})
        if sight.finish_reason is None:
            sight.finish_reason = "max_tokens"
            events.append({"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
                           "usage": usage.to_messages(sight.usage or Usage())})
        return [*events, {"type": "message_stop"}]

    def see_whole(self, body: bytes) -> None:
        self.ended = True
        parsed = object_in(body)
        if parsed.get("type") == "error" or parsed.get("error"):
            return self.fail(in_band(self._upstream, parsed))
        if not isinstance(parsed.get("content"), list):
            return self.fail(malformed(self._upstream, "an answer without content"))
        self._complete(usage.from_anthropic(parsed.get("usage")), parsed,
                       text_or_empty(parsed.get("stop_reason")) or None)
        self._whole = parsed
        return None

    def whole(self) -> list[Delta]:
        parsed = self._whole
        found: list[Delta] = [Begin(text_or_empty(parsed.get("id")), text_or_empty(parsed.get("model")),
                                    usage=self.sight.usage)]
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


_GROWN = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessagesFold:
    """Messages events to one body. One task owns it."""

    __slots__ = ("_blocks", "_grown", "_message")

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._grown: dict[tuple[int, str], list[str]] = {}

    def add(self, event: Json) -> None:
        match event.get("type"):
            case "message_start":
                self._message = event["message"]
            case "content_block_start":
                self._blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                self._grow(event["index"], event["delta"])
            case "message_delta":
                self._message |= event["delta"]
                counts = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
                self._message["usage"] = (self._message.get("usage") or {}) | counts

    def _grow(self, index: int, delta: Json) -> None:
        kind = delta["type"]
        if kind in _GROWN:
            self._grown.setdefault((index, _GROWN[kind]), []).append(delta[_GROWN[kind]])
        elif kind == "input_json_delta":
            self._grown.setdefault((index, "input"), []).append(delta["partial_json"])
        elif kind == "citations_delta":
            block = self._blocks[index]
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]

    def body(self) -> bytes:
        """The whole message. Raises ValueError where the input of a tool call is not JSON and nothing cut it off."""
        for (index, name), pieces in self._grown.items():
            text = "".join(pieces)
            block = self._blocks[index]
            if name == "input":
                block["input"] = self._input(text, is_last=index == max(self._blocks))
            else:
                block[name] = (block.get(name) or "") + text
        self._message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        return msgspec.json.encode(self._message)

    def _input(self, text: str, *, is_last: bool) -> object:
        try:
            return msgspec.json.decode(text) if text.strip() else {}
        except msgspec.DecodeError:
            if is_last and self._message.get("stop_reason") == "max_tokens":
                return {}  # cut off by its own limit, which stop_reason says: nobody runs this call
            raise
