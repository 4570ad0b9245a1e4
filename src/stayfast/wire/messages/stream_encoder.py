"""Encodes an answer as messages events: one block at a time, each started and stopped, then stop reason and usage."""

from typing import Final

from stayfast.core.types import Request, Usage
from stayfast.wire.dialect import (
    Begin,
    Delta,
    Finish,
    Json,
    NotTranslatable,
    Reason,
    TextDelta,
    ThinkingDelta,
    ToolBegin,
    ToolDelta,
)
from stayfast.wire.usage import encode_messages_usage

_REASONS: Final[dict[Reason, str]] = {
    "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class MessagesEncoder:
    """Encodes all events from `message_start` to `message_stop`."""

    __slots__ = ("_finish", "_has_calls", "_has_started", "_kind", "_model", "_n_blocks", "_ordinal")

    def __init__(self, request: Request) -> None:
        self._model = request.model
        self._has_started = False
        self._has_calls = False
        self._n_blocks = 0
        self._kind = ""  # of the open block
        self._ordinal = -1  # of the open call
        self._finish = Finish("stop")

    def encode_delta(self, delta: Delta) -> list[Json]:
        match delta:
            case Begin():
                return self._encode_start(delta)
            case TextDelta():
                return [*self._open_block("text", {"type": "text", "text": ""}),
                        self._encode_block_delta({"type": "text_delta", "text": delta.text})]
            case ThinkingDelta():
                return self._encode_thinking(delta)
            case ToolBegin():
                block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                self._ordinal = delta.ordinal
                self._has_calls = True
                return [*self._close_block(), *self._open_block("tool_use", block)]
            case ToolDelta():
                if self._kind != "tool_use" or delta.ordinal != self._ordinal:
                    raise NotTranslatable("messages cannot interleave tool calls")
                return [self._encode_block_delta({"type": "input_json_delta", "partial_json": delta.arguments})]
            case Finish():
                self._finish = delta
                return self._close_block()

    def _encode_start(self, begin: Begin) -> list[Json]:
        if self._has_started:
            return []
        self._has_started = True
        message: Json = {"id": begin.id, "type": "message", "role": "assistant", "content": [],
                   "model": begin.model or self._model, "stop_reason": None, "stop_sequence": None,
                   "usage": encode_messages_usage(begin.usage or Usage())}
        return [{"type": "message_start", "message": message}]

    def _encode_thinking(self, delta: ThinkingDelta) -> list[Json]:
        if delta.redacted:
            return [*self._close_block(),
                    *self._open_block("redacted_thinking", {"type": "redacted_thinking", "data": delta.redacted}),
                    *self._close_block()]
        events = self._open_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if delta.text:
            events.append(self._encode_block_delta({"type": "thinking_delta", "thinking": delta.text}))
        if delta.signature:
            events.append(self._encode_block_delta({"type": "signature_delta", "signature": delta.signature}))
        return events

    def _open_block(self, kind: str, block: Json) -> list[Json]:
        if self._kind == kind:
            return []
        events = [*self._encode_start(Begin("", "")), *self._close_block()]
        self._kind = kind
        self._n_blocks += 1
        return [*events, {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}]

    def _encode_block_delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _close_block(self) -> list[Json]:
        if not self._kind:
            return []
        self._kind = ""
        return [{"type": "content_block_stop", "index": self._n_blocks - 1}]

    def encode_end(self, usage: Usage | None) -> list[Json]:
        sequence = self._finish.stop_sequence
        reason = "stop_sequence" if sequence is not None else _REASONS[self._finish.reason]
        if self._has_calls and reason == "end_turn":
            reason = "tool_use"  # some chat servers send "stop" after tool calls; messages clients would not run them
        return [*self._encode_start(Begin("", "")), *self._close_block(),
                {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
                 "usage": encode_messages_usage(usage or Usage())},
                {"type": "message_stop"}]
