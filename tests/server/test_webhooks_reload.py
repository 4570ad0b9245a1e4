"""SIGHUP adds a receiver of webhooks to a running gateway. Over sockets."""

import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.ports import free_port
from tests.server.gateway_process import Gateway, until

pytestmark = pytest.mark.sockets
SETTINGS = """\
upstreams: {{sim: {{kind: simulated, script: steady}}}}
routes: {{m: [sim]}}
server: {{drain_grace_s: 0}}
jobs: {{path: {folder}, webhooks: {webhooks}}}
"""
JOB = json.dumps({"endpoint": "/v1/chat/completions", "body": {
    "model": "m", "messages": [{"role": "user", "content": "hi"}]}}).encode()


def submit(gateway: Gateway) -> str:
    """Submit a job; returns its id."""
    return str(json.loads(gateway.post("/v1/jobs", JOB))["id"])


def has_ended(gateway: Gateway, job_id: str) -> bool:
    """Whether a job has its result."""
    return bool(json.loads(gateway.get(f"/v1/jobs/{job_id}"))["status"] == "completed")


def test_webhook_receiver_that_a_reload_adds_gets_events(tmp_path: Path) -> None:
    """Of jobs that are submitted from then on."""
    received: list[dict[str, object]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not wanted."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    port, log, file = free_port(), tmp_path / "log", tmp_path / "stayfast.yaml"
    file.write_text(SETTINGS.format(folder=tmp_path / "jobs", webhooks="[]"))
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "stayfast", "serve", "--config", str(file), "--port", str(port)],
                                   stdout=out, stderr=out)
    try:
        until(lambda: b"listens on" in log.read_bytes())
        gateway = Gateway(port, log)
        before = submit(gateway)
        until(lambda: has_ended(gateway, before))
        webhook = f"[{{url: 'http://127.0.0.1:{server.server_port}/', secret: whsec_MDEyMzQ1Njc4OWFiY2RlZg==}}]"
        file.write_text(SETTINGS.format(folder=tmp_path / "jobs", webhooks=webhook))
        process.send_signal(signal.SIGHUP)
        until(lambda: b"reloaded" in log.read_bytes())
        job_id = submit(gateway)
        until(lambda: bool(received))
        assert [event["data"] for event in received] == [{"id": job_id}]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        server.shutdown()
        server.server_close()
