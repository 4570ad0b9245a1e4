"""The row of a machine, from samples of fake files and clocks."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.events import LoopLag
from stayfast.core.snapshot import MachineRow
from stayfast.observe.snapshot.machine import (
    MachinePart,
    MachineProbe,
    median_slope,
    merge_loop_lag,
    merge_machines,
    read_clock_offset_s,
)
from stayfast.observe.snapshot.process_files import ProcessFiles
from stayfast.policy.histogram import LogHistogram
from tests.unit.observe.snapshot.files_rig import write


class FakeClock:
    """Three clocks that the test sets. Each reading of the monotonic one takes `read_s`."""

    def __init__(self) -> None:
        self.seconds, self.offset_s, self.cpu_s, self.read_s = 1000.0, 1e9, 0.0, 0.0

    def now(self) -> float:
        self.seconds += self.read_s
        return self.seconds

    def wall(self) -> float:
        return self.seconds + self.offset_s

    def cpu(self) -> float:
        return self.cpu_s


class Machine:
    """A probe with its clock and files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.probe = MachineProbe(3, self.clock, lambda: ("debug", 5), ProcessFiles(root / "proc", root / "cgroup", 1))
        write(root, {"proc/cgroup": "0::/\n", "cgroup/cpu.max": "50000 100000\n", "cgroup/memory.max": "1000000\n"})
        self.set_files()

    def set_files(self, rss: int = 1000, n_periods: int = 0, n_throttled: int = 0) -> None:
        write(self.root, {"proc/statm": f"1 {rss} 1",
                          "cgroup/cpu.stat": f"nr_periods {n_periods}\nnr_throttled {n_throttled}"})

    def step(self, seconds: float = 5.0, cpu: float = 0.0) -> None:
        self.clock.seconds += seconds
        self.clock.cpu_s += cpu
        self.probe.add(self.probe.sample())

    def row(self) -> MachineRow:
        return self.probe.collect(self.clock.now()).row


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_machine_before_a_sample_has_a_row(machine: Machine) -> None:
    row = machine.row()
    assert (row.worker, row.log_level, row.n_lost_lines, row.cpu_ratio, row.rss_bytes) == (3, "debug", 5, None, 0)
    assert row.max_descriptors > 0


def test_machine_cpu_time_is_a_share_of_one_core(machine: Machine) -> None:
    for _ in range(10):
        machine.step(5.0, cpu=4.0)
    assert machine.row().cpu_ratio == pytest.approx(0.8)
    assert machine.row().n_cpus == 0.5
    assert machine.row().memory_limit_bytes == 1_000_000
    assert machine.row().uptime_s == pytest.approx(50)


def test_machine_throttling_counts_the_window_only(machine: Machine) -> None:
    machine.set_files(n_periods=1000, n_throttled=900)
    machine.step()
    machine.set_files(n_periods=1100, n_throttled=925)
    machine.step()
    assert machine.row().throttled_ratio == 0.25
    for _ in range(61):
        machine.step()
    assert machine.row().throttled_ratio == 0.0


def test_machine_growth_is_unknown_for_ten_minutes(machine: Machine) -> None:
    for number in range(119):
        machine.set_files(rss=1000 + number * 10)
        machine.step()
    assert machine.row().rss_growth_bytes_per_h is None


def test_machine_steady_growth_is_found_despite_peaks(machine: Machine) -> None:
    rng = Random(1)
    for number in range(300):
        peak = 500_000 if rng.random() < 0.1 else 0
        machine.set_files(rss=100_000 + number * 10 + peak)
        machine.step()
    assert machine.row().rss_growth_bytes_per_h == pytest.approx(10 * 720, rel=0.1)


def test_machine_peaks_without_growth_are_none(machine: Machine) -> None:
    rng = Random(2)
    for _ in range(300):
        machine.set_files(rss=100_000 + (500_000 if rng.random() < 0.1 else 0))
        machine.step()
    assert machine.row().rss_growth_bytes_per_h == 0.0


def test_machine_step_of_the_wall_clock_is_seen_for_five_minutes(machine: Machine) -> None:
    machine.step()
    machine.step()
    assert machine.row().clock_step_s == 0.0
    machine.clock.offset_s -= 3.5
    machine.step()
    assert machine.row().clock_step_s == pytest.approx(3.5, rel=1e-6)
    for _ in range(62):
        machine.step()
    assert machine.row().clock_step_s == 0.0


def test_machine_slewing_of_the_clock_is_no_step(machine: Machine) -> None:
    for _ in range(20):
        machine.clock.offset_s += 0.0025
        machine.step()
    assert machine.row().clock_step_s == 0.0


def test_read_clock_offset_interrupted_reading_is_unknown() -> None:
    clock = FakeClock()
    assert read_clock_offset_s(clock) == pytest.approx(1e9)
    clock.read_s = 0.01
    assert read_clock_offset_s(clock) is None


def test_machine_loop_lag_is_a_spread(machine: Machine) -> None:
    machine.probe.consume([LoopLag(0.001)] * 99 + [LoopLag(0.5)])
    lag = machine.row().loop_lag_s
    assert lag.n == 100
    assert lag.p50 == pytest.approx(0.001, rel=0.02)
    assert lag.most == pytest.approx(0.5, rel=0.02)


def test_machine_collections_of_old_generations_are_pauses(machine: Machine) -> None:
    for generation, pause_s in ((0, 0.4), (2, 0.1)):
        machine.probe.note_collection("start", {"generation": generation})
        machine.clock.seconds += pause_s
        machine.probe.note_collection("stop", {"generation": generation})
    assert machine.row().gc_pause_s.n == 1
    assert machine.row().gc_pause_s.most == pytest.approx(0.1, rel=0.02)


def test_merge_machines_rows_are_in_the_order_of_workers() -> None:
    parts = [MachinePart(MachineRow(2)), MachinePart(MachineRow(0)), MachinePart(MachineRow(1))]
    assert [row.worker for row in merge_machines(parts)] == [0, 1, 2]


@given(st.lists(st.lists(st.floats(1e-6, 10), max_size=20), max_size=4))
def test_merge_loop_lag_any_workers_has_the_values_of_all(workers: list[list[float]]) -> None:
    parts = []
    for number, lags in enumerate(workers):
        histogram = LogHistogram()
        for lag in lags:
            histogram.add(lag)
        parts.append(MachinePart(MachineRow(number), histogram.pack()))
    whole = merge_loop_lag(parts)
    values = [lag for lags in workers for lag in lags]
    assert whole.n == len(values)
    assert whole.most is None if not values else whole.most == pytest.approx(max(values), rel=0.012)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(-1e9, 1e9)), max_size=12))
def test_median_slope_any_points_is_within_all_slopes(points: list[tuple[float, float]]) -> None:
    slope = median_slope(points)
    assert (slope is None) or len({at for at, _ in points}) > 1
