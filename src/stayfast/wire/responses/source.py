"""Reads responses answers. Whole means: `response.completed` or `response.incomplete`; `response.failed` is a failure.

Every `*.delta` that is not empty is content: text, reasoning, refusals, arguments, code, audio.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Sight
from stayfast.wire import usage
from stayfast.wire.deltas import Begin, Delta, Finish, Json, Reason, TextDelta, ThinkingDelta, ToolBegin, ToolDelta
from stayfast.wire.errors import in_band, malformed, truncated
from stayfast.wire.reading import object_in
from stayfast.wire.responses.so_far import SoFar


class Incomplete(Struct, gc=False):
    reason: str | None = None


class Head(Struct, gc=False):
    id: Any = None
    model: Any = None
    created_at: Any = None
    status: str | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: Incomplete | None = None


class ResponsesEvent(Struct, gc=False):
    type: str = ""
    delta: Any = None
    response: Head | None = None
    item: Any = None
    output_index: int = 0
    arguments: Any = None
    error: Any = None
    sequence_number: Any = None


_EVENT: Final = msgspec.json.Decoder(ResponsesEvent)
_ANY: Final = msgspec.json.Decoder()
_THINKING: Final = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_TEXT: Final = ("response.output_text.delta", "response.refusal.delta")
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class ResponsesSource:
    """One responses answer. One task owns it."""

    __slots__ = ("_calls", "_event", "_has_arguments", "_so_far", "_upstream", "_whole", "ended", "is_only_usage", "sight")

    def __init__(self, upstream: str, sight: Sight) -> None:
        self.sight = sight
        self.ended = False
        self.is_only_usage = False  # never: usage comes with events that every stream has
        self._upstream = upstream
        self._whole: Json = {}
        self._event = ResponsesEvent()
        self._calls: dict[int, int] = {}  # output_index: our ordinal
        self._has_arguments: set[int] = set()
        self._so_far = SoFar()

    def see(self, data: bytes, name: bytes) -> int:
        """Read one event; returns 1 if it holds content."""
        try:
            event = self._event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._event = ResponsesEvent()
            if data.strip() == b"[DONE]":  # some servers end as chat does; it ends nothing here
                return 0
            self.fail(malformed(self._upstream, "an event that is not one"))
            return 0
        if event.delta and event.type.endswith(".delta"):
            self.sight.n_content += 1
            self.sight.n_events += 1
            self._so_far.grow(event.delta)
            return 1
        if event.response is not None:
            self._see_response(event.type, event.response, data)
        elif event.item is not None:
            self._so_far.see_item(event.item, event.output_index, is_done=event.type == "response.output_item.done")
        elif event.type == "error" or event.error or name == b"error":
            self.fail(in_band(self._upstream, _ANY.decode(data)))
        if self.sight.failure is None:
            self.sight.n_events += 1
        return 0

    def _see_response(self, kind: str, head: Head, data: bytes) -> None:
        sight = self.sight
        if isinstance(head.id, str):
            sight.response_id = head.id
        if kind == "response.created":
            self._so_far.created = data
        if kind not in _ENDS:
            return
        sight.usage = usage.from_openai(head.usage) or sight.usage
        sight.finish_reason = _reason(kind.removeprefix("response."), head.incomplete_details)
        if kind == "response.failed":
            self.fail(in_band(self._upstream, {"error": _ANY.decode(data)["response"].get("error") or {}}))
        else:
            self.ended = True
            sight.is_complete = True

    def fail(self, failure: UpstreamFailed) -> None:
        """End the answer here."""
        self.ended = True
        self.sight.is_complete = False
        self.sight.failure = failure

    def finish(self) -> None:
        """The body has ended."""
        if not self.ended:
            self.fail(truncated(self._upstream))

    def deltas(self) -> list[Delta]:
        """The event just seen."""
        event = self._event
        kind = event.type
        if kind == "response.created" and event.response is not None:
            return [_begin(event.response.id, event.response.model, event.response.created_at)]
        if kind in _TEXT:
            return [TextDelta(text)] if (text := _text(event.delta)) else []
        if kind in _THINKING:
            return [ThinkingDelta(text)] if (text := _text(event.delta)) else []
        if kind == "response.output_item.added":
            return self._begin_item(event.output_index, event.item)
        if kind in ("response.function_call_arguments.delta", "response.function_call_arguments.done"):
            return self._grow(event)
        if kind in _ENDS and event.response is not None:
            return [Finish(self._finish(event.response.incomplete_details))]
        return []

    def _begin_item(self, index: int, item: object) -> list[Delta]:
        if not isinstance(item, dict) or item.get("type") != "function_call":
            return []
        ordinal = self._calls[index] = len(self._calls)
        return [ToolBegin(ordinal, _text(item.get("call_id")), _text(item.get("name")))]

    def _grow(self, event: ResponsesEvent) -> list[Delta]:
        index = event.output_index
        if index not in self._calls:
            return []
        text = _text(event.delta)
        if event.type.endswith(".done") and index not in self._has_arguments:
            text = _text(event.arguments)
        if not text:
            return []
        self._has_arguments.add(index)
        return [ToolDelta(self._calls[index], text)]

    def _finish(self, incomplete: Incomplete | None) -> Reason:
        if incomplete is not None and incomplete.reason is not None:
            return "content_filter" if incomplete.reason == "content_filter" else "length"
        return "tool_calls" if self._calls else "stop"

    def ending(self) -> list[Json]:
        """The end of the open item, and the terminal event with all that there is."""
        self.sight.finish_reason = "max_output_tokens"
        return self._so_far.ending(self._event.sequence_number)

    def see_whole(self, body: bytes) -> None:
        """Read a whole responses answer."""
        self.ended = True
        said = object_in(body)
        if said.get("error") or said.get("status") == "failed":
            error = said.get("error")
            return self.fail(in_band(self._upstream, {"error": error if isinstance(error, dict) else {}}))
        if not isinstance(said.get("output"), list):
            return self.fail(malformed(self._upstream, "an answer without output"))
        sight = self.sight
        sight.usage = usage.from_openai(said.get("usage"))
        sight.response_id = _text(said.get("id")) or None
        sight.finish_reason = _reason(_text(said.get("status")) or "completed", _incomplete(said))
        sight.n_content = 1
        sight.is_complete = True
        self._whole = said
        return None

    def whole(self) -> list[Delta]:
        """The whole answer just seen."""
        said = self._whole
        found: list[Delta] = [_begin(said.get("id"), said.get("model"), said.get("created_at"))]
        for index, item in enumerate(said["output"]):
            if not isinstance(item, dict):
                continue
            found += self._begin_item(index, item)
            if index in self._calls:
                found.append(ToolDelta(self._calls[index], _text(item.get("arguments"))))
            found += [ThinkingDelta(text) for text in _texts(item, "reasoning", "summary", "content")]
            found += [TextDelta(text) for text in _texts(item, "message", "content")]
        found.append(Finish(self._finish(_incomplete(said))))
        return found


def _texts(item: Json, kind: str, *fields: str) -> list[str]:
    if item.get("type") != kind:
        return []
    parts = [part for field in fields for part in item.get(field) or () if isinstance(part, dict)]
    return [text for part in parts if (text := _text(part.get("text")) or _text(part.get("refusal")))]


def _incomplete(said: Json) -> Incomplete | None:
    details = said.get("incomplete_details")
    return Incomplete(_text(details.get("reason")) or None) if isinstance(details, dict) else None


def _reason(status: str, incomplete: Incomplete | None) -> str:
    return incomplete.reason if incomplete is not None and incomplete.reason is not None else status


def _begin(answer_id: object, model: object, created_at: object) -> Begin:
    is_instant = isinstance(created_at, int | float) and 0 <= created_at < 2**53
    return Begin(_text(answer_id), _text(model), int(created_at) if is_instant else None)  # type: ignore[call-overload]  # checked above


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
