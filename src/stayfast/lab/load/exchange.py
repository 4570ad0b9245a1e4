"""One request's answer as it comes over a connection, and the connection itself (HTTP/1.1).

Bytes are stamped when the loop hands them over, before anything looks at them, and read where they arrive: no task is
woken for a chunk. What a chunk costs the client is what it cannot measure of the target.
"""

import asyncio
from collections.abc import Callable
from math import isnan, nan
from typing import Final

import httptools

from stayfast.lab.load.reader import NOTHING, SHOWN, Reader
from stayfast.lab.load.samples import Error, Gaps
from stayfast.wire import sse

GRACE_S: Final = 0.25  # for the end of a body whose protocol has said its own end
MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # of a whole answer
EXCERPT_BYTES: Final = 2000  # of a failed one that are kept
_TIMING: Final = b": server-timing "
_OK, _TOO_MANY = 200, 429


class Exchange:
    """One answer: instants of the clock (NaN: did not happen) and what was in it. `done` is set when it has ended.

    `allows_empty`: an answer that is whole by the protocol is good although nothing was generated.
    """

    __slots__ = ("_allows_empty", "_body", "_gaps", "_last_at", "_n_body", "_splitter", "_streams", "_zero_at", "done",
                 "ended_at", "error", "first_at", "gap_max_s", "head_at", "n_attempts", "n_chunks", "reader",
                 "server_timing", "shown_at", "status", "was_untouched")

    def __init__(self, reader: Reader, *, streams: bool, gaps: Gaps, zero_at: float, done: "asyncio.Future[None]",
                 allows_empty: bool = False) -> None:
        self.reader = reader
        self._allows_empty = allows_empty
        self.done = done
        self.status = 0
        self.error = Error.NONE
        self.head_at = self.first_at = self.shown_at = self._last_at = self.ended_at = self.gap_max_s = nan
        self.n_chunks = 0
        self.n_attempts = 0
        self.server_timing = ""
        self.was_untouched = False
        self._splitter = sse.Splitter()
        self._streams = streams
        self._gaps = gaps
        self._zero_at = zero_at
        self._body: list[bytes] = []
        self._n_body = 0

    @property
    def last_at(self) -> float:
        """The last piece."""
        return self._last_at

    @property
    def has_ended(self) -> bool:
        """By the protocol's own word, whatever the connection does."""
        return self.reader.is_over

    @property
    def excerpt(self) -> bytes:
        """The beginning of a failed answer's body; empty for a good one."""
        return b"".join(self._body)[:EXCERPT_BYTES] if self.error is not Error.NONE else b""

    def begin(self, status: int, headers: dict[bytes, bytes], at: float) -> None:
        """The head is in."""
        self.status = status
        self.head_at = at
        self.server_timing = headers.get(b"server-timing", b"").decode("latin-1")
        attempts = headers.get(b"x-stayfast-attempts", b"")
        self.n_attempts = int(attempts) if attempts.isdigit() and len(attempts) < 10 else 0
        if status != _OK:
            self.error = Error.RATE_LIMITED if status == _TOO_MANY else Error.STATUS
        elif self._streams and not headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.error = Error.MALFORMED

    def take(self, data: bytes, at: float) -> None:
        """A part of the body came."""
        if self.error is not Error.NONE:
            self._keep(data)
            return
        if not self._streams:
            self._n_body += len(data)
            if self._n_body > MAX_BODY_BYTES:
                self.error = Error.MALFORMED
            self._body.append(data)
            return
        try:
            blocks = self._splitter.feed(data)
        except sse.EventTooLong:
            self.error = Error.MALFORMED
            return
        are_data = self._splitter.are_data
        for block in blocks:
            said, name = (block, b"") if are_data else sse.parse(block)
            if said is not None:
                if not self.reader.is_over:
                    self._see(said, name, at)
            elif block.startswith(_TIMING):
                self.server_timing = block[len(_TIMING):].decode("latin-1")

    def _keep(self, data: bytes) -> None:
        if self._n_body < EXCERPT_BYTES:
            self._n_body += len(data)
            self._body.append(data)

    def _see(self, said: bytes, name: bytes, at: float) -> None:
        piece = self.reader.see(said, name)
        if piece != NOTHING:
            self._count(at, is_shown=piece == SHOWN)
        if self.reader.is_over:
            self.ended_at = at
            if self.reader.error is not Error.NONE:
                self._keep(said)

    def _count(self, at: float, *, is_shown: bool) -> None:
        self.n_chunks += 1
        if self.n_chunks == 1:
            self.first_at = at
        else:
            gap_s = at - self._last_at
            self._gaps.add(at - self._zero_at, gap_s)
            if not gap_s <= self.gap_max_s:  # NaN at first
                self.gap_max_s = gap_s
        if is_shown and isnan(self.shown_at):
            self.shown_at = at
        self._last_at = at

    def finish(self, at: float) -> None:
        """The body is whole, or was closed where that ends it."""
        reader = self.reader
        if self.error is Error.NONE and not self._streams:
            reader.see_whole(b"".join(self._body))
            if reader.error is Error.NONE and not reader.is_empty_whole:
                self._count(at, is_shown=True)
        elif self.error is Error.NONE:
            if not reader.is_over and self._splitter.held:  # the last event may lack its blank line
                said, name = sse.parse(self._splitter.rest())
                if said is not None:
                    self._see(said, name, at)
            reader.end()
        is_empty = reader.error is Error.NONE and not self.n_chunks and not self._allows_empty
        self.end(Error.EMPTY if is_empty else reader.error, at)

    def end(self, error: Error, at: float) -> None:
        """No more will come, or is waited for."""
        if self.done.done():
            return
        self.error = self.error or error  # what the head said stands
        if isnan(self.ended_at):
            self.ended_at = at
        self.done.set_result(None)


