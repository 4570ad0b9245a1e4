"""Requests as templates, and responses: the connection (h1, h2) writes into a response, one task reads from it.

Reading does not suspend while bytes are buffered. Memory is bounded by the connection: it pauses its peer when much is
unread, and resumes when the reader has caught up.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from stayfast.core.errors import Fault, UpstreamFailed

GRACE_S = 0.1  # enough for the server's next write; holding the connection longer costs more than a new one


class Response(Protocol):
    """A response whose head has arrived. Owns its connection until the body is complete or `close` is called."""

    @property
    def status(self) -> int:
        """HTTP status, 200..999."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case names; values of a repeated field are joined by ", "."""

    async def read(self) -> bytes:
        """All buffered body bytes; waits if there are none. b"" at the clean end.

        Raises UpstreamFailed RESET or MALFORMED after the bytes before the failure have been read.
        """

    def close(self) -> None:
        """Abort the socket of an incomplete response (HTTP/2: reset its stream). Never waits; may be called again."""

    def release(self) -> None:
        """Give up a response that is complete by its own protocol. If its body ends within GRACE_S, the connection is
        reused, else closed as by `close`. Never waits; may be called again.
        """


class WholeResponse(NamedTuple):
    """A response whose body has been read, up to the caller's limit. `headers`: as in `Response`."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class RequestTemplate:
    """The common part of similar requests, encoded once: method, path and headers."""

    __slots__ = ("has_body", "head", "headers", "method", "path", "upstream")

    def __init__(self, method: str, path: str, headers: Sequence[tuple[str, str]], *, upstream: str, authority: str,
                 is_streamed: bool = False) -> None:
        """is_streamed: for `StreamedRequest`, which sets the length itself."""
        self.method = method
        self.path = path
        self.headers = headers
        self.upstream = upstream
        self.has_body = not is_streamed and method not in ("GET", "HEAD")
        lines = (f"{method} {path} HTTP/1.1", f"host: {authority}", *map(": ".join, headers))
        self.head = _encode_lines(lines)  # None: HTTP cannot carry it


def _encode_lines(lines: Iterable[str]) -> bytes | None:
    """The lines as HTTP/1.1 sends them; None if one contains a line end, NUL or a character outside of Latin-1."""
    text = ""
    for line in lines:
        if "\n" in line or "\r" in line or "\0" in line:
            return None
        text += f"{line}\r\n"
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return None


class EncodedRequest:
    """One request. `head`: its HTTP/1.1 form, in which no field contains a line end."""

    __slots__ = ("_more", "_template", "body", "head", "method")
    is_streamed: ClassVar[bool] = False

    def __init__(self, template: RequestTemplate, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Raises UpstreamFailed MALFORMED for a field that HTTP cannot carry; the message quotes no value."""
        head, fields = template.head, _encode_lines(map(": ".join, headers))
        if head is None or fields is None:
            raise unencodable_request(template.upstream)
        if body or template.has_body:
            self.head = b"%bcontent-length: %d\r\n%b\r\n" % (head, len(body), fields)
        else:
            self.head = b"%b%b\r\n" % (head, fields)
        self.method = template.method
        self.body = body
        self._template = template
        self._more = headers

    @property
    def path(self) -> str:
        return self._template.path

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All headers except host and content-length."""
        return [*self._template.headers, *self._more]


CHUNKED = ("transfer-encoding", "chunked")


class StreamedRequest(EncodedRequest):
    """A request whose body is sent after its head, part by part (`upload`). n_bytes: of the body; None: unknown, so that
    HTTP/1.1 sends it in chunks.
    """

    __slots__ = ("is_chunked",)
    is_streamed = True

    def __init__(self, template: RequestTemplate, headers: Sequence[tuple[str, str]], n_bytes: int | None) -> None:
        """`template` has been made without a body. Raises UpstreamFailed MALFORMED like `EncodedRequest`."""
        self.is_chunked = n_bytes is None
        framing = CHUNKED if n_bytes is None else ("content-length", str(n_bytes))
        super().__init__(template, (*headers, framing), b"")


def unencodable_request(upstream: str) -> UpstreamFailed:
    """The error of a request that HTTP cannot carry. Final: a retry cannot help."""
    return UpstreamFailed(upstream, Fault.MALFORMED, "the path or a header contains characters that HTTP cannot carry",
                          is_final=True)


class Transport(Protocol):
    """The part of a connection that a response uses."""

    def on_drained(self, response: "HttpResponse", n_bytes: int) -> None:
        """The reader has read all buffered bytes, `n_bytes`."""

    def on_abandoned(self, response: "HttpResponse") -> None:
        """The rest of the response will not be read."""


class OutgoingBody:
    """The body of a streamed request that is being sent. One task sends it."""

    __slots__ = ("_waiter", "is_chunked", "is_full")

    def __init__(self, *, is_chunked: bool) -> None:
        self.is_chunked = is_chunked
        self.is_full = False  # the write buffer of the connection
        self._waiter: asyncio.Future[None] | None = None

    async def wait_room(self) -> None:
        while self.is_full:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def resume(self) -> None:
        self.is_full = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpResponse(msgspec.Struct, eq=False):
    """Implements `Response`. `status` is 0 until the head has arrived."""

    _transport: Transport | None
    upstream: str
    _loop: asyncio.AbstractEventLoop
    status: int = 0
    headers: Mapping[str, str] = {}
    parts: list[bytes] = []  # of the body, not read yet
    n_unread: int = 0  # bytes in them
    stream_id: int = 0  # HTTP/2 only
    outgoing: OutgoingBody | None = None  # HTTP/1.1: a part of the request's body may be unsent
    was_untouched: bool = False  # the connection ended before the first byte of the response
    was_refused: bool = False  # the peer certainly did not process the request
    _is_whole: bool = False
    _failure: UpstreamFailed | None = None
    _waiter: asyncio.Future[None] | None = None

    async def wait_head(self) -> None:
        """Wait until `status` and `headers` are set. Raises UpstreamFailed."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter

    async def read(self) -> bytes:
        while not (parts := self.parts):
            if self._is_whole:
                return b""
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        data = b"".join(parts)  # no copy of a single part
        self.parts = []
        self.n_unread = 0
        if self._transport is not None:
            self._transport.on_drained(self, len(data))
        return data

    def close(self) -> None:
        """Abort; a waiting reader fails with RESET."""
        transport = self._transport
        if transport is not None:
            self.set_failure(Fault.RESET, "closed by the gateway")
            self.parts = []
            transport.on_abandoned(self)

    def release(self) -> None:
        if self._transport is not None:
            self._loop.call_later(GRACE_S, self.close)  # has no effect if the body has ended by then

    # Called by the connection, which also sets `status` and `headers`, and adds to `parts`.

    def wake(self) -> None:
        """More has arrived: the reader goes on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def set_complete(self) -> None:
        """The body is complete; the connection no longer belongs to this response."""
        self._is_whole = True
        self._transport = None
        self.wake()

    def set_failure(self, fault: Fault, message: str) -> None:
        self._failure = UpstreamFailed(self.upstream, fault, message)
        self._transport = None
        self.wake()

    def __repr__(self) -> str:
        state = "complete" if self._is_whole else "failed" if self._failure is not None else "open"
        return f"<HttpResponse {self.status or '-'} {state}, {self.n_unread} B unread>"
