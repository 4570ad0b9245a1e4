"""Server-sent events in both directions (WHATWG HTML, 9.2): any split of the bytes gives the same events.

A `Splitter` cuts a byte stream into blocks, each one event with the blank line that ends it, so that a block can be
forwarded verbatim; `parse` reads one block. What is not whole yet is held back, at most `max_bytes` of it.
A lone carriage return as the last byte read is held back as well: the next byte may belong to it.
"""

import re
from typing import Final

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # an event with a base64 picture; what is longer is no event

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\n|\r(?=[^\n]))")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"
_CR: Final = 0x0D


class EventTooLong(ValueError):
    """More than the bound was held back and no event ended."""


class Splitter:
    """Cuts what was read into whole events. One task owns it."""

    __slots__ = ("_held", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now, each with its blank line. Raises EventTooLong."""
        held = self._held
        searched = 0
        if held:
            searched = max(0, len(held) - 3)
            may_end = b"\n" in data or b"\r" in data or held[-1] == _CR
            held += data
            if not may_end:
                return self._hold(held, [])
            data = bytes(held)
        has_cr = b"\r" in data
        end = data.find(b"\n\n", searched) + 2
        if end == len(data) and end > 1 and not has_cr:
            held.clear()
            return [data]
        return self._cut(data, searched, end, has_cr)

    def _cut(self, data: bytes, searched: int, end: int, has_cr: bool) -> list[bytes]:
        blocks = []
        start = 0
        if has_cr:
            for match in _BLANK_LINE.finditer(data, searched):
                blocks.append(data[start : match.end()])
                start = match.end()
        else:
            while end > 1:
                blocks.append(data[start:end])
                start = end
                end = data.find(b"\n\n", start) + 2
        return self._hold(bytearray(data[start:]), blocks)

    def _hold(self, held: bytearray, blocks: list[bytes]) -> list[bytes]:
        self._held = held
        if len(held) > self._max_bytes and not blocks:
            raise EventTooLong(f"an event is longer than {self._max_bytes} bytes")
        return blocks

    def rest(self) -> bytes:
        """What was held back when the stream ended: an event that lacks its blank line, or b""."""
        rest = bytes(self._held)
        self._held = bytearray()
        return rest


def parse(block: bytes) -> tuple[bytes | None, bytes]:
    """The data (None: it has none, such as a comment) and the name of one event. Lines of data are joined by newlines."""
    if block.startswith(b"data: ") and block.find(b"\n") == len(block) - 2 and b"\r" not in block:
        return block[6:-2], b""
    name = b""
    data: list[bytes] = []
    for line in _LINE_END.split(block.removeprefix(_BOM)):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        elif field == b"event":
            name = value[1:] if value.startswith(b" ") else value
    return (b"\n".join(data) if data else None), name


def event(data: bytes, name: str | None = None) -> bytes:
    """One event. `data` holds no carriage returns; each of its lines becomes a data line."""
    if b"\n" in data:
        data = data.replace(b"\n", b"\ndata: ")
    if name is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def comment(text: str) -> bytes:
    """A comment line, which every client ignores: keeps a silent connection alive. `text` is one line."""
    return b": %b\n\n" % text.encode()
