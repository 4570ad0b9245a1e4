"""Reads what Linux reports of this process and its cgroup, from files whose folders are arguments. Elsewhere: unknown.

Limits of a cgroup's ancestors apply, too, so the smallest of all is used. In a container the path in /proc/self/cgroup may
be the host's, and only the mounted folder itself exists.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

_V1_CPU: Final = ("cpu", "cpu,cpuacct")
_NO_LIMIT: Final = 1 << 60  # cgroup v1 writes nearly 2^63 for none


class CpuPeriods(msgspec.Struct, frozen=True):
    """Counts since the cgroup exists."""

    n: int
    n_throttled: int


class ProcessFiles:
    """The files of one process. Reading never raises; what cannot be read is None or 0."""

    __slots__ = ("_cgroup", "_page_bytes", "_proc")

    def __init__(self, proc: Path = Path("/proc/self"), cgroup: Path = Path("/sys/fs/cgroup"),
                 page_bytes: int | None = None) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")

    def rss_bytes(self) -> int:
        words = _read(self._proc / "statm").split()
        return int(words[1]) * self._page_bytes if len(words) > 1 and words[1].isdecimal() else 0

    def n_descriptors(self) -> int:
        try:
            with os.scandir(self._proc / "fd") as entries:  # the fastest way to count thousands
                return sum(1 for _ in entries)
        except OSError:
            return 0

    def cpu_quota(self) -> float | None:
        """CPUs that the cgroup may use; None: not limited."""
        quotas = [quota for folder in self._folders("cpu", _V1_CPU) if (quota := _quota_of(folder)) is not None]
        return min(quotas, default=None)

    def memory_limit_bytes(self) -> int | None:
        """None: not limited."""
        limits = [int(text) for folder in self._folders("memory", ("memory",))
                  for name in ("memory.max", "memory.limit_in_bytes") if (text := _read(folder / name).strip()).isdecimal()]
        return min((limit for limit in limits if limit < _NO_LIMIT), default=None)

    def cpu_periods(self) -> CpuPeriods | None:
        """Of the innermost cgroup that counts them; None: unknown."""
        for folder in self._folders("cpu", _V1_CPU):
            counts = dict(line.split()[:2] for line in _read(folder / "cpu.stat").splitlines() if len(line.split()) == 2)
            n, n_throttled = counts.get("nr_periods", ""), counts.get("nr_throttled", "")
            if n.isdecimal() and n_throttled.isdecimal():
                return CpuPeriods(int(n), int(n_throttled))
        return None

    def _folders(self, controller: str, v1_names: tuple[str, ...]) -> Iterator[Path]:
        """The folders of the process's cgroup, innermost first, up to the mounted one."""
        for line in _read(self._proc / "cgroup").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if number == "0" and not names:
                roots = [self._cgroup]
            elif controller in names.split(","):
                roots = [self._cgroup / name for name in v1_names]
            else:
                continue
            for root in roots:
                folder = root / path.strip().lstrip("/")
                while folder != root and root in folder.parents:
                    yield folder
                    folder = folder.parent
                yield root


def _quota_of(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    words = words or [_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
