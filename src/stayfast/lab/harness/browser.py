"""A browser without a window, over the DevTools protocol: when a page is painted.

With `--remote-debugging-pipe` Chromium reads commands from file descriptor 3 and writes to 4, as JSON objects that end with
a zero byte, so no client of WebSockets is needed. Both are one end of a pair of sockets.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from stayfast.lab.harness.claim import SetUpFailed

ANSWER_WITHIN_S = 30.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--remote-debugging-pipe")
_LAUNCH = """
import os, sys
for number in (3, 4):
    os.dup2(int(sys.argv[1]), number)
    os.set_inheritable(number, True)  # dup2 of a number to itself changes nothing
os.execv(sys.argv[2], sys.argv[2:])
"""
_MAX_BYTES = 64 * 1024 * 1024
_PAINTED = """new Promise((done) => new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.name === 'first-contentful-paint') done(entry.startTime);
}).observe({type: 'paint', buffered: true}))"""


def find_browser() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class HeadlessBrowser:
    """The first tab of a browser. One call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = count(1)
        self._session: dict[str, str] = {}

    async def attach(self) -> None:
        """Take over the tab, without a cache. Raises SetUpFailed."""
        targets = (await self._call("Target.getTargets"))["targetInfos"]
        tab = next((one for one in targets if one["type"] == "page"), None)
        if tab is None:
            raise SetUpFailed("the browser has no tab")
        attached = await self._call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Network"):
            await self._call(f"{domain}.enable")
        await self._call("Network.setCacheDisabled", cacheDisabled=True)

    async def first_paint_s(self, url: str) -> float:
        """Seconds from the start of the navigation to the first paint with content. Raises SetUpFailed."""
        await self._call("Page.navigate", url="about:blank")
        if "errorText" in (went := await self._call("Page.navigate", url=url)):
            raise SetUpFailed(f"the browser cannot open {url}: {went['errorText']}")
        found = await self._call("Runtime.evaluate", expression=_PAINTED, awaitPromise=True, returnByValue=True)
        return float(found["result"]["value"]) / 1e3

    async def _call(self, method: str, **parameters: object) -> Any:
        number, session = next(self._ids), {} if method.startswith("Target.") else self._session
        self._writer.write(json.dumps({"id": number, "method": method, "params": parameters} | session).encode() + b"\0")
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while (answer := json.loads((await self._reader.readuntil(b"\0"))[:-1])).get("id") != number:
                    pass
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise SetUpFailed(f"the browser did not answer {method}: {type(error).__name__}") from error
        if "error" in answer:
            raise SetUpFailed(f"the browser refused {method}: {answer['error'].get('message')}")
        return answer["result"]


@asynccontextmanager
async def open_browser(path: str) -> AsyncIterator[HeadlessBrowser]:
    """Start a browser with an empty profile; it ends with the context, with all processes that it started."""
    ours, theirs = socket.socketpair()
    with TemporaryDirectory(prefix="stayfast-browser-", ignore_cleanup_errors=True) as folder:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _LAUNCH, str(theirs.fileno()), path, *_FLAGS, f"--user-data-dir={folder}",
                "about:blank", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True)
        reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_BYTES)
        try:
            browser = HeadlessBrowser(reader, writer)
            await browser.attach()
            yield browser
        finally:
            writer.transport.abort()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
