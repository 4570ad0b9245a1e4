"""Runs batches: validates the file, stores its lines as jobs, and writes the files of results.

Problem: a batch has 50,000 lines and runs for hours; any process may die at any instant. Rule: every step can be repeated.
What a coordinator has done is in the store alone:

    VALIDATING, n_total = 0            check the file, which runs nothing; then store n_total
    VALIDATING or CANCELLING,          store lines n_inserted.. as jobs, in chunks; a line that is stored already is not
        n_inserted < n_total           stored again; then store n_inserted
    IN_PROGRESS                        nothing: workers run the jobs, and the store counts those that ended
    FINALIZING, or CANCELLING          write the files of results under ids that follow from the batch's id, then store them
        with all lines ended           and the final state in one step

A coordinator holds a batch by a lease; the writes of one that lost it are refused. Memory: a chunk of lines, and a digest of
each custom_id while the file is checked. The event loop is given up after every few lines, so requests do not wait.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b

import msgspec

from stayfast.core.constants import KEY_HEADER
from stayfast.core.jobs import Batch, BatchProblem, BatchState, Door, FileInfo, Job, JobResult, NewJob
from stayfast.jobs.batches import BATCHES, batch_too_large
from stayfast.jobs.service import POLL_S, WORK, JobService, sleep_until_notified
from stayfast.jobs.terms import JobRanking
from stayfast.policy.keys.scopes import matches_pattern
from stayfast.stores.base import StoreUnavailable
from stayfast.stores.jobs.base import FileWriter
from stayfast.wire.jobs.batches import encode_output_line, end_state, is_output
from stayfast.wire.jobs.files import BATCH_OUTPUT, MESSAGE_BATCH
from stayfast.wire.jobs.lines import BatchLine, LineChecker, LineSplitter, api_of, read_line
from stayfast.wire.jobs.message_batches import KEEP_S as KEEP_RESULTS_S
from stayfast.wire.jobs.message_batches import encode_result_line

CHUNK = 500  # lines in one transaction
CHUNK_BYTES = 4 << 20
BUFFER_BYTES = 256 * 1024
TURN_LINES = 32  # between two turns of the event loop
RETRY_S = 5.0  # after a store that was unavailable
MAX_LINE_BYTES = 32 << 20
_END_INSTANTS = {BatchState.COMPLETED: "completed_at", BatchState.CANCELLED: "cancelled_at",
                 BatchState.EXPIRED: "expired_at", BatchState.FAILED: "failed_at"}


class SupersededError(Exception):
    """Another coordinator holds the batch."""


class BatchCoordinator:
    """One loop's. `worker`: the id of its claims."""

    def __init__(self, get_service: Callable[[], JobService], worker: str, *, is_known_model: Callable[[str], bool],
                 report: Callable[[BaseException], None], max_line_bytes: int = MAX_LINE_BYTES,
                 chunk_lines: int = CHUNK, on_completed: Callable[[Batch, float], None] | None = None) -> None:
        """get_service: with the settings that are in force. report: gets unexpected exceptions. on_completed: gets each
        completed batch with the seconds since its creation.
        """
        self._get_service = get_service
        self._store = get_service().store
        self._worker = worker
        self._is_known_model = is_known_model
        self._report = report
        self._max_line_bytes = max_line_bytes
        self._chunk_lines = chunk_lines
        self._on_completed = on_completed

    @property
    def _service(self) -> JobService:
        return self._get_service()

    @property
    def _lease_s(self) -> float:
        return self._get_service().config.lease_s

    async def run(self) -> None:
        """Run batches until cancelled. A batch that fails unexpectedly is tried again after its lease."""
        while True:
            (outcome,) = await asyncio.gather(self.step(), return_exceptions=True)
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, StoreUnavailable):
                    self._report(outcome)  # one batch must not stop the others; it is tried again after its lease
                await asyncio.sleep(RETRY_S)
            elif not outcome:
                await sleep_until_notified(self._store, BATCHES, POLL_S)

    async def step(self) -> bool:
        """Advance one batch as far as it goes now; False if none has work. Raises StoreUnavailable: then the batch goes on
        once its lease has ended.
        """
        batch = await self._store.claim_batch(self._worker, self._lease_s)
        if batch is None:
            return False
        with suppress(SupersededError):  # then another coordinator holds the batch
            await self._advance(batch)
        return True

    async def _advance(self, batch: Batch) -> None:
        is_cancelling = batch.state is BatchState.CANCELLING  # lines that are stored then are cancelled at once
        if batch.state is not BatchState.VALIDATING and not (is_cancelling and batch.n_inserted < batch.n_total):
            await self._finalize(batch)
            return
        try:
            if not batch.n_total:
                batch = await self._validate(batch)
            if not batch.state.is_final:
                await self._insert(batch)
        except KeyError:
            await self._fail_without_input(batch)

    async def _validate(self, batch: Batch) -> Batch:
        """Check the whole file; the batch then has `n_total`, or is FAILED."""
        config = self._service.config
        checker = LineChecker(batch.endpoint, partial(self._may_call, batch), max_lines=config.max_batch_lines,
                              max_line_bytes=self._max_line_bytes)
        lease = BatchLease(self, batch)
        async for n, line in self._read_lines(batch.input_file_id):
            checker.check(n, line)
            if checker.is_hopeless:
                break
            await lease.turn()
        checker.close()
        problems = tuple(checker.problems) or await self._find_lack_of_room(batch, checker.n_lines)
        if problems:
            return await self._end(msgspec.structs.replace(batch, problems=problems), BatchState.FAILED)
        return await self.save(msgspec.structs.replace(batch, n_total=checker.n_lines, model=checker.model))

    def _may_call(self, batch: Batch, model: str) -> bool:
        """A model that the batch's key may not call counts as unknown."""
        return self._is_known_model(model) and (batch.routes is None or any(
            matches_pattern(pattern, model) for pattern in batch.routes))

    async def _find_lack_of_room(self, batch: Batch, n_lines: int) -> tuple[BatchProblem, ...]:
        maximum = self._service.config.max_queued
        if n_lines > maximum:
            error = batch_too_large(n_lines, maximum)
            return (BatchProblem(error.code, error.message),)
        n_unfinished = await self._store.count_unfinished(batch.tenant)
        if n_unfinished + n_lines > maximum:
            return (BatchProblem("too_many_jobs", f"This key has {n_unfinished} unfinished requests, and may have {maximum} "
                                 "with this batch."),)
        return ()

    async def _insert(self, batch: Batch) -> None:
        """Store the lines that are not stored yet; workers run them at once."""
        n_skipped, lease = 0, BatchLease(self, batch)
        chunk: list[BatchLine] = []
        n_bytes = 0
        async for n, raw in self._read_lines(batch.input_file_id):
            if n_skipped < batch.n_inserted and not chunk:
                n_skipped += 1
                continue
            chunk.append(read_line(n, raw))
            n_bytes += len(raw)
            await lease.turn()
            if len(chunk) >= self._chunk_lines or n_bytes >= CHUNK_BYTES:
                batch = lease.batch = await self._store_chunk(batch, chunk)
                n_skipped += len(chunk)
                chunk, n_bytes = [], 0
        if chunk:
            batch = await self._store_chunk(batch, chunk)
        now = self._service.clock.wall()
        await self.save(msgspec.structs.replace(batch, state=BatchState.IN_PROGRESS, n_inserted=batch.n_total,
                                                in_progress_at=batch.in_progress_at or now), is_last=True)
        await self._store.notify(BATCHES)

    async def _store_chunk(self, batch: Batch, chunk: list[BatchLine]) -> Batch:
        now = self._service.clock.wall()
        get_terms = self._service.terms.terms_of
        terms = {model: get_terms(batch.tenant, model, now, deadline_at=batch.expires_at, is_batch=True)
                 for model in {line.model for line in chunk}}
        # Lines are read when the last one has ended, at most a day after the first one; a day is the margin.
        keep_s = max(0.0, batch.expires_at - now) + max(self._service.config.keep_s, 86_400.0)
        await self._store.submit([_job_of(batch, line, terms[line.model], keep_s) for line in chunk])
        await self._store.notify(WORK)
        return await self.save(msgspec.structs.replace(batch, n_inserted=batch.n_inserted + len(chunk),
                                                       in_progress_at=batch.in_progress_at or now))

    async def _fail_without_input(self, batch: Batch) -> None:
        """The input file is gone: a batch without lines fails, another one is cancelled."""
        problem = BatchProblem("file_not_found", "The input file was deleted or has expired.", None, "input_file_id")
        batch = msgspec.structs.replace(batch, problems=(problem,))
        if not batch.n_inserted:
            await self._end(batch, BatchState.FAILED)
            return
        await self.save(msgspec.structs.replace(batch, n_total=batch.n_inserted), is_last=True)
        await self._store.cancel_batch(batch.id)

    async def _finalize(self, batch: Batch) -> None:
        """Write the files of results, in the order of the lines."""
        now = self._service.clock.wall()
        batch = msgspec.structs.replace(batch, finalizing_at=batch.finalizing_at or now)
        info = await self._store.find_file(batch.input_file_id)
        writer = ResultsWriter(self._service, batch, info.sha256 if info is not None else batch.id)
        lease = BatchLease(self, batch)
        try:
            async for job, result in self._store.batch_results(batch.id):
                await writer.write(job, result)
                await lease.turn()
            await self.save(batch)  # one that lost its lease changes no file
            output_id, error_id = await writer.commit()
        finally:
            await writer.close()
        await self._end(msgspec.structs.replace(batch, output_file_id=output_id, error_file_id=error_id), end_state(batch))

    async def _end(self, batch: Batch, state: BatchState) -> Batch:
        now = self._service.clock.wall()
        fields = {_END_INSTANTS[state]: now}
        if state is BatchState.CANCELLED and batch.cancelling_at is None:
            fields["cancelling_at"] = now
        if batch.drop_at is None:
            fields["drop_at"] = now + self._service.config.keep_files_s
        ended = await self.save(msgspec.structs.replace(batch, state=state, **fields), is_last=True)
        if state is BatchState.COMPLETED and self._on_completed is not None:
            self._on_completed(ended, max(0.0, now - ended.created_at))
        return ended

    async def save(self, batch: Batch, *, is_last: bool = False) -> Batch:
        """Store the progress, and extend the lease or give it up. Raises SupersededError."""
        if not await self._store.update_batch(batch, lease_s=None if is_last else self._lease_s):
            raise SupersededError
        return batch

    @property
    def turn_s(self) -> float:
        """The time after which a lease is extended."""
        return self._lease_s / 3

    def now(self) -> float:
        """Monotonic seconds."""
        return self._service.clock.now()

    async def _read_lines(self, file_id: str) -> AsyncIterator[tuple[int, bytes]]:
        """The lines of a file that are not blank. Raises KeyError if it is gone."""
        splitter = LineSplitter(self._max_line_bytes)
        async for part in self._service.files.read(file_id):
            for numbered in splitter.feed(part):
                yield numbered
        for numbered in splitter.close():
            yield numbered


