"""Batches on a real store: a coordinator that may die at any call, a worker, and files."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stayfast.core.clock import Clock, SystemClock
from stayfast.core.jobs import Batch, BatchState, Door, FileInfo, JobFilter, JobResult, JobState
from stayfast.core.types import Usage
from stayfast.jobs.batches import BatchService
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.coordinator import BatchCoordinator
from stayfast.jobs.files import FileService
from stayfast.jobs.service import JobService
from stayfast.stores.jobs.base import FileBodies, FileWriter, JobStore
from stayfast.stores.jobs.file_bodies import DiskFileBodies
from stayfast.stores.jobs.sqlite import SqliteJobStore

MODEL = "m"
WORKER = "host:1:0"
CHAT = "/v1/chat/completions"


StateOf = Callable[[str], JobState]  # of a line's custom_id


def completes(_: str) -> JobState:
    """All lines succeed."""
    return JobState.COMPLETED


def raise_error(error: BaseException) -> None:
    """Nothing unexpected happens here."""
    raise error


class CrashError(Exception):
    """The process has died. Nothing that it does from then on has an effect."""


@dataclass
class Life:
    """Counts the calls of one process, which dies before call `dies_at`."""

    dies_at: int | None = None
    n_calls: int = 0
    writers: list[FileWriter] = field(default_factory=list)

    async def close(self) -> None:
        """What the system does with the files of a dead process, but later: until then its successor meets them."""
        for writer in self.writers:
            await writer.abort()

    def check(self) -> None:
        """Before each call."""
        self.n_calls += 1
        if self.dies_at is not None and self.n_calls >= self.dies_at:
            raise CrashError


class Mortal:
    """An object whose methods may be the last ones."""

    def __init__(self, target: object, life: Life) -> None:
        self._target = target
        self._life = life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if inspect.iscoroutinefunction(method):
            async def call(*arguments: Any, **fields: Any) -> Any:
                self._life.check()
                value = await method(*arguments, **fields)
                if name == "commit":
                    self._life.writers.remove(cast("FileWriter", self._target))
                if name != "create":
                    return value
                self._life.writers.append(value)
                return Mortal(value, self._life)

            return call

        def iterate(*arguments: Any) -> Any:
            self._life.check()
            return method(*arguments)

        return iterate


def good_line(custom_id: str, **changes: Any) -> bytes:
    """A line of a batch file."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {
        "model": MODEL, "messages": [{"role": "user", "content": custom_id}]}, **changes}).encode() + b"\n"


