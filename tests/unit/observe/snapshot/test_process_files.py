"""What is read of /proc and of cgroups, from files made here."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stayfast.observe.snapshot.process_files import CpuPeriods, ProcessFiles
from tests.unit.observe.snapshot.files_rig import write


@pytest.fixture
def files(tmp_path: Path) -> ProcessFiles:
    """A process in a cgroup of version 2, two folders deep."""
    write(tmp_path, {"proc/statm": "1000 250 30 1 0 60 0\n", "proc/cgroup": "0::/pod/app\n",
                     "cgroup/pod/app/cpu.max": "max 100000\n", "cgroup/pod/cpu.max": "150000 100000\n",
                     "cgroup/pod/app/memory.max": "max\n", "cgroup/pod/memory.max": "536870912\n",
                     "cgroup/pod/app/cpu.stat": "usage_usec 5\nnr_periods 400\nnr_throttled 100\n"})
    for number in range(7):
        write(tmp_path, {f"proc/fd/{number}": ""})
    return read_from(tmp_path)


def read_from(root: Path) -> ProcessFiles:
    return ProcessFiles(root / "proc", root / "cgroup", page_bytes=4096)


def test_process_files_cgroup_v2_limits_of_ancestors_apply(files: ProcessFiles) -> None:
    assert files.cpu_quota() == 1.5
    assert files.memory_limit_bytes() == 512 << 20
    assert files.cpu_periods() == CpuPeriods(400, 100)


def test_process_files_memory_and_descriptors_are_counted(files: ProcessFiles) -> None:
    assert files.rss_bytes() == 250 * 4096
    assert files.n_descriptors() == 7


def test_process_files_cgroup_v1_quota_is_a_ratio(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cgroup": "5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
                     "cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "50000\n",
                     "cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
                     "cgroup/cpu,cpuacct/docker/x/cpu.stat": "nr_periods 10\nnr_throttled 5\nthrottled_time 1\n",
                     "cgroup/memory/docker/x/memory.limit_in_bytes": "9223372036854771712\n"})
    assert read_from(tmp_path).cpu_quota() == 0.5
    assert read_from(tmp_path).cpu_periods() == CpuPeriods(10, 5)
    assert read_from(tmp_path).memory_limit_bytes() is None


def test_process_files_container_with_the_hosts_path_reads_the_mount(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cgroup": "0::/kubepods/not/mounted/here\n", "cgroup/cpu.max": "200000 100000\n"})
    assert read_from(tmp_path).cpu_quota() == 2.0


def test_process_files_v1_without_a_quota_is_not_limited(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cgroup": "3:cpu:/\n", "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                     "cgroup/cpu/cpu.cfs_period_us": "100000\n"})
    assert read_from(tmp_path).cpu_quota() is None


def test_process_files_without_files_is_unknown(tmp_path: Path) -> None:
    files = read_from(tmp_path)
    assert (files.rss_bytes(), files.n_descriptors(), files.cpu_quota(), files.cpu_periods(),
            files.memory_limit_bytes()) == (0, 0, None, None, None)


@settings(max_examples=60)
@example("", "²")
@example("", "² ²")
@given(st.text(max_size=60), st.text(max_size=40))
def test_process_files_any_text_never_raises(tmp_path_factory: pytest.TempPathFactory, cgroup: str, text: str) -> None:
    root = tmp_path_factory.mktemp("files")
    write(root, {"proc/cgroup": f"0::/\n{cgroup}", "proc/statm": text, "cgroup/cpu.max": text, "cgroup/cpu.stat": text,
                 "cgroup/memory.max": text})
    files = read_from(root)
    assert files.rss_bytes() >= 0
    assert (files.cpu_quota() or 0.0) >= 0
    files.cpu_periods()
    files.memory_limit_bytes()
