"""Gateways of several workers: one process speaks for each, and another one if it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.services.fleet_rig import SETTINGS, call, member, names_at, wait_for
from tests.services.redis_server import RedisServer, redis_server
from tests.services.redis_traffic import ask
from tests.services.running import running

pytestmark = pytest.mark.sockets


@contextmanager
def of_workers(folder: Path, name: str, server: RedisServer, n_workers: int) -> Iterator[int]:
    """A gateway of several workers."""
    port, its = free_port(), folder / name
    its.mkdir()
    text = SETTINGS.replace("URL", server.url).replace("NAME", name).replace("EPOCH", "")
    (its / "stayfast.yaml").write_text(text)
    command = [sys.executable, "-m", "stayfast", "serve", "--config", "stayfast.yaml", "--port", str(port), "--workers",
               str(n_workers)]
    with running(command, its, f"http://127.0.0.1:{port}/livez"):
        yield port


def test_gateway_of_workers_is_one_gateway(tmp_path: Path) -> None:
    """One row with all processes, whichever worker answers. A purge elsewhere reaches all workers. The first worker is
    killed: the gateway stays the same one, and the next purge reaches it.
    """
    with redis_server(tmp_path) as server, of_workers(tmp_path, "many", server, 3) as many, member(
            tmp_path, "single", server) as single:
        wait_for(lambda: names_at(single) == ["many", "single"])
        wait_for(lambda: call(single, "/admin/gateways")["data"][0]["workers"] == 3)
        row = call(single, "/admin/gateways")["data"][0]
        assert {tuple(names_at(many)) for _ in range(9)} == {("many", "single")}
        for victim in (None, min(row["pids"])):
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
                wait_for(lambda: min(row["pids"]) not in call(single, "/admin/gateways")["data"][0]["pids"])
                wait_for(lambda: call(single, "/admin/gateways")["data"][0]["workers"] == 3)
            wait_for(lambda: {ask(many, "What?") for _ in range(12)} == {"hit"})
            purged = call(single, "/admin/cache?all=true", "DELETE")
            assert (purged["gone"], purged["unconfirmed"]) == ([], [])
            if victim is None:  # afterwards the next worker has executed the purges of the last seconds again
                assert purged["forgotten"] >= 2
            assert "miss" in {ask(many, "What?") for _ in range(3)}
            assert call(single, "/admin/gateways")["data"][0]["id"] == row["id"]


def test_workers_divide_limits_by_the_number_of_gateways(tmp_path: Path) -> None:
    """All workers, also while the server is gone and any worker lists gateways."""
    with redis_server(tmp_path) as server, of_workers(tmp_path, "many", server, 2) as many:
        def places() -> set[float]:
            return {call(many, "/debug/state")["upstreams"]["quick"]["limits"][0]["places"] for _ in range(12)}

        with member(tmp_path, "single", server):
            wait_for(lambda: places() == {20})
            server.kill()
            wait_for(lambda: call(many, "/admin/gateways")["why_alone"] is not None)
            for _ in range(12):
                call(many, "/admin/gateways")
            assert places() == {20}


def test_stopped_gateway_of_workers_leaves(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, member(tmp_path, "single", server) as single:
        with of_workers(tmp_path, "many", server, 2):
            wait_for(lambda: names_at(single) == ["many", "single"])
        wait_for(lambda: names_at(single) == ["single"])


def test_command_lists_incomplete_purges(tmp_path: Path) -> None:
    """`stayfast cache purge` names the gateways that did not confirm, and fails."""
    with redis_server(tmp_path) as server, member(tmp_path, "single", server) as single:
        server.kill()
        done = subprocess.run([sys.executable, "-m", "stayfast", "cache", "purge", "--all", "--url",
                               f"http://127.0.0.1:{single}"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "incomplete: gateway (unknown) did not confirm: the server of shared state is unavailable" in done.stderr
