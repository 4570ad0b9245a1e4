"""What all WebSockets of one loop share."""

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.http.server.websocket import WebSocketLimits
from stayfast.keys.principal import Principal
from stayfast.server.arrivals import StartTrace
from stayfast.server.backend import ActiveSystem
from stayfast.server.http_request import LlmHttpRequest, RequestIds
from stayfast.server.sockets.counts import SocketCounts

LIFETIME_S = 3600.0
_EXPIRED = {
    "type": "error", "status": 400, "error": {
        "type": "invalid_request_error", "code": "websocket_connection_limit_reached", "param": None,
        "message": "This WebSocket has been open for 60 minutes, which is the limit. Open another one, and send the whole "
                   "conversation as input."}}


class SocketHub:
    """The shared objects. One loop's."""

    __slots__ = ("active", "clock", "counts", "ids", "lifetime_s", "sink", "start_trace")

    def __init__(self, current: ActiveSystem, *, clock: Clock, sink: Sink, ids: RequestIds, start_trace: StartTrace | None,
                 counts: SocketCounts | None = None, lifetime_s: float = LIFETIME_S) -> None:
        self.active = current
        self.clock = clock
        self.sink = sink
        self.ids = ids
        self.start_trace = start_trace  # None: no tracing
        self.lifetime_s = lifetime_s
        self.counts = counts or SocketCounts()

    def limits(self) -> WebSocketLimits:
        """For a new WebSocket."""
        return WebSocketLimits(
            max_message_bytes=self.active.config.max_body_bytes, max_lifetime_s=self.lifetime_s,
            idle_timeout_s=self.lifetime_s, expiry_message=msgspec.json.encode(_EXPIRED).decode())

    def check_key(self, request: LlmHttpRequest) -> Principal | None:
        """The caller of an open WebSocket: its key may have ended or changed since the handshake. Raises Rejected, Shed."""
        return self.active.keys.authenticate(request.fields) if request.caller is not None else None

    def __repr__(self) -> str:
        return f"<SocketHub: {self.counts!r}>"
