"""The gateway's own processes."""

from typing import Any

import msgspec
import pytest

from stayfast.core.snapshot import CacheRow, MachineRow, Snapshot
from tests.unit.policy.findings.check_rig import NOW, find, find_one, snapshot, spread, traffic

MIB, GIB = 2**20, 2**30
HEALTHY: dict[str, Any] = {
    "uptime_s": 7200.0, "cpu_ratio": 0.3, "n_cpus": 4.0, "throttled_ratio": 0.0, "rss_bytes": 200 * MIB,
    "rss_growth_bytes_per_h": 0.0, "memory_limit_bytes": 2 * GIB, "loop_lag_s": spread(0.001, 0.004, 0.01, 5000),
    "gc_pause_s": spread(0.002, 0.004, 0.006, 50), "descriptors": 100, "max_descriptors": 1024, "log_level": "info"}


def machine(*, n_workers: int = 1, caches: tuple[CacheRow, ...] = (), n_silent: int = 0, n: int = 1000,
            **fields: Any) -> Snapshot:
    row = MachineRow(0, **{**HEALTHY, **fields})
    rows = tuple(msgspec.structs.replace(row, worker=number) for number in range(n_workers))
    return snapshot({"routes": {"chat": {"cache": {"max_bytes": 512 * MIB}}}}, machines=rows, n_workers=n_workers,
                    n_silent_workers=n_silent, caches=caches, traffic=(traffic(300.0, n=n),))


FILLING = (CacheRow("chat", "exact", n_bytes=100 * MIB),)
FAULTS = {
    "machine.memory_grows": machine(rss_growth_bytes_per_h=100.0 * MIB),
    "machine.memory_near_limit": machine(rss_bytes=int(1.8 * GIB)),
    "machine.descriptors": machine(descriptors=900),
    "machine.throttled": machine(throttled_ratio=0.12),
    "machine.loop_stalls": machine(loop_lag_s=spread(0.01, 0.08, 0.2, 5000)),
    "machine.gc_pauses": machine(gc_pause_s=spread(0.02, 0.1, 0.2, 50)),
    "machine.clock_jumps": machine(clock_step_s=-3.0),
    "machine.debug_log": machine(log_level="debug"),
    "machine.idle_cores": machine(cpu_ratio=0.95),
    "machine.cpu_full": machine(cpu_ratio=0.95, n_workers=4),
    "machine.lost_lines": machine(n_lost_lines=12),
    "machine.silent_workers": machine(n_workers=2, n_silent=1),
}


@pytest.mark.parametrize("check", FAULTS)
def test_sick_machine_is_found(check: str) -> None:
    find_one(check, FAULTS[check])


@pytest.mark.parametrize("check", FAULTS)
def test_healthy_machine_is_not_found(check: str) -> None:
    assert find(check, machine()) == []
    assert find(check, machine(n_workers=4, caches=FILLING)) == []


@pytest.mark.parametrize(("check", "observed"), [
    ("machine.memory_grows", machine(rss_growth_bytes_per_h=300.0 * MIB, uptime_s=1200.0)),  # it has just started
    ("machine.memory_grows", machine(rss_growth_bytes_per_h=300.0 * MIB, caches=FILLING)),  # its cache fills
    ("machine.memory_grows", machine(rss_growth_bytes_per_h=5.0 * MIB)),
    ("machine.memory_near_limit", machine(rss_bytes=int(1.8 * GIB), memory_limit_bytes=None)),
    ("machine.descriptors", machine(descriptors=900, max_descriptors=65_536)),
    ("machine.throttled", machine(throttled_ratio=0.01)),
    ("machine.throttled", machine(throttled_ratio=None)),
    ("machine.loop_stalls", machine(loop_lag_s=spread(0.001, 0.01, 0.2, 5000))),  # one collection, one reload
    ("machine.loop_stalls", machine(loop_lag_s=spread(0.1, 0.5, 0.9, 20))),
    ("machine.loop_stalls", machine(loop_lag_s=spread(0.1, 0.5, 0.9, 5000), uptime_s=20.0)),  # imports
    ("machine.gc_pauses", machine(gc_pause_s=spread(0.1, 0.1, 0.1, 1))),
    ("machine.clock_jumps", machine(clock_step_s=0.1)),  # a correction of NTP
    ("machine.debug_log", machine(log_level="debug", n=10)),  # someone develops
    ("machine.idle_cores", machine(cpu_ratio=0.95, n_cpus=1.0)),
    ("machine.idle_cores", machine(cpu_ratio=0.95, n_workers=4)),
    ("machine.cpu_full", machine(cpu_ratio=0.95)),  # others are idle
    ("machine.silent_workers", msgspec.structs.replace(machine(n_workers=2, n_silent=1), started_at=NOW - 20.0)),
])
def test_look_alike_is_not_found(check: str, observed: Snapshot) -> None:
    assert find(check, observed) == []


def test_growth_after_caches_are_full_is_a_leak() -> None:
    assert find("machine.memory_grows", machine(rss_growth_bytes_per_h=300.0 * MIB, caches=FILLING, uptime_s=86_400.0)) != []


def test_growth_names_when_the_limit_is_reached() -> None:
    """1,848 MiB are left at 231 MiB an hour."""
    assert "reached in 480 min" in find_one("machine.memory_grows", machine(rss_growth_bytes_per_h=231.0 * MIB)).summary


def test_workers_for_idle_cores_are_as_many_as_cores() -> None:
    assert find_one("machine.idle_cores", machine(cpu_ratio=0.95, n_cpus=3.5)).do[0].patch == "workers: 3"
