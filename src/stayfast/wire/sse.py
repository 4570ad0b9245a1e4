"""Server-sent events in both directions (WHATWG HTML, 9.2): every split of the bytes gives the same events.

A splitter cuts a byte stream into blocks of one event each, and can return their original bytes. An incomplete event is
buffered, up to `max_bytes`. A carriage return at the end of a read is buffered as well: a newline may follow.
"""

import re
from collections.abc import Iterator
from typing import Final

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024  # enough for an event with a base64 image

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\n|\r(?=[^\n]))")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BETWEEN: Final = b"\n\ndata: "
_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A  # an int: `in` finds an int in bytes five times as fast as a bytes object
_CR: Final = 0x0D


class EventTooLong(ValueError):
    """An incomplete event is longer than the limit."""


class EventSplitter:
    """Splits a byte stream into complete events. Owned by one task."""

    __slots__ = ("_data", "_ends", "_has_cr", "_max_bytes", "are_bare_data", "pending")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self.pending: Final = bytearray()  # the incomplete event
        self._data = b""  # the bytes of the last feed's events
        self._ends: list[int] = []  # the end of each event in `_data`, unless all end in two newlines
        self.are_bare_data = False  # the last feed returned the data of events, not their blocks
        self._has_cr = False  # lines of the last feed may end in carriage returns

    def feed(self, data: bytes) -> list[bytes]:
        """The blocks of the events that are complete now, without their blank lines. Raises EventTooLong.

        If all events are single data lines, as in a running chat stream, the result is their data, and a flag is set.
        Splitting at `\\n\\ndata: ` is twice as fast as splitting at `\\n\\n` and parsing each block.
        """
        held = self.pending
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
            return self._split_any(data)
        self._has_cr = False
        if data[:6] == b"data: " and data[-2:] == b"\n\n":
            lines = data[6:-2].split(_BETWEEN)
            if not [line for line in lines if not line or _LF in line]:
                self.are_bare_data = True
                return lines
        self.are_bare_data = False
        blocks = data.split(b"\n\n")
        rest = blocks.pop()
        if rest:
            self._hold(rest, blocks)
        return blocks

    def _split_any(self, data: bytes) -> list[bytes]:
        self._has_cr = True
        self.are_bare_data = False
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
        self.pending.extend(rest)

    def original_bytes(self, blocks: list[bytes], first: int, end: int) -> bytes:
        """The original bytes of events `first` to `end` (exclusive) of the last feed, which returned `blocks`."""
        if first == 0 and end == len(blocks) and not self.pending:
            return self._data
        return self._data[self._offset(blocks, first) : self._offset(blocks, end)]

    def _offset(self, blocks: list[bytes], index: int) -> int:
        if index == 0:
            return 0
        if self._has_cr:
            return self._ends[index - 1]
        return sum(map(len, blocks[:index])) + (len(_BETWEEN) if self.are_bare_data else 2) * index

    def take_rest(self) -> bytes:
        """Remove and return the buffered bytes: at the end of a stream, an event without its blank line, or b""."""
        rest = bytes(self.pending)
        self.pending.clear()
        return rest


def parse_block(block: bytes) -> tuple[bytes | None, bytes]:
    """The data of one event (None: it has none, like a comment) and its name. Data lines are joined by newlines."""
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


def parse_events(splitter: EventSplitter, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Data and name of each event that is complete now, without comments. Raises EventTooLong."""
    blocks = splitter.feed(data)
    are_data = splitter.are_bare_data
    for block in blocks:
        event_data, name = (block, b"") if are_data else parse_block(block)
        if event_data is not None:
            yield event_data, name


def encode_event(data: bytes, name: str | None = None) -> bytes:
    """Encode one event. `data` contains no carriage returns; each of its lines becomes a data line."""
    if _LF in data:
        data = data.replace(b"\n", b"\ndata: ")
    return b"data: %b\n\n" % data if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def encode_comment(text: str) -> bytes:
    """Encode a comment line, which clients ignore: it keeps a silent connection open. `text` is one line."""
    return b": %b\n\n" % text.encode()
