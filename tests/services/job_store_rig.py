"""What tests of stores of durable work share: the store under test with its clock, and small records."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from stayfast.core.jobs import Batch, BatchState, ClaimedJob, Door, FileInfo, Job, JobEvent, JobResult, JobState, NewJob
from stayfast.core.types import Api, Usage
from stayfast.stores.jobs.base import JobStore

MODEL = "fast"


class JobStoreRig(Protocol):
    """A store under test, and control of its clock."""

    store: JobStore

    def now(self) -> float:
        """The store's clock, in Unix seconds."""

    async def advance(self, s: float) -> None:
        """Move the store's clock."""

    async def restart(self) -> None:
        """Close the store and open it again on the same data: `store` is then a new object."""


class RiggedSuite:
    """Tests that run on any store. A subclass opens an empty one. run: of an event loop."""

    run: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)

    def open(self) -> AbstractAsyncContextManager[JobStoreRig]:
        """An empty store."""
        raise NotImplementedError


Scenario = Callable[[Any, JobStoreRig], Awaitable[None]]


def on_store(scenario: Scenario) -> Callable[[Any], None]:
    """A test that runs on an empty store."""
    def test(self: RiggedSuite) -> None:
        async def main() -> None:
            async with self.open() as rig:
                await scenario(self, rig)

        self.run(main())

    test.__doc__ = scenario.__doc__  # not functools.wraps: pytest would take `rig` for a fixture
    return test


def new_job(job_id: str, **fields: Any) -> NewJob:
    """A small job."""
    return NewJob(**{"id": job_id, "door": Door.JOBS, "api": Api.CHAT, "model": MODEL, "body": b"body of " + job_id.encode(),
                     **fields})


def result_of(claimed: ClaimedJob, **fields: Any) -> JobResult:
    """The result of a claim."""
    return JobResult(**{"job_id": claimed.job.id, "token": claimed.job.token, "state": JobState.COMPLETED,
                        "body": b"result of " + claimed.job.id.encode(), **fields})


def new_batch(batch_id: str, now: float, **fields: Any) -> Batch:
    """A batch that is being validated."""
    return Batch(**{"id": batch_id, "door": Door.BATCH, "tenant": "a", "endpoint": "/v1/chat/completions",
                    "input_file_id": "file-1", "state": BatchState.VALIDATING, "created_at": now,
                    "expires_at": now + 86_400.0, **fields})


def new_line(batch_id: str, line: int, **fields: Any) -> NewJob:
    """A line of a batch."""
    return new_job(f"{batch_id}-{line}", **{"door": Door.BATCH, "tenant": "a", "batch_id": batch_id, "line": line,
                                            "custom_id": f"c{line}", **fields})


def new_file(file_id: str, now: float, **fields: Any) -> FileInfo:
    """A file."""
    return FileInfo(**{"id": file_id, "tenant": "a", "purpose": "batch", "filename": "in.jsonl", "n_bytes": 3,
                       "created_at": now, **fields})


def events_from(first: int, n: int, epoch: int) -> list[JobEvent]:
    """Consecutive events of one claim."""
    return [JobEvent(k, epoch, f"data: {k}\n\n".encode()) for k in range(first, first + n)]


async def claim_ids(store: JobStore, n: int = 10, worker: str = "host:1:0") -> list[str]:
    """Claim, and return the ids in the order of the claim."""
    return [claimed.job.id for claimed in await store.claim(worker, {MODEL: n}, 30.0)]


async def claim_one(store: JobStore, worker: str = "host:1:0", lease_s: float = 30.0) -> ClaimedJob:
    """Claim the next job."""
    (claimed,) = await store.claim(worker, {MODEL: 1}, lease_s)
    return claimed


async def find_stored(store: JobStore, job_id: str) -> Job:
    """A job that must exist."""
    job = await store.find(job_id)
    assert job is not None, job_id
    return job


async def state_of(store: JobStore, job_id: str) -> JobState:
    """The state of a job."""
    return (await find_stored(store, job_id)).state


USAGE = Usage(input_total=10, output=5, cached_read=2, reasoning=1)
