"""One HTTP/1.1 connection, one request at a time.

Memory is bounded: `_n_quiet` counts the bytes since the last body byte, so heads, trailers, chunk extensions and interim
responses are limited by `max_head_bytes`; the body is limited by pausing the socket at `HIGH_WATER`. A connection returns to
the pool when its response is complete, even if the reader has not read all of it.
"""

import asyncio
from collections.abc import Mapping

import httptools

from stayfast.core.errors import Fault
from stayfast.http.client.pool import ConnectionPool, PooledConnection
from stayfast.http.client.response import EncodedRequest, HttpResponse, OutgoingBody, StreamedRequest

HIGH_WATER = 65_536  # unread bytes; with libuv's 256 KiB reads a response buffers at most 320 KiB
LAST_CHUNK = b"0\r\n\r\n"
MAX_NAMES = 128  # cached header names per connection
JOIN_BELOW = 65_536  # bytes; copying less is cheaper than a second buffer or TLS record


class ConnectionNotReusable(Exception):
    """Stops the parser: the connection must not be reused."""


class H1Connection(PooledConnection):
    """A connection, the parser of its responses and the response in progress."""

    __slots__ = ("_can_reuse", "_headers", "_is_done", "_is_gone", "_is_head", "_is_interim", "_is_paused", "_loop",
                 "_max_head_bytes", "_n_quiet", "_name", "_names", "_parser", "_pool", "_response", "_transport")

    def __init__(self, name: str, transport: asyncio.Transport, pool: ConnectionPool, max_head_bytes: int,
                 loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._name = name
        self._transport = transport
        self._pool = pool
        self._max_head_bytes = max_head_bytes
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._response: HttpResponse | None = None
        self._headers: dict[str, str] = {}
        self._names: dict[bytes, str] = {}  # decoded header names: a peer repeats them in every response
        self._n_quiet = 0
        self._is_head = False
        self._is_interim = False
        self._is_done = False
        self._can_reuse = False
        self._is_paused = False
        self._is_gone = False

    def reserve(self) -> bool:
        self.n_active = 1
        return False  # one request at a time

    def send_request(self, request: EncodedRequest) -> HttpResponse:
        response = HttpResponse(self, self._name, self._loop)
        if self._is_gone or self._transport.is_closing():
            response.was_refused = True
            response.set_failure(Fault.RESET, "the connection closed before the request was sent")
            self.abort()
            return response
        self._response = response
        self._is_head = request.method == "HEAD"
        self._n_quiet = 0
        transport = self._transport
        if isinstance(request, StreamedRequest):
            response.outgoing = OutgoingBody(is_chunked=request.is_chunked)
        if len(request.body) < JOIN_BELOW:
            self._pool.early_writer.write(transport, request.head + request.body)
        else:
            transport.writelines((request.head, request.body))
        return response

    async def send_part(self, response: HttpResponse, part: bytes) -> None:
        outgoing = response.outgoing
        if outgoing is None or response is not self._response:
            return
        if outgoing.is_chunked:
            self._transport.writelines((b"%x\r\n" % len(part), part, b"\r\n"))
        else:
            self._transport.write(part)
        await outgoing.wait_room()

    def end_body(self, response: HttpResponse) -> None:
        outgoing = response.outgoing
        if outgoing is not None and response is self._response:
            response.outgoing = None
            if outgoing.is_chunked:
                self._transport.write(LAST_CHUNK)

    def pause_writing(self) -> None:
        if self._response is not None and self._response.outgoing is not None:
            self._response.outgoing.is_full = True

    def resume_writing(self) -> None:
        if self._response is not None and self._response.outgoing is not None:
            self._response.outgoing.resume()

    def abort(self) -> None:
        self._response = None
        self._transport.abort()
        self._leave_pool()

    def on_drained(self, response: HttpResponse, n_bytes: int) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def on_abandoned(self, response: HttpResponse) -> None:
        if response is self._response:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; end the exchange when the response is complete, invalid or too large."""
        if self._response is None:
            self.abort()  # unexpected bytes: the peer is closing or broken
            return
        self._n_quiet += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._can_reuse = False
            if not self._is_done and self._n_quiet <= self._max_head_bytes:
                self._fail_response("the answer is not HTTP/1.1")
                return
        if self._is_done:
            self._end_exchange()
        elif self._n_quiet > self._max_head_bytes:
            self._fail_response(f"the answer has more than {self._max_head_bytes} bytes of head or trailers")
        else:
            self._response.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """A body without a length ends here; any other response is incomplete."""
        response, self._response = self._response, None
        self._leave_pool()
        del self._parser  # breaks a reference cycle
        if response is None:
            return
        if exc is None and response.status and ends_with_connection(response.headers):
            response.set_complete()
            return
        response.was_untouched = not response.status and not self._n_quiet
        response.set_failure(Fault.RESET, "the connection closed before the answer was complete")

    def on_message_begin(self) -> None:
        if self._is_done:
            raise ConnectionNotReusable
        self._headers.clear()  # trailers of the answer before

    def on_header(self, name: bytes, value: bytes) -> None:
        """llhttp parsed a header or a trailer."""
        key = self._names.get(name) or self._decode_name(name)
        text = value.decode("latin-1")
        headers = self._headers
        headers[key] = text if key not in headers else f"{headers[key]}, {text}"  # RFC 9110 5.3

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = status < 200
        if self._is_interim:
            return
        headers, self._headers = self._headers, {}
        if self._n_quiet > self._max_head_bytes and self._max_head_bytes < sum(
                len(name) + len(value) + 4 for name, value in headers.items()):
            raise ConnectionNotReusable
        self._n_quiet = 0
        response = self._response
        assert response is not None
        response.status, response.headers = status, headers
        if self._is_head:
            self._is_done = True
            raise ConnectionNotReusable  # the parser would wait for a body

    def on_body(self, data: bytes) -> None:
        self._n_quiet = 0
        response = self._response
        assert response is not None
        response.parts.append(data)
        response.n_unread += len(data)
        if response.n_unread > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """llhttp parsed the whole message. `should_keep_alive` is only valid in this callback."""
        if self._is_interim or self._is_done:
            return
        self._is_done = True
        self._can_reuse = self._parser.should_keep_alive()

    def _end_exchange(self) -> None:
        self._is_done = False
        response, self._response = self._response, None
        assert response is not None
        response.set_complete()
        self.n_active = 0
        is_unsent = response.outgoing is not None
        if not self._can_reuse or is_unsent or self._transport.get_write_buffer_size():
            self.abort()  # also after an answer to a request of which a part is unsent
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        self._pool.release(self)

    def _decode_name(self, name: bytes) -> str:
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        key = self._names[name] = name.decode("latin-1").lower()
        return key

    def _fail_response(self, message: str) -> None:
        response = self._response
        self.abort()
        assert response is not None
        response.set_failure(Fault.MALFORMED, message)

    def _leave_pool(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._pool.remove(self)


def ends_with_connection(headers: Mapping[str, str]) -> bool:
    """Whether a response with these headers ends when the connection closes (RFC 9112 6.3)."""
    if "transfer-encoding" in headers:
        return not headers["transfer-encoding"].lower().endswith("chunked")
    return "content-length" not in headers
