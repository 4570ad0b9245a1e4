"""How many jobs the embedded store accepts and finishes, on the disk of the temporary folder, with two cores.

Accepted: each submission is one call of one job, which returns when it is synchronised to the disk. Finished: a claim of up
to 16 jobs, then one call for each result. Both are measured apart, in rounds, by tasks of this process; the CPU of the load
itself is measured with a store that does nothing. Over HTTP, `stayfast serve` accepts from connections of this process. The
goal is its CPU for a job: the rate has none, because the load and the gateway share the cores, and each round trip waits for
the disk.

Depth: the CPU of a job (submitted, claimed, finished) with many jobs in the queue, compared with a thousand, in turns. CPU,
not time: a shared disk varies more from round to round than the depth matters. When wrong: a disk without a write cache, or
with 10 ms for each synchronisation, accepts less; the figure of one synchronisation is printed.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Protocol

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import ClaimedJob, Door, Job, JobResult, JobState, NewJob, Submitted
from stayfast.core.types import Api
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, SetUpFailed, ratio
from stayfast.lab.harness.loopback import keep_busy
from stayfast.lab.harness.processes import Processes, ServerProcess, gateway_settings
from stayfast.stores.jobs.sqlite import SqliteJobStore

N_CORES = 2
N_CLIENTS = 128
N_WORKERS = 8
N_CLAIMED = 16  # of one claim
N_TENANTS = 50
N_BODY_BYTES = 2000
N_FILLED = 1000  # jobs of one submission that fills the queue
SHALLOW = 1000
MODEL = "m"
ACCEPTED_GOAL, FINISHED_GOAL, DEPTH_GOAL = 4000.0, 2000.0, 1.5
HTTP_CPU_GOAL_US = 1e6 / ACCEPTED_GOAL  # one core then accepts as many
N_CONNECTIONS = 64
LEASE_S = 600.0


class MeasuredStore(Protocol):
    """The part of a store of jobs that is measured."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]: ...

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]: ...

    async def finish(self, results: Sequence[JobResult]) -> list[bool]: ...


class _NoStore:
    """Does nothing: what remains is the load."""

    def __init__(self) -> None:
        self._waiting: list[NewJob] = []

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        self._waiting += jobs
        return []

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]:
        n = room[MODEL]
        taken, self._waiting = self._waiting[:n], self._waiting[n:]
        return [ClaimedJob(Job(one.id, one.door, one.api, one.model, JobState.RUNNING, one.tenant, 0.0, token=1), one.body)
                for one in taken]

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        return [True] * len(results)


@dataclass(frozen=True, slots=True)
class Pace:
    """One round. s: duration of a job; cpu_s: CPU of this process for a job."""

    accepted_s: float
    accepted_cpu_s: float
    finished_s: float
    finished_cpu_s: float
    n_lost: int

    @property
    def cpu_s(self) -> float:
        return self.accepted_cpu_s + self.finished_cpu_s


