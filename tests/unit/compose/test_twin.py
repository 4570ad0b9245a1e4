"""The second gateway that keeps the first one's code at hand."""

import asyncio
from random import Random

from stayfast.compose.twin import LINGER_S, Twin, keep_warm
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
    """After the start for a while; then only while two came within that time, none under load, none where it is off."""
    at_start = _passes(ServerConfig(keep_warm_per_s=100), rps=0.0, seconds=10.0)
    assert 20 <= at_start <= LINGER_S * 100
    assert _passes(ServerConfig(keep_warm_per_s=100), rps=2.0, seconds=10.0) == at_start
    seldom = _passes(ServerConfig(keep_warm_per_s=100), rps=20.0, seconds=10.0)
    assert 750 <= seldom <= 820  # of 1,000 gaps, the 200 in which a request came are warm without
    assert _passes(ServerConfig(keep_warm_per_s=100), rps=1000.0, seconds=10.0) <= 2
    assert _passes(ServerConfig(keep_warm_per_s=0), rps=20.0, seconds=10.0) == 0


def test_it_ends_when_nobody_asks_any_more() -> None:
    """A burst is followed by passes for a while, and then by none."""
    config = ServerConfig(keep_warm_per_s=100)
    lingering = _passes(config, rps=20.0, seconds=1.0, idle_s=60.0) - _passes(config, rps=20.0, seconds=1.0)
    assert 20 <= lingering <= LINGER_S * 100 + 1


def test_a_late_loop_is_left_alone() -> None:
    """Where each wait ends late by more than a gap, the core is busy with something else: no pass is added to it."""
    assert _passes(ServerConfig(keep_warm_per_s=100), rps=20.0, seconds=10.0, busy_s=0.025) == 0
    assert _passes(ServerConfig(keep_warm_per_s=100), rps=20.0, seconds=10.0, busy_s=0.005) > 100


def _passes(config: ServerConfig, rps: float, seconds: float, idle_s: float = 0.0, busy_s: float = 0.0) -> int:
    """Of the twin, beside an edge that begins `rps` answers a second."""
    async def main(loop: SimLoop) -> int:
        edge = Twin(loop, Random(1), _raise).edge
        edge.current.config = config
        made: list[Twin] = []

        def counted() -> Twin:
            made.append(Twin(loop, Random(1), _raise))
            return made[0]

        async def busy() -> None:
            while True:
                await asyncio.sleep(0.001)
                loop.stall(busy_s)

        tasks = [loop.create_task(busy()), loop.create_task(keep_warm(edge, loop, counted))]
        for _ in range(int(seconds * (rps or 1))):
            await asyncio.sleep(1 / (rps or 1))
            if rps:
                edge.common("id")
        await asyncio.sleep(idle_s)
        for task in tasks:
            task.cancel()
        return made[0].edge.n_answers if made else 0

    return run(main)


def _raise(error: BaseException) -> None:
    raise error
