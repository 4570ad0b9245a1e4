"""A page in a real browser, over the DevTools protocol: looked at when it is ready, however long the machine takes."""

import asyncio
import os
import re
import shutil
import signal
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
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
    async def main() -> tuple[str, list[str]]:
        async with asyncio.timeout(_ENDS_S), open_tab(folder) as tab:
            if width is not None:
                await tab.set_view(width, 844, is_phone=True)
            await tab.open(url, until)
            return await tab.evaluate("document.documentElement.outerHTML"), tab.console

    return asyncio.run(main())


@asynccontextmanager
async def open_tab(folder: Path) -> AsyncIterator["Tab"]:
    """The first tab of a browser of its own. Skips without a browser, but fails so on CI."""
    if CHROMIUM is None:
        absent("no browser to look at the page with (Debian: apt-get install chromium)")
    async with (_browser(folder) as address, aiohttp.ClientSession() as client,
                client.ws_connect(address, max_msg_size=0) as socket):
        tab = Tab(socket)
        await tab.attach()
        yield tab


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


class Tab:
    """One tab. `console`: what the page and the browser wrote on its console, exceptions and violated policies included."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, ids: Iterator[int] | None = None) -> None:
        self._socket = socket
        self._ids = ids if ids is not None else count(1)
        self._session: dict[str, str] = {}
        self.console: list[str] = []

    async def attach(self, target: str | None = None) -> None:
        """Take over a tab: the only one without `target`."""
        if target is None:
            [tab] = [one for one in (await self._call("Target.getTargets"))["targetInfos"] if one["type"] == "page"]
            target = tab["targetId"]
        attached = await self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Runtime", "Log", "Page", "Network"):
            await self._call(f"{domain}.enable")

    async def open_other(self, url: str) -> "Tab":
        """Another tab of the same browser, which shares this one's connection: use one at a time."""
        made = await self._call("Target.createTarget", url=url)
        other = Tab(self._socket, self._ids)
        await other.attach(made["targetId"])
        return other

    async def open(self, url: str, until: str) -> None:
        """Go to a page, and wait until the JavaScript expression holds in it."""
        assert "errorText" not in (went := await self._call("Page.navigate", url=url)), went
        await self.wait(until)

    async def wait(self, until: str) -> None:
        """Wait until a JavaScript expression holds."""
        look = f"try {{ return Boolean({until}); }} catch {{ return false; }}"
        wait = (f"new Promise((done) => {{ const holds = () => {{ {look} }}; "
                "const look = () => holds() ? done() : setTimeout(look, 20); look(); })")
        held = await self._call("Runtime.evaluate", expression=wait, awaitPromise=True)
        assert "exceptionDetails" not in held, held

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise's once it is there."""
        found = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def press(self, key: str) -> None:
        """Press and release a key: a character, or a name such as Enter."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(key, 0)
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        await self._call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        await self._call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def set_view(self, width: int = 1280, height: int = 800, *, scheme: str = "light", is_phone: bool = False) -> None:
        """The size in CSS pixels, and whether the system is light or dark."""
        await self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                         mobile=is_phone)
        await self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self) -> bytes:
        """A screenshot of what is in view, as PNG."""
        return b64decode((await self._call("Page.captureScreenshot", format="png"))["data"])

    async def _call(self, method: str, **parameters: object) -> Any:
        number = next(self._ids)
        session = {} if method.startswith("Target.") else self._session
        await self._socket.send_json({"id": number, "method": method, "params": parameters} | session)
        while (heard := await self._socket.receive_json()).get("id") != number:
            if not self._session or heard.get("sessionId") == self._session["sessionId"]:
                self._note(heard)
        assert "error" not in heard, heard
        return heard["result"]

    def _note(self, heard: dict[str, Any]) -> None:
        told = heard.get("params", {})
        if heard.get("method") == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(one.get("value", one.get("description"))) for one in told["args"]))
        elif heard.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(told["exceptionDetails"]))
        elif heard.get("method") == "Log.entryAdded":
            self.console.append(told["entry"]["text"])
