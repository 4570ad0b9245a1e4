"""Decodes responses answers. The terminal event of a stream repeats the whole answer.

An answer is complete at `response.completed`, `response.incomplete` or `response.cancelled`; `response.failed` is a
failure. Every non-empty `*.delta` is content: text, reasoning, refusals, arguments, code, audio.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.types import AnswerSummary
from stayfast.wire import usage
from stayfast.wire.dialect import (
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
    read_begin,
    text_or_empty,
    text_or_none,
)

_PART: Json = {"annotations": [], "logprobs": []}


class ResponsesCollector:
    """Collects responses events: keeps the last `response`."""

    __slots__ = ("_response",)

    def __init__(self) -> None:
        self._response: Json = {}

    def add_event(self, event: Json) -> None:
        response = event.get("response")
        if isinstance(response, dict):
            self._response = response

    def build_body(self) -> bytes:
        return msgspec.json.encode(self._response)


class PartialResponse:
    """The part of an answer that has arrived, to end it early. Costs one list append per event."""

    __slots__ = ("_index", "_items", "_open", "_pieces", "created")

    def __init__(self) -> None:
        self.created = b""  # the data of response.created
        self._items: dict[int, Json] = {}  # finished items by output_index
        self._open: Json | None = None
        self._index = 0  # of the open item
        self._pieces: list[Any] = []  # of the open item's text or arguments

    def add_piece(self, delta: Any) -> None:
        self._pieces.append(delta)

    def add_item(self, item: Any, index: int, *, is_done: bool) -> None:
        """Read the item of `response.output_item.added` or `.done`."""
        if not isinstance(item, dict):
            return
        self._pieces = []
        if is_done:
            self._items[index] = item
            self._open = None
        else:
            self._open, self._index = dict(item), index

    def early_end_events(self, number: object) -> list[Json]:
        """The events that end the answer here. `number`: the last event's sequence number."""
        events: list[Json] = []
        item = self._open
        if item is not None:
            events = self._close_item(item)
            self._items[self._index] = item
        response = parse_object(self.created).get("response")
        whole = {**(response if isinstance(response, dict) else {}), "status": "incomplete",
                 "incomplete_details": {"reason": "max_output_tokens"},
                 "output": [self._items[index] for index in sorted(self._items)]}
        events.append({"type": "response.incomplete", "response": whole})
        first = number + 1 if isinstance(number, int) else 0
        return [{**event, "sequence_number": first + at} for at, event in enumerate(events)]

    def _close_item(self, item: Json) -> list[Json]:
        item["status"] = "incomplete"
        text = "".join(piece for piece in self._pieces if isinstance(piece, str))
        at: Json = {"item_id": item.get("id"), "output_index": self._index}
        events: list[Json] = []
        if item.get("type") == "message":
            part = {"type": "output_text", "text": text, **_PART}
            item["content"] = [part]
            at_part = {**at, "content_index": 0}
            events = [{"type": "response.output_text.done", **at_part, "text": text, "logprobs": []},
                      {"type": "response.content_part.done", **at_part, "part": part}]
        elif item.get("type") == "function_call":
            item["arguments"] = text
            events = [{"type": "response.function_call_arguments.done", **at, "arguments": text, "name": item.get("name")}]
        return [*events, {"type": "response.output_item.done", "output_index": self._index, "item": item}]


class Incomplete(Struct, gc=False):
    reason: str | None = None


class ResponseHead(Struct, gc=False):
    id: Any = None
    model: Any = None
    created_at: Any = None
    status: str | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: Incomplete | None = None
    service_tier: Any = None


class ResponsesEvent(Struct, gc=False):
    type: str = ""
    delta: Any = None
    response: ResponseHead | None = None
    item: Any = None
    output_index: int = 0
    arguments: Any = None
    error: Any = None
    sequence_number: Any = None


