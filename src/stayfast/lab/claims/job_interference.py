"""Jobs are never in the way: interactive requests start as fast with a full queue of jobs behind them as without.

One simulated engine with continuous batching serves both. Its speed depends on its load: prompts are computed one at a time,
and every sequence in the batch slows all others (lab/simulated/engine.py). Interactive requests arrive as in a Poisson
process, with prompts of different lengths. In the first run they are alone. In the second run the same requests, at the same
instants, share the engine with a queue of jobs that never ends; the runner of jobs claims what policy/jobs/room.py allows.

When wrong: a real engine's speed also depends on what its caches hold, and jobs evict prefixes of interactive prompts.
Running jobs are not interrupted, so a burst of interactive requests after a quiet time meets the jobs that run.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.clock import Clock
from stayfast.core.jobs import Door, JobState, NewJob
from stayfast.core.types import Api
from stayfast.jobs.capacity import JobCapacity, RunningRoutes
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.execution import JobExecution
from stayfast.jobs.runner import JobRunner
from stayfast.jobs.service import WORK
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense
from stayfast.lab.harness.intervals import ratio_interval
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import chat_request, run_virtual_in_thread, serve_and_read
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import ProviderConfig
from stayfast.lab.simulated.engine import EngineModel
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.testing.job_store import MemoryJobStore
from stayfast.testing.simloop import SimLoop

WITHIN = 1.1  # of p99 with jobs to p99 without
N_PLACES = 48
RATE = 3.0  # interactive requests a second
MEDIAN_PROMPT, PROMPT_SIGMA, LONGEST_PROMPT, N_OUTPUT = 500, 0.6, 3000, 120
N_JOB_PROMPT, N_JOB_OUTPUT = 150, 200
WARMUP_S = 120.0
N_QUEUED = 100  # jobs that wait, at least
ENGINE = EngineModel(prefill_tokens_per_s=6000, decode_step_s=0.012, decode_step_per_sequence_s=0.0001, decode_share=0.5,
                     max_running=N_PLACES)
MakeCapacity = Callable[[RunningRoutes, Clock], JobCapacity]


@dataclass(frozen=True, slots=True)
class JobInterference:
    """capacity: how many jobs are claimed. least_jobs_per_s: the progress that is demanded."""

    full: Extent = Extent(virtual_s=4000.0)
    quick: Extent = Extent(virtual_s=900.0)
    capacity: MakeCapacity = JobCapacity
    least_jobs_per_s: float = 0.3

    name = "batch-interference"
    statement = ("With a full queue of jobs behind it, the p99 of interactive times to the first token is at most "
                 f"{WITHIN:g} times that without jobs, on an engine whose speed depends on its load; and the jobs make "
                 "progress.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        seconds, seed = conditions.choose(self.full, self.quick).virtual_s, conditions.seed
        conditions.report_progress(f"{seconds:g} s in virtual time, without jobs and with a full queue")
        alone = await run_virtual_in_thread(run_shared_engine, seconds, seed, None)
        shared = await run_virtual_in_thread(run_shared_engine, seconds, seed, self.capacity)
        return make_finding(alone, shared, seconds, self.least_jobs_per_s)


class EngineRun(NamedTuple):
    """Of all interactive requests after the warm-up: times to the first token (infinite for a failed one) and mean gaps
    between tokens, in seconds; and the jobs that ended after it.
    """

    ttft_s: list[float]
    gap_s: list[float]
    n_jobs: int
    n_failed_jobs: int


async def run_shared_engine(loop: SimLoop, seconds: float, seed: int, capacity: MakeCapacity | None) -> EngineRun:
    """One run. capacity: None: without jobs."""
    upstream = SimulatedUpstream(provider=ProviderConfig(seed=seed, engine=ENGINE, fills_max_tokens=True), probe=False,
                                 limit=LimitConfig(mode="fixed", max=N_PLACES))
    settings = Settings(upstreams={"engine": upstream}, routes={MODEL: RouteSettings(("engine",))},
                        log=LogSettings(level="error", requests=False))
    observers = Observers(settings, loop)
    system = build(settings, observers, {}, loop, Random(seed))
    queue = JobQueue(loop)
    runner = None
    if capacity is not None:
        store, config, current = queue.store.as_store(), JobsConfig(), observers.current
        execution = JobExecution(current.serve, store, lambda: config, clock=loop, rng=Random(seed))
        runner = JobRunner(store, execution, capacity(current, loop), lambda: config, clock=loop, rng=Random(seed),
                           sink=observers.sink, report=raise_error)
        runner.start("virtual:1:1")
        await queue.fill()
    ttft_s: dict[int, float] = {}
    gap_s: dict[int, float] = {}

    async def send(number: int, n_prompt: int, *, is_counted: bool) -> None:
        request = chat_request(n_prompt, N_OUTPUT)
        began_at = loop.now()
        answer = await serve_and_read(system.gateway, request, Arrival(f"req_{number}", loop.now()), loop)
        if is_counted:
            ttft_s[number] = answer.ttft_s
            gap_s[number] = ((loop.now() - began_at - answer.ttft_s) / (N_OUTPUT - 1))

    rng, number, n_before = Random(seed), 0, 0
    async with asyncio.TaskGroup() as group:
        while loop.now() < WARMUP_S + seconds:
            await asyncio.sleep(rng.expovariate(RATE))
            n_prompt = min(LONGEST_PROMPT, max(20, round(rng.lognormvariate(0.0, PROMPT_SIGMA) * MEDIAN_PROMPT)))
            number += 1
            is_counted = loop.now() >= WARMUP_S
            group.create_task(send(number, n_prompt, is_counted=is_counted))
            if capacity is not None:
                n_ended = await queue.fill()
                n_before = n_before if is_counted else n_ended
    n_ended, n_failed = queue.count_ended(), queue.n_failed
    if runner is not None:
        await runner.stop(0.0)
    return EngineRun([ttft_s[n] for n in sorted(ttft_s)], [gap_s[n] for n in sorted(gap_s)], n_ended - n_before, n_failed)


class JobQueue:
    """A queue of jobs that never ends."""

    def __init__(self, loop: SimLoop) -> None:
        self.store = MemoryJobStore(loop)
        self.n_failed = 0
        self._n_submitted = self._n_ended = 0
        self._body = msgspec.json.encode({
            "model": MODEL, "messages": [{"role": "user", "content": "word" * N_JOB_PROMPT}], "stream": False,
            "max_tokens": N_JOB_OUTPUT})

    async def fill(self) -> int:
        """Submit what is missing; returns how many jobs have ended so far."""
        n_ended = self.count_ended()
        missing = n_ended + N_QUEUED - self._n_submitted
        if missing > 0:
            self._n_submitted += missing
            await self.store.submit([NewJob(f"job_{self._n_submitted - n}", Door.BATCH, Api.CHAT, MODEL, self._body)
                                     for n in range(missing)])
            await self.store.notify(WORK)
        return n_ended

    def count_ended(self) -> int:
        """How many jobs have ended; they are removed from the store."""
        ended = [stored for stored in self.store.jobs.values() if stored.job.state.is_final]
        for stored in ended:
            self.n_failed += stored.job.state is not JobState.COMPLETED
            del self.store.jobs[stored.job.id]
        self._n_ended += len(ended)
        return self._n_ended


def make_finding(alone: EngineRun, shared: EngineRun, seconds: float, least_jobs_per_s: float) -> ClaimResult:
    """The figures of both runs."""
    low, high = ratio_interval(shared.ttft_s, alone.ttft_s, 0.99)
    before, after = ExactDistribution(alone.ttft_s), ExactDistribution(shared.ttft_s)
    return ClaimResult((
        Figure(f"p99 to the first token without jobs (n={len(alone.ttft_s)})", before.quantile(0.99) * 1e3, "ms"),
        Figure("p99 to the first token with a full queue of jobs", after.quantile(0.99) * 1e3, "ms"),
        Figure("ratio of the two", after.quantile(0.99) / before.quantile(0.99), "", WITHIN, low=low, high=high),
        Figure("p50 to the first token without jobs", before.quantile(0.5) * 1e3, "ms"),
        Figure("p50 to the first token with jobs", after.quantile(0.5) * 1e3, "ms"),
        Figure("mean time between tokens without jobs", sum(alone.gap_s) / len(alone.gap_s) * 1e3, "ms"),
        Figure("mean time between tokens with jobs", sum(shared.gap_s) / len(shared.gap_s) * 1e3, "ms"),
        Figure.exact("jobs that ended", shared.n_jobs / seconds, "/s", least_jobs_per_s, Sense.AT_LEAST),
        Figure.count("jobs that failed", shared.n_failed_jobs),
        Figure.count("interactive requests that failed", alone.ttft_s.count(inf) + shared.ttft_s.count(inf)),
    ))


def raise_error(error: BaseException) -> None:
    """Nothing unexpected happens here."""
    raise error
