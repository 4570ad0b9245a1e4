"""The ring of snapshots on disk."""

import asyncio
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter

import pytest

from stayfast.compose.snapshot_ring import RingHost, ring_folder
from stayfast.core.events import RequestDone
from stayfast.core.snapshot import MachineRow, Snapshot, Spread, UpstreamRow
from stayfast.core.types import Stage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.snapshot.config import SnapshotsConfig
from stayfast.observe.snapshot.ring import RingWriter, SnapshotRing
from stayfast.observe.snapshot.traffic import ClosedSlot, TrafficSink
from stayfast.observe.snapshot.worker_part import UpstreamGauges
from stayfast.settings import Settings
from tests.unit.observe.fact_rig import FrozenClock, all_stages, attempt, done

N_ROUTES, N_MINUTE = 20, 12
BEGAN_AT = 1_795_000_000.0


def slots(n_routes: int, n_each: int, seed: int = 1) -> Iterator[ClosedSlot]:
    """Endless slots of varied requests, on one upstream of two each."""
    rng, clock = Random(seed), FrozenClock(0.0)
    sink = TrafficSink(clock)

    def fact(route: int) -> RequestDone:
        ttft_s, upstream = rng.lognormvariate(-0.7 + route % 5 / 5, 0.5), f"up-{route % 10 + 10 * rng.randrange(2)}"
        stages = all_stages(lambda: rng.lognormvariate(-6, 0.7))
        calls = (attempt(route=f"route-{route}", upstream=upstream, ttft_s=ttft_s),)
        return done(route=f"route-{route}", upstream=upstream, ttft_s=ttft_s, ended_at=1.0 + 3 * ttft_s, stages=stages,
                    tpot_s=rng.lognormvariate(-4, 0.3), gap_max_s=rng.lognormvariate(-3, 0.5), attempts=calls,
                    queue_s=rng.lognormvariate(-8, 0.5), status=200 if rng.random() < 0.99 else 503)

    for number in count():
        handle_facts(sink, [fact(route) for route in range(n_routes) for _ in range(n_each)])
        clock.now_s += 5.0
        yield from sink.closed_since(number - 1)


def state_of(n_upstreams: int, seed: int) -> Snapshot:
    """All rows but traffic, with figures that change."""
    rng = Random(seed)

    def spread() -> Spread:
        return Spread(rng.randrange(1000), *(float(f"{rng.random():.3g}") for _ in range(4)))

    rows = tuple(UpstreamRow(f"up-{n}", "openai", ("m",), ttft_s=spread(), tokens_per_s=spread(),
                             n_attempts=rng.randrange(999)) for n in range(n_upstreams))
    return Snapshot(0.0, "gw", upstreams=rows, settings={"routes": {f"route-{n}": {"upstreams": ["u"]} for n in range(20)}},
                    machines=(MachineRow(0, loop_lag_s=spread(), gc_pause_s=spread(), rss_bytes=rng.randrange(10**9)),))


def write(ring: SnapshotRing, n: int, n_routes: int = 2, n_each: int = 3) -> list[int]:
    """Append so many records; their sizes."""
    writer, source = RingWriter(ring), slots(n_routes, n_each)
    gauges = [UpstreamGauges(f"up-{n}", in_flight=n, limit=10.0) for n in range(3)]
    return [ring.append(writer.make_record(BEGAN_AT + 5 * (number + 1), next(source), gauges,
                                           state_of(3, number) if writer.wants_state else None)) for number in range(n)]


def test_stored_snapshot_has_windows_states_and_details(tmp_path: Path) -> None:
    """An hour and ten minutes of 6 requests a slot."""
    ring = SnapshotRing(tmp_path, SnapshotsConfig())
    write(ring, 840)
    found = ring.snapshot_at(BEGAN_AT + 5 * 800 + 2)
    assert found is not None
    assert found.at == BEGAN_AT + 5 * 800
    rows = {(row.route, row.window_s): row for row in found.traffic if not row.upstream}
    assert rows["route-0", 60.0].n == 36
    assert 180 <= rows["route-0", 300.0].n <= 216
    assert 2160 <= rows["route-0", 3600.0].n <= 2196
    for row in rows.values():
        assert row.ttft_s.n == row.n
        assert row.gap_most_s.p95 is not None
        assert set(row.stages_at_p99_s) == {stage.value for stage in Stage}
    assert found.upstreams[2].in_flight == 2
    assert found.setting("routes", "route-0", "upstreams") == ["u"]
    assert found.machines


def test_no_snapshot_is_found_without_records_in_the_hour_before(tmp_path: Path) -> None:
    """Before the first and long after the last; in an empty folder; in none."""
    ring = SnapshotRing(tmp_path, SnapshotsConfig())
    assert ring.snapshot_at(BEGAN_AT) is None
    write(ring, 3)
    assert ring.snapshot_at(BEGAN_AT) is None
    assert ring.snapshot_at(BEGAN_AT + 15) is not None
    assert ring.snapshot_at(BEGAN_AT + 4000) is None
    assert SnapshotRing(tmp_path / "none", SnapshotsConfig()).snapshot_at(BEGAN_AT) is None


