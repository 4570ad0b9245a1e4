"""A running gateway conforms to its /openapi.json, for valid and invalid requests generated from it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stayfast.server.openapi import document

pytestmark = pytest.mark.sockets
ROOT = Path(__file__).parents[2]
START_S = 20.0
MAX_RUN_S = 300.0  # a run takes half a minute on a quiet machine
LEAST_CASES = 1500
# A form is mutated into valid ones, a batch is refused for what the description of one request allows, and the live stream
# does not end; all have tests of their own.
UNTRIED = ("upload_file", "create_message_batch", "live")

SETTINGS = """
server: {{host: 127.0.0.1, port: 0}}
upstreams:
  steady: {{kind: simulated, script: steady}}
  vectors: {{kind: openai, base_url: "{origin}/v1", apis: [embeddings], probe: false}}
  ranks: {{kind: openai, base_url: "{origin}/v1", apis: [rerank], probe: false}}
  counter: {{kind: anthropic, base_url: "{origin}", apis: [messages], probe: false}}
routes: {{steady: [steady], vectors: [vectors], ranks: [ranks], counted: [counter]}}
jobs: {{path: "{folder}"}}
"""
# The command line, with a steady provider that takes no pauses: thousands of its answers have to fit into a test.
LAUNCH = """
import sys
from stayfast.cli import main
from stayfast.upstreams import scripted
scripted.NAMED_SCRIPTS["steady"] = ([step for step in scripted.STEADY[0] if isinstance(step, scripted.SendText)],)
sys.exit(main(sys.argv[1:]))
"""
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "negative_data_rejection", "positive_data_acceptance")


class Vectors(BaseHTTPRequestHandler):
    """An upstream with the same embedding for everything, and one rank."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        found = {"results": [{"index": 0, "relevance_score": 0.5}]} if self.path.endswith("/rerank") else {
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]}
        body = json.dumps({"object": "list", **found, "model": "vectors",
                           "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def vectors() -> Iterator[str]:
    """The address of that upstream."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Vectors) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def gateway(folder: Path, settings: str) -> Iterator[str]:
    """The address of a gateway with these settings. It must have no unexpected errors, and drain cleanly."""
    (folder / "stayfast.yaml").write_text(settings)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STAYFAST_") and name != "PORT"}
    command = [sys.executable, "-c", LAUNCH, "serve", "--config", "stayfast.yaml"]
    said = folder / "stderr.txt"
    with said.open("w") as errors, (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=errors)
    try:
        give_up_at = time.monotonic() + START_S
        while (found := re.search(r"listens on (http://127\.0\.0\.1:\d+)/v1\n", said.read_text())) is None:
            if process.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail(f"the gateway did not start: {said.read_text()}")
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(20)
        finally:
            process.kill()
    assert status == 0
    assert "unexpected" not in said.read_text()


def test_gateway_conforms_to_its_openapi_description(tmp_path: Path) -> None:
    """No 5xx, no undescribed status, media type or schema; valid requests are accepted, others get a 4xx."""
    command = ["run", "--phases", "coverage,fuzzing", "--max-examples", "30", "--generation-deterministic", "--workers", "1",
               "--checks", ",".join(CHECKS), "--continue-on-failure", "--no-shrink", "--no-color", "--warnings", "off",
               *(word for name in UNTRIED for word in ("--exclude-operation-id", name))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.property.schemathesis_hooks"}
    with vectors() as origin, gateway(tmp_path, SETTINGS.format(origin=origin, folder=tmp_path / "jobs")) as url:
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *command, f"{url}/openapi.json"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=MAX_RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    verbs = {"get", "post", "patch", "delete"}
    n_operations = sum(len(methods.keys() & verbs) for methods in document("0")["paths"].values())
    assert re.search(rf"Tested: {n_operations - len(UNTRIED)}\n", done.stdout), done.stdout[-2000:]
    cases = re.search(r"(\d+) generated", done.stdout)
    assert cases is not None
    assert int(cases[1]) >= LEAST_CASES
