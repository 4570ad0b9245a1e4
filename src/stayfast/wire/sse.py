"""Server-sent events in both directions (WHATWG HTML, 9.2): any split of the bytes gives the same events.

A `Splitter` cuts a byte stream into blocks, each one event, and can give back the very bytes they came as; `parse` reads
one block. What is not whole yet is held back, at most `max_bytes` of it.
A lone carriage return as the last byte read is held back as well: the next byte may belong to it.
"""

import re
from collections.abc import Iterator
from typing import Final

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # an event with a base64 picture; what is longer is no event

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\n|\r(?=[^\n]))")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BETWEEN: Final = b"\n\ndata: "
_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A  # as numbers: looking for a number in bytes is five times as fast as looking for bytes
_CR: Final = 0x0D


class EventTooLong(ValueError):
    """More than the bound was held back and no event ended."""


class Splitter:
    """Cuts what was read into whole events. One task owns it."""

    __slots__ = ("_data", "_ends", "_has_cr", "_max_bytes", "are_data", "held")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self.held: Final = bytearray()  # an event that has begun and is not whole yet
        self._data = b""  # what the events of the last feed were cut from
        self._ends: list[int] = []  # where each of them ends in it, when they do not all end in two newlines
        self.are_data = False  # whether the last feed's events are single data lines and given as their data alone
        self._has_cr = False  # whether lines of the last feed's events may end in carriage returns

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now, without the blank lines that end them. Raises EventTooLong. Where all of them are
        single data lines, as in every running chat stream, `are_data` is set and they are the data itself: finding
        `\n\ndata: ` is more than twice as fast as finding `\n\n`, and nothing is left to parse.
        """
        held = self.held
        if held:
            may_end = _LF in data or _CR in data or held[-1] == _CR
            held += data
            if not may_end:
                if len(held) > self._max_bytes:
                    raise EventTooLong(f"an event is longer than {self._max_bytes} bytes")
                return []
            data = bytes(held)
            held.clear()
        self._data = data
        if _CR in data:
            return self._cut_any(data)
        self._has_cr = False
        if data[:6] == b"data: " and data[-2:] == b"\n\n":
            lines = data[6:-2].split(_BETWEEN)
            if not [line for line in lines if not line or _LF in line]:
                self.are_data = True
                return lines
        self.are_data = False
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            self._hold(rest, blocks)
        return blocks

    def _cut_any(self, data: bytes) -> list[bytes]:
        self._has_cr = True
        self.are_data = False
        blocks = []
        self._ends = []
        start = 0
        for match in _BLANK_LINE.finditer(data):
            blocks.append(data[start : match.start()])
            start = match.end()
            self._ends.append(start)
        self._hold(data[start:], blocks)
        return blocks

    def _hold(self, rest: bytes, blocks: list[bytes]) -> None:
        if len(rest) > self._max_bytes and not blocks:
            raise EventTooLong(f"an event is longer than {self._max_bytes} bytes")
        self.held.extend(rest)

    def verbatim(self, blocks: list[bytes], first: int, end: int) -> bytes:
        """The bytes of events `first` to `end` (exclusive) of the last feed, which gave `blocks`, as they were read."""
        if first == 0 and end == len(blocks) and not self.held:
            return self._data
        return self._data[self._offset(blocks, first) : self._offset(blocks, end)]

    def _offset(self, blocks: list[bytes], index: int) -> int:
        if index == 0:
            return 0
        if self._has_cr:
            return self._ends[index - 1]
        return sum(map(len, blocks[:index])) + (len(_BETWEEN) if self.are_data else 2) * index

    def rest(self) -> bytes:
        """What was held back when the stream ended: an event that lacks its blank line, or b""."""
        rest = bytes(self.held)
        self.held.clear()
        return rest


def parse(block: bytes) -> tuple[bytes | None, bytes]:
    """The data of one event (None: it has none, as a comment) and its name. Lines of data are joined by newlines."""
    name = b""
    at = 0
    if block.startswith(b"event: "):
        at = block.find(_LF) + 1
        name = block[7 : at - 1]
    if block.startswith(b"data: ", at) and block.find(_LF, at) < 0 and _CR not in block and len(block) > at + 6:
        return block[at + 6 :], name
    return _parse_any(block)


def _parse_any(block: bytes) -> tuple[bytes | None, bytes]:
    name = b""
    data: list[bytes] = []
    for line in _LINE_END.split(block.removeprefix(_BOM)):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        elif field == b"event":
            name = value[1:] if value.startswith(b" ") else value
    return b"\n".join(data) or None, name


def events(splitter: Splitter, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The events that are whole now: data and name. Comments are none. Raises EventTooLong."""
    blocks = splitter.feed(data)
    are_data = splitter.are_data
    for block in blocks:
        read, name = (block, b"") if are_data else parse(block)
        if read is not None:
            yield read, name


def event(data: bytes, name: str | None = None) -> bytes:
    """One event. `data` holds no carriage returns; each of its lines becomes a data line."""
    if _LF in data:
        data = data.replace(b"\n", b"\ndata: ")
    return b"data: %b\n\n" % data if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def comment(text: str) -> bytes:
    """A comment line, which every client ignores: keeps a silent connection alive. `text` is one line."""
    return b": %b\n\n" % text.encode()
