"""The views of the page over a served gateway with two workers: its own snapshot, findings and settings."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from scripts.page_pictures import run_gateway, send_request
from tests.browser import open_tab

pytestmark = pytest.mark.sockets

WITHIN_S = 120.0
TEXT = "document.querySelector('main').innerText"
N_REQUESTS = 30
SHOWN = {
    "requests": ("chat", "200 ok"), "stages": ("chat", "Requests near the p99"), "caches": ("search", "exact"),
    "fleet": ("This gateway is alone",), "doctor": ("checks found nothing", "What is checked"),
    "settings": ("routes.chat.upstreams", "stayfast.yaml:"), "tenants": (), "jobs": (),
}


def test_views_show_figures_of_served_gateway(tmp_path: Path) -> None:
    """Each view by its own endpoints, without an error on the console."""
    async def main() -> None:
        folder = tmp_path / "gateway"
        folder.mkdir()
        async with asyncio.timeout(WITHIN_S), run_gateway(folder) as url, aiohttp.ClientSession() as client:
            await asyncio.gather(*[send_request(client, url, ("chat", "search")[n % 2], f"question {n % 5}")
                                   for n in range(N_REQUESTS)])
            async with open_tab(tmp_path) as tab:
                await tab.set_view()
                for view, words in SHOWN.items():
                    await tab.open("about:blank", "true")
                    await tab.open(f"{url}/ui#/{view}", "document.querySelector('main .panel, main .empty, main article')")
                    for word in words:
                        await tab.wait(f"{TEXT}.includes('{word}')")
                    text = await tab.evaluate(TEXT)
                    assert "undefined" not in text
                    assert "NaN" not in text
                    assert "cannot be read" not in text
                assert tab.console == []

    asyncio.run(main())
