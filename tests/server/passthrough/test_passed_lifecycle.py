"""A shutdown with passed requests and WebSockets in flight, a reload, and what is off by default."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from websockets.asyncio import client as library
from websockets.exceptions import ConnectionClosed

from tests.clients.gateway import Gateway, started
from tests.server.gateway_process import Gateway as Running
from tests.server.gateway_process import running as running_process
from tests.server.passthrough.asking import ask, until
from tests.server.passthrough.vendor import Vendor

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {{host: 127.0.0.1, drain_s: 5}}
upstreams:
  vendor: {{kind: openai, base_url: "{origin}/v1", key: k, probe: false}}
  live: {{kind: openai, base_url: "http://127.0.0.1:{sockets}/v1", key: k, probe: false}}
routes: {{m: [vendor]}}
jobs: {{path: "{folder}/jobs"}}
{more}
"""


def is_answered(gateway: Gateway, status: int) -> bool:
    return ask(gateway, "GET", "/v1/skills", None, {})[0].status == status


def write(folder: Path, vendor: Vendor, more: str) -> Path:
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(origin=vendor.origin, sockets=vendor.socket_port, folder=folder, more=more))
    return settings


def test_unset_passthrough_error_names_the_setting(vendor: Vendor, tmp_path: Path) -> None:
    with started(write(tmp_path, vendor, ""), tmp_path) as gateway:
        response, body = ask(gateway, "POST", "/v1/images/generations", b"{}", {})
        assert response.status == 404
        assert "`passthrough`" in json.loads(body)["error"]["message"]


def test_own_files_are_not_passed_by_default_upstream(vendor: Vendor, tmp_path: Path) -> None:
    """All keys share one account at the provider, so files are passed only where the settings name them."""
    with started(write(tmp_path, vendor, "passthrough: vendor"), tmp_path) as gateway:
        n_before = len(vendor.requests)
        for target in ("/v1/files", "/v1/files/file-1/x/y", "/v1/%66iles", "/v1/batches/b/c/d"):
            ask(gateway, "GET", target, None, {})
        assert len(vendor.requests) == n_before
        assert ask(gateway, "GET", "/v1/vector_stores", None, {})[0].status == 200


def test_reload_switches_passthrough_on_and_off(vendor: Vendor, tmp_path: Path) -> None:
    settings = write(tmp_path, vendor, "")
    with started(settings, tmp_path) as gateway:
        for more, status in (("passthrough: vendor", 200), ("passthrough: {paths: {/v1/images: vendor}}", 404), ("", 404)):
            write(tmp_path, vendor, more)
            os.kill(gateway.pid, signal.SIGHUP)
            until(partial(is_answered, gateway, status))


def test_shutdown_lets_requests_end_and_closes_sockets(vendor: Vendor, tmp_path: Path) -> None:
    """A running request is answered; a WebSocket gets 1001, and so does the vendor's side."""
    vendor.gate.clear()

    async def main(gateway: Running) -> tuple[int, int | None]:
        loop, origin = asyncio.get_running_loop(), gateway.url
        async with library.connect(origin.replace("http", "ws") + "/v1/realtime", proxy=None) as socket:
            await socket.send("x")
            await socket.recv()
            running = loop.run_in_executor(None, lambda: ask(Gateway(origin, tmp_path), "POST", "/v1/score", b"{}", {}))
            while not any(one.target == "/v1/score" for one in vendor.requests):
                await asyncio.sleep(0.01)
            gateway.terminate()
            with suppress(ConnectionClosed):
                await socket.recv()
            vendor.gate.set()
            return (await running)[0].status, socket.close_code

    more = "passthrough: {upstream: vendor, paths: {/v1/realtime: live}}"
    with running_process(tmp_path, 1, write(tmp_path, vendor, more).read_text()) as gateway:
        assert asyncio.run(main(gateway)) == (200, 1001)
        upstream = vendor.sockets[-1]
        until(lambda: upstream.close_code is not None)
        assert upstream.close_code == 1001
