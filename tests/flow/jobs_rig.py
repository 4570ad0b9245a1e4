"""A gateway of scripted upstreams with a runner of jobs and a store in memory, on virtual time."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.core.jobs import Door, Job, JobResult, JobState, NewJob
from stayfast.core.types import Api
from stayfast.jobs.capacity import JobCapacity
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.execution import JobExecution
from stayfast.jobs.runner import JobRunner
from stayfast.jobs.service import WORK
from stayfast.pipeline.plan import Route
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.testing import Script, SimLoop
from stayfast.testing.job_store import MemoryJobStore
from tests.flow.rig import MODEL, Rig

WORKER = "host:boot:1"


class RigRoutes:
    """The running system of a rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def routes(self) -> Mapping[str, Route]:
        return self._rig.router.routes

    def admission(self) -> Admit | None:
        return self._rig.gateway.admit


class JobsRig(Rig):
    """A rig with jobs."""

    def __init__(self, loop: SimLoop, *scripts: Sequence[Script], config: JobsConfig | None = None, **fields: Any) -> None:
        fields.setdefault("timeouts", Timeouts(total_s=600, first_token_s=120))  # some answers take 100 s
        super().__init__(loop, *scripts, **fields)
        self.config = config or JobsConfig()
        self.store = MemoryJobStore(loop)
        self.capacity = JobCapacity(RigRoutes(self), loop)
        self.reported: list[BaseException] = []
        self._n = 0

    def new_runner(self) -> JobRunner:
        """A runner on the rig's store."""
        rng = Random(3)

        async def serve(request: Any, arrival: Any) -> Any:
            return await self.gateway.serve(request, arrival)

        execution = JobExecution(serve, self.store.as_store(), self.get_config, clock=self.loop, rng=rng)
        return JobRunner(self.store.as_store(), execution, self.capacity, self.get_config, clock=self.loop, rng=rng,
                         sink=self.sink, report=self.reported.append)

    def get_config(self) -> JobsConfig:
        return self.config

    @asynccontextmanager
    async def running(self, worker: str = WORKER) -> AsyncIterator[JobRunner]:
        """A runner, until the block ends."""
        runner = self.new_runner()
        runner.start(worker)
        try:
            yield runner
        finally:
            await runner.stop(0.0)

    async def submit(self, *, stream: bool = False, is_stream: bool | None = None, **fields: Any) -> str:
        """Submit a chat job; returns its id."""
        self._n += 1
        body = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": stream})
        new = NewJob(**{"id": f"job_{self._n}", "door": Door.JOBS, "api": Api.CHAT, "model": MODEL, "body": body,
                        "is_stream": stream if is_stream is None else is_stream, **fields})
        await self.store.submit([new])
        await self.store.notify(WORK)
        return new.id

    async def wait_for_end(self, job_id: str, within_s: float = 10_000.0) -> Job:
        """The job once it has ended."""
        until = self.loop.now() + within_s
        while not (job := self.store.jobs[job_id].job).state.is_final:
            assert self.loop.now() < until, job
            await self.store.wait("none", 0.05)
        return job

    def result(self, job_id: str) -> JobResult:
        """Its result, which must exist."""
        result = self.store.jobs[job_id].result
        assert result is not None
        return result

    def state(self, job_id: str) -> JobState:
        return self.store.jobs[job_id].job.state
