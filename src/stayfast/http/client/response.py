"""One response on its way: h1 and h2 write into it, the caller reads from it. One task reads; anybody may close.

Reading costs no suspension while bytes are there, and memory is bounded by the transport: it stops its peer when much is
unread and goes on as `drained` tells it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from stayfast.core.errors import Fault, UpstreamFailed

GRACE_S = 0.1  # a server's next write is here by then; a new connection costs less than holding this one for longer


class Response(Protocol):
    """The head is in; the body is read as it comes. Owns its connection until the body is whole or `close` is called."""

    @property
    def status(self) -> int:
        """HTTP status, 200..999."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names; values of a repeated field are joined by ", "."""

    async def read(self) -> bytes:
        """All body bytes that are there, waiting only if there are none; b"" at the clean end.

        Raises UpstreamFailed RESET or MALFORMED after the bytes that came before the failure.
        """

    def close(self) -> None:
        """Let go: an unfinished response's socket is aborted (h2: its stream reset). Never awaits; safe to call again."""

    def release(self) -> None:
        """Let go of a response that is whole by its protocol: should the end of its body follow within GRACE_S, its
        connection is used again, else it is closed as by `close`. Never awaits; safe to call again.
        """


class WholeResponse(NamedTuple):
    """A response that was read to its end, or to the limit on its body. `headers`: as in `Response`."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class RequestTemplate:
    """What requests of one kind begin with, rendered once: method, path, and the fields that they have in common."""

    __slots__ = ("has_body", "headers", "method", "n_lines", "path", "text", "upstream")

    def __init__(self, method: str, path: str, headers: Sequence[tuple[str, str]], *, upstream: str, authority: str) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.upstream = upstream
        self.has_body = method not in ("GET", "HEAD")
        fields = "\r\n".join([f"host: {authority}", *map(": ".join, headers), ""])
        self.text = f"{method} {path} HTTP/1.1\r\n{fields}"
        self.n_lines = len(headers) + 2  # an honest one has no more: whether it is honest, is seen when it is sent


class EncodedRequest:
    """One request as given. `head` is its HTTP/1.1 form; rendering it proves that no field can smuggle a line."""

    __slots__ = ("_more", "_template", "body", "head", "method")

    def __init__(self, template: RequestTemplate, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Raise UpstreamFailed MALFORMED when a field cannot be said in HTTP; the message names no value."""
        n_lines = template.n_lines + len(headers) + 1
        length = ""
        if body or template.has_body:
            length = f"content-length: {len(body)}\r\n"
            n_lines += 1
        fields = "\r\n".join([*map(": ".join, headers), ""]) if headers else ""
        text = f"{template.text}{length}{fields}\r\n"
        if text.count("\n") != n_lines or text.count("\r") != n_lines or "\0" in text:
            raise unspeakable(template.upstream)
        try:
            self.head = text.encode("latin-1")
        except UnicodeEncodeError:
            raise unspeakable(template.upstream) from None
        self.method = template.method
        self.body = body
        self._template = template
        self._more = headers

    @property
    def path(self) -> str:
        return self._template.path

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All fields, but for host and content-length."""
        return [*self._template.headers, *self._more]


def unspeakable(upstream: str) -> UpstreamFailed:
    """The error of a request that HTTP cannot carry: no other attempt would help."""
    return UpstreamFailed(upstream, Fault.MALFORMED, "the path or a header has characters that HTTP cannot carry",
                          is_final=True)


class Transport(Protocol):
    """What a response needs of its connection."""

    def drained(self, response: "HttpResponse", n_bytes: int) -> None:
        """The reader took everything: `n_bytes` of body."""

    def abandon(self, response: "HttpResponse") -> None:
        """Nobody wants the rest."""


class HttpResponse:
    """A `Response` in the making. `status` is 0 until the head is in."""

    __slots__ = ("_body", "_failure", "_is_whole", "_loop", "_transport", "_waiter", "headers", "n_unread", "status",
                 "stream_id", "upstream", "was_refused", "was_untouched")

    def __init__(self, transport: Transport, upstream: str, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.n_unread = 0
        self.upstream = upstream
        self.stream_id = 0  # h2 only
        self.was_untouched = False  # the connection ended before one byte of a response
        self.was_refused = False  # the peer certainly did not process the request
        self._transport: Transport | None = transport
        self._loop = loop
        self._body: list[bytes] = []
        self._is_whole = False
        self._failure: UpstreamFailed | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait_head(self) -> None:
        """Return when `status` and `headers` are set; raise UpstreamFailed when they never will be."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter

    async def read(self) -> bytes:
        while not (body := self._body):
            if self._is_whole:
                return b""
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        data = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        self.n_unread = 0
        if self._transport is not None:
            self._transport.drained(self, len(data))
        return data

    def close(self) -> None:
        """Let go of the response; a reader that waits is woken with a failure."""
        transport = self._transport
        if transport is not None:
            self.fail(Fault.RESET, "closed by the gateway")
            self._body = []
            transport.abandon(self)

    def release(self) -> None:
        """Let go of a whole response; what still comes is bounded as for a reader that stops."""
        if self._transport is not None:
            self._loop.call_later(GRACE_S, self.close)  # does nothing when the end has come by then

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def feed(self, data: bytes) -> None:
        self._body.append(data)
        self.n_unread += len(data)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finish(self) -> None:
        """The body is whole; the transport is free of this response."""
        self._is_whole = True
        self._transport = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, fault: Fault, message: str) -> None:
        self._failure = UpstreamFailed(self.upstream, fault, message)
        self._transport = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        state = "whole" if self._is_whole else "failed" if self._failure is not None else "coming"
        return f"<Answer {self.status or '-'} {state}, {self.n_unread} B unread>"
