"""Gateways that share their jobs in PostgreSQL and Redis: any of them shows and finishes what another accepted."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.gateway_process import Gateway, running, until
from tests.services.postgres_server import PostgresServer, postgres_server
from tests.services.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.sockets
PATIENCE_S = 40.0
SETTINGS = """\
upstreams: {{sim: {{kind: simulated, script: {script}}}}}
routes: {{m: [sim]}}
server: {{drain_grace_s: 0}}
jobs: {{store: "{postgres}", wake: "{redis}", path: {folder}, lease_s: 3, workers: {workers}}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests of this file."""
    with postgres_server() as started:
        yield started


@contextmanager
def gateways(folder: Path, postgres: str, redis: RedisServer, workers: tuple[str, ...],
             script: str = "steady") -> Iterator[list[Gateway]]:
    """One for each word: inside or none."""
    with ExitStack() as stack:
        started = []
        for number, word in enumerate(workers):
            own = folder / str(number)
            own.mkdir()
            text = SETTINGS.format(postgres=postgres, redis=redis.url, folder=own / "jobs", workers=word, script=script)
            started.append(stack.enter_context(running(own, 1, text)))
        yield started


def submit(gateway: Gateway) -> str:
    """Submit a chat job; returns its id."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    job = json.loads(gateway.post("/v1/jobs", json.dumps({"endpoint": "/v1/chat/completions", "body": body}).encode()))
    return str(job["id"])


def find(gateway: Gateway, job_id: str) -> dict[str, Any]:
    """A job, as its client sees it."""
    job: dict[str, Any] = json.loads(gateway.get(f"/v1/jobs/{job_id}"))
    return job


def has_ended(gateway: Gateway, job_id: str) -> bool:
    """Whether a job has its result."""
    return bool(find(gateway, job_id)["status"] == "completed")


def test_gateways_share_jobs(tmp_path: Path, server: PostgresServer) -> None:
    """One only accepts, the other runs, both show the result; each within seconds."""
    with redis_server(tmp_path) as redis, gateways(tmp_path, f"{server.url}?search_path=shared", redis,
                                                   ("none", "inside")) as (one, other):
        took_s = []
        for _ in range(5):
            began_at = time.monotonic()
            job_id = submit(one)
            until(partial(has_ended, one, job_id))
            took_s.append(time.monotonic() - began_at)
            assert find(other, job_id)["result"] == find(one, job_id)["result"]
        assert max(took_s) < 10.0
        assert server.execute("SELECT count(*) FROM shared.stayfast_ends") == "5"
        assert server.execute("SELECT count(*) FROM shared.stayfast_queue") == "0"


def test_gateways_serve_and_recover_through_a_restart_of_postgresql(tmp_path: Path, server: PostgresServer) -> None:
    """Killed with jobs in the queue: no request fails but those to jobs, and every accepted job has its result."""
    with redis_server(tmp_path) as redis, gateways(tmp_path, f"{server.url}?search_path=restarted", redis,
                                                   ("inside", "inside")) as (one, other):
        ids = [submit((one, other)[n % 2]) for n in range(40)]
        server.kill()
        one.ask("r1")
        server.start()

        def have_ended() -> bool:
            try:
                return all(has_ended(other, job_id) for job_id in ids)
            except OSError:  # 503 until the store is there again
                return False

        give_up_at = time.monotonic() + PATIENCE_S
        while not have_ended():
            assert time.monotonic() < give_up_at, server.execute(
                "SELECT job_id, state, token, n_failures, n_lost, why, worker, lease_until - restarted.stayfast_now() "
                "FROM restarted.stayfast_queue")
            time.sleep(0.05)
        assert server.execute("SELECT count(*), count(DISTINCT job_id) FROM restarted.stayfast_ends") == "40|40"
        assert [gateway.log("unexpected_error") for gateway in (one, other)] == [[], []]
