"""A bridge from the edge to a plain ASGI application (spec 3.0): for endpoints where comfort counts and microseconds do not.

The body is whole before the application starts. It runs in its request's Task, so a client that leaves cancels it; an
application that waits for `http.disconnect` instead waits until then.
"""

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from stayfast.core.errors import StayfastError
from stayfast.server.edge import Edge, Message, Scope
from stayfast.server.inbound import Inbound
from stayfast.server.respond import LAST_CHUNK, connection_line, error_answer, frame, status_line, total

if TYPE_CHECKING:
    from stayfast.server.protocol import Connection

_OURS = frozenset((b"connection", b"transfer-encoding", b"date", b"server-timing", b"x-request-id"))
_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))


async def bridge(edge: Edge, line: "Connection", inbound: Inbound) -> None:
    """Run the cold application for one request."""
    request_id = edge.request_id(inbound)
    answer = AsgiAnswer(edge, line, inbound, request_id)
    try:
        await edge.cold(scope_of(inbound, request_id, line.peer()), answer.receive, answer.send)
        if not answer.is_whole:
            raise RuntimeError("the ASGI application returned before its answer was whole")
    except asyncio.CancelledError:
        line.abort()
        raise
    except Exception as error:  # noqa: BLE001  # the Task's boundary
        edge.tasks.report(error)
        if answer.has_begun:
            line.close()
        else:
            failed = StayfastError("The gateway failed at this request. Its log says why.")
            line.write(error_answer(failed, inbound, edge.common(request_id), request_id, keep_alive=line.will_stay(inbound),
                                    total_s=edge.clock.now() - inbound.accepted_at))
            line.finish(inbound)
    else:
        line.finish(inbound)


def scope_of(inbound: Inbound, request_id: str, peer: tuple[str, int] | None) -> Scope:
    """ASGI's scope of one request. `state` has what every answer carries, and whose key it was."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if inbound.is_http_10 else "1.1",
        "method": inbound.method,
        "scheme": "http",
        "path": unquote(inbound.path),
        "raw_path": inbound.path.encode(),
        "query_string": inbound.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in inbound.raw_headers],
        "client": peer,
        "server": None,
        "state": {"request_id": request_id, "tenant": inbound.tenant},
    }


class AsgiAnswer:
    """One answer of an ASGI application being written. Owned by its Task."""

    __slots__ = ("_edge", "_has_body", "_head", "_inbound", "_is_chunked", "_is_read", "_is_sized", "_line", "_request_id",
                 "has_begun", "is_whole")

    def __init__(self, edge: Edge, line: "Connection", inbound: Inbound, request_id: str) -> None:
        self._edge = edge
        self._line = line
        self._inbound = inbound
        self._request_id = request_id
        self._head: bytes | None = None  # held back until the first part of the body tells how it ends
        self._has_body = inbound.method != "HEAD"
        self._is_chunked = False
        self._is_sized = False  # the application said how long it is
        self._is_read = False
        self.has_begun = False
        self.is_whole = False

    async def receive(self) -> Message:
        """The whole body once; after it nothing but the client's leaving, which cancels the Task."""
        if self._is_read:
            await asyncio.get_running_loop().create_future()
        self._is_read = True
        return {"type": "http.request", "body": self._inbound.body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Write a part of the answer, when the client keeps up."""
        if message["type"] == "http.response.start":
            self._start(message)
            return
        body = cast("bytes", message.get("body", b""))
        is_last = not message.get("more_body", False)
        if self.is_whole or (self._head is None and not self.has_begun):
            raise RuntimeError("an ASGI application sent a body before its start, or after its end")
        self._write(body if self._has_body else b"", len(body), is_last=is_last)
        if not is_last:
            await self._line.drained()

    def _start(self, message: Message) -> None:
        status = message["status"]
        lines = [b"%b: %b\r\n" % (name, value) for name, value in message.get("headers", ())
                 if name.lower() not in _OURS]
        edge = self._edge
        took = total(edge.clock.now() - self._inbound.accepted_at)
        lines.append(b"server-timing: %b\r\n" % took.encode())
        self._head = b"".join((status_line(status), *lines, edge.common(self._request_id)))
        self._has_body = self._has_body and status not in _BODILESS
        self._is_sized = status in _BODILESS or any(line.lower().startswith(b"content-length:") for line in lines)

    def _write(self, body: bytes, n_body: int, *, is_last: bool) -> None:
        line, inbound = self._line, self._inbound
        out = b""
        if self._head is not None:
            head, self._head = self._head, None
            keep_alive = line.will_stay(inbound)
            if not self._is_sized:
                if is_last:
                    head += b"content-length: %d\r\n" % n_body
                elif inbound.is_http_10:
                    inbound.keep_alive = keep_alive = False
                else:
                    self._is_chunked = True
                    head += b"transfer-encoding: chunked\r\n"
            out = head + connection_line(inbound, keep_alive=keep_alive) + b"\r\n"
            self.has_begun = True
        out += frame(body) if self._is_chunked and body else body
        if is_last:
            self.is_whole = True
            if self._is_chunked and self._has_body:
                out += LAST_CHUNK
        line.write(out)
