"""Replicas over real sockets: the endpoints of an engine that are not for requests, and drains in all workers."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stayfast.compose.warm import EngineControl
from stayfast.core.clock import SystemClock
from stayfast.policy.warm.config import ReplicaConfig
from stayfast.settings import HttpUpstream
from tests.ports import free_port
from tests.server.gateway_process import Gateway, running, until

pytestmark = pytest.mark.sockets

ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}).encode()
CHUNK = json.dumps({
    "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}).encode()
STREAM = b"data: " + CHUNK + b"\n\ndata: [DONE]\n\n"
Page = tuple[int, bytes]


class EngineServer:
    """Answers each path with its pages in turn, the last one from then on; 404 for all others."""

    def __init__(self, pages: dict[str, list[Page]]) -> None:
        self.calls: list[tuple[str, str, dict[str, str], bytes]] = []  # method, path, headers, body
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer()

            def do_POST(self) -> None:
                self.answer()

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.calls.append((self.command, self.path, headers, body))
                left = pages.get(self.path, [(404, b"")])
                status, page = left.pop(0) if len(left) > 1 else left[0]
                is_stream = page == ANSWER and bool(json.loads(body).get("stream"))
                page = STREAM if is_stream else page
                self.send_response(status)
                self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def count(self, request_id: str) -> int:
        """Clients' requests with ids that begin like this."""
        return sum(headers.get("x-request-id", "").startswith(request_id) for _, _, headers, _ in self.calls)

    @contextmanager
    def serving(self) -> Iterator["EngineServer"]:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()


def control_of(url: str, provider: str = "vllm") -> EngineControl:
    return EngineControl("gpu", HttpUpstream("openai", url, provider=provider, warm=ReplicaConfig(wake=True)), SystemClock())


def test_engine_control_reads_health_and_sleep_and_wakes_over_a_socket() -> None:
    async def main(engine: EngineServer) -> None:
        control = control_of(engine.url)
        assert [await control.check_health() for _ in range(3)] == [False, True, None]
        assert [await control.check_sleep() for _ in range(4)] == [True, False, None, None]
        assert [await control.wake() for _ in range(2)] == [True, False]
        control.close()
        assert {(method, path) for method, path, _, _ in engine.calls} == {
            ("GET", "/health"), ("GET", "/is_sleeping"), ("POST", "/wake_up")}

    pages = {"/health": [(503, b""), (200, b""), (404, b"")], "/wake_up": [(200, b""), (500, b"")],
             "/is_sleeping": [(200, b'{"is_sleeping": true}'), (200, b'{"is_sleeping": false}'), (200, b"[]"), (404, b"")]}
    with EngineServer(pages).serving() as engine:
        asyncio.run(main(engine))


def test_engine_control_of_sglang_resumes_its_memory() -> None:
    async def main(engine: EngineServer) -> None:
        control = control_of(engine.url, "sglang")
        assert await control.wake()
        assert await control.check_sleep() is None  # it has no endpoint for that
        control.close()
        assert [(method, path, body) for method, path, _, body in engine.calls] == [
            ("POST", "/resume_memory_occupation", b"{}")]

    with EngineServer({"/resume_memory_occupation": [(200, b"")]}).serving() as engine:
        asyncio.run(main(engine))


def test_engine_control_without_a_listener_is_unhealthy_and_does_not_raise() -> None:
    async def main() -> None:
        control = control_of(f"http://127.0.0.1:{free_port()}/v1")
        assert await control.check_health() is False
        assert await control.check_sleep() is None
        assert not await control.wake()
        control.close()

    asyncio.run(main())


def phases(gateway: Gateway, name: str) -> dict[int, str]:
    """The phase of an upstream, by worker."""
    found: dict[int, str] = {}

    def has_all() -> bool:
        state: dict[str, Any] = json.loads(gateway.get("/debug/state"))
        found[state["worker"]] = state["upstreams"][name]["replica"]["phase"]
        return len(found) == 2

    until(has_all)
    return found


def test_drain_reaches_all_workers_and_the_successor_of_one_that_was_killed(tmp_path: Path) -> None:
    def engine() -> EngineServer:
        return EngineServer({"/health": [(200, b"")], "/v1/chat/completions": [(200, ANSWER)]})

    def send(n: int, prefix: str) -> Callable[[], tuple[int, int]]:
        for number in range(n):
            gateway.ask(f"{prefix}-{number}")
        return lambda: (first.count(prefix), second.count(prefix))

    with engine().serving() as first, engine().serving() as second:
        settings = f"""\
upstreams:
  a: {{kind: vllm, base_url: "{first.url}", warm: {{check_s: 0.2, slow_start_s: 0}}}}
  b: {{kind: vllm, base_url: "{second.url}", warm: {{check_s: 0.2, slow_start_s: 0}}}}
routes: {{m: {{upstreams: [a, b], affinity: {{mode: "off"}}}}}}
server: {{drain_grace_s: 0}}
"""
        with running(tmp_path, 2, settings) as gateway:
            until(lambda: set(phases(gateway, "a").values()) | set(phases(gateway, "b").values()) == {"ready"})
            done = json.loads(gateway.post("/admin/upstreams/a/drain", b""))
            assert (done["draining"], done["workers"], done["silent_workers"]) == (True, 2, 0)
            assert phases(gateway, "a") == {0: "draining", 1: "draining"}
            assert send(16, "drained")() == (0, 16)
            os.kill(next(line["pid"] for line in gateway.log("starting") if line["worker"] == 1), signal.SIGKILL)
            until(lambda: len(gateway.pids()) == 3 and gateway.count("stayfast_workers", state="answered") == 2)
            assert phases(gateway, "a") == {0: "draining", 1: "draining"}
            assert send(16, "after")() == (0, 16)
            gateway.post("/admin/upstreams/a/undrain", b"")
            until(lambda: set(phases(gateway, "a").values()) == {"ready"})
            gateway.post("/admin/upstreams/b/drain", b"")
            assert send(16, "again")() == (16, 0)
