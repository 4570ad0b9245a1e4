"""A server whose application streams the bodies of /upload, and a parser that does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stayfast.core.clock import SystemClock
from stayfast.core.errors import Rejected, StayfastError
from stayfast.http.server.asgi import AsgiResponse, Message, Scope, make_scope
from stayfast.http.server.body_parts import BodyParts
from stayfast.http.server.connection import ConnectionTasks, HttpServer, ServerConnection
from stayfast.http.server.parser import HttpLimits, HttpRequest
from stayfast.http.server.response import connection_line, status_line, whole_response
from tests.server.fakes import Client

LIMIT_BYTES = 300 << 20


class UploadApp:
    """`/upload/...` has a streamed body, handled as the path's end demands; other paths answer with their whole body."""

    request_type = HttpRequest

    def __init__(self, limits: HttpLimits, limit_bytes: int) -> None:
        self.limits = limits
        self.limit_bytes = limit_bytes
        self.sizes: list[int] = []  # of the parts, in the order of reading
        self.body = bytearray()
        self.errors: list[int] = []  # statuses that `read` raised
        self.n_started = 0
        self.n_cancelled = 0
        self.gate = asyncio.Event()  # /upload/gate reads after it

    def check_head(self, request: HttpRequest, *, is_refusing: bool) -> StayfastError | None:
        if request.path.startswith("/upload"):
            request.stream_body(self.limit_bytes)
        return Rejected("No.", status=403) if request.path.endswith("/refused") else None

    async def handle(self, connection: ServerConnection[HttpRequest], request: HttpRequest) -> None:
        self.n_started += 1
        try:
            await self._answer(connection, request)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            connection.abort()
            raise
        except StayfastError as error:
            self.errors.append(error.status)
            connection.respond_error(request, error)

    def render_error(self, request: HttpRequest, error: StayfastError, *, keep_alive: bool) -> bytes:
        line = connection_line(request, keep_alive=keep_alive)
        return whole_response(status_line(error.status), error.message.encode(), line)

    def note_refusal(self, request: HttpRequest, error: StayfastError) -> None:
        self.errors.append(error.status)

    async def _answer(self, connection: ServerConnection[HttpRequest], request: HttpRequest) -> None:
        if request.path == "/upload/asgi":
            response = AsgiResponse(connection, request, lambda: b"", frozenset())
            await self._asgi(make_scope(request, None, {}), response)
            connection.finish(request)
            return
        if request.path == "/upload/early":
            raise Rejected("The disk is full.", status=507)
        if request.path == "/wait":
            await self.gate.wait()
        if request.path != "/upload/unread" and request.body_parts is not None:
            if request.path == "/upload/gate":
                await self.gate.wait()
            await self._read(request.body_parts)
        line = connection_line(request, keep_alive=connection.keeps_alive(request))
        body = b"%d of %s" % (len(request.body) + (request.body_parts.n_read if request.body_parts else 0),
                              request.path.encode())
        connection.write(whole_response(status_line(200), body, line))
        connection.finish(request)

    async def _read(self, parts: BodyParts) -> None:
        while part := await parts.read():
            self.sizes.append(len(part))
            if len(self.body) < 1 << 20:
                self.body += part

    async def _asgi(self, scope: Scope, response: AsgiResponse[HttpRequest]) -> None:
        """Answers with the number of parts and bytes."""
        n_bytes = n_parts = 0
        message: Message = {"more_body": True}
        while message["more_body"]:
            message = await response.receive()
            n_bytes += len(message["body"])
            n_parts += 1
        await response.send({"type": "http.response.start", "status": 200, "headers": []})
        await response.send({"type": "http.response.body", "body": b"%d in %d" % (n_bytes, n_parts)})


@dataclass
class RunningUploads:
    """A server under test."""

    app: UploadApp
    server: HttpServer[HttpRequest]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.server.bound_addresses()[0]))
        self.clients.append(client)
        return client


@asynccontextmanager
async def uploading(limits: HttpLimits | None = None, limit_bytes: int = LIMIT_BYTES) -> AsyncIterator[RunningUploads]:
    """A listener on a free port; unexpected exceptions fail the test."""
    app, errors = UploadApp(limits or HttpLimits(max_body_bytes=1000), limit_bytes), list[BaseException]()
    server: HttpServer[HttpRequest] = HttpServer(app, SystemClock(), ConnectionTasks(errors.append))
    await server.listen("127.0.0.1", 0)
    running = RunningUploads(app, server)
    try:
        async with asyncio.timeout(60):  # a lost wake-up fails the test
            yield running
    finally:
        for client in running.clients:
            client.reset()
        server.stop_listening()
        server.abort_connections()
        await server.tasks.wait_until_empty(5)
    assert errors == []


def chunked(path: str, *chunks: bytes) -> bytes:
    """A POST with these chunks, without the last one."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
