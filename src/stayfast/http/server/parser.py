"""Bytes to requests, without sockets: the parser, its limits, the checks of heads.

llhttp runs with every leniency off: a line end that is not CRLF, folding, NUL, a second or malformed Content-Length and
one beside Transfer-Encoding end here. Whatever two servers in a row could understand in two ways is how requests are
smuggled, so it is answered with 400 and the connection is closed. So is a header that is given twice, a transfer-encoding
other than chunked, and a target that is no path; RFC 9112 demands the `host` header of HTTP/1.1.

Reading goes on while a request is answered (that is how the client's leaving is seen), so several can be ready.
What is sent cannot grow memory: `_n_quiet` counts the bytes of a request since its last body byte, so trailers and chunk
extensions are bounded like a head, and a body that is refused already is read only as far as `SWALLOWED_BYTES`.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import httptools

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, StayfastError

FRAMING_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"connection"))
_HOST_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:[]"
_TARGET = re.compile(rb"(?:https?://[^/?#]*)?(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?", re.IGNORECASE)


def _no_peer() -> None:
    """Of a request that came by no connection."""


class HttpRequest:
    """A request. The parser fills it, the head check may set what it stands for; nothing changes it afterwards.

    A subclass names the headers that its application reads in `READ_HEADERS`, and those of them that may come in several
    lines (RFC 9110, 5.3) in `LIST_HEADERS`. The parser looks at no others.
    """

    READ_HEADERS: ClassVar[frozenset[bytes]] = FRAMING_HEADERS
    LIST_HEADERS: ClassVar[frozenset[bytes]] = frozenset((b"connection",))

    __slots__ = ("accepted_at", "body", "deadline_s", "fields", "is_broken", "is_http_10", "keep_alive", "method", "path",
                 "peer", "query", "raw_headers", "refusal")

    def __init__(self, accepted_at: float) -> None:
        self.accepted_at = accepted_at  # monotonic seconds, when its first byte was read
        self.method = ""
        self.peer: Callable[[], tuple[str, int] | None] = _no_peer  # the client's address, while its connection is there
        self.path = ""  # still quoted
        self.query = b""
        self.is_http_10 = False
        self.raw_headers: Sequence[tuple[bytes, bytes]] = ()  # the head check may drop them
        self.fields: dict[bytes, bytes] = {}  # lower-case names; those of READ_HEADERS but content-length
        self.body = b""
        self.keep_alive = False
        self.deadline_s = math.inf  # after its first byte; set by the head check: until then the body must be in
        self.refusal: StayfastError | None = None  # to be answered without being handled
        self.is_broken = False  # nothing that follows on its connection can be trusted

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.READ_HEADERS = cls.READ_HEADERS | FRAMING_HEADERS
        cls.LIST_HEADERS = cls.LIST_HEADERS | HttpRequest.LIST_HEADERS

    def deadline_error(self) -> StayfastError:
        """The answer when `deadline_s` is over before the body is in."""
        return Rejected(f"The request's body did not arrive in time ({self.deadline_s:g} s).", status=408,
                        code="request_timeout")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self.path}, body of {len(self.body)} bytes>"


def is_http_10(version: str) -> bool:
    """Whether it is HTTP/1.0. Raises Rejected for what is neither that nor 1.1."""
    if version not in ("1.0", "1.1"):
        raise Rejected(f"HTTP/{version} is not spoken here: use HTTP/1.1.", code="bad_version")
    return version == "1.0"


def split_target(target: bytes) -> tuple[str, bytes]:
    """Path and query of a request target in origin or absolute form. Raises Rejected."""
    found = _TARGET.fullmatch(target)
    if found is None:
        raise Rejected("The request target is not a path.", code="bad_request_target")
    return found[1].decode("ascii"), found[2] or b""


def read_fields(raw: Sequence[tuple[bytes, bytes]], request_type: type[HttpRequest], *,
                is_http_10: bool) -> dict[bytes, bytes]:
    """The headers that `request_type` reads, by lower-case name. Raises Rejected for what two servers could understand in
    two ways.
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
                raise Rejected(f"The header {key.decode()} is given twice.", code="duplicate_header", param=key.decode())
    host = fields.get(b"host")
    if host is None:
        if not is_http_10:
            raise Rejected("The header host is missing.", code="missing_host", param="host")
    elif host.translate(None, _HOST_CHARS):
        raise Rejected("The header host is not a host name.", code="bad_host", param="host")
    if (coding := fields.get(b"transfer-encoding")) is not None and (is_http_10 or coding.lower() != b"chunked"):
        raise Rejected("The only transfer-encoding understood is chunked, in HTTP/1.1.",
                       code="bad_transfer_encoding", param="transfer-encoding")
    if (expected := fields.get(b"expect")) is not None and expected.lower() != b"100-continue":
        raise Rejected("The only expectation understood is 100-continue.", status=417, code="bad_expectation",
                       param="expect")
    return fields


