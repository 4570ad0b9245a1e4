"""What all WebSockets of one loop share, and their counts."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.http.server.websocket import WebSocketConnection, WebSocketLimits
from stayfast.server.arrivals import StartTrace
from stayfast.server.backend import ActiveSystem
from stayfast.server.http_request import RequestIds

LIFETIME_S = 3600.0
_EXPIRED = {
    "type": "error", "status": 400, "error": {
        "type": "invalid_request_error", "code": "websocket_connection_limit_reached", "param": None,
        "message": "This WebSocket has been open for 60 minutes, which is the limit. Open another one, and send the whole "
                   "conversation as input."}}


class SocketHub:
    """The shared objects. One loop's."""

    __slots__ = ("_ended", "_open", "active", "clock", "ids", "lifetime_s", "sink", "start_trace")

    def __init__(self, current: ActiveSystem, *, clock: Clock, sink: Sink, ids: RequestIds, start_trace: StartTrace | None,
                 lifetime_s: float = LIFETIME_S) -> None:
        self.active = current
        self.clock = clock
        self.sink = sink
        self.ids = ids
        self.start_trace = start_trace  # None: no tracing
        self.lifetime_s = lifetime_s
        self._open: dict[WebSocketConnection, str] = {}
        self._ended: dict[tuple[str, str], int] = {}  # messages of WebSockets that have ended, by label and direction

    def limits(self) -> WebSocketLimits:
        """For a new WebSocket."""
        return WebSocketLimits(
            max_message_bytes=self.active.config.max_body_bytes, max_lifetime_s=self.lifetime_s,
            idle_timeout_s=self.lifetime_s, expiry_message=msgspec.json.encode(_EXPIRED).decode())

    @contextmanager
    def counted(self, label: str, socket: WebSocketConnection) -> Iterator[None]:
        """Count a WebSocket as open."""
        self._open[socket] = label
        try:
            yield
        finally:
            del self._open[socket]
            for direction, n in _messages(socket):
                self._ended[label, direction] = self._ended.get((label, direction), 0) + n

    def count_open(self) -> dict[str, int]:
        """Open WebSockets by label."""
        counts: dict[str, int] = {}
        for label in self._open.values():
            counts[label] = counts.get(label, 0) + 1
        return counts

    def count_messages(self) -> dict[tuple[str, str], int]:
        """Messages since the start, by label and direction (received, sent)."""
        counts = dict(self._ended)
        for socket, label in self._open.items():
            for direction, n in _messages(socket):
                counts[label, direction] = counts.get((label, direction), 0) + n
        return counts

    def __repr__(self) -> str:
        return f"<SocketHub: {len(self._open)} open>"


def _messages(socket: WebSocketConnection) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("received", socket.n_received), ("sent", socket.n_sent)
