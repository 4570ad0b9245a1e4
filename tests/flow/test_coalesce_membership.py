"""Calls that many share, and who joins and leaves them when; what is stored of them, and that nothing is left behind."""

import asyncio
import gc
from typing import cast

import pytest

from stayfast.core.errors import DeadlineExceeded
from stayfast.core.events import AttemptDone, RequestDone, Rescued
from stayfast.core.types import Outcome
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.stores.base import CachedAnswer
from stayfast.stores.memory import MemoryStore
from stayfast.testing import SendText, SimLoop, Wait, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.cache_rig import HELLO, OTHER, CacheRig
from tests.flow.midstream_rig import HALT, TEXT, ContinuingUpstream, failover_rig
from tests.flow.rig import MODEL, chat, read, text_of


def test_coalesce_miss_leaves_no_reference_cycles() -> None:
    async def main(loop: SimLoop) -> None:
        n_asked = 40
        rig = CacheRig(loop, *[HELLO] * (2 * n_asked + 4))
        for n in range(4):
            await rig.text(chat(seed=n))
        for is_stream in (True, False):
            gc.collect()
            gc.disable()
            try:
                for n in range(n_asked):
                    await rig.text(chat(stream=is_stream, seed=100 * (1 + is_stream) + n))
                assert gc.collect() < n_asked
            finally:
                gc.enable()
        assert rig.results == ["miss"] * (2 * n_asked + 4)

    run(main)


def test_coalesce_request_during_the_store_write_gets_the_answer() -> None:
    """The call stays joinable until its answer is stored."""

    class Slow(MemoryStore):
        async def put(self, key: bytes, kept: CachedAnswer) -> None:
            await asyncio.sleep(1.0)
            await super().put(key, kept)

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER)
        rig.route_cache.store = cast("MemoryStore", WrappedStore(Slow(1_000_000)))

        async def body() -> bytes:
            reply = await rig.serve_request(chat(stream=False))
            try:
                return await read(reply)
            finally:
                reply.close()

        first = asyncio.create_task(body())
        await asyncio.sleep(0.8)
        assert b'"Hello"' in await body()
        assert b'"Hello"' in await first
        assert b'"Hello"' in await body()
        assert rig.results == ["coalesced", "miss", "hit"]

    run(main)


def test_coalesce_hedge_admitted_as_the_last_client_leaves_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head comes in the turn of the loop in which the last client leaves."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a")], [SendText("b"), Wait(9.0), SendText("c")])
        rig.change_route(hedging=Hedging(HedgeConfig("race", race_after_s=0.1), RetryConfig()))
        heads: list[asyncio.Future[None]] = []
        opens = rig.scripted[0].open

        async def open_later(call: Call) -> AnswerStream:
            stream = await opens(call)
            heads.append(loop.create_future())
            try:
                await heads[-1]
            except BaseException:
                stream.close()
                raise
            return stream

        monkeypatch.setattr(rig.scripted[0], "open", open_later)
        errors: list[object] = []
        loop.set_exception_handler(lambda _, said: errors.append(said))
        leader, other = asyncio.create_task(rig.text()), asyncio.create_task(rig.text())
        await asyncio.sleep(0.3)
        assert len(heads) == 2
        leader.cancel()
        await asyncio.sleep(0.1)
        other.cancel()
        heads[1].set_result(None)
        await asyncio.gather(leader, other, return_exceptions=True)
        await asyncio.sleep(1.0)
        assert errors == []
        rig.check_clean()

    run(main)


