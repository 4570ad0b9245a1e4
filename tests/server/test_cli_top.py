"""`stayfast top` against a running gateway: one table for a pipe, JSON, and screens in a terminal until q."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stayfast.cli import main
from tests.server.asking import SETTINGS, ask
from tests.services.running import gateway
from tests.unit.http.client.tls_peers import Trust

pytestmark = pytest.mark.sockets
PATIENCE_S = 30.0


def test_top_once_prints_a_table_and_json_a_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(tmp_path, SETTINGS) as port:
        url = f"http://127.0.0.1:{port}"
        ask(port, "quick", "one")
        assert main(["top", url, "--once"]) == 0
        text = capsys.readouterr().out
        assert "ROUTE" in text
        assert "UPSTREAM" in text
        assert max(map(len, text.splitlines())) <= 80
        assert main(["top", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["n"] >= 1


def test_top_nothing_listens_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for address in (["http://127.0.0.1:1"], ["--url", "http://127.0.0.1:1"]):
        assert main(["top", *address, "--once"]) == 2
        assert "cannot reach http://127.0.0.1:1: nothing listens there" in capsys.readouterr().err


def test_top_untrusted_certificate_names_what_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = Trust(tmp_path).server("http/1.1").wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        assert main(["top", f"https://127.0.0.1:{server.server_address[1]}", "--once"]) == 2
        server.shutdown()
        thread.join()
    assert "set SSL_CERT_FILE" in capsys.readouterr().err


def test_top_needs_an_admin_key_where_there_are_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = SETTINGS.replace("{host: 127.0.0.1}", "{host: 127.0.0.1, keys: {app: 'sha256:" + "0" * 64 + "'}}")
    with gateway(tmp_path, keys) as port:
        assert main(["top", f"http://127.0.0.1:{port}", "--once"]) == 2
    assert "Use --key-env NAME" in capsys.readouterr().err


def test_top_in_a_terminal_redraws_and_restores_the_screen(tmp_path: Path) -> None:
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with gateway(tmp_path, SETTINGS) as port:
        command = [sys.executable, "-m", "stayfast", "top", f"http://127.0.0.1:{port}"]
        with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, close_fds=True,
                              env={**os.environ, "TERM": "xterm"}) as process:
            os.close(there)
            text = read_until(here, b"UPSTREAM")
            text += read_until(here, b"UPSTREAM")  # a second screen
            os.write(here, b"q")
            assert process.wait(PATIENCE_S) == 0
            text += read_until(here, b"\x1b[?1049l")
        os.close(here)
    assert text.startswith(b"\x1b[?1049h")
    assert text.endswith(b"\x1b[?1049l")
    assert b"Traceback" not in text


def read_until(terminal: int, mark: bytes) -> bytes:
    """What the terminal shows up to a mark."""
    text, ends_at = b"", time.monotonic() + PATIENCE_S
    while mark not in text:
        ready, _, _ = select.select([terminal], [], [], max(0.0, ends_at - time.monotonic()))
        assert ready, text
        text += os.read(terminal, 1)
    return text
