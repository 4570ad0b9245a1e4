"""What all connections of one loop share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import RequestRefused, Sink, Trace
from stayfast.server.backend import Current
from stayfast.server.inbound import Inbound, asked_request_id
from stayfast.server.respond import DateLine, RequestIds
from stayfast.server.routes import admit, label
from stayfast.server.tasks import Tasks

if TYPE_CHECKING:
    from stayfast.server.protocol import Connection

Scope = dict[str, Any]  # ASGI's own words; it gives no closer types
Message = dict[str, Any]
Place = Callable[[Trace | None], Trace | None]  # from the caller's place in a trace to the request's own
AsgiApp = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class Edge:
    """The running system, the cold application, and everything that connections have in common. One loop's."""

    __slots__ = ("clock", "cold", "connections", "current", "date", "ids", "is_draining", "is_empty", "n_served",
                 "place", "sink", "tasks")

    def __init__(self, current: Current, *, clock: Clock, sink: Sink, tasks: Tasks, entropy: bytes, cold: AsgiApp,
                 place: Place) -> None:
        self.current = current
        self.clock = clock
        self.sink = sink
        self.tasks = tasks
        self.cold = cold
        self.place = place
        self.ids = RequestIds(entropy)
        self.date = DateLine(clock)
        self.connections: set[Connection] = set()
        self.n_served = 0  # requests that the gateway was asked so far
        self.is_draining = False
        self.is_empty = asyncio.Event()  # the last connection has gone; whoever waits for it clears it first

    def leave(self, connection: "Connection") -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self.is_empty.set()

    def drain(self) -> None:
        """Refuse what comes from here on."""
        self.is_draining = True

    def gate(self, inbound: Inbound) -> StayfastError | None:
        """What to refuse of a request whose head is in."""
        return admit(inbound, self.current, is_draining=self.is_draining)

    def request_id(self, inbound: Inbound) -> str:
        """The client's own, or a new one."""
        return asked_request_id(inbound.fields) or self.ids.next()

    def common(self, request_id: str) -> bytes:
        """The header lines of every answer."""
        return b"%bx-request-id: %b\r\n" % (self.date.line(), request_id.encode())

    def note_refusal(self, inbound: Inbound, request_id: str, error: StayfastError) -> None:
        """Tell of a request that never reached the gateway; the gateway tells of all others."""
        self.sink.emit(RequestRefused(
            request_id=request_id, path=label(inbound.path), status=error.status,
            code=error.code, wall_at=self.clock.wall(), seconds=self.clock.now() - inbound.accepted_at,
            tenant=inbound.tenant,
        ))

    def __repr__(self) -> str:
        state = "draining" if self.is_draining else "open"
        return f"<Edge {state}: {len(self.connections)} connections, {len(self.tasks)} requests>"
