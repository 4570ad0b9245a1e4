"""One committer a machine. The processes that share a folder are the workers of a gateway, `stayfast work` and the CLI.

Problem: SQLite has one writer at a time, and group commit pays only if the calls of all processes share a transaction. Rule:
the process that holds the lock of the folder opens the file and serves a Unix socket; the others send it their calls. When
it ends, also by `kill -9`, the operating system releases its lock and its connections, and the first process that notices
becomes the next committer. Calls that were in flight are repeated: submissions carry ids, finishes carry tokens, claims a
number of their own, so a repetition changes nothing.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from stayfast.core.clock import Clock
from stayfast.core.jobs import (
    Batch,
    ClaimedJob,
    FileInfo,
    Job,
    JobEvent,
    JobFilter,
    JobResult,
    JobState,
    NewJob,
    QueueDepth,
    Release,
    Report,
    Submitted,
)
from stayfast.core.keys import KeysPage, SpendRow, StoredKey
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import EventsPage, Heartbeat, HeldJob, SweepReport
from stayfast.stores.jobs.calls import describe_method
from stayfast.stores.jobs.committer import Committer, acquire_lock
from stayfast.stores.jobs.committer_link import CommitterLink, LinkLost
from stayfast.stores.jobs.embedded.group_commit import RESERVE_BYTES, WINDOW_S
from stayfast.stores.jobs.keys import is_same_key
from stayfast.stores.jobs.sqlite import PAGE, SqliteJobStore
from stayfast.stores.jobs.topics import Topics

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[SqliteJobStore, P], Awaitable[T]]

PATIENCE_S: Final = 5.0  # longest time without a committer; then StoreUnavailable
ELECTION_POLL_S: Final = 0.02


class SharedJobStore:
    """`JobStore` in a folder that several processes of this machine use. Used on one event loop."""

    def __init__(self, folder: Path, clock: Clock, *, reserve_bytes: int = RESERVE_BYTES,
                 window_s: float = WINDOW_S) -> None:
        self._folder = folder
        self._topics = Topics()
        self._make = partial(SqliteJobStore, folder, clock, reserve_bytes=reserve_bytes, window_s=window_s,
                             topics=self._topics)
        self._committer: Committer | None = None
        self._link: CommitterLink | None = None
        self._electing = asyncio.Lock()
        self._reelection: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_committer(self) -> bool:
        """Whether this process commits for the machine."""
        return self._committer is not None

    async def _call(self, method: Method[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        reply, _ = await self._repeat(method, *args, **kwargs)
        return reply

    async def _repeat(self, method: Method[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
        """The reply, and whether the call was repeated: an earlier attempt may have changed something."""
        is_repeated = False
        while True:
            if self._committer is None and (self._link is None or self._link.is_lost):
                await self._elect()
            if self._committer is not None:
                return await method(self._committer.store, *args, **kwargs), is_repeated
            assert self._link is not None
            name = method.__name__
            try:
                reply: T = await self._link.call(name, (*args, *(kwargs[key] for key in describe_method(name).keywords)))
            except LinkLost:
                is_repeated = True
            else:
                return reply, is_repeated

    async def _elect(self) -> None:
        """Become the committer, or connect to it. Raises StoreUnavailable after PATIENCE_S."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        async with self._electing:
            while self._committer is None and (self._link is None or self._link.is_lost):
                if self._is_closed:
                    raise StoreUnavailable("closed")
                if await self._try_to_commit() or await self._try_to_connect():
                    return
                if loop.time() > until:
                    raise StoreUnavailable(f"{self._folder}: the process that commits cannot be reached")
                await asyncio.sleep(ELECTION_POLL_S)

    async def _try_to_commit(self) -> bool:
        lock = acquire_lock(self._folder)
        if lock is None:
            return False
        committer = Committer(self._folder, lock, self._make())
        try:
            await committer.listen()
        except BaseException:
            await committer.close()
            raise
        self._link, self._committer = None, committer
        self._topics.notify_all()
        return True

    async def _try_to_connect(self) -> bool:
        link = CommitterLink(self._topics, self._on_lost)
        try:
            await link.connect(self._folder)
        except OSError:  # the committer is starting or ending
            return False
        self._link = link
        self._topics.notify_all()
        return True

    def _on_lost(self) -> None:
        """Wake the waiters, whose notifications are lost, and elect a committer: other processes may be idle."""
        if self._is_closed:
            return
        self._topics.notify_all()
        if self._reelection is None:
            self._reelection = asyncio.get_running_loop().create_task(self._reelect())

    async def _reelect(self) -> None:
        try:
            await self._elect()
        except StoreUnavailable:
            return  # the next call tries again
        finally:
            self._reelection = None

    async def close(self) -> None:
        """A committer finishes the calls of other processes, and another one takes over."""
        self._is_closed = True
        if self._reelection is not None:
            self._reelection.cancel()
        if self._link is not None:
            self._link.close()
        committer, self._committer = self._committer, None
        if committer is not None:
            await committer.close()

    async def claim_reports(self, worker: str, n: int, lease_s: float) -> list[Report]:
        return await self._call(SqliteJobStore.claim_reports, worker, n, lease_s)

    async def settle_report(self, report: Report, *, is_done: bool) -> bool:
        """Also True for a repetition of a call that had settled it."""
        is_settled, is_repeated = await self._repeat(SqliteJobStore.settle_report, report, is_done=is_done)
        return is_settled or is_repeated

    async def list_reports(self, *, is_failed: bool, limit: int) -> list[Report]:
        return await self._call(SqliteJobStore.list_reports, is_failed=is_failed, limit=limit)

    async def retry_report(self, report_id: str) -> Report | None:
        return await self._call(SqliteJobStore.retry_report, report_id)

    async def read_keys(self, after_version: int, limit: int) -> KeysPage:
        return await self._call(SqliteJobStore.read_keys, after_version, limit)

    async def create_key(self, key: StoredKey, max_keys: int) -> tuple[StoredKey | None, bool]:
        (stored, is_new), is_repeated = await self._repeat(SqliteJobStore.create_key, key, max_keys)
        return stored, is_new or (is_repeated and stored is not None and stored.id == key.id)

    async def update_key(self, key: StoredKey, version: int) -> StoredKey | None:
        stored, is_repeated = await self._repeat(SqliteJobStore.update_key, key, version)
        if stored is None and is_repeated:
            found = await self.find_key(key.id)
            return found if found is not None and is_same_key(found, key) else None
        return stored

    async def find_key(self, key_id: str) -> StoredKey | None:
        return await self._call(SqliteJobStore.find_key, key_id)

    async def list_keys(self, tenant: str | None, after_id: str | None, limit: int) -> list[StoredKey]:
        return await self._call(SqliteJobStore.list_keys, tenant, after_id, limit)

    async def note_key_uses(self, uses: Mapping[str, float]) -> None:
        await self._call(SqliteJobStore.note_key_uses, uses)

    async def add_spend(self, writer: str, n: int, rows: Sequence[SpendRow]) -> None:
        await self._call(SqliteJobStore.add_spend, writer, n, rows)

    async def read_spend(self, groups: Sequence[str], first_day: int, last_day: int, tenant: str | None) -> list[SpendRow]:
        return await self._call(SqliteJobStore.read_spend, groups, first_day, last_day, tenant)

    async def notify(self, topic: str) -> None:
        self._topics.notify(topic)
        if self._link is not None:
            self._link.notify(topic)

    async def wait(self, topic: str, timeout_s: float) -> None:
        if self._committer is None and self._link is not None:
            self._link.wait_for(topic)
        try:
            await self._topics.wait(topic, timeout_s)
        finally:
            if self._link is not None and not self._topics.is_waited_for(topic):
                self._link.stop_waiting(topic)

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        submitted, is_repeated = await self._repeat(SqliteJobStore.submit, jobs)
        if not is_repeated:
            return submitted
        return [Submitted(one.job) if one.job.id == job.id else one for job, one in zip(jobs, submitted, strict=True)]

    async def find(self, job_id: str) -> Job | None:
        return await self._call(SqliteJobStore.find, job_id)

    async def find_body(self, job_id: str) -> bytes | None:
        return await self._call(SqliteJobStore.find_body, job_id)

    async def find_result(self, job_id: str) -> JobResult | None:
        return await self._call(SqliteJobStore.find_result, job_id)

    async def list_jobs(self, what: JobFilter) -> list[Job]:
        return await self._call(SqliteJobStore.list_jobs, what)

    async def delete(self, job_id: str) -> bool:
        deleted, is_repeated = await self._repeat(SqliteJobStore.delete, job_id)
        return deleted or (is_repeated and await self.find(job_id) is None)

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]:
        return await self._call(SqliteJobStore.claim, worker, room, lease_s, secrets.token_hex(8))

    async def extend(self, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
        return await self._call(SqliteJobStore.extend, worker, held, lease_s)

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        return await self._call(SqliteJobStore.finish, results)

    async def release(self, released: Sequence[Release]) -> list[bool]:
        return await self._call(SqliteJobStore.release, released)

    async def bury(self, job_id: str, token: int, why: str) -> bool:
        return await self._call(SqliteJobStore.bury, job_id, token, why)

    async def cancel(self, job_id: str) -> Job | None:
        return await self._call(SqliteJobStore.cancel, job_id)

    async def retry_dead(self, job_id: str) -> Job | None:
        reply, is_repeated = await self._repeat(SqliteJobStore.retry_dead, job_id)
        if reply is None and is_repeated:
            job = await self.find(job_id)
            return job if job is not None and job.state in (JobState.QUEUED, JobState.RUNNING) else None
        return reply

    async def recover(self, worker: str, *, max_claims: int = 3) -> int:
        return await self._call(SqliteJobStore.recover, worker, max_claims=max_claims)

    async def sweep(self, *, max_claims: int) -> SweepReport:
        return await self._call(SqliteJobStore.sweep, max_claims=max_claims)

    async def depths(self) -> list[QueueDepth]:
        return await self._call(SqliteJobStore.depths)

    async def count_ahead(self, job_id: str) -> int:
        return await self._call(SqliteJobStore.count_ahead, job_id)

    async def count_unfinished(self, tenant: str | None) -> int:
        return await self._call(SqliteJobStore.count_unfinished, tenant)

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        return await self._call(SqliteJobStore.append_events, job_id, token, events)

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        return await self._call(SqliteJobStore.read_events, job_id, after_n, limit)

    async def create_batch(self, batch: Batch) -> tuple[Batch, bool]:
        (stored, is_new), is_repeated = await self._repeat(SqliteJobStore.create_batch, batch)
        return stored, is_new or (is_repeated and stored.id == batch.id)

    async def find_batch(self, batch_id: str) -> Batch | None:
        return await self._call(SqliteJobStore.find_batch, batch_id)

    async def list_batches(self, tenant: str | None, doors: Sequence[str], after_id: str | None, limit: int, *,
                           is_forward: bool = True) -> list[Batch]:
        return await self._call(SqliteJobStore.list_batches, tenant, doors, after_id, limit, is_forward=is_forward)

    async def claim_batch(self, worker: str, lease_s: float) -> Batch | None:
        return await self._call(SqliteJobStore.claim_batch, worker, lease_s, secrets.token_hex(8))

    async def update_batch(self, batch: Batch, *, lease_s: float | None) -> bool:
        return await self._call(SqliteJobStore.update_batch, batch, lease_s=lease_s)

    async def cancel_batch(self, batch_id: str) -> Batch | None:
        return await self._call(SqliteJobStore.cancel_batch, batch_id)

    async def delete_batch(self, batch_id: str) -> bool:
        deleted, is_repeated = await self._repeat(SqliteJobStore.delete_batch, batch_id)
        return deleted or (is_repeated and await self.find_batch(batch_id) is None)

    async def batch_results(self, batch_id: str) -> AsyncIterator[tuple[Job, JobResult | None]]:
        after_line = 0
        while page := await self._call(SqliteJobStore.read_lines, batch_id, after_line, PAGE):
            for job, result in page:
                yield job, result
            after_line = page[-1][0].line or 0

    async def add_file(self, info: FileInfo) -> None:
        await self._call(SqliteJobStore.add_file, info)

    async def find_file(self, file_id: str) -> FileInfo | None:
        return await self._call(SqliteJobStore.find_file, file_id)

    async def list_files(self, tenant: str | None, purpose: str | None, after_id: str | None, limit: int, *,
                         newest_first: bool = True) -> list[FileInfo]:
        return await self._call(SqliteJobStore.list_files, tenant, purpose, after_id, limit,
                                newest_first=newest_first)

    async def delete_file(self, file_id: str) -> bool:
        deleted, is_repeated = await self._repeat(SqliteJobStore.delete_file, file_id)
        return deleted or (is_repeated and await self.find_file(file_id) is None)


def open_job_store(folder: Path, clock: Clock, *, reserve_bytes: int = RESERVE_BYTES) -> SharedJobStore:
    """The store of durable jobs in a folder of this machine, for one of the processes that use it. Opens nothing yet."""
    return SharedJobStore(folder, clock, reserve_bytes=reserve_bytes)
