"""The views of the page in a real browser, over a real gateway with simulated upstreams."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from stayfast.core.snapshot import Snapshot
from tests.browser import Tab, open_tab
from tests.server.views_rig import HOSTILE, PLANTED_SECRETS, ViewsRig, open_views

pytestmark = pytest.mark.sockets

WITHIN_S = 120.0
VIEWS = ("requests", "stages", "caches", "tenants", "jobs", "fleet", "doctor", "settings")
IS_DRAWN = "document.querySelector('main .panel, main .empty, main article')"
TEXT = "document.querySelector('main').innerText"
ROWS = "document.querySelectorAll('main tbody tr').length"


@asynccontextmanager
async def viewing(folder: Path, *, has_traffic: bool = True) -> AsyncIterator[tuple[ViewsRig, Tab]]:
    """A gateway with traffic, and a tab."""
    async with asyncio.timeout(WITHIN_S), open_views(has_traffic=has_traffic) as rig, open_tab(folder) as tab:
        await tab.set_view()
        yield rig, tab


async def show(tab: Tab, rig: ViewsRig, address: str, until: str) -> str:
    """Go to an address of the page; its text."""
    await tab.open("about:blank", "true")
    await tab.open(f"{rig.url}/ui#/{address}", f"({IS_DRAWN}) && ({until})")
    text: str = await tab.evaluate(TEXT)
    return text


def test_requests_view_lists_filters_and_opens_a_waterfall(tmp_path: Path) -> None:
    """The slowest first; a filter is part of the address; a row opens by the keyboard, and Escape closes it."""
    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            text = await show(tab, rig, "requests", f"{ROWS} > 10")
            assert "Slowest requests in memory" in text
            assert "503 failed" in text
            first = await tab.evaluate("document.querySelector('main tbody tr').dataset.row")
            assert first == rig.ids["hedged"]
            await tab.evaluate("""(() => { const select = [...document.querySelectorAll('main select')][2];
                select.value = 'failed'; select.dispatchEvent(new Event('change', {bubbles: true})); })()""")
            await tab.wait(f"location.hash.includes('outcome=failed') && {ROWS} === 1")
            assert await tab.evaluate("document.querySelector('main tbody tr').dataset.row") == rig.ids["failing"]
            await tab.press("j")
            await tab.press("Enter")
            await tab.wait("document.querySelector('.waterfall svg')")
            assert f"request={rig.ids['failing']}" in await tab.evaluate("location.hash")
            await tab.press("Escape")
            await tab.wait("!document.querySelector('.waterfall') && !location.hash.includes('request=')")
            assert tab.console == []

    asyncio.run(main())


def test_requests_view_hedged_request_has_two_lanes(tmp_path: Path) -> None:
    """The address of a request shows it: stages, the lost attempt, the hedge, its first token, the decision in words."""
    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            text = await show(tab, rig, f"requests?request={rig.ids['hedged']}", "document.querySelector('.waterfall svg')")
            lanes = await tab.evaluate("[...document.querySelectorAll('.waterfall g[data-lane]')].map(g => g.dataset.lane)")
            assert lanes.count("attempt") == lanes.count("hedge") == 1
            assert "stage" in lanes
            words = await tab.evaluate("document.querySelector('.waterfall svg').getAttribute('aria-label')")
            assert "1 attempt at slow: lost the race" in words
            assert "2 hedge at quick: first token after" in words
            assert "hedged to quick: race" in text
            assert await tab.evaluate("document.querySelectorAll('.waterfall g.hedge .first').length") == 1
            text = await show(tab, rig, f"requests?request={rig.ids['retried']}", "document.querySelector('.waterfall svg')")
            assert "status 503" in text
            assert tab.console == []

    asyncio.run(main())


def test_requests_view_unknown_request_is_explained(tmp_path: Path) -> None:
    """A copied address may be older than the memory."""
    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            text = await show(tab, rig, "requests?request=gone", "document.querySelector('[role=alert]')")
            assert "is not in memory" in text
            assert "recent.size" in text

    asyncio.run(main())


def test_doctor_view_shows_finding_with_evidence_patch_and_consequences(tmp_path: Path) -> None:
    """A root with its figures, the patch as text to copy, how to verify; what it explains is folded under it."""
    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            text = await show(tab, rig, "doctor?tab=latency.spread", "document.querySelector('[data-finding]')")
            assert await tab.evaluate("[...document.querySelectorAll('[data-finding]')].map(a => a.dataset.finding)") == [
                "latency.spread", "prompt.moving_prefix"]
            for words in ("act now", "6.1 times", "48 %", "hedge: {mode: auto}", "stayfast requests --slowest",
                          "1 consequence"):
                assert words in text, words
            assert "Requests wait 120 ms" not in text
            await tab.evaluate("document.querySelector('[data-finding] details summary').click()")
            await tab.wait(f"{TEXT}.includes('Requests wait 120 ms')")
            assert await tab.evaluate("document.querySelectorAll('[data-finding] .command button').length") >= 2
            rig.findings.clear()
            assert "No findings" in await show(tab, rig, "doctor", "document.querySelector('.empty')")
            assert tab.console == []

    asyncio.run(main())


def test_settings_view_hides_secrets_and_names_sources(tmp_path: Path) -> None:
    """What is set, by default; all on demand; the search is part of the address."""
    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            text = await show(tab, rig, "settings", f"{ROWS} > 10")
            assert "test:2" in text
            assert "server.idle_timeout_s" not in text
            text = await show(tab, rig, "settings?tab=all", f"{ROWS} > 500")
            assert "server.idle_timeout_s" in text
            assert text.count("(hidden)") == len(PLANTED_SECRETS)
            document = await tab.evaluate("document.documentElement.outerHTML")
            assert not [secret for secret in PLANTED_SECRETS if secret in document]
            await tab.evaluate("""(() => { const field = document.querySelector('main input[type=search]');
                field.value = 'idle_timeout'; field.dispatchEvent(new Event('input', {bubbles: true})); })()""")
            await tab.wait(f"{ROWS} === 1 && location.hash.includes('q=idle_timeout')")
            assert tab.console == []

    asyncio.run(main())


def test_views_show_figures_of_snapshot(tmp_path: Path) -> None:
    """Stages by percentile with links to requests, caches, tenants, jobs, gateways and workers."""
    expected = {
        "stages": ("63 % of it in call", "Requests near the p99"), "caches": ("45 %", "4.81 USD", "live", "44 %"),
        "tenants": ("shop", "requests a minute: 22 % left"), "jobs": ("1,200", "4,100 completed", "workers died"),
        "fleet": ("This gateway is alone", "412 of 65.5 k", "near"),
    }

    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            for view, words in expected.items():
                until = " && ".join(f"{TEXT}.includes({json.dumps(each)})" for each in words)
                text = await show(tab, rig, view, until)
                assert "/admin/snapshot" in text
            link = await show(tab, rig, "stages", "document.querySelector('main a.chip')") and await tab.evaluate(
                "document.querySelector('main a.chip').hash")
            assert link.startswith("#/requests?")
            assert tab.console == []

    asyncio.run(main())


def test_views_show_names_of_clients_as_text(tmp_path: Path) -> None:
    """Markup in the names of routes, upstreams, tenants and models is drawn as characters, and nothing of it runs."""
    async def main() -> None:
        async with viewing(tmp_path) as (rig, tab):
            for view in (*VIEWS, f"requests?request={rig.ids[HOSTILE]}"):
                until = f"{TEXT}.includes({json.dumps(HOSTILE)})" if view not in ("stages", "caches", "fleet") else "true"
                await show(tab, rig, view, until)
                assert await tab.evaluate("document.querySelectorAll('img').length") == 0
                assert await tab.evaluate("window.hurt ?? null") is None
            assert tab.console == []

    asyncio.run(main())


def test_views_without_data_explain_what_will_appear(tmp_path: Path) -> None:
    """A gateway without traffic: no empty tables, but words, and a command where there is one."""
    async def main() -> None:
        async with viewing(tmp_path, has_traffic=False) as (rig, tab):
            rig.snapshot = Snapshot(at=rig.snapshot.at)
            rig.findings.clear()
            for view in ("requests", "stages", "caches", "tenants", "jobs", "fleet", "doctor"):
                text = await show(tab, rig, view, "document.querySelector('main .empty h2')")
                assert "undefined" not in text
                assert "NaN" not in text
            assert tab.console == []

    asyncio.run(main())


def test_views_failed_endpoint_is_named(tmp_path: Path) -> None:
    """An error instead of old or empty figures, and the cause in the gateway's words."""
    async def main() -> None:
        async with viewing(tmp_path, has_traffic=False) as (rig, tab):
            rig.is_absent = True
            for view in ("stages", "caches", "tenants"):
                await tab.open("about:blank", "true")
                await tab.open(f"{rig.url}/ui#/{view}", "document.querySelector('main [role=alert]')")
                text = await tab.evaluate(TEXT)
                assert "/admin/snapshot cannot be read: Worker 0 does not answer." in text

    asyncio.run(main())


def test_views_partial_rows_have_no_undefined_figures(tmp_path: Path) -> None:
    """Fields that are defaults are missing in the JSON."""
    async def main() -> None:
        async with viewing(tmp_path, has_traffic=False) as (rig, tab):
            whole = rig.snapshot
            bare = {name: tuple(type(row)(**{key: getattr(row, key) for key in required(type(row))})
                                for row in getattr(whole, name))
                    for name in ("caches", "tenants", "jobs", "stores", "machines")}
            rig.snapshot = msgspec.structs.replace(whole, **bare)
            for view in ("caches", "tenants", "jobs", "fleet"):
                text = await show(tab, rig, view, f"{ROWS} > 0")
                assert "undefined" not in text
                assert "NaN" not in text
            assert tab.console == []

    asyncio.run(main())


def required(kind: type[msgspec.Struct]) -> list[str]:
    """The names of the fields without a default."""
    return [field.name for field in msgspec.structs.fields(kind) if field.required]
