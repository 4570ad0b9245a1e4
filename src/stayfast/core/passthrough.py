"""The fact of a request that was passed to an upstream without being read."""

import msgspec


class PassedThrough(msgspec.Struct, frozen=True, gc=False):
    """One request or WebSocket has ended. `path`: a label of a bounded set. `status`: of the response's head, as the client
    got it; 101: a WebSocket; 499: the client left before. `error`: why it ended before its end, if it did. `head_s`: from
    accept to the head of the upstream's response; None: there was none. Bytes are those of bodies, or of messages.
    """

    request_id: str
    wall_at: float  # accepted; seconds since the epoch
    method: str
    path: str
    upstream: str
    status: int
    seconds: float
    error: str | None = None
    tenant: str | None = None
    head_s: float | None = None
    n_bytes_up: int = 0
    n_bytes_down: int = 0
    trace_id: str | None = None
    upstream_request_id: str | None = None
    close_code: int | None = None  # of a WebSocket
