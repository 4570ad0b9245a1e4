"""WebSockets relayed between a client and the vendor."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from websockets.asyncio import client as library
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.clients.gateway import Gateway
from tests.server.passthrough.conftest import KEYS
from tests.server.passthrough.vendor import Vendor

pytestmark = pytest.mark.sockets
KEY_PROTOCOL = f"openai-insecure-api-key.{KEYS['a']}"


def dial(gateway: Gateway, path: str = "/v1/realtime", *, key: str | None = KEYS["a"], subprotocols: Sequence[str] = (),
         origin: str | None = None) -> library.connect:
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    if origin is not None:
        headers["origin"] = origin
    return library.connect(gateway.origin.replace("http", "ws") + path, additional_headers=headers, ping_interval=None,
                           subprotocols=[Subprotocol(name) for name in subprotocols] or None, max_size=None, proxy=None,
                           close_timeout=2)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


async def closed(socket: library.ClientConnection) -> tuple[int | None, str]:
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code, socket.close_reason or ""


def test_messages_are_relayed_both_ways(gateway: Gateway) -> None:
    async def main() -> None:
        async with dial(gateway) as socket:
            for message in ("hé", b"\0\1", "x" * 300_000):
                await socket.send(message)
                assert await socket.recv() == message
            await socket.send(["frag", "ment"])
            assert await socket.recv() == "fragment"
            await (await socket.ping())

    run(main)


def test_key_in_subprotocol_authenticates_and_is_not_passed(gateway: Gateway, vendor: Vendor) -> None:
    async def main() -> None:
        async with dial(gateway, key=None, subprotocols=["realtime", KEY_PROTOCOL, "openai-beta.realtime-v1"]) as socket:
            assert socket.subprotocol == "realtime"
            await socket.send("x")
            assert await socket.recv() == "x"
        request = vendor.sockets[-1].request
        assert request is not None
        assert request.headers["sec-websocket-protocol"] == "realtime, openai-beta.realtime-v1"
        assert request.headers["authorization"] == "Bearer sk-vendor-secret"

    run(main)


@pytest.mark.parametrize(("key", "origin", "status"), [(None, None, 401), (KEYS["a"], "https://evil.example", 403)])
def test_handshake_without_key_or_of_foreign_page_is_refused(gateway: Gateway, vendor: Vendor, key: str | None,
                                                             origin: str | None, status: int) -> None:
    async def main() -> None:
        n_before = len(vendor.sockets)
        with pytest.raises(InvalidStatus) as refused:
            async with dial(gateway, key=key, origin=origin):
                pytest.fail("accepted")
        assert refused.value.response.status_code == status
        assert len(vendor.sockets) == n_before

    run(main)


def test_handshake_that_upstream_refuses_is_refused(gateway: Gateway) -> None:
    """`/v1/status/404` of the HTTP vendor answers a handshake with 404."""

    async def main() -> None:
        with pytest.raises(InvalidStatus) as refused:
            async with dial(gateway, "/v1/status/404"):
                pytest.fail("accepted")
        assert refused.value.response.status_code == 404
        assert refused.value.response.body is not None
        assert json.loads(refused.value.response.body)["error"]["message"].startswith("bad key")

    run(main)


@pytest.mark.parametrize(("message", "code", "reason"), [
    ("close 4001 session expired", 4001, "session expired"), ("close 1000 ", 1000, ""),
    ("vanish", 1014, "The upstream closed the connection."),
])
def test_upstreams_close_reaches_client(gateway: Gateway, message: str, code: int, reason: str) -> None:
    async def main() -> None:
        async with dial(gateway) as socket:
            await socket.send(message)
            assert await closed(socket) == (code, reason)

    run(main)


def test_clients_close_reaches_upstream(gateway: Gateway, vendor: Vendor) -> None:
    async def main() -> None:
        async with dial(gateway) as socket:
            await socket.send("x")
            await socket.recv()
            await socket.close(4002, "bye")
        upstream = vendor.sockets[-1]
        await until(lambda: upstream.close_code is not None)
        assert (upstream.close_code, upstream.close_reason) == (4002, "bye")

    run(main)


def test_client_that_vanishes_closes_upstream(gateway: Gateway, vendor: Vendor) -> None:
    async def main() -> None:
        async with dial(gateway) as socket:
            await socket.send("x")
            await socket.recv()
            upstream = vendor.sockets[-1]
            socket.transport.abort()
            await until(lambda: upstream.close_code is not None)
            assert upstream.close_code == 1006

    run(main)


def test_slow_client_slows_upstream(gateway: Gateway, vendor: Vendor) -> None:
    async def main() -> None:
        async with dial(gateway) as socket:
            socket.transport.pause_reading()
            vendor.n_sent = 0
            await socket.send("flood")
            n_before = -1
            while vendor.n_sent != n_before:
                n_before = vendor.n_sent
                await asyncio.sleep(0.3)
            assert vendor.n_sent < 60 << 20
            socket.transport.abort()

    run(main)


def test_log_line_has_code_and_bytes(gateway: Gateway) -> None:
    async def main() -> None:
        async with library.connect(gateway.origin.replace("http", "ws") + "/v1/realtime", proxy=None, additional_headers={
                "authorization": f"Bearer {KEYS['a']}", "x-request-id": "ws-1"}) as socket:
            await socket.send("12345")
            await socket.recv()
            await socket.close(1000)

    run(main)
    ends_at = time.monotonic() + 10
    lines: list[dict[str, object]] = []
    while not lines:
        assert time.monotonic() < ends_at
        text = (gateway.errors.parent / "stdout.txt").read_text()
        lines = [line for line in map(json.loads, text.splitlines()) if line.get("request_id") == "ws-1"]
    assert (lines[0]["status"], lines[0]["path"], lines[0]["close_code"]) == (101, "/v1/realtime", 1000)
    assert (lines[0]["bytes_up"], lines[0]["bytes_down"]) == (5, 5)
