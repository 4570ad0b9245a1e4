"""Decodes Converse answers. A stream is complete at `messageStop`; `metadata` with the usage follows and is awaited, but an
answer that ends without it is complete too. The answers have neither an id nor a model.
"""

from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import AnswerSummary
from stayfast.wire.converse.errors import exception_failure, stop_failure
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
)
from stayfast.wire.event_stream import EXCEPTION
from stayfast.wire.usage import parse_converse_usage


class ConverseDelta(Struct, gc=False, rename="camel"):
    text: Any = None
    tool_use: Any = None
    reasoning_content: Any = None


class ConverseEvent(Struct, gc=False, rename="camel"):
    """The fields of all events."""

    content_block_index: int = 0
    start: Any = None
    delta: ConverseDelta | None = None
    stop_reason: str | None = None
    additional_model_response_fields: Any = None
    usage: Any = None
    service_tier: Any = None


_EVENT: Final = msgspec.json.Decoder(ConverseEvent)
_NO_EVENT: Final = ConverseEvent()
_REASONS: Final[dict[str, Reason]] = {
    "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length",
    "model_context_window_exceeded": "length", "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter"}
_MALFORMED: Final = frozenset(("malformed_model_output", "malformed_tool_use"))


class ConverseDecoder(StreamDecoder):
    """Decodes one Converse answer. `answer_id`: for clients whose protocol has one."""

    __slots__ = ("_answer_id", "_calls", "_event", "_has_stopped", "_n_calls", "_name", "_redacted", "_silent", "_whole")

    def __init__(self, upstream: str, summary: AnswerSummary, answer_id: str = "") -> None:
        super().__init__(upstream, summary)
        self._answer_id = answer_id
        self._event = _NO_EVENT
        self._name = b""
        self._has_stopped = False
        self._calls: dict[int, int] = {}  # ordinals by the block's index
        self._silent: set[int] = set()  # indexes of calls without arguments so far
        self._redacted: dict[int, list[str]] = {}  # pieces of encrypted reasoning by the block's index
        self._n_calls = 0
        self._whole: Json = {}

    def read_event(self, data: bytes, name: bytes) -> int:
        """`name`: as `event_stream.parse_frame` returns it."""
        self._event, self._name = _NO_EVENT, name
        if name.startswith(EXCEPTION):
            self.set_failure(exception_failure(self._upstream, name.removeprefix(EXCEPTION).decode(errors="replace"), data))
            return 0
        try:
            event = self._event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.fail_malformed("an event of the wrong form")
            return 0
        summary = self.summary
        if name == b"contentBlockDelta":
            delta = event.delta
            if delta is not None and (delta.text or delta.tool_use or _reasoning(delta, "text")):
                summary.n_content += 1
                return 1
            summary.n_progress += 1  # a signature, a citation
        elif name == b"messageStop":
            self._stop(event.stop_reason)
        elif name == b"metadata":
            summary.usage = parse_converse_usage(event.usage, event.service_tier)
            if self._has_stopped:
                self.has_ended = summary.is_complete = True
        elif name in (b"contentBlockStart", b"contentBlockStop"):
            summary.n_progress += 1
        return 0

    def _stop(self, reason: str | None) -> None:
        if reason in _MALFORMED:
            self.set_failure(stop_failure(self._upstream, reason))
            return
        self._has_stopped = True
        self.summary.finish_reason = reason

    def finish(self) -> None:
        if not self.has_ended and self._has_stopped:
            self.has_ended = self.summary.is_complete = True
        super().finish()

    def event_deltas(self) -> list[Delta]:
        event, index = self._event, self._event.content_block_index
        match self._name:
            case b"messageStart":
                return [Begin(self._answer_id, "")]
            case b"contentBlockStart" if isinstance(event.start, dict):
                return self._begin_call(index, event.start.get("toolUse"))
            case b"contentBlockDelta" if event.delta is not None:
                return self._block_deltas(index, event.delta)
            case b"contentBlockStop":
                return self._end_block(index)
            case b"messageStop":
                return [_finish(event.stop_reason, event.additional_model_response_fields)]
        return []

    def _begin_call(self, index: int, call: object) -> list[Delta]:
        if not isinstance(call, dict) or call.get("type") is not None:  # a tool that the provider runs
            return []
        ordinal = self._calls[index] = self._n_calls
        self._n_calls += 1
        self._silent.add(index)
        return [ToolBegin(ordinal, text_or_empty(call.get("toolUseId")), text_or_empty(call.get("name")))]

    def _block_deltas(self, index: int, delta: ConverseDelta) -> list[Delta]:
        if text := text_or_empty(delta.text):
            return [TextDelta(text)]
        if isinstance(delta.tool_use, dict) and index in self._calls:
            text = text_or_empty(delta.tool_use.get("input"))
            if text:
                self._silent.discard(index)
            return [ToolDelta(self._calls[index], text)] if text else []
        if text := _reasoning(delta, "text"):
            return [ThinkingDelta(text)]
        if text := _reasoning(delta, "signature"):
            return [ThinkingDelta("", text)]
        if text := _reasoning(delta, "redactedContent"):
            self._redacted.setdefault(index, []).append(text)
        return []

    def _end_block(self, index: int) -> list[Delta]:
        if index in self._silent:
            self._silent.discard(index)
            return [ToolDelta(self._calls[index], "{}")]  # a call without arguments sends no input
        pieces = self._redacted.pop(index, None)
        return [] if pieces is None else [ThinkingDelta("", redacted=_join_base64(pieces))]

    def early_end_events(self) -> list[Json]:
        """None: no client speaks Converse."""
        self.summary.finish_reason = self.summary.finish_reason or "max_tokens"
        return []

    def read_body(self, body: bytes) -> None:
        self.has_ended = True
        parsed = self._whole = parse_object(body)
        if not isinstance(_content(parsed), list):
            return self.fail_malformed("an answer without content")
        reason = text_or_empty(parsed.get("stopReason")) or None
        if reason in _MALFORMED:
            return self.set_failure(stop_failure(self._upstream, reason))
        return self._complete(parse_converse_usage(parsed.get("usage"), parsed.get("serviceTier")), reason)

    def body_deltas(self) -> list[Delta]:
        parsed = self._whole
        found: list[Delta] = [Begin(self._answer_id, "")]
        for index, block in enumerate(_content(parsed)):
            if isinstance(block, dict):
                found += self._whole_block(index, block)
        return [*found, _finish(parsed.get("stopReason"), parsed.get("additionalModelResponseFields"))]

    def _whole_block(self, index: int, block: Json) -> list[Delta]:
        if text := text_or_empty(block.get("text")):
            return [TextDelta(text)]
        if begin := self._begin_call(index, block.get("toolUse")):
            arguments = msgspec.json.encode(block["toolUse"].get("input") or {}).decode()
            return [*begin, ToolDelta(self._calls[index], arguments)]
        reasoning = block.get("reasoningContent")
        if isinstance(reasoning, dict):
            return _whole_reasoning(reasoning)
        cited = block.get("citationsContent")
        texts = cited.get("content") if isinstance(cited, dict) else None
        return [TextDelta(text) for part in texts or ()
                if isinstance(part, dict) and (text := text_or_empty(part.get("text")))]