IDLE, HEAD, BODY = 0, 1, 2
MAX_PIPELINED = 64
READ_AHEAD_BYTES = 64 * 1024
SWALLOWED_BYTES = 256 * 1024  # of a refused body; a longer one costs the connection
SLOWEST_BODY_BYTES_S = 16 * 1024  # a body may take body_timeout_s and as long as this rate needs

R = TypeVar("R", bound=HttpRequest)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a connection accepts, and how long it waits. Sizes in bytes, durations in seconds."""

    max_body_bytes: int = 32 << 20  # 413 above it
    max_head_bytes: int = 64 * 1024  # request line and headers, 431 above it
    max_headers: int = 100
    max_connections: int = 10_000
    max_pending_connections: int = 4096  # on which no request was accepted yet; the oldest are closed above it
    max_pending_per_address: int = 512  # of them from one address; 0: any number
    max_pipelined: int = MAX_PIPELINED  # requests ready on one connection; the one after it is the last
    read_ahead_bytes: int = READ_AHEAD_BYTES  # taken in while a request is answered; above it the connection takes no more
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0  # from the request's first byte, besides what a body takes at 16 KiB/s
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 60.0  # a client that takes nothing for so long is cut off


class _Stop(Exception):  # no error: how a callback ends the parser's run
    """What to answer stands in the last request of `ready`."""


class RequestParser(Generic[R]):
    """One connection's requests, in the order they came. `check_head` says what to refuse once a head is in.

    `ready` holds whole requests, and refusals in their place. After `is_over` nothing more will come: the client said
    `connection: close`, or sent what cannot be trusted.
    """

    __slots__ = ("_began_at", "_body", "_check_head", "_clock", "_limits", "_n_body", "_n_fed", "_n_first", "_n_head",
                 "_n_quiet", "_parser", "_raw", "_replay", "_request", "_request_type", "_target", "is_over",
                 "owes_continue", "phase", "ready")

    def __init__(self, request_type: type[R], limits: HttpLimits, clock: Clock,
                 check_head: Callable[[R], StayfastError | None]) -> None:
        self._request_type = request_type
        self._limits = limits
        self._clock = clock
        self._check_head = check_head
        self._parser = httptools.HttpRequestParser(self)
        self.ready: deque[R] = deque()
        self.is_over = False
        self.owes_continue = False  # the client waits for 100 before it sends the body
        self.phase = IDLE
        self._began_at = 0.0
        self._request = request_type(0.0)
        self._target = b""
        self._raw: list[tuple[bytes, bytes]] = []
        self._body: bytes | bytearray = b""
        self._n_fed = 0  # bytes read for this request, and those before it in the same read
        self._n_head = 0  # bytes read for this request, without the read that it shares with the one before
        self._n_first = 0  # bytes of this read, until a request begins in it
        self._n_body = 0
        self._n_quiet = 0
        self._replay: bytes | None = None

    def feed(self, data: bytes) -> None:
        """Take what was read. Never raises: what is wrong becomes a refusal in `ready`."""
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
                data = self._without_upgrade() + data[upgrade.args[0]:]
                continue
            except httptools.HttpParserInvalidMethodError:
                self._break_off(Rejected("The request does not begin with a known method.", code="bad_method"))
            except httptools.HttpParserError as error:
                if not self.is_over:
                    self._break_off(_not_http(data, error))
            if self.phase != IDLE:
                self._check_size()
            return

    def close(self) -> None:
        """No more bytes will come. What it holds refers back to it or its owner, and a cycle would hold all until a
        full collection.
        """
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
        """By when the request that has begun must be in. Meaningless when idle."""
        if self.phase == HEAD:
            return self._began_at + self._limits.head_timeout_s
        limit_s = self._limits.body_timeout_s + self._n_body / SLOWEST_BODY_BYTES_S
        return self._began_at + min(limit_s, self._request.deadline_s)

    def restart_wait(self, now: float) -> None:
        """Count the client's time from here: until now nobody was waiting for it."""
        self._began_at = now

    def time_out(self) -> None:
        """Give up on the request that has begun."""
        if self.phase == BODY and self._request.deadline_s <= self._clock.now() - self._began_at:
            self._break_off(self._request.deadline_error())
            return
        part = "head" if self.phase == HEAD else "body"
        limit_s = self._limits.head_timeout_s if self.phase == HEAD else self._limits.body_timeout_s
        self._break_off(Rejected(f"The request's {part} did not arrive in time ({limit_s:g} s).", status=408,
                                 code="request_timeout"))

    def stop(self, error: StayfastError) -> None:
        """Take no more requests: `error` follows those that are ready, and what still comes is dropped."""
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
        """The parser has a header, or a trailer, which nobody reads."""
        self._raw.append((name, value))

    def on_headers_complete(self) -> None:
        """The parser has the head: everything that can be refused without the body is refused here."""
        request, parser, limits = self._request, self._parser, self._limits
        raw, self._raw = self._raw, []  # what comes afterwards are trailers
        target, self._target = self._target, b""
        method = parser.get_method()
        request.method = "POST" if method == b"POST" else method.decode()
        version = parser.get_http_version()
        if parser.should_upgrade():
            if method == b"CONNECT":
                self._stop(Rejected("This is no proxy: CONNECT is not answered.", status=405, code="bad_method"))
            self._replay = _plain_head(method, target, version, raw)
            return
        try:
            request.path, request.query = split_target(target)
            if len(raw) > limits.max_headers or (self._n_fed > limits.max_head_bytes < _weight(target, raw)):
                self._stop(self._head_too_large())
            if version != "1.1":
                request.is_http_10 = is_http_10(version)
            request.fields = fields = read_fields(raw, self._request_type, is_http_10=request.is_http_10)
        except Rejected as error:
            self._stop(error)
        self.phase = BODY
        self._n_body = self._n_quiet = 0
        n_body = int(fields.pop(b"content-length", b"0"))
        if n_body > limits.max_body_bytes:
            self._stop(self._body_too_large())
        request.raw_headers = raw
        request.refusal = self._check_head(request)
        if b"expect" in fields:
            self._expect(request, has_body=n_body > 0 or b"transfer-encoding" in fields)

    def _expect(self, request: R, *, has_body: bool) -> None:
        if request.is_http_10 or not has_body:
            return
        if request.refusal is not None:
            self._stop(request.refusal)  # the body may or may not come: only a close is unambiguous
        self.owes_continue = True

    def on_body(self, part: bytes) -> None:
        self._n_quiet = 0
        self._n_body += len(part)
        if self._n_body > self._limits.max_body_bytes:
            self._stop(self._body_too_large())
        refusal = self._request.refusal
        if refusal is not None:
            if self._n_body > SWALLOWED_BYTES:
                self._stop(refusal)
        elif not self._body:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # a list of parts would cost 40 bytes for a chunk of one
            self._body += part

    def on_message_complete(self) -> None:
        if self._replay is not None:
            return
        if self._raw:
            self._raw = []
        self.owes_continue = False
        request, body = self._request, self._body
        if body:
            request.body = bytes(body)  # bytes stay as they are
            self._body = b""
        self.phase = IDLE
        self.ready.append(request)
        if self._parser.should_keep_alive() and len(self.ready) <= self._limits.max_pipelined:
            request.keep_alive = True
        else:
            self.is_over = True
            raise _Stop

    def _without_upgrade(self) -> bytes:
        """The head again, as it is without its offer, for a parser that has not seen it."""
        head, self._replay = self._replay, None
        self._parser = httptools.HttpRequestParser(self)
        self.phase = IDLE
        return head or b""

    def _stop(self, error: StayfastError) -> None:
        self._break_off(error)
        raise _Stop

    def _break_off(self, error: StayfastError) -> None:
        request = self._request
        if self.phase == IDLE:  # the bytes are not even the start of a request
            request = self._request_type(self._clock.now())
        elif not request.path:
            request.path = _readable(self._target)
        request.refusal = error
        request.is_broken = True
        request.keep_alive = False
        self._body, self._raw, self._target = b"", [], b""
        self.owes_continue = False
        self.is_over = True
        self.phase = IDLE
        self.ready.append(request)

    def _head_too_large(self) -> Rejected:
        limits = self._limits
        return Rejected(f"The request's head is larger than {limits.max_head_bytes} bytes or {limits.max_headers} headers.",
                        status=431, code="head_too_large")

    def _body_too_large(self) -> Rejected:
        return Rejected(f"The request's body is larger than {self._limits.max_body_bytes} bytes.", status=413,
                        code="body_too_large")


def _plain_head(method: bytes, target: bytes, version: str, raw: list[tuple[bytes, bytes]]) -> bytes:
    """A request's head without its offer to change the protocol (JDK's client makes one with every first request)."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    for name, value in raw:
        key = name.lower()
        if key == b"connection":
            options = [part for part in value.lower().split(b",") if part.strip() in (b"close", b"keep-alive")]
            lines.append(b"connection: " + b",".join(options))
        elif key not in (b"upgrade", b"http2-settings"):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _weight(target: bytes, raw: list[tuple[bytes, bytes]]) -> int:
    """Bytes of a head, as they were sent."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in raw)


def _not_http(data: bytes, error: httptools.HttpParserError) -> Rejected:
    why = "HTTP/2 is not spoken here" if data.startswith(b"PRI * HTTP/2.0") else error
    return Rejected(f"This is not HTTP/1.1: {why}.", code="bad_http")


def _readable(target: bytes) -> str:
    """As much of a path as tells whose dialect the refusal takes."""
    try:
        return split_target(target)[0]
    except Rejected:
        return ""