class BatchLease:
    """The lease of a batch during a long step."""

    def __init__(self, coordinator: BatchCoordinator, batch: Batch) -> None:
        self.batch = batch
        self._coordinator = coordinator
        self._extended_at = coordinator.now()
        self._n = 0

    async def turn(self) -> None:
        """After each line: give up the event loop now and then, and extend the lease when it is due."""
        self._n += 1
        if self._n % TURN_LINES:
            return
        await asyncio.sleep(0)
        now = self._coordinator.now()
        if now - self._extended_at > self._coordinator.turn_s:
            self._extended_at = now
            await self._coordinator.save(self.batch)


class ResultsWriter:
    """Writes the files of one batch: output and errors apart for OpenAI's, one for Anthropic's."""

    def __init__(self, service: JobService, batch: Batch, input_sha256: str) -> None:
        self._service = service
        self._batch = batch
        self._input_sha256 = input_sha256
        is_message_batch = batch.door is Door.MESSAGE_BATCH
        self._encode = self._encode_result if is_message_batch else self._encode_line
        self._output = _ResultsFile(service, batch, "output", is_always=is_message_batch)
        self._errors = self._output if is_message_batch else _ResultsFile(service, batch, "errors")

    async def write(self, job: Job, result: JobResult | None) -> None:
        """Add a line."""
        await (self._output if is_output(job) else self._errors).write(self._encode(job, result))

    async def commit(self) -> tuple[str | None, str | None]:
        """Make the files durable; returns their ids: None for one without lines."""
        output_id = await self._output.commit()
        return output_id, None if self._errors is self._output else await self._errors.commit()

    async def close(self) -> None:
        """Remove what is not durable."""
        await self._output.close()
        await self._errors.close()

    def _encode_line(self, job: Job, result: JobResult | None) -> bytes:
        return encode_output_line(job, result, self._input_sha256)

    @staticmethod
    def _encode_result(job: Job, result: JobResult | None) -> bytes:
        return encode_result_line(job, result)


