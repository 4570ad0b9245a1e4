"""The page in a real browser: it loads without a complaint, says when it has no data, keeps its state in its address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stayfast.server.auth import digest_key
from stayfast.server.config import ServerConfig
from tests.browser import Tab, open_tab
from tests.server.ui_rig import UiRig, open_rig

pytestmark = pytest.mark.sockets

WITHIN_S = 90.0
ADMIN_KEY = "an-admin-key-that-is-long"
WITH_KEYS = ServerConfig(port=0, keys={"boss": digest_key(ADMIN_KEY)}, admins=("boss",))
HAS_FIGURES = "document.querySelector('main[data-view=now] table') && document.querySelector('.tile-value')"
TEXT = "document.body.innerText"


@asynccontextmanager
async def browsing(folder: Path, config: ServerConfig | None = None) -> AsyncIterator[tuple[UiRig, Tab]]:
    """A gateway with the scripted feed, and a tab."""
    async with asyncio.timeout(WITHIN_S), open_rig(config) as rig, open_tab(folder) as tab:
        await tab.set_view()
        yield rig, tab


def test_page_shows_figures_without_a_complaint(tmp_path: Path) -> None:
    """No error on the console, nothing that the policy blocks; routes, upstreams, findings, the heat map and its table."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            await tab.wait("document.title === 'Now · Stayfast'")
            text = await tab.evaluate(TEXT)
            for words in ("chat", "local-vllm", "breaker closed", "limit: ", "99 % in 1.00 s", "prompt.moving_prefix", "/s",
                          "USD/h", "UTC", "gw-1", "6 / 16", "83 %", "1,240", "9,300"):
                assert words in text, words
            # 9, 8 and 7 of the upstreams: routes have no count of their own
            assert await tab.evaluate("[...document.querySelectorAll('.tile-name')].find((each) => "
                                      "each.innerText === 'In flight').nextElementSibling.innerText") == "24"
            drawn = await tab.evaluate("""(() => { const c = document.querySelector('canvas');
                const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = new Set();
                for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 200) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
                return seen.size; })()""")
            assert drawn > 10  # the colours of the scale
            await tab.evaluate("document.querySelector('.heat summary').click()")
            await tab.wait("document.querySelectorAll('.heat .figures tbody tr').length > 100")
            await tab.evaluate("document.querySelectorAll('.spark-button')[0].click()")
            await tab.wait("document.querySelector('.uplot canvas')")
            await tab.wait("document.getElementById('uplot-style').sheet")
            assert tab.console == []

    asyncio.run(main())


def test_each_view_opens_by_its_key(tmp_path: Path) -> None:
    """1 to 9; back returns to the view before."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            names = await tab.evaluate("[...document.querySelectorAll('nav a')].map((a) => a.textContent.toLowerCase())")
            assert len(names) == 9
            for number, name in [*enumerate(names, start=1)][1:]:
                await tab.press(str(number))
                await tab.wait(f"document.querySelector('main[data-view={name}]').innerText.length > 10")
                assert await tab.evaluate("location.hash") == f"#/{name}"
            await tab.evaluate("history.back()")
            await tab.wait(f"document.querySelector('main[data-view={names[-2]}]')")
            # the scripted gateway lacks some of the endpoints: test_ui_views.py has them
            assert [line for line in tab.console if not line.startswith("Failed to load resource")] == []

    asyncio.run(main())


def test_address_holds_the_state(tmp_path: Path) -> None:
    """A route that is chosen, the window, the pause and the filter survive a reload; back undoes the choice."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            await tab.evaluate("document.querySelector('tr[data-row=search]').click()")
            await tab.wait("location.hash === '#/now?route=search'")
            await tab.wait("document.querySelectorAll('tbody tr[data-row=chat]').length === 0")
            await tab.evaluate("[...document.querySelectorAll('.choice button')].at(-1).click()")
            await tab.press("p")
            await tab.press("/")
            for letter in "sea":
                await tab.press(letter)
            address = "#/now?route=search&window=1800&paused=1&q=sea"
            await tab.wait(f"location.hash === {address!r}")
            await tab.open(f"{rig.url}/ui?again{address}", HAS_FIGURES)
            await tab.wait("document.querySelector('input[type=search]').value === 'sea'")
            assert "Paused" in await tab.evaluate(TEXT)
            assert await tab.evaluate("document.querySelector('tr.selected').dataset.row") == "search"
            await tab.press("Escape")
            await tab.wait("!location.hash.includes('q=')")
            await tab.evaluate("history.back()")
            await tab.wait(f"location.hash === {address!r}")

    asyncio.run(main())


def test_pause_holds_the_figures(tmp_path: Path) -> None:
    """The clock of the frame stands still, though frames arrive; resumed, it shows the present again."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            await tab.press("p")
            await tab.wait("document.body.innerText.includes('Paused at')")
            shown, n = await tab.evaluate("document.querySelector('.about').innerText"), rig.traffic.n_frames
            await asyncio.sleep(0)
            while rig.traffic.n_frames < n + 3:  # three more seconds of the feed
                await asyncio.sleep(0.1)
            assert await tab.evaluate("document.querySelector('.about').innerText") == shown
            await tab.press("p")
            await tab.wait(f"document.querySelector('.about').innerText !== {shown!r}")

    asyncio.run(main())


def test_rows_are_walked_and_opened_by_keys(tmp_path: Path) -> None:
    """j and k move the focus, Enter chooses, ? lists the keys."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            focused = "document.activeElement.closest('tr')?.dataset.row ?? ''"
            await tab.press("j")
            first = await tab.evaluate(focused)
            await tab.press("j")
            assert await tab.evaluate(focused) not in ("", first)
            await tab.press("k")
            assert await tab.evaluate(focused) == first
            await tab.press("Enter")
            await tab.wait(f"location.hash.endsWith('route={first}')")
            await tab.press("?")
            await tab.wait("document.querySelector('dialog[open]')")
            assert "next, previous row" in await tab.evaluate(TEXT)
            await tab.press("Escape")
            await tab.wait("!document.querySelector('dialog')")
            assert tab.console == []

    asyncio.run(main())


