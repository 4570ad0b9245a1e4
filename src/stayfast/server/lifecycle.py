"""Start, reload, drain and stop of the server.

Steps of a drain: the readiness endpoint returns 503. For `grace_s` new requests are still served, because load balancers
need that long to notice; each response closes its connection. Then the listener and the idle connections are closed. New
requests on other connections get 503 with Retry-After. Running requests have `drain_s` to finish; after that they get an
error. SIGINT (Ctrl-C) skips the grace period. A second signal closes all connections at once.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_bytes, token_hex

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.held_bytes import HeldBytes
from stayfast.http.server.asgi import AsgiApp
from stayfast.http.server.connection import ConnectionTasks, HttpServer
from stayfast.http.server.tls import ServerCertificate
from stayfast.server.admin_endpoints import AdminApp
from stayfast.server.app import GatewayApp
from stayfast.server.arrivals import StartTrace
from stayfast.server.backend import ActiveSystem
from stayfast.server.config import ServerConfig, check_exposure
from stayfast.server.http_request import LlmHttpRequest
from stayfast.server.jobs.app import JobsApp
from stayfast.server.jobs.table import make_endpoints
from stayfast.server.paths import shutting_down_error
from stayfast.server.sockets.counts import SocketCounts
from stayfast.server.ui.app import UiApp
from stayfast.server.ui.sessions import Sessions

DRAINED, CUT_OFF = 0, 1  # exit statuses
_CLOSE_S = 1.0  # for cancelled Tasks to end and sockets to close


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """Parameters of `GatewayServer`. The callbacks run on the loop and must not raise."""

    clock: Clock
    sink: Sink
    entropy: bytes  # 8 random bytes, for request ids
    version: str
    on_error: Callable[[BaseException], None]  # unexpected exceptions
    on_listening: Callable[[Sequence[tuple[str, int]]], None]  # with its addresses, once it accepts connections
    on_reload: Callable[[], None]  # SIGHUP
    on_draining: Callable[[], None]  # the first SIGTERM or SIGINT
    session_secret: bytes | None = None  # 32 random bytes that all workers share; None: this server's own
    admin_app: AsgiApp | None = None  # None: `admin_endpoints.AdminApp`
    start_trace: StartTrace | None = None  # None: no tracing
    socket_counts: SocketCounts | None = None  # for the metrics
    held_bytes: HeldBytes | None = None  # the process's limit for buffered answers; None: a limit for this server alone


class GatewayServer:
    """One server on one event loop, from start to stop. Construct it while the loop runs."""

    __slots__ = ("_certificate", "_host", "_is_stopping", "_n_cut_off", "_skip_grace", "app", "http")

    def __init__(self, current: ActiveSystem, host: ServerHooks) -> None:
        self._host = host
        self._is_stopping = asyncio.Event()
        self._skip_grace = asyncio.Event()
        self._n_cut_off = 0
        tls = current.config.tls
        self._certificate = ServerCertificate(tls.cert_file, tls.key_file, tls.client_ca_file,
                                              is_1_3_only=tls.min_version == "1.3") if tls is not None else None
        current.on_swap = self._reload_certificate
        admin_app = host.admin_app or AdminApp(current, clock=host.clock, version=host.version,
                                               is_draining=lambda: self.http.is_draining)
        tasks = ConnectionTasks(host.on_error)
        ui_app = UiApp(current, clock=host.clock, version=host.version, make_session_id=partial(token_hex, 16),
                       sessions=Sessions(host.session_secret or token_bytes(32)))
        self.app = GatewayApp(current, clock=host.clock, sink=host.sink, tasks=tasks, entropy=host.entropy,
                              admin_app=admin_app, start_trace=host.start_trace, held_bytes=host.held_bytes,
                              socket_counts=host.socket_counts, ui_app=ui_app,
                              jobs_app=JobsApp(current, clock=host.clock, sink=host.sink, make_endpoints=make_endpoints))
        self.http: HttpServer[LlmHttpRequest] = HttpServer(self.app, host.clock, tasks, host.sink)

    async def listen(self, sockets: Sequence[socket.socket] = (), *, reuse_port: bool = False) -> None:
        """Accept connections, at the configured address unless `sockets`, which are bound, have another one of the network.
        Raises OSError (of TLS files, too), and ValueError if other machines can reach an address and no keys are configured.
        """
        config = self.app.active.config
        tls = self._certificate.context if self._certificate is not None else None
        hosts = [str(sock.getsockname()[0]) for sock in sockets if sock.family != socket.AF_UNIX]
        for host in hosts or [config.host]:
            check_exposure(replace(config, host=host))
        for sock in sockets:
            await self.http.listen_on(sock, tls)
        if not hosts:
            await self.http.listen(config.host, config.port, reuse_port=reuse_port, tls=tls)
        self._host.on_listening(self.addresses())

    def _reload_certificate(self, config: ServerConfig) -> None:
        """Read the certificate's files again. `server.tls` itself is read at start only."""
        if self._certificate is not None:
            try:
                self._certificate.reload()
            except OSError as error:
                self._host.on_error(error)  # the old one stays

    def addresses(self) -> list[tuple[str, int]]:
        return self.http.bound_addresses()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self.http.stop_listening()
        self._cut_off()

    def stop(self, *, with_grace: bool = True) -> None:
        """Drain, with or without the grace period. A second call closes all connections."""
        if self._is_stopping.is_set():
            self._skip_grace.set()
            self._cut_off()
        if not with_grace:
            self._skip_grace.set()
        self._is_stopping.set()

    async def serve(self) -> int:
        """Run until stopped; returns the exit status: DRAINED, or CUT_OFF if an answer was cut off."""
        await self._is_stopping.wait()
        http, config = self.http, self.app.active.config
        http.start_draining()
        self._host.on_draining()
        await _wait_for(config.grace_s, self._skip_grace)
        http.reject_new_requests()
        http.stop_listening()
        for connection in tuple(http.connections):
            connection.close_if_idle()
        http.is_empty.clear()
        if http.connections and not await _wait_for(config.drain_s, http.is_empty):
            self._n_cut_off += len(http.tasks)
            for connection in tuple(http.connections):
                connection.cancel_with_error(shutting_down_error())
            if not await _wait_for(_CLOSE_S, http.is_empty):
                self._cut_off()
        await http.tasks.wait_until_empty(_CLOSE_S)
        return CUT_OFF if self._n_cut_off else DRAINED

    def _cut_off(self) -> None:
        self._n_cut_off += len(self.http.tasks)
        self.http.abort_connections()


async def run(current: ActiveSystem, host: ServerHooks, *, sockets: Sequence[socket.socket] = (),
              reuse_port: bool = False) -> int:
    """Serve until SIGTERM or SIGINT, then drain; returns the exit status. Raises OSError if it cannot listen."""
    loop = asyncio.get_running_loop()
    server = GatewayServer(current, host)
    await server.listen(sockets, reuse_port=reuse_port)
    handlers: dict[signal.Signals, Callable[[], object]] = {
        signal.SIGTERM: server.stop, signal.SIGINT: partial(server.stop, with_grace=False),
        signal.SIGHUP: host.on_reload}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        return await server.serve()
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _wait_for(seconds: float, event: asyncio.Event) -> bool:
    """Wait for `event`, at most `seconds`; returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
