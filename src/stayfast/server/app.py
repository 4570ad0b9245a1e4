"""The gateway as an application of `http.server`: which requests to refuse, what answers a request, how an error looks.

LLM endpoints are answered here: decode, serve, relay; one Task a request, cancelled when its client disconnects. All other
paths go to an ASGI application (`server.admin_endpoints`).
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed, StayfastError, UpstreamFailed
from stayfast.core.events import KeysFailed, RequestRefused, Sink
from stayfast.core.held_bytes import HeldBytes, Holding
from stayfast.core.types import Allowance, AnswerSummary, Api
from stayfast.http.server.asgi import AsgiApp, AsgiResponse, make_scope
from stayfast.http.server.connection import ConnectionTasks, ServerConnection
from stayfast.http.server.parser import HttpLimits
from stayfast.http.server.response import (
    LAST_CHUNK,
    DateHeader,
    connection_line,
    encode_chunk,
    header_lines,
    status_line,
    stream_head,
    whole_response,
)
from stayfast.http.server.websocket_handshake import UPGRADE_LINES
from stayfast.keys.principal import Principal, check_all_routes
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.arrivals import StartTrace, decode_request, read_arrival
from stayfast.server.auth import FailedKeys
from stayfast.server.backend import ActiveSystem
from stayfast.server.http_request import (
    HOP,
    LlmHttpRequest,
    RequestIds,
    body_deadline_s,
    check_host,
    check_media,
    client_request_id,
    has_stayfast_headers,
    parse_hops,
    parse_later_wish,
)
from stayfast.server.job_paths import find_template
from stayfast.server.jobs.app import JobsApp, send_reply
from stayfast.server.jobs.endpoint import EndpointReply
from stayfast.server.jobs.llm_doors import LlmDoors
from stayfast.server.jobs.resumable import LiveStreams
from stayfast.server.passthrough.answer import answer_passed
from stayfast.server.passthrough.heads import accept_passed, may_pass, prepare_socket
from stayfast.server.paths import (
    LLM_ENDPOINTS,
    METRICS,
    OPEN_PATHS,
    allowed_methods,
    error_dialect,
    metric_label,
    shutting_down_error,
    wrong_method_error,
)
from stayfast.server.reported_stream import ReportedStream
from stayfast.server.sockets.counts import SocketCounts
from stayfast.server.sockets.endpoints import allow_origin, answer_socket, check_offer
from stayfast.server.sockets.hub import SocketHub
from stayfast.server.sockets.paths import socket_label
from stayfast.server.ui.app import UiApp
from stayfast.server.ui_paths import is_page_path, may_read_by_session, needs_no_key
from stayfast.wire.client_headers import rate_limit_lines
from stayfast.wire.errors import encode_error, encode_error_event
from stayfast.wire.sse import encode_comment
from stayfast.wire.stream_report import add_report

_MIN_KEEPALIVE_S = 0.1  # a client's header sets the interval; 1e-9 would use up the loop's time
_SET_BY_SERVER = frozenset(("x-request-id", "content-length", "connection"))
_ASGI_RESERVED = frozenset((b"date", b"server-timing", b"x-request-id"))
LARGE_BYTES = 128 * 1024  # a larger body is written separately, and counted until its client has received it
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS_HEAD = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
                b"x-accel-buffering: no\r\n")
_KEEP_ALIVE = encode_comment("keep-alive")
_INTERNAL_ERROR = "Internal error. The gateway's log has the cause."


class GatewayApp:
    """What all requests of one loop share: the running system, request ids, the headers of every response."""

    __slots__ = ("active", "admin_app", "clock", "date", "doors", "failed_keys", "held_bytes", "ids", "jobs_app", "sink",
                 "sockets", "start_trace", "tasks", "ui_app")

    request_type = LlmHttpRequest

    def __init__(self, current: ActiveSystem, *, clock: Clock, sink: Sink, tasks: ConnectionTasks, entropy: bytes,
                 admin_app: AsgiApp, jobs_app: JobsApp, ui_app: UiApp, start_trace: StartTrace | None,
                 held_bytes: HeldBytes | None = None, socket_counts: SocketCounts | None = None) -> None:
        self.active = current
        self.clock = clock
        self.sink = sink
        self.tasks = tasks
        self.admin_app = admin_app
        self.jobs_app = jobs_app  # for the paths of server.job_paths
        self.ui_app = ui_app
        self.doors = LlmDoors(current, clock, LiveStreams(clock, tasks.report_error))
        self.start_trace = start_trace  # None: no tracing; the caller's span is passed on
        self.held_bytes = held_bytes if held_bytes is not None else HeldBytes(current.config.max_buffered_bytes)
        self.ids = RequestIds(entropy)
        self.sockets = SocketHub(current, clock=clock, sink=sink, ids=self.ids, start_trace=start_trace,
                                 counts=socket_counts)
        self.failed_keys = FailedKeys()
        self.date = DateHeader(clock)

    @property
    def limits(self) -> HttpLimits:
        return self.active.http_limits

    def check_head(self, request: LlmHttpRequest, *, is_refusing: bool) -> StayfastError | None:
        """Set `api` and `tenant` of a request whose head is in, or return why it is refused before its body is read."""
        if request.method == "GET" and socket_label(request) is not None:
            return self._check_socket(request, is_refusing=is_refusing)
        if has_stayfast_headers(request.fields):
            request.deadline_s = body_deadline_s(request.fields)
        request.api = api = LLM_ENDPOINTS.get(request.path)
        try:
            return (self._check_llm if api is not None else self._check_other)(request, is_refusing)
        except (Rejected, Shed) as error:
            return error

    def _check_llm(self, request: LlmHttpRequest, is_refusing: bool) -> StayfastError | None:
        """Raises Rejected or Shed."""
        fields = request.fields
        request.raw_headers = ()
        self._authenticate_by_key(request)
        if self.active.is_for_this_machine:
            check_host(fields)
        if request.method != "POST":
            return wrong_method_error(request.method, request.path, ("POST",))
        check_media(fields)
        if HOP in fields:
            parse_hops(fields)
        return shutting_down_error() if is_refusing else None

    def _check_other(self, request: LlmHttpRequest, is_refusing: bool) -> StayfastError | None:
        """Raises Rejected or Shed."""
        path, passing = request.path, self.active.passthrough
        if passing is not None:
            prepare_socket(self.sockets, request)
        self._authenticate(request)
        if may_pass(passing, request):
            check_all_routes(request.caller)
            return accept_passed(self.sockets, request, is_refusing=is_refusing)
        methods = allowed_methods(path)
        if request.method not in methods:
            return wrong_method_error(request.method, path, methods)
        if find_template(path) is None:
            return None
        if is_refusing and request.method == "POST":
            return shutting_down_error()
        limit_bytes = self.jobs_app.upload_limit_bytes(request.method, path)
        if limit_bytes is not None:
            request.stream_body(limit_bytes)
        return None

    def _check_socket(self, request: LlmHttpRequest, *, is_refusing: bool) -> StayfastError | None:
        allow_origin(self.sockets, request)
        try:
            self._authenticate(request)
        except (Rejected, Shed) as error:
            return error
        return check_offer(self.sockets, request, is_refusing=is_refusing)

    def handle(self, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest) -> Coroutine[Any, Any, None]:
        if request.api is not None:
            return answer_llm(self, connection, request)
        if request.passed is not None:
            return answer_passed(self, connection, request)
        if request.method == "GET" and request.body_parts is not None:
            return answer_socket(self.sockets, connection, request, self.request_id(request))
        return answer_other(self, connection, request)

    def request_id(self, request: LlmHttpRequest) -> str:
        """The client's own, or a new one."""
        request_id = request.request_id
        if request_id is None:
            request.request_id = request_id = client_request_id(request.fields) or self.ids.next()
        return request_id

    def common_headers(self, request_id: str) -> bytes:
        return b"%bx-request-id: %b\r\n" % (self.date.encode(), request_id.encode())

    def total_timing(self, request: LlmHttpRequest) -> str:
        """The time since the request's first byte, as a `Server-Timing` value."""
        return f"total;dur={(self.clock.now() - request.accepted_at) * 1e3:.2f}"

    def own_lines(self, request: LlmHttpRequest) -> bytes:
        """The header lines of a response that an application writes."""
        return b"server-timing: %b\r\n%b" % (self.total_timing(request).encode(),
                                             self.common_headers(self.request_id(request)))

    def render_error(self, request: LlmHttpRequest, error: StayfastError, *, keep_alive: bool, more: bytes = b"") -> bytes:
        """A whole error response in the dialect of the path. `more`: header lines."""
        request_id = self.request_id(request)
        status, headers, body = encode_error(error, error_dialect(request.path), request_id)
        lines = [pair for pair in headers if pair[0] not in _SET_BY_SERVER]
        stages = f"{error.server_timing}, " if error.server_timing is not None else ""
        lines.append(("server-timing", f"{stages}{self.total_timing(request)}"))
        if isinstance(error, UpstreamFailed):
            lines.append(("x-stayfast-upstream", error.upstream))
        if status == HTTPStatus.UNAUTHORIZED:
            lines.append(("www-authenticate", "Bearer"))
        elif status == HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append(("allow", ", ".join(allowed_methods(request.path))))
        elif status == HTTPStatus.UPGRADE_REQUIRED:
            lines.extend(UPGRADE_LINES)
        head = status_line(status) + header_lines(lines) + self.common_headers(request_id) + more
        return whole_response(head, body, connection_line(request, keep_alive=keep_alive), has_body=request.method != "HEAD")

    def note_refusal(self, request: LlmHttpRequest, error: StayfastError) -> None:
        """Emit the event of a request that never reached the gateway; the gateway emits those of all others."""
        self.sink.emit(RequestRefused(
            request_id=self.request_id(request), path=metric_label(request.path), status=error.status, code=error.code,
            wall_at=self.clock.wall(), seconds=self.clock.now() - request.accepted_at, tenant=request.tenant))

    def _authenticate(self, request: LlmHttpRequest) -> None:
        """Set `tenant`, unless the path is open. Raises Rejected."""
        path, config = request.path, self.active.config
        if path in OPEN_PATHS or (path == METRICS and config.metrics_access == "open"):
            return
        if is_page_path(path) and not config.has_page:
            raise wrong_method_error(request.method, path, ())
        if not needs_no_key(path):
            admin = self._authenticate_session(request)
            if admin is None:
                self._authenticate_by_key(request)
            else:
                request.caller, request.tenant = admin, admin.tenant
        if self.active.is_for_this_machine:
            check_host(request.fields)

    def _authenticate_by_key(self, request: LlmHttpRequest) -> None:
        """Raises Rejected."""
        try:
            caller = self.active.keys.authenticate(request.fields)
        except Rejected as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._count_failed_key(request)
            raise
        if caller is not None:
            request.caller, request.tenant = caller, caller.tenant

    def _authenticate_session(self, request: LlmHttpRequest) -> Principal | None:
        """The admin whose browser has signed in to the page and now reads its data; None without a valid cookie."""
        config = self.active.config
        if not (config.demands_key and config.has_page and may_read_by_session(request.method, request.path)):
            return None
        user = self.ui_app.sessions.authenticate(request.fields, config, self.clock.wall())
        return self.active.keys.find_user(user, config) if user is not None else None

    def _count_failed_key(self, request: LlmHttpRequest) -> None:
        """Raises Rejected (429) instead of the 401 for an address with too many of them."""
        now, limit, peer = self.clock.now(), self.active.config.failed_keys_per_minute, request.peer()
        wait_s = self.failed_keys.count(peer, limit, now)
        if not wait_s:
            return
        n_refused = self.failed_keys.due_report(now)
        if n_refused:
            self.sink.emit(KeysFailed(n_refused, peer[0] if peer is not None else "", limit))
        raise Rejected(f"Too many requests without a valid key from this address (limit: {limit} a minute). Requests with "
                       "a valid key are still served.", status=429, code="too_many_failed_keys", retry_after_s=wait_s)

    def __repr__(self) -> str:
        return f"<GatewayApp: {len(self.tasks)} requests>"


