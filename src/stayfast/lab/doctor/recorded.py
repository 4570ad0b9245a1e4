"""Amendments of a snapshot: rows that virtual time does not have, as a probe recorded them.

Each helper returns an amendment that replaces the row with the same name, or adds it. Fields that are not named have the
figures of a healthy gateway.
"""

from typing import Any, TypeVar

import msgspec

from stayfast.core.events import LoopLag
from stayfast.core.snapshot import (
    CacheRow,
    JobRow,
    MachineRow,
    PromptRow,
    Snapshot,
    Spread,
    StoreRow,
    TenantRow,
    UpstreamRow,
)
from stayfast.lab.doctor.scene import Amendment
from stayfast.observe.snapshot.machine import MachineProbe, MachineSample
from stayfast.observe.snapshot.process_files import CpuPeriods

Row = TypeVar("Row", bound=msgspec.Struct)
MIB, GIB = 2**20, 2**30
HEALTHY_MACHINE = MachineRow(
    0, uptime_s=7200.0, cpu_ratio=0.25, n_cpus=4.0, throttled_ratio=0.0, rss_bytes=180 * MIB,
    rss_growth_bytes_per_h=2.0 * MIB, memory_limit_bytes=2 * GIB, loop_lag_s=Spread(6000, 0.0008, 0.003, 0.008, 0.02),
    gc_pause_s=Spread(40, 0.001, 0.003, 0.005, 0.006), descriptors=120, max_descriptors=65_536, log_level="info")
TWO_HOURS_S = 7200.0
SAMPLE_S, N_SAMPLES, PERIOD_S = 60.0, 60, 0.1


def spread(p50: float, p95: float | None = None, p99: float | None = None, n: int = 500) -> Spread:
    """Percentiles; a missing one is the one before."""
    p95 = p50 if p95 is None else p95
    p99 = p95 if p99 is None else p99
    return Spread(n, p50, p95, p99, p99)


def with_machine(n_workers: int = 1, n_silent: int = 0, **fields: Any) -> Amendment:
    """Workers that are alike, as their probes observe them. fields: of HEALTHY_MACHINE."""
    row = observe_machine(msgspec.structs.replace(HEALTHY_MACHINE, **fields))

    def amend(snapshot: Snapshot) -> Snapshot:
        return msgspec.structs.replace(
            snapshot, machines=tuple(msgspec.structs.replace(row, worker=number) for number in range(n_workers - n_silent)),
            n_workers=n_workers, n_silent_workers=n_silent, started_at=snapshot.at - TWO_HOURS_S)

    return amend


class _SetClock:
    """An instant that is set."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def cpu(self) -> float:
        return self.at


def observe_machine(planted: MachineRow) -> MachineRow:
    """What the gateway's probe makes of a process with these figures: samples of an hour, in which all grows evenly."""
    clock = _SetClock()
    probe = MachineProbe(planted.worker, clock, lambda: (planted.log_level, planted.n_lost_lines))
    growth = planted.rss_growth_bytes_per_h or 0.0
    for step in range(N_SAMPLES + 1):
        clock.at = planted.uptime_s - (N_SAMPLES - step) * min(SAMPLE_S, planted.uptime_s / N_SAMPLES)
        left_s = planted.uptime_s - clock.at
        n = int(clock.at / PERIOD_S)
        probe.add(MachineSample(
            clock.at, clock.at * (planted.cpu_ratio or 0.0), planted.clock_step_s if left_s < SAMPLE_S else 0.0,
            int(planted.rss_bytes - growth * left_s / 3600.0), planted.descriptors,
            CpuPeriods(n, int(n * (planted.throttled_ratio or 0.0))), planted.n_cpus, planted.memory_limit_bytes))
    probe.consume([LoopLag(late_s) for late_s in _draw(planted.loop_lag_s)])
    for pause_s in _draw(planted.gc_pause_s):
        _collect_garbage(probe, clock, pause_s)
    row = probe.collect(planted.uptime_s).row
    return msgspec.structs.replace(row, max_descriptors=planted.max_descriptors)  # the probe reads this process's own


