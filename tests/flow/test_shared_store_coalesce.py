"""Gateways that share a store, on virtual time: one call for all of them, and nobody waits for one that is not made."""

import asyncio
from random import Random

import msgspec
import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.events import RequestDone
from stayfast.core.types import CacheControl, Request
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.cache_rig import HELLO, OTHER, CacheRig
from tests.flow.rig import MODEL, chat, read
from tests.unit.stores.fake_door import FakeDoor, Place

FAR = SharedConfig(local_bytes=0, coalesce_wait_s=2)
ROUND_S = 0.001
WHOLE = chat(stream=False)


class Replica(CacheRig):
    """One gateway."""

    def __init__(self, loop: SimLoop, place: Place, *scripts: Script, seed: int = 1, config: SharedConfig = FAR,
                 cache: CacheConfig | None = None, budget: BudgetConfig | None = None) -> None:
        self.door = FakeDoor(place, loop, ROUND_S)
        super().__init__(loop, *scripts, budget=budget, config=cache)
        store = RemoteStore("s", self.door, config, loop, self.sink, rng=Random(seed))
        self.route_cache.store = store

    async def whole(self, request: Request = WHOLE, control: CacheControl | None = None, total_s: float | None = None
                    ) -> str:
        """What it says to a request for a whole answer."""
        reply = await self.serve_request(request, control, total_s=total_s)
        try:
            text: str = msgspec.json.decode(await read(reply))["choices"][0]["message"]["content"]
            return text
        finally:
            reply.close()


def test_shared_store_one_call_serves_all_gateways() -> None:
    """A hundred requests at each of three gateways: one call, whose answer all have soon after."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        rigs = [Replica(loop, place, HELLO, seed=seed) for seed in range(3)]
        told = await asyncio.gather(*[rig.whole() for rig in rigs for _ in range(100)])
        assert set(told) == {"Hello"}
        assert sum(rig.n_calls for rig in rigs) == 1
        assert loop.now() < 0.35 + 0.15
        assert sorted(str(result) for rig in rigs for result in rig.results) == ["coalesced"] * 299 + ["miss"]
        done = [fact for rig in rigs for fact in rig.sink.facts_of(RequestDone)]
        assert sum(len(fact.attempts) for fact in done) == 1
        assert place.leads == {}
        assert len(place.data) == 1
        for rig in rigs:
            rig.check_clean()
            assert await rig.whole() == "Hello"
            assert rig.results[-1] == "hit"

    run(main)


def test_shared_store_stream_does_not_wait_for_another_gateway() -> None:
    """Its own first token comes before the last one of the other."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, HELLO, seed=1), Replica(loop, place, HELLO, seed=2)
        began_at = loop.now()
        asking = loop.create_task(one.whole())
        reply = await other.serve_request(chat(stream=True))
        assert loop.now() - began_at == pytest.approx(0.25 + ROUND_S)
        await read(reply)
        assert (await asking, one.n_calls, other.n_calls) == ("Hello", 1, 1)
        await asyncio.sleep(1)
        assert place.leads == {}

    run(main)


@pytest.mark.parametrize("failing", [[Fail(Fault.STATUS, status=500)], [Wait(0.3), Fail(Fault.STATUS, status=500)]])
def test_shared_store_leader_that_fails_is_followed_by_a_call(failing: Script) -> None:
    """Soon, and not after the lease of the leader."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, failing, seed=1), Replica(loop, place, OTHER, seed=2)
        asking = loop.create_task(one.whole())
        await asyncio.sleep(ROUND_S * 1.5)
        assert await other.whole() == "other"
        assert loop.now() < 0.3 + 0.25 + 0.15
        with pytest.raises(UpstreamFailed):
            await asking
        assert other.results == ["miss"]
        await asyncio.sleep(1)
        assert place.leads == {}

    run(main)


def test_shared_store_wait_for_a_slow_leader_is_bounded() -> None:
    """After `coalesce_wait_s` the waiting gateway makes its own call."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, [Wait(100), SendText("late")], seed=1), Replica(loop, place, OTHER, seed=2)
        asking = loop.create_task(one.whole())
        await asyncio.sleep(0.5)
        assert await other.whole() == "other"
        assert loop.now() == pytest.approx(2.25, abs=0.05)
        assert other.n_calls == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    run(main)


