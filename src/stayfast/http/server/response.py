"""Encodes HTTP/1.1 responses: heads, chunks, the `date` header."""

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from stayfast.core.clock import Clock
from stayfast.http.server.parser import HttpRequest

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n"
_KEEP_10 = b"connection: keep-alive\r\n"
_NO_CONTROL_CHARS = dict.fromkeys((*range(9), *range(10, 32), 127))  # all but the tab
_STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class DateHeader:
    """The `date` header, formatted once per second."""

    __slots__ = ("_clock", "_line", "_second")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def encode(self) -> bytes:
        second = int(self._clock.wall())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


def status_line(status: int, reason: bytes = b"Status") -> bytes:
    """`reason`: the phrase of a non-standard status."""
    return _STATUS_LINE.get(status) or b"HTTP/1.1 %d %b\r\n" % (status, reason)


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Header lines. Control characters are removed from values, and characters outside Latin-1 become `?`."""
    lines = "".join(f"{name}: {value.translate(_NO_CONTROL_CHARS)}\r\n" for name, value in headers)
    return lines.encode("latin-1", "replace")


def connection_line(request: HttpRequest, *, keep_alive: bool) -> bytes:
    """The `connection` header; empty if it is the default of the HTTP version."""
    if not keep_alive:
        return _CLOSE
    return _KEEP_10 if request.is_http_10 else b""


def whole_response(lines: bytes, body: bytes, connection: bytes, *, has_body: bool = True) -> bytes:
    """A whole response. `lines`: status line and headers; `connection`: of `connection_line`; `has_body`: False for HEAD."""
    return b"%bcontent-length: %d\r\n%b\r\n%b" % (lines, len(body), connection, body if has_body else b"")


def stream_head(lines: bytes, connection: bytes, *, is_chunked: bool) -> bytes:
    """The head of a response of unknown length, which ends with the last chunk or with the connection."""
    return b"%b%b%b\r\n" % (lines, connection, _CHUNKED if is_chunked else b"")


def encode_chunk(data: bytes) -> bytes:
    """Encode one chunk. `data` must not be empty: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
