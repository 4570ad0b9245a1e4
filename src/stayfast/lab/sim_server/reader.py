"""Bytes to requests, without sockets. Bounded: a head, a body, and what a client may send ahead of its answers."""

from collections import deque

import httptools

from stayfast.core.errors import Rejected

MAX_HEAD_BYTES = 64 * 1024
IDLE, HEAD, BODY = 0, 1, 2
SLACK = 8  # a body in chunks of one byte is six times its size on the wire
_READ = frozenset((b"authorization", b"x-api-key", b"expect", b"content-length", b"transfer-encoding"))


class Inbound:
    """A request as it came. `target` is undecoded, with its query; `fields` holds the headers that somebody here reads."""

    __slots__ = ("body", "fields", "is_http_10", "keep_alive", "method", "refusal", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.fields: dict[bytes, bytes] = {}
        self.body = b""
        self.is_http_10 = False
        self.keep_alive = False
        self.refusal: Rejected | None = None  # what follows on the connection cannot be trusted

    @property
    def key(self) -> bytes:
        """The API key that came with it; empty without one."""
        return self.fields.get(b"x-api-key") or self.fields.get(b"authorization", b"").removeprefix(b"Bearer ")

    def __repr__(self) -> str:
        return f"<Inbound {self.method!r} {self.target!r}, body of {len(self.body)} bytes>"


class _Stop(Exception):  # no error: how a callback ends the parser's run
    """What to answer stands in the last request of `ready`."""


class Reader:
    """One connection's requests, in the order they came. After `is_over` no more will come."""

    __slots__ = ("_body", "_inbound", "_is_offer", "_max_body_bytes", "_n_body", "_n_fed", "_n_head", "_parser", "_phase",
                 "is_over", "owes_continue", "ready")

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._inbound = Inbound()
        self._phase = IDLE
        self._body: list[bytes] = []
        self._n_body = 0
        self._n_fed = 0  # bytes read since this request began, its first read aside
        self._n_head = 0  # bytes of its headers
        self._is_offer = False  # it would rather speak another protocol
        self.ready: deque[Inbound] = deque()
        self.is_over = False
        self.owes_continue = False  # the client waits for 100 before it sends the body

    def feed(self, data: bytes) -> None:
        """Take what was read. Never raises: what is wrong becomes a refusal in `ready`."""
        if self.is_over:
            return
        self._n_fed += len(data)
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_offer() + data[upgrade.args[0]:]
                continue
            except httptools.HttpParserError as error:
                if not self.is_over:
                    self._refuse(Rejected(f"This is not HTTP/1.1: {error}.", code="bad_http"))
            break
        if self._phase == HEAD and self._n_fed > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        elif self._n_fed > MAX_HEAD_BYTES + SLACK * self._max_body_bytes:
            self._refuse(self._body_too_large())

    def on_message_begin(self) -> None:
        """The parser saw the first byte of a request."""
        self._inbound = Inbound()
        self._phase = HEAD
        self._n_fed = self._n_head = 0

    def on_url(self, part: bytes) -> None:
        """The parser has a part of the target."""
        self._inbound.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser has a header, or a trailer, which nobody reads."""
        if self._phase != HEAD:
            return
        key = name.lower()
        if key in _READ:
            self._inbound.fields[key] = value
        self._n_head += len(name) + len(value) + 4
        if self._n_head > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
            raise _Stop

    def on_headers_complete(self) -> None:
        """The parser has the head."""
        inbound, parser = self._inbound, self._parser
        self._phase = BODY
        inbound.method = parser.get_method()
        if parser.should_upgrade():
            self._is_offer = True
            return
        inbound.is_http_10 = parser.get_http_version() == "1.0"
        self.owes_continue = b"expect" in inbound.fields and not inbound.is_http_10

    def on_body(self, part: bytes) -> None:
        """The parser has a part of the body."""
        self.owes_continue = False
        self._n_body += len(part)
        if self._n_body > self._max_body_bytes:
            self._refuse(self._body_too_large())
            raise _Stop
        self._body.append(part)

    def on_message_complete(self) -> None:
        """The parser has a whole request."""
        if self._is_offer:
            return
        inbound, parts = self._inbound, self._body
        if parts:
            inbound.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._body = []
            self._n_body = 0
        self.owes_continue = False
        self._phase = IDLE
        self._n_fed = 0
        self.ready.append(inbound)
        inbound.keep_alive = not inbound.is_http_10 and self._parser.should_keep_alive()
        if not inbound.keep_alive:
            self.is_over = True
            raise _Stop

    def _without_offer(self) -> bytes:
        """The head again, without its offer to change the protocol (some clients make one with every first request)."""
        inbound = self._inbound
        self._is_offer = False
        self._phase = IDLE
        self._parser = httptools.HttpRequestParser(self)
        fields = b"".join(b"%b: %b\r\n" % pair for pair in inbound.fields.items())
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (inbound.method, inbound.target, fields)

    def _refuse(self, error: Rejected) -> None:
        inbound = self._inbound if self._phase != IDLE else Inbound()
        inbound.refusal = error
        inbound.keep_alive = False
        self._body = []
        self._phase = IDLE
        self.owes_continue = False
        self.is_over = True
        self.ready.append(inbound)

    def _body_too_large(self) -> Rejected:
        return Rejected(f"The request's body is larger than {self._max_body_bytes} bytes.", status=413,
                        code="body_too_large")

    def __repr__(self) -> str:
        return f"<Reader {'over' if self.is_over else 'reading'}, {len(self.ready)} ready>"


def _head_too_large() -> Rejected:
    return Rejected(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.", status=431, code="head_too_large")
