"""Answers a request that is passed to an upstream: its body goes up while it arrives, the response comes down as it is."""

import asyncio
from typing import Protocol

from stayfast.core.errors import DeadlineExceeded, StayfastError
from stayfast.core.types import Stage
from stayfast.http.client.response import Response
from stayfast.http.server.body_parts import BodyParts
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.response import LAST_CHUNK, connection_line, encode_chunk, header_lines, status_line
from stayfast.pipeline.passthrough.call import PassedCall, PassedRequest
from stayfast.server.arrivals import read_arrival
from stayfast.server.http_request import LlmHttpRequest, PassedPath
from stayfast.server.passthrough.heads import length_of
from stayfast.server.passthrough.sockets import relay_socket
from stayfast.server.sockets.hub import SocketHub
from stayfast.wire.passthrough.paths import upstream_target

_BODILESS = (204, 304)


class PassingApp(Protocol):
    """What an answer needs of the application."""

    sockets: SocketHub

    def request_id(self, request: LlmHttpRequest) -> str: ...

    def own_lines(self, request: LlmHttpRequest) -> bytes: ...

    def note_refusal(self, request: LlmHttpRequest, error: StayfastError) -> None: ...


class ArrivingBody:
    """The body of a client's request as the source of the upstream's."""

    __slots__ = ("_parts", "n_bytes")

    def __init__(self, parts: BodyParts, n_bytes: int | None) -> None:
        self._parts = parts
        self.n_bytes = n_bytes

    @property
    def n_read(self) -> int:
        return self._parts.n_read

    async def read(self) -> bytes:
        return await self._parts.read()


async def answer_passed(app: PassingApp, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest) -> None:
    """From the head of a request to the last byte of its response, or to the end of its WebSocket."""
    passed = request.passed
    assert passed is not None
    try:
        call = start_call(app, passed, request)
    except StayfastError as error:
        app.note_refusal(request, error)
        connection.respond_error(request, error)
        return
    if passed.is_socket:
        await relay_socket(app.sockets, connection, request, call)
    else:
        await PassedAnswer(app, connection, request, call).run()


def start_call(app: PassingApp, passed: PassedPath, request: LlmHttpRequest) -> PassedCall:
    """Raises Rejected for a header that the gateway reads and that is malformed."""
    request_id, clock = app.request_id(request), app.sockets.clock
    arrival = read_arrival(request_id, request.accepted_at, request.tenant, request.fields, None)
    parts = request.body_parts if not passed.is_socket else None
    body = ArrivingBody(parts, length_of(request)) if parts is not None else None
    passing = passed.service
    target = upstream_target(passing.base_path(passed.upstream), passed.path, request.query)
    return passing.start_call(PassedRequest(request.method, target, passed.label, request.raw_headers, arrival,
                                            clock.wall() - (clock.now() - request.accepted_at), body),
                              passed.upstream, is_socket=passed.is_socket)


class PassedAnswer:
    """Writes one response. Owned by its Task."""

    __slots__ = ("_app", "_call", "_connection", "_has_started", "_is_chunked", "_request")

    def __init__(self, app: PassingApp, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest,
                 call: PassedCall) -> None:
        self._app = app
        self._connection = connection
        self._request = request
        self._call = call
        self._has_started = False
        self._is_chunked = False

    async def run(self) -> None:
        connection = self._connection
        why: BaseException | None = None
        try:
            response = await self._call.open()
            self._write_head(response)
            await self._relay()
        except asyncio.CancelledError as left:
            why = connection.abort_reason or left
            if connection.abort_reason is None:
                connection.abort()  # the client has disconnected
                raise
        except StayfastError as error:
            why = error
        except BaseException as error:  # reported by the owner of the Task
            why = error
            self._fail(StayfastError("Internal error. The gateway's log has the cause."))
            raise
        finally:
            self._call.end(why)
        if isinstance(why, StayfastError):
            self._fail(why)
        else:
            self._end_body()

    def _write_head(self, response: Response) -> None:
        connection, request, status = self._connection, self._request, response.status
        if request.body_parts is not None:
            request.body_parts.is_answered = True
        lines = self._call.response_headers()
        length = response.headers.get("content-length")
        has_body = request.method != "HEAD" and status not in _BODILESS
        if length is not None:
            lines.append(("content-length", length))
        elif has_body and request.is_http_10:
            request.keep_alive = False
        elif has_body:
            self._is_chunked = True
            lines.append(("transfer-encoding", "chunked"))
        lines.append(("x-stayfast-upstream", self._call.upstream))
        line = connection_line(request, keep_alive=connection.keeps_alive(request))
        connection.write(status_line(status) + header_lines(lines) + self._app.own_lines(request) + line + b"\r\n")
        self._has_started = True

    async def _relay(self) -> None:
        """Raises StayfastError if the response breaks off."""
        connection, call = self._connection, self._call
        while data := await call.read():
            connection.write(encode_chunk(data) if self._is_chunked else data)
            if connection.is_write_buffer_full:
                try:
                    async with asyncio.timeout_at(call.deadline_at):
                        await connection.wait_writable()
                except TimeoutError:
                    raise DeadlineExceeded(Stage.RELAY, "total_s", call.total_s) from None

    def _end_body(self) -> None:
        if self._is_chunked:
            self._connection.write(LAST_CHUNK)
        self._connection.finish(self._request)

    def _fail(self, error: StayfastError) -> None:
        """Respond with the error; or end the connection so that no client takes the response for a whole one."""
        if not self._has_started:
            self._connection.respond_error(self._request, error)
        elif self._is_chunked or not self._request.is_http_10:
            self._connection.close()  # without the last chunk, or short of the declared length
        else:
            self._connection.reset()  # without a length, a plain close would be the end
