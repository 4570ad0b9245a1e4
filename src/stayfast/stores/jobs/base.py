"""The interfaces of the stores of durable work. SQLite and PostgreSQL implement them; one test suite runs on both.

Every method that changes something returns after the change is durable (synced to disk). All raise StoreUnavailable if
the store cannot be used now, and `StoreFull` if it has no space; a method that raised has changed nothing, or the change
can be repeated. The store's own clock decides about leases, deadlines and expiry; clocks of workers do not matter.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from stayfast.core.jobs import (
    Batch,
    BatchState,
    ClaimedJob,
    FileInfo,
    Job,
    JobEvent,
    JobFilter,
    JobResult,
    NewJob,
    QueueDepth,
    Release,
    Submitted,
)
from stayfast.stores.base import StoreUnavailable


class StoreFull(StoreUnavailable):
    """No space is left: the disk, or the store's own limit. What is stored stays, and can end."""


class HeldJob(msgspec.Struct, frozen=True):
    """A claim that a worker holds."""

    job_id: str
    token: int


class Heartbeat(msgspec.Struct, frozen=True):
    """lost: claims that are no longer the worker's; it must stop them. cancelled: jobs whose client wants them ended."""

    lost: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()


class EventsPage(msgspec.Struct, frozen=True):
    """A part of a stream. first_n: the oldest event that is stored; older ones are gone."""

    events: tuple[JobEvent, ...]
    first_n: int = 0


class SweepReport(msgspec.Struct, frozen=True):
    """What a sweep changed.

    expired_files: files whose time is over. Their records remain, unseen by `find_file`, until the caller has deleted the
    contents and calls `delete_file`: a crash between the two leaves no content without a record.
    """

    n_recovered: int = 0  # leases that had ended: back in the queue
    n_dead: int = 0
    n_expired: int = 0
    n_purged: int = 0  # records whose time was over
    finished: tuple[str, ...] = ()  # ids of jobs that are now expired, dead or cancelled
    expired_files: tuple[str, ...] = ()


