"""A base_url that leads back to the gateway: one request makes a handful of calls, and its client is told why."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest
import uvloop

from stayfast.compose.system import Observers, build
from stayfast.core.clock import SystemClock
from stayfast.core.constants import MAX_HOPS
from stayfast.lab.simulated.settings import KINDS
from stayfast.server.backend import ActiveSystem
from stayfast.server.lifecycle import GatewayServer, ServerHooks
from stayfast.settings import SettingsError, SettingsText, load_settings
from tests.ports import free_port
from tests.server.fakes import CHAT, Client, get, post

pytestmark = pytest.mark.sockets

WHOLE = (b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
         b'"content":"hi"},"finish_reason":"stop"}]}')


@asynccontextmanager
async def gateway(port: int, to: int, route: str = "[a]") -> AsyncIterator[None]:
    """A gateway in this process on `port`, whose one upstream, a, is at port `to`."""
    text = (f"server: {{port: {port}}}\nroutes: {{m: {route}}}\n"
            f"upstreams: {{a: {{kind: openai, base_url: 'http://127.0.0.1:{to}/v1', probe: false}}}}")
    settings = load_settings(SettingsText("test", text), {}, kinds=KINDS)
    clock = SystemClock()
    observers = Observers(settings, clock)
    system = build(settings, observers, {}, clock, Random(1))
    errors: list[BaseException] = []
    server = GatewayServer(ActiveSystem(system), ServerHooks(
        clock=clock, sink=observers.sink, entropy=b"12345678", version="0", on_error=errors.append,
        on_listening=lambda _: None, on_reload=lambda: None, on_draining=lambda: None))
    await server.listen()
    try:
        yield
    finally:
        server.close()
        system.registry.close()
        await server.app.tasks.wait_until_empty(1.0)
    assert errors == []


class Between:
    """A proxy that passes bytes on, and counts the requests among them; without `to` it answers them."""

    def __init__(self, to: int | None = None) -> None:
        self.to = to
        self.heads: list[bytes] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            async with asyncio.TaskGroup() as tasks:
                out = None
                if self.to is not None:
                    back, out = await asyncio.open_connection("127.0.0.1", self.to)
                    tasks.create_task(self._pass_on(back, writer))
                while data := await reader.read(65_536):
                    self.heads += [part for part in data.split(b"\r\n\r\n") if part.startswith(b"POST")]
                    if out is not None:
                        out.write(data)
                    elif data.endswith(b"}"):
                        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                                     % (len(WHOLE), WHOLE))
                if out is not None:
                    out.close()
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway closes when it likes
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def listening(between: Between) -> AsyncIterator[int]:
    """Its port."""
    server = await asyncio.start_server(between.talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def ask(port: int, *lines: str, path: str = "/v1/chat/completions", body: bytes = CHAT) -> tuple[
        int, dict[str, str], Any]:
    """One request."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    client.send(post(body, path, *lines))
    status, headers, answer = await client.answer()
    client.leave()
    return status, headers, json.loads(answer)


def test_loop_through_a_proxy_ends_after_max_hops() -> None:
    """No address shows the loop; there is no retry, and the breaker does not count the failure."""

    async def main() -> None:
        port = free_port()
        between = Between(port)
        async with listening(between) as proxy, gateway(port, proxy):
            for _ in range(3):
                before = len(between.heads)
                status, headers, body = await ask(port)
                assert (status, body["error"]["code"], headers["x-should-retry"]) == (508, "loop_detected", "false")
                assert "base_url" in body["error"]["message"]
                assert len(between.heads) - before == MAX_HOPS
            messages = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'
            status, _, body = await ask(port, path="/v1/messages", body=messages)
            assert (status, body["type"], body["error"]["type"]) == (508, "error", "api_error")

    uvloop.run(main())


def test_loop_detection_permits_a_chain_of_gateways() -> None:
    """As many as max hops; each gateway counts itself, and a count sent by the client is included."""

    async def main() -> None:
        last = Between()
        async with AsyncExitStack() as stack:
            to = await stack.enter_async_context(listening(last))
            for _ in range(MAX_HOPS):
                port = free_port()
                await stack.enter_async_context(gateway(port, to))
                to = port
            assert (await ask(to))[0] == 200
            assert f"x-stayfast-hop: {MAX_HOPS}\r\n".encode() in last.heads[0] + b"\r\n"
            assert (await ask(to, "x-stayfast-hop: 1"))[0] == 508
            status, _, body = await ask(to, "x-stayfast-hop: -1")
            assert (status, body["error"]["param"]) == (400, "x-stayfast-hop")
            client = Client(*await asyncio.open_connection("127.0.0.1", to))
            client.send(get("/livez", "x-stayfast-hop: 99"))
            assert (await client.answer())[0] == 200
            client.leave()

    uvloop.run(main())


@pytest.mark.parametrize(("server", "url", "is_circle"), [
    ("{port: 81}", "http://127.0.0.1:81/v1", True), ("{port: 81}", "http://localhost:81/v1", True),
    ("{port: 81, host: 0.0.0.0, auth: off}", "http://127.0.0.1:81/v1", True),
    ("{port: 81, host: '::', auth: off}", "http://[::1]:81/v1", True),
    ("{port: 80, host: gateway.example, auth: off}", "http://gateway.example/v1", True),
    ("{port: 81}", "http://127.0.0.1:82/v1", False), ("{port: 81}", "http://10.0.0.1:81/v1", False),
    ("{port: 81, host: 0.0.0.0, auth: off}", "http://10.0.0.1:81/v1", False),
])
def test_base_url_with_the_address_of_the_gateway_is_refused(server: str, url: str, is_circle: bool) -> None:
    """As far as the address shows it; a loop through a name or a proxy is found by the first request."""
    text = f"server: {server}\nupstreams: {{a: {{kind: openai, base_url: '{url}'}}}}\nroutes: {{m: [a]}}"
    if is_circle:
        with pytest.raises(SettingsError, match=r"upstreams\.a\.base_url: is the address of this gateway"):
            load_settings(SettingsText("x", text), {}, kinds=KINDS)
    else:
        load_settings(SettingsText("x", text), {}, kinds=KINDS)
