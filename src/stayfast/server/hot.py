"""The hot endpoints: decode, serve, relay. One Task a request, cancelled the moment its client leaves.

`ServerContext` is what all requests of one loop share: the running system, request ids, the headers of every answer.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from stayfast.core.clock import Clock
from stayfast.core.constants import LARGE_REQUEST_BYTES
from stayfast.core.errors import Shed, StayfastError, UpstreamFailed
from stayfast.core.events import RequestRefused, Sink, Trace
from stayfast.core.held_bytes import HeldBytes, Holding
from stayfast.core.types import Allowance, AnswerSummary, Api
from stayfast.http.server.asgi import AsgiApp
from stayfast.http.server.connection import ConnectionTasks, ServerConnection
from stayfast.http.server.response import (
    LAST_CHUNK,
    DateLine,
    connection_line,
    frame,
    header_lines,
    status_line,
    stream_head,
    whole_response,
)
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.auth import FailedKeys
from stayfast.server.backend import ActiveSystem
from stayfast.server.inbound import (
    EVENTS,
    LlmHttpRequest,
    cache_control,
    caller_trace,
    client_request_id,
    events_wish,
    forwarded,
    has_stayfast_headers,
    sdk_silence_s,
    urgency,
)
from stayfast.server.reported_stream import ReportedStream
from stayfast.server.routes import allowed, dialect, label
from stayfast.wire.client_headers import client_timeout_s, rate_limit_lines
from stayfast.wire.errors import render, render_event
from stayfast.wire.json_input import decode
from stayfast.wire.sse import comment
from stayfast.wire.stream_report import add_report

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that its multiples meet every 64-bit number before one comes again
_MASK = (1 << 64) - 1
_LEAST_KEEPALIVE_S = 0.1  # a header of the client's sets the pace, and 1e-9 would take all of the loop's time

_OURS = frozenset(("x-request-id", "content-length", "connection"))
_DECODER = ThreadPoolExecutor(1, thread_name_prefix="stayfast-large-requests")
LARGE_BYTES = 128 * 1024  # above it a body is written by itself, and counted until its client has it
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_EVENTS_HEAD = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
                b"x-accel-buffering: no\r\n")


class RequestIds:
    """Request ids that repeat neither in this process nor, but for a tiny chance, in another. One loop's."""

    __slots__ = ("_at",)

    def __init__(self, entropy: bytes) -> None:
        self._at = int.from_bytes(entropy[:8])

    def next(self) -> str:
        """A new id: `req_` and 16 hex digits."""
        self._at = at = (self._at + _STRIDE) & _MASK
        return f"req_{at:016x}"


def total(total_s: float) -> str:
    """How long an answer took, as a `Server-Timing` value."""
    return f"total;dur={total_s * 1e3:.2f}"


Place = Callable[[Trace | None], Trace | None]  # from the caller's place in a trace to the request's own


class ServerContext:
    """The running system, the cold application, and what answers are made of. One loop's."""

    __slots__ = ("clock", "cold", "current", "date", "failed_keys", "held", "ids", "place", "sink", "tasks")

    def __init__(self, current: ActiveSystem, *, clock: Clock, sink: Sink, tasks: ConnectionTasks, entropy: bytes,
                 cold: AsgiApp,
                 place: Place | None, held: HeldBytes | None = None) -> None:
        self.current = current
        self.clock = clock
        self.sink = sink
        self.tasks = tasks
        self.cold = cold
        self.place = place  # None: no tracing, and what the caller says of its trace is all there is to know
        self.held = held if held is not None else HeldBytes(current.config.max_buffered_bytes)
        self.ids = RequestIds(entropy)
        self.failed_keys = FailedKeys()
        self.date = DateLine(clock)

    def request_id(self, inbound: LlmHttpRequest) -> str:
        """The client's own, or a new one."""
        request_id = inbound.request_id
        if request_id is None:
            inbound.request_id = request_id = client_request_id(inbound.fields) or self.ids.next()
        return request_id

    def common(self, request_id: str) -> bytes:
        """The header lines of every answer."""
        return b"%bx-request-id: %b\r\n" % (self.date.line(), request_id.encode())

    def render_error(self, request: LlmHttpRequest, error: StayfastError, *, keep_alive: bool, more: bytes = b"") -> bytes:
        """A whole error answer in the dialect of the path. `more` are header lines."""
        request_id = self.request_id(request)
        status, headers, body = render(error, dialect(request.path), request_id)
        lines = [pair for pair in headers if pair[0] not in _OURS]
        stages = f"{error.server_timing}, " if error.server_timing is not None else ""
        lines.append(("server-timing", f"{stages}{total(self.clock.now() - request.accepted_at)}"))
        if isinstance(error, UpstreamFailed):
            lines.append(("x-stayfast-upstream", error.upstream))
        if status == HTTPStatus.UNAUTHORIZED:
            lines.append(("www-authenticate", "Bearer"))
        elif status == HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append(("allow", ", ".join(allowed(request.path))))
        return whole_response(status_line(status) + header_lines(lines) + self.common(request_id) + more, body,
                              connection_line(request, keep_alive=keep_alive), has_body=request.method != "HEAD")

    def note_refusal(self, request: LlmHttpRequest, error: StayfastError) -> None:
        """Emit the fact of a request that never reached the gateway, which emits those of all others."""
        self.sink.emit(RequestRefused(
            request_id=self.request_id(request), path=label(request.path), status=error.status, code=error.code,
            wall_at=self.clock.wall(), seconds=self.clock.now() - request.accepted_at, tenant=request.tenant))

    def __repr__(self) -> str:
        return f"<ServerContext: {len(self.tasks)} requests>"