def _content(parsed: Json) -> Any:
    output = parsed.get("output")
    message = output.get("message") if isinstance(output, dict) else None
    return message.get("content") if isinstance(message, dict) else None


def _reasoning(delta: ConverseDelta, name: str) -> str:
    return text_or_empty(delta.reasoning_content.get(name)) if isinstance(delta.reasoning_content, dict) else ""


def _whole_reasoning(reasoning: Json) -> list[Delta]:
    if redacted := text_or_empty(reasoning.get("redactedContent")):
        return [ThinkingDelta("", redacted=redacted)]
    fields = reasoning.get("reasoningText")
    if not isinstance(fields, dict):
        return []
    return [ThinkingDelta(text_or_empty(fields.get("text")), text_or_empty(fields.get("signature")))]


def _join_base64(pieces: list[str]) -> str:
    """Each piece is encoded by itself. Raises ValueError for a piece that is not base64."""
    if len(pieces) == 1:
        return pieces[0]
    return b64encode(b"".join([b64decode(piece, validate=True) for piece in pieces])).decode()


def _finish(reason: object, more: object) -> Finish:
    sequence = more.get("stop_sequence") if isinstance(more, dict) else None
    return Finish(_REASONS.get(text_or_empty(reason), "stop"), text_or_empty(sequence) or None)
