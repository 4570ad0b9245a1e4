"""Workers that share a file of answers, and what a restart leaves of it."""

from pathlib import Path

import pytest

from tests.services.running import gateway
from tests.services.test_redis_restart import ask, metric

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
workers: 2
upstreams:
  quick: {kind: simulated, probe: false, script: steady}
stores:
  disk: {kind: sqlite, path: answers.db, near_bytes: 0, timeout_s: 1}
routes:
  chat: {upstreams: [quick], cache: {mode: exact, max_temperature: 1, store: disk}}
"""


def test_workers_have_one_cache_and_it_outlives_them(tmp_path: Path) -> None:
    """Whatever worker a connection meets: each question is one call, in all runs together."""
    questions = [f"Question {n}" for n in range(5)]
    with gateway(tmp_path, SETTINGS) as port:
        assert {ask(port, question) for question in questions} == {"miss"}
        assert {ask(port, question, stream=n % 2 == 0) for question in questions for n in range(8)} == {"hit"}
        assert metric(port, "stayfast_attempts_total") == 5
    with gateway(tmp_path, SETTINGS) as port:
        assert {ask(port, question) for question in questions} == {"hit"}
        assert metric(port, "stayfast_attempts_total") == 0
