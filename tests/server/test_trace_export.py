"""Traces end to end: a gateway in a process of its own, real upstreams, and a collector that decodes what it gets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stayfast.observe.tracing.config import TraceConfig
from stayfast.observe.tracing.otlp import OtlpExporter
from tests.ports import free_port
from tests.server.fakes import post
from tests.unit.observe.span_rig import attributes, request

pytestmark = pytest.mark.sockets
CALLER = "00-12345678901234567890123456789012-1234567890123456-01"
EVENT = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"x","choices":[{"index":0,"delta":'
         b'{"role":"assistant","content":"hi"},"finish_reason":null}]}\n\n')
LAST = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"x","choices":[{"index":0,"delta":{},'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\ndata: [DONE]\n\n')
SETTINGS = """
server: {{drain_grace_s: 0}}
workers: {workers}
upstreams:
  sick: {{kind: openai, base_url: "{origin}/sick/v1", probe: false}}
  well: {{kind: openai, base_url: "{origin}/well/v1", probe: false}}
  slow: {{kind: openai, base_url: "{origin}/slow/v1", probe: false}}
routes:
  chat: {{upstreams: [sick, well], pick: order, model: model-x}}
  slow: [slow]
tracing: {{exporter: {exporter}, endpoint: "{origin}", headers: {{authorization: "Bearer ${{OTLP_KEY}}"}}, service_name: gw}}
"""


class Net:
    """The collector and the upstreams, behind one port. `seen` maps a path to the headers of its requests."""

    def __init__(self) -> None:
        self.seen: dict[str, list[dict[str, str]]] = {}
        self.groups: list[Any] = []  # OTLP's resource spans
        self.statuses: list[int] = []  # what the collector answers first
        self.may_end = threading.Event()

    def spans(self, name: str) -> list[Any]:
        """Spans by name, in the order they came."""
        return [span for group in self.groups for span in group.scope_spans[0].spans if span.name == name]

    def instances(self) -> set[str]:
        """Who sent."""
        return {attributes(group.resource)["service.instance.id"] for group in self.groups}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    net: Net
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.net.seen.setdefault(self.path, []).append({name.lower(): value for name, value in self.headers.items()})
        if self.path == "/v1/traces":
            status = self.net.statuses.pop(0) if self.net.statuses else 200
            if status == 200:
                self.net.groups += ExportTraceServiceRequest.FromString(body).resource_spans
            self.answer(status, b"")
        elif "/sick/" in self.path:
            self.answer(503, b'{"error": {"message": "no", "type": "server_error"}}')
        else:
            self.stream()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(EVENT)
            if "/slow/" in self.path:
                self.net.may_end.wait(10)
            self.wfile.write(LAST)
        except OSError:
            return  # the gateway left, as it should

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Silence."""


@contextmanager
def network() -> Iterator[tuple[Net, int]]:
    """A collector and upstreams on one free port."""
    net = Net()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Ours", (Handler,), {"net": net}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield net, server.server_address[1]
    finally:
        net.may_end.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def gateway(folder: Path, port: int, *, exporter: str = "otlp", workers: int = 1) -> Iterator[int]:
    """A gateway in a process of its own; yields its port, ends it by SIGTERM. Its log is in `folder`."""
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(origin=f"http://127.0.0.1:{port}", exporter=exporter, workers=workers))
    own = free_port()
    environment = {"PATH": os.environ["PATH"], "OTLP_KEY": "sk-collector"}
    with (folder / "log").open("wb") as log, (folder / "err").open("wb") as err:
        child = subprocess.Popen([sys.executable, "-m", "stayfast", "serve", "--config", str(settings), "--port", str(own)],
                                 env=environment, stdout=log, stderr=err)
    try:
        eventually(lambda: listens(own))
        yield own
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0, (folder / "err").read_text()


def listens(port: int) -> bool:
    """Whether the gateway takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def ask(port: int, model: str, *headers: str, until: bytes = b"[DONE]") -> bytes:
    """Stream an answer, as far as to `until`, and leave."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "my secret"}], "stream": True}).encode()
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(post(body, "/v1/chat/completions", *headers))
        while until not in answer and (data := line.recv(65_536)):
            answer += data
    return answer


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log's lines about requests."""
    said = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    return [line for line in said if line["event"] == "request"]


