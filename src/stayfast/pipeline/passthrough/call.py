"""One request or WebSocket that is passed to an upstream: from the tenant's quota to the fact of its end.

Order: quota of the tenant, breaker, rate and place at the upstream, connection, head, body. The deadline bounds all of it.
What failed before anything was sent is not charged. Nothing is retried here; the HTTP client sends a request again only on a
closed idle connection: GET and HEAD before the first byte of a response, others before the first byte of the request.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import HOP_HEADER
from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.passthrough import PassedThrough
from stayfast.core.types import Stage
from stayfast.http.client.response import Response
from stayfast.http.client.upload import BodySource
from stayfast.http.client.websocket import SocketHead, UpstreamSocket
from stayfast.pipeline.exchange import Arrival, release_all
from stayfast.pipeline.passthrough.config import PassThroughConfig
from stayfast.pipeline.passthrough.upstream import PassedUpstream
from stayfast.wire.passthrough.headers import MAX_ID, forwarded_down, forwarded_up

CLIENT_LEFT, SWITCHING = 499, 101
_OPERATORS = (401, 407)  # the gateway's credentials were refused, which is not the client's fault
_MAX_ERROR_BYTES = 64 * 1024
_RETRIED = ("GET", "HEAD")
_NOT_OF_HEALTH = (501, 505)  # properties of the server


class ChargeUnread(Protocol):
    """Charges one request to a tenant's quota."""

    async def admit_unread(self, tenant_name: str | None) -> Callable[[], None]:
        """Returns what refunds it. Raises Shed."""


class CountedSource(BodySource, Protocol):
    """A body that counts what was read of it."""

    @property
    def n_read(self) -> int:
        """Bytes."""


class PassedRequest(msgspec.Struct, frozen=True, gc=False):
    """A client's request as it is passed on. `target`: at the upstream, percent-encoded; `label`: its path in metrics."""

    method: str
    target: str
    label: str
    headers: Sequence[tuple[bytes, bytes]]
    arrival: Arrival
    wall_at: float
    body: CountedSource | None = None

    def __repr__(self) -> str:  # without the client's key
        return f"<PassedRequest {self.method} {self.label}>"


