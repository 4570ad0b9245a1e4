"""The answer of /admin/findings: what the checks find in the snapshot of now."""

import asyncio

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.findings import Finding
from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.diagnose import diagnose
from stayfast.policy.findings.registry import all_kinds
from stayfast.server.snapshot.service import SnapshotService

MAX_AGE_S = 4.0  # viewers read every 5 s, and share one diagnosis


class CheckTitle(msgspec.Struct, frozen=True):
    id: str
    title: str


class FindingsPage(msgspec.Struct, frozen=True):
    """`findings`: the most urgent first, consequences with `hidden_by`. `n_requests`: of the last hour."""

    at: float  # seconds since the epoch
    n_requests: int
    checks: tuple[CheckTitle, ...]
    findings: list[Finding]


class FindingsReader:
    """Diagnoses at most once in MAX_AGE_S, in a thread. Belongs to one loop."""

    __slots__ = ("_body", "_clock", "_lock", "_made_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._made_at: float | None = None
        self._body = b""

    async def read(self, snapshots: SnapshotService) -> bytes:
        """The page as JSON. Raises Shed (503) if there is no snapshot."""
        async with self._lock:
            now = self._clock.now()
            if self._made_at is None or now - self._made_at >= MAX_AGE_S:
                self._body = await asyncio.to_thread(make_page, await snapshots.snapshot())
                self._made_at = now
            return self._body

    def __repr__(self) -> str:
        return "<FindingsReader>"


def make_page(snapshot_json: bytes) -> bytes:
    """The findings of a snapshot, as JSON."""
    snapshot = msgspec.json.decode(snapshot_json, type=Snapshot)
    checks = tuple(CheckTitle(kind.id, kind.title) for kind in all_kinds().values())
    return msgspec.json.encode(FindingsPage(snapshot.at, sum(row.n for row in snapshot.rows(3600.0)), checks,
                                            diagnose(snapshot)))
