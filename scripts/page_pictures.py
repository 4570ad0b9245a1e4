"""Draw the pictures of docs/page.md: the page over a gateway with simulated upstreams, in Chromium.

    .venv/bin/python -m scripts.page_pictures             all of them into docs/images
    .venv/bin/python -m scripts.page_pictures --out /tmp
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

from tests.browser import Tab, open_tab
from tests.server.views_rig import ViewsRig, open_views

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MAX_BYTES = 150_000
_TIMEOUT_S = 300.0


class Shot(NamedTuple):
    """One picture. `view`: an address of the page; `{hedged}` is the id of a hedged request."""

    view: str
    until: str
    scheme: str = "light"
    width: int = 1280
    height: int = 800


SHOTS: Mapping[str, Shot] = MappingProxyType({
    "page-now": Shot("now?window=300", "document.querySelectorAll('main table').length >= 2", height=820),
    "page-request": Shot("requests?request={hedged}", "document.querySelector('.waterfall svg')"),
    "page-stages": Shot("stages", "document.querySelector('main a.chip')", "dark", height=640),
    "page-doctor": Shot("doctor", "document.querySelector('article table')", height=740),
    "page-settings": Shot("settings", "document.querySelector('main table')", "dark", height=520),
    "page-now-phone": Shot("now?window=300", "document.querySelectorAll('main table').length >= 2", "dark", 390, 844),
    "page-request-phone": Shot("requests?request={hedged}", "document.querySelector('.waterfall svg')", "light", 390, 844),
})


async def take(tab: Tab, rig: ViewsRig, shot: Shot) -> bytes:
    """One picture as PNG."""
    await tab.set_view(shot.width, shot.height, scheme=shot.scheme, is_phone=shot.width < 600)
    await tab.open("about:blank", "true")
    await tab.open(f"{rig.url}/ui#/{shot.view.format(**rig.ids)}", shot.until)
    await tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    await tab.evaluate("new Promise((done) => setTimeout(done, 1500))")  # the widths of drawings, the first live frames
    return await tab.picture()


async def take_all(folder: Path, names: list[str]) -> None:
    """Write the pictures. Raises ValueError for one that is too large."""
    with TemporaryDirectory() as profile:
        async with asyncio.timeout(_TIMEOUT_S), open_views(is_hostile=False) as rig, open_tab(Path(profile)) as tab:
            for name in names:
                data = await take(tab, rig, SHOTS[name])
                if len(data) > MAX_BYTES:
                    raise ValueError(f"{name} has {len(data)} bytes, more than {MAX_BYTES}")
                (folder / f"{name}.png").write_bytes(data)
                sys.stdout.write(f"{name}.png  {len(data)} bytes\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="pictures (default: all)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder (default: docs/images)")
    arguments = parser.parse_args()
    asyncio.run(take_all(arguments.out, arguments.name or list(SHOTS)))


if __name__ == "__main__":
    main()
