"""The records of durable work: jobs, their events and results, batches and files. Instants are Unix seconds.

A job is one request that is answered later. States:

    queued -> running -> completed | failed | cancelled | expired | dead
    running -> queued                      (a retry, or its worker died)
    queued -> cancelled | expired

`token` counts the claims of a job. A worker may write to a job only with the token of its own claim, so the result of a
worker that lost its lease is discarded (fencing). A result exists exactly once: the row is written in the transaction that
ends the job.
"""

from collections.abc import Mapping

import msgspec

from stayfast.core.types import Api, Usage, Word


class JobState(Word):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"  # the upstream's or the gateway's final error is the result
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its deadline passed before it ran
    DEAD = "dead"  # its workers died with it `max_claims` times, or its retries are used up: for the dead-letter list

    @property
    def is_final(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Door(Word):
    """How a job was submitted."""

    JOBS = "jobs"  # POST /v1/jobs
    ASYNC = "async"  # Prefer: respond-async
    RESPONSES = "responses"  # OpenAI Responses with `background: true`
    BATCH = "batch"  # a line of an OpenAI batch
    MESSAGE_BATCH = "message_batch"  # a request of an Anthropic message batch
    STREAM = "stream"  # an ordinary stream of a route with `resumable: true`


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be stored. `body` is the client's request, verbatim, as its endpoint would get it."""

    id: str
    door: Door
    api: Api
    model: str  # the route's name, as the client sent it
    body: bytes
    tenant: str | None = None
    headers: tuple[tuple[str, str], ...] = ()  # of the client, to forward to an upstream (lower-case names)
    is_stream: bool = False  # its events are stored
    rank: int = 4  # of its band: 0 runs first (policy.jobs)
    n_tokens: int = 1  # estimated, input and output: its cost for the fairness between tenants
    weight: float = 1.0  # the tenant's share
    run_at: float = 0.0  # not before
    deadline_at: float | None = None  # expires if it has not ended by then
    aged_at: float | None = None  # from then on it runs before all ranks, so that nothing starves
    keep_s: float = 86_400.0  # how long the job and its result are stored after its end
    idempotency_key: str | None = None  # unique by tenant and door
    digest: bytes = b""  # of the request, if there is a key: another request with the same key is a conflict
    batch_id: str | None = None
    line: int | None = None  # in its batch, from 1
    custom_id: str | None = None
    metadata: Mapping[str, str] = {}
    is_reported: bool = False  # by webhooks, when it ends
    worker: str | None = None  # it runs already at this worker: stored as its first claim, for `lease_s`
    lease_s: float = 0.0


class Job(msgspec.Struct, frozen=True, gc=False):
    """A stored job, without its body."""

    id: str
    door: Door
    api: Api
    model: str
    state: JobState
    tenant: str | None
    created_at: float
    is_stream: bool = False
    rank: int = 4
    n_tokens: int = 1
    run_at: float = 0.0
    deadline_at: float | None = None
    keep_s: float = 86_400.0
    token: int = 0  # claims so far
    n_failures: int = 0  # attempts that failed and may be retried
    worker: str | None = None
    started_at: float | None = None  # of the latest claim
    finished_at: float | None = None
    expires_at: float | None = None  # of the record and its result; None: it has not ended
    is_cancelling: bool = False  # a cancellation of a running job, which its worker has not confirmed yet
    why: str = ""  # the reason of the last failure: a code, never a prompt
    batch_id: str | None = None
    line: int | None = None
    custom_id: str | None = None
    metadata: Mapping[str, str] = {}


class Submitted(msgspec.Struct, frozen=True):
    """is_new: False if an earlier submission had the same idempotency key; then `job` is that one. is_conflict: its request
    was another one. n_ahead: how many queued jobs of its route run before a new one, if the store counted them when it
    stored it; None: `JobStore.count_ahead` counts them.
    """

    job: Job
    is_new: bool = True
    is_conflict: bool = False
    n_ahead: int | None = None


class ClaimedJob(msgspec.Struct, frozen=True):
    """A job that this worker may run until its lease ends."""

    job: Job  # its `token` is that of this claim
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class JobResult(msgspec.Struct, frozen=True):
    """The end of a job. `body`: the whole response, or the error, in the client's dialect."""

    job_id: str
    token: int
    state: JobState  # a final one
    status_code: int = 200
    body: bytes = b""
    request_id: str = ""  # of the request that answered it, for `stayfast explain`
    upstream: str = ""
    usage: Usage | None = None
    cost_usd: float | None = None
    why: str = ""  # for a failure: a code


class Release(msgspec.Struct, frozen=True):
    """A worker gives a claimed job back to the queue. is_failure: it counts as a failed attempt."""

    job_id: str
    token: int
    run_at: float
    why: str = ""
    is_failure: bool = True


class JobEvent(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event of a job's stream. `n` counts from 0 over all claims; `epoch` is the claim's token. `data` is
    the event as sent, without an `id:` line. The last event of a stream has `is_last`.
    """

    n: int
    epoch: int
    data: bytes
    is_last: bool = False


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs to list, newest first. None matches any; `tenant` is compared only if `is_for_tenant`."""

    tenant: str | None = None
    is_for_tenant: bool = True
    states: tuple[JobState, ...] = ()
    doors: tuple[Door, ...] = ()
    batch_id: str | None = None
    after_id: str | None = None  # the page after this job
    limit: int = 20


class BatchState(Word):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in _ENDED_BATCHES


_ENDED_BATCHES = frozenset((BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED))


class BatchProblem(msgspec.Struct, frozen=True):
    """Why a batch file was refused. line: from 1; None: the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """A batch of either API. Its lines are jobs; the counts change in the transactions that end them."""

    id: str
    door: Door  # BATCH or MESSAGE_BATCH
    tenant: str | None
    endpoint: str  # /v1/chat/completions, ...
    input_file_id: str
    state: BatchState
    created_at: float
    expires_at: float  # lines that have not run by then expire
    model: str = ""  # of its first line
    metadata: Mapping[str, str] = {}
    problems: tuple[BatchProblem, ...] = ()
    n_total: int = 0
    n_inserted: int = 0  # lines that are stored as jobs so far: where validation goes on after a crash
    n_completed: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    n_expired: int = 0
    usage: Usage = Usage()
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_keep_s: float | None = None  # of its files; None: the default
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    drop_at: float | None = None  # of the record
    idempotency_key: str | None = None
    digest: bytes = b""
    token: int = 0  # claims by coordinators
    is_reported: bool = False  # by webhooks, when it ends
    key_id: str = ""  # of the stored key that created it
    routes: tuple[str, ...] | None = None  # names and patterns of the models that its key may call; None: all

    @property
    def n_ended(self) -> int:
        return self.n_completed + self.n_failed + self.n_cancelled + self.n_expired


class FileInfo(msgspec.Struct, frozen=True):
    """A stored file. `purpose`: batch, user_data, ..., batch_output."""

    id: str
    tenant: str | None
    purpose: str
    filename: str
    n_bytes: int
    created_at: float
    expires_at: float | None = None
    sha256: str = ""


class QueueDepth(msgspec.Struct, frozen=True):
    """The state of the queue by route: for metrics, estimates and alerts."""

    model: str
    n_queued: int = 0
    n_running: int = 0
    n_deferred: int = 0  # not before an instant that lies ahead
    oldest_at: float | None = None  # creation of the oldest queued job
    earliest_deadline_at: float | None = None  # of the queued jobs
    n_queued_tokens: int = 0


class Report(msgspec.Struct, frozen=True):
    """The end of a job or batch that webhooks report. Stored in the transaction that ends it, if it `is_reported`."""

    id: str  # evt_ and the id of the job or batch
    subject_id: str
    is_batch: bool
    created_at: float
    n_attempts: int = 0
    next_at: float = 0.0  # of the next attempt
    delivered: tuple[str, ...] = ()  # digests of the addresses that have confirmed it
    is_failed: bool = False  # the attempts are used up: listed until it is purged
    why: str = ""  # of the last failure
    token: int = 0  # claims by senders
