"""The responses of one WebSocket that a later `response.create` may continue.

Problem: `previous_response_id` names a response at a provider that stores responses. Most upstreams store none, and another
upstream of the route knows none of them. Rule: the items of the conversation so far (input and output) are remembered for
each response, and are sent in place of the id. A response that its client created with `store: true` is continued by its id,
and by its items if the upstream does not know the id.

The memory is bounded: at most `MAX_RESPONSES` responses, and `max_bytes` of items. Responses share the items of those that
they continue. The oldest ones are forgotten first, but never the newest.

When wrong: reasoning items without encrypted content are not sent again, so that a model starts its reasoning anew.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from stayfast.core.conversation import RawObject
from stayfast.core.errors import Rejected
from stayfast.wire.responses.items import read_input_items, reusable_items

MAX_RESPONSES: Final = 64
LOCAL_ID: Final = "resp_ws"  # how the ids of responses without output begin


class RememberedResponse(Struct, frozen=True, gc=False):
    """items: of the whole conversation, as JSON. base_id: of the upstream's own response that they continue."""

    items: tuple[Raw, ...]
    n_bytes: int  # of all items
    n_new_bytes: int  # of those that no earlier response has
    base_id: Raw | None = None
    is_stored: bool = False  # the upstream was to store it


class _FinishedResponse(Struct, gc=False):
    id: str
    output: list[Any] = []


_FINISHED: Final = msgspec.json.Decoder(_FinishedResponse)
_TRUE: Final = b"true"


class ResponseMemory:
    """The memory of one WebSocket."""

    __slots__ = ("_by_id", "_max_bytes", "_n_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_id: dict[str, RememberedResponse] = {}  # the oldest first
        self._n_bytes = 0

    def find(self, response_id: str) -> RememberedResponse | None:
        return self._by_id.get(response_id)

    def remember(self, fields: RawObject, before: RememberedResponse | None, response: Raw) -> None:
        """fields: of the request, with the client's own `previous_response_id`. before: what it continued. response: the
        finished object; one without an id is ignored, and one of a `conversation`, which its provider continues.
        """
        if bytes(fields.get("conversation", b"null")) != b"null":
            return
        try:
            finished = _FINISHED.decode(response)
        except msgspec.DecodeError:
            return
        new = [Raw(msgspec.json.encode(item))
               for item in (*read_input_items(fields.get("input")), *reusable_items(finished.output))]
        n_new = sum(len(bytes(item)) for item in new)
        earlier, base_id = ((), fields.get("previous_response_id")) if before is None else (before.items, before.base_id)
        self._add(finished.id, RememberedResponse(
            (*earlier, *new), n_new + (0 if before is None else before.n_bytes), n_new, base_id,
            is_stored=bytes(fields.get("store", b"")) == _TRUE))

    def _add(self, response_id: str, remembered: RememberedResponse) -> None:
        replaced = self._by_id.pop(response_id, None)
        self._n_bytes += remembered.n_new_bytes - (0 if replaced is None else replaced.n_new_bytes)
        self._by_id[response_id] = remembered
        while len(self._by_id) > 1 and (len(self._by_id) > MAX_RESPONSES or self._n_bytes > self._max_bytes):
            oldest = next(iter(self._by_id))
            self._n_bytes -= self._by_id.pop(oldest).n_new_bytes

    def continue_body(self, fields: RawObject, before: RememberedResponse) -> bytes:
        """The body of a request with the conversation in place of `previous_response_id`. Raises Rejected (413)."""
        if before.n_bytes > self._max_bytes:
            raise Rejected(f"The conversation so far is larger than {self._max_bytes} bytes, the limit of a request. Send a "
                           "shorter one as input.", status=413, code="body_too_large", param="previous_response_id")
        changed: dict[str, object] = {**fields, "input": [*before.items, *read_input_items(fields.get("input"))]}
        del changed["previous_response_id"]
        if before.base_id is not None:
            changed["previous_response_id"] = before.base_id
        return msgspec.json.encode(changed)

    def __repr__(self) -> str:
        return f"<ResponseMemory: {len(self._by_id)} responses, {self._n_bytes} bytes>"
