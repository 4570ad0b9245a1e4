"""The whole answer of a responses stream: its terminal event holds it."""

import msgspec

from stayfast.wire.deltas import Json


class ResponsesFold:
    """Responses events to one body. One task owns it."""

    __slots__ = ("_response",)

    def __init__(self) -> None:
        self._response: Json = {}

    def add(self, said: Json) -> None:
        """Take one event."""
        response = said.get("response")
        if isinstance(response, dict):
            self._response = response

    def body(self) -> bytes:
        """The whole answer."""
        return msgspec.json.encode(self._response)
