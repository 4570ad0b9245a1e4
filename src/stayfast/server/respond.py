"""The heads of the gateway's answers, its errors, and request ids. Constant parts are built once."""

from http import HTTPStatus

from stayfast.core.errors import StayfastError, UpstreamFailed
from stayfast.http.server.response import connection_line, header_lines, status_line, stream_head, whole_response
from stayfast.server.inbound import Inbound
from stayfast.server.routes import allowed, dialect
from stayfast.wire.errors import render

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that its multiples meet every 64-bit number before one comes again
_MASK = (1 << 64) - 1

_OURS = frozenset(("x-request-id", "content-length", "connection"))
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS_HEAD = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
                b"x-accel-buffering: no\r\n")


class RequestIds:
    """Request ids that repeat neither in this process nor, but for a tiny chance, in another. One loop's."""

    __slots__ = ("_at",)

    def __init__(self, entropy: bytes) -> None:
        self._at = int.from_bytes(entropy[:8])

    def next(self) -> str:
        """A new id: `req_` and 16 hex digits."""
        self._at = at = (self._at + _STRIDE) & _MASK
        return f"req_{at:016x}"


def json_answer(body: bytes, common: bytes, connection: bytes) -> bytes:
    """A whole 200 answer. `common` are header lines."""
    return b"%bcontent-length: %d\r\n%b%b\r\n%b" % (_JSON_HEAD, len(body), common, connection, body)


def events_head(common: bytes, connection: bytes, *, is_chunked: bool) -> bytes:
    """The head of a streamed answer."""
    return stream_head(_EVENTS_HEAD + common, connection, is_chunked=is_chunked)


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
    return whole_response(status_line(status) + header_lines(lines) + common, body,
                          connection_line(inbound, keep_alive=keep_alive), has_body=inbound.method != "HEAD")
