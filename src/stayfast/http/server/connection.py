"""The HTTP server and its connections: bytes go to the parser, requests run one after another, every wait is bounded.

The server keeps reading while a request is answered, because a client's disconnect is only seen by reading: it cancels the
request's Task in the same turn of the loop. If a client sends too far ahead, the complete requests are answered and the rest
is dropped. One `LazyTimer` per connection serves all time-outs.

A streamed body (`HttpRequest.stream_body`) is the exception: while its handler has much of it unread, nothing is read, and a
disconnect is seen only after that.
"""

import asyncio
import math
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, cast

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.core.events import ConnectionsClosed, DescriptorsExhausted, Sink
from stayfast.http.descriptors import client_share, descriptor_limit, descriptor_reserve, exhausted_error
from stayfast.http.event_loop import EarlyWriter, LazyTimer
from stayfast.http.server.body_flow import BodyFlow
from stayfast.http.server.listener import bind_addresses
from stayfast.http.server.parser import IDLE, HttpLimits, R, RequestParser
from stayfast.http.server.response import CONTINUE
from stayfast.http.server.tls_listener import TlsListener
from stayfast.http.server.waiting_connections import WaitingConnections, limited_address


class ConnectionTasks:
    """The running Tasks of one loop, which holds them until they end. `on_error(error)` gets every exception except
    cancellation; it must not raise.
    """

    __slots__ = ("_on_error", "_running", "loop")

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a Task; it first runs in the next turn of the loop."""
        task = self.loop.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    def report_error(self, error: BaseException) -> None:
        """Pass an exception that its Task has caught to `on_error`."""
        self._on_error(error)

    async def wait_until_empty(self, limit_s: float) -> None:
        """Return when no Task is running, or after `limit_s` seconds."""
        if self._running:
            await asyncio.wait(self._running, timeout=limit_s)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<ConnectionTasks: {len(self._running)} running>"


BACKLOG = 4096
HIGH_WATER_BYTES = 128 * 1024  # unsent bytes above which an answer's source is not read further
LOW_WATER_BYTES = 32 * 1024
LINGER_S = 2.0  # after a rejection, bytes are still read for so long: a reset could overtake the response
_NO_LINGER = struct.pack("ii", 1, 0)  # closing sends RST


class App(Protocol[R]):
    """The application of a server. Called on the loop; only `handle` may raise."""

    @property
    def request_type(self) -> type[R]:
        """The class of parsed requests."""

    @property
    def limits(self) -> HttpLimits:
        """The current limits; the parser of an open connection keeps those it started with."""

    def check_head(self, request: R, *, is_refusing: bool) -> StayfastError | None:
        """The error that rejects a request before its body is read, or None. `is_refusing`: the server is shutting down.

        May call `request.stream_body`, so that `handle` starts now and reads the body itself.
        """

    def handle(self, connection: "ServerConnection[R]", request: R) -> Coroutine[Any, Any, None]:
        """Answer one request. Runs in its own Task, which is cancelled when the client disconnects.

        Must call `connection.finish` after a complete answer, else `close`, `reset` or `abort`. The rest of a streamed body
        that was not read ends the connection after the answer.
        """

    def render_error(self, request: R, error: StayfastError, *, keep_alive: bool) -> bytes:
        """A complete error response."""

    def note_refusal(self, request: R, error: StayfastError) -> None:
        """Record a request that was rejected without `handle`."""


class HttpServer(Generic[R]):
    """A listener and its connections. Create it inside its event loop."""

    __slots__ = ("_descriptor_limit", "_listeners", "_sink", "app", "clock", "connections", "early_writer",
                 "is_draining", "is_empty", "is_refusing", "tasks", "waiting")

    def __init__(self, app: App[R], clock: Clock, tasks: ConnectionTasks, sink: Sink | None = None) -> None:
        """`sink`: receives events about connections that were closed or rejected because a limit was reached."""
        self.app = app
        self.clock = clock
        self.tasks = tasks
        self.early_writer = EarlyWriter(clock, HIGH_WATER_BYTES, LOW_WATER_BYTES)
        self.connections: set[ServerConnection[R]] = set()
        self.waiting: WaitingConnections[ServerConnection[R]] = WaitingConnections()
        self._sink = sink
        self._descriptor_limit = descriptor_limit()
        self.is_draining = False
        self.is_refusing = False
        self.is_empty = asyncio.Event()  # set when the last connection closes; clear it before awaiting it
        self._listeners: list[asyncio.Server | TlsListener] = []

    async def listen(self, host: str, port: int, *, reuse_port: bool = False, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections at an address. `::` accepts IPv4 as well. Raises OSError."""
        for sock in await bind_addresses(host, port, reuse_port=reuse_port):
            await self.listen_on(sock, tls)

    async def listen_on(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound socket, also of the file system (without TLS). Raises OSError."""
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            self._listeners.append(await loop.create_unix_server(self.make_connection, sock=sock, backlog=BACKLOG))
        elif tls is None:
            self._listeners.append(await loop.create_server(self.make_connection, sock=sock, backlog=BACKLOG))
        else:
            self._listeners.append(TlsListener(
                sock, tls, self.make_connection, limits=lambda: self.app.limits, n_connections=self.connections.__len__,
                clock=self.clock, backlog=BACKLOG))

    def bound_addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports, without sockets of the file system."""
        return [bound.getsockname()[:2] for listener in self._listeners for bound in listener.sockets
                if bound.family != socket.AF_UNIX]

    def make_connection(self) -> "ServerConnection[R]":
        return ServerConnection(self)

    def add_connection(self, connection: "ServerConnection[R]", transport: asyncio.Transport,
                       now: float) -> StayfastError | None:
        """Add a new connection; close one without a request if that makes room. Returns the error if it is rejected."""
        limits, waiting, limit = self.app.limits, self.waiting, self._descriptor_limit
        address = limited_address(transport.get_extra_info("peername"))
        most = min(limits.max_connections, client_share(limit))
        n_closed = 0
        sock = transport.get_extra_info("socket")
        # the system uses the lowest free number
        is_short = sock is not None and sock.fileno() >= limit - descriptor_reserve(limit)
        if is_short or len(self.connections) >= most:
            has_room = waiting.close_oldest()
            n_closed = int(has_room)
            if is_short and self._sink is not None:
                self._sink.emit(DescriptorsExhausted("accept", limit))
            if not has_room:
                return exhausted_error("for another connection") if is_short else Shed(
                    "Too many connections.", code="too_many_connections", retry_after_s=1.0)
        self.connections.add(connection)
        waiting.add(connection, address, now)
        n_closed += waiting.close_surplus(address, limits.max_pending_connections, limits.max_pending_per_address, now)
        if n_closed and self._sink is not None:
            self._sink.emit(ConnectionsClosed(n_closed, len(self.connections), waiting.n_silent))
        return None

    def remove_connection(self, connection: "ServerConnection[R]") -> None:
        self.connections.discard(connection)
        self.waiting.remove(connection)
        if not self.connections:
            self.is_empty.set()

    def start_draining(self) -> None:
        """Close each connection after its next answer."""
        self.is_draining = True

    def reject_new_requests(self) -> None:
        """Reject new requests, with the application's error."""
        self.is_draining = self.is_refusing = True

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    def abort_connections(self) -> None:
        for connection in tuple(self.connections):
            connection.abort()

    def __repr__(self) -> str:
        state = "draining" if self.is_draining else "open"
        return f"<HttpServer {state}: {len(self.connections)} connections, {len(self.tasks)} requests>"


class ServerConnection(asyncio.Protocol, Generic[R]):
    """One client connection. The first methods are called by the event loop, the next by the running answer."""

    __slots__ = ("_closing_at", "_idle_since", "_is_lingering", "_is_lost", "_keepalive", "_keepalive_at",
                 "_keepalive_every_s", "_n_ahead", "_parser", "_server", "_stall", "_task", "_timer", "_transport",
                 "_upload", "_waiter", "abort_reason", "is_write_buffer_full", "write")

    def __init__(self, server: HttpServer[R]) -> None:
        app = server.app
        self._server = server
        self._parser = RequestParser(app.request_type, app.limits, server.clock, self._check_head)
        self._timer = LazyTimer(self._check_timeouts)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._keepalive: Callable[[], None] | None = None
        self._keepalive_at = math.inf
        self._keepalive_every_s = math.inf
        self._idle_since = 0.0
        self._n_ahead = 0
        self._is_lost = False
        self._is_lingering = False
        self._closing_at = math.inf
        self._waiter: asyncio.Future[None] | None = None
        self._stall = (0.0, 0)  # when the write buffer last became smaller, and its size then
        self._upload: BodyFlow | None = None  # of the running request
        self.abort_reason: StayfastError | None = None  # why the running answer was cancelled; None: the client disconnected
        self.is_write_buffer_full = False  # the write buffer is full: wait until it has room before writing more

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write: Callable[[bytes], None] = self._transport.write
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        server = self._server
        self._idle_since = now = server.clock.now()
        refusal = server.add_connection(self, self._transport, now)
        if refusal is None:
            self._timer.set_no_later_than(now + server.app.limits.idle_timeout_s)
            return
        request = server.app.request_type(now)
        request.is_broken = True
        self._send_rejection(request, refusal)
        if refusal.code == "descriptors_exhausted":
            self.close()  # no lingering: it would hold a descriptor

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self._is_lost:
            return
        parser = self._parser
        parser.feed(data)
        if self._task is not None or self.is_write_buffer_full:
            if self._upload is not None and self._upload.takes_read():
                return
            self._n_ahead += len(data)
            limit = self._server.app.limits.read_ahead_bytes
            if self._n_ahead > limit:
                parser.reject_further(Rejected(f"More than {limit} bytes arrived while a request was being answered: wait "
                                               "for the answer, or use another connection.", code="too_far_ahead"))
            return
        self._start_next()
        if parser.phase != IDLE and self._task is None:
            self._timer.set_no_later_than(parser.due_at())

    def eof_received(self) -> None:
        """The client closed its sending side, which counts as a disconnect."""
        if self._task is not None or self._is_lingering:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._server.remove_connection(self)
        self._timer.cancel()
        self._cancel()
        self._close_upload()
        self._parser.close()

    def pause_writing(self) -> None:
        self.is_write_buffer_full = True
        now = self._server.clock.now()
        self._stall = (now, self._transport.get_write_buffer_size())
        self._timer.set_no_later_than(now + self._server.app.limits.write_timeout_s)

    def resume_writing(self) -> None:
        self.is_write_buffer_full = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif self._task is None:
            self._start_next()

    # Called by an answer. `write` is the transport's method.

    def write_early(self, data: bytes) -> None:  # before what else runs in this turn of the loop
        self._server.early_writer.write(self._transport, data)

    async def wait_writable(self) -> None:
        """Wait until the write buffer has room. Only the request's Task may wait."""
        if self.is_write_buffer_full:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def keeps_alive(self, request: R) -> bool:
        """Whether the connection stays open after this request."""
        return request.keep_alive and not self._server.is_draining

    @property
    def is_encrypted(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    def peer_address(self) -> tuple[str, int] | None:
        """The client's host and port; None if it has none."""
        name = self._transport.get_extra_info("peername")
        return (name[0], name[1]) if isinstance(name, tuple) and len(name) >= 2 else None

    def start_keepalive(self, send: Callable[[], None], first_at: float, every_s: float) -> None:
        """Call `send` at `first_at` and then every `every_s`, until `stop_keepalive`."""
        self._keepalive = send
        self._keepalive_every_s = every_s
        self._keepalive_at = first_at
        self._timer.set_no_later_than(first_at)

    def stop_keepalive(self) -> None:
        self._keepalive = None
        self._keepalive_at = math.inf

    def report_error(self, error: BaseException) -> None:
        """Report an unexpected exception, for which the client gets a 500."""
        self._server.tasks.report_error(error)

    def respond_error(self, request: R, error: StayfastError) -> None:
        if request.body_parts is not None:
            request.body_parts.is_answered = True
        self.write(self._server.app.render_error(request, error, keep_alive=self.keeps_alive(request)))
        self.finish(request)

    def finish(self, request: R) -> None:
        """The answer is written: start the next request, wait for one, or close."""
        self._task = None
        if self._is_lost or self._closing_at < math.inf:
            return
        if request.body_parts is not None:
            self._close_upload()
            if not request.body_parts.is_whole:
                self._close_after_linger()
                return
        if not self.keeps_alive(request):
            self.close()
            return
        parser, server = self._parser, self._server
        self._idle_since = now = server.clock.now()
        if parser.phase != IDLE:
            parser.restart_timeout(now)
            self._timer.set_no_later_than(parser.due_at())
        else:
            self._timer.set_no_later_than(now + server.app.limits.idle_timeout_s)
            if not parser.ready:
                server.waiting.mark_idle(self)
        if parser.ready or parser.expects_continue:
            self._start_next()

    def close(self) -> None:
        """Close after all written data has been sent."""
        self.stop_keepalive()
        self._task = None
        self._closing_at = self._server.clock.now() + self._server.app.limits.write_timeout_s
        self._timer.set_no_later_than(self._closing_at)
        self._transport.close()

    def reset(self) -> None:
        """Close at once with RST instead of FIN and drop unsent data: the client sees that the answer is incomplete."""
        self.stop_keepalive()
        self._task = None
        self._closing_at = self._server.clock.now()
        if not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def abort(self) -> None:
        """Close at once, drop unsent data and cancel the running request."""
        self._cancel()
        self._transport.abort()

    def cancel_with_error(self, why: StayfastError) -> None:
        """Cancel the running request with an error that its handler sends to the client."""
        if self._task is None:
            self.abort()
        else:
            self.abort_reason = why
            self._task.cancel(why)  # the argument distinguishes this from a disconnect

    def close_if_idle(self) -> None:
        """Close the connection if no request is running or being received. A WebSocket is closed when it does no work."""
        if self._task is None and self._parser.phase == IDLE and not self._is_lingering:
            self.close()
        elif self._upload is not None:
            self._upload.drain()

    def _check_head(self, request: R) -> StayfastError | None:
        server = self._server
        request.peer = self.peer_address
        refusal = server.app.check_head(request, is_refusing=server.is_refusing)
        if refusal is None:
            server.waiting.remove(self)
        return refusal

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _start_next(self) -> None:
        """Start the next complete request, unless one is running."""
        parser, server = self._parser, self._server
        ready = parser.ready
        while ready and self._task is None and not self.is_write_buffer_full and self._closing_at == math.inf:
            request = ready.popleft()
            if request.refusal is not None:
                self._send_rejection(request, request.refusal)
            else:
                self._n_ahead = 0
                self._task = server.tasks.spawn(server.app.handle(self, request))
                if request.body_parts is not None:
                    self._upload = BodyFlow(request.body_parts, parser, self._transport, self._timer, server.clock)
        if parser.expects_continue and self._task is None and not self.is_write_buffer_full:
            parser.expects_continue = False
            self.write(CONTINUE)

    def _close_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.close()

    def _send_rejection(self, request: R, error: StayfastError) -> None:
        app = self._server.app
        self.write(app.render_error(request, error, keep_alive=self.keeps_alive(request)))
        app.note_refusal(request, error)
        if request.is_broken:
            self._close_after_linger()
        else:
            self.finish(request)

    def _close_after_linger(self) -> None:
        """Close the sending side and keep reading for LINGER_S: a reset would make the client lose the response."""
        self._is_lingering = True
        self._closing_at = self._server.clock.now() + LINGER_S
        self._timer.set_no_later_than(self._closing_at)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _check_timeouts(self) -> float:
        """Enforce the time-outs. Returns the next instant to check."""
        now, limits = self._server.clock.now(), self._server.app.limits
        due_at = min(self._closing_at, self._stall_deadline(now, limits.write_timeout_s))
        if due_at <= now:
            self.abort()
            return math.inf
        if self._closing_at < math.inf:
            return due_at
        if self._task is not None:
            if self._keepalive is not None and self._keepalive_at <= now:
                self._keepalive_at = now + self._keepalive_every_s
                self._keepalive()
            if self._upload is not None:
                due_at = min(due_at, self._upload.check(now))
            return min(due_at, self._keepalive_at)
        return min(due_at, self._check_request_timeouts(now, limits.idle_timeout_s))

    def _stall_deadline(self, now: float, limit_s: float) -> float:
        """When a client that reads nothing is disconnected."""
        if not self.is_write_buffer_full:
            return math.inf
        since, n_before = self._stall
        n_unsent = self._transport.get_write_buffer_size()
        self._stall = now if n_unsent < n_before else since, n_unsent
        return self._stall[0] + limit_s

    def _check_request_timeouts(self, now: float, idle_s: float) -> float:
        parser = self._parser
        if parser.phase == IDLE:
            if self._idle_since + idle_s <= now:
                self.close()
            return self._idle_since + idle_s
        if parser.due_at() <= now:
            parser.reject_timed_out()
            self._start_next()
        return parser.due_at()

    def __repr__(self) -> str:
        state = "answering" if self._task is not None else ("idle", "reading a head", "reading a body")[self._parser.phase]
        return f"<ServerConnection {state}, {len(self._parser.ready)} ready>"