class JobLoad:
    """Clients and workers of one store."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self._numbers = count()
        self._body = os.urandom(N_BODY_BYTES // 2).hex().encode()

    def make_job(self) -> NewJob:
        """A job as the endpoints make it: ids of later milliseconds sort after earlier ones."""
        now, number = self._clock.wall(), next(self._numbers)
        return NewJob(f"job_{int(now * 1e3):012x}{secrets.token_hex(10)}", Door.JOBS, Api.CHAT, MODEL, self._body,
                      tenant=f"tenant-{number % N_TENANTS}", n_tokens=500 + number % 300, deadline_at=now + 86_400.0,
                      aged_at=now + 21_600.0)

    async def fill(self, store: MeasuredStore, n: int) -> None:
        """Queue n jobs."""
        for first in range(0, n, N_FILLED):
            await store.submit([self.make_job() for _ in range(min(N_FILLED, n - first))])

    async def run_round(self, store: MeasuredStore, n: int) -> Pace:
        """Submit n jobs, then claim and finish as many."""
        accepted_s, accepted_cpu_s = await self._time(self._submit(store, n))
        n_finished: list[int] = []
        finished_s, finished_cpu_s = await self._time(self._work(store, n, n_finished))
        return Pace(accepted_s / n, accepted_cpu_s / n, finished_s / n, finished_cpu_s / n, n - sum(n_finished))

    async def _time(self, work: Awaitable[None]) -> tuple[float, float]:
        began_at, began_cpu_s = self._clock.now(), self._clock.cpu()
        await work
        return self._clock.now() - began_at, self._clock.cpu() - began_cpu_s

    async def _submit(self, store: MeasuredStore, n: int) -> None:
        async def submit_in_turn(first: int) -> None:
            for _ in range(first, n, N_CLIENTS):
                await store.submit([self.make_job()])

        await asyncio.gather(*(submit_in_turn(first) for first in range(N_CLIENTS)))

    async def _work(self, store: MeasuredStore, n: int, n_finished: list[int]) -> None:
        batches = iter([min(N_CLAIMED, n - first) for first in range(0, n, N_CLAIMED)])

        async def work_in_turn(worker: int) -> None:
            for n_free in batches:
                claims = await store.claim(f"proof:1:{worker}", {MODEL: n_free}, LEASE_S)
                done = await asyncio.gather(*(store.finish([JobResult(
                    one.job.id, one.job.token, JobState.COMPLETED, body=self._body)]) for one in claims))
                n_finished.append(sum(is_accepted for (is_accepted,) in done))

        await asyncio.gather(*(work_in_turn(worker) for worker in range(N_WORKERS)))


@dataclass(frozen=True, slots=True)
class JobThroughput:
    """n of an extent: jobs of a round. n_deep: jobs in the deep queue. real_s: of one round over HTTP."""

    full: Extent = Extent(n=4000, real_s=2.0, n_rounds=20)
    quick: Extent = Extent(n=1500, real_s=0.8, n_rounds=12)
    n_deep_full: int = 1_000_000
    n_deep_quick: int = 100_000

    name = "throughput"
    statement = (f"The embedded store accepts {ACCEPTED_GOAL:,.0f} and, measured apart, finishes {FINISHED_GOAL:,.0f} jobs "
                 f"a second on {N_CORES} cores, each synchronised to the disk. With a million jobs in the queue a job takes "
                 f"at most {DEPTH_GOAL:g} times the CPU that it takes with a thousand. Over HTTP a gateway process uses at "
                 f"most {HTTP_CPU_GOAL_US:.0f} us of CPU for an accepted job, one core for {ACCEPTED_GOAL:,.0f} a second.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        n_deep = conditions.choose(self.n_deep_full, self.n_deep_quick)
        with TemporaryDirectory(prefix="stayfast-jobs-") as folder, two_cores():
            sync_s = measure_sync_s(Path(folder))
            figures = [*await self._measure_pace(Path(folder), extent, n_deep, conditions),
                       *await measure_http(Path(folder) / "http", extent, conditions),
                       Figure("one synchronisation of the disk", sync_s * 1e3, "ms")]
        return make_finding(figures, n_deep)

    @staticmethod
    async def _measure_pace(folder: Path, extent: Extent, n_deep: int, conditions: Conditions) -> list[Figure]:
        clock = SystemClock()
        load, idle, shallow, deep = JobLoad(clock), list[Pace](), list[Pace](), list[Pace]()
        async with opened_stores(folder, clock) as (shallow_store, deep_store):
            await load.fill(shallow_store, SHALLOW)
            for first in range(0, n_deep, 50 * N_FILLED):
                conditions.report_progress(f"{first:,} of {n_deep:,} jobs queued")
                await load.fill(deep_store, min(50 * N_FILLED, n_deep - first))
            for number in range(extent.n_rounds + 1):
                conditions.report_progress(f"round {number} of {extent.n_rounds}")
                idle.append(await load.run_round(_NoStore(), extent.n))
                turns = [(shallow_store, shallow), (deep_store, deep)]
                for store, paces in turns if number % 2 else turns[::-1]:
                    paces.append(await load.run_round(store, extent.n))
        return pace_figures(idle[1:], shallow[1:], deep[1:], n_deep)


@asynccontextmanager
async def opened_stores(folder: Path, clock: SystemClock) -> AsyncIterator[tuple[SqliteJobStore, SqliteJobStore]]:
    """Two stores on the same disk."""
    stores = SqliteJobStore(folder / "shallow", clock), SqliteJobStore(folder / "deep", clock)
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


@contextmanager
def two_cores() -> Iterator[None]:
    """Run this process, and what it starts, on N_CORES cores; on all of them where the system cannot do that."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > N_CORES:
        os.sched_setaffinity(0, cores[:N_CORES])
    try:
        yield
    finally:
        if len(cores) > N_CORES:
            os.sched_setaffinity(0, cores)


def measure_sync_s(folder: Path, n: int = 21) -> float:
    """The median duration of a write of one page that is synchronised."""
    clock, durations_s = SystemClock(), []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(n):
            began_at = clock.now()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            durations_s.append(clock.now() - began_at)
    return median(durations_s)


