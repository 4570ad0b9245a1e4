"""Answers as bytes: heads, chunk framing, errors. Constant parts are built once."""

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError, UpstreamFailed
from stayfast.server.inbound import Inbound
from stayfast.server.routes import allowed, dialect
from stayfast.wire.errors import render

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that its multiples meet every 64-bit number before one comes again
_MASK = (1 << 64) - 1

_NO_LINE_ENDS = dict.fromkeys((*range(9), *range(10, 32), 127))
_OURS = frozenset(("x-request-id", "content-length", "connection"))
_STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CLOSE = b"connection: close\r\n"
_KEEP_10 = b"connection: keep-alive\r\n"
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS_HEAD = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
                b"x-accel-buffering: no\r\n")
_CHUNKED = b"transfer-encoding: chunked\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class RequestIds:
    """Request ids that repeat neither in this process nor, but for a tiny chance, in another. One loop's."""

    __slots__ = ("_at",)

    def __init__(self, entropy: bytes) -> None:
        self._at = int.from_bytes(entropy[:8])

    def next(self) -> str:
        """A new id: `req_` and 16 hex digits."""
        self._at = at = (self._at + _STRIDE) & _MASK
        return f"req_{at:016x}"


class DateLine:
    """The `date` header, made once a second."""

    __slots__ = ("_clock", "_line", "_second")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """The whole header line."""
        second = int(self._clock.wall())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


def connection_line(inbound: Inbound, *, keep_alive: bool) -> bytes:
    """The `connection` header, where the version's default does not say it."""
    if not keep_alive:
        return _CLOSE
    return _KEEP_10 if inbound.is_http_10 else b""


def frame(data: bytes) -> bytes:
    """One chunk of a chunked body. `data` must not be empty: an empty chunk is the last."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_answer(body: bytes, common: bytes, connection: bytes) -> bytes:
    """A whole 200 answer. `common` are header lines."""
    return b"%bcontent-length: %d\r\n%b%b\r\n%b" % (_JSON_HEAD, len(body), common, connection, body)


def events_head(common: bytes, connection: bytes, *, is_chunked: bool) -> bytes:
    """The head of a streamed answer."""
    return b"%b%b%b%b\r\n" % (_EVENTS_HEAD, common, connection, _CHUNKED if is_chunked else b"")


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _STATUS_LINE.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Header lines; what cannot stand in one is left out of its value."""
    return "".join(f"{name}: {value.translate(_NO_LINE_ENDS)}\r\n" for name, value in headers).encode("latin-1", "replace")


def total(total_s: float) -> str:
    """How long an answer took, as a `Server-Timing` value."""
    return f"total;dur={total_s * 1e3:.2f}"


def error_answer(error: StayfastError, inbound: Inbound, common: bytes, request_id: str, *, keep_alive: bool,
                 total_s: float) -> bytes:
    """A whole error answer in the dialect of the path. `common` are header lines; `total_s` is how long it took."""
    status, headers, body = render(error, dialect(inbound.path), request_id)
    lines = [pair for pair in headers if pair[0] not in _OURS]
    stages = f"{error.server_timing}, " if error.server_timing is not None else ""
    lines.append(("server-timing", f"{stages}{total(total_s)}"))
    if isinstance(error, UpstreamFailed):
        lines.append(("x-stayfast-upstream", error.upstream))
    if status == HTTPStatus.UNAUTHORIZED:
        lines.append(("www-authenticate", "Bearer"))
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(("allow", ", ".join(allowed(inbound.path))))
    return b"%b%b%bcontent-length: %d\r\n%b\r\n%b" % (
        status_line(status), header_lines(lines), common, len(body), connection_line(inbound, keep_alive=keep_alive),
        b"" if inbound.method == "HEAD" else body)
