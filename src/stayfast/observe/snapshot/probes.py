"""All observations of one worker besides its traffic: a consumer of facts, and what it contributes to a snapshot.

Frequent facts cost an addition or a reference each; all else happens when parts are collected, in the probes' own tasks, or
for a few sampled requests a second.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.events import (
    AttemptDone,
    BatchEnded,
    BreakerChanged,
    ConnectionOpened,
    ConnectionReused,
    JobEnded,
    JobStoreCalled,
    LoopLag,
    RequestDone,
    StoreCallDone,
    StoreChanged,
)
from stayfast.core.samples import PromptSampled, QuotaReported
from stayfast.core.snapshot import MachineRow, PromptRow, Spread, StoreRow, TenantRow, UpstreamRow
from stayfast.observe.fact_batch import FactHandlers, one_by_one
from stayfast.observe.snapshot.engine_scraper import EngineParts, EngineScraper, EngineScrapers, merge_engines
from stayfast.observe.snapshot.job_endings import JobEndings, JobParts
from stayfast.observe.snapshot.machine import MachinePart, MachineProbe, merge_loop_lag, merge_machines
from stayfast.observe.snapshot.prompt_shapes import PromptShapes, merge_prompts
from stayfast.observe.snapshot.store_probes import StorePart, StoreProbe, StoreSite, merge_stores
from stayfast.observe.snapshot.tallies import PackedTally
from stayfast.observe.snapshot.tenant_traffic import TenantNow, TenantParts, TenantTraffic, merge_tenants
from stayfast.observe.snapshot.upstream_observations import (
    ObservedUpstream,
    UpstreamObservations,
    complete_upstreams,
)

EVALUATE_EVERY_S: Final = 5.0
Spawn = Callable[[Coroutine[Any, Any, None]], Any]  # starts a task, which the caller cancels


class ProbePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker contributes. All but `machine`, `quota`, `bounds` and `engines` are only in whole parts."""

    machine: MachinePart
    quota: dict[str, dict[str, float]] = {}  # by upstream: share of each limit that is left
    bounds: dict[str, str] = {}  # by upstream: what its engine is bound by; empty in workers that read none
    prompts: dict[str, PackedTally] = {}
    tenants: TenantParts = TenantParts()
    upstreams: dict[str, ObservedUpstream] = {}
    stores: dict[str, StorePart] = {}
    engines: EngineParts = EngineParts()
    jobs: JobParts = JobParts()


class ProbeRows(msgspec.Struct, frozen=True):
    """The rows of a snapshot that come from probes."""

    machines: tuple[MachineRow, ...]
    prompts: tuple[PromptRow, ...]
    tenants: tuple[TenantRow, ...]
    stores: tuple[StoreRow, ...]
    upstreams: tuple[UpstreamRow, ...]


