"""From the head of a handshake to the WebSocket that answers it."""

import asyncio

from stayfast.core.errors import StayfastError
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.websocket import WebSocketConnection, run_websocket
from stayfast.http.server.websocket_handshake import offer_websocket
from stayfast.server.http_request import LlmHttpRequest
from stayfast.server.paths import shutting_down_error
from stayfast.server.sockets.hub import SocketHub
from stayfast.server.sockets.jobs import JobSocket
from stayfast.server.sockets.paths import origin_of, socket_label
from stayfast.server.sockets.responses import ResponsesSocket


def allow_origin(hub: SocketHub, request: LlmHttpRequest) -> None:
    """Before the check of keys: a page of an allowed origin is not refused as another site's."""
    if origin_of(request) in hub.active.config.websocket_origins:
        request.fields.pop(b"sec-fetch-site", None)


def check_offer(hub: SocketHub, request: LlmHttpRequest, *, is_refusing: bool) -> StayfastError | None:
    """After the check of keys: switch, or return why not."""
    if is_refusing:
        return shutting_down_error()
    return offer_websocket(request, hub.active.config.websocket_origins)


async def answer_socket(hub: SocketHub, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest,
                        request_id: str) -> None:
    """Run one WebSocket."""
    label = socket_label(request) or ""

    async def handle(socket: WebSocketConnection) -> None:
        with hub.counts.counted(label, socket):
            if label == "/v1/responses":
                await socket.accept(headers=[("x-request-id", request_id)])
                async with asyncio.TaskGroup() as tasks:
                    await ResponsesSocket(hub, connection, request, socket, tasks).run()
            else:
                await JobSocket(hub, request, socket, request_id).run()

    await run_websocket(connection, request, handle, hub.limits())
