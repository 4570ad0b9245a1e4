"""Health endpoints of engines, over HTTP."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.events import Fanout
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.settings.providers import all_providers
from stayfast.upstreams.health_endpoint import HealthEndpoint

pytestmark = pytest.mark.sockets


@contextmanager
def engine(statuses: Mapping[str, int]) -> Iterator[str]:
    """The URL of an engine that answers these paths with these statuses, and all others with 404."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.get(self.path, 404))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def check(url: str, kind: str) -> bool | None:
    row = all_providers()[kind]

    async def main() -> bool | None:
        client = HttpClient("engine", HttpConfig(url, http="1.1"), sink=Fanout(), clock=SystemClock())
        try:
            return await HealthEndpoint(client, row.health_paths, row.health_timeout_s).check()
        finally:
            client.close()

    return asyncio.run(main())


@pytest.mark.parametrize(("kind", "statuses", "is_healthy"), [
    ("vllm", {"/health": 200}, True), ("llamacpp", {"/health": 503}, False), ("tgi", {}, None),
    ("sglang", {"/ready": 503, "/health": 200}, False), ("sglang", {"/health": 200}, True)])
def test_health_of_an_engine_is_that_of_its_first_known_path(
        kind: str, statuses: dict[str, int], is_healthy: bool | None) -> None:
    with engine(statuses) as url:
        assert check(url, kind) is is_healthy


def test_health_of_a_dead_engine_is_false() -> None:
    assert check("http://127.0.0.1:9", "vllm") is False


def test_health_of_sglang_waits_longer_than_its_own_two_seconds() -> None:
    assert all_providers()["sglang"].health_timeout_s > 2
