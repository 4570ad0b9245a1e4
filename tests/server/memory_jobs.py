"""A store of jobs in memory with the methods that the endpoints call, and a server with it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.core.jobs import (
    ClaimedJob,
    Job,
    JobEvent,
    JobFilter,
    JobResult,
    JobState,
    NewJob,
    QueueDepth,
    Report,
    Submitted,
)
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.service import JobService
from stayfast.policy.jobs.pace import JobPace
from stayfast.stores.jobs.base import EventsPage, FileBodies, Heartbeat, HeldJob, JobStore
from tests.server.fakes import Client, FakeBackend, FakeGateway, Running, get, post, serving
from tests.server.keys import ADMIN, KEY, KEYS

MINE, OTHER = f"authorization: Bearer {KEY}", f"authorization: Bearer {ADMIN}"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = b'{"id":"x","choices":[]}'


class MemoryJobs:
    """Jobs of one process. `first_n`: events before it count as gone."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.new: dict[str, NewJob] = {}
        self.results: dict[str, JobResult] = {}
        self.stored_events: dict[str, list[JobEvent]] = {}
        self.first_n = 0
        self.n_counted = 0  # calls of count_unfinished
        self.reports: list[Report] = []
        self._woken = asyncio.Event()

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        out = []
        for new in jobs:
            earlier = [old for old in self.new.values() if new.idempotency_key is not None
                       and (old.tenant, old.door, old.idempotency_key) == (new.tenant, new.door, new.idempotency_key)]
            if earlier:
                out.append(Submitted(self.jobs[earlier[0].id], False, earlier[0].digest != new.digest))
                continue
            self.new[new.id] = new
            self.jobs[new.id] = Job(
                new.id, new.door, new.api, new.model, JobState.QUEUED, new.tenant, SystemClock().wall(), new.is_stream,
                new.rank, new.n_tokens, new.run_at, new.deadline_at, new.keep_s, batch_id=new.batch_id, line=new.line,
                custom_id=new.custom_id, metadata=new.metadata)
            if new.worker is not None:
                self.change(new.id, state=JobState.RUNNING, token=1, worker=new.worker)
            out.append(Submitted(self.jobs[new.id]))
        return out

    async def extend(self, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
        return Heartbeat(cancelled=tuple(one.job_id for one in held if self.jobs[one.job_id].is_cancelling))

    async def find(self, job_id: str) -> Job | None:
        return self.jobs.get(job_id)

    async def find_body(self, job_id: str) -> bytes | None:
        return self.new[job_id].body if job_id in self.new else None

    async def find_result(self, job_id: str) -> JobResult | None:
        return self.results.get(job_id)

    async def list_jobs(self, what: JobFilter) -> list[Job]:
        found = [job for job in reversed(self.jobs.values()) if (not what.is_for_tenant or job.tenant == what.tenant)
                 and (not what.states or job.state in what.states) and (not what.doors or job.door in what.doors)]
        ids = [job.id for job in found]
        start = ids.index(what.after_id) + 1 if what.after_id in ids else 0
        return found[start:start + what.limit]

    async def delete(self, job_id: str) -> bool:
        del self.new[job_id]
        return self.jobs.pop(job_id, None) is not None

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]:
        queued = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        return [ClaimedJob(self.change(job.id, state=JobState.RUNNING, token=job.token + 1, worker=worker),
                           self.new[job.id].body, self.new[job.id].headers) for job in queued]

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        for result in results:
            self.results[result.job_id] = result
            self.change(result.job_id, state=result.state, finished_at=SystemClock().wall(), why=result.why)
        return [True for _ in results]

    async def cancel(self, job_id: str) -> Job | None:
        job = self.jobs[job_id]
        if job.state is JobState.QUEUED:
            return self.change(job_id, state=JobState.CANCELLED)
        return job if job.state.is_final else self.change(job_id, is_cancelling=True)

    async def retry_dead(self, job_id: str) -> Job | None:
        if self.jobs[job_id].state not in (JobState.DEAD, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED):
            return None
        self.results.pop(job_id, None)
        return self.change(job_id, state=JobState.QUEUED, finished_at=None, why="")

    async def list_reports(self, *, is_failed: bool, limit: int) -> list[Report]:
        return [report for report in self.reports if report.is_failed is is_failed][:limit]

    async def retry_report(self, report_id: str) -> Report | None:
        for n, report in enumerate(self.reports):
            if report.id == report_id and report.is_failed:
                self.reports[n] = msgspec.structs.replace(report, is_failed=False)
                return self.reports[n]
        return None

    async def depths(self) -> list[QueueDepth]:
        queued = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        return [QueueDepth(model, sum(job.model == model for job in queued),
                           oldest_at=min(job.created_at for job in queued)) for model in {job.model for job in queued}]

    async def count_ahead(self, job_id: str) -> int:
        return [job.id for job in self.jobs.values() if job.state is JobState.QUEUED].index(job_id)

    async def count_unfinished(self, tenant: str | None) -> int:
        self.n_counted += 1
        return sum(job.tenant == tenant and not job.state.is_final for job in self.jobs.values())

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        self.stored_events.setdefault(job_id, []).extend(events)
        await self.notify(job_id)
        return True

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        events = [event for event in self.stored_events.get(job_id, ()) if event.n > after_n and event.n >= self.first_n]
        return EventsPage(tuple(events[:limit]), self.first_n)

    async def notify(self, topic: str) -> None:
        self._woken.set()
        self._woken = asyncio.Event()

    async def wait(self, topic: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return

    def change(self, job_id: str, **fields: object) -> Job:
        """Replace fields of a job, and wake all waiters."""
        self.jobs[job_id] = job = msgspec.structs.replace(self.jobs[job_id], **fields)
        self._woken.set()
        self._woken = asyncio.Event()
        return job


    async def play(self, job_id: str, blocks: Sequence[bytes], result: bytes | None = None, *, epoch: int = 1) -> None:
        """Run a job as a worker does: its events, one after another, then its result."""
        self.change(job_id, state=JobState.RUNNING, token=epoch)
        before = len(self.stored_events.get(job_id, ()))
        for n, block in enumerate(blocks):
            is_last = n == len(blocks) - 1 and result is not None
            await self.append_events(job_id, epoch, [JobEvent(before + n, epoch, block, is_last)])
        if result is not None:
            await self.finish([JobResult(job_id, epoch, JobState.COMPLETED, body=result, request_id="r", upstream="up")])


@asynccontextmanager
async def serving_jobs(config: JobsConfig | None = None, gateway: FakeGateway | None = None,
                       store: MemoryJobs | None = None) -> AsyncIterator[tuple[Running, MemoryJobs]]:
    """A server with two keys and a store in memory; the streams of its model `r` are resumable; a job of `m` takes 3 s."""
    store, pace = store or MemoryJobs(), JobPace(lambda model: model)
    pace.note_run("m", 3.0)
    backend = FakeBackend(config=KEYS, gateway=gateway or FakeGateway(), resumable=frozenset(("r",)))
    backend.jobs = JobService(cast("JobStore", store), cast("FileBodies", None), config or JobsConfig(), SystemClock(),
                              pace=pace)
    async with serving(backend) as running:
        yield running, store


def submission(**fields: object) -> bytes:
    """The body of a submission."""
    return json.dumps({"endpoint": "/v1/chat/completions", "body": BODY} | fields).encode()


async def submit(client: Client, *lines: str, **fields: object) -> tuple[int, dict[str, str], Any]:
    """Submit a job; status, headers and parsed body."""
    client.send(post(submission(**fields), "/v1/jobs", MINE, *lines))
    status, headers, body = await client.answer()
    return status, headers, json.loads(body)


async def fetch(client: Client, path: str, *, method: str = "GET", key: str = MINE) -> tuple[int, dict[str, str], Any]:
    """One request without a body."""
    client.send(get(path, key, "content-length: 0", method=method))
    status, headers, body = await client.answer()
    return status, headers, json.loads(body)
