"""The second gateway that keeps the first one's code at hand."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from stayfast.compose.twin import Astray, Twin
from stayfast.server.config import ServerConfig
from stayfast.testing.simloop import SimLoop, run


def test_a_pass_runs_the_whole_path_and_leaves_nothing_behind() -> None:
    """Status, both words of the canned answer and the end of the stream; then no request, place or task is held."""
    async def main(loop: SimLoop) -> None:
        twin = Twin(loop, Random(1), _raise)
        for _ in range(3):
            answer = await twin.ask()
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b'"Yes"' in answer
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") or b": server-timing" in answer
        await asyncio.sleep(0)
        [member] = twin.system.registry
        assert (member.n_in_flight, len(twin.edge.tasks), len(twin.server.connections)) == (0, 0, 1)

    run(main)


def test_it_goes_on_after_its_connection_was_closed_as_idle() -> None:
    """Hours without a request close its one connection; the next pass opens another."""
    async def main(loop: SimLoop) -> None:
        twin = Twin(loop, Random(1), _raise)
        await twin.ask()
        await asyncio.sleep(ServerConfig().idle_timeout_s * 2)
        assert len(twin.server.connections) == 0
        assert (await twin.ask()).startswith(b"HTTP/1.1 200")

    run(main)


def test_an_answer_that_is_an_error_has_gone_astray() -> None:
    """Nothing waits for the end of a stream that never began."""
    async def main(loop: SimLoop) -> None:
        twin = Twin(loop, Random(1), _raise)
        twin.server.drain()
        with pytest.raises(Astray):
            await twin.ask()

    run(main)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_pass_that_is_cut_off_has_gone_astray(has_begun: bool) -> None:
    """Its connection was closed under it; the next pass opens another."""
    async def main(loop: SimLoop) -> None:
        twin = Hearing(loop, Random(1), _raise)
        asked = loop.create_task(twin.ask())
        await asyncio.sleep(0)
        while has_begun and not twin.heard:
            await asyncio.sleep(0)
        [connection] = twin.server.connections
        connection.abort()
        with pytest.raises(Astray):
            await asked
        assert (await twin.ask()).startswith(b"HTTP/1.1 200")

    run(main)


def test_the_canned_answer_comes_in_two_parts() -> None:
    """First token and rest, as from an upstream: what is written for the first is written alone."""
    async def main(loop: SimLoop) -> None:
        twin = Hearing(loop, Random(1), _raise)
        await twin.ask()
        assert [b'"Yes"' in data for data in twin.heard] == [True, *[False] * (len(twin.heard) - 1)]
        assert len(twin.heard) > 1

    run(main)


class Hearing(Twin):
    """One whose client keeps what it read, read by read."""

    def __init__(self, clock: SimLoop, rng: Random, on_error: Callable[[BaseException], None]) -> None:
        super().__init__(clock, rng, on_error)
        self.heard: list[bytes] = []

    def _hear(self, data: bytes) -> None:
        self.heard.append(data)
        super()._hear(data)


def _raise(error: BaseException) -> None:
    raise error
