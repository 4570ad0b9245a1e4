"""Answers as bytes: heads, chunk framing, the `date` header."""

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
_NO_LINE_ENDS = dict.fromkeys((*range(9), *range(10, 32), 127))
_STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class DateLine:
    """The `date` header, made once a second."""

    __slots__ = ("_clock", "_line", "_second")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        second = int(self._clock.wall())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


def status_line(status: int, reason: bytes = b"Status") -> bytes:
    """The first line of an answer. `reason`: for a status that no standard names."""
    return _STATUS_LINE.get(status) or b"HTTP/1.1 %d %b\r\n" % (status, reason)


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Header lines; what cannot stand in one is left out of its value."""
    return "".join(f"{name}: {value.translate(_NO_LINE_ENDS)}\r\n" for name, value in headers).encode("latin-1", "replace")


def connection_line(request: HttpRequest, *, keep_alive: bool) -> bytes:
    """The `connection` header, where the version's default does not say it."""
    if not keep_alive:
        return _CLOSE
    return _KEEP_10 if request.is_http_10 else b""


def whole_response(lines: bytes, body: bytes, connection: bytes, *, has_body: bool = True) -> bytes:
    """An answer with its length. `lines`: status line and headers; `connection`: that header's line; `has_body`: false for
    an answer to HEAD.
    """
    return b"%bcontent-length: %d\r\n%b\r\n%b" % (lines, len(body), connection, body if has_body else b"")


def stream_head(lines: bytes, connection: bytes, *, is_chunked: bool) -> bytes:
    """The head of an answer whose length is not known: its end is the last chunk, or the connection's."""
    return b"%b%b%b\r\n" % (lines, connection, _CHUNKED if is_chunked else b"")


def frame(data: bytes) -> bytes:
    """One chunk of a chunked body. `data` must not be empty: an empty chunk is the last."""
    return b"%x\r\n%b\r\n" % (len(data), data)
