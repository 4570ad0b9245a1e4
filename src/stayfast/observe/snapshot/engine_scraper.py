"""Fetches the `/metrics` pages of self-hosted engines, off the path of requests, and keeps their figures.

Every interval (5 s by default), a tenth earlier or later, so that many engines are not read at the same moment. Rates are
over the last RATE_S at least, so that a quiet engine's are not made of one request. Growth of GPU memory is the median slope
over an hour. After MAX_FAILED failures in a row the interval is RETRY_S. A cold start is a new start time of the engine's
process, and lasts until the first page after it. Each reading is published as `EngineSignals`, for the policies of all
workers, and judged by what the engine is bound; a missing page publishes nothing, so that signals become stale. Snapshots
show stale figures, too, with their `age_s`. A page is parsed in pieces of a millisecond, between which requests are
served.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from stayfast.core.clock import Clock, Rng
from stayfast.core.engine_signals import EngineSignals
from stayfast.observe.snapshot.machine import median_slope
from stayfast.policy.engines.bound_by import Bound, BoundJudge
from stayfast.wire.engines.alias_tables import EngineKind
from stayfast.wire.engines.load_report import REPORT_PATHS, add_report
from stayfast.wire.engines.page import MetricsPage, split_page
from stayfast.wire.engines.reading import EngineReading, compare_readings, make_signals, read_page

SCRAPE_EVERY_S: Final = 5.0
JITTER: Final = 0.1
RETRY_S: Final = 60.0
MAX_FAILED: Final = 60  # five minutes: a cold start is timed to the interval
RATE_S: Final = 60.0
HOUR_S: Final = 3600.0
STALE_INTERVALS: Final = 3  # failures after which its load is unknown, as `upstreams.state.signal_board` has it
MEMORY_EVERY_S: Final = 30.0
MIN_GROWTH_S: Final = 600.0
NO_REPORT_S: Final = 600.0  # an engine without a report is asked again after it
METRICS_PATHS: Final = ("/metrics", "/prometheus/metrics")  # the second one: trtllm-serve, whose first one is JSON
Publish = Callable[[EngineSignals], Awaitable[None]]


class EnginePageSource(Protocol):
    """Where an engine's pages come from."""

    async def fetch(self, path: str) -> str | None:
        """The page; None: there is none. Never raises."""

    def close(self) -> None:
        """Close connections."""


async def publish_nothing(signals: EngineSignals) -> None:
    """For scrapers whose figures only snapshots show."""


