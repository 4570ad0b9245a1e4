"""Encodes an answer as responses events: items and parts are added, extended and done, in one numbered sequence."""

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
from stayfast.wire.signatures import mark_signature, read_marked_signature
from stayfast.wire.usage import encode_responses_usage

_INCOMPLETE: Final[dict[Reason, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
_DELTAS: Final = {
    "message": "response.output_text", "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments"}
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class ResponsesEncoder:
    """Encodes all events from `response.created` to the terminal one."""

    __slots__ = ("_created_at", "_id", "_item", "_model", "_n_events", "_ordinal", "_output", "_pieces", "_reason")

    def __init__(self, request: Request, created_at: int) -> None:
        self._id = ""
        self._model = request.model
        self._created_at = created_at
        self._n_events = 0
        self._output: list[Json] = []
        self._item: Json | None = None  # the open item
        self._pieces: list[str] = []  # of the open item's text or arguments
        self._ordinal = -1  # of the open call
        self._reason: Reason = "stop"

    def encode_delta(self, delta: Delta) -> list[Json]:
        match delta:
            case Begin():
                return self._encode_created(delta)
            case TextDelta():
                item = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
                return self._encode_item_delta("message", item, delta.text)
            case ThinkingDelta():
                item = {"type": "reasoning", "status": "in_progress", "summary": [], "content": []}
                events = self._encode_item_delta("reasoning", item, delta.text) if delta.text else []
                return events if read_marked_signature(delta.signature) is None else [
                    *events, *self._encode_signature(delta.signature)]
            case ToolBegin():
                self._ordinal = delta.ordinal
                item = {"type": "function_call", "status": "in_progress", "call_id": delta.id, "name": delta.name,
                        "arguments": ""}
                signed = self._encode_signature(mark_signature(delta.signature)) if delta.signature else []
                return [*signed, *self._close_item(), *self._open_item(item)]
            case ToolDelta():
                if self._item is None or self._item["type"] != "function_call" or delta.ordinal != self._ordinal:
                    raise NotTranslatable("responses cannot interleave tool calls")
                return self._encode_item_delta("function_call", self._item, delta.arguments)
            case Finish():
                self._reason = delta.reason
                return self._close_item()

    def _encode_created(self, begin: Begin) -> list[Json]:
        if self._n_events:
            return []
        self._id = begin.id
        self._model = begin.model or self._model
        self._created_at = begin.created_at if begin.created_at is not None else self._created_at
        return [self._make_event("response.created", response=self._make_response("in_progress", None)),
                self._make_event("response.in_progress", response=self._make_response("in_progress", None))]

    def _make_event(self, kind: str, **fields: object) -> Json:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def _make_response(self, status: str, usage: Usage | None) -> Json:
        reason = _INCOMPLETE.get(self._reason) if status == "incomplete" else None
        return {
            "id": self._id, "object": "response", "created_at": self._created_at, "status": status, "error": None,
            "incomplete_details": {"reason": reason} if reason is not None else None, "instructions": None,
            "metadata": {}, "model": self._model, "output": list(self._output), "parallel_tool_calls": True,
            "temperature": None, "tool_choice": "auto", "tools": [], "top_p": None,
            "usage": encode_responses_usage(usage) if usage is not None else None,
        }

    def _encode_item_delta(self, kind: str, item: Json, text: str) -> list[Json]:
        """Extend the open item by `text`; open `item` first if the open one is of another kind."""
        events = []
        if self._item is None or self._item["type"] != kind:
            events = [*self._close_item(), *self._open_item(item)]
        self._pieces.append(text)
        return [*events, self._make_item_event(f"{_DELTAS[kind]}.delta", delta=text)]

    def _encode_signature(self, signature: str) -> list[Json]:
        """Add it to the open reasoning item and close that; without one, add an item without text."""
        if self._item is not None and self._item["type"] == "reasoning":
            self._item["encrypted_content"] = signature
            return self._close_item()
        events = [*self._close_item(), *self._encode_created(Begin("", ""))]
        item = {"id": f"rs_{self._id}_{len(self._output)}", "type": "reasoning", "status": "completed", "summary": [],
                "encrypted_content": signature}
        events += [self._make_event(f"response.output_item.{what}", output_index=len(self._output), item=item)
                   for what in ("added", "done")]
        self._output.append(item)
        return events

    def _open_item(self, item: Json) -> list[Json]:
        events = self._encode_created(Begin("", ""))
        kind = item["type"]
        self._item = {"id": f"{_PREFIXES[kind]}_{self._id}_{len(self._output)}", **item}
        self._pieces = []
        events.append(self._make_event("response.output_item.added", output_index=len(self._output),
                                       item=dict(self._item)))
        if kind != "function_call":
            events.append(self._make_part_event("response.content_part.added", ""))
        return events

    def _make_item_event(self, kind: str, **fields: object) -> Json:
        assert self._item is not None
        event = self._make_event(kind, item_id=self._item["id"], output_index=len(self._output), **fields)
        if self._item["type"] != "function_call":
            event["content_index"] = 0
        if self._item["type"] == "message":
            event["logprobs"] = []
        return event

    def _make_part_event(self, kind: str, text: str) -> Json:
        assert self._item is not None
        event = self._make_event(kind, item_id=self._item["id"], output_index=len(self._output), content_index=0)
        return event | {"part": _make_part(self._item["type"], text)}

    def _close_item(self) -> list[Json]:
        item = self._item
        if item is None:
            return []
        kind = item["type"]
        text = "".join(self._pieces)
        item["status"] = "incomplete" if self._reason in _INCOMPLETE else "completed"
        if kind == "function_call":
            text = item["arguments"] = text or "{}"
            events = [self._make_item_event(f"{_DELTAS[kind]}.done", arguments=text, name=item["name"])]
        else:
            item["content"] = [_make_part(kind, text)]
            events = [self._make_item_event(f"{_DELTAS[kind]}.done", text=text),
                      self._make_part_event("response.content_part.done", text)]
        events.append(self._make_event("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._item = None
        return events

    def encode_end(self, usage: Usage | None) -> list[Json]:
        events = [*self._encode_created(Begin("", "")), *self._close_item()]
        status = "incomplete" if self._reason in _INCOMPLETE else "completed"
        return [*events, self._make_event(f"response.{status}", response=self._make_response(status, usage))]


def _make_part(kind: str, text: str) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
