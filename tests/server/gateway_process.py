"""A gateway as a process of its own, with its workers, on a free port."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port

SETTINGS = """\
upstreams: {sim: {kind: simulated, script: steady}}
routes: {m: [sim]}
server: {drain_grace_s: 0}
"""


class Gateway:
    """A parent process and its workers."""

    def __init__(self, port: int, log: Path, parent: subprocess.Popen[bytes] | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        self._parent = parent
        self.is_stopping = False

    def terminate(self) -> None:
        """Begin the drain."""
        assert self._parent is not None
        self.is_stopping = True  # a second signal would kill it
        self._parent.send_signal(signal.SIGTERM)

    def get(self, path: str) -> bytes:
        """The body of one GET, on a new connection, by whichever worker the kernel chooses. Retries while it is dead."""
        for _ in range(50):
            with suppress(ConnectionError, URLError), urlopen(f"{self.url}{path}", timeout=10) as answer:
                return bytes(answer.read())
            time.sleep(0.02)
        pytest.fail("no worker answers")

    def post(self, path: str, body: bytes, request_id: str = "r") -> bytes:
        """The body of the response."""
        headers = {"content-type": "application/json", "x-request-id": request_id}
        with urlopen(Request(f"{self.url}{path}", body, headers), timeout=20) as answer:
            return bytes(answer.read())

    def ask(self, request_id: str) -> None:
        """Send one chat request."""
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
        self.post("/v1/chat/completions", body, request_id)

    def count(self, name: str, **labels: str) -> float:
        """A metric's sum over the series with these labels."""
        text = self.get("/metrics").decode()
        return sum(sample.value for family in text_string_to_metric_families(text) for sample in family.samples
                   if sample.name == name and labels.items() <= sample.labels.items())

    def pids(self) -> list[int]:
        """The process ids of all workers that have started."""
        return [line["pid"] for line in self.log("starting")]

    def log(self, event: str) -> list[dict[str, Any]]:
        """The lines of one event in the log."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]


def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is true, for 20 seconds at most."""
    ends_at = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


@contextmanager
def running(folder: Path, n_workers: int, settings: str = SETTINGS) -> Iterator[Gateway]:
    """A gateway with workers on a free port, until the block ends."""
    port = free_port()
    (folder / "stayfast.yaml").write_text(settings)
    log = folder / "log"
    command = [sys.executable, "-m", "stayfast", "serve", "--config", "stayfast.yaml", "--port", str(port), "--workers",
               str(n_workers)]
    with log.open("wb") as out:
        parent = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(folder)})
    gateway = Gateway(port, log, parent)
    try:
        until(lambda: b"listens on" in log.read_bytes() or parent.poll() is not None)
        yield gateway
    finally:
        if not gateway.is_stopping:
            gateway.terminate()
        assert parent.wait(20) == 0, log.read_text()