CHAT = Api.CHAT
_KEEP_ALIVE = comment("keep-alive")


async def answer(edge: ServerContext, line: ServerConnection[LlmHttpRequest], inbound: LlmHttpRequest) -> None:
    """A request's whole life as the edge sees it."""
    out = ResponseWriter(edge, line, inbound)
    try:
        await out.run()
    except StayfastError as error:
        out.fail(error)
    except asyncio.CancelledError:
        if line.verdict is None:
            line.abort()  # nobody is left to answer; for a cancellation from elsewhere it leaves nobody waiting
            raise
        out.fail(line.verdict)
    except Exception as error:  # noqa: BLE001  # the Task's boundary
        line.report(error)
        out.fail(StayfastError("The gateway failed at this request. Its log says why."))


class ResponseWriter:
    """One answer being written. Owned by its Task; `comment` is called by the connection's timer."""

    __slots__ = ("_common", "_edge", "_has_started", "_inbound", "_is_chunked", "_is_served", "_line", "_request_id",
                 "_sight")

    def __init__(self, edge: ServerContext, line: ServerConnection[LlmHttpRequest], inbound: LlmHttpRequest) -> None:
        self._edge = edge
        self._line = line
        self._inbound = inbound
        self._request_id = edge.request_id(inbound)
        self._common = edge.common(self._request_id)
        self._is_chunked = not inbound.is_http_10
        self._is_served = False  # the gateway knows of it, and tells of its end
        self._has_started = False
        self._sight: AnswerSummary | None = None

    async def run(self) -> None:
        """Decode, serve, relay. Raises StayfastError."""
        inbound, current, place = self._inbound, self._edge.current, self._edge.place
        fields = inbound.fields
        if has_stayfast_headers(fields):
            trace = caller_trace(fields) if place is None else place(caller_trace(fields))
            tenant = inbound.tenant
            arrival = Arrival(self._request_id, inbound.accepted_at, tenant, forwarded(fields, trace, tenant),
                              client_timeout_s(fields), sdk_silence_s(fields), trace, urgency(fields), cache_control(fields),
                              events_wish(fields) if EVENTS in fields else None)
        else:
            arrival = Arrival(self._request_id, inbound.accepted_at, inbound.tenant,
                              trace=None if place is None else place(None))
        if len(inbound.body) > LARGE_REQUEST_BYTES:
            request = await asyncio.get_running_loop().run_in_executor(
                _DECODER, decode, inbound.api or CHAT, inbound.body, current.limits)
        else:
            request = decode(inbound.api or CHAT, inbound.body, current.limits)
        keepalive_s = current.config.sse_keepalive_s
        if request.stream and keepalive_s and fields.get(b"x-stayfast-keepalive") != b"off":
            if arrival.silence_s is not None:  # its SDK gives up after so much silence
                keepalive_s = min(keepalive_s, max(_LEAST_KEEPALIVE_S, arrival.silence_s / 2))
            self._line.start_keepalive(self.comment, inbound.accepted_at + keepalive_s, keepalive_s)
        self._is_served = True
        reply = await current.backend.gateway.serve(request, arrival)
        try:
            self._sight = reply.sight
            if request.stream:
                await self._relay(reply)
            else:
                await self._send_whole(reply)
        finally:
            reply.close(self._line.verdict)
        self._line.finish(inbound)

    def comment(self) -> None:
        """Keep proxies and clients from taking silence for death."""
        if self._has_started:
            self._line.write(frame(_KEEP_ALIVE) if self._is_chunked else _KEEP_ALIVE)
        else:
            self._begin(b"", _KEEP_ALIVE)

    def fail(self, error: StayfastError) -> None:
        """Answer with an error: by status while that is possible, else as an event in an answer that then breaks off."""
        edge, line, inbound = self._edge, self._line, self._inbound
        line.stop_keepalive()
        if not self._is_served:
            edge.note_refusal(inbound, error)
        if self._has_started:
            event = render_event(error, inbound.api or CHAT, self._request_id, self._sight)
            line.write(frame(event) if self._is_chunked else event)
            line.close()  # without the last chunk: no client may take this answer for a whole one
            return
        limits = self._limits(error.allowances) if isinstance(error, Shed) else b""
        line.write(edge.render_error(inbound, error, keep_alive=line.will_stay(inbound), more=limits))
        line.finish(inbound)

    def _about(self, reply: Reply) -> bytes:
        """The headers that say who answered, after how many attempts, where the time went, what it is short of, what a cache
        had to do with it, and what the client has left.
        """
        degraded = f"x-stayfast-degraded: {reply.degraded}\r\n" if reply.degraded is not None else ""
        if (cache := reply.cache) is not None:
            degraded += f"x-cache: {cache}\r\n"
        about = (f"server-timing: {reply.server_timing()}\r\nx-stayfast-upstream: {reply.upstream}\r\n"
                 f"x-stayfast-attempts: {reply.n_attempts}\r\n{degraded}").encode("latin-1", "replace")
        return about + self._limits(reply.allowances) if reply.allowances else about

    def _limits(self, allowances: tuple[Allowance, ...]) -> bytes:
        return rate_limit_lines(self._inbound.api or CHAT, allowances, self._edge.clock.wall())

    def _begin(self, about: bytes, data: bytes) -> None:
        """Head and first bytes in one write."""
        self._has_started = True
        inbound = self._inbound
        keep_alive = self._is_chunked and self._line.will_stay(inbound)
        connection = connection_line(inbound, keep_alive=keep_alive)
        head = stream_head(_EVENTS_HEAD + self._common + about, connection, is_chunked=self._is_chunked)
        self._line.write(head + (frame(data) if self._is_chunked else data))

    async def _relay(self, reply: Reply) -> None:
        line, sight, api = self._line, reply.sight, self._inbound.api or CHAT
        line_write, pull = line.write, reply.next
        if is_reported := self._has_started or reply.degraded is not None:
            pull = ReportedStream(reply, api).next
        chunk = await pull()
        line.stop_keepalive()
        while chunk is not None:
            data = chunk.data
            if sight.is_cut and not is_reported:
                data = add_report(api, data, reply.report())
            if data:  # an empty chunk would end the body
                if not self._has_started:
                    self._begin(self._about(reply), data)
                else:
                    line_write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
                if line.is_full:
                    with contextlib.suppress(TimeoutError):  # the next pull says so, and closes the upstream
                        async with asyncio.timeout_at(reply.deadline_at):
                            await line.drained()
            chunk = await pull()
        last = comment("server-timing " + reply.server_timing())
        if reply.degraded is not None:
            last = comment(f"x-stayfast-degraded {reply.degraded}") + last
        if not self._has_started:
            self._begin(self._about(reply), last)
            last = b""
        if self._is_chunked:
            line_write(frame(last) + LAST_CHUNK if last else LAST_CHUNK)
        else:
            line_write(last)
            line.close()

    async def _send_whole(self, reply: Reply) -> None:
        pull = reply.next
        parts = []
        while (chunk := await pull()) is not None:
            parts.append(chunk.data)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        inbound, line = self._inbound, self._line
        connection = connection_line(inbound, keep_alive=line.will_stay(inbound))
        head = b"%bcontent-length: %d\r\n%b%b%b\r\n" % (_JSON_HEAD, len(body), self._common, self._about(reply), connection)
        if len(body) < LARGE_BYTES:
            line.write(head + body)
            return
        holding = Holding(self._edge.held)
        try:
            holding.grow_to(len(body), may_refuse=False)  # its upstream's part of the account was closed with its last byte
            line.write(head)
            line.write(body)  # by itself: to join them is to copy it
            del body, parts, head
            await line.drained()
        finally:
            holding.release()
