"""Runs ASGI 3.0 applications on this server, for endpoints where microseconds do not matter.

The request body is complete before the application starts, unless the head check has chosen to stream it: then `receive`
returns its parts as they arrive, and raises StayfastError if it is too large, too slow or malformed. The application runs in
the request's Task, which is cancelled when the client disconnects; `http.disconnect` is never delivered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Generic, cast
from urllib.parse import unquote

from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.parser import HttpRequest, R
from stayfast.http.server.response import LAST_CHUNK, connection_line, encode_chunk, status_line

Scope = dict[str, Any]  # the ASGI specification defines no narrower type
Message = dict[str, Any]
AsgiApp = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
_FRAMING = frozenset((b"connection", b"transfer-encoding"))
_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))


def make_scope(request: HttpRequest, peer: tuple[str, int] | None, state: dict[str, Any], *,
               is_encrypted: bool = False) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if request.is_http_10 else "1.1",
        "method": request.method,
        "scheme": "https" if is_encrypted else "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": peer,
        "server": None,
        "state": state,
    }


class AsgiResponse(Generic[R]):
    """Writes one response of an ASGI application. Owned by the request's Task.

    `own_lines` returns the server's own header lines when the head is written; `reserved`: names of headers that the
    application must not set, which are dropped.
    """

    __slots__ = ("_connection", "_has_body", "_head", "_is_chunked", "_is_read", "_is_sized", "_own_lines", "_request",
                 "_reserved", "has_started", "is_whole")

    def __init__(self, connection: ServerConnection[R], request: R, own_lines: Callable[[], bytes],
                 reserved: frozenset[bytes]) -> None:
        self._connection = connection
        self._request = request
        self._own_lines = own_lines
        self._reserved = reserved | _FRAMING
        self._head: bytes | None = None  # held until the first part of the body: its framing depends on that
        self._has_body = request.method != "HEAD"
        self._is_chunked = False
        self._is_sized = False  # the application set content-length
        self._is_read = False
        self.has_started = False
        self.is_whole = False

    async def receive(self) -> Message:
        """The whole body, or the next part of a streamed one. A call after its end waits until the client disconnects, which
        cancels the Task. Raises StayfastError.
        """
        if self._is_read:
            await asyncio.get_running_loop().create_future()
        parts = self._request.body_parts
        if parts is not None:
            part = await parts.read()
            self._is_read = not part
            return {"type": "http.request", "body": part, "more_body": bool(part)}
        self._is_read = True
        return {"type": "http.request", "body": self._request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Write a part of the response, then wait until the client has read enough."""
        if message["type"] == "http.response.start":
            self._start(message)
            return
        body = cast("bytes", message.get("body", b""))
        is_last = not message.get("more_body", False)
        if self.is_whole or (self._head is None and not self.has_started):
            raise RuntimeError("the ASGI application sent a body before http.response.start or after the last part")
        self._write(body if self._has_body else b"", len(body), is_last=is_last)
        if not is_last:
            await self._connection.wait_writable()

    def _start(self, message: Message) -> None:
        status = message["status"]
        lines = [b"%b: %b\r\n" % (name, value) for name, value in message.get("headers", ())
                 if name.lower() not in self._reserved]
        self._head = b"".join((status_line(status), *lines, self._own_lines()))
        self._has_body = self._has_body and status not in _BODILESS
        self._is_sized = status in _BODILESS or any(line.lower().startswith(b"content-length:") for line in lines)

    def _write(self, body: bytes, n_body: int, *, is_last: bool) -> None:
        connection, request = self._connection, self._request
        out = b""
        if self._head is not None:
            head, self._head = self._head, None
            if request.body_parts is not None:
                request.body_parts.is_answered = True
            keep_alive = connection.keeps_alive(request)
            if not self._is_sized:
                if is_last:
                    head += b"content-length: %d\r\n" % n_body
                elif request.is_http_10:
                    request.keep_alive = keep_alive = False
                else:
                    self._is_chunked = True
                    head += b"transfer-encoding: chunked\r\n"
            out = head + connection_line(request, keep_alive=keep_alive) + b"\r\n"
            self.has_started = True
        out += encode_chunk(body) if self._is_chunked and body else body
        if is_last:
            self.is_whole = True
            if self._is_chunked and self._has_body:
                out += LAST_CHUNK
        connection.write(out)