class Connection(asyncio.Protocol):
    """One connection, one request at a time. `on_free` is told when another may go out, `on_gone` when none will."""

    __slots__ = ("_can_reuse", "_exchange", "_headers", "_is_whole", "_now", "_now_at", "_on_free", "_on_gone", "_parser",
                 "_transport", "is_gone")

    def __init__(self, transport: asyncio.Transport, now: Callable[[], float], on_free: "Callable[[Connection], None]",
                 on_gone: "Callable[[Connection], None]") -> None:
        self._transport = transport
        self._now = now
        self._now_at = 0.0
        self._on_free = on_free
        self._on_gone = on_gone
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._headers: dict[bytes, bytes] = {}
        self._is_whole = False
        self._can_reuse = False
        self.is_gone = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may go out: the peer may have closed since the last answer."""
        return not self.is_gone and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> float:
        """Write the request; returns the instant at which it was written."""
        self._exchange = exchange
        sent_at = self._now()
        self._transport.write(request)
        return sent_at

    def abort(self) -> None:
        """Close at once; an answer on its way is let go, and must be ended by who does this."""
        self._exchange = None
        self.is_gone = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Stamp, then read."""
        self._now_at = at = self._now()
        exchange = self._exchange
        if exchange is None:  # a server that speaks unasked is about to close
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._is_whole:
                self.abort()
                exchange.end(Error.MALFORMED, at)
                return
            self._can_reuse = False
        if self._is_whole:
            self._end(exchange, at)
        elif exchange.has_ended:
            asyncio.get_running_loop().call_later(GRACE_S, self._end_without_body_end, exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a body without a length; of any other, and of a connection kept for later, the end of it."""
        at = self._now()
        self.is_gone = True
        exchange, self._exchange = self._exchange, None
        self._on_gone(self)
        if exchange is None:
            return
        if exchange.has_ended or (exc is None and exchange.status and b"content-length" not in self._headers
                                  and b"transfer-encoding" not in self._headers):
            exchange.finish(at)
            return
        exchange.was_untouched = not exchange.status
        exchange.end(Error.TRUNCATED if exc is None and exchange.status else Error.RESET, at)

    def on_message_begin(self) -> None:
        """httptools: an answer begins, or one that nobody asked for."""
        if self._is_whole:
            raise httptools.HttpParserError("an answer to nothing")
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a whole field."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """httptools: the head is in."""
        status = self._parser.get_status_code()
        if status >= _OK and self._exchange is not None:
            self._exchange.begin(status, self._headers, self._now_at)

    def on_body(self, data: bytes) -> None:
        """httptools: a part of the body."""
        if self._exchange is not None:
            self._exchange.take(data, self._now_at)

    def on_message_complete(self) -> None:
        """httptools: the message is whole; only here does `should_keep_alive` tell the truth."""
        if self._exchange is not None and self._exchange.status:
            self._is_whole = True
            self._can_reuse = self._parser.should_keep_alive()

    def _end(self, exchange: Exchange, at: float) -> None:
        self._is_whole = False
        self._exchange = None
        if self._can_reuse:
            self._on_free(self)
        else:
            self.abort()
        exchange.finish(at)

    def _end_without_body_end(self, exchange: Exchange) -> None:
        if exchange is self._exchange:
            self.abort()
            exchange.finish(self._now())
