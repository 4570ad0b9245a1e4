"""Jobs in one process: the store, the service of the endpoints, and what runs in the background.

The store is opened at the start if there is one (its file exists, or an address is set), else at the first use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from stayfast.compose.current import CurrentSystem
from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.core.jobs import QueueDepth
from stayfast.jobs.capacity import JobCapacity
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.execution import JobExecution
from stayfast.jobs.presence import WorkerPresence
from stayfast.jobs.runner import JobRunner
from stayfast.jobs.service import JobService
from stayfast.jobs.sweeper import JobSweeper
from stayfast.jobs.terms import QueueTerms
from stayfast.settings import Settings, read_environment
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.lazy import LazyJobStore

DATABASE = "jobs.sqlite"
OpenStore = Callable[[JobsConfig, Path, Clock], Awaitable[JobStore]]


def jobs_folder(config: JobsConfig, environment: Mapping[str, str]) -> Path:
    """The folder of the store's file, of uploaded files and of the workers' locks."""
    if config.path:
        return Path(config.path).expanduser()
    state = environment.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "stayfast" / "jobs"


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """What a process lends to its jobs. warn: gets the cause of a warning."""

    clock: Clock
    rng: Random
    sink: Sink
    warn: Callable[[str], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class JobsHost:
    """The jobs of one process. Belongs to one loop; outlives reloads. The store and its folder are those of the start."""

    def __init__(self, settings: Settings, current: CurrentSystem, parts: ProcessParts, *, open_store: OpenStore,
                 open_files: Callable[[Path], FileBodies], is_sweeper: bool = True) -> None:
        """is_sweeper: False: another process of this gateway sweeps the store."""
        config = settings.jobs
        self.depths: Sequence[QueueDepth] = ()
        self.folder = jobs_folder(config, read_environment())
        self.presence = WorkerPresence(self.folder / "workers")
        self.runner: JobRunner | None = None
        self._current = current
        self._open_store = open_store
        self._parts = parts
        self._is_sweeper = is_sweeper
        self.lazy = LazyJobStore(self._open, parts.clock, parts.sink)
        self.files = open_files(self.folder)
        self._loops: list[asyncio.Task[None]] = []
        self._is_stopped = False
        self.configure(settings)

    def configure(self, settings: Settings) -> JobService:
        """Take new settings; the store stays. Returns the service with these settings."""
        self.config = config = settings.jobs
        terms = QueueTerms(config, settings.tenants, settings.admission.priority_points)
        self.service = JobService(self.lazy.as_store(), self.files, config, self._parts.clock, terms)
        return self.service

    async def start(self) -> None:
        """Open the store if there is one; without it the gateway serves all the same."""
        if self.config.store is None and not (self.folder / DATABASE).exists():
            return
        try:
            await self.lazy.open()
        except StoreUnavailable as error:
            self._parts.warn(str(error))

    def drain(self) -> None:
        """Claim no more jobs."""
        if self.runner is not None:
            self.runner.drain()

    async def stop(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the running jobs, give back the rest, and close the store."""
        self._is_stopped = True
        for task in self._loops:
            task.cancel()
        if self.runner is not None:
            await self.runner.stop(wait_s)
        self.presence.leave()
        await self.lazy.close()

    async def _open(self) -> JobStore:
        """Open the store, and begin to work. Raises StoreUnavailable."""
        if self._is_stopped:
            raise StoreUnavailable("the gateway is stopping")
        store = await self._open_store(self.config, self.folder, self._parts.clock)
        self.presence.announce()
        self._loops.append(self._parts.spawn(self._begin()))
        return store

    async def _begin(self) -> None:
        """Once the store is open. The objects use the measured store."""
        store, parts = self.lazy.as_store(), self._parts
        if self.config.workers == "inside":
            execution = JobExecution(self._current.serve, store, self._get_config, clock=parts.clock, rng=parts.rng)
            self.runner = JobRunner(store, execution, JobCapacity(self._current, parts.clock), self._get_config,
                                    clock=parts.clock, rng=parts.rng, sink=parts.sink)
            self.runner.start(self.presence.worker)
        sweeper = JobSweeper(store, self.presence, self._get_config, sink=parts.sink, on_depths=self._take_depths)
        await sweeper.run(sweeps=self._is_sweeper)

    def _take_depths(self, depths: Sequence[QueueDepth]) -> None:
        self.depths = depths
        if self.runner is not None:
            self.runner.note_depths(depths)

    def _get_config(self) -> JobsConfig:
        return self.config

    def __repr__(self) -> str:
        return f"<JobsHost {self.folder}: {self.runner!r}>"
