"""Parses HTTP/1.1 requests, without sockets: the parser, its limits, and the validation of heads.

Request smuggling uses bytes that two servers interpret differently. All such bytes are answered with 400 and the connection
is closed. llhttp, with all leniency off, rejects line ends other than CRLF, folding, NUL, and a Content-Length that is
malformed, repeated or beside Transfer-Encoding. This module rejects duplicate headers, transfer codings other than chunked,
targets other than a path, and a missing `host` (required by RFC 9112).

Parsing continues while a request is answered, so several requests may be ready. Memory is bounded: `_n_quiet` counts the
bytes since the last body byte, so trailers and chunk extensions are limited like a head. Of a rejected body at most 256 KiB
are read.

A request is ready when its body is complete. With a streamed body (`HttpRequest.stream_body`) it is ready after its head;
`body_parts` then receives the body, and its errors. After an accepted upgrade (`HttpRequest.switch_protocol`) `body_parts`
receives all further bytes, and nothing is parsed.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import httptools
import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, StayfastError
from stayfast.http.server.body_parts import BodyParts

FRAMING_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"connection"))
_HOST_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
_TARGET = re.compile(rb"(?:(?i:https?)://[^/?#]*)?(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?")


def _no_peer() -> None:
    """The peer of a request without a connection."""


class HttpRequest(msgspec.Struct, eq=False):
    """A request. The parser fills it, and the head check may set fields of a subclass; it does not change afterwards.

    A subclass lists the headers that its application reads in `READ_HEADERS`, and those that may occur in several lines
    (RFC 9110, 5.3) in `LIST_HEADERS`. The parser ignores all others.
    """

    READ_HEADERS: ClassVar[frozenset[bytes]] = FRAMING_HEADERS
    LIST_HEADERS: ClassVar[frozenset[bytes]] = frozenset((b"connection",))

    accepted_at: float  # monotonic seconds; when the first byte was read
    method: str = ""
    peer: Callable[[], tuple[str, int] | None] = _no_peer  # the client's address, while the connection is open
    path: str = ""  # percent-encoded
    query: bytes = b""
    is_http_10: bool = False
    raw_headers: Sequence[tuple[bytes, bytes]] = ()  # the head check may drop them
    fields: dict[bytes, bytes] = {}  # READ_HEADERS except content-length, by lower-case name
    body: bytes = b""
    body_parts: BodyParts | None = None  # the streamed body; `body` is then empty
    keep_alive: bool = False
    deadline_s: float = math.inf  # for the whole body, from the first byte; set by the head check
    refusal: StayfastError | None = None  # the error to send instead of handling the request
    is_broken: bool = False  # the connection must be closed: the following bytes cannot be trusted

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.READ_HEADERS = cls.READ_HEADERS | FRAMING_HEADERS
        cls.LIST_HEADERS = cls.LIST_HEADERS | HttpRequest.LIST_HEADERS

    def stream_body(self, limit_bytes: int) -> None:
        """Start the handler before the body has arrived: it reads `body_parts`. Only the head check may call this.

        `limit_bytes` replaces `HttpLimits.max_body_bytes`.
        """
        self.body_parts = BodyParts(limit_bytes)

    def switch_protocol(self) -> None:
        """Accept an upgrade to WebSocket: `body_parts` are all bytes after the head. Only the head check may call this, by
        `websocket_handshake.offer_websocket`.
        """
        self.body_parts = BodyParts(0, is_raw=True)

    def deadline_error(self) -> StayfastError:
        """The error when `deadline_s` passes before the body is complete."""
        return Rejected(f"The request's body did not arrive in time ({self.deadline_s:g} s).", status=408,
                        code="request_timeout")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self.path}, body of {len(self.body)} bytes>"


def is_http_10(version: str) -> bool:
    """Whether the version is 1.0. Raises Rejected unless it is 1.0 or 1.1."""
    if version not in ("1.0", "1.1"):
        raise Rejected(f"HTTP/{version} is not supported: use HTTP/1.1.", code="bad_version")
    return version == "1.0"


def split_target(target: bytes) -> tuple[str, bytes]:
    """Path and query of a request target in origin or absolute form. Raises Rejected."""
    found = _TARGET.fullmatch(target)
    if found is None:
        raise Rejected("The request target is not a path.", code="bad_request_target")
    return found[1].decode("ascii"), found[2] or b""


def read_fields(raw: Sequence[tuple[bytes, bytes]], request_type: type[HttpRequest], *,
                is_http_10: bool) -> dict[bytes, bytes]:
    """The headers that `request_type` reads, by lower-case name. Raises Rejected for headers that servers may interpret
    differently.
    """
    names, lists = request_type.READ_HEADERS, request_type.LIST_HEADERS
    fields: dict[bytes, bytes] = {}
    for name, value in raw:
        key = name.lower()
        if key in names:
            if key not in fields:
                fields[key] = value
            elif key in lists:
                fields[key] += b", " + value
            else:
                raise Rejected(f"The header {key.decode()} occurs twice.", code="duplicate_header", param=key.decode())
    host = fields.get(b"host")
    if host is None:
        if not is_http_10:
            raise Rejected("The header host is missing.", code="missing_host", param="host")
    elif host.translate(None, _HOST_CHARS):
        raise Rejected("The header host is not a host name.", code="bad_host", param="host")
    if b"transfer-encoding" in fields and (is_http_10 or fields[b"transfer-encoding"].lower() != b"chunked"):
        raise Rejected("The only supported transfer-encoding is chunked, in HTTP/1.1.",
                       code="bad_transfer_encoding", param="transfer-encoding")
    if b"expect" in fields and fields[b"expect"].lower() != b"100-continue":
        raise Rejected("The only supported value of the header expect is 100-continue.", status=417,
                       code="bad_expectation", param="expect")
    return fields


IDLE, HEAD, BODY = 0, 1, 2
MAX_PIPELINED = 64
READ_AHEAD_BYTES = 64 * 1024
MAX_DISCARDED_BYTES = 256 * 1024  # read of a rejected body; a longer one closes the connection
MIN_BODY_BYTES_PER_S = 16 * 1024  # a body may take body_timeout_s plus its size at this rate

R = TypeVar("R", bound=HttpRequest)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of a connection. Sizes in bytes, durations in seconds."""

    max_body_bytes: int = 32 << 20  # 413 above it
    max_head_bytes: int = 64 * 1024  # request line and headers, 431 above it
    max_headers: int = 100
    max_connections: int = 10_000
    max_pending_connections: int = 4096  # connections without an accepted request; above it the oldest are closed
    max_pending_per_address: int = 512  # the same from one address; 0: no limit
    max_pipelined: int = MAX_PIPELINED  # complete requests waiting on one connection
    read_ahead_bytes: int = READ_AHEAD_BYTES  # read while a request is answered; above it the connection is closed
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0  # from the request's first byte, plus the time of the body at 16 KiB/s
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 60.0  # a client that reads nothing for so long is disconnected


