"""Amazon's binary event stream (`application/vnd.amazon.eventstream`) in both directions; every split of the bytes gives the
same frames.

    frame   total length u32 | headers length u32 | CRC-32 of these 8 bytes | headers | payload | CRC-32 of all before it
    header  name length u8 | name | type u8 | value: its size is fixed by the type, or a u16 before it (bytes, text)

All integers are big-endian. An incomplete frame is buffered, up to `max_bytes`. A prelude with a wrong sum or a length out
of bounds ends the stream: what follows cannot be split.
Source: the event stream encoding of AWS's SDKs (Smithy), and botocore's parser.
"""

from functools import lru_cache
from struct import Struct
from typing import Final
from zlib import crc32

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024  # as for an event of a text stream
MAX_HEADERS_BYTES: Final = 128 * 1024  # the format's own limit
EXCEPTION: Final = b"exception "  # begins the name of a frame that ends the stream by an error

_PRELUDE: Final = Struct("!III")
_SUM: Final = Struct("!I")
_SIZE: Final = Struct("!H")
_PRELUDE_BYTES: Final = 12
_SUM_BYTES: Final = 4
MIN_FRAME_BYTES: Final = _PRELUDE_BYTES + _SUM_BYTES
_BYTES, _TEXT = 6, 7  # types of a value with its size before it
_FIXED_BYTES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # by type: true, false, integers, instant, UUID
_MESSAGE_TYPE, _EVENT_TYPE = b":message-type", b":event-type"
_EXCEPTION_TYPE, _ERROR_CODE = b":exception-type", b":error-code"


class MalformedFrame(ValueError):
    """Bytes that are no frame. The message is a noun phrase that quotes nothing."""


class FrameSplitter:
    """Splits a byte stream into complete frames. Owned by one task."""

    __slots__ = ("_is_broken", "_max_bytes", "_n_expected", "_pending")

    are_bare_data: Final = False  # `feed` returns whole frames, for `parse_frame`

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()  # the incomplete frame
        self._n_expected = MIN_FRAME_BYTES  # pending bytes before another look is worth it
        self._is_broken = False

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now. A prelude that cannot be right is the last one, and `parse_frame` rejects it."""
        if self._is_broken:
            return []
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._n_expected:
                return []
            data = bytes(pending)
            pending.clear()
        frames = []
        start, end = 0, len(data)
        while end - start >= _PRELUDE_BYTES:
            n_frame, n_headers, prelude_sum = _PRELUDE.unpack_from(data, start)
            if (not MIN_FRAME_BYTES + n_headers <= n_frame <= self._max_bytes or n_headers > MAX_HEADERS_BYTES
                    or crc32(data[start : start + 8]) != prelude_sum):
                self._is_broken = True
                frames.append(data[start : start + _PRELUDE_BYTES])
                return frames
            if end - start < n_frame:
                self._hold(data[start:], n_frame)
                return frames
            frames.append(data[start : start + n_frame])
            start += n_frame
        if start < end:
            self._hold(data[start:], _PRELUDE_BYTES)
        return frames

    def _hold(self, rest: bytes, n_expected: int) -> None:
        self._pending += rest
        self._n_expected = n_expected

    def take_rest(self) -> bytes:
        """Drop the buffered bytes: a part of a frame has no meaning. Always b""."""
        self._pending.clear()
        return b""


def parse_frame(frame: bytes) -> tuple[bytes, bytes]:
    """The payload of one frame and the name of its event; of an exception: `EXCEPTION` and its type. Raises
    MalformedFrame.
    """
    size = len(frame)
    if size < MIN_FRAME_BYTES:
        raise MalformedFrame("a frame with a wrong prelude")
    n_frame, n_headers, _ = _PRELUDE.unpack_from(frame)
    if n_frame != size or n_headers + MIN_FRAME_BYTES > size:
        raise MalformedFrame("a frame with a wrong prelude")
    if crc32(frame[:-_SUM_BYTES]) != _SUM.unpack_from(frame, size - _SUM_BYTES)[0]:
        raise MalformedFrame("a frame with a wrong checksum")
    payload_at = _PRELUDE_BYTES + n_headers
    headers = frame[_PRELUDE_BYTES:payload_at]
    return frame[payload_at:-_SUM_BYTES], _read_known(headers) if n_headers <= MAX_KNOWN_BYTES else _read_name(headers)


def _read_name(headers: bytes) -> bytes:
    """The name of the event. All headers but those of the name are skipped."""
    kind, found = b"event", b""
    at, end = 0, len(headers)
    while at < end:
        start = at + 1
        at = start + headers[at]
        name = headers[start:at]
        if at >= end:
            raise MalformedFrame("a frame with a broken header")
        value_type = headers[at]
        at += 1
        if value_type in (_BYTES, _TEXT):
            if at + 2 > end:
                raise MalformedFrame("a frame with a broken header")
            n_value = _SIZE.unpack_from(headers, at)[0]
            at += 2
        else:
            n_value = _FIXED_BYTES.get(value_type, -1)
            if n_value < 0:
                raise MalformedFrame("a frame with a header of an unknown type")
        start = at
        at += n_value
        if at > end:
            raise MalformedFrame("a frame with a broken header")
        if value_type == _TEXT:
            if name == _MESSAGE_TYPE:
                kind = headers[start:at]
            elif name in (_EVENT_TYPE, _EXCEPTION_TYPE, _ERROR_CODE):
                found = headers[start:at]
    return found if kind == b"event" else EXCEPTION + found


MAX_KNOWN_BYTES: Final = 512
_read_known = lru_cache(64)(_read_name)  # all frames of one kind of event have the same headers


def encode_frame(headers: dict[str, str], payload: bytes) -> bytes:
    """One frame with text headers. A name takes at most 255 bytes, a value 65,535."""
    encoded = b"".join([_encode_header(name.encode(), value.encode()) for name, value in headers.items()])
    n_frame = MIN_FRAME_BYTES + len(encoded) + len(payload)
    prelude = n_frame.to_bytes(4, "big") + len(encoded).to_bytes(4, "big")
    frame = prelude + _SUM.pack(crc32(prelude)) + encoded + payload
    return frame + _SUM.pack(crc32(frame))


def _encode_header(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + bytes((_TEXT,)) + _SIZE.pack(len(value)) + value


def encode_event_frame(event: str, payload: bytes) -> bytes:
    """A frame of an event with a JSON payload."""
    return encode_frame({":event-type": event, ":content-type": "application/json", ":message-type": "event"}, payload)


def encode_exception_frame(exception: str, payload: bytes) -> bytes:
    """A frame that ends the stream by an exception with a JSON payload."""
    return encode_frame({":exception-type": exception, ":content-type": "application/json", ":message-type": "exception"},
                        payload)
