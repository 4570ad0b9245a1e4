"""Answers that are older than their route wants them, on virtual time: given at once, or for want of another."""

import asyncio
from math import inf

import pytest

from stayfast.core.errors import Shed, UpstreamFailed
from stayfast.core.events import AttemptDone, Renewed, RequestDone
from stayfast.core.types import CacheControl
from stayfast.pipeline.exchange import Exchange, OutcomeRecord
from stayfast.pipeline.plan import Admitted
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.cache.freshness import MAX_CLOCK_SKEW_S, Freshness, age_of, freshness_of
from stayfast.testing import SendText, SimLoop, Wait, run
from tests.flow.cache_rig import HELLO, OTHER, strip_key
from tests.flow.rig import chat, read, text_of
from tests.flow.stale_rig import CONFIG, DOWN, StaleRig


@pytest.mark.parametrize(("age_s", "max_age_s", "use"), [
    (60, inf, Freshness.FRESH), (61, inf, Freshness.STALE), (120, inf, Freshness.STALE),
    (121, inf, Freshness.STALE_IF_ERROR), (660, inf, Freshness.STALE_IF_ERROR),
    (661, inf, None), (20, 10, None), (20, 30, Freshness.FRESH), (61, 60, None), (61, 61, Freshness.STALE), (90, 61, None),
    (130, 125, None), (124, 125, Freshness.STALE_IF_ERROR),
])
def test_freshness_of_an_answer_by_its_age(age_s: float, max_age_s: float, use: Freshness | None) -> None:
    """Fresh, stale, stale-if-error, gone, in this order; beyond the max-age of the client, which may be longer, it is gone.
    """
    assert freshness_of(CONFIG, age_s, max_age_s) is use


@pytest.mark.parametrize(("ahead_s", "age_s"), [(-60, 60), (0, 0), (MAX_CLOCK_SKEW_S, 0), (MAX_CLOCK_SKEW_S + 1, inf),
                                                (86_400, inf)])
def test_age_of_an_answer_from_the_future_is_infinite(ahead_s: float, age_s: float) -> None:
    """It would stay fresh until the clock reaches its time. A small skew is permitted."""
    assert age_of(1e9 + ahead_s, 1e9) == age_s
    assert freshness_of(CONFIG, inf) is None


def test_cache_answer_from_a_clock_ahead_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the new one has the present time."""

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


def test_stale_answer_is_served_at_once_and_refreshed() -> None:
    """One call is made in the background, and the next request gets its answer."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, OTHER)
        assert await rig.text() == "Hello"
        await asyncio.sleep(90)
        began_at = loop.now()
        replies = [await rig.serve_request() for _ in range(5)]
        assert {strip_key(reply.cache) for reply in replies} == {"stale; kind=exact; age=90"}
        assert {reply.degraded for reply in replies} == {None}
        assert [text_of(await read(reply)) for reply in replies] == ["Hello"] * 5
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


def test_stale_refresh_is_joined_by_a_request_that_needs_a_new_answer() -> None:
    """The old answer has become too old to be served."""

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


def test_stale_refresh_failure_fails_no_request() -> None:
    """The stale answer is served, and each request starts one call."""

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


def test_stale_answer_for_only_if_cached_starts_no_refresh() -> None:
    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO)
        await rig.text()
        await asyncio.sleep(70)
        assert await rig.text(control=CacheControl(only_if_cached=True)) == "Hello"
        await asyncio.sleep(230)  # past where it would be renewed behind its reader's back
        reply = await rig.serve_request(control=CacheControl(only_if_cached=True))
        assert (strip_key(reply.cache), reply.degraded) == ("stale; kind=exact; age=300", "stale")
        assert b"Hel" in await read(reply)
        await asyncio.sleep(400)
        with pytest.raises(Shed, match="only-if-cached"):
            await rig.serve_request(control=CacheControl(only_if_cached=True))
        assert rig.n_calls == 1

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_stale_if_error_answer_replaces_a_failure(stream: bool) -> None:
    """Within stale_if_error_s, marked as degraded."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, DOWN, DOWN)
        await rig.text()
        await asyncio.sleep(300)
        reply = await rig.serve_request(chat(stream=stream))
        assert strip_key(reply.cache) == "stale; kind=exact; age=300"
        assert (reply.degraded, reply.upstream) == ("stale", "(cache)")
        assert b"Hel" in await read(reply)
        done = rig.sink.facts_of(RequestDone)[-1]
        assert (done.status, done.cache, done.degraded, len(done.attempts)) == (200, "stale", "stale", 1)
        await asyncio.sleep(400)
        with pytest.raises(UpstreamFailed):
            await rig.text()
        rig.check_clean()

    run(main)


def test_stale_if_error_answer_replaces_a_deadline() -> None:
    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, [Wait(50), SendText("late")])
        await rig.text()
        await asyncio.sleep(300)
        began_at = loop.now()
        assert await rig.text(total_s=2.0) == "Hello"
        assert loop.now() == pytest.approx(began_at + 2.0)
        rig.check_clean()

    run(main)


def test_stale_if_error_answer_serves_all_requests_of_a_failed_call() -> None:
    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, DOWN, DOWN)
        await rig.text()
        await asyncio.sleep(300)
        assert set(await asyncio.gather(*[rig.text() for _ in range(10)])) == {"Hello"}
        assert len(rig.sink.facts_of(AttemptDone)) <= 3
        rig.check_clean()

    run(main)


def test_stale_if_error_answer_with_an_open_breaker_needs_no_call() -> None:
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
        reply = await rig.serve_request()
        assert text_of(await read(reply)) == "Hello"
        assert (reply.degraded, rig.n_calls, loop.now()) == ("stale", n_calls, began_at)
        rig.check_clean()

    run(main)


def test_stale_refresh_is_admitted_as_batch() -> None:
    """Of the same tenant; without a place the stale answer is served, too."""

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


def test_exchange_detach_and_fork_keep_all_fields() -> None:
    async def main(loop: SimLoop) -> None:
        class Recorder:
            """Admits all, and keeps their exchanges."""

            def __init__(self) -> None:
                self.exchanges: list[Exchange] = []

            async def admit(self, ex: Exchange) -> Admitted:
                self.exchanges.append(ex)
                return Admitted(lambda: None)

        recorder = Recorder()
        rig = StaleRig(loop, HELLO, admit=recorder)
        reply = await rig.serve_request()
        (ex,) = recorder.exchanges
        other = ex.detach(record := ex.record.fork())
        changed = {name for name in Exchange.__slots__ if getattr(other, name) is not getattr(ex, name)}
        assert changed == {"record", "timeouts"}
        assert other.record is record
        assert all(getattr(record, name) is getattr(ex.record, name) for name in OutcomeRecord.__struct_fields__)
        reply.close()

    run(main)


def test_stale_answer_is_not_served_beyond_max_age() -> None:
    """max-age=60 where ttl_s is 60: an answer of 90 s is not served."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, OTHER)
        assert await rig.text() == "Hello"
        await asyncio.sleep(90)
        assert await rig.text(control=CacheControl(max_age_s=60)) == "other"
        assert rig.results == ["miss", "miss"]

    run(main)
