"""Answers that are older than their route wants them, on virtual time: given at once, or for want of another."""

import asyncio
from math import inf

import pytest

from stayfast.core.errors import Fault, Shed, UpstreamFailed
from stayfast.core.events import AttemptDone, Renewed, RequestDone
from stayfast.core.types import CacheControl
from stayfast.pipeline.exchange import Exchange, OutcomeRecord
from stayfast.pipeline.plan import Admitted
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.cache.freshness import MAX_CLOCK_SKEW_S, CacheConfig, Freshness, age_of, freshness_of
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.cache_rig import HELLO, OTHER, CacheRig, without_key
from tests.flow.rig import chat, read, said

CONFIG = CacheConfig("exact", ttl_s=60, max_temperature=1, stale_while_revalidate_s=60, stale_if_error_s=600)
DOWN: Script = [Wait(0.1), Fail(Fault.RESET)]


class StaleRig(CacheRig):
    """A route that gives old answers."""

    def __init__(self, loop: SimLoop, *scripts: Script, admit: Admit | None = None) -> None:
        super().__init__(loop, *scripts, config=CONFIG, admit=admit)


@pytest.mark.parametrize(("age_s", "max_age_s", "use"), [
    (60, inf, Freshness.FRESH), (61, inf, Freshness.STALE), (120, inf, Freshness.STALE),
    (121, inf, Freshness.STALE_IF_ERROR), (660, inf, Freshness.STALE_IF_ERROR),
    (661, inf, None), (20, 10, None), (20, 30, Freshness.FRESH), (61, 60, None), (61, 61, Freshness.STALE), (90, 61, None),
    (130, 125, None), (124, 125, Freshness.STALE_IF_ERROR),
])
def test_what_an_answer_of_an_age_is_good_for(age_s: float, max_age_s: float, use: Freshness | None) -> None:
    """Fresh, stale, spare, gone, in this order; beyond its client's own max-age, which may be the longer one, it is gone."""
    assert freshness_of(CONFIG, age_s, max_age_s) is use


@pytest.mark.parametrize(("ahead_s", "age_s"), [(-60, 60), (0, 0), (MAX_CLOCK_SKEW_S, 0), (MAX_CLOCK_SKEW_S + 1, inf),
                                                (86_400, inf)])
def test_an_answer_from_the_future_is_too_old_for_anything(ahead_s: float, age_s: float) -> None:
    """Its clock was ahead: counted from there it would stay young until the real time gets there. Clocks differ a little."""
    assert age_of(1e9 + ahead_s, 1e9) == age_s
    assert freshness_of(CONFIG, inf) is None


def test_what_was_kept_by_a_clock_that_was_ahead_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the new one is stamped by the clock as it is now."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, OTHER)
        with monkeypatch.context() as patched:
            wall = loop.wall
            patched.setattr(loop, "wall", lambda: wall() + 86_400)
            for _ in range(2):
                assert await rig.text() == "Hello"
                await asyncio.sleep(1)
        assert rig.n_calls == 1
        for _ in range(2):
            assert await rig.text() == "other"
            await asyncio.sleep(1)
        assert rig.results == ["miss", "hit", "miss", "hit"]

    run(main)


def test_an_old_answer_is_given_at_once_and_made_again() -> None:
    """Nobody waits for the new one, of which there is one call, and which the next one gets."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, OTHER)
        assert await rig.text() == "Hello"
        await asyncio.sleep(90)
        began_at = loop.now()
        replies = [await rig.ask() for _ in range(5)]
        assert {without_key(reply.cache) for reply in replies} == {"stale; kind=exact; age=90"}
        assert {reply.degraded for reply in replies} == {None}
        assert [said(await read(reply)) for reply in replies] == ["Hello"] * 5
        assert loop.now() == began_at
        await asyncio.sleep(1)
        assert await rig.text() == "other"
        assert rig.results == ["miss"] + ["stale"] * 5 + ["hit"]
        (renewed,) = rig.sink.facts_of(Renewed)
        assert renewed.result == "refreshed"
        assert renewed.seconds == pytest.approx(0.25)
        assert rig.n_calls == 2
        assert [attempt.role for attempt in rig.sink.facts_of(AttemptDone)] == ["first", "refresh"]
        rig.check_clean()

    run(main)


def test_whoever_asks_for_it_anew_shares_the_call_behind() -> None:
    """Once the old answer is too old to be given, the call that is under way in the background is as good as any."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, [Wait(30), SendText("slow")])
        await rig.text()
        await asyncio.sleep(110)
        assert await rig.text() == "Hello"
        await asyncio.sleep(15)
        assert await rig.text() == "slow"
        assert rig.results == ["miss", "stale", "coalesced"]
        assert rig.n_calls == 2
        await asyncio.sleep(0)
        rig.check_clean()

    run(main)


