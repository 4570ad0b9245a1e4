"""The body of a request whose handler starts before the body has arrived, for uploads that must not be held in memory.

Problem: a body of 200 MB that is collected before the handler starts takes 200 MB per upload. Rule: the parser feeds the
parts, the handler takes them with `read`; above `MAX_UNREAD_BYTES` the connection stops reading until the handler has taken
them (`body_flow`).

Use: in `App.check_head`, `request.stream_body(limit_bytes)`. In the handler, `await request.body_parts.read()` until it
returns b"". An ASGI application gets the parts from `receive`. An answer before the body is complete ends the connection.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from stayfast.core.errors import StayfastError

MAX_UNREAD_BYTES = 256 * 1024


class PartsFlow(Protocol):
    """The connection, as the parts see it."""

    def invite(self) -> None:
        """The handler reads for the first time, and has written nothing."""

    def resume(self) -> None:
        """The handler has taken all that had arrived."""


class BodyParts:
    """A streamed body. `limit_bytes`: 413 above it. The handler calls `read`; the server calls the other methods.

    `is_raw`: the bytes after an upgrade instead; they have no limit, time-out or end.
    """

    __slots__ = ("_error", "_is_invited", "_unread", "_waiter", "fed_at", "flow", "is_answered", "is_raw", "is_whole",
                 "limit_bytes", "n_read", "on_drain")

    def __init__(self, limit_bytes: int, *, is_raw: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.is_raw = is_raw
        self.n_read = 0  # bytes that `read` has returned
        self.is_whole = False  # the whole body has arrived
        self.is_answered = False  # the response's head is written: no 100 Continue, and keep-alive is decided
        self.fed_at = 0.0  # monotonic seconds; when the last part arrived
        self.flow: PartsFlow | None = None  # while the handler runs
        self.on_drain: Callable[[], None] | None = None  # the server shuts down
        self._unread: bytes | bytearray = b""
        self._error: StayfastError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_invited = False

    async def read(self) -> bytes:
        """All bytes that have arrived since the last call, at least one; b"" at the end. Only the request's Task may read.

        Raises StayfastError: too large (413), too slow (408), malformed (400).
        """
        flow = self.flow
        if not self._is_invited:
            self._is_invited = True
            if flow is not None and not self.is_answered:
                flow.invite()
        while not self._unread and self.is_open:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        part, self._unread = bytes(self._unread), b""  # no copy of bytes
        self.n_read += len(part)
        if flow is not None:
            flow.resume()
        return part

    @property
    def is_open(self) -> bool:
        """Whether more of the body can arrive."""
        return not self.is_whole and self._error is None

    @property
    def is_full(self) -> bool:
        return len(self._unread) > MAX_UNREAD_BYTES

    def feed(self, part: bytes) -> None:
        if not self._unread:
            self._unread = part
        else:
            if isinstance(self._unread, bytes):
                self._unread = bytearray(self._unread)  # a list of parts would take 40 bytes for each 1-byte chunk
            self._unread += part
        self._wake()

    def end(self) -> None:
        """The whole body has arrived."""
        self.is_whole = True
        self._wake()

    def fail(self, error: StayfastError) -> None:
        """The rest cannot arrive: `read` raises `error`. What is unread is dropped."""
        self._error = error
        self._unread = b""
        self._wake()

    def drop(self) -> None:
        """Nobody reads any more. Breaks the reference cycle with the connection."""
        self.flow = self.on_drain = None
        self._unread = b""

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<BodyParts: {self.n_read} bytes read, {len(self._unread)} unread>"
