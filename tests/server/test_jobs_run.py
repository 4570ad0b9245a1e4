"""Jobs in a real gateway: accepted, run, found after a restart; drained, killed and reloaded. Over sockets."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.server.gateway_process import Gateway, running, until

pytestmark = pytest.mark.sockets

SETTINGS = """\
upstreams: {{sim: {{kind: simulated, script: steady}}}}
routes: {{m: [sim]}}
server: {{drain_grace_s: 0}}
jobs: {{path: {folder}, lease_s: 5}}
"""


def settings(tmp_path: Path) -> str:
    """One fast route, and a store of its own."""
    return SETTINGS.format(folder=tmp_path / "jobs")


def submit(gateway: Gateway, **fields: Any) -> str:
    """Submit a chat job; returns its id."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    job = json.loads(gateway.post("/v1/jobs", json.dumps({"endpoint": "/v1/chat/completions", "body": body}).encode()))
    return str(job["id"])


def find(gateway: Gateway, job_id: str) -> dict[str, Any]:
    """A job, as its client sees it."""
    job: dict[str, Any] = json.loads(gateway.get(f"/v1/jobs/{job_id}"))
    return job


def has_ended(gateway: Gateway, job_id: str) -> bool:
    """Whether a job has its result."""
    return bool(find(gateway, job_id)["status"] == "completed")


def test_a_job_is_accepted_run_and_explained(tmp_path: Path) -> None:
    """From 202 to the result, and its request in `explain`."""
    with running(tmp_path, 1, settings(tmp_path)) as gateway:
        job_id = submit(gateway)
        until(lambda: has_ended(gateway, job_id))
        result = find(gateway, job_id)["result"]
        assert result["body"]["choices"][0]["message"]["content"].startswith("Average latency")
        seen = json.loads(gateway.get(f"/admin/requests/{result['request_id']}"))
        assert f"job {job_id}, claim 1" in json.dumps(seen)


def test_an_estimate_follows_from_the_jobs_before(tmp_path: Path) -> None:
    """Unknown for the first job of a route."""
    with running(tmp_path, 1, settings(tmp_path)) as gateway:
        later = {"endpoint": "/v1/chat/completions", "run_at": time.time() + 1000,
                 "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}}
        waiting = json.loads(gateway.post("/v1/jobs", json.dumps(later).encode()))
        assert waiting["estimate_s"] is None
        job_id = submit(gateway)
        until(lambda: has_ended(gateway, job_id))
        assert 900 < find(gateway, waiting["id"])["estimate_s"] < 1100


def test_jobs_cost_a_gateway_without_jobs_nothing(tmp_path: Path) -> None:
    """No file is created before the first use."""
    with running(tmp_path, 1, settings(tmp_path)) as gateway:
        gateway.ask("r1")
        assert not (tmp_path / "jobs").exists()


def test_gateway_without_a_writable_folder_serves_and_refuses_jobs(tmp_path: Path) -> None:
    """503 for jobs; requests are served."""
    (tmp_path / "jobs").write_text("in the way")
    with running(tmp_path, 1, settings(tmp_path)) as gateway:
        with pytest.raises(Exception, match="503"):
            submit(gateway)
        gateway.ask("r1")


def test_results_and_queued_jobs_survive_a_restart(tmp_path: Path) -> None:
    """The second gateway runs what the first had not."""
    with running(tmp_path, 1, settings(tmp_path) + "  # no workers\n") as gateway:
        first = submit(gateway)
        until(lambda: has_ended(gateway, first))
        later = submit(gateway)
    with running(tmp_path, 1, settings(tmp_path)) as gateway:
        assert has_ended(gateway, first)
        until(lambda: has_ended(gateway, later))


def test_a_killed_gateway_loses_no_job_and_its_successor_goes_on_at_once(tmp_path: Path) -> None:
    """Before the lease of 60 s has ended: the kernel has dropped the lock of the dead one."""
    text = settings(tmp_path).replace("lease_s: 5", "lease_s: 60").replace("script: steady", "script: jagged")
    with spawned(tmp_path, text) as (gateway, process):
        ids = [submit(gateway) for _ in range(20)]
        process.kill()
        process.wait()
    began_at = time.monotonic()
    with running(tmp_path, 1, text) as gateway:
        until(lambda: all(has_ended(gateway, job_id) for job_id in ids))
    assert time.monotonic() - began_at < 30


@contextmanager
def spawned(folder: Path, text: str) -> Iterator[tuple[Gateway, "subprocess.Popen[bytes]"]]:
    """A gateway of one process, which the test may kill."""
    port, log = free_port(), folder / "killed.log"
    (folder / "killed.yaml").write_text(text)
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "stayfast", "serve", "--config", str(folder / "killed.yaml"),
                                    "--port", str(port)], stdout=output, stderr=output)
        try:
            gateway = Gateway(port, log)
            until(lambda: b"listens on" in log.read_bytes())
            yield gateway, process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_stayfast_work_runs_the_jobs_of_a_gateway_without_workers(tmp_path: Path) -> None:
    """Two processes with one store; SIGTERM ends the worker with status 0."""
    text = settings(tmp_path).replace("lease_s: 5", "lease_s: 5, workers: none")
    with running(tmp_path, 1, text) as gateway:
        job_id = submit(gateway)
        command = [sys.executable, "-m", "stayfast", "work", "--config", "stayfast.yaml", "--concurrency", "4"]
        worker = subprocess.Popen(command, cwd=tmp_path)
        try:
            until(lambda: has_ended(gateway, job_id))
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0


def test_stayfast_work_with_a_wrong_number_prints_the_problem(tmp_path: Path) -> None:
    """As settings do."""
    (tmp_path / "stayfast.yaml").write_text(settings(tmp_path))
    ended = subprocess.run([sys.executable, "-m", "stayfast", "work", "--concurrency", "0"], cwd=tmp_path,
                           capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 78
    assert "concurrency" in ended.stderr


def test_a_killed_worker_of_two_loses_no_job(tmp_path: Path) -> None:
    """Its jobs go on in the other one, or in its successor, before their lease of 60 s has ended."""
    text = settings(tmp_path).replace("lease_s: 5", "lease_s: 60").replace("script: steady", "script: jagged")
    with running(tmp_path, 2, text) as gateway:
        ids = [submit(gateway) for _ in range(30)]
        os.kill(gateway.pids()[0], signal.SIGKILL)
        began_at = time.monotonic()
        until(lambda: all(has_ended(gateway, job_id) for job_id in ids))
        assert time.monotonic() - began_at < 30


def test_jobs_of_one_worker_are_run_by_all(tmp_path: Path) -> None:
    """The store's file is created at the first submission, by the worker that gets it; the other one opens it too."""
    text = settings(tmp_path).replace("concurrency: 4", "concurrency: 1")
    with running(tmp_path, 2, text) as gateway:
        ids = [submit(gateway) for _ in range(3)]
        until(lambda: len(list((tmp_path / "jobs" / "workers").glob("*"))) >= 2)
        until(lambda: all(has_ended(gateway, job_id) for job_id in ids))
