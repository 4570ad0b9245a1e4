"""axe-core on every view of the page: no violation, light and dark, on a desktop and on a phone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.absent import absent
from tests.browser import Tab, open_tab
from tests.server.views_rig import ViewsRig, open_views

pytestmark = pytest.mark.sockets

AXE = Path(__file__).parents[1] / "axe" / "node_modules" / "axe-core" / "axe.min.js"
WITHIN_S = 300.0
VIEWS = ("now", "requests", "stages", "caches", "tenants", "jobs", "fleet", "doctor", "settings?tab=all")
SHOWS = {"now": "document.querySelector('main table')", "doctor": "document.querySelector('main article')",
         "stages": "document.querySelector('main svg')"}
RUN = """axe.run().then((found) => found.violations.flatMap((each) => each.nodes.map((node) =>
    `${each.id}: ${node.target.join(' ')}: ${(node.any[0] ?? node.all[0] ?? node.none[0])?.message}`)))"""


def read_axe() -> str:
    """The library's source. Skips where it is not installed, but fails so on CI."""
    if not AXE.is_file():
        absent("axe-core is not installed: run `npm ci` in tests/axe")
    return AXE.read_text(encoding="utf-8")


async def inspect(tab: Tab, axe: str) -> list[str]:
    """The violations on the page, and a line if it is wider than the screen."""
    await tab.evaluate(f"{axe};0")
    found: list[Any] = await tab.evaluate(RUN)
    if await tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("the page is wider than the screen")
    return found


async def open_view(tab: Tab, rig: ViewsRig, view: str) -> None:
    """A view with its figures."""
    await tab.open("about:blank", "true")
    await tab.open(f"{rig.url}/ui#/{view}", SHOWS.get(view.partition("?")[0], "document.querySelector('main tbody tr')"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_views_have_no_violation_of_axe(tmp_path: Path, width: int, scheme: str) -> None:
    """Contrast, names, roles, tables, headings; no view scrolls sideways."""
    axe = read_axe()

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S), open_views() as rig, open_tab(tmp_path) as tab:
            await tab.set_view(width, 844, scheme=scheme, is_phone=width < 600)
            for view in (*VIEWS, f"requests?request={rig.ids['hedged']}"):
                await open_view(tab, rig, view)
                await tab.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
                assert await inspect(tab, axe) == [], view

    asyncio.run(main())


def test_axe_finds_what_is_wrong(tmp_path: Path) -> None:
    """The page's policy does not stop the library: a button without a name and pale text are found."""
    axe = read_axe()

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S), open_views(has_traffic=False) as rig, open_tab(tmp_path) as tab:
            await tab.set_view()
            await open_view(tab, rig, "tenants")
            await tab.evaluate("""(() => { const text = document.createElement('p'); text.textContent = 'pale';
                text.style.color = '#ddd'; document.querySelector('main').append(document.createElement('button'), text);
                })()""")
            assert {line.partition(":")[0] for line in await inspect(tab, axe)} == {"button-name", "color-contrast"}

    asyncio.run(main())
