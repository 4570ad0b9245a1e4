"""The signals of self-hosted engines are what their pages show, in every version, and unknown where they show nothing.

Two pages of each engine and version (`lab.engine_pages`) are read as the gateway reads them; every field of the signals is
compared with what the pages show, also those that must be unknown. Then each figure is taken away: the lines of its names
are left out, and it must be unknown, never 0. At last the production scraper and publisher run with three workers over real
sockets: each worker's board must have the reading, from one fetch of each page, and no worker may show it after three
intervals.

When wrong: only the pages of vLLM 0.32 and llama.cpp b11549 are recorded. The others are written from documentation and
public sources, so a name that an engine spells otherwise than its documents is not found here.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from stayfast.compose.engine_metrics import SignalPublisher
from stayfast.core.clock import SystemClock
from stayfast.core.engine_signals import EngineSignals
from stayfast.lab.engine_pages import SECONDS, RecordedPage, recorded_pages
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure
from stayfast.observe.snapshot.engine_scraper import EngineScraper
from stayfast.upstreams.state.signal_board import STALE_INTERVALS, SignalBoard
from stayfast.wire.engines.alias_tables import TABLES, AliasTable
from stayfast.wire.engines.load_report import REPORT_PATHS, add_report
from stayfast.wire.engines.page import MetricsPage
from stayfast.wire.engines.reading import EngineReading, compare_readings, make_signals, read_page
from stayfast.workers.channels import WorkerPeers

N_WORKERS: Final = 3
INTERVAL_S: Final = 5.0
FIELDS: Final = tuple(name for name in EngineSignals.__struct_fields__ if name != "read_at")
_CLOSE: Final = 1e-9
_FEEDS: Final[Mapping[str, tuple[str, ...]]] = {  # of each signal, the figures in the tables that it may come from
    "running": ("running",), "waiting": ("waiting",), "max_running": ("max_running",), "block_tokens": ("block_tokens",),
    "kv_used_ratio": ("kv_used_ratio", "kv_used_blocks"), "kv_tokens": ("kv_tokens", "kv_blocks"),
    "prefix_hit_ratio": ("kv_hit_ratio", "n_prefix_hits", "n_cached_tokens", "n_block_hits"),
    "preemptions_per_s": ("n_preempted",), "spec_accepted_ratio": ("spec_accepted_ratio", "n_accepted"),
    "spec_accepted_length": ("spec_accepted_length", "n_drafts", "n_skipped_tokens"),
    "prefill_tokens_per_s": ("prefill_s",), "decode_tokens_per_s": ("decode_tokens_per_s", "n_output_tokens"),
    "inter_token_s": ("token_gaps_s",), "queue_p95_s": ("queue",), "is_sleeping": ("n_awake",)}


class _PageSource:
    """Serves one page after the other, and counts the fetches of each path."""

    def __init__(self, page: RecordedPage) -> None:
        self._page = page
        self.n_fetched: dict[str, int] = {}

    async def fetch(self, path: str) -> str | None:
        n = self.n_fetched[path] = self.n_fetched.get(path, 0) + 1
        if path == "/metrics":
            return self._page.before if n == 1 else self._page.after
        return (self._page.report_before if n == 1 else self._page.report_after) if path in REPORT_PATHS.values() else None

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class SignalsClaim:
    """tables: a test reads with broken ones."""

    tables: Sequence[AliasTable] = TABLES

    name = "signals"
    statement = (f"Of the metrics pages of vLLM, SGLang, llama.cpp, TensorRT-LLM, Triton and TGI in {len(TABLES)} versions, "
                 "every signal is what the page shows, and unknown, never 0, where it shows nothing; one fetch of a page "
                 f"serves all workers, and after {STALE_INTERVALS:g} intervals without a page the signals are unknown.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        """Read all pages; quick and full runs are the same."""
        pages = list(recorded_pages())
        wrong = [f"{page.name} {field}" for page in pages for field in self._find_wrong(page)]
        n_shown = sum(getattr(page.shown, field) is not None for page in pages for field in FIELDS)
        taken = [(f"{page.name} without {field}", left) for page in pages for field, left in self._take_away(page)]
        invented = [f"{what}: {left}" for what, left in taken if left is not None]
        spread = [await _spread_over_workers(page) for page in pages]
        figures = (
            Figure.count("signals that differ from their page, shown and absent", len(wrong)),
            Figure.count("signals compared", len(pages) * len(FIELDS), None),
            Figure.count("of them shown by the page", n_shown, None),
            Figure.count("figures that are known although their lines were left out", len(invented)),
            Figure.count("figures whose lines were left out", len(taken), None),
            Figure.count("most fetches of one page for all workers", max(one.n_fetches for one in spread), 1),
            Figure.count("boards of workers without the reading", sum(one.n_without for one in spread)),
            Figure.count(f"boards that show it after {STALE_INTERVALS:g} intervals", sum(one.n_stale for one in spread)),
        )
        return ClaimResult(figures, tuple([*wrong, *invented][:20]))

    def read(self, before: str, after: str, page: RecordedPage) -> EngineSignals | None:
        """As the scraper reads two pages; None: of no known engine."""
        first, last = self._read_one(before, page.report_before), self._read_one(after, page.report_after)
        if first is None or last is None:
            return None
        return make_signals(last, compare_readings(first, last, SECONDS), 0.0)

    def _read_one(self, text: str, report: str | None) -> EngineReading | None:
        page = MetricsPage()
        page.add(text)
        reading = read_page(page, None, self.tables)
        return add_report(reading, report.encode()) if reading is not None and report is not None else reading

    def _find_wrong(self, page: RecordedPage) -> list[str]:
        """Fields that differ from what the page shows."""
        found = self.read(page.before, page.after, page)
        return [field for field in FIELDS if not _is_same(getattr(found, field, None), getattr(page.shown, field))]

    def _take_away(self, page: RecordedPage) -> Iterator[tuple[str, str | None]]:
        """Each figure of the metrics page, and its value after all of its lines were left out; None: it is unknown then."""
        bare = page._replace(report_before=None, report_after=None)
        shown = self.read(page.before, page.after, bare)
        table = next((one for one in self.tables if shown is not None and (one.kind, one.version) == (
            shown.kind, shown.version)), None)
        for field, figures in _FEEDS.items() if table is not None else ():
            if getattr(shown, field) is None or table is None:
                continue
            names = table.names_of(figures)
            found = self.read(_without(page.before, names), _without(page.after, names), bare)
            value = getattr(found, field) if found is not None else None
            yield field, None if value is None else str(value)


class _Spread(msgspec.Struct, frozen=True):
    n_fetches: int
    n_without: int
    n_stale: int


async def _spread_over_workers(page: RecordedPage) -> _Spread:
    """Scrape a page in the first of N_WORKERS workers, which are connected as in production."""
    clock = SystemClock()
    with TemporaryDirectory() as folder:
        peers = [WorkerPeers(Path(folder), n, N_WORKERS) for n in range(N_WORKERS)]
        publishers = [SignalPublisher(SignalBoard(INTERVAL_S), each, bytes) for each in peers]
        for each, publisher in zip(peers, publishers, strict=True):
            await each.listen(partial(_receive, publisher.receive))
        source = _PageSource(page)
        scraper = EngineScraper(None, source, clock, Random(1), publish=partial(publishers[0].publish, "engine"))
        await scraper.scrape()
        await asyncio.sleep(0)
        now = clock.now()
        known = [publisher.board.signals_of("engine", now) for publisher in publishers]
        stale_at = now + STALE_INTERVALS * INTERVAL_S + 0.001
        stale = [publisher.board.signals_of("engine", stale_at) for publisher in publishers]
        for each in peers:
            each.close()
    return _Spread(max(source.n_fetched.values()), sum(one is None or one.kind != page.shown.kind for one in known),
                   sum(one is not None for one in stale))


async def _receive(receive: Callable[[bytes], None], message: bytes) -> bytes:
    receive(message)
    return b""


def _is_same(found: Any, shown: Any) -> bool:
    if isinstance(found, float) and isinstance(shown, float):
        return isclose(found, shown, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return bool(found == shown)


def _without(text: str, names: frozenset[str]) -> str:
    """The page without the lines of these metrics."""
    return "".join(line for line in text.splitlines(keepends=True)
                   if line.partition("{")[0].partition(" ")[0] not in names)
