"""Signals of engines in a gateway with two workers: read once, known to both; the embedded engine's, too."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from stayfast.cli.top_screen import draw_screen
from stayfast.core.snapshot import LiveFrame
from stayfast.lab.report.table import TerminalStyle
from tests.server.gateway_process import running

pytestmark = pytest.mark.sockets

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"


class EnginePages:
    """An engine that only has metrics, and the instants at which they were fetched."""

    def __init__(self, page: bytes) -> None:
        self.instants: list[float] = []
        self.is_broken = False
        engine, instants = self, self.instants

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = page if self.path == "/metrics" and not engine.is_broken else b""
                if self.path == "/metrics":
                    instants.append(time.monotonic())
                self.send_response(200 if body else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def pages() -> Iterator[EnginePages]:
    found = EnginePages(PAGE)
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_engine_signals_one_fetch_serves_all_workers(tmp_path: Path, pages: EnginePages) -> None:
    settings = f"""\
upstreams:
  gpu: {{kind: vllm, base_url: "{pages.url}", probe: false}}
  tiny: {{kind: embedded, n_slots: 4}}
routes: {{m: [tiny], g: [gpu]}}
metrics: {{engine_interval_s: 0.5}}
server: {{drain_grace_s: 0}}
"""
    with running(tmp_path, 2, settings) as gateway:
        known: dict[int, dict[str, dict[str, object]]] = {}
        ends_at = time.monotonic() + 30
        while time.monotonic() < ends_at and [len(one) for one in known.values()] != [2, 2]:
            state = json.loads(gateway.get("/debug/state"))
            known[state["worker"]] = {name: one["engine"] for name, one in state["upstreams"].items() if "engine" in one}
            time.sleep(0.05)
        n_before, began_at = len(pages.instants), time.monotonic()
        time.sleep(3)
        n_fetched, took_s = len(pages.instants) - n_before, time.monotonic() - began_at
        metrics = gateway.get("/metrics").decode()
    assert set(known) == {0, 1}
    for one in known.values():
        assert (one["gpu"]["kind"], one["gpu"]["running"], one["gpu"]["kv_used_ratio"]) == ("vllm", 3.0, 0.25)
        assert "waiting_tokens" not in one["gpu"]  # unknown is not shown, and not 0
        assert (one["tiny"]["kind"], one["tiny"]["waiting"], one["tiny"]["max_running"]) == ("llamacpp", 0.0, 4.0)
    assert n_fetched <= took_s / 0.45 + 1  # of one worker
    assert 'stayfast_engine_bound_by{upstream="gpu",bound="none"} 1' in metrics
    assert 'stayfast_engine_bound_by{upstream="tiny",bound="memory"} 0' in metrics


@pytest.mark.parametrize("n_workers", [1, 2])
def test_engine_signals_embedded_engine_in_frames_and_top(tmp_path: Path, n_workers: int) -> None:
    """Slots in use of all, prompt tokens from its cache and tokens a second, by its own page, after two equal prompts."""
    settings = """\
upstreams: {tiny: {kind: embedded, n_slots: 2, ctx_per_slot: 1024}}
routes: {m: {upstreams: [tiny], cache: {mode: off}, hedge: {mode: off}}}
metrics: {engine_interval_s: 0.5}
server: {drain_grace_s: 0}
"""
    body = json.dumps({"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "What is a p99? " * 8}]})
    with running(tmp_path, n_workers, settings) as gateway:
        engine: dict[str, float] = {}
        upstream: dict[str, Any] = {}
        frame = b""
        ends_at = time.monotonic() + 30
        while time.monotonic() < ends_at and not (engine.get("hit_ratio", 0.0) > 0.3 and engine.get("tokens_per_s")):
            gateway.post("/v1/chat/completions", body.encode())
            frame = read_frame(gateway.url)
            upstream = next(row for row in json.loads(frame)["upstreams"] if row["name"] == "tiny")
            engine = upstream.get("engine", {})
    assert engine["max_running"] == 2.0
    assert 0.3 < engine["hit_ratio"] < 1.0
    assert engine["tokens_per_s"] > 0.0
    assert engine["age_s"] < 5.0
    assert "kv_used_ratio" not in engine  # llama.cpp shows none
    lines = draw_screen(msgspec.json.decode(frame, type=LiveFrame), TerminalStyle(is_on=False), url="u")
    row = next(line for line in lines[lines.index(next(one for one in lines if one.startswith("ENGINE"))) + 1:])
    assert row.split()[0] == "tiny"
    assert row.split()[1].endswith("/2")
    if n_workers == 1:  # one of several workers does not know the number before the engine is ready
        assert upstream["limit"] == 2.0


def read_frame(url: str) -> bytes:
    """The first frame of the stream."""
    with urlopen(f"{url}/admin/live", timeout=20) as stream:
        for line in stream:
            if line.startswith(b"data: "):
                return bytes(line[len(b"data: "):])
    pytest.fail("no frame")


def test_engine_signals_that_stop_are_unknown_to_state_and_scaling(tmp_path: Path, pages: EnginePages) -> None:
    settings = f"""\
upstreams:
  gpu: {{kind: vllm, base_url: "{pages.url}", warm: {{phases: "on"}}}}
  tiny: {{kind: embedded}}
routes: {{m: [tiny], g: [gpu]}}
metrics: {{engine_interval_s: 0.5}}
server: {{drain_grace_s: 0}}
"""
    with running(tmp_path, 1, settings) as gateway:
        def read() -> list[object]:
            state, pools = json.loads(gateway.get("/debug/state")), json.loads(gateway.get("/admin/scaling"))["pools"]
            return ["engine" in state["upstreams"]["gpu"], pools.get("g", {}).get("kv_used_ratio")]

        def wait_for(wanted: list[object]) -> None:
            found, ends_at = read(), time.monotonic() + 30
            while found != wanted and time.monotonic() < ends_at:
                time.sleep(0.1)
                found = read()
            assert found == wanted

        wait_for([True, 0.25])
        pages.is_broken = True
        wait_for([False, None])