def pace_figures(idle: Sequence[Pace], shallow: Sequence[Pace], deep: Sequence[Pace], n_deep: int) -> list[Figure]:
    """idle: the load without a store. Rounds of each list were measured in turns."""
    load_us = [[getattr(pace, name) * 1e6 for pace in idle] for name in ("accepted_cpu_s", "finished_cpu_s")]
    ratios = [ratio(many.cpu_s, few.cpu_s) for few, many in zip(shallow, deep, strict=True)]
    return [
        Figure.of_rounds("accepted", [1 / pace.accepted_s for pace in shallow], "jobs/s", ACCEPTED_GOAL, Sense.AT_LEAST),
        Figure.of_rounds("finished", [1 / pace.finished_s for pace in shallow], "jobs/s", FINISHED_GOAL, Sense.AT_LEAST),
        Figure.of_rounds(f"CPU of a job at {n_deep:,} queued, to that at {SHALLOW:,}", ratios, "x", DEPTH_GOAL),
        Figure.of_rounds(f"accepted at {n_deep:,} queued", [1 / pace.accepted_s for pace in deep], "jobs/s"),
        Figure.of_rounds(f"finished at {n_deep:,} queued", [1 / pace.finished_s for pace in deep], "jobs/s"),
        Figure.of_rounds("CPU of an accepted job, with its load", [pace.accepted_cpu_s * 1e6 for pace in shallow], "us"),
        Figure.of_rounds("CPU of the load, accepted", load_us[0], "us"),
        Figure.of_rounds("CPU of a finished job, with its load", [pace.finished_cpu_s * 1e6 for pace in shallow], "us"),
        Figure.of_rounds("CPU of the load, finished", load_us[1], "us"),
        Figure.count("jobs not finished", sum(pace.n_lost for pace in (*shallow, *deep))),
    ]


@dataclass(slots=True)
class HttpRounds:
    """Rounds of one gateway. cpu_us, load_us: CPU for a job, of all processes of the gateway and of the load."""

    gateway: ServerProcess
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    load_us: list[float] = field(default_factory=list)
    n_failed: int = 0

    async def measure(self, clock: SystemClock, seconds: float, *, is_warmup: bool) -> None:
        """Keep the gateway busy for one round."""
        before_s, before_load_s, began_at = self.gateway.tree_cpu_s(), clock.cpu(), clock.now()
        n_accepted, n_failed = await keep_busy(self.gateway.url, seconds, N_CONNECTIONS,
                                               request=encode_submission(self.gateway.url), status=202)
        self.n_failed += n_failed
        if n_accepted and not is_warmup:
            self.rates.append(n_accepted / (clock.now() - began_at))
            self.cpu_us.append((self.gateway.tree_cpu_s() - before_s) / n_accepted * 1e6)
            self.load_us.append((clock.cpu() - before_load_s) / n_accepted * 1e6)


async def measure_http(folder: Path, extent: Extent, conditions: Conditions) -> list[Figure]:
    """Jobs that a gateway of one process and one of two accept, in turns. Raises SetUpFailed."""
    clock, measured = SystemClock(), dict[int, HttpRounds]()
    async with Processes() as processes:
        for n_processes in (1, 2):
            measured[n_processes] = HttpRounds(await processes.start_gateway({
                **gateway_settings({"none": "http://127.0.0.1:9/v1"}), "workers": n_processes,
                "jobs": {"workers": "none", "path": str(folder / str(n_processes)), "max_queued": 100_000_000}}))
        for number in range(extent.n_rounds + 1):
            conditions.report_progress(f"HTTP, round {number} of {extent.n_rounds}")
            for rounds in measured.values():
                await rounds.measure(clock, extent.real_s, is_warmup=number == 0)
    return http_figures(measured[1], measured[2])


def http_figures(one: HttpRounds, two: HttpRounds) -> list[Figure]:
    """one, two: by the number of the gateway's processes. Raises SetUpFailed."""
    if not one.rates or not two.rates:
        raise SetUpFailed("the gateway accepted no job over HTTP")
    return [Figure.of_rounds("CPU of the gateway for a job over HTTP", one.cpu_us, "us", HTTP_CPU_GOAL_US),
            Figure.of_rounds("accepted over HTTP", one.rates, "jobs/s"),
            Figure.of_rounds("CPU of the gateway for a job over HTTP, two processes", two.cpu_us, "us"),
            Figure.of_rounds("accepted over HTTP, two processes", two.rates, "jobs/s"),
            Figure.of_rounds("CPU of the load for a job over HTTP", one.load_us, "us"),
            Figure.count("failed requests over HTTP", one.n_failed + two.n_failed)]


def encode_submission(url: str) -> bytes:
    """An HTTP request that submits a job of N_BODY_BYTES."""
    question = "x" * (N_BODY_BYTES - 150)
    body = (f'{{"endpoint":"/v1/chat/completions","body":{{"model":"{MODEL}","max_tokens":64,"messages":'
            f'[{{"role":"user","content":"{question}"}}]}}}}').encode()
    host = url.partition("//")[2]
    return (f"POST /v1/jobs HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n").encode() + body


def make_finding(figures: Sequence[Figure], n_deep: int) -> ClaimResult:
    """The figures; a quick run does not queue a million."""
    notes = () if n_deep >= 1_000_000 else (f"A quick run: {n_deep:,} jobs in the deep queue, not a million.",)
    return ClaimResult(tuple(figures), notes)
