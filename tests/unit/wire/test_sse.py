"""Server-sent events: every line ending, every field, every bound."""

from itertools import pairwise

import pytest

from stayfast.wire import sse


def read(data: bytes, *cuts: int) -> list[tuple[bytes | None, bytes]]:
    """The events of `data`, fed in pieces cut at `cuts`."""
    splitter = sse.EventSplitter()
    edges = [0, *cuts, len(data)]
    blocks = []
    for start, end in pairwise(edges):
        cut = splitter.feed(data[start:end])
        blocks += [(block, b"") if splitter.are_bare_data else sse.parse_block(block) for block in cut]
    rest = splitter.take_rest()
    return blocks + ([sse.parse_block(rest)] if rest else [])


@pytest.mark.parametrize(("block", "expected"), [
    (b"data: a", (b"a", b"")), (b"data:a", (b"a", b"")), (b"data:  a", (b" a", b"")), (b"data", (None, b"")),
    (b"data: ", (None, b"")),
    (b"event: x\ndata: a", (b"a", b"x")), (b"data: a\nevent:x", (b"a", b"x")), (b"event: x\ndata:a", (b"a", b"x")),
    (b"data: a\ndata: b", (b"a\nb", b"")), (b"event: x\r\ndata: a\r\ndata: b", (b"a\nb", b"x")),
    (b"data: a\rid: 7", (b"a", b"")), (b": comment", (None, b"")), (b"event: x", (None, b"x")),
    (b"id: 1\nretry: 5", (None, b"")), (b"\xef\xbb\xbfdata: a", (b"a", b"")), (b"\ndata: a", (b"a", b"")),
    (b"event: x\n: c\ndata: a", (b"a", b"x")), (b"event: x\ndata: a\nid: 3", (b"a", b"x")), (b"Data: a", (None, b""))])
def test_parse_one_event(block: bytes, expected: tuple[bytes | None, bytes]) -> None:
    """Fields, their optional space, comments, several data lines, any line ending."""
    assert sse.parse_block(block) == expected


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_splitter_every_line_end_and_every_split_give_the_same_events(newline: bytes) -> None:
    """Two events are the same two events wherever the bytes are cut."""
    data = b"event: a\ndata: 1\ndata: 2\n\n: c\n\ndata: 3\n\n".replace(b"\n", newline)
    expected = [(b"1\n2", b"a"), (b"3", b"")]
    for cut in range(len(data) + 1):
        assert [event for event in read(data, cut) if event[0] is not None] == expected
    assert [event for event in read(data, *range(1, len(data))) if event[0] is not None] == expected


def test_splitter_verbatim_returns_the_original_bytes() -> None:
    """For any run of events, with mixed line ends."""
    splitter = sse.EventSplitter()
    data = b"data: 1\n\ndata: 2\r\n\r\ndata: 3\r\rdata: 4\n\nrest"
    blocks = splitter.feed(data)
    assert splitter.original_bytes(blocks, 0, 4) == data[:-4]
    assert splitter.original_bytes(blocks, 1, 3) == b"data: 2\r\n\r\ndata: 3\r\r"
    assert splitter.take_rest() == b"rest"
    assert splitter.take_rest() == b""


def test_splitter_single_data_lines_need_no_parsing() -> None:
    """Only single data lines are returned as data; otherwise all are returned as blocks."""
    splitter = sse.EventSplitter()
    data = b"data: 1\n\ndata: 23\n\ndata: 4\n\n"
    lines = splitter.feed(data)
    assert (lines, splitter.are_bare_data) == ([b"1", b"23", b"4"], True)
    assert splitter.original_bytes(lines, 1, 2) == b"data: 23\n\n"
    for other in (b"data: 1\n\n\n\ndata: 2\n\n", b"data: 1\ndata: 2\n\n", b"data: 1\n\ndata: \n\n", b"data: 1\n\n: c\n\n"):
        blocks = splitter.feed(other)
        assert not splitter.are_bare_data
        assert splitter.original_bytes(blocks, 0, len(blocks)) == other


def test_splitter_long_event_is_rejected() -> None:
    """More than the bound without an end is an error; whole events of any total size are not."""
    splitter = sse.EventSplitter(max_bytes=10)
    assert len(splitter.feed(b"data: a\n\n" * 10)) == 10
    with pytest.raises(sse.EventTooLong):
        splitter.feed(b"data: 123456")
    splitter = sse.EventSplitter(max_bytes=10)
    assert splitter.feed(b"data: 1") == []
    with pytest.raises(sse.EventTooLong):
        splitter.feed(b"23456")


def test_event_is_parsed_back() -> None:
    """Events and comments in the bytes that clients expect."""
    assert sse.encode_event(b"a") == b"data: a\n\n"
    assert sse.encode_event(b"a", "x") == b"event: x\ndata: a\n\n"
    assert read(sse.encode_event(b"a\nb", "x") + sse.encode_comment("ping")) == [(b"a\nb", b"x"), (None, b"")]
    assert sse.encode_comment("ping") == b": ping\n\n"
