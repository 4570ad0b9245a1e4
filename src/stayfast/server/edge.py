"""What all requests of one loop share."""

from collections.abc import Callable

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.events import RequestRefused, Sink, Trace
from stayfast.http.server.asgi import AsgiApp
from stayfast.http.server.response import DateLine
from stayfast.http.server.tasks import Tasks
from stayfast.server.backend import Current
from stayfast.server.inbound import Inbound, asked_request_id
from stayfast.server.respond import RequestIds
from stayfast.server.routes import label

Place = Callable[[Trace | None], Trace | None]  # from the caller's place in a trace to the request's own


class Edge:
    """The running system, the cold application, and what answers are made of. One loop's."""

    __slots__ = ("clock", "cold", "current", "date", "ids", "place", "sink", "tasks")

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

    def request_id(self, inbound: Inbound) -> str:
        """The client's own, or a new one."""
        request_id = inbound.request_id
        if request_id is None:
            inbound.request_id = request_id = asked_request_id(inbound.fields) or self.ids.next()
        return request_id

    def common(self, request_id: str) -> bytes:
        """The header lines of every answer."""
        return b"%bx-request-id: %b\r\n" % (self.date.line(), request_id.encode())

    def note_refusal(self, inbound: Inbound, error: StayfastError) -> None:
        """Tell of a request that never reached the gateway; the gateway tells of all others."""
        self.sink.emit(RequestRefused(
            request_id=self.request_id(inbound), path=label(inbound.path), status=error.status,
            code=error.code, wall_at=self.clock.wall(), seconds=self.clock.now() - inbound.accepted_at,
            tenant=inbound.tenant,
        ))

    def __repr__(self) -> str:
        return f"<Edge: {len(self.tasks)} requests>"
