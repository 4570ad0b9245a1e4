"""Batches: every line once, in flat memory, through restarts, byte for byte as without them.

One gateway process with its default store (SQLite) runs the same file twice, in two empty folders: once in peace, once while
it is killed (SIGKILL) and started again, at equal parts of the batch's progress. The upstream's answer follows from the
question alone, so the files of both runs must be equal. The resident memory of the gateway is read every 50 ms, from the
upload to the download of the results; its growth is counted from the end of a small batch, so that what any batch loads
once is not counted.

The full disk is a limit on the size of every file that the gateway may write (RLIMIT_FSIZE): a disk that is full for
everybody cannot be made without root, and would stop more than the gateway.

When wrong: the proof's kills come between two polls of the batch, not at chosen instructions; the test suite crashes the
coordinator at each of its store's calls.
"""

import asyncio
import http.client
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, SetUpFailed
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess, gateway_settings

MAX_GROWTH_MB = 50.0
N_KILLS = 3
N_WARM_UP = 200
DELAY_S = 0.002  # of the upstream
POLL_S = 0.1
RSS_POLL_S = 0.05
BATCH_WITHIN_S = 900.0
BOUNDARY = "stayfast-proof"
FINAL = frozenset(("completed", "failed", "expired", "cancelled"))
_CLOCK = SystemClock()
_TRANSIENT = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class BatchRunClaim:
    """n of an extent: lines. kills: restarts of the second run."""

    full: Extent = Extent(50_000)
    quick: Extent = Extent(2000)
    n_kills: int = N_KILLS

    name = "batch"
    statement = (f"A batch of 50,000 lines runs with at most {MAX_GROWTH_MB:g} MB more memory, and a gateway that is killed "
                 "and started again in the middle delivers the same files, byte for byte: no line lost, none twice.")

    async def run(self, conditions: Conditions) -> Finding:
        n_lines = conditions.choose(self.full, self.quick).n
        async with Processes() as processes:
            upstream = await processes.start("-m", "stayfast.lab.harness.echo_upstream", str(DELAY_S))
            runs = []
            for n_kills in (0, self.n_kills):
                conditions.report_progress(f"{n_lines} lines" + (f", {n_kills} kills" if n_kills else ""))
                async with batch_gateway(processes, upstream) as gateway:
                    runs.append(await run_batch(gateway, n_lines, n_kills))
        notes = (f"quick: {n_lines} lines instead of {self.full.n}",) if conditions.is_quick else ()
        calm, killed = runs
        return make_finding(n_lines, calm, killed, notes)


def make_finding(n_lines: int, calm: "BatchRun", killed: "BatchRun", notes: tuple[str, ...] = ()) -> Finding:
    """The figures of a run in peace and of one with kills."""
    figures = [
        Figure.count("lines without a result, in peace", n_lines - len(calm.custom_ids())),
        Figure.count("lines without a result, killed", n_lines - len(killed.custom_ids())),
        Figure.count("results more than one a line, killed", killed.n_results - len(killed.custom_ids())),
        Figure.count("bytes of the files that differ", n_different(calm.output + b"\0" + calm.errors,
                                                                  killed.output + b"\0" + killed.errors)),
        Figure.exact("growth of the gateway's memory, in peace", calm.growth_mb, "MB", MAX_GROWTH_MB),
        Figure.exact("growth of the gateway's memory, killed", killed.growth_mb, "MB", MAX_GROWTH_MB),
        Figure.exact("from the creation to the end, in peace", calm.seconds, "s"),
        Figure.exact("lines a second, in peace", n_lines / calm.seconds if calm.seconds else nan, "1/s"),
        Figure.exact("from the creation to the end, killed", killed.seconds, "s"),
        Figure.exact("longest time from a start to the next finished line", killed.longest_pause_s, "s"),
        Figure.count("upstream calls beyond one a line, killed", killed.n_calls - n_lines, None)]
    return Finding(tuple(figures), (*notes, f"{killed.n_kills} kills, at {', '.join(killed.killed_at) or 'no'} lines"))