class EngineScraper:
    """One engine. For one event loop."""

    __slots__ = ("_clock", "_cold_starts", "_count_queued", "_growth", "_interval_s", "_judge", "_kind", "_memory",
                 "_n_failed", "_no_report_until", "_path", "_publish", "_readings", "_rng", "_source")

    def __init__(self, kind: EngineKind | None, source: EnginePageSource, clock: Clock, rng: Rng, *,
                 publish: Publish = publish_nothing, count_queued: Callable[[], int] = int,
                 interval_s: float = SCRAPE_EVERY_S) -> None:
        """kind: None: recognised by the names on its page. count_queued: requests that wait in the gateway for it."""
        self._kind = kind
        self._source = source
        self._clock = clock
        self._rng = rng
        self._publish = publish
        self._count_queued = count_queued
        self._judge = BoundJudge()
        self._interval_s = interval_s
        self._path = ""  # where its page was found
        self._no_report_until = 0.0
        self._readings: deque[tuple[float, EngineReading]] = deque()
        self._memory: deque[tuple[float, float]] = deque()
        self._growth: float | None = None  # bytes a second
        self._cold_starts: deque[tuple[float, float]] = deque()  # (instant, seconds)
        self._n_failed = 0

    async def run(self) -> None:
        """Scrape until cancelled."""
        while True:
            await self.scrape()
            wait_s = RETRY_S if self._n_failed >= MAX_FAILED else self._interval_s
            await asyncio.sleep(wait_s * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0)))

    def close(self) -> None:
        self._source.close()

    async def scrape(self) -> None:
        reading = await self._read()
        if reading is None:
            self._n_failed += 1
            self._path = ""
            if self._n_failed >= STALE_INTERVALS:
                self._judge.observe(None, 0)
            return
        self._n_failed = 0
        now = self._clock.now()
        self._add(await self._with_report(reading, now), now)
        signals = self.signals()
        self._judge.observe(signals, self._count_queued())
        await self._publish(signals)

    def signals(self) -> EngineSignals:
        """Of the newest page, of which there must be one."""
        read_at, newest = self._readings[-1]
        first_at, first = self._readings[0]
        return make_signals(newest, compare_readings(first, newest, read_at - first_at), read_at)

    @property
    def bound(self) -> Bound:
        """What the engine is bound by."""
        return self._judge.bound

    async def _read(self) -> EngineReading | None:
        """The page, where it was before, or where it may be."""
        for path in (self._path,) if self._path else METRICS_PATHS:
            text = await self._source.fetch(path)
            if text is None:
                continue
            page = MetricsPage()
            for piece in split_page(text):
                page.add(piece)
                await asyncio.sleep(0)
            reading = read_page(page, self._kind)
            if reading is not None:
                self._path = path
                return reading
        return None

    async def _with_report(self, reading: EngineReading, now: float) -> EngineReading:
        """The reading with what the engine reports as JSON, if its version does."""
        path = REPORT_PATHS.get(reading.kind)
        if path is None or now < self._no_report_until:
            return reading
        report = await self._source.fetch(path)
        if report is None:
            self._no_report_until = now + NO_REPORT_S
            return reading
        return add_report(reading, report.encode())

    def _add(self, reading: EngineReading, now: float) -> None:
        readings, started_at = self._readings, reading.started_at
        last = readings[-1][1] if readings else None
        started_before = last.started_at if last is not None else None
        if started_at is not None and started_before is not None and started_at > started_before + 1.0:
            self._cold_starts.append((now, max(0.0, self._clock.wall() - started_at)))
            self._no_report_until = 0.0  # it may be a newer version
            readings.clear()
        readings.append((now, reading))
        while len(readings) > 2 and readings[1][0] <= now - RATE_S:
            readings.popleft()
        if reading.memory_bytes is not None:
            self._add_memory(reading.memory_bytes, now)

    def _add_memory(self, n_bytes: float, now: float) -> None:
        memory = self._memory
        if memory and now < memory[-1][0] + MEMORY_EVERY_S:
            return
        memory.append((now, n_bytes))
        while memory[0][0] < now - HOUR_S:
            memory.popleft()
        self._growth = median_slope(memory) if now - memory[0][0] >= MIN_GROWTH_S else None

    def figures(self, now: float) -> dict[str, float]:
        """Figures by the names of `core.snapshot.ENGINE_FIGURES`; empty: no page has been read."""
        if not self._readings:
            return {}
        first_at, first = self._readings[0]
        last_at, last = self._readings[-1]
        figures = compare_readings(first, last, last_at - first_at)
        if last.memory_bytes is not None:
            figures["gpu_memory_bytes"] = last.memory_bytes
        if self._growth is not None:
            figures["gpu_memory_growth_bytes_per_h"] = self._growth * HOUR_S
        while self._cold_starts and self._cold_starts[0][0] <= now - HOUR_S:
            self._cold_starts.popleft()
        if last.started_at is not None:
            figures["cold_starts_1h"] = float(len(self._cold_starts))
        if self._cold_starts:
            figures["cold_start_s"] = self._cold_starts[-1][1]
        figures["age_s"] = now - last_at
        return figures


class EngineScrapers:
    """All engines of this gateway, by upstream. For one event loop; only one worker of a gateway runs them."""

    __slots__ = ("_scrapers", "_tasks")

    def __init__(self) -> None:
        self._scrapers: dict[str, EngineScraper] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, scrapers: Mapping[str, EngineScraper], spawn: Callable[..., asyncio.Task[None]]) -> None:
        """Scrape these instead of the ones before, at the start and after a reload."""
        self.stop()
        self._scrapers = dict(scrapers)
        self._tasks = [spawn(scraper.run()) for scraper in scrapers.values()]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for scraper in self._scrapers.values():
            scraper.close()
        self._tasks = []

    def bounds(self) -> dict[str, str]:
        """What each engine is bound by."""
        return {name: scraper.bound.value for name, scraper in self._scrapers.items()}

    def collect(self, now: float) -> "EngineParts":
        found = {name: scraper.figures(now) for name, scraper in self._scrapers.items()}
        return EngineParts({name: figures for name, figures in found.items() if figures})


class EngineParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures by upstream; empty in workers that do not scrape."""

    figures: dict[str, dict[str, float]] = {}


def merge_engines(parts: Iterable[EngineParts]) -> dict[str, dict[str, float]]:
    """The freshest figures of each upstream."""
    freshest: dict[str, dict[str, float]] = {}
    for part in parts:
        for name, figures in part.figures.items():
            if name not in freshest or figures["age_s"] < freshest[name]["age_s"]:
                freshest[name] = figures
    return freshest
