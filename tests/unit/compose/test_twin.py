"""The second gateway that keeps the first one's code at hand."""

import asyncio
from random import Random

from stayfast.compose.twin import LINGER_S, LOOK_EVERY_S, Twin, keep_warm
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
        assert (member.n_in_flight, len(twin.edge.tasks), len(twin.edge.connections)) == (0, 0, 1)

    run(main)


def test_it_goes_on_after_its_connection_was_closed_as_idle() -> None:
    """Hours without a request close its one connection; the next pass opens another."""
    async def main(loop: SimLoop) -> None:
        twin = Twin(loop, Random(1), _raise)
        await twin.ask()
        await asyncio.sleep(ServerConfig().idle_timeout_s * 2)
        assert len(twin.edge.connections) == 0
        assert (await twin.ask()).startswith(b"HTTP/1.1 200")

    run(main)


def test_an_answer_that_is_an_error_ends_the_pass_too() -> None:
    """Nothing waits for the end of a stream that never began."""
    async def main(loop: SimLoop) -> None:
        twin = Twin(loop, Random(1), _raise)
        twin.edge.drain()
        assert (await twin.ask()).startswith(b"HTTP/1.1 503")

    run(main)


def test_passes_are_made_only_while_requests_come_and_come_rarely() -> None:
    """After the start and after a request for a while; none when idle, none under load, none where it is off."""
    assert _passes(ServerConfig(keep_warm_per_s=100), rps=0.0, seconds=10.0) <= LINGER_S * 100 + 1
    seldom = _passes(ServerConfig(keep_warm_per_s=100), rps=10.0, seconds=10.0)
    assert 0.8 * 900 <= seldom <= 900 + LOOK_EVERY_S * 100
    assert _passes(ServerConfig(keep_warm_per_s=100), rps=1000.0, seconds=10.0) <= 2
    assert _passes(ServerConfig(keep_warm_per_s=0), rps=10.0, seconds=10.0) == 0


def _passes(config: ServerConfig, rps: float, seconds: float) -> int:
    """Of the twin, beside an edge that begins `rps` answers a second."""
    async def main(loop: SimLoop) -> int:
        edge = Twin(loop, Random(1), _raise).edge
        edge.current.config = config
        made: list[Twin] = []

        def counted() -> Twin:
            made.append(Twin(loop, Random(1), _raise))
            return made[0]

        warming = loop.create_task(keep_warm(edge, loop, counted))
        for _ in range(int(seconds * (rps or 1))):
            await asyncio.sleep(1 / (rps or 1))
            if rps:
                edge.common("id")
        warming.cancel()
        return made[0].edge.n_answers if made else 0

    return run(main)


def _raise(error: BaseException) -> None:
    raise error
