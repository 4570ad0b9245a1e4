"""Whole exchanges by `HttpClient.fetch`: the body and its limit, the time limit, and that nothing is sent twice."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.http.client.response import WholeResponse
from tests.unit.http.client.peers import OK, PROMPT_S, Caller, Talk, listening, on_sockets

pytestmark = pytest.mark.sockets


def fetch(caller: Caller, *, timeout_s: float = 5.0, max_body_bytes: int = 100) -> asyncio.Task[WholeResponse]:
    """Start an exchange."""
    return asyncio.get_running_loop().create_task(caller.client.fetch(
        "POST", "/x", [("a", "b")], b"hi", timeout_s=timeout_s, max_body_bytes=max_body_bytes))


def test_http_fetch_returns_body_and_reuses_connection() -> None:
    """Three exchanges, one connection."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            for _ in range(2):
                fetching = fetch(caller)
                assert (await talk.request()).startswith(b"POST /x HTTP/1.1\r\n")
                talk.say(OK)
                assert await fetching == (200, {"content-length": "2"}, b"ok")
            assert caller.counts == (1, 0)
            caller.client.close()

    on_sockets(main)


def test_http_fetch_reads_at_most_the_limit() -> None:
    """The rest of a long body is left, and its connection closed."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            fetching = fetch(caller, max_body_bytes=3)
            talk = await peer.accept()
            await talk.request()
            talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
            assert (await fetching).body == b"hel"
            assert await talk.left() < PROMPT_S

    on_sockets(main)


async def _silent(talk: Talk) -> None:
    """No response."""
    await talk.request()


async def _slow(talk: Talk) -> None:
    """A response that does not end."""
    await talk.request()
    talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")


@pytest.mark.parametrize("answer", [_silent, _slow])
def test_http_fetch_time_limit_covers_whole_exchange(answer: Callable[[Talk], Awaitable[None]]) -> None:
    """Its socket is closed by then."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            fetching = fetch(caller, timeout_s=0.2)
            talk = await peer.accept()
            await answer(talk)
            with pytest.raises(UpstreamFailed, match=r"took more than 0\.2 s") as failed:
                await fetching
            assert failed.value.fault is Fault.TIMEOUT
            assert await talk.left() < PROMPT_S
            assert caller.counts == (0, 0)

    on_sockets(main)


def test_http_fetch_does_not_repeat_a_sent_request() -> None:
    """The peer closes the used connection when it has read the second request."""

    async def main() -> None:
        async with listening() as peer:
            caller = Caller(peer.port)
            talk = await caller.ask(peer)
            fetching = fetch(caller)
            await talk.request()
            talk.writer.close()
            with pytest.raises(UpstreamFailed) as failed:
                await fetching
            assert failed.value.fault is Fault.RESET

    on_sockets(main)
