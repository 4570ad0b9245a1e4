"""Workers that share a file of answers, and what a restart leaves of it."""

from pathlib import Path

import pytest

from tests.services.redis_traffic import ask, metric
from tests.services.running import gateway

pytestmark = pytest.mark.sockets
SETTINGS = """
server: {host: 127.0.0.1}
log: {requests: false}
workers: 2
upstreams:
  quick: {kind: simulated, probe: false, script: steady}
stores:
  disk: {kind: sqlite, path: answers.db, local_bytes: 0, timeout_s: 1}
routes:
  chat: {upstreams: [quick], cache: {mode: exact, max_temperature: 1, store: disk}}
"""


def said(port: int, question: str, model: str = "chat") -> list[str]:
    """What is said of a question until it is a hit. An answer is put in the file when its client has it, and each of two
    workers that start in another epoch empties the file once: what was kept in between goes with the second.
    """
    heard = [ask(port, question, model=model)]
    while heard[-1] != "hit":
        assert len(heard) < 100
        heard.append(ask(port, question, model=model))
    return heard


def test_sqlite_old_epoch_answers_do_not_return(tmp_path: Path) -> None:
    """Another word forgets what was kept, for good: also when the first one is set again, in another run. Any other change
    of the settings forgets nothing, and no other route's answers go.
    """
    other = "  other: {upstreams: [quick], cache: {mode: exact, max_temperature: 1, store: disk}}\n"
    first = SETTINGS.replace("store: disk", "store: disk, epoch: a") + other
    with gateway(tmp_path, first) as port:
        assert said(port, "one")[0] == "miss"
        assert said(port, "one", model="other")[0] == "miss"
    with gateway(tmp_path, first.replace("exact, max_temperature: 1", "exact, ttl_s: 5000, max_temperature: 1")) as port:
        assert ask(port, "one") == "hit"
    with gateway(tmp_path, first.replace("epoch: a", "epoch: b")) as port:
        assert said(port, "one")[0] == "miss"
    with gateway(tmp_path, first) as port:
        assert said(port, "one")[0] == "miss"
        assert ask(port, "one", model="other") == "hit"


def test_sqlite_cache_is_shared_by_workers_and_survives_them(tmp_path: Path) -> None:
    """Whatever worker a connection meets: each question is one call, in all runs together."""
    questions = [f"Question {n}" for n in range(5)]
    with gateway(tmp_path, SETTINGS) as port:
        assert {ask(port, question) for question in questions} == {"miss"}
        assert {ask(port, question, stream=n % 2 == 0) for question in questions for n in range(8)} <= {
            "hit", "coalesced"}
        assert metric(port, "stayfast_attempts_total") == 5
    with gateway(tmp_path, SETTINGS) as port:
        assert {ask(port, question) for question in questions} == {"hit"}
        assert metric(port, "stayfast_attempts_total") == 0
