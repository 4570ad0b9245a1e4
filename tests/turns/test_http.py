"""What a turn has left, on its way out: time-outs and a header, through the real clients, against a local server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import Budget, OutOfTime, StepTimeout, budget
from stayfast.turns.http import HEADER, aiohttp_middleware, deadline_headers, httpx_hook, httpx_sync_hook, sdk_options

SLOW = b"/slow"


class Server:
    """Answers everything with an empty object, and keeps what it was told; what asks for /slow is not answered."""

    def __init__(self) -> None:
        self.told_ms: list[float | None] = []
        self._n_open = 0
        self.all_left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        self._n_open += 1
        self.all_left.clear()
        head = await reader.readuntil(b"\r\n\r\n")
        told = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(HEADER.encode() + b":")]
        self.told_ms.append(float(told[0]) if told else None)
        if SLOW in head.split(b"\r\n")[0]:
            await reader.read()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()
        self._n_open -= 1
        if not self._n_open:
            self.all_left.set()


def through(ask: Callable[[str, Budget], Awaitable[None]], total: float = 5.0) -> list[float | None]:
    """Ask the server in a budget; what it was told."""
    async def main() -> list[float | None]:
        served = Server()
        async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with budget(total) as b:
                await ask(url, b)
            await served.all_left.wait()
        return served.told_ms

    return asyncio.run(main())


@pytest.mark.sockets
def test_httpx_hook_sends_the_deadline() -> None:
    async def ask(url: str, b: Budget) -> None:
        async with httpx.AsyncClient(event_hooks={"request": [httpx_hook]}, timeout=30) as client:
            await client.get(url)
            await b.run(client.get, url, cap=1.0)
            with pytest.raises(httpx.ReadTimeout):
                await client.get(f"{url}/slow", timeout=0.02)

    whole, capped, _ = through(ask)
    assert whole is not None
    assert capped is not None
    assert 1000 < whole <= 5000
    assert capped <= 1000


@pytest.mark.sockets
def test_httpx_hook_limits_timeouts_to_the_time_left() -> None:
    async def ask(url: str, b: Budget) -> None:
        async def slow() -> None:
            async with httpx.AsyncClient(event_hooks={"request": [httpx_hook]}, timeout=30) as client, budget(0.3):
                await client.get(f"{url}/slow")

        def look_up() -> None:
            with httpx.Client(event_hooks={"request": [httpx_sync_hook]}, timeout=30) as client:
                client.get(f"{url}/slow")

        with pytest.raises((httpx.ReadTimeout, OutOfTime)):
            await slow()
        with pytest.raises((httpx.ReadTimeout, StepTimeout)):
            await b.run(look_up, cap=0.3)

    assert asyncio.run(_elapsed(lambda: asyncio.to_thread(through, ask))) < 5


@pytest.mark.sockets
def test_aiohttp_middleware_limits_the_response() -> None:
    async def ask(url: str, b: Budget) -> None:
        async with aiohttp.ClientSession(middlewares=[aiohttp_middleware]) as session:
            async with session.get(url) as response:
                assert await response.read() == b"{}"

            async def slow() -> None:
                async with budget(0.3), session.get(f"{url}/slow"):
                    pass

            with pytest.raises(TimeoutError):  # OutOfTime is one
                await slow()

    whole, short = through(ask)
    assert whole is not None
    assert short is not None
    assert 300 < whole <= 5000
    assert short <= 300


@pytest.mark.sockets
def test_sdk_options_for_openai_and_anthropic() -> None:
    async def ask(url: str, b: Budget) -> None:
        client = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], **sdk_options())
        other = anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0)
        await other.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}], **sdk_options())

        async def slow() -> None:
            async with budget(0.5):
                await client.with_options(base_url=f"{url}/slow").models.list(**sdk_options())

        with pytest.raises((openai.APITimeoutError, OutOfTime)):
            await slow()
        await client.close()
        await other.close()

    told = through(ask)
    assert [ms is not None and ms <= limit_ms for ms, limit_ms in zip(told, (5000, 5000, 500), strict=True)] == [True] * 3


def test_http_helpers_without_a_budget_change_nothing() -> None:
    request = httpx.Request("GET", "http://a", extensions={"timeout": {"read": 5.0}})
    httpx_sync_hook(request)
    assert HEADER not in request.headers
    assert request.extensions["timeout"] == {"read": 5.0}
    assert deadline_headers() == {}
    assert sdk_options() == {}


def test_sdk_options_merges_own_timeout_and_headers() -> None:
    own = {"x-team": "a"}

    async def main() -> None:
        async with budget(2.0):
            longer, shorter = sdk_options(timeout=60, extra_headers=own), sdk_options(timeout=0.5)
        assert 1 < longer["timeout"] <= 2
        assert set(longer["extra_headers"]) == {"x-team", HEADER}
        assert shorter["timeout"] == 0.5
        assert int(shorter["extra_headers"][HEADER]) > 1000

    asyncio.run(main())
    assert own == {"x-team": "a"}
    assert sdk_options(timeout=60, extra_headers=own) == {"timeout": 60, "extra_headers": own}


def test_http_helpers_without_time_left_raise_out_of_time() -> None:
    async def main(_: SimLoop) -> None:
        async with budget(0.001):
            await asyncio.sleep(0.003)
            with pytest.raises(OutOfTime, match="no time is left"):
                deadline_headers()

    run(main)


async def _elapsed(what: Callable[[], Awaitable[Any]]) -> float:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await what()
    return loop.time() - began_at
