"""Answers as bytes. Constant parts are built once."""

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from stayfast.core.clock import Clock

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CLOSE = b"connection: close\r\n"
_STATUS_LINE = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_STATUS_LINE[529] = b"HTTP/1.1 529 Overloaded\r\n"  # Anthropic's own
_FRAMING = frozenset(("connection", "content-length", "date", "transfer-encoding"))

Headers = Iterable[tuple[str, str]]


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


def head(status: int, headers: Headers, date: bytes, framing: bytes) -> bytes:
    """The head of an answer. `headers` are the provider's; what frames the body is ours: `framing` are header lines."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers if name not in _FRAMING])
    first = _STATUS_LINE.get(status) or b"HTTP/1.1 %d Status\r\n" % status
    return b"%b%b%b%b\r\n" % (first, fields.encode("latin-1"), date, framing)


def whole(status: int, headers: Headers, body: bytes, date: bytes, *, keep_alive: bool) -> bytes:
    """A whole answer."""
    framing = b"content-length: %d\r\n%b" % (len(body), b"" if keep_alive else CLOSE)
    return head(status, headers, date, framing) + body


def frame(data: bytes) -> bytes:
    """One chunk of a chunked body. `data` must not be empty: an empty chunk is the last."""
    return b"%x\r\n%b\r\n" % (len(data), data)