def test_trace_links_caller_request_and_upstream_calls(tmp_path: Path) -> None:
    """A retried request under a caller's span: each upstream is told of its own call's span, all of it is exported at the
    stop at the latest, with the key, and without a word of the prompt.
    """
    with network() as (net, port), gateway(tmp_path, port) as own:
        assert b"[DONE]" in ask(own, "chat", f"traceparent: {CALLER}", "tracestate: foo=1,,bar=2")
        assert b"[DONE]" not in ask(own, "slow", until=b'"hi"')
    (root,) = [span for span in net.spans("POST /v1/chat/completions") if span.parent_span_id]
    calls = net.spans("chat model-x")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (CALLER[3:35], CALLER[36:52])
    assert [call.parent_span_id for call in calls] == [root.span_id] * 2
    told = [net.seen[f"/{name}/v1/chat/completions"][0] for name in ("sick", "well")]
    assert [one["traceparent"] for one in told] == [f"00-{root.trace_id.hex()}-{call.span_id.hex()}-01" for call in calls]
    assert {one["tracestate"] for one in told} == {"foo=1,bar=2"}
    assert [attributes(call).get("error.type") for call in calls] == ["503", None]
    assert attributes(calls[1])["server.port"] == port
    assert attributes(calls[1])["gen_ai.response.finish_reasons"] == ["stop"]
    assert [event.name for event in calls[1].events] == ["first_token"]
    stages = [span.name for span in net.groups[0].scope_spans[0].spans if span.kind == 1 and span.trace_id == root.trace_id]
    assert stages == ["admit", "cache", "context", "route", "call", "relay", "settle"]
    assert {one["authorization"] for one in net.seen["/v1/traces"]} == {"Bearer sk-collector"}
    assert lines(tmp_path)[0]["trace_id"] == root.trace_id.hex()
    assert "secret" not in str(net.groups)


def test_trace_of_disconnected_client(tmp_path: Path) -> None:
    """Its request and its call say so; the trace is the gateway's own, and the upstream was told of it."""
    with network() as (net, port), gateway(tmp_path, port) as own:
        ask(own, "slow", until=b'"hi"')
    (root,), (call,) = net.spans("POST /v1/chat/completions"), net.spans("chat slow")
    assert root.parent_span_id == b""
    assert attributes(root)["error.type"] == "client_left"
    assert attributes(call)["error.type"] == "cancelled"
    assert call.status.code == 2
    (told,) = net.seen["/slow/v1/chat/completions"]
    assert told["traceparent"] == f"00-{root.trace_id.hex()}-{call.span_id.hex()}-03"


def test_trace_context_is_forwarded_without_tracing(tmp_path: Path) -> None:
    """Unchanged, even where it is not valid; a valid one is in the log. The collector hears nothing."""
    with network() as (net, port), gateway(tmp_path, port, exporter="none") as own:
        ask(own, "chat", f"traceparent: {CALLER}", "tracestate: foo=1,,bar=2")
        ask(own, "chat", "traceparent: 00-1")
        ask(own, "chat")
    told = net.seen["/well/v1/chat/completions"]
    assert [(one.get("traceparent"), one.get("tracestate")) for one in told] == [
        (CALLER, "foo=1,,bar=2"), ("00-1", None), (None, None)]
    assert [line.get("trace_id") for line in lines(tmp_path)] == [CALLER[3:35], None, None]
    assert "/v1/traces" not in net.seen


def test_trace_every_worker_exports(tmp_path: Path) -> None:
    """Each under an instance id of its own, and nothing is lost when they stop."""
    with network() as (net, port), gateway(tmp_path, port, workers=2) as own:
        eventually(lambda: (ask(own, "chat"), len({line["pid"] for line in started(tmp_path)}) == 2)[1])
        n_asked = 1
        while n_asked < 40:
            n_asked += 1
            ask(own, "chat")
    assert len(net.spans("POST /v1/chat/completions")) == len(lines(tmp_path)) >= 40
    assert len(net.instances()) == 2


def started(folder: Path) -> list[dict[str, Any]]:
    """The log's lines about workers that started."""
    said = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    return [line for line in said if line["event"] == "starting"]


def exporter(port: int) -> OtlpExporter:
    """The real one."""
    return OtlpExporter(TraceConfig(f"http://127.0.0.1:{port}/", timeout_s=2.0), "1", Random(1))


def test_trace_collector_responses() -> None:
    """Taken, try again, never, or nothing at all."""
    with network() as (net, port):
        net.statuses = [200, 503, 429, 400]
        sending = exporter(port)
        body = sending.encode([request()], {})
        said = [sending.send(body) for _ in range(5)]
        sending.close()
    assert [(one.is_taken, one.can_retry, one.reason) for one in said] == [
        (True, False, ""), (False, True, "HTTP 503"), (False, True, "HTTP 429"), (False, False, "HTTP 400"),
        (True, False, "")]
    assert len(net.groups) == 2
    gone = exporter(port).send(body)
    assert (gone.is_taken, gone.can_retry, gone.reason) == (False, True, "ConnectionRefusedError")


def test_trace_closed_collector_connection_is_replaced() -> None:
    """One that the collector closed between two batches costs nothing but a new one."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        n_served = []

        def serve() -> None:
            for _ in range(2):
                line, _ = listener.accept()
                with line:
                    line.recv(1 << 20)
                    line.sendall(answer)
                    n_served.append(1)

        thread = threading.Thread(target=serve)
        thread.start()
        sending = exporter(listener.getsockname()[1])
        verdicts = [sending.send(b"x"), sending.send(b"x")]
        thread.join(5)
        sending.close()
    assert [verdict.is_taken for verdict in verdicts] == [True, True]
    assert len(n_served) == 2
