"""A request whose body is sent while it is read, for uploads that must not be held in memory.

Problem: a body of 200 MB that is collected before it is sent takes 200 MB per upload. Rule: one Task reads a part from the
source, writes it, and waits until the connection has room (HTTP/1.1: the write buffer; HTTP/2: also the stream's window);
only then it reads the next. So at most one part and one write buffer are held, and a slow peer slows the source.

A peer may respond before the whole body has arrived. The body goes on being sent until the response is complete; then the
connection is closed (HTTP/2: the stream is reset), because the peer may not read the rest.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from stayfast.core.errors import StayfastError, UpstreamFailed
from stayfast.http.client.pool import PooledConnection
from stayfast.http.client.response import HttpResponse


class BodySource(Protocol):
    """The body of a request. One task reads it."""

    @property
    def n_bytes(self) -> int | None:
        """The length of the whole body; None: unknown."""

    async def read(self) -> bytes:
        """The next part; b"" at the end. Raises StayfastError if the rest cannot arrive."""


class UploadedResponse:
    """Implements `Response`, for a request whose body may still be on its way. `n_sent`: bytes of the body so far."""

    __slots__ = ("_connection", "_error", "_response", "_sending", "_source", "n_sent")

    def __init__(self, connection: PooledConnection, response: HttpResponse, source: BodySource) -> None:
        """Begins to send the body."""
        self.n_sent = 0
        self._connection = connection
        self._response = response
        self._source = source
        self._error: StayfastError | None = None  # of the source
        self._sending: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._send())

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def wait_head(self) -> None:
        """Raises UpstreamFailed, or the error of the source."""
        try:
            await self._response.wait_head()
        except UpstreamFailed:
            self._raise_own()
            raise

    async def read(self) -> bytes:
        try:
            data = await self._response.read()
        except UpstreamFailed:
            self._raise_own()
            raise
        if not data:
            self._sending.cancel()
        return data

    def close(self) -> None:
        self._sending.cancel()
        self._response.close()

    def release(self) -> None:
        self._sending.cancel()
        self._response.release()

    def _raise_own(self) -> None:
        """The source's error, if that was the cause."""
        if self._error is not None:
            raise self._error

    async def _send(self) -> None:
        try:
            while part := await self._source.read():
                self.n_sent += len(part)
                await self._connection.send_part(self._response, part)
            self._connection.end_body(self._response)
        except StayfastError as error:
            self._error = error
            self._response.close()
        except BaseException:
            self._response.close()  # without effect on a complete one
            raise

    def __repr__(self) -> str:
        return f"<UploadedResponse: {self.n_sent} B sent, {self._response!r}>"