def _collect_garbage(probe: MachineProbe, clock: _SetClock, seconds: float) -> None:
    probe.note_collection("start", {"generation": 2})
    clock.at += seconds
    probe.note_collection("stop", {"generation": 2})
    clock.at -= seconds


def _draw(spread: Spread) -> list[float]:
    """At most 400 values with these percentiles."""
    n = min(spread.n, 400)
    bounds = ((0.5, spread.p50), (0.95, spread.p95), (0.99, spread.p99), (1.0, spread.most))
    return [next(value or 0.0 for share, value in bounds if number < share * n or share == 1.0) for number in range(n)]


def with_traffic(route: str, upstream: str | None = None, *, window_s: float | None = None, **fields: Any) -> Amendment:
    """Fields of the rows of a route. upstream None: of all its upstreams. window_s None: in all windows."""

    def amend(snapshot: Snapshot) -> Snapshot:
        rows = [msgspec.structs.replace(row, **fields) if row.route == route and upstream in (None, row.upstream)
                and window_s in (None, row.window_s) else row for row in snapshot.traffic]
        return msgspec.structs.replace(snapshot, traffic=tuple(rows), started_at=snapshot.at - TWO_HOURS_S)

    return amend


def with_age(seconds: float = TWO_HOURS_S) -> Amendment:
    """A gateway that runs for so long: what its caches hold is not that of a start."""
    return lambda snapshot: msgspec.structs.replace(snapshot, started_at=snapshot.at - seconds)


def with_prompts(route: str, **fields: Any) -> Amendment:
    """The shapes of a route's prompts."""
    return lambda snapshot: msgspec.structs.replace(
        snapshot, prompts=_replace(snapshot.prompts, "route", PromptRow(route, 500), fields))


def with_upstream(name: str, **fields: Any) -> Amendment:
    return lambda snapshot: msgspec.structs.replace(
        snapshot, upstreams=_replace(snapshot.upstreams, "name", UpstreamRow(name), fields))


def with_cache(route: str, **fields: Any) -> Amendment:
    """A cache that is warm for two hours."""
    row = CacheRow(route, "exact", n_lookups=1000, n_exact=550, n_entries=400, n_bytes=20 * MIB, n_evicted=0)
    whole = {**msgspec.structs.asdict(row), **fields}
    return lambda snapshot: msgspec.structs.replace(
        snapshot, caches=_replace(snapshot.caches, "route", row, whole), started_at=snapshot.at - TWO_HOURS_S)


def with_store(name: str, **fields: Any) -> Amendment:
    row = StoreRow(name, "redis", ("cache",), n_calls=2000, call_s=spread(0.0008, 0.002, 0.004, 2000), n_evicted=0,
                   eviction_policy="noeviction", memory_ratio=0.4)
    return lambda snapshot: msgspec.structs.replace(snapshot, stores=_replace(snapshot.stores, "name", row, fields))


def with_tenant(name: str, **fields: Any) -> Amendment:
    row = TenantRow(name, "standard", n=150, n_tokens=80_000, ttft_s=spread(0.4, 0.55, 0.7, 150),
                    input_tokens=spread(400.0, 900.0, 1200.0, 150))
    return lambda snapshot: msgspec.structs.replace(snapshot, tenants=_replace(snapshot.tenants, "name", row, fields))


def with_jobs(route: str, **fields: Any) -> Amendment:
    row = JobRow(route, queued=30, running=20, oldest_s=40.0, n_ended={"completed": 2000}, run_s=spread(4.0, 8.0, 10.0),
                 batch_s=spread(600.0, 700.0, 720.0, 20), batch_deviation=0.12)
    return lambda snapshot: msgspec.structs.replace(snapshot, jobs=_replace(snapshot.jobs, "route", row, fields))


def _replace(rows: tuple[Row, ...], key: str, default: Row, fields: dict[str, Any]) -> tuple[Row, ...]:
    name = getattr(default, key)
    known = next((row for row in rows if getattr(row, key) == name), default)
    return (*(row for row in rows if getattr(row, key) != name), msgspec.structs.replace(known, **fields))
