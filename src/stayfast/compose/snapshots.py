"""Snapshots and frames of one gateway: what each worker contributes, and what worker 0 makes of it for all.

Worker 0 collects the closed slots of all workers every 5 s, and makes snapshots and frames when they are wanted; the other
workers fetch them from it. Nothing here is on the path of a request, and no step holds the loop for long.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from math import inf
from typing import Any

import msgspec

from stayfast import __version__
from stayfast.compose.current import CurrentSystem
from stayfast.compose.prices import with_price_ages
from stayfast.compose.routes import models_requested
from stayfast.compose.snapshot_ring import RingHost, open_ring
from stayfast.compose.snapshot_source import SnapshotQuestion, SnapshotSource
from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed
from stayfast.core.snapshot import LiveFinding, LiveFrame, Snapshot, TrafficRow
from stayfast.observe.snapshot.builder import cache_rows, job_rows, sums_with_open, upstream_rows
from stayfast.observe.snapshot.frames import (
    MAX_FINDINGS,
    Span,
    encode_frame_json,
    live_routes,
    live_upstreams,
    round_figures,
    shorten,
)
from stayfast.observe.snapshot.job_endings import complete_jobs
from stayfast.observe.snapshot.parts import NOTHING, SeriesKey, TrafficPart, merge_shown
from stayfast.observe.snapshot.probes import merge_probes, sum_machines
from stayfast.observe.snapshot.prompt_versions import merge_versions
from stayfast.observe.snapshot.reported import merge_reported
from stayfast.observe.snapshot.ring import SnapshotRing
from stayfast.observe.snapshot.rows import rows_in_steps
from stayfast.observe.snapshot.traffic import SLOT_S, ClosedSlot
from stayfast.observe.snapshot.windows import TrafficWindows, merge_slots
from stayfast.observe.snapshot.worker_part import (
    WorkerPart,
    merge_live,
    merge_upstreams,
)
from stayfast.policy.findings.diagnose import diagnose, shown
from stayfast.server.snapshot.live_feed import EncodedFrame, LiveFeed
from stayfast.workers.channels import WorkerPeers

COLLECT_DELAY_S = 0.25  # after the end of a slot: facts arrive up to 0.1 s late
FRAME_DELAY_S, FETCH_DELAY_S = 0.02, 0.12  # after each second: when worker 0 makes a frame, when the others fetch it
MAX_HISTORY_S = 3600.0
MINUTE_S = 60.0
FINDINGS_EVERY_S = 5.0
_LATE_S = 1.0


class SnapshotLink:
    """Messages about snapshots between workers."""

    def __init__(self, peers: WorkerPeers, wrap: Callable[[bytes], bytes]) -> None:
        """wrap: puts a message into the form of all messages between workers."""
        self._peers = peers
        self._wrap = wrap
        self.worker = peers.n

    async def query_each(self, question: Callable[[int], SnapshotQuestion]) -> dict[int, bytes | None]:
        """The answers of all other workers; None: there was none in time."""
        return await self._peers.query_each(lambda worker: self._wrap(msgspec.msgpack.encode(question(worker))))

    async def query_first(self, question: SnapshotQuestion) -> bytes | None:
        """The answer of worker 0."""
        return await self._peers.query_one(0, self._wrap(msgspec.msgpack.encode(question)))


class _Collected:
    """The answers of all workers."""

    __slots__ = ("live", "n_silent", "parts", "upstreams")

    def __init__(self, parts: list[WorkerPart], n_silent: int) -> None:
        self.parts = parts
        self.n_silent = n_silent
        self.live = merge_live(parts)
        self.upstreams = merge_upstreams(parts)


class LiveFindings:
    """What the doctor finds, every FINDINGS_EVERY_S while there are viewers."""

    def __init__(self) -> None:
        self._renewed_at = -inf
        self._since: dict[tuple[str, str], float] = {}  # by id and place: when it was first found, of the current ones
        self.loudest: tuple[LiveFinding, ...] = ()

    def is_due(self, now: float) -> bool:
        return now - self._renewed_at >= FINDINGS_EVERY_S

    def renew(self, snapshot: Snapshot, now: float) -> None:
        self._renewed_at = now
        found = [(finding, (finding.id, str(finding.where))) for finding in shown(diagnose(snapshot))]
        self._since = {place: self._since.get(place, finding.since or snapshot.at) for finding, place in found}
        self.loudest = tuple(LiveFinding(finding.id, finding.severity, place[1], shorten(finding.summary),
                                         self._since[place]) for finding, place in found[:MAX_FINDINGS])


class SnapshotCollector:
    """Worker 0's view of all workers. Belongs to one loop."""

    def __init__(self, source: SnapshotSource, link: SnapshotLink, current: CurrentSystem, clock: Clock, *, gateway: str,
                 read_caches: Callable[[], Awaitable[bytes]], ring: RingHost) -> None:
        self._source = source
        self._ring = ring
        self._link = link
        self._current = current
        self._clock = clock
        self._gateway = gateway
        self._read_caches = read_caches
        self._windows = TrafficWindows()
        self._since: dict[int, int] = {}  # by worker: number of its last slot here
        self._lock = asyncio.Lock()
        self._started_at = clock.now()
        self._history: deque[tuple[float, bytes]] = deque(maxlen=int(MAX_HISTORY_S / SLOT_S))
        self._frame = EncodedFrame(0, b"")
        self._frame_second = -inf
        self._slot = int(clock.now() // SLOT_S)  # the open one, at the last collection
        self._findings = LiveFindings()

    async def run(self) -> None:
        """Collect every slot, until cancelled."""
        self._ring.open(self._current.settings())
        while True:
            now = self._clock.now()
            await asyncio.sleep((now // SLOT_S + 1.0) * SLOT_S + COLLECT_DELAY_S - now)
            async with self._lock:
                collected = await self._collect()
            await self._ring.write(collected.upstreams, self.snapshot)

    async def frame(self) -> EncodedFrame:
        """The frame of this second, made once."""
        async with self._lock:
            second = self._clock.now() // 1.0
            if second != self._frame_second:
                if self._findings.is_due(second):
                    snapshot = await self._build(await self._collect(is_whole=True))
                    await asyncio.to_thread(self._findings.renew, snapshot, second)
                collected = await self._collect()
                self._frame_second = second
                self._frame = EncodedFrame(self._frame.n + 1, encode_frame_json(self._make_frame(
                    collected, self._frame.n + 1, self._last_minute(collected))))
            return self._frame

    async def snapshot(self) -> Snapshot:
        async with self._lock:
            return await self._build(await self._collect(is_whole=True))

    def history(self, seconds: float) -> list[bytes]:
        """The frames of the last `seconds`, one for each slot, as JSON."""
        since = self._clock.now() - seconds
        return [frame for at, frame in self._history if at > since]

    async def _collect(self, *, is_whole: bool = False) -> _Collected:
        """Fetch what is new, and bring the windows up to date."""
        parts, n_silent = await self._fetch(is_whole=is_whole)
        slots = merge_slots(slot for part in parts for slot in part.slots)
        for part in parts:
            if part.slots:
                self._since[part.worker] = part.slots[-1].number
        await run_in_steps(self._windows.add_in_steps(slots))
        open_slot = int(self._clock.now() // SLOT_S)
        await run_in_steps(self._windows.advance_in_steps(open_slot))
        collected = _Collected(parts, n_silent)
        if open_slot > self._slot:
            self._remember(collected, {slot.number: slot for slot in slots}, open_slot)
        return collected

    async def _fetch(self, *, is_whole: bool) -> tuple[list[WorkerPart], int]:
        """The parts of all workers, and how many of them are silent."""
        def question(worker: int) -> SnapshotQuestion:
            return SnapshotQuestion("part", self._since.get(worker, -1), is_whole)

        answers = await self._link.query_each(question)
        parts = []
        for answer in answers.values():
            part = decode_part(answer)
            if part is not None:
                parts.append(part)
            await asyncio.sleep(0)
        parts.append(self._source.part(question(self._link.worker)))
        return parts, 1 + len(answers) - len(parts)

    def _remember(self, collected: _Collected, slots: Mapping[int, ClosedSlot], open_slot: int) -> None:
        """Add the frames of the slots that have closed since the last collection to the history."""
        now, wall = self._clock.now(), self._clock.wall()
        for number in range(max(self._slot, open_slot - 12), open_slot):
            parts = {(route, upstream): part for route, upstream, part in slots[number].series} if number in slots else {}
            span = Span(SLOT_S, parts, {key: part.ttft_s for key, part in parts.items()},
                        {key: part.n for key, part in parts.items()}, SLOT_S)
            ended_at = (number + 1) * SLOT_S
            frame = self._make_frame(collected, self._frame.n, span, at=wall - now + ended_at)
            self._history.append((ended_at, encode_frame_json(frame)))
            self._ring.note(frame.at, slots.get(number))
        self._slot = open_slot

    def _last_minute(self, collected: _Collected) -> Span:
        parts: dict[SeriesKey, TrafficPart] = {
            key: windows.sums[0] for key, windows in self._windows.series.items() if windows.sums[0] != NOTHING}
        for key, part in collected.live.open.items():
            parts[key] = merge_shown([parts[key], part]) if key in parts else part
        seconds = min(MINUTE_S, max(1.0, self._clock.now() - self._started_at))
        return Span(seconds, parts, collected.live.heat, collected.live.n_tick)

    def _make_frame(self, collected: _Collected, n: int, span: Span, at: float | None = None) -> LiveFrame:
        now = self._clock.now()
        machines = sum_machines([part.probes for part in collected.parts if part.probes is not None])
        jobs = job_rows(self._current.read_job_gauges())
        return LiveFrame(
            self._clock.wall() if at is None else at, n, self._gateway, __version__,
            n_workers=len(collected.parts) + collected.n_silent, n_silent_workers=collected.n_silent,
            uptime_s=now - self._started_at, is_draining=any(part.is_draining for part in collected.parts),
            loop_lag_p99_s=machines.loop_lag_s.p99 or 0.0, cpu_ratio=machines.cpu_ratio, rss_bytes=machines.rss_bytes,
            jobs_queued=sum(job.queued for job in jobs), jobs_running=sum(job.running for job in jobs),
            routes=tuple(live_routes(span, self._current.first_token_promise)),
            upstreams=tuple(live_upstreams(span, collected.upstreams, machines.quota_left, machines.bounds,
                                           machines.engines)),
            findings=self._findings.loudest)

    async def _build(self, collected: _Collected) -> Snapshot:
        settings, wall = self._current.settings(), self._clock.wall()
        sums = sums_with_open(self._windows, collected.live.open)
        traffic: list[TrafficRow] = []
        await run_in_steps(rows_in_steps(sums.items(), traffic))
        kinds = {name: (upstream.kind, tuple(models_requested(settings, name)))
                 for name, upstream in settings.upstreams.items()} if settings is not None else {}
        modes = {name: route.cache.mode for name, route in settings.routes.items()
                 if route.cache.mode != "off"} if settings is not None else {}
        caches = msgspec.json.decode(await self._read_caches())["data"] if modes else []
        effective = self._current.effective()
        written = effective.read() if effective is not None else None
        probed = merge_probes([part.probes for part in collected.parts if part.probes is not None],
                              upstream_rows(collected.upstreams, sums, kinds))
        return Snapshot(
            wall, self._gateway, __version__, n_workers=len(collected.parts) + collected.n_silent,
            n_silent_workers=collected.n_silent, started_at=wall - self._clock.now() + self._started_at,
            traffic=tuple(traffic), prompts=probed.prompts, upstreams=with_price_ages(probed.upstreams, settings, wall),
            machines=probed.machines, stores=probed.stores,
            tenants=probed.tenants, caches=cache_rows(caches, sums, modes),
            jobs=complete_jobs(job_rows(self._current.read_job_gauges()),
                               [part.probes.jobs for part in collected.parts if part.probes is not None]),
            n_waiting=sum(part.n_waiting for part in collected.parts),
            fleet=tuple(row for part in collected.parts for row in part.fleet),
            prompt_versions=merge_versions((part.versions for part in collected.parts), wall),
            reported=merge_reported(part.reported for part in collected.parts),
            settings=written.settings if written is not None else {}, sources=written.sources if written is not None else {})


class Snapshots:
    """The `server.backend.SnapshotService` of one worker. Belongs to one loop."""

    def __init__(self, source: SnapshotSource, collector: SnapshotCollector | None, link: SnapshotLink,
                 current: CurrentSystem, clock: Clock) -> None:
        """collector: None: worker 0 has it."""
        self._current = current
        self._source = source
        self._collector = collector
        self._link = link
        self.feed = LiveFeed(self._fetch_frame, clock, delay_s=FRAME_DELAY_S if collector is not None else FETCH_DELAY_S)

    def start(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> asyncio.Task[None] | None:
        """Collect until the returned task is cancelled. None: another worker does."""
        return spawn(self._collector.run()) if self._collector is not None else None

    async def snapshot(self) -> bytes:
        """The whole snapshot as JSON. Raises Shed (503) if worker 0 does not answer."""
        return await self._answer_or_forward(SnapshotQuestion("snapshot"))

    async def snapshot_at(self, at: float) -> bytes | None:
        """The last stored snapshot up to `at`, as JSON. Each worker reads the files. Raises Rejected (404), OSError."""
        ring = self._require_ring()
        found = await asyncio.to_thread(ring.snapshot_at, at)
        return await encode_snapshot(found) if found is not None else None

    async def list_stored(self) -> bytes:
        """The times of stored snapshots, as JSON. Raises Rejected (404), OSError."""
        return msgspec.json.encode(await asyncio.to_thread(self._require_ring().summary))

    def _require_ring(self) -> SnapshotRing:
        ring = open_ring(self._current.settings())
        if ring is None:
            raise Rejected("This gateway stores no snapshots. Set snapshots.path to a folder of its own, and restart it.",
                           status=404, code="snapshot_not_found", param="at")
        return ring

    async def take(self) -> Snapshot | None:
        """The same as an object. None: worker 0 makes it."""
        return await self._collector.snapshot() if self._collector is not None else None

    async def history(self, seconds: float) -> bytes:
        """Frames of the last `seconds` as JSON. Raises Shed (503)."""
        return await self._answer_or_forward(SnapshotQuestion("history", seconds=seconds))

    async def answer(self, message: bytes) -> bytes:
        """The answer to another worker. It must not raise."""
        question = msgspec.msgpack.decode(message, type=SnapshotQuestion)
        if question.what == "part":
            return msgspec.msgpack.encode(self._source.part(question))
        return await self._answer(question, self._collector) if self._collector is not None else b""

    async def _answer_or_forward(self, question: SnapshotQuestion) -> bytes:
        if self._collector is not None:
            return await self._answer(question, self._collector)
        answer = await self._link.query_first(question)
        if not answer:
            raise Shed("Worker 0, which collects the figures of all workers, does not answer. It may be restarting: try "
                       "again.", code="snapshot_unavailable", retry_after_s=_LATE_S)
        return answer

    async def _answer(self, question: SnapshotQuestion, collector: SnapshotCollector) -> bytes:
        match question.what:
            case "frame":
                return msgspec.msgpack.encode(await collector.frame())
            case "history":
                return await asyncio.to_thread(lambda: b'{"frames":[%b]}' % b",".join(collector.history(question.seconds)))
            case _:
                return await encode_snapshot(await collector.snapshot())

    async def _fetch_frame(self) -> EncodedFrame | None:
        if self._collector is not None:
            return await self._collector.frame()
        answer = await self._link.query_first(SnapshotQuestion("frame"))
        return msgspec.msgpack.decode(answer, type=EncodedFrame) if answer else None


def decode_part(answer: bytes | None) -> WorkerPart | None:
    """None: the worker was silent, or its version is another one."""
    if not answer:
        return None
    try:
        return msgspec.msgpack.decode(answer, type=WorkerPart)
    except msgspec.DecodeError:
        return None


def make_snapshots(gateway: str, source: SnapshotSource, current: CurrentSystem, peers: WorkerPeers, clock: Clock, *,
                   encode: Callable[[bytes], bytes], read_caches: Callable[[], Awaitable[bytes]],
                   warn: Callable[[str], None]) -> Snapshots:
    """The snapshots of one worker. gateway: its id. encode: wraps a message for another worker. warn: gets the cause if
    snapshots cannot be stored.
    """
    link = SnapshotLink(peers, encode)
    collector = SnapshotCollector(source, link, current, clock, gateway=gateway,
                                  read_caches=read_caches, ring=RingHost(warn)) if peers.n == 0 else None
    return Snapshots(source, collector, link, current, clock)


async def encode_snapshot(snapshot: Snapshot) -> bytes:
    """As JSON, with figures of 3 significant digits; in a thread, as a large one takes 20 ms."""
    return await asyncio.to_thread(lambda: msgspec.json.encode(round_figures(msgspec.to_builtins(snapshot))))


async def run_in_steps(work: Iterator[None] | Iterable[None]) -> None:
    """Run all steps, with a turn of the loop between them."""
    for _ in work:
        await asyncio.sleep(0)