class _ResultsFile:
    """One file of results, created at its first line."""

    def __init__(self, service: JobService, batch: Batch, kind: str, *, is_always: bool = False) -> None:
        self._service = service
        self._batch = batch
        self._kind = kind
        self._is_always = is_always
        self._writer: FileWriter | None = None
        self._buffer = bytearray()
        self.id = f"file-{blake2b(f'{batch.id}:{kind}'.encode(), digest_size=16).hexdigest()}"

    async def write(self, line: bytes) -> None:
        if self._writer is None:
            self._writer = await self._service.files.create(self.id)
        self._buffer += line
        if len(self._buffer) >= BUFFER_BYTES:
            await self._flush(self._writer)

    async def commit(self) -> str | None:
        if self._writer is None and self._is_always:
            self._writer = await self._service.files.create(self.id)
        if self._writer is None:
            return None
        await self._flush(self._writer)
        n_bytes, sha256 = await self._writer.commit()
        self._writer = None
        if await self._service.store.find_file(self.id) is None:  # a coordinator that died may have added it
            await self._service.store.add_file(self._info(n_bytes, sha256))
        return self.id

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.abort()

    async def _flush(self, writer: FileWriter) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        await writer.write(data)

    def _info(self, n_bytes: int, sha256: str) -> FileInfo:
        batch, now = self._batch, self._service.clock.wall()
        is_message_batch = batch.door is Door.MESSAGE_BATCH
        expires_at = batch.created_at + KEEP_RESULTS_S if is_message_batch else now + (
            batch.output_keep_s or self._service.config.keep_files_s)
        return FileInfo(self.id, batch.tenant, MESSAGE_BATCH if is_message_batch else BATCH_OUTPUT,
                        f"{batch.id}_{self._kind}.jsonl", n_bytes, now, expires_at, sha256)


def _job_of(batch: Batch, line: BatchLine, terms: JobRanking, keep_s: float) -> NewJob:
    return NewJob(
        id=f"job_{batch.id.partition('_')[2]}_{line.n}", door=batch.door, api=api_of(batch.endpoint), model=line.model,
        body=line.body, tenant=batch.tenant,
        headers=((KEY_HEADER, batch.key_id),) if batch.key_id else (), rank=terms.rank, n_tokens=line.n_tokens,
        weight=terms.weight, run_at=terms.run_at, deadline_at=batch.expires_at,
        aged_at=terms.aged_at, keep_s=keep_s, batch_id=batch.id,
        line=line.n, custom_id=line.custom_id)
