"""A client that leaves frees the upstream at once, in every state that the upstream's answer can be in."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import openai
import pytest

from tests.clients.asks import prompt
from tests.clients.callers import ASYNC_CALLERS, AsyncCaller
from tests.clients.gateway import Gateway
from tests.clients.leaving import within_limit
from tests.clients.upstream import Seen, Upstream

pytestmark = [pytest.mark.sockets, pytest.mark.serial]


@pytest.fixture(params=list(ASYNC_CALLERS))
def connect(request: pytest.FixtureRequest, gateway: Gateway) -> Callable[[], AsyncCaller]:
    """A client of each API, made on the loop that it shall run on."""
    return lambda: ASYNC_CALLERS[request.param](gateway)


@pytest.mark.parametrize("how", ["whole hang_at_once", "stream hang_at_once", "stream hang_first"])
def test_disconnect_before_first_token_cancels_upstream(
        connect: Callable[[], AsyncCaller], upstream: Upstream, how: str, model: str, marker: str) -> None:
    """Whether the upstream has sent nothing or a head: the call is cancelled, and its connection closes within 50 ms."""
    form, state = how.split()

    async def leave(word: str) -> float:
        async with connect() as caller:
            calling = asyncio.create_task(_call(caller, form, model, prompt(word, state)))
            seen = await asyncio.to_thread(_silent, upstream, word)
            return await _cancel(calling, seen)

    within_limit(lambda word: asyncio.run(leave(word)), marker)


def test_late_disconnect_cancels_upstream(connect: Callable[[], AsyncCaller], upstream: Upstream, model: str,
                                          marker: str) -> None:
    """After a piece of content has come, with more on its way: the connection closes within 50 ms."""
    async def leave(word: str) -> float:
        has_content = asyncio.Event()

        async def read(caller: AsyncCaller) -> None:
            async for _ in caller.pieces(model, prompt(word, "hang_midway")):
                has_content.set()

        async with connect() as caller:
            reading = asyncio.create_task(read(caller))
            async with asyncio.timeout(20):
                await has_content.wait()
            return await _cancel(reading, await asyncio.to_thread(_silent, upstream, word))

    within_limit(lambda word: asyncio.run(leave(word)), marker)


def test_stream_close_cancels_upstream(openai_client: openai.OpenAI, upstream: Upstream, model: str, marker: str) -> None:
    """What most code does, a `with` left early, frees the upstream as fast."""
    def leave(word: str) -> float:
        ask = prompt(word, "hang_midway")
        with openai_client.chat.completions.create(model=model, messages=[{"role": "user", "content": ask}],
                                                   stream=True) as stream:
            next(stream)
            left_at = time.monotonic()
        return upstream.wait_for(word).wait_left() - left_at

    within_limit(leave, marker)


def test_a_stream_read_to_its_end_keeps_the_connection(openai_client: openai.OpenAI, upstream: Upstream, model: str,
                                                       marker: str) -> None:
    """A whole answer is nobody's leaving: the next request goes out on the same connection."""
    for _ in openai_client.responses.create(model=model, input=prompt(marker), stream=True):
        pass
    openai_client.responses.create(model=model, input=prompt(marker))
    first, second = upstream.seen(marker)
    assert first.peer == second.peer


def test_client_timeout_cancels_upstream(openai_client: openai.OpenAI, upstream: Upstream, model: str,
                                           marker: str) -> None:
    """The exception that it has without a gateway, no 504 just before it; and the upstream is free soon after."""
    hasty = openai_client.with_options(timeout=0.7, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        hasty.chat.completions.create(model=model, messages=[{"role": "user", "content": prompt(marker, "hang_at_once")}])
    upstream.wait_for(marker).wait_left()


async def _call(caller: AsyncCaller, form: str, model: str, ask: str) -> None:
    if form == "whole":
        await caller.whole(model, ask)
    else:
        async for _ in caller.pieces(model, ask):
            pass


def _silent(upstream: Upstream, marker: str) -> Seen:
    seen = upstream.wait_for(marker)
    seen.wait_silent()
    return seen


async def _cancel(calling: "asyncio.Task[None]", seen: Seen) -> float:
    """Seconds from the cancellation of `calling` until the upstream's connection is closed."""
    assert not seen.has_left.is_set()
    left_at = time.monotonic()
    calling.cancel()
    with suppress(asyncio.CancelledError):
        await calling
    return await asyncio.to_thread(seen.wait_left) - left_at