class _Stop(Exception):  # stops llhttp from a callback; the error is in the last request of `ready`
    pass


class RequestParser(Generic[R]):
    """The requests of one connection, in order. `check_head` returns the error for a head that must be rejected.

    `ready` holds complete requests, and rejected ones with their error. After `is_over` no request follows: the client sent
    `connection: close` or invalid bytes.
    """

    __slots__ = ("_began_at", "_body", "_check_head", "_clock", "_limits", "_n_body", "_n_fed", "_n_first", "_n_head",
                 "_n_quiet", "_parser", "_raw", "_replay", "_request", "_request_type", "_target", "expects_continue",
                 "is_over", "phase", "ready")

    def __init__(self, request_type: type[R], limits: HttpLimits, clock: Clock,
                 check_head: Callable[[R], StayfastError | None]) -> None:
        self._request_type = request_type
        self._limits = limits
        self._clock = clock
        self._check_head = check_head
        self._parser = httptools.HttpRequestParser(self)
        self.ready: deque[R] = deque()
        self.is_over = False
        self.expects_continue = False  # the client waits for 100 Continue
        self.phase = IDLE
        self._began_at = 0.0
        self._request = request_type(0.0)
        self._target = b""
        self._raw: list[tuple[bytes, bytes]] = []
        self._body: bytes | bytearray = b""
        self._n_fed = 0  # bytes read for this request, plus those before it in the same read
        self._n_head = 0  # bytes read for this request, without a read shared with the previous one
        self._n_first = 0  # bytes of this read, until a request begins in it
        self._n_body = 0
        self._n_quiet = 0  # bytes since the last body byte
        self._replay: bytes | None = None  # the head without its upgrade offer

    def feed(self, data: bytes) -> None:
        """Parse more bytes. Never raises: an error becomes a rejected request in `ready`."""
        n_bytes = len(data)
        if self.phase == IDLE:
            self._n_fed = self._n_first = n_bytes
        else:
            self._n_fed += n_bytes
            self._n_head += n_bytes
            self._n_quiet += n_bytes
            self._n_first = 0
        while not self.is_over:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0]:]
                if not self.is_over:
                    data = self._restart_without_upgrade() + data
                if data:
                    continue
                return
            except httptools.HttpParserInvalidMethodError:
                self._break_off(Rejected("The request does not begin with a known method.", code="bad_method"))
            except httptools.HttpParserError as error:
                if not self.is_over:
                    why = "HTTP/2 is not supported" if data.startswith(b"PRI * HTTP/2.0") else error
                    self._break_off(Rejected(f"This is not HTTP/1.1: {why}.", code="bad_http"))
            if self.phase != IDLE:
                self._check_size()
            return
        self._feed_other_protocol(data)

    def close(self) -> None:
        """The connection is closed. Breaks the reference cycles with its owner."""
        self.is_over = True
        self._request = self._request_type(0.0)
        del self._parser, self._check_head

    def _check_size(self) -> None:
        limits = self._limits
        if self.phase == HEAD:
            if self._n_head > limits.max_head_bytes:
                self._break_off(self._head_too_large())
        elif len(self._raw) > limits.max_headers or self._n_quiet > limits.max_head_bytes:
            self._break_off(self._head_too_large())

    def due_at(self) -> float:
        """The deadline of the current head or body. Undefined when idle."""
        if self.phase == HEAD:
            return self._began_at + self._limits.head_timeout_s
        request, timeout_s = self._request, self._limits.body_timeout_s
        due_at = self._began_at + min(timeout_s + self._n_body / MIN_BODY_BYTES_PER_S, request.deadline_s)
        return due_at if request.body_parts is None else min(due_at, request.body_parts.fed_at + timeout_s)

    def restart_timeout(self, now: float) -> None:
        """Restart the time-out of the current request: until now the client waited for the server."""
        self._began_at = now
        if self._request.body_parts is not None:
            self._request.body_parts.fed_at = now

    def extend_timeout(self, pause_s: float) -> None:
        """Exclude a pause, in which the server did not read, from the time-out of a streamed body."""
        self._began_at += pause_s
        if self._request.body_parts is not None:
            self._request.body_parts.fed_at += pause_s

    def reject_timed_out(self) -> None:
        """Reject the current request because its deadline has passed."""
        if self.phase == BODY and self._request.deadline_s <= self._clock.now() - self._began_at:
            self._break_off(self._request.deadline_error())
            return
        part = "head" if self.phase == HEAD else "body"
        limit_s = self._limits.head_timeout_s if self.phase == HEAD else self._limits.body_timeout_s
        self._break_off(Rejected(f"The request's {part} did not arrive in time ({limit_s:g} s).", status=408,
                                 code="request_timeout"))

    def reject_further(self, error: StayfastError) -> None:
        """Accept no more requests: `error` is sent after the ready ones, and further bytes are dropped."""
        if not self.is_over:
            self._break_off(error)

    def on_message_begin(self) -> None:
        self._began_at = began_at = self._clock.now()
        self._request = self._request_type(began_at)
        self._n_head, self._n_first = self._n_first, 0
        self.phase = HEAD

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """llhttp parsed a header or a trailer. Trailers are dropped."""
        self._raw.append((name, value))

    def on_headers_complete(self) -> None:
        """llhttp parsed the head: reject everything that can be rejected without the body."""
        request, parser, limits = self._request, self._parser, self._limits
        raw, self._raw = self._raw, []  # later headers are trailers
        target, self._target = self._target, b""
        method = parser.get_method()
        request.method = "POST" if method == b"POST" else method.decode()
        version = parser.get_http_version()
        if parser.should_upgrade() and self._drops_upgrade(method, target, version, raw):
            return
        try:
            request.path, request.query = split_target(target)
            if len(raw) > limits.max_headers or (self._n_fed > limits.max_head_bytes < _n_head_bytes(target, raw)):
                self._stop(self._head_too_large())
            if version != "1.1":
                request.is_http_10 = is_http_10(version)
            request.fields = fields = read_fields(raw, self._request_type, is_http_10=request.is_http_10)
        except Rejected as error:
            self._stop(error)
        self.phase = BODY
        self._n_body = self._n_quiet = 0
        n_body = int(fields.pop(b"content-length", b"0"))
        request.raw_headers = raw
        request.refusal = self._check_head(request)
        if request.body_parts is not None:
            self._start_stream(request, request.body_parts, n_body)
        elif n_body > limits.max_body_bytes and request.refusal is None:
            self._stop(_body_too_large(limits.max_body_bytes))
        if b"expect" in fields and not request.is_http_10 and (n_body > 0 or b"transfer-encoding" in fields):
            if request.refusal is not None:
                self._stop(request.refusal)  # the client may or may not send the body: only closing is unambiguous
            self.expects_continue = True

    def _drops_upgrade(self, method: bytes, target: bytes, version: str, raw: list[tuple[bytes, bytes]]) -> bool:
        """Whether the head must be parsed again without its upgrade offer, because only WebSocket's can be accepted."""
        if method == b"CONNECT":
            self._stop(Rejected("CONNECT is not supported: the gateway is not a forward proxy.", status=405,
                                code="bad_method"))
        if method == b"GET" and _offers_websocket(raw, version):
            return False
        self._replay = _head_without_upgrade(method, target, version, raw)
        return True

    def on_body(self, part: bytes) -> None:
        self._n_quiet = 0
        self._n_body += len(part)
        request = self._request
        if request.body_parts is not None:
            self._stream_part(request.body_parts, part)
        elif request.refusal is not None:
            if self._n_body > MAX_DISCARDED_BYTES:
                self._stop(request.refusal)
        elif self._n_body > self._limits.max_body_bytes:
            self._stop(_body_too_large(self._limits.max_body_bytes))
        elif not self._body:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # a list of parts would take 40 bytes for each 1-byte chunk
            self._body += part

    def on_message_complete(self) -> None:
        if self._replay is not None:
            return
        if self._raw:
            self._raw = []
        self.expects_continue = False
        request, body = self._request, self._body
        if body:
            request.body = bytes(body)  # no copy of bytes
            self._body = b""
        self.phase = IDLE
        parts = request.body_parts
        if parts is None:
            self.ready.append(request)
        elif parts.is_raw:
            self.is_over = True
            return
        else:
            parts.end()
        if self._parser.should_keep_alive() and len(self.ready) <= self._limits.max_pipelined:
            request.keep_alive = parts is None or not parts.is_answered
        else:
            self.is_over = True
            raise _Stop

    def _start_stream(self, request: R, parts: BodyParts, n_body: int) -> None:
        if request.refusal is not None:
            request.body_parts = None
        elif parts.is_raw and not self._parser.should_upgrade():
            request.body_parts = None
            self._stop(Rejected("This request offers no upgrade to WebSocket.", code="bad_websocket_handshake"))
        elif n_body > parts.limit_bytes:
            request.body_parts = None
            self._stop(_body_too_large(parts.limit_bytes))
        else:
            parts.fed_at = self._began_at
            self.ready.append(request)

    def _stream_part(self, parts: BodyParts, part: bytes) -> None:
        if self._n_body > parts.limit_bytes:
            self._stop(_body_too_large(parts.limit_bytes))
        parts.fed_at = self._clock.now()
        parts.feed(part)

    def _feed_other_protocol(self, data: bytes) -> None:
        """Bytes after the last request: dropped, unless it was an upgrade."""
        request = self._request
        parts = request.body_parts
        if parts is None or not parts.is_raw:
            return
        if parts.flow is None and request.refusal is None:
            request.refusal = Rejected("A WebSocket client must send nothing before the response to its handshake.",
                                       code="bad_websocket_handshake")
            request.is_broken = True
        elif parts.flow is not None:
            parts.feed(data)

    def _restart_without_upgrade(self) -> bytes:
        """Make a new llhttp parser. Returns the current head without its upgrade offer, to be parsed again, unless it has
        become a request.
        """
        head, self._replay = self._replay, None
        self._parser = httptools.HttpRequestParser(self)
        self.phase = IDLE
        return head or b""

    def _stop(self, error: StayfastError) -> None:
        self._break_off(error)
        raise _Stop

    def _break_off(self, error: StayfastError) -> None:
        request = self._request
        if self.phase == IDLE:  # the bytes do not begin a request
            request = self._request_type(self._clock.now())
        elif not request.path:
            with suppress(Rejected):  # the path selects the dialect of the error
                request.path = split_target(self._target)[0]
        request.is_broken = True
        request.keep_alive = False
        self._body, self._raw, self._target = b"", [], b""
        self.expects_continue = False
        self.is_over = True
        self.phase = IDLE
        parts = request.body_parts
        if parts is not None:
            parts.fail(error)
        if parts is None or (self.ready and self.ready[-1] is request):  # else its handler is running
            request.refusal = error
        if parts is None:
            self.ready.append(request)

    def _head_too_large(self) -> Rejected:
        limits = self._limits
        return Rejected(f"The request's head is larger than {limits.max_head_bytes} bytes or {limits.max_headers} headers.",
                        status=431, code="head_too_large")


def _body_too_large(limit_bytes: int) -> Rejected:
    return Rejected(f"The request's body is larger than {limit_bytes} bytes.", status=413, code="body_too_large")


def _head_without_upgrade(method: bytes, target: bytes, version: str, raw: list[tuple[bytes, bytes]]) -> bytes:
    """A head without its upgrade offer. The JDK's client offers HTTP/2 with its first request."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    for name, value in raw:
        key = name.lower()
        if key == b"connection":
            options = [part for part in value.lower().split(b",") if part.strip() in (b"close", b"keep-alive")]
            lines.append(b"connection: " + b",".join(options))
        elif key not in (b"upgrade", b"http2-settings"):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _offers_websocket(raw: list[tuple[bytes, bytes]], version: str) -> bool:
    """Whether a head offers an upgrade to WebSocket. It has no body then."""
    names = [name.lower() for name, _ in raw]
    return version == "1.1" and b"content-length" not in names and b"transfer-encoding" not in names and any(
        value.lower() == b"websocket" for name, (_, value) in zip(names, raw, strict=True) if name == b"upgrade")


def _n_head_bytes(target: bytes, raw: list[tuple[bytes, bytes]]) -> int:
    """The size of target and headers, as sent."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in raw)
