"""Errors of the ASGI application behind the gateway's server, as its clients see them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import uvloop

from stayfast.core.errors import Rejected
from stayfast.http.server.asgi import Message, Scope
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer
from stayfast.testing import RecordingSink
from tests.server.fakes import FakeBackend, Running, get, host

pytestmark = pytest.mark.sockets


async def refuse(scope: Scope, receive: Callable[[], Awaitable[Message]],
                 send: Callable[[Message], Awaitable[None]]) -> None:
    """413 in the middle of a body, and 426 for a path that is a WebSocket."""
    if scope["path"] == "/readyz":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise Rejected("Too much.", status=426 if scope["path"] == "/health" else 413, code="body_too_large")


@asynccontextmanager
async def refusing() -> AsyncIterator[Running]:
    """A gateway whose ASGI application refuses everything; unexpected exceptions fail the test."""
    sink, errors = RecordingSink(), list[BaseException]()
    current = ActiveSystem(backend := FakeBackend())
    server = GatewayServer(current, replace(host(sink, errors), admin_app=refuse))
    await server.listen()
    running = Running(server, current, backend, sink, errors, server.addresses()[0][1])
    yield running
    for client in running.clients:
        client.reset()
    server.close()
    await server.app.tasks.wait_until_empty(5)
    assert errors == []


def test_asgi_rejection_is_answered_in_the_dialect_of_the_path() -> None:
    """Not as a bug of the gateway; the connection stays. Once a response has begun, the connection ends."""

    async def main() -> None:
        async with refusing() as running:
            client = await running.connect()
            client.send(get("/livez") + get("/health") + get("/readyz"))
            status, _, body = await client.answer()
            assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
            status, headers, _ = await client.answer()
            assert (status, headers["upgrade"], headers["sec-websocket-version"]) == (426, "websocket", "13")
            rest = await client.rest()
            assert rest.startswith(b"HTTP/1.1 200 ")
            assert rest.endswith(b"4\r\nhalf\r\n")

    uvloop.run(main())
