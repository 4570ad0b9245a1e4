"""Puts messages events together into the whole message."""

import msgspec

from stayfast.wire.deltas import Json

_GROWN = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessagesFold:
    """Messages events to one body. One task owns it."""

    __slots__ = ("_blocks", "_grown", "_message")

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._grown: dict[tuple[int, str], list[str]] = {}

    def add(self, said: Json) -> None:
        match said.get("type"):
            case "message_start":
                self._message = said["message"]
            case "content_block_start":
                self._blocks[said["index"]] = said["content_block"]
            case "content_block_delta":
                self._grow(said["index"], said["delta"])
            case "message_delta":
                self._message |= said["delta"]
                counts = {name: value for name, value in (said.get("usage") or {}).items() if value is not None}
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
