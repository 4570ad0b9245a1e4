"""The /metrics page of a simulated engine: its own figures, and those that are set."""

import asyncio
from random import Random
from typing import Any

import pytest

from stayfast.core.snapshot import ENGINE_FIGURES
from stayfast.lab.simulated import EngineModel, Provider, ProviderConfig
from stayfast.lab.simulated.engine_page import EnginePage, SimulatedPage
from stayfast.observe.snapshot.engine_scraper import EngineScraper
from stayfast.testing import SimLoop, run


def scraped(page: EnginePage, seconds: float = 120.0, *, is_busy: bool = False) -> dict[str, float]:
    """The figures that a scraper reads of a provider with this page."""
    async def main(loop: SimLoop) -> dict[str, float]:
        provider = Provider("sim", ProviderConfig(engine=EngineModel(max_running=2, kv_tokens=1000)), loop)
        if is_busy:
            assert provider.engine is not None
            for _ in range(3):
                provider.engine.submit(100, 100_000)

        scraper = EngineScraper(None, SimulatedPage(provider, page), loop, Random(1))
        task = asyncio.create_task(scraper.run())
        await asyncio.sleep(seconds)
        task.cancel()
        return scraper.figures(loop.now())

    return run(main)


def test_engine_page_without_figures_shows_the_engine() -> None:
    figures = scraped(EnginePage(), is_busy=True)
    assert figures["kv_used_ratio"] == pytest.approx(1.0)
    assert figures["waiting"] == 2
    assert figures["preemptions_per_s"] == 0.0


def test_engine_page_without_a_prefix_cache_has_no_hit_ratio() -> None:
    assert "kv_hit_ratio" not in scraped(EnginePage(), is_busy=True)


def test_engine_page_prefix_cache_counts_the_engines_own_hits() -> None:
    async def main(loop: SimLoop) -> dict[str, float]:
        provider = Provider("sim", ProviderConfig(engine=EngineModel(cache_tokens=10_000)), loop)
        assert provider.engine is not None
        scraper = EngineScraper(None, SimulatedPage(provider), loop, Random(1))
        await scraper.scrape()
        for _ in range(4):
            await asyncio.sleep(5)
            provider.engine.submit(640, 10, range(10))
        await asyncio.sleep(5)
        await scraper.scrape()
        return scraper.figures(loop.now())

    assert run(main)["kv_hit_ratio"] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(("page", "figure", "value"), [
    ({"waiting": 1500}, "waiting", 1500), ({"kv_hit_ratio": 0.3}, "kv_hit_ratio", 0.3),
    ({"spec_accepted_ratio": 0.4}, "spec_accepted_ratio", 0.4), ({"spec_accepted_ratio": 0.4}, "spec_accepted_length", 2.2),
    ({"preemptions_per_s": 0.5}, "preemptions_per_s", 0.5), ({"queue_s": 4.0}, "queue_p95_s", 4.875),
    ({"gpu_memory_bytes": 1e9, "gpu_memory_growth_bytes_per_h": 1e8}, "gpu_memory_growth_bytes_per_h", 1e8),
    ({"restarted_s": 900.0}, "cold_starts_1h", 1.0),
])
def test_engine_page_figures_that_are_set_are_scraped(page: dict[str, Any], figure: str, value: float) -> None:
    figures = scraped(EnginePage(**page), 1800.0)
    assert figures[figure] == pytest.approx(value, rel=0.01)
    assert set(figures) <= set(ENGINE_FIGURES)