async def answer_llm(app: GatewayApp, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest) -> None:
    """A request to an LLM endpoint, from its body to the last byte of its response."""
    writer = ResponseWriter(app, connection, request, request.api or Api.CHAT, app.request_id(request),
                            not request.is_http_10)
    try:
        await writer.run()
    except StayfastError as error:
        writer.send_error(error)
    except asyncio.CancelledError:
        if connection.abort_reason is None:
            connection.abort()  # the client has disconnected; after any other cancellation it must not wait on
            raise
        writer.send_error(connection.abort_reason)
    except Exception as error:  # noqa: BLE001  # the Task's boundary
        connection.report_error(error)
        writer.send_error(StayfastError(_INTERNAL_ERROR))


async def answer_other(app: GatewayApp, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest) -> None:
    """A request to any other path, by an ASGI application."""
    request_id = app.request_id(request)
    response = AsgiResponse(connection, request, lambda: app.own_lines(request), _ASGI_RESERVED)
    scope = make_scope(request, connection.peer_address(), {
        "request_id": request_id, "tenant": request.tenant, "caller": request.caller,
        "accepted_at": request.accepted_at}, is_encrypted=connection.is_encrypted)
    is_job = find_template(request.path) is not None
    answer: AsgiApp = app.jobs_app if is_job else app.ui_app if is_page_path(request.path) else app.admin_app
    try:
        await answer(scope, response.receive, response.send)
        if not response.is_whole:
            raise RuntimeError("the ASGI application returned before its response was complete")
    except asyncio.CancelledError:
        connection.abort()
        raise
    except StayfastError as error:  # of the body: too large, too slow, malformed
        if response.has_started:
            connection.close()
        else:
            connection.respond_error(request, error)
    except Exception as error:  # noqa: BLE001  # the Task's boundary
        connection.report_error(error)
        if response.has_started:
            connection.close()
        else:
            connection.respond_error(request, StayfastError(_INTERNAL_ERROR))
    else:
        connection.finish(request)


