"""Jobs in one process: the store, the service of the endpoints, and what runs in the background.

The store is opened at the start if there is one (its file exists, or an address is set), else at the first use.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import Any, cast

from stayfast.compose.current import CurrentSystem
from stayfast.core.clock import Clock
from stayfast.core.events import BatchEnded, Fact, Fanout, JobEnded, Sink
from stayfast.core.jobs import Batch, JobState, QueueDepth
from stayfast.jobs.capacity import JobCapacity
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.coordinator import BatchCoordinator
from stayfast.jobs.execution import JobExecution
from stayfast.jobs.presence import WorkerPresence
from stayfast.jobs.runner import JobRunner
from stayfast.jobs.service import JobService
from stayfast.jobs.sweeper import JobSweeper
from stayfast.jobs.terms import QueueTerms
from stayfast.jobs.webhooks import WebhookSender
from stayfast.observe.metrics.counters import Labels, Samples
from stayfast.observe.metrics.definitions import JOBS, JOBS_ALLOWED, JOBS_OLDEST, JOBS_OVERDUE
from stayfast.pipeline.stages.route import ANY_MODEL
from stayfast.policy.jobs.pace import JobPace
from stayfast.settings import Settings, read_environment
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import JobStore
from stayfast.stores.jobs.lazy import RETRY_S, LazyFileBodies, LazyJobStore, OpenStores
from stayfast.stores.jobs.reports import ReportStore
from stayfast.stores.jobs.sqlite import FILE_NAME

FIND_EVERY_S = 1.0  # a store that another process creates is found within this time
N_COORDINATORS = 2  # a small batch does not wait until a large one is checked and stored
OpenJobStores = Callable[[JobsConfig, Path, Clock], Awaitable[OpenStores]]


def jobs_folder(config: JobsConfig, environment: Mapping[str, str]) -> Path:
    """The folder of the store's file, of uploaded files and of the workers' locks."""
    if config.path:
        return Path(config.path).expanduser()
    state = environment.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "stayfast" / "jobs"


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """What a process lends to its jobs. warn: gets the cause of a warning. report: gets unexpected exceptions."""

    clock: Clock
    rng: Random
    sink: Sink
    warn: Callable[[str], None]
    report: Callable[[BaseException], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class RunTimeSink:
    """Passes the run times of completed jobs on."""

    def __init__(self, pace: JobPace) -> None:
        self._pace = pace

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, JobEnded) and fact.state == JobState.COMPLETED:
            self._pace.note_run(fact.route, fact.run_s)


class JobsHost:
    """The jobs of one process. Belongs to one loop; outlives reloads. The store and its folder are those of the start."""

    def __init__(self, settings: Settings, current: CurrentSystem, parts: ProcessParts, *, open_stores: OpenJobStores,
                 is_sweeper: bool = True, has_siblings: bool = False) -> None:
        """is_sweeper: False: another process of this gateway sweeps the store. has_siblings: another process may create it.
        """
        self.settings = settings  # in force; a reload replaces them
        self.folder = jobs_folder(settings.jobs, read_environment())
        self.presence = WorkerPresence(self.folder / "workers")
        self.runner: JobRunner | None = None
        self._current = current
        self._open_stores = open_stores
        self._parts = parts
        self._is_sweeper = is_sweeper
        self._has_siblings = has_siblings
        self._pace = JobPace(self._route_of)
        self.lazy = LazyJobStore(self._open, parts.clock, parts.sink)
        self.files = LazyFileBodies(self.lazy)
        self._loops: list[asyncio.Task[None]] = []
        self._service: JobService | None = None  # with the settings in force, once it was needed
        self._is_stopped = False
        self._stop_at = -inf  # without a drain, as after an error
        current.read_job_gauges = self.gauges

    def make_service(self, settings: Settings) -> JobService:
        """The service of the endpoints with these settings, on the same store."""
        terms = QueueTerms(settings.jobs, settings.tenants, settings.admission.priority_points)
        return JobService(self.lazy.as_store(), self.files, settings.jobs, self._parts.clock, terms,
                          worker=self.presence.worker, pace=self._pace)

    async def start(self, *, is_needed: bool = False) -> None:
        """Open the store if there is one, or if it `is_needed`. Without it the gateway serves all the same, and tries again.
        """
        if self.config.store is None and not is_needed and not self._has_file():
            if self._has_siblings:
                self._loops.append(self._parts.spawn(self._open_later(FIND_EVERY_S, is_needed=False)))
            return
        try:
            await self.lazy.open()
        except StoreUnavailable as error:
            self._parts.warn(str(error))
            self._loops.append(self._parts.spawn(self._open_later(RETRY_S, is_needed=True)))

    async def _open_later(self, every_s: float, *, is_needed: bool) -> None:
        """Open the store once it can be opened; one that does not exist is left to the process that first needs it."""
        while True:
            await asyncio.sleep(every_s)
            if not is_needed and not self._has_file():
                continue
            with suppress(StoreUnavailable):
                await self.lazy.open()
                return

    def exists(self) -> bool:
        """Whether there is a store: by its address, or its file."""
        return self.config.store is not None or self._has_file()

    def _has_file(self) -> bool:
        return (self.folder / FILE_NAME).exists()

    def drain(self) -> None:
        """Claim no more jobs; those that run have the time of a drain."""
        server = self.settings.server
        self._stop_at = self._parts.clock.now() + server.grace_s + server.drain_s
        if self.runner is not None:
            self.runner.drain()

    async def stop(self, before_close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Wait for the running jobs until the end of the drain, give back the rest, and close the store. before_close: its
        last use.
        """
        self._is_stopped = True
        for task in self._loops:
            task.cancel()
        if self.runner is not None:
            await self.runner.stop(max(0.0, self._stop_at - self._parts.clock.now()))
        self.presence.leave()
        if before_close is not None:
            await before_close()
        await self.lazy.close()

    async def _open(self) -> OpenStores:
        """Open the store, and begin to work. Raises StoreUnavailable."""
        if self._is_stopped:
            raise StoreUnavailable("the gateway is stopping")
        stores = await self._open_stores(self.config, self.folder, self._parts.clock)
        self.presence.announce()
        self._loops.append(self._parts.spawn(self._begin()))
        return stores

    async def _begin(self) -> None:
        """Once the store is open. The objects use the measured store."""
        store, parts = self.lazy.as_store(), self._parts
        if self.config.workers == "inside":
            execution = JobExecution(self._current.serve, store, self._get_config, clock=parts.clock, rng=parts.rng)
            self.runner = JobRunner(store, execution, JobCapacity(self._current, parts.clock), self._get_config,
                                    clock=parts.clock, rng=parts.rng, report=parts.report,
                                    sink=Fanout(parts.sink, RunTimeSink(self._pace)))
            self.runner.start(self.presence.worker)
            if self._is_sweeper:
                self._loops += [parts.spawn(loop) for loop in self._upkeep(store)]
        sweeper = JobSweeper(store, self.files, self.presence, self._get_config, clock=parts.clock, sink=parts.sink,
                             on_depths=self._take_depths, report=parts.report)
        await sweeper.run(sweeps=self._is_sweeper)

    def _upkeep(self, store: JobStore) -> Iterator[Coroutine[Any, Any, None]]:
        """What one process of a gateway does for all: batches and webhooks."""
        parts, worker = self._parts, self.presence.worker
        for _ in range(N_COORDINATORS):
            yield BatchCoordinator(self._get_service, worker, is_known_model=self._is_known_model,
                                   report=parts.report, on_completed=self._count_batch).run()
        yield WebhookSender(store, cast("ReportStore", store), lambda: self.config.webhooks, worker, clock=parts.clock,
                            rng=parts.rng, sink=parts.sink, report=parts.report).run()

    def gauges(self) -> Samples:
        """The queue's figures, from the process that sweeps; and what each upstream allows."""
        places = {target.member.upstream.name: target.member.whole_limiter.job_places
                  for route in self._current.routes().values() for target in route.targets}
        allowed: list[tuple[Labels, float]] = [((name,), one.allowance.allowed) for name, one in places.items()
                                               if one is not None]
        queues = depth_rows(self._pace.depths, self._current.routes(), self._parts.clock.wall()) if self._is_sweeper else {}
        return {**queues, JOBS_ALLOWED.name: allowed} if allowed or queues else {}

    def _route_of(self, model: str) -> str:
        return model if model in self._current.routes() else ANY_MODEL

    def _count_batch(self, batch: Batch, seconds: float) -> None:
        self._parts.sink.emit(BatchEnded(self._route_of(batch.model), batch.n_total, seconds))

    def _is_known_model(self, model: str) -> bool:
        routes = self._current.routes()
        return model in routes or ANY_MODEL in routes

    def _take_depths(self, depths: Sequence[QueueDepth]) -> None:
        self._pace.note_depths(depths)
        if self.runner is not None:
            self.runner.note_depths(depths)

    @property
    def config(self) -> JobsConfig:
        return self.settings.jobs

    def _get_service(self) -> JobService:
        if self._service is None or self._service.config is not self.settings.jobs:
            self._service = self.make_service(self.settings)
        return self._service

    def _get_config(self) -> JobsConfig:
        return self.settings.jobs

    def __repr__(self) -> str:
        return f"<JobsHost {self.folder}: {self.runner!r}>"


def depth_rows(depths: Sequence[QueueDepth], routes: Container[str], now: float) -> Samples:
    """The gauges of the queue, by route; models of a route to any model are one row. now: Unix seconds."""
    states: Counter[tuple[str, str]] = Counter()
    oldest_s: dict[str, float] = {}
    overdue_s: dict[str, float] = {}
    for depth in depths:
        route = depth.model if depth.model in routes else ANY_MODEL
        for state, n in (("queued", depth.n_queued), ("deferred", depth.n_deferred), ("running", depth.n_running)):
            states[route, state] += n
        if depth.oldest_at is not None:
            oldest_s[route] = max(oldest_s.get(route, 0.0), now - depth.oldest_at)
        if depth.earliest_deadline_at is not None:
            overdue_s[route] = max(overdue_s.get(route, -inf), now - depth.earliest_deadline_at)
    return {JOBS.name: list(states.items()), JOBS_OLDEST.name: [((route,), age_s) for route, age_s in oldest_s.items()],
            JOBS_OVERDUE.name: [((route,), late_s) for route, late_s in overdue_s.items()]}
