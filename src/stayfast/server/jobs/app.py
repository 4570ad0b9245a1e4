"""The ASGI application of durable work: jobs, files, batches, background responses.

`server.app.GatewayApp` has already checked the key, the path and the method. An error before the first byte of a response is
rendered in the dialect of the path; after it, the connection closes without the end of the body.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import parse_qsl, unquote

from stayfast.core.clock import Clock
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import RequestRefused, Sink
from stayfast.http.server.asgi import Message, Scope
from stayfast.jobs.service import JobService
from stayfast.server.backend import ActiveSystem
from stayfast.server.jobs.endpoint import Endpoint, EndpointReply, EndpointRequest, EndpointTable
from stayfast.server.paths import error_dialect, metric_label, wrong_method_error
from stayfast.wire.errors import encode_error

_NO_STORE = (b"cache-control", b"no-store")
_RETRY_S = 30.0

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class MakeEndpoints(Protocol):
    def __call__(self, service: JobService, current: ActiveSystem, sink: Sink) -> tuple[Endpoint, ...]:
        """All endpoints of one service."""


class JobsApp:
    """The ASGI application. Task-safe."""

    __slots__ = ("_clock", "_current", "_make_endpoints", "_service", "_sink", "_table")

    def __init__(self, current: ActiveSystem, *, clock: Clock, sink: Sink, make_endpoints: MakeEndpoints) -> None:
        self._current = current
        self._clock = clock
        self._sink = sink
        self._make_endpoints = make_endpoints
        self._service: JobService | None = None
        self._table = EndpointTable(())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope, receive)
        except StayfastError as error:
            reply = self._render_error(scope, error)
        await send_reply(reply, send, is_head=scope["method"] == "HEAD")

    def upload_limit_bytes(self, method: str, path: str) -> int | None:
        """The largest body of an endpoint that reads it in parts; None: `server.max_body_bytes` counts."""
        if method != "POST" or self._current.backend.jobs is None:
            return None
        found = self._endpoints().find(path)
        return found[0]["POST"].max_body_bytes if found is not None and "POST" in found[0] else None

    async def _answer(self, scope: Scope, receive: Receive) -> EndpointReply:
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        by_method, parameters = self._endpoints().find(path) or ({}, {})
        endpoint = by_method.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise wrong_method_error(method, path, tuple(by_method))
        state = scope["state"]
        return await endpoint.handler(EndpointRequest(
            method=method, path=path, parameters={name: unquote(value) for name, value in parameters.items()},
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            tenant=state["tenant"], caller=state["caller"], request_id=state["request_id"],
            accepted_at=state["accepted_at"], body=_AsgiBody(receive)))

    def _endpoints(self) -> EndpointTable:
        """The endpoints of the running system's jobs. Raises Shed (503) if it has none."""
        service = self._current.backend.jobs
        if service is None:
            raise jobs_unavailable()
        if service is not self._service:
            self._service, self._table = service, EndpointTable(self._make_endpoints(service, self._current, self._sink))
        return self._table

    def _render_error(self, scope: Scope, error: StayfastError) -> EndpointReply:
        path, state = scope["raw_path"].decode("latin-1"), scope["state"]
        status, headers, body = encode_error(error, error_dialect(path), state["request_id"])
        self._sink.emit(RequestRefused(
            request_id=state["request_id"], path=metric_label(path), status=error.status, code=error.code,
            wall_at=self._clock.wall(), seconds=self._clock.now() - state["accepted_at"], tenant=state["tenant"]))
        media = dict(headers).get("content-type", "application/json")
        return EndpointReply(status, body, media, tuple(pair for pair in headers if pair[0] != "content-type"))


class _AsgiBody:
    """The body of a request, in the parts in which it arrives."""

    __slots__ = ("_is_read", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_read = False

    async def read(self) -> bytes:
        while not self._is_read:
            message = await self._receive()
            self._is_read = not message.get("more_body", False)
            if message["body"]:
                return bytes(message["body"])
        return b""


async def send_reply(reply: EndpointReply, send: Send, *, is_head: bool) -> None:
    """Write a reply. Its parts are closed in any case; each is read once the client has read enough of those before it."""
    headers = [(b"content-type", reply.content_type.encode("latin-1")),
               *((name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers)]
    if not any(name.lower() == _NO_STORE[0] for name, _ in headers):
        headers.append(_NO_STORE)
    if reply.n_bytes is not None:
        headers.append((b"content-length", b"%d" % reply.n_bytes))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    parts = reply.parts
    if parts is None:
        await send({"type": "http.response.body", "body": reply.body})
        return
    try:
        if not is_head:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()


def jobs_unavailable() -> Shed:
    """The error of a gateway without a store of jobs."""
    return Shed("This gateway cannot store jobs: its store could not be opened at start. The operator's log has the cause; "
                "requests without jobs are served.", reason="jobs_unavailable", code="jobs_unavailable",
                retry_after_s=_RETRY_S)
