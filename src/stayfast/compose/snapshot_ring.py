"""The ring of snapshots of one gateway: where it is, who writes it. Without it everything else works."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from stayfast.core.snapshot import Snapshot
from stayfast.observe.snapshot.config import SnapshotsConfig
from stayfast.observe.snapshot.ring import RingRecord, RingWriter, SnapshotRing
from stayfast.observe.snapshot.traffic import ClosedSlot
from stayfast.observe.snapshot.worker_part import UpstreamGauges
from stayfast.settings import Settings, read_environment

_MAX_PENDING = 24  # slots
_WARNING = ("snapshots are not stored until this is repaired: free some space, or set snapshots.path; requests are not "
            "affected")


def ring_folder(config: SnapshotsConfig, port: int, environment: Mapping[str, str]) -> Path | None:
    """None: nothing is stored."""
    if not config.hours:
        return None
    if config.path:
        return Path(config.path).expanduser()
    state = environment.get("XDG_STATE_HOME", "")
    folder = (Path(state) if state else Path.home() / ".local" / "state") / "stayfast"
    return folder / f"snapshots-{port}" if folder.is_dir() else None


def open_ring(settings: Settings | None) -> SnapshotRing | None:
    """None: nothing is stored."""
    if settings is None:
        return None
    folder = ring_folder(settings.snapshots, settings.server.port, read_environment())
    return SnapshotRing(folder, settings.snapshots) if folder is not None else None


class RingHost:
    """Worker 0's part: writes what the collector notes. For one event loop."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._pending: list[tuple[float, ClosedSlot | None]] = []
        self._writer: RingWriter | None = None
        self._is_failing = False

    def open(self, settings: Settings | None) -> None:
        """At the start of the process."""
        ring = open_ring(settings)
        self._writer = RingWriter(ring) if ring is not None else None

    def note(self, at: float, slot: ClosedSlot | None) -> None:
        """A slot has closed. at: its end, seconds since the epoch. slot: None: without requests."""
        if self._writer is not None:
            self._pending = [*self._pending[-_MAX_PENDING + 1:], (at, slot)]

    async def write(self, upstreams: list[UpstreamGauges], build_state: Callable[[], Awaitable[Snapshot]]) -> None:
        """Write what is pending, in a thread. A failure is reported once until it is repaired."""
        writer, pending, self._pending = self._writer, self._pending, []
        if writer is None:
            return
        for at, slot in pending:
            state = await build_state() if writer.wants_state else None
            record = writer.make_record(at, slot, upstreams, state)
            await self._append(writer.ring, record)

    async def _append(self, ring: SnapshotRing, record: RingRecord) -> None:
        try:
            await asyncio.to_thread(ring.append, record)
        except OSError as error:
            if not self._is_failing:
                self._warn(f"{ring.folder}: {error.strerror or error}: {_WARNING}")
            self._is_failing = True
        else:
            self._is_failing = False
