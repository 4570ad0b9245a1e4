"""Figures of engines from pages, in virtual time."""

import asyncio
from collections.abc import Callable
from math import inf
from random import Random

import pytest

from stayfast.core.engine_signals import EngineSignals
from stayfast.core.snapshot import ENGINE_FIGURES
from stayfast.observe.snapshot.engine_scraper import (
    JITTER,
    MAX_FAILED,
    RETRY_S,
    SCRAPE_EVERY_S,
    EngineParts,
    EngineScraper,
    merge_engines,
)
from stayfast.testing import SimLoop, run

Page = Callable[[float], str | None]


class Pages:
    """A source of pages."""

    def __init__(self, read: Callable[[], str | None]) -> None:
        self._read = read
        self.is_closed = False

    async def fetch(self, path: str) -> str | None:
        return self._read() if path == "/metrics" else None

    def close(self) -> None:
        self.is_closed = True


def figures_after(page: Page, seconds: float, silent_from: float = inf) -> dict[str, float]:
    """What is known after some time of scraping. silent_from: when the engine stops to answer."""
    async def main(loop: SimLoop) -> dict[str, float]:
        scraper = EngineScraper(None, Pages(lambda: page(loop.now()) if loop.now() < silent_from else None), loop, Random(1))
        task = asyncio.create_task(scraper.run())
        await asyncio.sleep(seconds)
        task.cancel()
        return scraper.figures(loop.now())

    return run(main)


def vllm(queries: float = 0.0, hits: float = 0.0, memory_mib: float = 100.0, started: float = 1.0) -> str:
    return (f"vllm:num_requests_running 3\nvllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
            f"DCGM_FI_DEV_FB_USED {memory_mib}\nprocess_start_time_seconds {started}\n")


def test_scraper_rates_are_those_of_the_last_minute() -> None:
    figures = figures_after(lambda now: vllm(queries=now * 100, hits=now * 10 if now < 100 else 1000 + (now - 100) * 90),
                            200.0)
    assert figures["kv_hit_ratio"] == pytest.approx(0.9)
    assert figures["running"] == 3
    assert figures["age_s"] <= SCRAPE_EVERY_S * (1 + JITTER)
    assert set(figures) <= set(ENGINE_FIGURES)


def test_scraper_without_a_page_knows_nothing() -> None:
    assert figures_after(lambda _: None, 20.0) == {}
    assert figures_after(lambda _: "<html>", 20.0) == {}


def test_scraper_stale_figures_have_their_age() -> None:
    assert figures_after(lambda _: vllm(), 100.0, silent_from=50.0)["age_s"] == pytest.approx(55, abs=6)


def test_scraper_growing_memory_has_a_slope() -> None:
    figures = figures_after(lambda now: vllm(memory_mib=1000 + now), 1200.0)
    assert figures["gpu_memory_growth_bytes_per_h"] == pytest.approx(3600 * 2**20, rel=0.02)
    assert "gpu_memory_growth_bytes_per_h" not in figures_after(lambda now: vllm(memory_mib=1000 + now), 500.0)


def test_scraper_restarts_of_an_engine_are_cold_starts() -> None:
    def page(now: float) -> str | None:
        return None if 100 <= now < 140 else vllm(queries=now, started=1_750_000_000.0 + (100.0 if now >= 100 else 0.0))

    figures = figures_after(page, 200.0)
    assert figures["cold_starts_1h"] == 1
    assert 40 <= figures["cold_start_s"] <= 46


def test_scraper_dead_engine_is_tried_less_often() -> None:
    async def main(loop: SimLoop) -> list[float]:
        instants: list[float] = []
        task = asyncio.create_task(EngineScraper(None, Pages(lambda: instants.append(loop.now())), loop, Random(1)).run())
        await asyncio.sleep(600)
        task.cancel()
        return instants

    instants = run(main)
    assert instants[MAX_FAILED] - instants[MAX_FAILED - 1] == pytest.approx(RETRY_S, rel=JITTER)


def test_merge_engines_the_freshest_figures_count() -> None:
    parts = [EngineParts({"a": {"running": 1.0, "age_s": 9.0}}), EngineParts(),
             EngineParts({"a": {"running": 2.0, "age_s": 1.0}, "b": {"running": 5.0, "age_s": 3.0}})]
    assert merge_engines(parts) == {"a": {"running": 2.0, "age_s": 1.0}, "b": {"running": 5.0, "age_s": 3.0}}


def test_scraper_each_page_is_published_as_signals() -> None:
    async def main(loop: SimLoop) -> list[EngineSignals]:
        published: list[EngineSignals] = []

        async def publish(signals: EngineSignals) -> None:
            published.append(signals)

        pages = Pages(lambda: vllm(queries=loop.now() * 100, hits=loop.now() * 40) if loop.now() < 12 else None)
        task = asyncio.create_task(EngineScraper(None, pages, loop, Random(1), publish=publish).run())
        await asyncio.sleep(60)
        task.cancel()
        return published

    first, *_, last = run(main)
    assert (first.kind, first.version, first.running, first.prefix_hit_ratio) == ("vllm", "0.33", 3, None)
    assert last.prefix_hit_ratio == pytest.approx(0.4)
    assert last.read_at < 12  # a missing page publishes nothing


def test_scraper_engine_without_pages_is_bound_by_something_unknown() -> None:
    """Queued requests in the gateway before an idle engine, until its pages end."""
    async def main(loop: SimLoop) -> list[str]:
        pages = Pages(lambda: f"{vllm()}vllm:num_requests_waiting 0\n" if loop.now() < 30 else None)
        scraper = EngineScraper(None, pages, loop, Random(1), count_queued=lambda: 7)
        task = asyncio.create_task(scraper.run())
        bounds = []
        for _ in range(2):
            await asyncio.sleep(29)
            bounds.append(scraper.bound.value)
        task.cancel()
        return bounds

    assert run(main) == ["gateway", "unknown"]


def test_scraper_long_page_is_parsed_in_pieces() -> None:
    """Other tasks run while a page of half a megabyte is parsed."""
    async def main(loop: SimLoop) -> int:
        page = "vllm:num_requests_running 3\n" + "vllm:other_metric_total{engine=\"0\"} 1.0\n" * 15_000
        n_turns = 0

        async def count() -> None:
            nonlocal n_turns
            while True:
                await asyncio.sleep(0)
                n_turns += 1

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        before = n_turns
        await EngineScraper(None, Pages(lambda: page), loop, Random(1)).scrape()
        counting.cancel()
        return n_turns - before

    assert run(main) >= 8