class PassedCall:
    """Owns what a passed request holds; `end` gives it back and emits the fact. One task's."""

    __slots__ = ("_charge", "_clock", "_config", "_deadline_at", "_head_s", "_held", "_response", "_sink", "_status",
                 "_upstream", "close_code", "n_bytes_down", "n_bytes_up", "request", "total_s")

    def __init__(self, request: PassedRequest, upstream: PassedUpstream, config: PassThroughConfig, *,
                 charge: ChargeUnread | None, clock: Clock, sink: Sink, is_socket: bool = False) -> None:
        arrival = request.arrival
        most_s = config.socket_total_s if is_socket else config.total_s
        self.total_s = most_s if arrival.total_s is None else min(most_s, arrival.total_s)
        self.request = request
        self.n_bytes_up = self.n_bytes_down = 0
        self.close_code: int | None = None
        self._config = config
        self._upstream = upstream
        self._charge = charge  # None: there are no quotas
        self._clock = clock
        self._sink = sink
        self._deadline_at = arrival.accepted_at + self.total_s
        self._held: list[Callable[[], None]] = []
        self._response: Response | None = None
        self._status = 0
        self._head_s: float | None = None
        upstream.n_in_flight += 1

    @property
    def upstream(self) -> str:
        return self._upstream.name

    @property
    def deadline_at(self) -> float:
        return self._deadline_at

    @property
    def socket_idle_s(self) -> float:
        return self._config.socket_idle_s

    async def open(self) -> Response:
        """Send the request; return when the head of its response has arrived. Raises StayfastError."""
        async with self._bounded():
            await self._admit(takes_place=True)
            mark = self._upstream.begin_call()
            try:
                self._response = response = await self._send()
            except BaseException as error:
                self._note_failure(mark, error)
                raise
            self._held.append(response.close)
            status = response.status
            self._upstream.end_call(mark, is_failed=status >= 500 and status not in _NOT_OF_HEALTH)
            self._head_s = self._clock.now() - self.request.arrival.accepted_at
            if status in _OPERATORS:
                raise self._upstream.endpoint.failure_of(status, dict(response.headers), await read_some(response))
        self._status = status
        return response

    async def open_socket(self, subprotocols: Sequence[str], max_message_bytes: int) -> UpstreamSocket:
        """Open a WebSocket, which the caller closes. Raises StayfastError, of a refusal with the upstream's status."""
        request, endpoint = self.request, self._upstream.endpoint
        async with self._bounded():
            await self._admit(takes_place=False)
            mark = self._upstream.begin_call()
            try:
                found = await endpoint.sockets.open(
                    request.target, self._headers(), subprotocols, connect_by=self._connect_by(),
                    max_message_bytes=max_message_bytes)
            except BaseException as error:
                self._note_failure(mark, error)
                raise
            self._upstream.end_call(mark, is_failed=isinstance(found, SocketHead) and found.status >= 500)
            self._head_s = self._clock.now() - request.arrival.accepted_at
        if isinstance(found, SocketHead):
            raise endpoint.failure_of(found.status, found.headers, found.body)
        self._status = SWITCHING
        return found

    def response_headers(self) -> list[tuple[str, str]]:
        """The upstream's headers for the client, without those of the body's length."""
        endpoint = self._upstream.endpoint
        assert self._response is not None
        return forwarded_down(self._response.headers, endpoint.base, endpoint.base_path)

    async def read(self) -> bytes:
        """The next bytes of the response's body; b"" at its end. Raises StayfastError if it breaks off, or too late."""
        response = self._response
        assert response is not None
        idle_at = self._clock.now() + self._config.idle_s
        try:
            async with asyncio.timeout_at(min(idle_at, self._deadline_at)):
                data = await response.read()
        except TimeoutError:
            if idle_at < self._deadline_at:
                self._upstream.record_break()
                raise DeadlineExceeded(Stage.RELAY, "idle_s", self._config.idle_s) from None
            raise self._late(Stage.RELAY) from None
        except UpstreamFailed:
            self._upstream.record_break()
            raise
        self.n_bytes_down += len(data)
        return data

    def end(self, why: BaseException | None) -> None:
        """Release everything; closes the connection of an incomplete response. why: None: it was passed on whole."""
        release_all(self._held)
        self._upstream.n_in_flight -= 1
        if self.request.body is not None:
            self.n_bytes_up = self.request.body.n_read
        status, error = self._status, None
        if isinstance(why, StayfastError):
            status, error = status or why.status, why.code
        elif isinstance(why, Exception):
            status, error = status or 500, type(why).__name__
        elif why is not None:
            status, error = status or CLIENT_LEFT, "client_left"
        request, arrival, response = self.request, self.request.arrival, self._response
        upstream_id = response.headers.get("x-request-id") if response is not None else None
        self._sink.emit(PassedThrough(
            request_id=arrival.request_id, wall_at=request.wall_at, method=request.method, path=request.label,
            upstream=self.upstream, status=status, seconds=self._clock.now() - arrival.accepted_at, error=error,
            tenant=arrival.tenant, head_s=self._head_s, n_bytes_up=self.n_bytes_up, n_bytes_down=self.n_bytes_down,
            trace_id=arrival.trace.trace_id if arrival.trace is not None else None,
            upstream_request_id=upstream_id[:MAX_ID] if upstream_id is not None else None, close_code=self.close_code))

    async def _admit(self, *, takes_place: bool) -> None:
        """Charge the tenant, and take a place. Raises Shed, or UpstreamFailed (429)."""
        tenant, upstream = self.request.arrival.tenant, self._upstream
        refund = await self._charge.admit_unread(tenant) if self._charge is not None else None
        try:
            await upstream.take_rate()
            if takes_place:
                place = await upstream.take_place(self._deadline_at, tenant)
                self._held.append(lambda: upstream.leave_place(place))
        except BaseException:
            if refund is not None:
                refund()
            raise

    async def _send(self) -> Response:
        request, client = self.request, self._upstream.endpoint.client
        headers, connect_by = self._headers(), self._connect_by()
        if request.body is None:
            template = client.make_template(request.method, request.target, headers)
            return await client.send(template, (), b"", connect_by=connect_by, may_resend=request.method in _RETRIED)
        return await client.send_streamed(request.method, request.target, headers, request.body, connect_by=connect_by)

    def _headers(self) -> list[tuple[str, str]]:
        """Raises Rejected for a client's header that cannot be sent."""
        request = self.request
        own, arrival = self._upstream.endpoint.own_headers(request.method, request.target), request.arrival
        hop = () if any(name == HOP_HEADER for name, _ in arrival.headers) else ((HOP_HEADER, "1"),)
        return forwarded_up(request.headers, [("x-request-id", arrival.request_id), *arrival.headers, *hop, *own])

    def _connect_by(self) -> float:
        return min(self._deadline_at, self._clock.now() + self._config.connect_s)

    def _note_failure(self, mark: int, error: BaseException) -> None:
        """A call has ended before its head."""
        is_late = isinstance(error, asyncio.CancelledError) and self._clock.now() >= self._deadline_at
        if is_late or (isinstance(error, UpstreamFailed) and error.fault is not Fault.STATUS):
            self._upstream.end_call(mark, is_failed=True)
        else:
            self._upstream.discard_call(mark)

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Raises DeadlineExceeded when the time is up."""
        try:
            async with asyncio.timeout_at(self._deadline_at):
                yield
        except TimeoutError:
            raise self._late() from None

    def _late(self, stage: Stage = Stage.CALL) -> DeadlineExceeded:
        return DeadlineExceeded(stage, "total_s", self.total_s)

    def __repr__(self) -> str:
        return f"<PassedCall {self.request.method} {self.request.label} to {self.upstream}>"


async def read_some(response: Response) -> bytes:
    """The beginning of a body, up to 64 KiB."""
    parts, n_bytes = [], 0
    while n_bytes < _MAX_ERROR_BYTES and (data := await response.read()):
        parts.append(data)
        n_bytes += len(data)
    return b"".join(parts)
