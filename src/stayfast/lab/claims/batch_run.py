"""Batches: every line once, in flat memory, through restarts, byte for byte as without them.

One gateway process with its default store (SQLite) runs the same file twice, in two empty folders: once in peace, once while
it is killed (SIGKILL) and started again, at equal parts of the batch's progress. The upstream's answer follows from the
question alone, so the files of both runs must be equal. The resident memory of the gateway is read every 50 ms, from the
upload to the download of the results; its growth is counted from the end of a small batch, so that what any batch loads
once is not counted.

The full disk is a file system of its own (`batch_disk.py`).

When wrong: the proof's kills come between two polls of the batch, not at chosen instructions; the test suite crashes the
coordinator at each of its store's calls.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import msgspec

from stayfast.lab.claims.batch_disk import measure_full_disk
from stayfast.lab.harness.batch_gateway import CLOCK, BatchGateway, batch_gateway, finish_batch
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure
from stayfast.lab.harness.processes import Processes

MAX_GROWTH_MB = 50.0
N_KILLS = 3
N_WARM_UP = 200
DELAY_S = 0.002  # of the upstream
RSS_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class BatchRunClaim:
    """n of an extent: lines. n_kills: of the second run. jobs_of_run: settings of jobs, by the run's number, 0 or 1.
    break_store: breaks what the store needs, and repairs it, before each kill.
    """

    full: Extent = Extent(50_000)
    quick: Extent = Extent(2000)
    n_kills: int = N_KILLS
    jobs_of_run: Callable[[int], Mapping[str, Any]] = lambda _: {}
    break_store: Callable[[], None] | None = None

    name = "batch"
    statement = (f"A batch of 50,000 lines runs with at most {MAX_GROWTH_MB:g} MB more memory, and a gateway that is killed "
                 "and started again in the middle delivers the same files, byte for byte: no line lost, none twice. A full "
                 "disk refuses new work with 503, and accepted lines end.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n_lines = conditions.choose(self.full, self.quick).n
        async with Processes() as processes:
            upstream = await processes.start("-m", "stayfast.lab.harness.answer_upstream", str(DELAY_S))
            runs = []
            for number, n_kills in enumerate((0, self.n_kills)):
                conditions.report_progress(f"{n_lines} lines" + (f", {n_kills} kills" if n_kills else ""))
                async with batch_gateway(processes, upstream, jobs=self.jobs_of_run(number)) as gateway:
                    runs.append(await run_batch(gateway, n_lines, n_kills, self.break_store))
            conditions.report_progress("a full disk")
            disk_figures, spoiled = await measure_full_disk(processes, conditions.choose(600, 200))
        notes = (f"quick: {n_lines} lines instead of {self.full.n}",) if conditions.is_quick else ()
        calm, killed = runs
        finding = make_finding(n_lines, calm, killed, notes)
        return msgspec.structs.replace(finding, figures=(*finding.figures, *disk_figures), spoiled=spoiled)


def make_finding(n_lines: int, calm: "BatchRun", killed: "BatchRun", notes: tuple[str, ...] = ()) -> ClaimResult:
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
    return ClaimResult(tuple(figures), (*notes, f"{killed.n_kills} kills, at {', '.join(killed.killed_at) or 'no'} lines"))


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


async def run_batch(gateway: BatchGateway, n_lines: int, n_kills: int, break_store: Callable[[], None] | None = None
                    ) -> BatchRun:
    """Run a batch to its end, with kills at equal parts of its progress."""
    await finish_batch(gateway, (await gateway.create(await gateway.upload(N_WARM_UP, "warm-up")))["id"])
    run, n_calls = BatchRun(), await gateway.n_calls()
    watch = MemoryWatch(gateway)
    watching = asyncio.get_running_loop().create_task(watch.run())
    try:
        file_id = await gateway.upload(n_lines)
        began_at = CLOCK.now()
        batch_id = (await gateway.create(file_id))["id"]
        batch = await finish_batch(gateway, batch_id, KillPlan(gateway, n_lines, n_kills, run, break_store).advance)
        run.seconds = CLOCK.now() - began_at
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

    def __init__(self, gateway: BatchGateway, n_lines: int, n_kills: int, run: BatchRun,
                 break_store: Callable[[], None] | None) -> None:
        self._break_store = break_store
        self._gateway = gateway
        self._at = [n_lines * (n + 1) // (n_kills + 1) for n in range(n_kills)]
        self._run = run
        self._started_at: float | None = None
        self._n_done = 0

    async def advance(self, batch: Mapping[str, Any]) -> None:
        """After each poll."""
        n_done = batch["request_counts"]["completed"] + batch["request_counts"]["failed"]
        if self._started_at is not None and n_done > self._n_done:
            self._run.longest_pause_s = max(self._run.longest_pause_s, CLOCK.now() - self._started_at)
            self._started_at = None
        if self._at and n_done >= self._at[0]:
            self._at.pop(0)
            if self._break_store is not None:
                await asyncio.to_thread(self._break_store)
            await self._gateway.kill()
            self._started_at, self._n_done = CLOCK.now(), n_done
            await self._gateway.start()
            self._run.n_kills += 1
            self._run.killed_at.append(str(n_done))


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