class JobStore(Protocol):
    """Jobs, their events and results, batches and the records of files."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Store jobs, all of them or none. A job whose id or line of a batch is stored already is not stored again
        (`is_new` False, the stored job), so a submission can be repeated. A line of a batch that is CANCELLING or has ended
        is stored as CANCELLED.
        """

    async def find(self, job_id: str) -> Job | None: ...

    async def find_body(self, job_id: str) -> bytes | None:
        """The request of a job."""

    async def find_result(self, job_id: str) -> JobResult | None: ...

    async def list_jobs(self, what: JobFilter) -> list[Job]: ...

    async def delete(self, job_id: str) -> bool:
        """Delete an ended job with its events and result; False if it is unknown or has not ended."""

    async def claim(self, worker: str, room: Mapping[str, int], lease_s: float) -> list[ClaimedJob]:
        """Claim the next jobs of each route, at most `room[route]` each. Order: aged ones, then rank, then the tenants'
        virtual finish time, then the deadline. Jobs that are due later, or have expired, are not claimed.
        """

    async def extend(self, worker: str, held: Sequence[HeldJob], lease_s: float) -> Heartbeat:
        """Extend leases."""

    async def finish(self, results: Sequence[JobResult]) -> list[bool]:
        """End jobs. For each: False if the claim was superseded; its result is discarded. A repetition with the same token
        returns True again and changes nothing. Advances the counts and usage of
        their batches in the same transaction; a batch whose lines have all ended becomes FINALIZING.
        """

    async def release(self, released: Sequence[Release]) -> list[bool]:
        """Put claimed jobs back into the queue. False: the claim was superseded. A job in `is_cancelling` ends instead. One
        that has failed (`is_failure`) gets a new virtual finish time, behind the queued jobs of its tenant, route and rank:
        one that fails at each attempt must not be the first one each time. Any other release leaves its place.
        """

    async def bury(self, job_id: str, token: int, why: str) -> bool:
        """End a claimed job as DEAD. False: the claim was superseded."""

    async def cancel(self, job_id: str) -> Job | None:
        """Cancel a job: at once if it is queued; a running one gets `is_cancelling`. Returns its new state."""

    async def retry_dead(self, job_id: str) -> Job | None:
        """Put a failed, dead, expired or cancelled job back into the queue, without its result and deadline; its stream goes
        on: the last event becomes an empty one in between. None: unknown, or it has another state, or the batch of its line
        is FINALIZING or has ended.
        """

    async def recover(self, worker: str, *, max_claims: int = 3) -> int:
        """Put back the claims of a worker that is known to have died, before their leases end, and its claims of batches.
        `worker` is a prefix: `host:` of an id `host:boot:number`. As in `sweep`, a job whose workers have died
        `max_claims` times ends as DEAD, so that one that kills its worker does not run for ever. Returns how many jobs.
        """

    async def sweep(self, *, max_claims: int) -> SweepReport:
        """Put jobs with ended leases back into the queue, or end them as DEAD when `max_claims` workers have died with them
        (claims that were released do not count; `retry_dead` starts anew); end expired jobs; purge what is over. Lines of a
        batch stay until the batch has ended. Bounded work: call it again if it reports much.
        """

    async def depths(self) -> list[QueueDepth]:
        """By route; those without jobs are left out."""

    async def count_ahead(self, job_id: str) -> int:
        """How many queued jobs of its route run before it, at most 10,000."""

    async def count_unfinished(self, tenant: str | None) -> int:
        """Jobs of one tenant that have not ended."""

    async def append_events(self, job_id: str, token: int, events: Sequence[JobEvent]) -> bool:
        """Append to the stream of a claimed job. An event whose number is stored already is ignored, so a call can be
        repeated. False: the claim was superseded.
        """

    async def read_events(self, job_id: str, after_n: int, limit: int = 500) -> EventsPage:
        """The events after number `after_n` (-1: from the start)."""

    async def create_batch(self, batch: Batch) -> tuple[Batch, bool]:
        """Store a batch; returns the stored one, and whether it is new: an earlier one with the same idempotency key and
        tenant is returned instead.
        """

    async def find_batch(self, batch_id: str) -> Batch | None: ...

    async def list_batches(self, tenant: str | None, doors: Sequence[str], after_id: str | None, limit: int, *,
                           is_forward: bool = True) -> list[Batch]:
        """Newest first. is_forward: the page after `after_id`, else the one before it."""

    async def claim_batch(self, worker: str, lease_s: float) -> Batch | None:
        """A batch that is VALIDATING, FINALIZING or CANCELLING with all lines ended, and that no coordinator holds."""

    async def update_batch(self, batch: Batch, *, lease_s: float | None) -> bool:
        """Write the fields that its coordinator changes: state, instants, problems, files, n_total, n_inserted; never the
        counts of ended lines. lease_s: extend the claim; None: give it up. False: `batch.token` was superseded.

        VALIDATING and IN_PROGRESS do not replace CANCELLING. IN_PROGRESS becomes FINALIZING at once if all `n_total` lines
        have ended.
        """

    async def cancel_batch(self, batch_id: str) -> Batch | None:
        """VALIDATING or IN_PROGRESS becomes CANCELLING; its queued lines end as cancelled, its running ones are marked."""

    async def delete_batch(self, batch_id: str) -> bool:
        """Delete an ended batch with its lines; False if it is unknown or has not ended."""

    def batch_results(self, batch_id: str) -> AsyncIterator[tuple[Job, JobResult | None]]:
        """All lines of a batch in the order of their numbers, read in pages."""

    async def add_file(self, info: FileInfo) -> None: ...

    async def find_file(self, file_id: str) -> FileInfo | None: ...

    async def list_files(self, tenant: str | None, purpose: str | None, after_id: str | None, limit: int, *,
                         newest_first: bool = True) -> list[FileInfo]: ...

    async def delete_file(self, file_id: str) -> bool: ...

    async def notify(self, topic: str) -> None:
        """Wake waiters of a topic in all processes: `work`, `job:ID`. May be lost; waiters poll as well."""

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Return at the next `notify` of a topic, or after `timeout_s`."""

    async def close(self) -> None: ...


class FileWriter(Protocol):
    """A file that is being written. Invisible until `commit`; removed by `abort`."""

    async def write(self, data: bytes) -> None: ...

    async def commit(self) -> tuple[int, str]:
        """Make it durable and visible; returns its size in bytes and its SHA-256 in hex."""

    async def abort(self) -> None: ...


IsKnown = Callable[[str], Awaitable[bool]]  # whether a file has a record
ORPHAN_AGE_S = 3600.0
MAX_CHECKED = 100


class FileBodies(Protocol):
    """The contents of files, by id."""

    async def create(self, file_id: str, *, spare_bytes: int = 0) -> FileWriter:
        """spare_bytes: the space that it leaves free; without it the writer raises StoreFull."""

    def read(self, file_id: str, at: int = 0) -> AsyncIterator[bytes]:
        """The bytes from offset `at`, in parts of at most 256 KiB. Raises KeyError for an unknown file."""

    async def delete(self, file_id: str) -> None: ...

    async def remove_orphans(self, is_known: IsKnown) -> int:
        """Remove files without a record, which a crash between the two leaves; returns how many. Files younger than
        ORPHAN_AGE_S stay: their record may follow. One call checks at most MAX_CHECKED; the next one goes on after them.
        """


# A batch in one of these states has work for a coordinator.
COORDINATED = (BatchState.VALIDATING, BatchState.FINALIZING, BatchState.CANCELLING)
