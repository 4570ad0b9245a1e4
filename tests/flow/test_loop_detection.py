"""A base_url that leads back to the gateway: a request makes a few calls and fails with an error that names the loop."""

import asyncio
from contextlib import AsyncExitStack

import pytest
import uvloop

from stayfast.core.constants import MAX_HOPS
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsError, SettingsText, load_settings
from tests.flow.chain_rig import WHOLE, fetch, gateway_to
from tests.flow.socket_rig import listening
from tests.ports import free_port
from tests.server.fakes import Client, get

pytestmark = pytest.mark.sockets

class CountingProxy:
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
            pass  # closed by the gateway
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()


def test_loop_through_a_proxy_ends_after_max_hops() -> None:
    """No address shows the loop; there is no retry, and the breaker does not count the failure."""

    async def main() -> None:
        port = free_port()
        proxy = CountingProxy(port)
        async with listening(proxy.talk) as proxy_port, gateway_to(port, proxy_port):
            for _ in range(3):
                before = len(proxy.heads)
                status, headers, body = await fetch(port)
                assert (status, body["error"]["code"], headers["x-should-retry"]) == (508, "loop_detected", "false")
                assert "base_url" in body["error"]["message"]
                assert len(proxy.heads) - before == MAX_HOPS
            messages = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'
            status, _, body = await fetch(port, path="/v1/messages", body=messages)
            assert (status, body["type"], body["error"]["type"]) == (508, "error", "api_error")

    uvloop.run(main())


def test_loop_detection_permits_a_chain_of_gateways() -> None:
    """As many as max hops; each gateway counts itself, and a count sent by the client is included."""

    async def main() -> None:
        last = CountingProxy()
        async with AsyncExitStack() as stack:
            to = await stack.enter_async_context(listening(last.talk))
            for _ in range(MAX_HOPS):
                port = free_port()
                await stack.enter_async_context(gateway_to(port, to))
                to = port
            assert (await fetch(to))[0] == 200
            assert f"x-stayfast-hop: {MAX_HOPS}\r\n".encode() in last.heads[0] + b"\r\n"
            assert (await fetch(to, "x-stayfast-hop: 1"))[0] == 508
            status, _, body = await fetch(to, "x-stayfast-hop: -1")
            assert (status, body["error"]["param"]) == (400, "x-stayfast-hop")
            client = Client(*await asyncio.open_connection("127.0.0.1", to))
            client.send(get("/livez", "x-stayfast-hop: 99"))
            assert (await client.answer())[0] == 200
            client.leave()

    uvloop.run(main())


@pytest.mark.parametrize(("server", "url", "is_loop"), [
    ("{port: 81}", "http://127.0.0.1:81/v1", True), ("{port: 81}", "http://localhost:81/v1", True),
    ("{port: 81, host: 0.0.0.0, auth: off}", "http://127.0.0.1:81/v1", True),
    ("{port: 81, host: '::', auth: off}", "http://[::1]:81/v1", True),
    ("{port: 80, host: gateway.example, auth: off}", "http://gateway.example/v1", True),
    ("{port: 81}", "http://127.0.0.1:82/v1", False), ("{port: 81}", "http://10.0.0.1:81/v1", False),
    ("{port: 81, host: 0.0.0.0, auth: off}", "http://10.0.0.1:81/v1", False),
])
def test_base_url_with_the_address_of_the_gateway_is_refused(server: str, url: str, is_loop: bool) -> None:
    """As far as the address shows it; a loop through a name or a proxy is found by the first request."""
    text = f"server: {server}\nupstreams: {{a: {{kind: openai, base_url: '{url}'}}}}\nroutes: {{m: [a]}}"
    if is_loop:
        with pytest.raises(SettingsError, match=r"upstreams\.a\.base_url: is the address of this gateway"):
            load_settings(SettingsText("x", text), {}, kinds=KINDS)
    else:
        load_settings(SettingsText("x", text), {}, kinds=KINDS)