@dataclass
class BatchRig:
    """One store with its files. Each coordinator is a process of its own."""

    store: JobStore
    files: FileBodies
    config: JobsConfig = field(default_factory=JobsConfig)
    clock: Clock = field(default_factory=SystemClock)
    completed: list[tuple[Batch, float]] = field(default_factory=list)  # as coordinators report them

    def service(self, life: Life | None = None) -> JobService:
        """What endpoints and coordinators share; of a mortal process with `life`."""
        if life is None:
            return JobService(self.store, self.files, self.config, self.clock)
        store, files = cast("JobStore", Mortal(self.store, life)), cast("FileBodies", Mortal(self.files, life))
        return JobService(store, files, self.config, self.clock)

    def coordinator(self, life: Life | None = None, chunk_lines: int = 3) -> BatchCoordinator:
        """A coordinator."""
        service = self.service(life)
        return BatchCoordinator(lambda: service, WORKER, is_known_model=MODEL.__eq__, report=raise_error,
                                chunk_lines=chunk_lines, on_completed=lambda batch, s: self.completed.append((batch, s)))

    def batches(self, door: Door = Door.BATCH) -> BatchService:
        """The batches of clients."""
        service = self.service()
        return BatchService(service, FileService(service), door)

    async def add_file(self, *lines: bytes, purpose: str = "batch", expires_s: float = 3600.0) -> FileInfo:
        """An uploaded file."""
        files = FileService(self.service())
        upload = await files.create()
        await upload.write(b"".join(lines))
        return await files.add(upload, tenant="t", purpose=purpose, filename="in.jsonl", expires_s=expires_s)

    async def create(self, *lines: bytes) -> Batch:
        """A batch of OpenAI's."""
        batch, _ = await self.batches().create(CHAT, await self.add_file(*lines), tenant="t", digest=b"d")
        return batch

    async def find(self, batch: Batch) -> Batch:
        """A batch as it is now."""
        found = await self.store.find_batch(batch.id)
        assert found is not None
        return found

    async def run_jobs(self, n: int = 100, state_of: StateOf = completes) -> int:
        """Claim up to n jobs and end each; returns how many."""
        claimed = await self.store.claim(WORKER, {MODEL: n}, 30.0)
        jobs = [one.job for one in claimed]
        await self.store.finish([
            answer(job.id, job.token, job.custom_id or "", state_of(job.custom_id or "")) for job in jobs])
        return len(claimed)

    async def read(self, file_id: str | None) -> bytes:
        """The contents of a file; empty without one."""
        return b"".join([part async for part in self.files.read(file_id)]) if file_id is not None else b""

    async def run(self, batch: Batch, life: Life | None = None, state_of: StateOf = completes,
                  n_at_once: int = 2) -> Batch:
        """Run a batch to its end; the coordinator of `life` has a successor."""
        coordinator = self.coordinator(life)
        for _ in range(200):
            try:
                is_busy = await coordinator.step()
            except CrashError:
                assert life is not None
                coordinator = self.coordinator()
                await self.store.recover("host:")
                is_busy = True
            is_busy = bool(await self.run_jobs(n_at_once, state_of)) or is_busy
            found = await self.find(batch)
            if found.state.is_final:
                if life is not None:
                    await life.close()
                return found
            assert is_busy, found
        raise AssertionError("the batch does not end")


def answer(job_id: str, token: int, custom_id: str, state: JobState) -> JobResult:
    """The result of a line, which depends on the line alone."""
    body = json.dumps({"id": f"chatcmpl-{custom_id}", "object": "chat.completion"})
    if state is JobState.FAILED:
        body = json.dumps({"error": {"message": f"no {custom_id}", "type": "invalid_request_error"}})
    status = 200 if state is JobState.COMPLETED else 400
    return JobResult(job_id, token, state, status, body.encode(), f"{job_id}-{token}", usage=Usage(10, 5, 2))


LINES = [good_line(f"c{n}") for n in range(7)]


def fails_odd(custom_id: str) -> JobState:
    """Lines with an odd number are refused by the upstream."""
    return JobState.FAILED if custom_id[-1] in "13579" else JobState.COMPLETED


async def results_of(rig: BatchRig, batch: Batch) -> tuple[bytes, bytes]:
    """Both files of an ended batch."""
    return await rig.read(batch.output_file_id), await rig.read(batch.error_file_id)


async def check_every_death(open_rig: Callable[[], AbstractAsyncContextManager[BatchRig]]) -> None:
    """Run a batch once in peace, then once for each call of its coordinator, which dies before that call."""
    life = Life()
    calm = await _run_once(open_rig(), life)
    assert (calm[2], life.n_calls > 20) == (7, True)
    for dies_at in range(1, life.n_calls + 1):
        assert await _run_once(open_rig(), Life(dies_at)) == calm, f"died before call {dies_at}"


async def _run_once(opening: AbstractAsyncContextManager[BatchRig], life: Life) -> tuple[bytes, bytes, int, BatchState]:
    async with opening as rig:
        done = await rig.run(await rig.create(*LINES), life, state_of=fails_odd)
        jobs = await rig.store.list_jobs(JobFilter(is_for_tenant=False, limit=100))
        return *await results_of(rig, done), len(jobs), done.state


def parse_lines(data: bytes) -> Iterable[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in data.splitlines()]


@asynccontextmanager
async def batch_rig(folder: Path, **config: Any) -> AsyncIterator[BatchRig]:
    """An empty store in a folder."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    store = SqliteJobStore(folder, SystemClock(), is_inline=True, reserve_bytes=0)
    files = DiskFileBodies(folder / "files", SystemClock())
    try:
        yield BatchRig(store, files, JobsConfig(**config))
    finally:
        await store.close()
        await files.close()
