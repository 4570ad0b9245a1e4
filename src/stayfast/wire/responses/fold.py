"""The whole answer of a responses stream: its terminal event repeats it, so whatever ends a stream must have kept it."""

from typing import Any

import msgspec

from stayfast.wire.deltas import Json
from stayfast.wire.dialect import object_in

_PART: Json = {"annotations": [], "logprobs": []}


class ResponsesFold:
    """Responses events to one body. One task owns it."""

    __slots__ = ("_response",)

    def __init__(self) -> None:
        self._response: Json = {}

    def add(self, said: Json) -> None:
        response = said.get("response")
        if isinstance(response, dict):
            self._response = response

    def body(self) -> bytes:
        return msgspec.json.encode(self._response)


class SoFar:
    """What was seen of one stream. One task owns it; costs an append an event."""

    __slots__ = ("_index", "_items", "_open", "_pieces", "created")

    def __init__(self) -> None:
        self.created = b""  # the event that began it
        self._items: dict[int, Json] = {}  # those that are done
        self._open: Json | None = None
        self._index = 0  # of the open item
        self._pieces: list[Any] = []  # of the open item's text or arguments

    def grow(self, delta: Any) -> None:
        """More of the open item."""
        self._pieces.append(delta)

    def see_item(self, item: Any, index: int, *, is_done: bool) -> None:
        """An item begins, or is done."""
        if not isinstance(item, dict):
            return
        self._pieces = []
        if is_done:
            self._items[index] = item
            self._open = None
        else:
            self._open, self._index = dict(item), index

    def ending(self, number: object) -> list[Json]:
        """The events that end it here. `number`: the last event's sequence number."""
        events: list[Json] = []
        item = self._open
        if item is not None:
            events = self._close(item)
            self._items[self._index] = item
        response = object_in(self.created).get("response")
        whole = {**(response if isinstance(response, dict) else {}), "status": "incomplete",
                 "incomplete_details": {"reason": "max_output_tokens"},
                 "output": [self._items[index] for index in sorted(self._items)]}
        events.append({"type": "response.incomplete", "response": whole})
        first = number + 1 if isinstance(number, int) else 0
        return [{**event, "sequence_number": first + at} for at, event in enumerate(events)]

    def _close(self, item: Json) -> list[Json]:
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
            events = [{"type": "response.function_call_arguments.done", **at, "arguments": text,
                       "name": item.get("name")}]
        return [*events, {"type": "response.output_item.done", "output_index": self._index, "item": item}]
