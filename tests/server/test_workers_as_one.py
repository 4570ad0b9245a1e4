"""`stayfast serve --workers`: one /metrics and one `explain` for all, also when a worker is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port

pytestmark = pytest.mark.sockets
SETTINGS = """\
upstreams: {sim: {kind: simulated, script: steady}}
routes: {m: [sim]}
server: {drain_grace_s: 0}
"""


class Gateway:
    """A parent and its workers."""

    def __init__(self, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    def get(self, path: str) -> bytes:
        """One answer, on a connection of its own: the kernel chooses the worker, until it has noticed also a dead one."""
        for _ in range(50):
            with suppress(ConnectionError, URLError), urlopen(f"{self.url}{path}", timeout=10) as answer:
                return bytes(answer.read())
            time.sleep(0.02)
        pytest.fail("no worker answers")

    def ask(self, request_id: str) -> None:
        """One request."""
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
        headers = {"content-type": "application/json", "x-request-id": request_id}
        with urlopen(Request(f"{self.url}/v1/chat/completions", body, headers), timeout=20) as answer:
            answer.read()

    def count(self, name: str, **labels: str) -> float:
        """A metric's sum over the series with these labels."""
        text = self.get("/metrics").decode()
        return sum(sample.value for family in text_string_to_metric_families(text) for sample in family.samples
                   if sample.name == name and labels.items() <= sample.labels.items())

    def pids(self) -> list[int]:
        """The workers' processes, as they said in the log."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line["pid"] for line in lines if line["event"] == "starting"]


def until(is_so: Callable[[], bool]) -> None:
    """Wait for it, for 20 seconds at most."""
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
    try:
        until(lambda: b"listens on" in log.read_bytes() or parent.poll() is not None)
        yield Gateway(port, log)
    finally:
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(20) == 0, log.read_text()


def test_one_answer_for_all_workers(tmp_path: Path) -> None:
    """Whoever is asked counts everybody's requests; after kill -9 of a worker nothing goes back and it joins again."""
    with running(tmp_path, 3) as gateway:
        for number in range(12):
            gateway.ask(f"r{number}")
        assert {gateway.count("stayfast_requests_total", route="m") for _ in range(6)} == {12}
        assert gateway.count("stayfast_workers", state="answered") == 3
        assert {len(json.loads(gateway.get("/admin/requests"))["data"]) for _ in range(6)} == {12}
        assert {json.loads(gateway.get("/admin/requests/r3"))["status"] for _ in range(6)} == {200}
        os.kill(gateway.pids()[0], signal.SIGKILL)
        seen = [gateway.count("stayfast_requests_total", route="m") for _ in range(10)]
        until(lambda: len(gateway.pids()) == 4 and gateway.count("stayfast_workers", state="answered") == 3)
        seen.append(gateway.count("stayfast_requests_total", route="m"))
        assert seen == [12] * 11


def test_explain(tmp_path: Path) -> None:
    """The picture of a request that ran, by the command; exit status 1 for one that did not, 2 where nobody answers."""
    with running(tmp_path, 2) as gateway:
        gateway.ask("mine/1")
        explain = [sys.executable, "-m", "stayfast", "explain", "--url", gateway.url]
        done = subprocess.run([*explain, "mine/1"], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("mine/1  m -> sim  chat  200 ok")
        assert "1 sim" in done.stdout
        gone = subprocess.run([*explain, "other"], capture_output=True, text=True, check=False)
        assert (gone.returncode, gone.stdout) == (1, "")
        assert "404: Unknown request id" in gone.stderr
    nobody = subprocess.run([*explain, "mine/1"], capture_output=True, text=True, check=False)
    assert nobody.returncode == 2