class ResponseWriter(msgspec.Struct, eq=False):
    """Writes one response. Owned by its Task; the connection's timer calls `send_keepalive`."""

    _app: GatewayApp
    _connection: ServerConnection[LlmHttpRequest]
    _request: LlmHttpRequest
    _api: Api
    _request_id: str
    _is_chunked: bool
    _is_served: bool = False  # the gateway has it, and emits the event of its end
    _has_started: bool = False
    _sight: AnswerSummary | None = None

    async def run(self) -> None:
        """Decode, serve, relay. Raises StayfastError."""
        inbound, current, start_trace = self._request, self._app.active, self._app.start_trace
        fields, caller = inbound.fields, inbound.caller
        arrival = read_arrival(self._request_id, inbound.accepted_at, inbound.tenant, fields, start_trace,
                               key_id=caller.key_id if caller is not None else "")
        wish = parse_later_wish(fields)
        request = await decode_request(self._api, inbound.body, current.limits)
        if caller is not None:
            caller.check_route(request.model)
        if (wish is not None or request.is_background or request.previous_response_id is not None
                or request.model in current.resumable):
            later, request = await self._app.doors.answer(request, arrival, wish, inbound, self._list_headers)
            if later is not None:
                await self._send_later(later)
                return
        if request.stream:
            self._start_keepalive(arrival, current.config.sse_keepalive_s)
        self._is_served = True
        reply = await current.backend.gateway.serve(request, arrival)
        try:
            self._sight = reply.summary
            if request.stream:
                await self._relay(reply)
            else:
                await self._send_whole(reply)
        finally:
            reply.close(self._connection.abort_reason)
        self._connection.finish(inbound)

    async def _send_later(self, reply: EndpointReply) -> None:
        """A reply of durable work. An error after its head closes the connection."""
        app, connection, inbound = self._app, self._connection, self._request
        response = AsgiResponse(connection, inbound, lambda: app.own_lines(inbound), _ASGI_RESERVED)
        try:
            await send_reply(reply, response.send, is_head=False)
        except StayfastError:
            if not response.has_started:
                raise
            connection.close()
        else:
            connection.finish(inbound)

    def _list_headers(self, reply: Reply) -> tuple[tuple[str, str], ...]:
        """`_gateway_headers` as pairs."""
        lines = self._gateway_headers(reply).decode("latin-1").split("\r\n")
        return tuple((name, value) for name, separator, value in (line.partition(": ") for line in lines) if separator)

    def _start_keepalive(self, arrival: Arrival, every_s: float) -> None:
        if not every_s or self._request.fields.get(b"x-stayfast-keepalive") == b"off":
            return
        if arrival.silence_s is not None:  # the client's SDK gives up after so much silence
            every_s = min(every_s, max(_MIN_KEEPALIVE_S, arrival.silence_s / 2))
        self._connection.start_keepalive(self.send_keepalive, self._request.accepted_at + every_s, every_s)

    def send_keepalive(self) -> None:
        """Write a comment, so that proxies and clients do not give up in a silence."""
        if self._has_started:
            self._connection.write(encode_chunk(_KEEP_ALIVE) if self._is_chunked else _KEEP_ALIVE)
        else:
            self._write_head(b"", _KEEP_ALIVE)

    def send_error(self, error: StayfastError) -> None:
        """Respond with an error: by status if the head is not out, else as an event in a response that then breaks off."""
        app, connection, request = self._app, self._connection, self._request
        connection.stop_keepalive()
        if not self._is_served:
            app.note_refusal(request, error)
        if self._has_started:
            event = encode_error_event(error, self._api, self._request_id, self._sight)
            connection.write(encode_chunk(event) if self._is_chunked else event)
            connection.close()  # without the last chunk, so that no client takes the answer for a whole one
            return
        limits = self._limit_headers(error.allowances) if isinstance(error, Shed) else b""
        connection.write(app.render_error(request, error, keep_alive=connection.keeps_alive(request), more=limits))
        connection.finish(request)

    def _gateway_headers(self, reply: Reply) -> bytes:
        """Which upstream answered, after how many attempts, timings, degradation, cache, what is left of the quotas."""
        optional = f"x-stayfast-degraded: {reply.degraded}\r\n" if reply.degraded is not None else ""
        if (rule := reply.guard) is not None:
            optional += f"x-stayfast-guard: flag; rule={rule}\r\n"
        if (cache := reply.cache) is not None:
            optional += f"x-cache: {cache}\r\n"
        headers = (f"server-timing: {reply.server_timing()}\r\nx-stayfast-upstream: {reply.upstream}\r\n"
                   f"x-stayfast-attempts: {reply.n_attempts}\r\n{optional}").encode("latin-1", "replace")
        return headers + self._limit_headers(reply.allowances) if reply.allowances else headers

    def _limit_headers(self, allowances: tuple[Allowance, ...]) -> bytes:
        return rate_limit_lines(self._api, allowances, self._app.clock.wall())

    def _write_head(self, headers: bytes, data: bytes) -> None:
        """Head and first bytes, in one write."""
        self._has_started = True
        keep_alive = self._is_chunked and self._connection.keeps_alive(self._request)
        line = connection_line(self._request, keep_alive=keep_alive)
        lines = _EVENTS_HEAD + self._app.common_headers(self._request_id) + headers
        head = stream_head(lines, line, is_chunked=self._is_chunked)
        self._connection.write(head + (encode_chunk(data) if self._is_chunked else data))

    async def _relay(self, reply: Reply) -> None:
        connection, summary = self._connection, reply.summary
        write, read_chunk = connection.write, reply.next
        if has_report := self._has_started or reply.may_degrade:
            read_chunk = ReportedStream(reply, self._api).next
        chunk = await read_chunk()
        connection.stop_keepalive()
        while chunk is not None:
            data = chunk.data
            if summary.is_cut and not has_report:
                data = add_report(self._api, data, reply.report())
            if data:  # an empty chunk would end the body
                if not self._has_started:
                    self._write_head(self._gateway_headers(reply), data)
                else:
                    write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
                if connection.is_write_buffer_full:
                    with contextlib.suppress(TimeoutError):  # the next read raises it, and closes the upstream
                        async with asyncio.timeout_at(reply.deadline_at):
                            await connection.wait_writable()
            chunk = await read_chunk()
        last = encode_comment("server-timing " + reply.server_timing())
        if reply.degraded is not None:
            last = encode_comment(f"x-stayfast-degraded {reply.degraded}") + last
        if not self._has_started:
            self._write_head(self._gateway_headers(reply), last)
            last = b""
        if self._is_chunked:
            write(encode_chunk(last) + LAST_CHUNK if last else LAST_CHUNK)
        else:
            write(last)
            connection.close()

    async def _send_whole(self, reply: Reply) -> None:
        parts = []
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
        body = b"".join(parts)  # no copy of a single part
        connection, request = self._connection, self._request
        line = connection_line(request, keep_alive=connection.keeps_alive(request))
        head = b"%bcontent-length: %d\r\n%b%b%b\r\n" % (
            _JSON_HEAD, len(body), self._app.common_headers(self._request_id), self._gateway_headers(reply), line)
        if len(body) < LARGE_BYTES:
            connection.write_early(head + body)
            return
        holding = Holding(self._app.held_bytes)
        try:
            holding.grow_to(len(body), may_refuse=False)  # the upstream's part of the account closed with its last byte
            connection.write(head)
            connection.write(body)  # separately: joining them would copy it
            del body, parts, head
            await connection.wait_writable()
        finally:
            holding.release()
