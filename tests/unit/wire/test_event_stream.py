"""Amazon's event stream: every split, every header type, sums, bounds; botocore's parser as the reference."""

import struct
from itertools import pairwise
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from stayfast.wire.event_stream import (
    MAX_FRAME_BYTES,
    FrameSplitter,
    MalformedFrame,
    encode_event_frame,
    encode_exception_frame,
    encode_frame,
    parse_frame,
)

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
FRAMES = st.lists(st.tuples(NAMES, st.binary(max_size=60)), min_size=1, max_size=6)
# Each type of a header's value as (type, bytes); the vendor sends only text today.
VALUES = st.one_of(
    st.sampled_from([(0, b""), (1, b"")]), st.tuples(st.just(2), st.binary(min_size=1, max_size=1)),
    st.tuples(st.just(3), st.binary(min_size=2, max_size=2)), st.tuples(st.just(4), st.binary(min_size=4, max_size=4)),
    st.tuples(st.sampled_from([5, 8]), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(9), st.binary(min_size=16, max_size=16)),
    st.binary(max_size=40).map(lambda value: (6, struct.pack("!H", len(value)) + value)))


def _frame(headers: bytes, payload: bytes) -> bytes:
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    frame = prelude + struct.pack("!I", crc32(prelude)) + headers + payload
    return frame + struct.pack("!I", crc32(frame))


def _header(name: bytes, kind: int, value: bytes) -> bytes:
    return bytes((len(name),)) + name + bytes((kind,)) + value


def _split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(at)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=12))
def test_splitter_bytes_split_anywhere_same_frames(events: list[tuple[str, bytes]], cuts: list[int]) -> None:
    splitter = FrameSplitter()
    data = b"".join(encode_event_frame(name, payload) for name, payload in events)
    found = [parse_frame(frame) for piece in _split(data, cuts) for frame in splitter.feed(piece)]
    assert found == [(payload, name.encode()) for name, payload in events]
    assert splitter.take_rest() == b""


@given(FRAMES)
def test_encode_frames_botocore_reads_them(events: list[tuple[str, bytes]]) -> None:
    reference = EventStreamBuffer()
    for name, payload in events:
        reference.add_data(encode_event_frame(name, payload))
    assert [(event.headers[":event-type"], event.payload) for event in reference] == events


def test_parse_exception_name_is_marked() -> None:
    assert parse_frame(encode_exception_frame("throttlingException", b"{}")) == (b"{}", b"exception throttlingException")


def test_parse_error_without_model_name_is_marked() -> None:
    frame = encode_frame({":message-type": "error", ":error-code": "InternalError", ":error-message": "no"}, b"")
    assert parse_frame(frame) == (b"", b"exception InternalError")


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=12), VALUES), max_size=6), st.binary(max_size=30))
def test_parse_headers_of_all_types_skipped(headers: list[tuple[bytes, tuple[int, bytes]]], payload: bytes) -> None:
    encoded = b"".join(_header(name, kind, value) for name, (kind, value) in headers)
    encoded += _header(b":event-type", 7, struct.pack("!H", 4) + b"ping")
    assert parse_frame(_frame(encoded, payload)) == (payload, b"ping")


@pytest.mark.parametrize("headers", [
    b"\x05abc", b"\x03abc", b"\x03abc\x0a", b"\x03abc\x07", b"\x03abc\x07\x00\x05ab", b"\x03abc\x09abc", b"\x03abc\x04a"])
def test_parse_broken_header_malformed(headers: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parse_frame(_frame(headers, b"payload"))


@given(st.binary(max_size=40), st.data())
def test_parse_one_byte_changed_malformed(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(encode_event_frame("contentBlockDelta", payload))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    (part,) = FrameSplitter().feed(bytes(frame)) or [bytes(frame)]
    with pytest.raises(MalformedFrame):
        parse_frame(part)


def test_splitter_bad_prelude_keeps_frames_before_it() -> None:
    good = encode_event_frame("messageStop", b"{}")
    splitter = FrameSplitter()
    first, broken = splitter.feed(good + b"\x00\x00\x00\x20" + b"x" * 40)
    assert parse_frame(first) == (b"{}", b"messageStop")
    with pytest.raises(MalformedFrame):
        parse_frame(broken)
    assert splitter.feed(good) == []


@pytest.mark.parametrize(("n_frame", "n_headers"), [(MAX_FRAME_BYTES + 1, 0), (15, 0), (100, 90), (2**21, 2**20)])
def test_splitter_length_out_of_bounds_rejected_at_once(n_frame: int, n_headers: int) -> None:
    prelude = struct.pack("!II", n_frame, n_headers)
    (broken,) = FrameSplitter().feed(prelude + struct.pack("!I", crc32(prelude)))
    with pytest.raises(MalformedFrame):
        parse_frame(broken)


@given(st.binary(max_size=200))
def test_splitter_any_bytes_no_other_exception(data: bytes) -> None:
    for frame in FrameSplitter().feed(data):
        with pytest.raises(MalformedFrame):
            parse_frame(frame)
