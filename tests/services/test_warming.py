"""The path that is run for nobody, as an operator sees it: a counter, and nothing else."""

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.services.running import START_S, gateway, wait_until
from tests.services.test_redis_restart import ask, metric

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {host: 127.0.0.1, drain_grace_s: 0}
log: {requests: false}
upstreams:
  quick: {kind: simulated, probe: false, script: steady}
routes:
  chat: {upstreams: [quick]}
"""
PASSES = "stayfast_warming_passes_total"


def refused(port: int, path: str) -> bool:
    """Whether the edge refuses it by itself."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return bool(answer.status != 200)
    except urllib.error.HTTPError:
        return True


def test_it_runs_by_default_and_shows_in_one_counter(tmp_path: Path) -> None:
    """After the start; no health check wakes it, and what it does is in no other figure."""
    with gateway(tmp_path, SETTINGS) as port:
        wait_until(lambda: metric(port, PASSES) > 0, START_S, tmp_path / "stayfast.yaml")
        n_passes = metric(port, PASSES)
        ends_at = time.monotonic() + 1.0
        while time.monotonic() < ends_at:
            assert not refused(port, "/livez")
            assert refused(port, "/nothing")
        assert metric(port, PASSES) == n_passes
        ask(port, "one")
        assert metric(port, "stayfast_requests_total") == 1
        assert metric(port, "stayfast_attempts_total") == 1


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    """Nothing is run where that is said, whoever asks."""
    with gateway(tmp_path, SETTINGS.replace("drain_grace_s: 0", "drain_grace_s: 0, keep_warm_per_s: 0")) as port:
        for number in range(10):
            ask(port, f"{number}")
        assert metric(port, PASSES) == 0
