"""A page in a real browser, over the DevTools protocol: looked at when it is ready, however long the machine takes."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.absent import absent

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ENDS_S = 120.0
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--remote-debugging-port=0")


def shown(url: str, folder: Path, until: str = "document.readyState === 'complete'", width: int | None = None
          ) -> tuple[str, list[str]]:
    """The document once the JavaScript expression `until` holds in it, and what the browser wrote on its console. `width`:
    of a phone's screen, in pixels.

    Skips without a browser, but fails so on CI.
    """
    if CHROMIUM is None:
        absent("no browser to look at the page with (Debian: apt-get install chromium)")

    async def main() -> tuple[str, list[str]]:
        async with (asyncio.timeout(_ENDS_S), _browser(folder) as address, aiohttp.ClientSession() as client,
                    client.ws_connect(address, max_msg_size=0) as socket):
            return await _Tab(socket).look(url, until, width)

    return asyncio.run(main())


@asynccontextmanager
async def _browser(folder: Path) -> AsyncIterator[str]:
    """Where a browser of its own listens for the protocol; ended with all that it started."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank", stderr=asyncio.subprocess.PIPE,
        start_new_session=True)
    assert process.stderr is not None
    said = process.stderr
    rest: asyncio.Task[bytes] | None = None
    try:
        while not (found := re.search(rb"DevTools listening on (ws://\S+)", line := await said.readline())):
            assert line, "the browser ended"
        rest = asyncio.create_task(said.read())  # a full pipe would stop it
        yield found[1].decode()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if rest is not None:
            await rest


class _Tab:
    """The first tab of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: dict[str, str] = {}
        self._n_calls = 0
        self._console: list[str] = []

    async def look(self, url: str, until: str, width: int | None) -> tuple[str, list[str]]:
        """See `shown`."""
        [tab] = [one for one in (await self._call("Target.getTargets"))["targetInfos"] if one["type"] == "page"]
        attached = await self._call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Runtime", "Log", "Page"):
            await self._call(f"{domain}.enable")
        if width is not None:
            await self._call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=True)
        assert "errorText" not in (went := await self._call("Page.navigate", url=url)), went
        wait = f"new Promise((done) => {{ const look = () => {until} ? done() : setTimeout(look, 20); look(); }})"
        held = await self._call("Runtime.evaluate", expression=wait, awaitPromise=True)
        assert "exceptionDetails" not in held, held
        document = await self._call("Runtime.evaluate", expression="document.documentElement.outerHTML", returnByValue=True)
        return document["result"]["value"], self._console

    async def _call(self, method: str, **parameters: object) -> Any:
        self._n_calls += 1
        await self._socket.send_json({"id": self._n_calls, "method": method, "params": parameters} | self._session)
        while (heard := await self._socket.receive_json()).get("id") != self._n_calls:
            self._note(heard)
        assert "error" not in heard, heard
        return heard["result"]

    def _note(self, heard: dict[str, Any]) -> None:
        told = heard.get("params", {})
        if heard.get("method") == "Runtime.consoleAPICalled":
            self._console.append(" ".join(str(one.get("value", one.get("description"))) for one in told["args"]))
        elif heard.get("method") == "Runtime.exceptionThrown":
            self._console.append(str(told["exceptionDetails"]))
        elif heard.get("method") == "Log.entryAdded":
            self._console.append(told["entry"]["text"])