class WrappedStore:
    """A store that is no `MemoryStore`, though all it does is done by one."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.mark.parametrize("leaves_after_s", [1.6, 2.0])
def test_coalesce_late_client_outlives_the_maker(leaves_after_s: float) -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(1.0), SendText("b"), Wait(1.0), SendText("c"), Wait(1.0), SendText("d")])

        async def late() -> str:
            await asyncio.sleep(1.5)
            return await rig.text()

        async def first() -> None:
            reply = await rig.serve_request()
            try:
                await read(reply)
            finally:
                reply.close()

        leader, other = asyncio.create_task(first()), asyncio.create_task(late())
        await asyncio.sleep(leaves_after_s)
        leader.cancel()
        assert await other == "abcd"
        assert loop.now() == pytest.approx(3.0)
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert attempt.outcome is Outcome.SUCCESS
        assert [len(fact.attempts) for fact in rig.sink.facts_of(RequestDone)] == [0, 1]
        rig.check_clean()

    run(main)


@pytest.mark.parametrize("who_leaves", ["nobody", "other", "leader"])
def test_coalesce_whole_answer_survives_a_client_that_leaves(who_leaves: str) -> None:
    """One call is made, its answer is stored, and nothing stays held."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)

        async def ask() -> bytes:
            return await read(await rig.serve_request(chat(stream=False)))

        leader = asyncio.create_task(ask())
        await asyncio.sleep(0.1)
        other = asyncio.create_task(ask())
        await asyncio.sleep(0.1)
        leaving = {"other": other, "leader": leader}.get(who_leaves)
        if leaving is not None:
            leaving.cancel()
        given = await asyncio.gather(leader, other, return_exceptions=True)
        has_it = [isinstance(body, bytes) and b'"Hello"' in body for body in given]
        assert has_it == [who_leaves != "leader", who_leaves != "other"]
        assert b'"Hello"' in await ask()
        assert (rig.n_calls, len(rig.calls)) == (1, 0)
        rig.check_clean()

    run(main)


def test_coalesce_whole_answer_is_stored_before_it_is_read() -> None:
    """Its client leaves without reading, and the next request is a hit."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO)
        reply = await rig.serve_request(chat(stream=False))
        assert (reply.cache, reply.upstream, len(rig.calls)) == ("miss; kind=exact", "up0", 0)
        reply.close()
        again = await rig.serve_request(chat(stream=False))
        assert b'"Hello"' in await read(again)
        assert (rig.results, rig.n_calls) == (["miss", "hit"], 1)
        rig.check_clean()

    run(main)


def test_coalesce_maker_that_does_not_read_delays_no_other_client() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(1.0), SendText("b"), Wait(1.0), SendText("c")])
        reply = await rig.serve_request()
        lead = await reply.next()
        assert lead is not None
        assert text_of(lead.data) == "a"
        await asyncio.sleep(0.5)
        assert await rig.text() == "abc"
        assert loop.now() == pytest.approx(2.0)
        await asyncio.sleep(10)
        assert text_of(await read(reply)) == "bc"
        assert [fact.cache for fact in rig.sink.facts_of(RequestDone)] == ["coalesced", "miss"]
        assert rig.n_calls == 1
        rig.check_clean()

    run(main)


def test_coalesce_deadline_of_the_maker_leaves_other_clients() -> None:
    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, [SendText("a"), Wait(2.0), SendText("b")])

        async def late() -> str:
            await asyncio.sleep(0.5)
            return await rig.text()

        first, second = await asyncio.gather(rig.text(total_s=1.0), late(), return_exceptions=True)
        assert isinstance(first, DeadlineExceeded)
        assert (first.code, second) == ("total_s_exceeded", "ab")
        assert rig.n_calls == 1
        rig.check_clean()

    run(main)


def test_coalesce_two_clients_leave_in_the_same_turn() -> None:
    """The maker and its successor: the third client gets the answer, and pays."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, OTHER)
        tasks = [asyncio.create_task(rig.text()) for _ in range(3)]
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        tasks[1].cancel()
        assert await tasks[2] == "Hello"
        assert rig.n_calls == 1
        assert sum(len(fact.attempts) for fact in rig.sink.facts_of(RequestDone)) == 1
        rig.check_clean()

    run(main)


def test_coalesce_midstream_failover_works_after_the_maker_left() -> None:
    """The check for stalls, armed under the time-outs of the maker, goes on."""

    async def main(loop: SimLoop) -> None:
        halting, going = ContinuingUpstream("up0", loop, {12: HALT}), ContinuingUpstream("up1", loop)
        rig = failover_rig(loop, halting, going)
        caching = RouteCache(CacheConfig("exact", max_temperature=1.0), MODEL, MemoryStore(1 << 20))
        rig.change_policy(cache=caching)

        async def first() -> None:
            reply = await rig.serve()
            try:
                await read(reply)
            finally:
                reply.close()

        leader = asyncio.create_task(first())
        await asyncio.sleep(0.1)
        other = asyncio.create_task(rig.serve())
        await asyncio.sleep(0.25)
        leader.cancel()
        assert text_of(await read(await other)) == TEXT
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == ["rescued"]
        assert loop.now() < 20
        await asyncio.sleep(0)
        assert (rig.n_in_flight, rig.n_open, len(rig.calls)) == (0, 0, 0)

    run(main)