def test_silent_feed_is_reported_with_its_age(tmp_path: Path) -> None:
    """The old figures are grey, never shown as live; when frames arrive again, the banner goes."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            assert not await tab.evaluate("Boolean(document.querySelector('#no-data'))")
            rig.is_silent = True
            await tab.wait("/No data for [5-9] s/.test(document.body.innerText)")
            assert "The figures below are old." in await tab.evaluate(TEXT)
            assert await tab.evaluate("document.querySelector('main').className") == "old"
            rig.is_silent = False
            await tab.wait("!document.querySelector('#no-data') && document.querySelector('main').className === ''")

    asyncio.run(main())


def test_ended_stream_is_opened_again_with_the_last_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            assert rig.last_ids == [""]
            while not rig.last_ids[-1]:  # the first stream may end before its first frame
                n_opened = len(rig.last_ids)
                rig.cut()
                async with asyncio.timeout(60):
                    while len(rig.last_ids) == n_opened:
                        await asyncio.sleep(0.05)
            assert int(rig.last_ids[-1]) > 0

    asyncio.run(main())


def test_tabs_share_one_stream(tmp_path: Path) -> None:
    """HTTP/1.1 has six connections for a host. When the tab that reads it closes, another one takes over."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.open(f"{rig.url}/ui", HAS_FIGURES)
            others = [await tab.open_other(f"{rig.url}/ui") for _ in range(3)]
            for other in others:
                await other.wait(HAS_FIGURES)
                await other.wait("!document.querySelector('#no-data')")
            assert rig.n_streams == 1
            await tab.evaluate("location.href = 'about:blank'")
            while rig.n_streams != 1 or len(rig.last_ids) < 2:
                await asyncio.sleep(0.05)
            n = rig.traffic.n_frames
            while rig.traffic.n_frames < n + 5:
                await asyncio.sleep(0.1)
            for other in others:
                await other.wait("!document.querySelector('#no-data')")
            assert rig.n_streams == 1

    asyncio.run(main())


def test_sign_in_and_out(tmp_path: Path) -> None:
    """With keys the page asks for one; a wrong one is explained; the session survives a reload and ends by the button."""

    async def main() -> None:
        async with browsing(tmp_path, WITH_KEYS) as (rig, tab):
            await tab.open(f"{rig.url}/ui#/now?route=chat", "document.activeElement.id === 'key'")
            assert tab.console == []
            for letter in "a-wrong-key-that-is-long":
                await tab.press(letter)
            await tab.press("Enter")
            await tab.wait("document.querySelector('[role=alert]').innerText.includes('Incorrect API key')")
            await tab.evaluate(f"document.querySelector('#key').value = {ADMIN_KEY!r}")
            await tab.evaluate("document.querySelector('form button').click()")
            await tab.wait(HAS_FIGURES)
            assert await tab.evaluate("location.hash") == "#/now?route=chat"
            assert await tab.evaluate("document.cookie") == ""  # out of reach of scripts
            await tab.open(f"{rig.url}/ui?again", HAS_FIGURES)
            await tab.evaluate("[...document.querySelectorAll('.tools button')].at(-1).click()")
            await tab.wait("document.querySelector('#key')")
            assert await tab.evaluate("fetch('/admin/requests').then((answer) => answer.status)") == 401

    asyncio.run(main())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_has_no_sideways_scroll(tmp_path: Path, scheme: str) -> None:
    """390 pixels: tables scroll in their own boxes. The theme is the system's, and the button overrides it."""

    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            await tab.set_view(390, 844, scheme=scheme, is_phone=True)
            for hash_ in ("#/now", "#/now?route=chat&tab=rps", "#/requests", "#/doctor", "#/settings"):
                place = hash_.strip("#/")[:3]
                await tab.open(f"{rig.url}/ui?{place}{hash_}",
                               "document.querySelector('main[data-view]')?.innerText.length > 10")
                assert await tab.evaluate("document.documentElement.scrollWidth") == 390, hash_
            paper = "getComputedStyle(document.body).backgroundColor"
            assert await tab.evaluate(paper) == {"light": "rgb(251, 251, 250)", "dark": "rgb(16, 19, 23)"}[scheme]
            await tab.press("t")  # auto to light
            await tab.wait(f"{paper} === 'rgb(251, 251, 250)'")
            await tab.press("t")
            await tab.wait(f"{paper} === 'rgb(16, 19, 23)'")
            await tab.open(f"{rig.url}/ui?stored", HAS_FIGURES)
            assert await tab.evaluate(paper) == "rgb(16, 19, 23)"

    asyncio.run(main())


def test_gateway_without_traffic_explains_what_will_appear(tmp_path: Path) -> None:
    async def main() -> None:
        async with browsing(tmp_path) as (rig, tab):
            rig.is_empty = True
            await tab.open(f"{rig.url}/ui", "document.querySelector('.command')")
            text = await tab.evaluate(TEXT)
            assert f"curl -N {rig.url}/v1/chat/completions" in text
            assert "Here will appear" in text

    asyncio.run(main())
