"""engine.machine: cores and memory, from a copy of the kernel's files."""

from pathlib import Path

import pytest

from stayfast.engine.machine import available_memory, n_cores

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> Path:
    """These files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9999999 kB\nMemAvailable:    8192 kB\n"}


def test_available_memory_without_cgroups_is_the_kernels(tmp_path: Path) -> None:
    assert available_memory(write(tmp_path, MEMINFO)) == 8 * MIB


def test_available_memory_without_files_is_unknown(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


@pytest.mark.parametrize("inner", ["max", str(6 * MIB)])
def test_available_memory_least_of_all_cgroups_counts(tmp_path: Path, inner: str) -> None:
    """Version 2: a limit of a parent cgroup bounds the child; file cache that can be dropped is free."""
    group = "sys/fs/cgroup/app"
    root = write(tmp_path, {**MEMINFO, "proc/self/cgroup": "0::/app/web\n", f"{group}/memory.max": str(5 * MIB),
                            f"{group}/memory.current": str(3 * MIB), f"{group}/memory.stat": f"inactive_file {MIB}\n",
                            f"{group}/web/memory.max": inner, f"{group}/web/memory.current": str(MIB)})
    assert available_memory(root) == 3 * MIB


def test_available_memory_version_one_of_cgroups(tmp_path: Path) -> None:
    """In a container the path of the host does not exist: its own root has the limit."""
    group = "sys/fs/cgroup/memory"
    root = write(tmp_path, {**MEMINFO, "proc/self/cgroup": "4:memory:/docker/abc\n",
                            f"{group}/memory.limit_in_bytes": str(4 * MIB), f"{group}/memory.usage_in_bytes": str(3 * MIB)})
    assert available_memory(root) == MIB


@pytest.mark.parametrize(("quota", "n"), [("max 100000", None), ("50000 100000", 1)])
def test_n_cores_quota_bounds_them(tmp_path: Path, quota: str, n: int | None) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    assert n_cores(root) == (n if n is not None else n_cores(tmp_path / "none"))
