"""/admin/snapshot, /admin/live and its history, over sockets, from one worker and from two."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stayfast.core.snapshot import Snapshot
from stayfast.server.auth import digest_key
from tests.server.gateway_process import Gateway, running, until
from tests.server.keys import ADMIN, KEY

WITH_KEYS = f"""\
upstreams: {{sim: {{kind: simulated, script: steady}}}}
routes: {{m: [sim]}}
server: {{drain_grace_s: 0, admins: [ops], keys: {{ops: "{digest_key(ADMIN)}", app: "{digest_key(KEY)}"}}}}
"""


def snapshot(gateway: Gateway) -> Snapshot:
    """By whichever worker."""
    return msgspec.json.decode(gateway.get("/admin/snapshot"), type=Snapshot)


def n_minute(gateway: Gateway) -> int:
    """Requests of the last minute."""
    return sum(row.n for row in snapshot(gateway).rows(60.0))


@contextmanager
def view(gateway: Gateway, path: str = "/admin/live", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """One viewer."""
    host = gateway.url.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=20)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        yield connection.getresponse()


def frames(response: http.client.HTTPResponse, n: int) -> list[tuple[int, Any]]:
    """The next frames, by id."""
    found: list[tuple[int, Any]] = []
    number = -1
    while len(found) < n:
        line = response.readline()
        assert line
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"data: "):
            found.append((number, json.loads(line[6:])))
    return found


@pytest.mark.parametrize("n_workers", [1, 2])
def test_snapshot_and_frames_cover_all_workers(tmp_path: Path, n_workers: int) -> None:
    """Requests on many connections; every worker gives the same figures."""
    with running(tmp_path, n_workers) as gateway:
        for n in range(12):
            gateway.ask(f"r{n}")
        until(lambda: n_minute(gateway) == 12)
        for _ in range(4):
            found = snapshot(gateway)
            assert n_minute(gateway) == 12
            assert (found.n_workers, found.n_silent_workers) == (n_workers, 0)
            assert found.setting("routes", "m", "upstreams") == ["sim"]
            assert [row.worker for row in found.machines] == list(range(n_workers))
        (row,) = found.rows_by_upstream(60.0)
        assert row.ttft_s.p99 is not None
        assert 0.8 * row.ttft_s.p99 <= row.stages_at_p99_s["call"] <= 1.2 * row.ttft_s.p99 + 0.1  # a busy machine adds to it
        assert found.upstreams[0].n_attempts == 12
        with view(gateway) as one, view(gateway) as other:
            assert one.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert one.headers["cache-control"] == "no-cache"
            assert one.headers["x-accel-buffering"] == "no"
            seen = dict(frames(one, 2))
            assert all(later > earlier for earlier, later in pairwise(seen))
            (newest,) = [frame for n, frame in seen.items() if n == max(seen)]
            assert newest["routes"][0]["ttft_s"]["n"] == 12
            shared = {n: frame for n, frame in frames(other, 2) if n in seen}
            assert all(seen[n] == frame for n, frame in shared.items())
        until(lambda: bool(json.loads(gateway.get("/admin/live/history?seconds=60"))["frames"]))
        listed = json.loads(gateway.get("/admin/live/history"))["frames"]
        until(lambda: sum(row.get("n", 0) for frame in json.loads(gateway.get("/admin/live/history"))["frames"]
                          for row in frame.get("routes", ())) == 12)
        assert all(later["at"] - earlier["at"] == pytest.approx(5, abs=0.1) for earlier, later in pairwise(listed))


def test_frames_end_at_a_drain(tmp_path: Path) -> None:
    """A viewer does not hold the gateway up: `running` expects the exit within 20 s."""
    with running(tmp_path, 1) as gateway, view(gateway) as response:
        frames(response, 1)
        began_at = time.monotonic()
        gateway.terminate()
        assert b"frame" in response.read() + b"frame"
        assert time.monotonic() - began_at < 10


def test_last_event_id_is_accepted_and_bad_parameters_are_refused(tmp_path: Path) -> None:
    """An id of an earlier life of the gateway does not stop the stream."""
    with running(tmp_path, 1) as gateway:
        with view(gateway, last_event_id="999999") as response:
            assert frames(response, 1)[0][0] < 999_999
        with view(gateway, last_event_id="no number") as response:
            assert frames(response, 1)
        for path in ("/admin/live?x=1", "/admin/live/history?seconds=0", "/admin/live/history?seconds=nan",
                     "/admin/live/history?seconds=5&seconds=6", "/admin/snapshot?what=all"):
            with view(gateway, path) as response:
                assert response.status == 400, path


def test_snapshots_are_for_admins(tmp_path: Path) -> None:
    """Another key gets 403, none 401."""
    with running(tmp_path, 1, WITH_KEYS) as gateway:
        given: tuple[tuple[dict[str, str], int], ...] = (({}, 401), ({"x_api_key": KEY}, 403), ({"x_api_key": ADMIN}, 200))
        for headers, status in given:
            with view(gateway, **headers) as response:
                assert response.status == status