def test_shared_store_wait_takes_at_most_half_of_the_deadline() -> None:
    """The rest is for its own call."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, [Wait(100), SendText("late")], seed=1), Replica(loop, place, OTHER, seed=2)
        asking = loop.create_task(one.whole())
        await asyncio.sleep(0.1)
        began_at = loop.now()
        assert await other.whole(total_s=1) == "other"
        assert loop.now() - began_at == pytest.approx(0.75, abs=0.03)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    run(main)


def test_shared_store_client_that_leaves_during_the_wait_leaves_nothing() -> None:
    """A leader that leaves ends its lease: the next request leads."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, HELLO, HELLO, seed=1), Replica(loop, place, HELLO, seed=2)
        leading = loop.create_task(one.whole())
        await asyncio.sleep(0.1)
        following = loop.create_task(other.whole())
        await asyncio.sleep(0.05)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        other.check_clean()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        one.check_clean()
        await asyncio.sleep(0.01)
        assert place.leads == {}
        assert await one.whole() == "Hello"

    run(main)


def test_shared_store_wait_goes_on_for_the_other_client() -> None:
    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, HELLO, seed=1), Replica(loop, place, OTHER, seed=2)
        leading = loop.create_task(one.whole())
        await asyncio.sleep(0.1)
        first, second = loop.create_task(other.whole()), loop.create_task(other.whole())
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second == "Hello"
        assert await leading == "Hello"
        await asyncio.gather(first, return_exceptions=True)
        other.check_clean()

    run(main)


def test_shared_store_wait_ignores_an_answer_beyond_max_age() -> None:
    async def main(loop: SimLoop) -> None:
        place = Place()
        config = CacheConfig("exact", max_temperature=1, ttl_s=100)
        one = Replica(loop, place, HELLO, OTHER, seed=1, cache=config)
        other = Replica(loop, place, HELLO, seed=2, cache=config)
        assert await one.whole() == "Hello"
        await asyncio.sleep(10)
        control = CacheControl(max_age_s=5)
        asking = loop.create_task(one.whole(control=control))
        await asyncio.sleep(0.1)
        assert await other.whole(control=control) == "other"
        assert await asking == "other"
        assert other.n_calls == 0

    run(main)


def test_shared_store_no_cache_request_makes_its_own_call() -> None:
    """Its answer is stored for the others."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, HELLO, seed=1), Replica(loop, place, OTHER, seed=2)
        asking = loop.create_task(one.whole())
        await asyncio.sleep(0.1)
        assert await other.whole(control=CacheControl(no_cache=True)) == "other"
        assert await asking == "Hello"
        assert other.n_calls == 1

    run(main)


@pytest.mark.parametrize("harm", ["gone", "slow"])
def test_shared_store_outage_fails_no_request(harm: str) -> None:
    """Requests take the time-out of the store at first, then nothing but one probe a second."""

    async def main(loop: SimLoop) -> None:
        rig = Replica(loop, Place(), *[HELLO] * 20)
        rig.door.is_gone = harm == "gone"
        rig.door.takes_s = 100 if harm == "slow" else ROUND_S
        took_s = []
        for n in range(20):
            began_at = loop.now()
            assert await rig.whole(chat(stream=False, user=str(n))) == "Hello"
            took_s.append(loop.now() - began_at)
        assert max(took_s) <= 0.35 + 2 * FAR.timeout_s + 1e-6
        assert sum(one == pytest.approx(0.35) for one in took_s) >= 10
        assert rig.n_calls == 20
        rig.check_clean()

    run(main)


def test_shared_store_cache_budget_bounds_the_lookup() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Replica(loop, Place(), HELLO, budget=BudgetConfig(cache="0.005"))
        rig.door.takes_s = 100
        began_at = loop.now()
        assert await rig.whole() == "Hello"
        assert loop.now() - began_at <= 0.35 + 0.005 + FAR.timeout_s + 1e-6

    run(main)


def test_shared_store_answer_can_be_purged_by_route_and_tag() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Replica(loop, Place(), HELLO, OTHER)
        await rig.whole(control=CacheControl(tags=("faq",)))
        await asyncio.sleep(1)
        assert await rig.route_cache.store.purge(tag="other") == 0
        assert await rig.route_cache.store.purge(tag="faq", route=MODEL) == 1
        assert await rig.whole() == "other"

    run(main)
