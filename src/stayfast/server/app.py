"""What the HTTP server asks of the gateway: whom to refuse, what answers a request, and how an error looks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from stayfast.core.errors import StayfastError
from stayfast.http.server.asgi import AsgiResponse, scope_of
from stayfast.http.server.connection import Connection
from stayfast.http.server.parser import HttpLimits
from stayfast.server.edge import Edge
from stayfast.server.hot import answer
from stayfast.server.inbound import Inbound, body_deadline_s, says_more
from stayfast.server.respond import error_answer, total
from stayfast.server.routes import admit

_RESERVED = frozenset((b"date", b"server-timing", b"x-request-id"))


class GatewayApp:
    """The gateway as an application of `http.server`: hot paths go to `hot.answer`, all others to the cold application."""

    __slots__ = ("_edge",)

    request_type = Inbound

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @property
    def limits(self) -> HttpLimits:
        """Those of the settings in force."""
        return self._edge.current.http_limits

    def check_head(self, request: Inbound, *, is_draining: bool) -> StayfastError | None:
        """Who is asking, and whether the path, method and media type are right."""
        if says_more(request.fields):
            request.deadline_s = body_deadline_s(request.fields)
        refusal = admit(request, self._edge.current, is_draining=is_draining)
        if request.api is not None:
            request.raw_headers = ()
        return refusal

    def handle(self, connection: Connection[Inbound], request: Inbound) -> Coroutine[Any, Any, None]:
        """Answer one request."""
        life = answer if request.api is not None else respond_cold
        return life(self._edge, connection, request)

    def render_error(self, request: Inbound, error: StayfastError, *, keep_alive: bool) -> bytes:
        """A whole error answer in the dialect of the path."""
        edge = self._edge
        request_id = edge.request_id(request)
        return error_answer(error, request, edge.common(request_id), request_id, keep_alive=keep_alive,
                            total_s=edge.clock.now() - request.accepted_at)

    def note_refusal(self, request: Inbound, error: StayfastError) -> None:
        """A request was refused before it was served."""
        self._edge.note_refusal(request, error)


async def respond_cold(edge: Edge, connection: Connection[Inbound], request: Inbound) -> None:
    """Run the cold application for one request."""
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
        if response.has_begun:
            connection.close()
        else:
            connection.respond_error(request, StayfastError("The gateway failed at this request. Its log says why."))
    else:
        connection.finish(request)
