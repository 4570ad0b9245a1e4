"""Relays a WebSocket between a client and an upstream: whole messages, both ways, each as slow as its receiver.

Either side's close code and reason are passed to the other. An upstream that disappears closes the client's side with 1014.
Pings are answered on each side by itself.
"""

import asyncio

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.websocket import ABNORMAL, BAD_GATEWAY, SocketClosed, UpstreamSocket
from stayfast.http.server.connection import ServerConnection
from stayfast.http.server.websocket import WebSocketConnection, WebSocketEnded, WebSocketLimits, run_websocket
from stayfast.http.server.websocket_handshake import offered_subprotocols
from stayfast.pipeline.passthrough.call import PassedCall
from stayfast.server.http_request import LlmHttpRequest
from stayfast.server.passthrough.heads import KEY_PROTOCOL
from stayfast.server.sockets.hub import SocketHub


async def relay_socket(hub: SocketHub, connection: ServerConnection[LlmHttpRequest], request: LlmHttpRequest,
                       call: PassedCall) -> None:
    """Open the upstream's WebSocket, accept the client's, and relay until one of them ends."""
    subprotocols = [word for word in offered_subprotocols(request) if not word.startswith(KEY_PROTOCOL)]
    limits = WebSocketLimits(max_message_bytes=hub.active.config.max_body_bytes, max_lifetime_s=call.total_s,
                             idle_timeout_s=call.socket_idle_s, ping_s=min(20.0, call.socket_idle_s))

    async def handle(socket: WebSocketConnection) -> None:
        upstream: UpstreamSocket | None = None
        why: BaseException | None = None
        try:
            upstream = await call.open_socket(subprotocols, limits.max_message_bytes)
            await socket.accept(upstream.subprotocol, [("x-request-id", call.request.arrival.request_id),
                                                       ("x-stayfast-upstream", call.upstream)])
            with hub.counts.counted(call.request.label, socket):
                closed = await _relay(socket, upstream, call)
            call.close_code = closed.code
            if closed.code == ABNORMAL:
                why = UpstreamFailed(call.upstream, Fault.RESET, "the upstream closed the connection")
                raise WebSocketEnded(BAD_GATEWAY, "The upstream closed the connection.")
            upstream.close(closed.code, closed.reason)
            raise WebSocketEnded(closed.code, closed.reason)
        except asyncio.CancelledError as left:
            ending = socket.ending
            if ending is None:
                why = left
            elif upstream is not None:  # the client has closed, or a limit was reached
                call.close_code = ending.code
                upstream.close(ending.code, ending.reason)
            raise
        except WebSocketEnded:
            raise
        except BaseException as error:
            why = error
            raise
        finally:
            if upstream is not None and (why is not None or call.close_code is None):
                upstream.abort()
            call.end(why)

    await run_websocket(connection, request, handle, limits)


async def _relay(socket: WebSocketConnection, upstream: UpstreamSocket, call: PassedCall) -> SocketClosed:
    """Returns how the upstream has ended. The client's end cancels this."""
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(_pass_up(socket, upstream, call))
        try:
            while True:
                message = await upstream.receive()
                call.n_bytes_down += len(message)
                with socket.working():  # a message from the upstream is activity, too
                    await socket.send(message)
        except SocketClosed as closed:
            return closed
        finally:
            sending.cancel()


async def _pass_up(socket: WebSocketConnection, upstream: UpstreamSocket, call: PassedCall) -> None:
    while True:
        message = await socket.receive()
        call.n_bytes_up += len(message)
        await upstream.send(message)
