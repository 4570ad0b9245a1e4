"""Draw the pictures of docs/page.md: the page in Chromium, over a gateway with simulated upstreams under load.

    make pictures                                                      all of them, and those of docs/concepts
    .venv/bin/python -m scripts.page_pictures                          all of them into docs/images, three minutes
    .venv/bin/python -m scripts.page_pictures --out /tmp --load-s 20
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

import aiohttp

from tests.browser import Tab, open_tab

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MAX_BYTES = 150_000
REQUESTS_PER_S = 14.0
_TIMEOUT_S = 600.0
_SETTINGS = """\
workers: 2
upstreams:
  openai: {kind: simulated, seed: 3, preset: gpt-4o-mini-like, prices: {"*": {input_per_mtok: 0.15, output_per_mtok: 0.6}}}
  claude:
    kind: simulated
    seed: 4
    ttft: {median_s: 0.45, sigma: 0.3, tail_share: 0.05, tail_median_s: 3.5}
    gaps: {median_s: 0.008}
    prices: {"*": {input_per_mtok: 3, output_per_mtok: 15}}
  vllm: {kind: simulated, seed: 5, ttft: {median_s: 0.08, sigma: 0.3}, gaps: {median_s: 0.006},
    faults: [{kind: status, status: 503, rate: 0.05}]}
defaults: {slo: {ttft: {under_s: 1, share: 0.99}}}
routes:
  chat: {upstreams: [claude, openai], pick: order}
  search: {upstreams: [vllm, openai], pick: order, cache: {mode: exact}}
  agent: {upstreams: [claude], hedge: {mode: "off"}}
"""
_MODELS = ("chat", "chat", "chat", "search", "search", "agent", "agent")


class Shot(NamedTuple):
    """One picture. `view`: an address of the page; `{hedged}` is the id of a hedged request."""

    view: str
    until: str
    scheme: str = "light"
    width: int = 1280
    height: int = 800


_TABLES = "document.querySelectorAll('main table').length >= 2"
_WATERFALL = "document.querySelector('.waterfall svg')"
SHOTS: Mapping[str, Shot] = MappingProxyType({
    "page-now": Shot("now?window=300", _TABLES, height=820),
    "page-request": Shot("requests?request={hedged}", _WATERFALL, height=720),
    "page-stages": Shot("stages", "document.querySelector('main a.chip')", "dark", height=560),
    "page-doctor": Shot("doctor", "document.querySelector('article')", height=640),
    "page-settings": Shot("settings", "document.querySelector('main table')", "dark", height=520),
    "page-now-phone": Shot("now?window=300", _TABLES, "dark", 390, 844),
    "page-request-phone": Shot("requests?request={hedged}", _WATERFALL, "light", 390, 844),
})


@asynccontextmanager
async def run_gateway(folder: Path) -> AsyncIterator[str]:
    """The address of a gateway with two workers."""
    (folder / "stayfast.yaml").write_text(_SETTINGS, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stayfast", "serve", "--port", "0", cwd=folder, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while b"listens on http://" not in (line := await process.stderr.readline()):
            if not line:
                raise OSError("the gateway ended")
        yield line.split(b"listens on ")[1].split()[0].decode().removesuffix("/v1")
    finally:
        process.terminate()
        await process.communicate()


async def send_request(client: aiohttp.ClientSession, url: str, model: str, text: str) -> None:
    """One streamed request, read to its end."""
    body = {"model": model, "stream": True, "temperature": 0, "max_tokens": 60,
            "messages": [{"role": "user", "content": text}]}
    with suppress(aiohttp.ServerDisconnectedError):  # at the end of the gateway
        async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.read()


async def send_load(client: aiohttp.ClientSession, url: str) -> None:
    """Poisson arrivals over all routes, until cancelled."""
    rng, running = Random(1), set[asyncio.Task[None]]()
    while True:
        task = asyncio.create_task(send_request(client, url, rng.choice(_MODELS), f"question {rng.randint(1, 40)}"))
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(rng.expovariate(REQUESTS_PER_S))


async def find_hedged(client: aiohttp.ClientSession, url: str) -> str:
    """The slowest request of which a hedge won. Raises LookupError."""
    async with client.get(f"{url}/admin/requests?which=slowest&n=1000&route=chat") as answer:
        rows = json.loads(await answer.read())["data"]
    for row in rows:
        if row.get("is_hedged") and row["upstream"] == "openai" and row["ms"] < 3000:
            return str(row["request_id"])
    raise LookupError("no hedge has won yet: a longer load finds one")


async def take(tab: Tab, url: str, shot: Shot) -> bytes:
    """One picture as PNG."""
    await tab.set_view(shot.width, shot.height, scheme=shot.scheme, is_phone=shot.width < 600)
    await tab.open("about:blank", "true")
    await tab.open(f"{url}/ui#/{shot.view}", shot.until)
    await tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    await tab.evaluate("new Promise((done) => setTimeout(done, 1500))")  # the widths of drawings, the first live frames
    return await tab.picture()


async def take_all(folder: Path, names: list[str], load_s: float) -> None:
    """Write the pictures. Raises ValueError for one that is too large."""
    with TemporaryDirectory() as given:
        async with (asyncio.timeout(_TIMEOUT_S), run_gateway(Path(given)) as url,
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client, open_tab(Path(given)) as tab):
            load = asyncio.create_task(send_load(client, url))
            began = time.monotonic()
            await asyncio.sleep(load_s)
            hedged = await find_hedged(client, url)
            for name in names:
                shot = SHOTS[name]
                data = await take(tab, url, shot._replace(view=shot.view.format(hedged=hedged)))
                if len(data) > MAX_BYTES:
                    raise ValueError(f"{name} has {len(data)} bytes, more than {MAX_BYTES}")
                (folder / f"{name}.png").write_bytes(data)
                sys.stdout.write(f"{name}.png  {len(data)} bytes, after {time.monotonic() - began:.0f} s of load\n")
                sys.stdout.flush()
            load.cancel()
            await asyncio.wait([load])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="pictures (default: all)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder (default: docs/images)")
    parser.add_argument("--load-s", type=float, default=150.0, help="seconds of load before them (default: %(default)s)")
    arguments = parser.parse_args()
    asyncio.run(take_all(arguments.out, arguments.name or list(SHOTS), arguments.load_s))


if __name__ == "__main__":
    main()
