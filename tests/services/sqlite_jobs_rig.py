"""The embedded store of jobs, for tests: its clock is moved by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stayfast.core.clock import SystemClock
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.handover import SharedJobStore
from stayfast.stores.jobs.sqlite import SqliteJobStore

START = 1_800_000_000.0


class MovedClock:
    """A wall clock that stands until it is moved."""

    now, cpu = staticmethod(SystemClock.now), staticmethod(SystemClock.cpu)

    def __init__(self) -> None:
        self.at = START

    def wall(self) -> float:
        """Unix seconds."""
        return self.at


class SqliteRig:
    """A store in a folder."""

    def __init__(self, folder: Path, *, is_inline: bool = False) -> None:
        self.folder = folder
        self.clock = MovedClock()
        self._is_inline = is_inline
        self.store: JobStore = self._open()

    def _open(self) -> JobStore:
        return SqliteJobStore(self.folder, self.clock, reserve_bytes=0, window_s=0.0005, is_inline=self._is_inline)

    def now(self) -> float:
        """The store's clock."""
        return self.clock.at

    async def advance(self, s: float) -> None:
        """Move it."""
        self.clock.at += s

    async def restart(self) -> None:
        """A new store on the same file."""
        await self.store.close()
        self.store = self._open()


class HandoverRig:
    """A store whose calls go to another one, over the socket of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = MovedClock()
        self.committer = self._open()
        self.shared = self._open()
        self.store: JobStore = self.shared

    def _open(self) -> SharedJobStore:
        return SharedJobStore(self.folder, self.clock, reserve_bytes=0, window_s=0.0005)

    async def start(self) -> None:
        """Have the first one commit."""
        await self.committer.depths()
        await self.shared.depths()
        assert (self.committer.is_committer, self.shared.is_committer) == (True, False)

    def now(self) -> float:
        """The store's clock."""
        return self.clock.at

    async def advance(self, s: float) -> None:
        """Move it."""
        self.clock.at += s

    async def restart(self) -> None:
        """The committer ends; the other store takes over, and gives its calls to a third one."""
        await self.committer.close()
        await self.shared.depths()
        assert self.shared.is_committer
        await self.shared.close()
        self.committer, self.shared = self._open(), self._open()
        self.store = self.shared
        await self.start()

    async def close(self) -> None:
        """Both."""
        await self.shared.close()
        await self.committer.close()


@asynccontextmanager
async def opened_handover(folder: Path) -> AsyncIterator[HandoverRig]:
    """An empty store."""
    rig = HandoverRig(folder)
    await rig.start()
    try:
        yield rig
    finally:
        await rig.close()


@asynccontextmanager
async def opened_rig(folder: Path, *, is_inline: bool = False) -> AsyncIterator[SqliteRig]:
    """An empty store."""
    rig = SqliteRig(folder, is_inline=is_inline)
    try:
        yield rig
    finally:
        await rig.store.close()
