"""Pages of engines over HTTP, as the gateway fetches them."""

import asyncio
from random import Random

import pytest

from stayfast.compose.engine_metrics import EnginePageClient, SignalPublisher, make_scrapers
from stayfast.core.clock import SystemClock
from stayfast.observe.snapshot.engine_scraper import EngineScraper
from stayfast.settings import HttpUpstream, Settings, SettingsText, load_settings
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.workers.channels import WorkerPeers
from tests.sim.running import Sim

pytestmark = pytest.mark.sockets


def settings_of(sim: Sim, how: str) -> Settings:
    return load_settings(SettingsText("f.yaml", f"""
upstreams:
  up: {{kind: openai, base_url: '{sim.url}/openai/v1', engine_metrics: {how}}}
  other: {{kind: openai, base_url: '{sim.url}/tight/v1'}}
routes:
  chat: {{upstreams: [up, other]}}
"""), {})


def scrapers_of(settings: Settings) -> dict[str, EngineScraper]:
    publisher = SignalPublisher(SignalBoard(5.0), WorkerPeers(), bytes)
    return make_scrapers(settings, {}, publisher, count_queued=lambda _: 0, clock=SystemClock(), rng=Random(1))


def test_provider_of_an_engine_reads_its_page(sim: Sim) -> None:
    """`kind: vllm` is all that is written."""
    sim.control("POST", "engine", {"figures": {"waiting": 7}, "provider": "openai"})
    settings = load_settings(SettingsText(
        "f.yaml", f"upstreams: {{up: {{kind: vllm, base_url: '{sim.url}/openai/v1'}}}}\nroutes: {{chat: [up]}}"), {})

    async def main() -> dict[str, float]:
        (scraper,) = scrapers_of(settings).values()
        await scraper.scrape()
        scraper.close()
        return scraper.figures(SystemClock().now())

    assert asyncio.run(main())["waiting"] == 7


@pytest.mark.parametrize("how", ["auto", "vllm"])
def test_scrapers_of_settings_read_the_page_of_their_upstream(sim: Sim, how: str) -> None:
    sim.control("POST", "engine", {"figures": {"waiting": 7}, "provider": "openai"})

    async def main() -> dict[str, float]:
        (scraper,) = scrapers_of(settings_of(sim, how)).values()
        await scraper.scrape()
        scraper.close()
        return scraper.figures(SystemClock().now())

    figures = asyncio.run(main())
    assert figures["waiting"] == 7
    assert figures["age_s"] < 5


def test_scrapers_other_engine_or_no_setting_reads_nothing(sim: Sim) -> None:
    async def main() -> dict[str, float]:
        (scraper,) = scrapers_of(settings_of(sim, "sglang")).values()
        await scraper.scrape()
        scraper.close()
        return scraper.figures(SystemClock().now())

    assert asyncio.run(main()) == {}
    assert scrapers_of(settings_of(sim, "off")) == {}


def test_page_client_missing_page_or_server_is_none(sim: Sim) -> None:
    async def main() -> list[str | None]:
        clients = [EnginePageClient("up", HttpUpstream("openai", url), SystemClock())
                   for url in (f"{sim.url}/nobody/v1", "http://127.0.0.1:9/v1")]
        pages = [await client.fetch("/metrics") for client in clients]
        for client in clients:
            client.close()
        return pages

    assert asyncio.run(main()) == [None, None]
