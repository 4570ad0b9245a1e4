"""Encoding of HTTP/1.1 responses: no header value can add a line, and heads and chunks have their exact bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.http.server.parser import HttpRequest
from stayfast.http.server.response import (
    DateHeader,
    connection_line,
    encode_chunk,
    header_lines,
    status_line,
    stream_head,
    whole_response,
)
from tests.unit.http.client.fakes import SetClock

CONTROL_CHARS = [chr(code) for code in (*range(9), *range(10, 32), 127)]


@pytest.mark.parametrize("char", CONTROL_CHARS)
def test_header_lines_removes_each_control_character(char: str) -> None:
    """At the beginning, inside and at the end of a value; the rest of the value stays."""
    assert header_lines([("x-a", f"{char}one{char}two{char}"), ("x-b", "3")]) == b"x-a: onetwo\r\nx-b: 3\r\n"


def test_header_lines_keeps_tab_and_latin_1_and_replaces_other_characters() -> None:
    """A tab is allowed in a value (RFC 9110 5.5); a character outside Latin-1 becomes a question mark."""
    assert header_lines([("x-a", "a\tb é €")]) == b"x-a: a\tb \xe9 ?\r\n"


@given(st.lists(st.text(max_size=40), max_size=5))
def test_header_lines_of_any_values_has_one_line_each(values: list[str]) -> None:
    """No text splits a response or adds a header."""
    lines = header_lines([("x-a", value) for value in values])
    assert lines.count(b"\r\n") == len(values)
    for line in lines.split(b"\r\n")[:-1]:
        assert line.startswith(b"x-a: ")
        assert not any((byte < 32 and byte != 9) or byte == 127 for byte in line)


def test_status_line_has_the_standard_phrase_or_the_given_one() -> None:
    """Upstreams may send a status that no standard names."""
    assert status_line(404) == b"HTTP/1.1 404 Not Found\r\n"
    assert status_line(529, b"Overloaded") == b"HTTP/1.1 529 Overloaded\r\n"


@pytest.mark.parametrize(("is_http_10", "keep_alive", "line"), [
    (False, True, b""), (False, False, b"connection: close\r\n"), (True, True, b"connection: keep-alive\r\n"),
    (True, False, b"connection: close\r\n")])
def test_connection_line_only_where_it_is_not_the_default(is_http_10: bool, keep_alive: bool, line: bytes) -> None:
    """HTTP/1.1 keeps connections open, HTTP/1.0 closes them."""
    request = HttpRequest(0.0)
    request.is_http_10 = is_http_10
    assert connection_line(request, keep_alive=keep_alive) == line


def test_whole_response_and_stream_head_have_exact_bytes() -> None:
    """The length is that of the body, also for HEAD, which gets none."""
    assert whole_response(b"HTTP/1.1 200 OK\r\n", b"abc", b"") == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"
    assert whole_response(b"", b"abc", b"connection: close\r\n", has_body=False) == (
        b"content-length: 3\r\nconnection: close\r\n\r\n")
    assert stream_head(b"", b"", is_chunked=True) == b"transfer-encoding: chunked\r\n\r\n"
    assert stream_head(b"", b"connection: close\r\n", is_chunked=False) == b"connection: close\r\n\r\n"


@given(st.binary(min_size=1, max_size=300))
def test_frame_is_one_chunk(data: bytes) -> None:
    """The size in hexadecimal, the data, a line end."""
    size, rest = encode_chunk(data).split(b"\r\n", 1)
    assert int(size, 16) == len(data)
    assert rest == data + b"\r\n"


def test_date_line_changes_once_a_second() -> None:
    """The line is made again only for another second."""
    clock = SetClock(0.9)
    date = DateHeader(clock)
    first = date.encode()
    assert first == b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    assert date.encode() is first
    clock.at = 1.0
    assert date.encode() == b"date: Thu, 01 Jan 1970 00:00:01 GMT\r\n"
