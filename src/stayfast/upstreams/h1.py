"""One HTTP/1.1 connection, one request at a time.

What a peer sends cannot grow memory: `_n_quiet` counts the bytes that came since the last body byte, so heads, trailers,
chunk extensions and interim answers are all bounded by `max_head_bytes`; the body by pausing the socket above `HIGH_WATER`.
A connection goes back to the pool when its answer is whole, whether or not the reader has caught up.
"""

import asyncio
from collections.abc import Mapping

import httptools

from stayfast.core.errors import Fault
from stayfast.upstreams.answer import Answer, Outgoing
from stayfast.upstreams.pool import Pool

HIGH_WATER = 65_536  # unread bytes; with libuv's read size of 256 KiB an answer holds at most 320 KiB
MAX_NAMES = 128  # header names remembered on one connection
JOIN_BELOW = 65_536  # bytes; a copy of less is cheaper than a second buffer or TLS record


class NotOurs(Exception):
    """What comes is not wanted: the connection must not be used again."""


class H1Connection(asyncio.Protocol):
    """A connection, the parser of its answers and the answer in progress."""

    __slots__ = ("_answer", "_can_reuse", "_headers", "_is_done", "_is_gone", "_is_head", "_is_interim", "_is_paused",
                 "_loop", "_max_head_bytes", "_n_quiet", "_name", "_names", "_parser", "_pool", "_transport",
                 "idle_since", "is_listed", "n_active")

    def __init__(self, name: str, transport: asyncio.Transport, pool: Pool, max_head_bytes: int,
                 loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._transport = transport
        self._pool = pool
        self._max_head_bytes = max_head_bytes
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}
        self._names: dict[bytes, str] = {}  # a peer writes the same names in every answer
        self._n_quiet = 0
        self._is_head = False
        self._is_interim = False
        self._is_done = False
        self._can_reuse = False
        self._is_paused = False
        self._is_gone = False
        self.is_listed = False
        self.idle_since = 0.0
        self.n_active = 0

    def reserve(self) -> bool:
        """See `pool.Connection`: one request at a time."""
        self.n_active = 1
        return False

    def unreserve(self) -> None:
        """See `pool.Connection`."""
        self.n_active = 0

    def request(self, outgoing: Outgoing) -> Answer:
        """Write the request; the answer fills as bytes come."""
        answer = Answer(self, self._name, self._loop)
        if self._is_gone or self._transport.is_closing():
            answer.was_refused = True
            answer.fail(Fault.RESET, "the connection closed before the request was sent")
            self.abort()
            return answer
        self._answer = answer
        self._is_head = outgoing.method == "HEAD"
        self._n_quiet = 0
        transport = self._transport
        is_first = self._pool.turn.is_first(self._loop.time())
        if is_first:
            transport.set_write_buffer_limits(high=0)  # uvloop then sends it now, where there is no TLS, not after the turn
        if len(outgoing.body) < JOIN_BELOW:
            transport.write(outgoing.head + outgoing.body)
        else:
            transport.writelines((outgoing.head, outgoing.body))
        if is_first:
            transport.set_write_buffer_limits()
        return answer

    def abort(self) -> None:
        """See `pool.Connection`."""
        self._answer = None
        self._transport.abort()
        self._leave()

    def drained(self, answer: Answer, n_bytes: int) -> None:
        """See `answer.Carrier`."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def abandon(self, answer: Answer) -> None:
        """See `answer.Carrier`."""
        if answer is self._answer:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; end the exchange when the answer is whole, broken or too big."""
        if self._answer is None:
            self.abort()  # an idle peer has nothing to say but that it is closing
            return
        self._n_quiet += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._can_reuse = False
            if not self._is_done and self._n_quiet <= self._max_head_bytes:
                self._fail("the answer is not HTTP/1.1")
                return
        if self._is_done:
            self._end()
        elif self._n_quiet > self._max_head_bytes:
            self._fail(f"more than {self._max_head_bytes} bytes of head or trailers")

    def connection_lost(self, exc: Exception | None) -> None:
        """A body without a length ends here; any other answer is broken."""
        answer, self._answer = self._answer, None
        self._leave()
        if answer is None:
            return
        if exc is None and answer.status and is_until_close(answer.headers):
            answer.finish()
            return
        answer.was_untouched = not answer.status and not self._n_quiet
        answer.fail(Fault.RESET, "the connection closed before the answer was whole")

    def on_message_begin(self) -> None:
        """httptools: the first byte of a message."""
        if self._is_done:
            raise NotOurs

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a whole field, of the head or the trailers."""
        key = self._names.get(name) or self._learn(name)
        text = value.decode("latin-1")
        headers = self._headers
        headers[key] = text if key not in headers else f"{headers[key]}, {text}"  # RFC 9110 5.3

    def on_headers_complete(self) -> None:
        """httptools: the head is in."""
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, {}
        self._is_interim = status < 200
        if self._is_interim:
            return
        if self._n_quiet > self._max_head_bytes and n_bytes_of(headers) > self._max_head_bytes:
            raise NotOurs
        self._n_quiet = 0
        answer = self._answer
        assert answer is not None
        answer.begin(status, headers)
        if self._is_head:
            self._is_done = True
            answer.finish()
            raise NotOurs  # the parser would wait for a body that never comes

    def on_body(self, data: bytes) -> None:
        """httptools: a part of the body, within one read of the socket."""
        self._n_quiet = 0
        answer = self._answer
        assert answer is not None
        answer.feed(data)
        if answer.n_unread > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """httptools: the message is whole. Only here does `should_keep_alive` still tell the truth."""
        if self._is_interim or self._is_done:
            return
        self._is_done = True
        self._can_reuse = self._parser.should_keep_alive()
        answer = self._answer
        assert answer is not None
        answer.finish()

    def _end(self) -> None:
        self._is_done = False
        self._answer = None
        self.n_active = 0
        if not self._can_reuse or self._transport.get_write_buffer_size():
            self.abort()
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        self._pool.released(self)

    def _learn(self, name: bytes) -> str:
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        key = self._names[name] = name.decode("latin-1").lower()
        return key

    def _fail(self, message: str) -> None:
        answer = self._answer
        self.abort()
        assert answer is not None
        answer.fail(Fault.MALFORMED, message)

    def _leave(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._pool.lost(self)


def is_until_close(headers: Mapping[str, str]) -> bool:
    """Whether the body of an answer with these headers ends with the connection (RFC 9112 6.3)."""
    if "transfer-encoding" in headers:
        return not headers["transfer-encoding"].lower().endswith("chunked")
    return "content-length" not in headers


def n_bytes_of(headers: Mapping[str, str]) -> int:
    """Size of header fields as written, separators included."""
    return sum(len(name) + len(value) + 4 for name, value in headers.items())