_EVENT: Final = msgspec.json.Decoder(ResponsesEvent)
_THINKING: Final = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_TEXT: Final = ("response.output_text.delta", "response.refusal.delta")
_NO_PROGRESS: Final = ("response.created", "response.in_progress", "response.queued", "keepalive", "ping")
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class ResponsesDecoder(StreamDecoder):
    """Decodes one responses answer."""

    __slots__ = ("_calls", "_event", "_has_arguments", "_so_far", "_whole")

    def __init__(self, upstream: str, summary: AnswerSummary) -> None:
        super().__init__(upstream, summary)
        self._whole: Json = {}
        self._event = ResponsesEvent()
        self._calls: dict[int, int] = {}  # ordinals by output_index
        self._has_arguments: set[int] = set()  # by output_index
        self._so_far = PartialResponse()

    def read_event(self, data: bytes, name: bytes) -> int:
        try:
            event = self._event = _EVENT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._event = ResponsesEvent()
            if data.strip() == b"[DONE]":  # some servers send it as chat does; it has no meaning here
                return 0
            self.fail_malformed("an event of the wrong form")
            return 0
        if event.delta and event.type.endswith(".delta"):
            self.summary.n_content += 1
            self.summary.n_events += 1
            self._so_far.add_piece(event.delta)
            return 1
        if event.response is not None:
            self._read_response(event.type, event.response, data)
        elif event.item is not None:
            self._so_far.add_item(event.item, event.output_index, is_done=event.type == "response.output_item.done")
        elif event.type == "error" or event.error or name == b"error":
            self.fail_in_band(parse_object(data))
        if self.summary.failure is None:
            self.summary.n_events += 1
            if event.type not in _NO_PROGRESS and not event.type.endswith(".delta"):
                self.summary.n_progress += 1
        return 0

    def _read_response(self, kind: str, head: ResponseHead, data: bytes) -> None:
        summary = self.summary
        if isinstance(head.id, str):
            summary.response_id, summary.model = head.id, text_or_none(head.model)
        if kind == "response.created":
            self._so_far.created = data
        if kind not in _ENDS:
            return
        summary.usage = usage.parse_openai_usage(head.usage, head.service_tier) or summary.usage
        summary.finish_reason = _finish_reason(kind.removeprefix("response."), head.incomplete_details)
        if kind == "response.failed":
            self.fail_in_band({"error": head.error or {}})
        else:
            self.has_ended = True
            summary.is_complete = True

    def event_deltas(self) -> list[Delta]:
        event = self._event
        kind = event.type
        if kind == "response.created" and event.response is not None:
            return [read_begin(event.response.id, event.response.model, event.response.created_at)]
        if kind in _TEXT:
            return [TextDelta(text)] if (text := text_or_empty(event.delta)) else []
        if kind in _THINKING:
            return [ThinkingDelta(text)] if (text := text_or_empty(event.delta)) else []
        if kind == "response.output_item.added":
            return self._begin_item(event.output_index, event.item)
        if kind in ("response.function_call_arguments.delta", "response.function_call_arguments.done"):
            return self._argument_deltas(event)
        if kind in _ENDS and event.response is not None:
            return [Finish(self._normal_reason(event.response.incomplete_details))]
        return []

    def _begin_item(self, index: int, item: object) -> list[Delta]:
        if not isinstance(item, dict) or item.get("type") != "function_call":
            return []
        ordinal = self._calls[index] = len(self._calls)
        return [ToolBegin(ordinal, text_or_empty(item.get("call_id")), text_or_empty(item.get("name")))]

    def _argument_deltas(self, event: ResponsesEvent) -> list[Delta]:
        """The `.done` event repeats all arguments: it counts only if no delta came before."""
        index = event.output_index
        if index not in self._calls:
            return []
        text = text_or_empty(event.delta)
        if event.type.endswith(".done") and index not in self._has_arguments:
            text = text_or_empty(event.arguments)
        if not text:
            return []
        self._has_arguments.add(index)
        return [ToolDelta(self._calls[index], text)]

    def _normal_reason(self, incomplete: Incomplete | None) -> Reason:
        if incomplete is not None and incomplete.reason is not None:
            return "content_filter" if incomplete.reason == "content_filter" else "length"
        return "tool_calls" if self._calls else "stop"

    def early_end_events(self) -> list[Json]:
        self.summary.finish_reason = "max_output_tokens"
        return self._so_far.early_end_events(self._event.sequence_number)

    def read_body(self, body: bytes) -> None:
        self.has_ended = True
        parsed = parse_object(body)
        if parsed.get("error") or parsed.get("status") == "failed":
            error = parsed.get("error")
            return self.fail_in_band({"error": error if isinstance(error, dict) else {}})
        if not isinstance(parsed.get("output"), list):
            return self.fail_malformed("an answer without output")
        self._complete(usage.parse_openai_usage(parsed.get("usage"), parsed.get("service_tier")),
                       _finish_reason(text_or_empty(parsed.get("status")) or "completed", _read_incomplete(parsed)),
                       text_or_none(parsed.get("id")), text_or_none(parsed.get("model")))
        self._whole = parsed
        return None

    def body_deltas(self) -> list[Delta]:
        parsed = self._whole
        found: list[Delta] = [read_begin(parsed.get("id"), parsed.get("model"), parsed.get("created_at"))]
        for index, item in enumerate(parsed["output"]):
            if not isinstance(item, dict):
                continue
            found += self._begin_item(index, item)
            if index in self._calls:
                found.append(ToolDelta(self._calls[index], text_or_empty(item.get("arguments"))))
            found += [ThinkingDelta(text) for text in _read_texts(item, "reasoning", "summary", "content")]
            found += [TextDelta(text) for text in _read_texts(item, "message", "content")]
        found.append(Finish(self._normal_reason(_read_incomplete(parsed))))
        return found


def _read_texts(item: Json, kind: str, *fields: str) -> list[str]:
    if item.get("type") != kind:
        return []
    parts = [part for field in fields for part in item.get(field) or () if isinstance(part, dict)]
    return [text for part in parts if (text := text_or_empty(part.get("text")) or text_or_empty(part.get("refusal")))]


def _read_incomplete(response: Json) -> Incomplete | None:
    details = response.get("incomplete_details")
    return Incomplete(text_or_empty(details.get("reason")) or None) if isinstance(details, dict) else None


def _finish_reason(status: str, incomplete: Incomplete | None) -> str:
    return incomplete.reason if incomplete is not None and incomplete.reason is not None else status