@pytest.mark.parametrize("left", [0, 3, 8, 100])
def test_record_cut_short_by_a_kill_ends_its_segment(tmp_path: Path, left: int) -> None:
    """The records before it are read, and those of the next writer."""
    ring = SnapshotRing(tmp_path, SnapshotsConfig())
    sizes = write(ring, 5)
    (segment,) = tmp_path.iterdir()
    os.truncate(segment, sum(sizes[:4]) + left)
    assert ring.summary().n_records == 4
    later = RingWriter(SnapshotRing(tmp_path, SnapshotsConfig()))
    later.ring.append(later.make_record(BEGAN_AT + 30, None, [], state_of(1, 1)))
    assert ring.summary().spans == [(BEGAN_AT + 5, BEGAN_AT + 30)]
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    assert ring.summary().n_records in (4, 5)


def test_gaps_are_listed(tmp_path: Path) -> None:
    """Two lives of a gateway, an hour apart."""
    ring = SnapshotRing(tmp_path, SnapshotsConfig())
    writer = RingWriter(ring)
    for at in (0.0, 5.0, 3600.0):
        ring.append(writer.make_record(BEGAN_AT + at, None, [], state_of(1, 1)))
    assert ring.summary().spans == [(BEGAN_AT, BEGAN_AT + 5), (BEGAN_AT + 3600, BEGAN_AT + 3600)]


def test_folder_never_exceeds_its_limit(tmp_path: Path) -> None:
    """The oldest segments go."""
    ring = SnapshotRing(tmp_path, SnapshotsConfig(max_bytes=1 << 20))
    largest, writer, source = 0, RingWriter(ring), slots(20, 2)
    for number in range(900):
        ring.append(writer.make_record(BEGAN_AT + 5 * number, next(source), [], state_of(3, 1)))
        if number % 20 == 0:
            largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert 500_000 < largest <= 1 << 20
    assert ring.summary().spans[0][0] > BEGAN_AT


def test_six_hours_of_twenty_routes_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20 routes with two upstreams each and 40 requests a second; from 10 minutes, as records are alike. Printed."""
    ring = SnapshotRing(tmp_path, SnapshotsConfig())
    writer, source = RingWriter(ring), slots(N_ROUTES, 10)
    n_bytes, spent_s, n = 0, 0.0, 10 * N_MINUTE
    gauges = [UpstreamGauges(f"up-{n}", in_flight=n % 7, limit=10.0 + n, limit_why="nothing learned yet") for n in range(20)]
    for number in range(n):
        slot, state = next(source), state_of(20, number)
        began_at = perf_counter()
        n_bytes += ring.append(writer.make_record(BEGAN_AT + 5 * number, slot, gauges, state))
        spent_s += perf_counter() - began_at
    six_hours = n_bytes / n * 6 * 720
    with capsys.disabled():
        sys.stdout.write(f"\nring: {n_bytes / n:.0f} bytes a record, {six_hours / 2**20:.1f} MiB in six hours; "
                         f"an append takes {spent_s / n * 1e3:.2f} ms\n")
    assert six_hours < 20 << 20


def test_failure_to_write_is_reported_once_and_serving_goes_on(tmp_path: Path) -> None:
    """The folder's parent is a file; later it is repaired."""
    warnings, wrong = list[str](), tmp_path / "file"
    wrong.write_bytes(b"")
    host = RingHost(warnings.append)
    host.open(Settings(snapshots=SnapshotsConfig(path=str(wrong / "ring"))))

    async def state() -> Snapshot:
        return state_of(1, 1)

    async def write_three() -> None:
        for number in range(3):
            host.note(BEGAN_AT + 5 * number, None)
            await host.write([], state)

    asyncio.run(write_three())
    assert len(warnings) == 1
    assert "requests are not affected" in warnings[0]
    wrong.unlink()
    asyncio.run(write_three())
    assert SnapshotRing(wrong / "ring", SnapshotsConfig()).summary().n_records == 3


def test_folder_of_the_ring(tmp_path: Path) -> None:
    """A path of the settings; else below the state folder, if the user has one."""
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert ring_folder(SnapshotsConfig(path="/x"), 8080, environment) == Path("/x")
    assert ring_folder(SnapshotsConfig(), 8080, environment) is None
    (tmp_path / "stayfast").mkdir()
    assert ring_folder(SnapshotsConfig(), 8080, environment) == tmp_path / "stayfast/snapshots-8080"
    assert ring_folder(SnapshotsConfig(hours=0, path="/x"), 8080, environment) is None


def test_segments_are_for_their_owner_only(tmp_path: Path) -> None:
    """They hold names of tenants and settings; an operator's folder may be one that all users of the machine read."""
    tmp_path.chmod(0o755)
    write(SnapshotRing(tmp_path, SnapshotsConfig()), 2)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