@dataclass(slots=True)
class BatchRun:
    """What one run delivered."""

    output: bytes = b""
    errors: bytes = b""
    seconds: float = nan
    growth_mb: float = nan
    n_calls: int = 0
    n_kills: int = 0
    killed_at: list[str] = field(default_factory=list)
    longest_pause_s: float = 0.0

    def custom_ids(self) -> set[str]:
        """The lines that have a result."""
        return {json.loads(line)["custom_id"] for line in self.lines()}

    @property
    def n_results(self) -> int:
        return sum(1 for _ in self.lines())

    def lines(self) -> Iterator[bytes]:
        """All results."""
        yield from (line for part in (self.output, self.errors) for line in part.splitlines() if line)


def n_different(one: bytes, other: bytes) -> int:
    """How many bytes differ."""
    return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))


def batch_lines(n: int, prefix: str = "line") -> Iterator[bytes]:
    """The lines of a batch file of about 300 bytes each."""
    for number in range(n):
        yield json.dumps({"custom_id": f"{prefix}-{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": MODEL, "max_tokens": 16, "messages": [
                {"role": "system", "content": "You answer in one short sentence, without any formatting."},
                {"role": "user", "content": f"Question {prefix} {number} of {n}"}]}}).encode() + b"\n"


class BatchGateway:
    """A gateway with an own folder of jobs, which can be killed and started again at the same address."""

    def __init__(self, processes: Processes, upstream: ServerProcess, folder: Path) -> None:
        self._processes = processes
        self._upstream = upstream
        settings = gateway_settings({"echo": f"{upstream.url}/v1"})
        settings["jobs"] = {"path": str(folder)}
        self._settings = processes.write_file(settings)
        self._port = "0"
        self.server: ServerProcess | None = None

    async def start(self) -> None:
        """Start the process."""
        self.server = await self._processes.start("-m", "stayfast", "serve", "--config", self._settings,
                                                  "--port", self._port)
        self._port = self.server.url.rpartition(":")[2]

    async def kill(self) -> None:
        """End it at once."""
        assert self.server is not None
        self.server.process.send_signal(signal.SIGKILL)
        await self.server.process.wait()

    async def upload(self, n_lines: int, prefix: str = "line") -> str:
        """Upload a batch file; returns its id."""
        return str((await asyncio.to_thread(self._upload, n_lines, prefix))["id"])

    async def create(self, file_id: str) -> dict[str, Any]:
        """Create a batch."""
        assert self.server is not None
        created: dict[str, Any] = await self.server.get("/v1/batches", "POST", {
            "input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
        return created

    async def find(self, batch_id: str) -> dict[str, Any]:
        """The batch. Raises SetUpFailed."""
        assert self.server is not None
        found: dict[str, Any] = await self.server.get(f"/v1/batches/{batch_id}")
        return found

    async def read_file(self, file_id: str | None) -> bytes:
        """The contents of a file; empty without one."""
        assert self.server is not None
        return await self.server.read(f"/v1/files/{file_id}/content") if file_id is not None else b""

    async def n_calls(self) -> int:
        """Calls that the upstream has received."""
        return int(await self._upstream.get("/calls"))

    def _upload(self, n_lines: int, prefix: str) -> Any:
        assert self.server is not None
        head = (f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
                'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n').encode()
        tail = f"\r\n--{BOUNDARY}--\r\n".encode()
        n_bytes = len(head) + len(tail) + sum(map(len, batch_lines(n_lines, prefix)))
        connection = self.server.connect()
        try:
            connection.putrequest("POST", "/v1/files")
            connection.putheader("content-type", f"multipart/form-data; boundary={BOUNDARY}")
            connection.putheader("content-length", str(n_bytes))
            connection.endheaders()
            for part in grouped(head, batch_lines(n_lines, prefix), tail):
                connection.send(part)
            answer = connection.getresponse()
            content = answer.read()
        except _TRANSIENT as error:
            raise SetUpFailed(f"POST /v1/files: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise SetUpFailed(f"POST /v1/files answered {answer.status}: {content[:200].decode(errors='replace')}")
        return json.loads(content)


def grouped(head: bytes, lines: Iterator[bytes], tail: bytes) -> Iterator[bytes]:
    """Parts of about 64 KiB."""
    part = bytearray(head)
    for line in lines:
        part += line
        if len(part) > 1 << 16:
            yield bytes(part)
            part.clear()
    yield bytes(part) + tail


@asynccontextmanager
async def batch_gateway(processes: Processes, upstream: ServerProcess) -> AsyncIterator[BatchGateway]:
    """A running gateway with an empty folder."""
    folder = Path(mkdtemp(prefix="stayfast-prove-jobs-"))
    gateway = BatchGateway(processes, upstream, folder)
    try:
        await gateway.start()
        yield gateway
    finally:
        if gateway.server is not None and gateway.server.process.returncode is None:
            await gateway.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def run_batch(gateway: BatchGateway, n_lines: int, n_kills: int) -> BatchRun:
    """Run a batch to its end, with kills at equal parts of its progress."""
    await _finish(gateway, (await gateway.create(await gateway.upload(N_WARM_UP, "warm-up")))["id"])
    run, n_calls = BatchRun(), await gateway.n_calls()
    watch = MemoryWatch(gateway)
    watching = asyncio.get_running_loop().create_task(watch.run())
    try:
        file_id = await gateway.upload(n_lines)
        began_at = _CLOCK.now()
        batch_id = (await gateway.create(file_id))["id"]
        batch = await _finish(gateway, batch_id, KillPlan(n_lines, n_kills, run))
        run.seconds = _CLOCK.now() - began_at
        run.output = await gateway.read_file(batch["output_file_id"])
        run.errors = await gateway.read_file(batch["error_file_id"])
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    run.n_calls = await gateway.n_calls() - n_calls
    run.growth_mb = watch.growth_mb
    return run


class KillPlan:
    """When to kill: after equal parts of the batch's lines."""

    def __init__(self, n_lines: int, n_kills: int, run: BatchRun) -> None:
        self._at = [n_lines * (n + 1) // (n_kills + 1) for n in range(n_kills)]
        self._run = run
        self._started_at: float | None = None
        self._n_done = 0

    async def advance(self, gateway: BatchGateway, n_done: int) -> None:
        """After each poll."""
        if self._started_at is not None and n_done > self._n_done:
            self._run.longest_pause_s = max(self._run.longest_pause_s, _CLOCK.now() - self._started_at)
            self._started_at = None
        if self._at and n_done >= self._at[0]:
            self._at.pop(0)
            await gateway.kill()
            self._started_at, self._n_done = _CLOCK.now(), n_done
            await gateway.start()
            self._run.n_kills += 1
            self._run.killed_at.append(str(n_done))


async def _finish(gateway: BatchGateway, batch_id: str, plan: KillPlan | None = None) -> dict[str, Any]:
    """Wait for a batch's end. Raises SetUpFailed if it does not end, or fails."""
    give_up_at = _CLOCK.now() + BATCH_WITHIN_S
    while _CLOCK.now() < give_up_at:
        batch = await gateway.find(batch_id)
        if batch["status"] in FINAL:
            if batch["status"] != "completed":
                raise SetUpFailed(f"the batch ended as {batch['status']}: {batch['errors']}")
            return batch
        if plan is not None:
            await plan.advance(gateway, batch["request_counts"]["completed"] + batch["request_counts"]["failed"])
        await asyncio.sleep(POLL_S)
    raise SetUpFailed(f"the batch did not end within {BATCH_WITHIN_S:g} s")


class MemoryWatch:
    """The growth of a gateway's resident memory. A process that was started again is compared with the first one."""

    def __init__(self, gateway: BatchGateway) -> None:
        self._gateway = gateway
        self._first_mb = self._rss_mb()
        self.growth_mb = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.growth_mb = max(self.growth_mb, self._rss_mb() - self._first_mb)
            await asyncio.sleep(RSS_POLL_S)

    def _rss_mb(self) -> float:
        server = self._gateway.server
        try:
            n_pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) if server is not None else 0
        except OSError:
            return 0.0
        return n_pages * os.sysconf("SC_PAGE_SIZE") / 1e6
