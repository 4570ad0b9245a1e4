"""Durable work in an SQLite file on this machine: write-ahead log, `synchronous = FULL`, group commit.

One process opens the file (`stores.jobs.handover`). One thread writes, a second one reads what is committed. The parts are
in `stores.jobs.embedded`.
"""

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.jobs import (
    Batch,
    ClaimedJob,
    FileInfo,
    Job,
    JobEvent,
    JobFilter,
    JobResult,
    NewJob,
    QueueDepth,
    Release,
    Report,
    Submitted,
)
from stayfast.core.keys import KeysPage, SpendRow, StoredKey
from stayfast.stores.jobs.base import EventsPage, Heartbeat, HeldJob, SweepReport
from stayfast.stores.jobs.embedded import batches, claims, keys, reading, reports, submission, sweeping
from stayfast.stores.jobs.embedded.group_commit import RESERVE_BYTES, WINDOW_S, GroupCommit, Headroom
from stayfast.stores.jobs.embedded.schema import open_file, open_reader
from stayfast.stores.jobs.topics import Topics

FILE_NAME: Final = "jobs.db"
RESERVE_NAME: Final = "jobs.reserve"
PAGE: Final = 200  # lines of a batch that are read at a time


class SqliteJobStore:
    """`JobStore` in the file `jobs.db` of a folder, which no other process may use.

    reserve_bytes: disk space set aside for accepted work; without it, submissions raise StoreFull. is_inline: without
    threads and without synchronisation of the disk, for simulations in virtual time.
    """

    def __init__(self, folder: Path, clock: Clock, *, reserve_bytes: int = RESERVE_BYTES, window_s: float = WINDOW_S,
                 is_inline: bool = False, topics: Topics | None = None) -> None:
        path = folder / FILE_NAME
        now = clock.wall
        self._now = now
        self.topics = topics or Topics()
        self._writer = GroupCommit(
            str(path), lambda: open_file(path, is_durable=not is_inline), {
                "finish": lambda db, results: claims.finish(db, now(), results),
                "create_batch": lambda db, new: [batches.create_batch(db, batch) for batch in new],
                "submit": lambda db, jobs: submission.submit(db, now(), jobs),
            }, window_s=window_s, headroom=Headroom(folder / RESERVE_NAME, reserve_bytes) if reserve_bytes else None,
            refused=frozenset(("submit", "create_batch")), is_inline=is_inline)
        self._reader = GroupCommit(str(path), self._open_reader, {}, begin="BEGIN", window_s=0.0,
                                   is_inline=is_inline)
        self._path = path

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        return await self._writer.run_bulk("submit", jobs) if jobs else []

    async def find(self, job_id: str) -> Job | None:
        return await self._reader.run(lambda db: reading.find(db, job_id))

    async def find_body(self, job_id: str) -> bytes | None:
        return await self._reader.run(lambda db: reading.find_body(db, job_id))

    async def find_result(self, job_id: str) -> JobResult | None:
        return await self._reader.run(lambda db: reading.find_result(db, job_id))

    async def list_jobs(self, what: JobFilter) -> list[Job]:
        return await self._reader.run(lambda db: reading.list_jobs(db, what))

    async def delete(self, job_id: str) -> bool:
        return await self._writer.run(lambda db: reading.delete(db, job_id))

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float, claim_ref: str = "") -> list[ClaimedJob]:
        """claim_ref: a repetition with the same text returns the jobs of the first call."""
        return await self._writer.run(
            lambda db: claims.claim(db, self._now(), worker, room, lease_s=lease_s, claim_ref=claim_ref))

    async def extend(self, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
        return await self._writer.run(lambda db: claims.extend(db, self._now(), worker, held, lease_s))

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        return await self._writer.run_bulk("finish", results) if results else []

    async def release(self, released: Sequence[Release]) -> list[bool]:
        return await self._writer.run(lambda db: claims.release(db, self._now(), released))

    async def bury(self, job_id: str, token: int, why: str) -> bool:
        return await self._writer.run(lambda db: claims.bury(db, self._now(), job_id, token, why))

    async def cancel(self, job_id: str) -> Job | None:
        return await self._writer.run(lambda db: claims.cancel(db, self._now(), job_id))

    async def retry_dead(self, job_id: str) -> Job | None:
        return await self._writer.run(lambda db: claims.retry_dead(db, job_id))

    async def recover(self, worker: str, *, max_claims: int = 3) -> int:
        return await self._writer.run(lambda db: claims.recover(db, self._now(), worker, max_claims))

    async def sweep(self, *, max_claims: int) -> SweepReport:
        """Also returns a part of the free space in the file to the disk, if there is much."""
        report = await self._writer.run(lambda db: sweeping.sweep(db, self._now(), max_claims))
        if await self._reader.run(sweeping.has_much_free):
            await self._writer.run(sweeping.vacuum)
        return report

    async def depths(self) -> list[QueueDepth]:
        return await self._reader.run(reading.depths)

    async def count_ahead(self, job_id: str) -> int:
        return await self._reader.run(lambda db: reading.count_ahead(db, job_id))

    async def count_unfinished(self, tenant: str | None) -> int:
        return await self._reader.run(lambda db: reading.count_unfinished(db, tenant))

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        return await self._writer.run(lambda db: reading.append_events(db, job_id, token, events))

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        return await self._reader.run(lambda db: reading.read_events(db, job_id, after_n, limit))

    async def create_batch(self, batch: Batch) -> tuple[Batch, bool]:
        created: tuple[Batch, bool] = (await self._writer.run_bulk("create_batch", [batch]))[0]
        return created

    async def find_batch(self, batch_id: str) -> Batch | None:
        return await self._reader.run(lambda db: batches.find_batch(db, batch_id))

    async def list_batches(self, tenant: str | None, doors: Sequence[str], after_id: str | None, limit: int, *,
                           is_forward: bool = True) -> list[Batch]:
        return await self._reader.run(
            lambda db: batches.list_batches(db, tenant, doors, after_id, limit, is_forward=is_forward))

    async def claim_batch(self, worker: str, lease_s: float, claim_ref: str = "") -> Batch | None:
        """claim_ref: as in `claim`."""
        return await self._writer.run(lambda db: batches.claim_batch(db, self._now(), worker, lease_s, claim_ref))

    async def update_batch(self, batch: Batch, *, lease_s: float | None) -> bool:
        return await self._writer.run(lambda db: batches.update_batch(db, self._now(), batch, lease_s))

    async def cancel_batch(self, batch_id: str) -> Batch | None:
        """In steps, so that other calls are not delayed. After a crash in between, a repetition goes on."""
        is_left = True
        while is_left:
            batch, is_left = await self._writer.run(lambda db: batches.cancel_batch(db, self._now(), batch_id))
        return batch

    async def delete_batch(self, batch_id: str) -> bool:
        """In steps. Lines that a crash leaves behind are purged at their own time."""
        if not await self._writer.run(lambda db: batches.delete_batch(db, batch_id)):
            return False
        while await self._writer.run(lambda db: batches.delete_batch_lines(db, batch_id)):
            pass
        return True

    async def batch_results(self, batch_id: str) -> AsyncIterator[tuple[Job, JobResult | None]]:
        after_line = 0
        while page := await self.read_lines(batch_id, after_line, PAGE):
            for job, result in page:
                yield job, result
            after_line = page[-1][0].line or 0

    async def read_lines(self, batch_id: str, after_line: int, limit: int) -> list[tuple[Job, JobResult | None]]:
        """A page of `batch_results`."""
        return await self._reader.run(lambda db: batches.read_lines(db, batch_id, after_line, limit))

    async def add_file(self, info: FileInfo) -> None:
        await self._writer.run(lambda db: batches.add_file(db, info))

    async def find_file(self, file_id: str) -> FileInfo | None:
        return await self._reader.run(lambda db: batches.find_file(db, self._now(), file_id))

    async def list_files(self, tenant: str | None, purpose: str | None, after_id: str | None, limit: int, *,
                         newest_first: bool = True) -> list[FileInfo]:
        return await self._reader.run(lambda db: batches.list_files(
            db, self._now(), tenant, purpose, after_id=after_id, limit=limit, newest_first=newest_first))

    async def delete_file(self, file_id: str) -> bool:
        return await self._writer.run(lambda db: batches.delete_file(db, file_id))

    async def claim_reports(self, worker: str, n: int, lease_s: float) -> list[Report]:
        return await self._writer.run(lambda db: reports.claim_reports(db, self._now(), n, lease_s))

    async def settle_report(self, report: Report, *, is_done: bool) -> bool:
        return await self._writer.run(lambda db: reports.settle_report(db, report, is_done=is_done))

    async def list_reports(self, *, is_failed: bool, limit: int) -> list[Report]:
        return await self._reader.run(lambda db: reports.list_reports(db, is_failed=is_failed, limit=limit))

    async def retry_report(self, report_id: str) -> Report | None:
        return await self._writer.run(lambda db: reports.retry_report(db, report_id))

    async def read_keys(self, after_version: int, limit: int) -> KeysPage:
        return await self._reader.run(lambda db: keys.read_keys(db, after_version, limit))

    async def create_key(self, key: StoredKey, max_keys: int) -> tuple[StoredKey | None, bool]:
        return await self._writer.run(lambda db: keys.create_key(db, self._now(), key, max_keys))

    async def update_key(self, key: StoredKey, version: int) -> StoredKey | None:
        return await self._writer.run(lambda db: keys.update_key(db, self._now(), key, version))

    async def find_key(self, key_id: str) -> StoredKey | None:
        return await self._reader.run(lambda db: keys.find_key(db, key_id))

    async def list_keys(self, tenant: str | None, after_id: str | None, limit: int) -> list[StoredKey]:
        return await self._reader.run(lambda db: keys.list_keys(db, tenant, after_id, limit))

    async def note_key_uses(self, uses: Mapping[str, float]) -> None:
        await self._writer.run(lambda db: keys.note_key_uses(db, uses))

    async def add_spend(self, writer: str, n: int, rows: Sequence[SpendRow]) -> None:
        await self._writer.run(lambda db: keys.add_spend(db, self._now(), writer, n, rows))

    async def read_spend(self, groups: Sequence[str], first_day: int, last_day: int, tenant: str | None) -> list[SpendRow]:
        return await self._reader.run(lambda db: keys.read_spend(db, groups, first_day, last_day, tenant))

    async def notify(self, topic: str) -> None:
        self.topics.notify(topic)

    async def wait(self, topic: str, timeout_s: float) -> None:
        await self.topics.wait(topic, timeout_s)

    async def close(self) -> None:
        """Close the file after the calls that have arrived."""
        await self._reader.close()
        await self._writer.close()

    def _open_reader(self) -> sqlite3.Connection:
        self._writer.open()
        return open_reader(self._path)
