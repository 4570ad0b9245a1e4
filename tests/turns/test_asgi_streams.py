"""What a streaming response of an endpoint streams is a part of its turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse

from stayfast.turns import OutOfTime, current_budget, remaining
from stayfast.turns.asgi import with_budget
from tests.turns.rig import takes

Told = list[dict[str, Any]]
VERSIONS = pytest.mark.parametrize("spec", ["2.3", "2.4"])  # before 2.4 Starlette listens by itself for a client that leaves


class Client:
    """One request, whose client leaves after so many pieces; without that it stays."""

    def __init__(self, app: Any, path: str, spec: str = "2.3", *, leaves_after: int | None = None,
                 headers: dict[str, str] | None = None) -> None:
        self._app = app
        self._leaves_after = leaves_after
        self._has_left = asyncio.Event()
        self._scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()], "http_version": "1.1",
            "scheme": "http", "app": app, "asgi": {"version": "3.0", "spec_version": spec}}
        self._n_received = 0
        self.sent: Told = []

    async def ask(self) -> bytes:
        """The body, as far as it came. Raises what the application raises."""
        await asyncio.create_task(self._app(self._scope, self._receive, self._send))
        return self.body

    @property
    def body(self) -> bytes:
        """What was sent of it."""
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_whole(self) -> bool:
        """Whether it has an end."""
        return self.sent[-1].get("more_body") is False

    async def _receive(self) -> dict[str, Any]:
        self._n_received += 1
        if self._n_received > 1:
            await self._has_left.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if self._leaves_after is not None and len(self.sent) > self._leaves_after:
            self._has_left.set()


def serving(pieces: Callable[[], AsyncIterator[str]], total: float = 5.0, *, takes_request: bool = False,
            background: BackgroundTask | None = None) -> FastAPI:
    """An application with one endpoint that streams."""
    app = FastAPI()

    async def answer() -> StreamingResponse:
        return StreamingResponse(pieces(), headers={"x-of": "endpoint"}, background=background)

    async def of_request(request: Request) -> StreamingResponse:
        return await answer()

    app.get("/")(with_budget(total)(of_request if takes_request else answer))
    return app


@VERSIONS
@pytest.mark.parametrize("takes_request", [False, True])
def test_streamed_body_runs_in_the_budget_of_its_endpoint(spec: str, takes_request: bool) -> None:
    """Its steps have the deadline; afterwards no budget is open."""
    budgets: list[Any] = []

    async def pieces() -> AsyncIterator[str]:
        budgets.append(current_budget())
        yield str(await current_budget().run(takes, 0.01, "one ", name="first"))
        yield str(await current_budget().run(takes, 0.01, "two", name="second", fallback="none"))
        budgets.append(remaining())

    async def main() -> Client:
        client = Client(serving(pieces, takes_request=takes_request), "/", spec, headers={"x-stayfast-deadline-ms": "1000"})
        assert await client.ask() == b"one two"
        assert remaining() == float("inf")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return client

    client = asyncio.run(main())
    assert client.is_whole
    assert (b"x-of", b"endpoint") in client.sent[0]["headers"]
    b, left_s = budgets
    assert [(row.name, row.outcome) for row in b.step_runs] == [("first", "ok"), ("second", "ok")]
    assert 0 < left_s < 1.0
    assert b.ended_at < float("inf")


@VERSIONS
@pytest.mark.parametrize("takes_request", [False, True])
@pytest.mark.parametrize("in_step", [False, True])
def test_streamed_body_out_of_time_is_aborted_and_closed(spec: str, takes_request: bool, in_step: bool) -> None:
    closed: list[float] = []

    async def pieces() -> AsyncIterator[str]:
        try:
            yield "one"
            if in_step:
                await current_budget().run(takes, 60, name="slow")
            await asyncio.sleep(60)
        finally:
            closed.append(remaining())

    async def main() -> Client:
        client = Client(serving(pieces, 0.25, takes_request=takes_request), "/", spec)
        with pytest.raises(TimeoutError):  # OutOfTime, or the step's own
            await client.ask()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return client

    client = asyncio.run(main())
    assert (client.body, client.is_whole, closed) == (b"one", False, [0.0])


@VERSIONS
@pytest.mark.parametrize("waits", [True, False])
def test_streamed_body_disconnect_cancels_it_with_its_steps(spec: str, waits: bool) -> None:
    """Whether it waits for a step or for its reader."""
    closed: list[str] = []

    async def step() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closed.append("step")

    async def pieces() -> AsyncIterator[str]:
        try:
            for _ in range(10_000):
                yield "piece "
                await (current_budget().run(step) if waits else asyncio.sleep(0))
        finally:
            closed.append("body")

    async def main() -> Client:
        async with asyncio.timeout(20):
            client = Client(serving(pieces, 60.0), "/", spec, leaves_after=1)
            await client.ask()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return client

    client = asyncio.run(main())
    assert not client.is_whole
    assert closed == (["step", "body"] if waits else ["body"])


def test_streamed_body_background_runs_after_it_without_a_budget() -> None:
    seen: list[float] = []

    async def pieces() -> AsyncIterator[str]:
        yield "all"

    async def later() -> None:
        await asyncio.sleep(0.3)
        seen.append(remaining())

    async def main() -> Client:
        client = Client(serving(pieces, 0.25, background=BackgroundTask(later)), "/")
        await client.ask()
        return client

    assert asyncio.run(main()).is_whole
    assert seen == [float("inf")]


def test_streamed_response_never_sent_leaves_no_timer_and_no_budget() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "never"

    @with_budget(0.2)
    async def endpoint(request: Request) -> StreamingResponse:
        return StreamingResponse(pieces())

    async def main() -> None:
        async def receive() -> Any:
            return await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            await receive()

        made = await endpoint(Request({"type": "http", "headers": []}, receive))
        assert remaining() == float("inf")
        await asyncio.sleep(0.3)
        made.background = None
        with pytest.raises(OutOfTime):
            await made({"type": "http", "asgi": {}}, receive, send)

    asyncio.run(main())


def test_with_budget_async_generator_raises_with_the_correction() -> None:
    async def endpoint() -> AsyncIterator[str]:
        yield "piece"

    wrong: Any = endpoint
    with pytest.raises(TypeError, match=r"yields: return StreamingResponse\(pieces\(\)\)"):
        with_budget(1.0)(wrong)