def test_what_fails_behind_hurts_nobody() -> None:
    """The old answer goes on being given, and each time one call is tried."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, DOWN, DOWN, OTHER)
        await rig.text()
        await asyncio.sleep(70)
        for _ in range(3):
            assert await rig.text() == "Hello"
            await asyncio.sleep(1)
        assert await rig.text() == "other"
        assert [fact.result for fact in rig.sink.facts_of(Renewed)] == ["failed", "failed", "refreshed"]
        rig.check_clean()

    run(main)


def test_only_if_cached_has_nothing_made() -> None:
    """It takes what is there, old or not, and causes no call."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO)
        await rig.text()
        await asyncio.sleep(70)
        assert await rig.text(control=CacheControl(only_if_cached=True)) == "Hello"
        await asyncio.sleep(230)  # past where it would be renewed behind its reader's back
        reply = await rig.ask(control=CacheControl(only_if_cached=True))
        assert (without_key(reply.cache), reply.degraded) == ("stale; kind=exact; age=300", "stale")
        assert b"Hel" in await read(reply)
        await asyncio.sleep(400)
        with pytest.raises(Shed, match="only-if-cached"):
            await rig.ask(control=CacheControl(only_if_cached=True))
        assert rig.n_calls == 1

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_an_old_answer_instead_of_an_error(stream: bool) -> None:
    """When the call fails, an answer of within stale_if_error_s is given, and marked as what it is."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, DOWN, DOWN)
        await rig.text()
        await asyncio.sleep(300)
        reply = await rig.ask(chat(stream=stream))
        assert without_key(reply.cache) == "stale; kind=exact; age=300"
        assert (reply.degraded, reply.upstream) == ("stale", "(cache)")
        assert b"Hel" in await read(reply)
        done = rig.sink.facts_of(RequestDone)[-1]
        assert (done.status, done.cache, done.degraded, len(done.attempts)) == (200, "stale", "stale", 1)
        await asyncio.sleep(400)
        with pytest.raises(UpstreamFailed):
            await rig.text()
        rig.check_clean()

    run(main)


def test_an_old_answer_when_the_time_is_up() -> None:
    """Its deadline is no reason to have nothing."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, [Wait(50), SendText("late")])
        await rig.text()
        await asyncio.sleep(300)
        began_at = loop.now()
        assert await rig.text(total_s=2.0) == "Hello"
        assert loop.now() == pytest.approx(began_at + 2.0)
        rig.check_clean()

    run(main)


def test_all_who_share_a_failed_call_get_the_old_answer() -> None:
    """One failed call, or two, and nobody sees an error."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, DOWN, DOWN)
        await rig.text()
        await asyncio.sleep(300)
        assert set(await asyncio.gather(*[rig.text() for _ in range(10)])) == {"Hello"}
        assert len(rig.sink.facts_of(AttemptDone)) <= 3
        rig.check_clean()

    run(main)


def test_while_the_breaker_is_open_nobody_is_asked() -> None:
    """Where all who could answer are left alone, the old answer comes at once."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, *[DOWN] * 50)
        await rig.text()
        await asyncio.sleep(300)
        member = next(iter(rig.registry))
        for number in range(40):
            with pytest.raises(UpstreamFailed):
                await rig.text(chat(user=str(number)))
            if (load := member.load_of(loop.now())).share == 0 and not load.needs_probe:
                break
        else:
            pytest.fail("the breaker never opened")
        n_calls, began_at = rig.n_calls, loop.now()
        reply = await rig.ask()
        assert said(await read(reply)) == "Hello"
        assert (reply.degraded, rig.n_calls, loop.now()) == ("stale", n_calls, began_at)
        rig.check_clean()

    run(main)


def test_calls_behind_come_in_as_a_batch_does() -> None:
    """They wait for a place of the tenant's, and where there is none the old answer is given all the same."""

    class Door:
        """Lets in what is no batch, and remembers who came."""

        def __init__(self) -> None:
            self.came: list[tuple[str | None, Urgency | None]] = []
            self.n_in = 0

        async def admit(self, ex: Exchange) -> Admitted:
            self.came.append((ex.arrival.tenant, ex.arrival.urgency))
            if ex.arrival.urgency is Urgency.BATCH and len(self.came) < 4:
                raise Shed("No place.", reason="full")
            self.n_in += 1
            return Admitted(self.leave)

        def leave(self) -> None:
            self.n_in -= 1

    async def main(loop: SimLoop) -> None:
        door = Door()
        rig = StaleRig(loop, HELLO, OTHER, admit=door)
        await rig.text(tenant="ann")
        await asyncio.sleep(90)
        for _ in range(2):
            assert await rig.text(tenant="ann") == "Hello"
            await asyncio.sleep(1)
        assert await rig.text(tenant="ann") == "other"
        assert door.came == [("ann", None), ("ann", None), ("ann", Urgency.BATCH), ("ann", None), ("ann", Urgency.BATCH),
                             ("ann", None)]
        assert [fact.result for fact in rig.sink.facts_of(Renewed)] == ["shed", "refreshed"]
        assert door.n_in == 0
        rig.check_clean()

    run(main)


def test_an_exchange_for_another_task_is_whole() -> None:
    """Whatever a request's record holds, the one for its call holds as well."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO)
        reply = await rig.ask()
        ex = reply._ex
        other = ex.detach(record := ex.record.fork())
        changed = {name for name in Exchange.__slots__ if getattr(other, name) is not getattr(ex, name)}
        assert changed == {"record", "timeouts"}
        assert other.record is record
        assert all(getattr(record, name) is getattr(ex.record, name) for name in OutcomeRecord.__slots__)
        reply.close()

    run(main)


def test_a_max_age_of_the_routes_own_length_holds() -> None:
    """max-age=60 where ttl_s is 60: an answer of 90 s is neither given nor put by."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, OTHER)
        assert await rig.text() == "Hello"
        await asyncio.sleep(90)
        assert await rig.text(control=CacheControl(max_age_s=60)) == "other"
        assert rig.results == ["miss", "miss"]

    run(main)
