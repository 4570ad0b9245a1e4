"""From listening to the last byte: start, reload, drain, stop.

A drain has an order. Readiness ends first; for `drain_grace_s` new requests are served as before, since balancers send
them until they have seen that, and each answer closes its connection. Then the listener and idle connections close, what
still comes on others gets 503 with Retry-After, running answers get `drain_s`, and what is left is told so and ends. SIGINT
(Ctrl-C) leaves the grace out: nobody balances to a terminal. A second signal cuts everything off at once.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.held_bytes import HeldBytes
from stayfast.http.server.asgi import AsgiApp
from stayfast.http.server.connection import ConnectionTasks, HttpServer
from stayfast.server.app import GatewayApp
from stayfast.server.backend import ActiveSystem
from stayfast.server.cold import AdminApp
from stayfast.server.config import check_exposure
from stayfast.server.hot import Place
from stayfast.server.inbound import LlmHttpRequest
from stayfast.server.routes import shutting_down

DRAINED, CUT_OFF = 0, 1  # exit statuses
_FAREWELL_S = 1.0  # for cancelled Tasks and closing sockets to go


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """What the edge gets from whoever starts it. The callbacks run on the loop and must not raise."""

    clock: Clock
    sink: Sink
    entropy: bytes  # 8 random bytes, for request ids
    version: str
    on_error: Callable[[BaseException], None]  # exceptions that nobody expected
    on_listening: Callable[[Sequence[tuple[str, int]]], None]  # the addresses, once connections are taken
    on_reload: Callable[[], None]  # SIGHUP
    on_draining: Callable[[], None]  # the first SIGTERM or SIGINT
    cold: AsgiApp | None = None  # in place of the built-in cold endpoints
    place: Place | None = None  # None: no tracing
    held: HeldBytes | None = None  # of whole answers, in all of the process; None: they are not counted


class GatewayServer:
    """One edge on one loop, from start to stop. Make it inside the loop."""

    __slots__ = ("_host", "_is_hurried", "_is_stopping", "_n_cut_off", "edge", "http")

    def __init__(self, current: ActiveSystem, host: ServerHooks) -> None:
        self._host = host
        self._is_stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()
        self._n_cut_off = 0
        cold = host.cold or AdminApp(current, clock=host.clock, version=host.version,
                                    is_draining=lambda: self.http.is_draining)
        tasks = ConnectionTasks(host.on_error)
        self.edge = GatewayApp(current, clock=host.clock, sink=host.sink, tasks=tasks, entropy=host.entropy, cold=cold,
                               place=host.place, held=host.held)
        self.http: HttpServer[LlmHttpRequest] = HttpServer(self.edge, host.clock, tasks, host.sink)

    async def listen(self, sock: socket.socket | None = None, *, reuse_port: bool = False) -> None:
        """Take connections, on `sock` if it is given (bound already). Raises OSError, and ValueError for an open door."""
        config = self.edge.current.config
        if sock is None:
            check_exposure(config)
        await self.http.listen(config.host, config.port, sock=sock, reuse_port=reuse_port)
        self._host.on_listening(self.addresses())

    def addresses(self) -> list[tuple[str, int]]:
        return self.http.addresses()

    def close(self) -> None:
        """Stop listening and cut off what runs."""
        self.http.stop_listening()
        self._cut_off()

    def stop(self, *, with_grace: bool = True) -> None:
        """Drain, `with_grace` serving new requests for a while; called again, cut off."""
        if self._is_stopping.is_set():
            self._is_hurried.set()
            self._cut_off()
        if not with_grace:
            self._is_hurried.set()
        self._is_stopping.set()

    async def serve(self) -> int:
        """Run until stopped; returns the exit status: DRAINED, or CUT_OFF when an answer did not get to its end."""
        await self._is_stopping.wait()
        http, config = self.http, self.edge.current.config
        http.drain()
        self._host.on_draining()
        await _within(config.grace_s, self._is_hurried)
        http.refuse()
        http.stop_listening()
        for connection in tuple(http.connections):
            connection.close_if_idle()
        http.is_empty.clear()
        if http.connections and not await _within(config.drain_s, http.is_empty):
            self._n_cut_off += len(http.tasks)
            for connection in tuple(http.connections):
                connection.cut_short(shutting_down())
            if not await _within(_FAREWELL_S, http.is_empty):
                self._cut_off()
        await http.tasks.wait(_FAREWELL_S)
        return CUT_OFF if self._n_cut_off else DRAINED

    def _cut_off(self) -> None:
        self._n_cut_off += len(self.http.tasks)
        self.http.abort()


async def run(current: ActiveSystem, host: ServerHooks, *, sock: socket.socket | None = None,
              reuse_port: bool = False) -> int:
    """Serve until SIGTERM or SIGINT has been obeyed; returns the exit status. Raises OSError when it cannot listen."""
    loop = asyncio.get_running_loop()
    server = GatewayServer(current, host)
    await server.listen(sock, reuse_port=reuse_port)
    handlers: dict[signal.Signals, Callable[[], object]] = {
        signal.SIGTERM: server.stop, signal.SIGINT: partial(server.stop, with_grace=False),
        signal.SIGHUP: host.on_reload}
    for number, act in handlers.items():
        loop.add_signal_handler(number, act)
    try:
        return await server.serve()
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for `event`, but no longer than that; whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
