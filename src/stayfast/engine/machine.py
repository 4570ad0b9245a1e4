"""What this process may use of the machine: cores and memory, by its cgroup where that has a limit.

Memory available is the least of the kernel's MemAvailable and, for the process's cgroup and each one above it, limit less
usage, file cache that can be dropped added back. Both versions of cgroups are read.
"""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path

_ROOT = Path("/")


def n_cores(root: Path = _ROOT) -> int:
    """At least 1: the cores of the affinity mask, fewer with a CPU quota."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _read_quota(folder)
        if quota > 0 and period > 0:
            found = min(found, ceil(quota / period))
    return max(1, found)


def available_memory(root: Path = _ROOT) -> float | None:
    """Bytes; None where the system does not show it, as on macOS."""
    found = [*_free_in_kernel(root / "proc/meminfo"),
             *[free for folder in _cgroup_folders(root, "memory") if (free := _free_in_cgroup(folder)) is not None]]
    return min(found) if found else None


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's cgroups, innermost first. In a container, the path may not exist: then its root."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names and controller not in names.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if names else "")
        folder = base / path.lstrip("/")
        while folder != base:
            yield folder
            folder = folder.parent
        yield base


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_number(path: Path) -> float | None:
    text = _read(path).strip()
    return float(text) if text.lstrip("-").isdigit() else None  # "max": no limit


def _read_quota(folder: Path) -> tuple[float, float]:
    words = _read(folder / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        return float(words[0]), float(words[1])
    return _read_number(folder / "cpu.cfs_quota_us") or 0.0, _read_number(folder / "cpu.cfs_period_us") or 0.0


def _free_in_kernel(path: Path) -> list[float]:
    return [float(line.split()[1]) * 1024 for line in _read(path).splitlines() if line.startswith("MemAvailable:")]


def _free_in_cgroup(folder: Path) -> float | None:
    """Of one cgroup; None without a limit."""
    for limit_name, usage_name, cache_name in (("memory.max", "memory.current", "inactive_file"),
                                               ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
        limit, usage = _read_number(folder / limit_name), _read_number(folder / usage_name)
        if limit is not None and usage is not None:
            cache = [float(line.split()[1]) for line in _read(folder / "memory.stat").splitlines()
                     if line.startswith(f"{cache_name} ")]
            return max(0.0, limit - usage + sum(cache))
    return None
