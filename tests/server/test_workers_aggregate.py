"""`stayfast serve --workers`: one /metrics and one `explain` for all workers, also after a worker was killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.gateway_process import running, until

pytestmark = pytest.mark.sockets


def test_metrics_and_requests_cover_all_workers_after_one_was_killed(tmp_path: Path) -> None:
    """Every worker reports the requests of all. After `kill -9` of a worker no counter decreases, and a new one joins."""
    with running(tmp_path, 3) as gateway:
        for number in range(12):
            gateway.ask(f"r{number}")
        assert {gateway.count("stayfast_requests_total", route="m") for _ in range(6)} == {12}
        assert gateway.count("stayfast_workers", state="answered") == 3
        assert {len(json.loads(gateway.get("/admin/requests"))["data"]) for _ in range(6)} == {12}
        assert {json.loads(gateway.get("/admin/requests/r3"))["status"] for _ in range(6)} == {200}
        os.kill(gateway.pids()[0], signal.SIGKILL)
        totals = [gateway.count("stayfast_requests_total", route="m") for _ in range(10)]
        until(lambda: len(gateway.pids()) == 4 and gateway.count("stayfast_workers", state="answered") == 3)
        totals.append(gateway.count("stayfast_requests_total", route="m"))
        assert totals == [12] * 11


def test_explain_command_shows_request_of_any_worker(tmp_path: Path) -> None:
    """Exit status 1 for an unknown request, 2 if no gateway runs."""
    with running(tmp_path, 2) as gateway:
        gateway.ask("mine/1")
        explain = [sys.executable, "-m", "stayfast", "explain", "--url", gateway.url]
        done = subprocess.run([*explain, "mine/1"], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("mine/1  m -> sim  chat  200 ok")
        assert "1 sim" in done.stdout
        unknown = subprocess.run([*explain, "other"], capture_output=True, text=True, check=False)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "404: Unknown request id" in unknown.stderr
    stopped = subprocess.run([*explain, "mine/1"], capture_output=True, text=True, check=False)
    assert stopped.returncode == 2
