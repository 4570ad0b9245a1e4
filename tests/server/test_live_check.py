"""`stayfast check --live`: what each upstream answers now."""

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stayfast.cli import main
from tests.unit.http.client.tls_peers import Trust

pytestmark = pytest.mark.sockets
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "right",
         "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}

EMBEDDING = {"object": "list", "model": "embedder", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
             "usage": {"prompt_tokens": 1, "total_tokens": 1}}


class _Handler(BaseHTTPRequestHandler):
    """Knows one key, one model for chat, and one that has embeddings only."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != "Bearer right-key":
            self._answer(401, json.dumps({"error": {"message": "no", "type": "x", "code": "invalid_api_key"}}).encode())
        elif request["model"] == "embedder" and self.path.endswith("/embeddings"):
            self._answer(200, json.dumps(EMBEDDING).encode())
        elif request["model"] != "right":
            self._answer(404, json.dumps({"error": {"message": "no", "type": "x", "code": "model_not_found"}}).encode())
        else:
            self._answer(200, b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(CHUNK).encode(), "text/event-stream")

    def _answer(self, status: int, body: bytes, media: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@contextmanager
def provider(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(folder: Path, capsys: pytest.CaptureFixture[str], upstream: str, model: str = "right") -> tuple[int, str]:
    """Status and output of the check of one upstream."""
    file = folder / "s.yaml"
    file.write_text(f"upstreams: {{up: {{kind: openai, {upstream}}}}}\nroutes: {{m: {{upstreams: [up], model: {model}}}}}\n")
    status = main(["check", str(file), "--live"])
    return status, capsys.readouterr().out


def test_live_check_working_upstream_gives_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with provider() as port:
        status, text = check(tmp_path, capsys, f'base_url: "http://127.0.0.1:{port}/v1", key: right-key')
    assert status == 0
    for line in ("ok    dns: 127.0.0.1: 1 address", "ok    connect:", "ok    right: first token after"):
        assert line in text
    assert "right-key" not in text


def test_live_check_wrong_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with provider() as port:
        status, text = check(tmp_path, capsys, f'base_url: "http://127.0.0.1:{port}/v1", key: wrong-key')
    assert status == 1
    assert "FAILS right: " in text
    assert "refuses the key" in text
    assert "wrong-key" not in text


def test_live_check_model_without_chat_gives_an_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with provider() as port:
        status, text = check(tmp_path, capsys, f'base_url: "http://127.0.0.1:{port}/v1", key: right-key', "embedder")
    assert "ok    embedder: embedding after" in text
    assert status == 0


def test_live_check_unknown_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with provider() as port:
        status, text = check(tmp_path, capsys, f'base_url: "http://127.0.0.1:{port}/v1", key: right-key', "wrong")
    assert status == 1
    assert "FAILS wrong: " in text
    assert "the model's name" in text


@pytest.mark.parametrize(("url", "line"), [
    ("http://127.0.0.1:1/v1", "FAILS connect: port 1 cannot be reached (Connection refused)"),
    ("http://no-such-host.invalid/v1", "FAILS dns: no-such-host.invalid cannot be resolved")])
def test_live_check_unreachable_upstream_names_the_step(url: str, line: str, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    status, text = check(tmp_path, capsys, f'base_url: "{url}", key: right-key')
    assert status == 1
    assert line in text
    assert "token" not in text  # no further step is tried


def test_live_check_tls_shows_version_and_end_of_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trust = Trust(tmp_path)
    with provider(trust.server("http/1.1")) as port:
        url = f'base_url: "https://127.0.0.1:{port}/v1", key: right-key'
        status, text = check(tmp_path, capsys, f"{url}, ca_file: {trust.ca_file}")
        untrusted, refused = check(tmp_path, capsys, url)
    assert status == 0
    assert "TLSv1.3 http/1.1" in text
    assert "certificate ends in" in text
    assert untrusted == 1
    assert "FAILS tls: the certificate is refused" in refused


def test_live_check_reader_that_leaves_ends_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("upstreams: {s: {kind: simulated, ttft: {median_s: 1.0}}}\nroutes: {m: [s]}\n")
    command = [sys.executable, "-m", "stayfast", "check", "s.yaml", "--live"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 141
    assert errors == b""