class WorkerProbes:
    """A `FactConsumer`. For one event loop."""

    __slots__ = ("_clock", "_engines", "_jobs", "_machine", "_prompts", "_stores", "_tenants", "_upstreams", "is_first")

    def __init__(self, worker: int, clock: Clock, log: Callable[[], tuple[str, int]],
                 tenants: Callable[[], Mapping[str, TenantNow]] = dict) -> None:
        """log: its level, and the lines that it has lost. tenants: as admission has them now."""
        self._clock = clock
        self.is_first = worker == 0  # it reads servers and engines for all workers
        self._machine = MachineProbe(worker, clock, log)
        self._prompts = PromptShapes()
        self._tenants = TenantTraffic(tenants)
        self._upstreams = UpstreamObservations()
        self._stores = StoreProbe(clock)
        self._engines = EngineScrapers()
        self._jobs = JobEndings(clock)

    def start(self, spawn: Spawn) -> list[Any]:
        """Start the tasks of the process; returns them."""
        started = [spawn(self._machine.run()), spawn(self._evaluate_regularly())]
        if self.is_first:
            started.append(spawn(self._stores.run()))
        return started

    async def _evaluate_regularly(self) -> None:
        while True:
            await asyncio.sleep(EVALUATE_EVERY_S)
            self._upstreams.evaluate(self._clock.now())

    def begin(self, stores: Mapping[str, StoreSite], engines: Mapping[str, EngineScraper], spawn: Spawn) -> None:
        """Watch the stores and engines of the settings, at the start and after a reload."""
        self._stores.begin(stores)
        if self.is_first:
            self._engines.begin(engines, spawn)

    def stop(self) -> None:
        self._engines.stop()

    def engine_figures(self) -> Mapping[str, Mapping[str, float]]:
        """Figures of self-hosted engines by upstream; empty in workers other than the first."""
        return self._engines.collect(self._clock.now()).figures

    def engine_bounds(self) -> Mapping[str, str]:
        """What self-hosted engines are bound by, by upstream; empty in workers other than the first."""
        return self._engines.bounds()

    @property
    def handlers(self) -> FactHandlers:
        upstreams, stores, now = self._upstreams, self._stores, self._clock.now
        return {AttemptDone: upstreams.note_attempts, RequestDone: self._tenants.consume, LoopLag: self._machine.consume,
                ConnectionReused: lambda facts: upstreams.note_reused(facts, now()),
                ConnectionOpened: one_by_one(lambda fact: upstreams.note_opened(fact, now())),
                BreakerChanged: one_by_one(lambda fact: upstreams.note_breaker(fact, now())),
                QuotaReported: one_by_one(upstreams.note_quota), PromptSampled: self._prompts.consume,
                StoreCallDone: stores.note_calls, StoreChanged: one_by_one(stores.note_change),
                JobStoreCalled: one_by_one(stores.note_job_call), JobEnded: self._jobs.consume,
                BatchEnded: self._jobs.batches.consume}

    def collect(self, *, is_whole: bool = True) -> ProbePart:
        """What this worker contributes now."""
        now = self._clock.now()
        machine, quota = self._machine.collect(now), self._upstreams.quota_left()
        bounds, engines = self._engines.bounds(), self._engines.collect(now)
        if not is_whole:
            return ProbePart(machine, quota, bounds, engines=engines)
        return ProbePart(machine, quota, bounds, dict(self._prompts.collect(now)), self._tenants.collect(now),
                         dict(self._upstreams.collect(now)), dict(self._stores.collect(now)), engines,
                         self._jobs.collect())


def merge_probes(parts: Sequence[ProbePart], upstreams: Iterable[UpstreamRow]) -> ProbeRows:
    """The rows of all workers. upstreams: rows of traffic, which are completed."""
    return ProbeRows(
        merge_machines(part.machine for part in parts), merge_prompts(part.prompts for part in parts),
        merge_tenants(part.tenants for part in parts), merge_stores(part.stores for part in parts),
        complete_upstreams(upstreams, [part.upstreams for part in parts], merge_engines(part.engines for part in parts),
                           merge_bounds(parts)))


def merge_bounds(parts: Iterable[ProbePart]) -> dict[str, str]:
    """What the engine of each upstream is bound by: one worker reads it."""
    return {name: bound for part in parts for name, bound in part.bounds.items()}


class MachineTotals(msgspec.Struct, frozen=True):
    """All workers together, for a frame. cpu_ratio: in cores. quota_left: of the scarcest limit, by upstream."""

    loop_lag_s: Spread
    cpu_ratio: float | None
    rss_bytes: int
    quota_left: dict[str, float]
    bounds: dict[str, str]  # of engines, by upstream
    engines: dict[str, dict[str, float]]  # figures, by upstream


def sum_machines(parts: Sequence[ProbePart]) -> MachineTotals:
    """The sums of all workers; cheap enough for each second."""
    shares = [part.machine.row.cpu_ratio for part in parts if part.machine.row.cpu_ratio is not None]
    left: dict[str, float] = {}
    for part in parts:
        for upstream, shares_left in part.quota.items():
            if shares_left:
                left[upstream] = min(*shares_left.values(), left.get(upstream, 1.0))
    return MachineTotals(merge_loop_lag(part.machine for part in parts), sum(shares) if shares else None,
                         sum(part.machine.row.rss_bytes for part in parts), left, merge_bounds(parts),
                         merge_engines(part.engines for part in parts))
