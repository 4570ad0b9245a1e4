"""What the HTTP server asks of the gateway: whom to refuse, what answers a request, and how an error looks."""

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

from stayfast.core.errors import Rejected, Shed, StayfastError
from stayfast.core.events import KeysFailed
from stayfast.http.server.asgi import AsgiResponse, scope_of
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.parser import HttpLimits
from stayfast.server.hot import ServerContext, answer, total
from stayfast.server.inbound import (
    HOP,
    HOT,
    LlmHttpRequest,
    body_deadline_s,
    check_media,
    check_name,
    has_stayfast_headers,
    hops,
)
from stayfast.server.routes import METRICS, OPEN, allowed, shutting_down, wrong_method

_RESERVED = frozenset((b"date", b"server-timing", b"x-request-id"))


class GatewayApp(ServerContext):
    """The gateway as an application of `http.server`: hot paths go to `hot.answer`, all others to the cold application."""

    __slots__ = ()

    request_type = LlmHttpRequest

    @property
    def limits(self) -> HttpLimits:
        return self.current.http_limits

    def check_head(self, request: LlmHttpRequest, *, is_refusing: bool) -> StayfastError | None:
        """Set `api` and `tenant` of a request whose head is in, or return why it is refused before its body is read."""
        fields, path = request.fields, request.path
        if has_stayfast_headers(fields):
            request.deadline_s = body_deadline_s(fields)
        request.api = api = HOT.get(path)
        if api is not None:
            request.raw_headers = ()
        try:
            self._authenticate(request)
            methods = ("POST",) if api is not None else allowed(path)
            if request.method not in methods:
                return wrong_method(request.method, path, methods)
            if api is not None:
                check_media(fields)
                if HOP in fields:
                    hops(fields)
        except (Rejected, Shed) as error:
            return error
        return shutting_down() if is_refusing and api is not None else None

    def _authenticate(self, request: LlmHttpRequest) -> None:
        """Set `tenant`, where the path is not open to everybody. Raises Rejected."""
        current = self.current
        if request.path in OPEN or (request.path == METRICS and current.config.metrics_access == "open"):
            return
        try:
            request.tenant = current.keys.tenant(request.fields)
        except Rejected as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._count_failed_key(request)
            raise
        if current.is_for_this_machine:
            check_name(request.fields)

    def _count_failed_key(self, request: LlmHttpRequest) -> None:
        """Raises Rejected (429) in place of the 401 for an address that had too many."""
        now, limit, peer = self.clock.now(), self.current.config.failed_keys_per_minute, request.peer()
        wait_s = self.failed_keys.count(peer, limit, now)
        if not wait_s:
            return
        n_refused = self.failed_keys.due_report(now)
        if n_refused:
            self.sink.emit(KeysFailed(n_refused, peer[0] if peer is not None else "", limit))
        raise Rejected(f"Too many requests without a valid key from this address: {limit} a minute are answered. A valid "
                       "key is served at once.", status=429, code="too_many_failed_keys", retry_after_s=wait_s)

    def handle(self, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest) -> Coroutine[Any, Any, None]:
        return (answer if request.api is not None else respond_cold)(self, connection, request)


async def respond_cold(edge: ServerContext, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest) -> None:
    request_id = edge.request_id(request)

    def own_lines() -> bytes:
        took = total(edge.clock.now() - request.accepted_at)
        return b"server-timing: %b\r\n%b" % (took.encode(), edge.common(request_id))

    response = AsgiResponse(connection, request, own_lines, _RESERVED)
    scope = scope_of(request, connection.peer(), {"request_id": request_id, "tenant": request.tenant})
    try:
        await edge.cold(scope, response.receive, response.send)
        if not response.is_whole:
            raise RuntimeError("the ASGI application returned before its answer was whole")
    except asyncio.CancelledError:
        connection.abort()
        raise
    except Exception as error:  # noqa: BLE001  # the Task's boundary
        connection.report(error)
        if response.has_started:
            connection.close()
        else:
            connection.respond_error(request, StayfastError("The gateway failed at this request. Its log says why."))
    else:
        connection.finish(request)
