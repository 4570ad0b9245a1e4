"""upstreams.state.limiter: the order of waiters, the expected wait, and that no waiter leaves anything behind."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Shed
from stayfast.policy.resilience.cross_process import SharedLimit
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.testing import SimLoop, run
from stayfast.upstreams.state.limiter import ConcurrencyLimiter, LimiterWaiter, LimitOption


def limited(name: str = "up", most: int = 1, max_waiting: int = 100) -> ConcurrencyLimiter:
    """All of its places are taken."""
    made = ConcurrencyLimiter(name, LimitConfig("fixed", max=most, max_waiting=max_waiting), rng=Random(1))
    for _ in range(most):
        made.acquire()
    return made


def choices(*limits: ConcurrencyLimiter, quickest_s: float = 0.0) -> list[LimitOption]:
    """To wait at these."""
    for one in limits:
        one.quickest.seconds = quickest_s
    return [LimitOption(one, quickest_s) for one in limits]


def set_mean_duration(limiter: ConcurrencyLimiter, seconds: float) -> None:
    """The first attempt that ends sets the mean."""
    limiter.release(seconds)
    limiter.acquire()


def empty(of: ConcurrencyLimiter, n_in_flight: int = 0) -> None:
    """No request waits there, and no permit is promised."""
    assert (of.n_in_flight, of.n_taken) == (n_in_flight, n_in_flight)
    assert (of.n_waiting, of.n_waiting_shares, of.n_queued, of.n_waiting_tenants) == (0, 0, 0, 0)


def test_limiter_cancelled_attempt_never_lowers_mean_duration() -> None:
    """A time-out after 0.1 s does not say that places are held for 0.1 s; one after 11 s says that they are for longer."""
    async def main(loop: SimLoop) -> None:
        one = limited(most=3)
        turn = LimiterWaiter(loop, 100.0)
        one.release(1.0)
        assert one.expected_wait_s(turn) == pytest.approx(1 / 3)
        one.release(0.1, has_answered=False)
        assert one.expected_wait_s(turn) == pytest.approx(1 / 3)
        one.release(11.0, has_answered=False)
        assert one.expected_wait_s(turn) == pytest.approx(2 / 3)

    run(main)


def test_limiter_retry_after_is_spread() -> None:
    """Spread over as long again as it takes, each to the millisecond his own."""
    one = limited()
    told = [one.make_shed("so", 4.0).retry_after_s or 0 for _ in range(40)]
    assert len({round(seconds, 3) for seconds in told}) == 40
    assert 4.0 <= min(told) < 4.5 < 7.5 < max(told) <= 8.0
    assert one.make_shed("so", 59.0).retry_after_s == 60.0


async def _order(loop: SimLoop, one: ConcurrencyLimiter, turns: Sequence[LimiterWaiter]) -> list[int]:
    """In which order they are called, one place after the other."""
    called: list[int] = []

    async def wait(number: int, turn: LimiterWaiter) -> None:
        assert await turn.wait(choices(one)) is one
        called.append(number)
        one.acquire()

    tasks = [loop.create_task(wait(number, turn)) for number, turn in enumerate(turns)]
    for _ in turns:
        await asyncio.sleep(0.001)
        one.release(1.0)
    await asyncio.gather(*tasks)
    empty(one, 1)
    return called


def test_limiter_order_is_band_then_tenant_then_deadline() -> None:
    """Equals go as they came; an early deadline first; a quiet tenant among a noisy one's; a high band before all."""
    async def main(loop: SimLoop) -> None:
        def turn(ends_at: float = 100.0, band: int = 2, tenant: str = "", weight: float = 1.0) -> LimiterWaiter:
            return LimiterWaiter(loop, loop.now() + ends_at, band, tenant, weight)

        assert await _order(loop, limited(), [turn(), turn(), turn()]) == [0, 1, 2]
        assert await _order(loop, limited(), [turn(9), turn(8), turn(7)]) == [2, 1, 0]
        assert await _order(loop, limited(), [turn(band=4), turn(band=4), turn(band=0)]) == [2, 0, 1]
        assert await _order(loop, limited(), [turn(tenant="a") for _ in range(4)] + [turn(tenant="b")]) == [0, 4, 1, 2, 3]
        heavy = [turn(tenant="a", weight=3.0) for _ in range(6)] + [turn(tenant="b") for _ in range(2)]
        assert await _order(loop, limited(), heavy) == [0, 6, 1, 2, 3, 7, 4, 5]

    run(main)


def test_limiter_later_deadlines_do_not_starve_an_old_waiter() -> None:
    """By deadlines of those who come ten seconds after it, no longer."""
    async def main(loop: SimLoop) -> None:
        old = LimiterWaiter(loop, 1000.0)
        await asyncio.sleep(8.0)
        assert await _order(loop, limited(), [old, LimiterWaiter(loop, 9.0), LimiterWaiter(loop, 12.0)]) == [1, 0, 2]

    run(main)


def test_limiter_full_queue_evicts_lowest_priority() -> None:
    """Of the lowest band the last; the newcomer itself, where there is no lower one."""
    async def main(loop: SimLoop) -> None:
        one = limited(max_waiting=2)
        low = [loop.create_task(LimiterWaiter(loop, 100.0, 4).wait(choices(one))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Shed, match=r"its queue is full \(2 waiting\)$"):
            await LimiterWaiter(loop, 100.0, 4).wait(choices(one))
        high = loop.create_task(LimiterWaiter(loop, 100.0, 0).wait(choices(one)))
        await asyncio.sleep(0)
        with pytest.raises(Shed, match=r"its queue is full \(2 waiting\) and others have priority"):
            await low[1]
        one.release(1.0)
        assert await high is one
        one.acquire()
        one.release(1.0)
        assert await low[0] is one
        empty(one)

    run(main)


def test_limiter_expected_wait_ignores_lower_bands() -> None:
    """Twenty wait for a second each: another of them could not be served in time, who goes first is."""
    async def main(loop: SimLoop) -> None:
        one = limited()
        set_mean_duration(one, 1.0)
        waiting = [loop.create_task(LimiterWaiter(loop, 100.0, 4).wait(choices(one))) for _ in range(20)]
        await asyncio.sleep(0)
        with pytest.raises(Shed, match="a wait of 21 s for a slot plus up to 1 s for a first token"):
            await LimiterWaiter(loop, 3.0, 4).wait(choices(one, quickest_s=1.0))
        first = loop.create_task(LimiterWaiter(loop, 3.0, 0).wait(choices(one, quickest_s=1.0)))
        await asyncio.sleep(0)
        one.release(1.0)
        assert await first is one
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        empty(one)

    run(main)


def test_limiter_skips_waiter_without_time_left() -> None:
    """Half a second is left when its turn comes, and nobody ever answered in less than one: the next one goes."""
    async def main(loop: SimLoop) -> None:
        one = limited()
        at = choices(one)
        late, next_one = loop.create_task(LimiterWaiter(loop, 1.5).wait(at)), loop.create_task(LimiterWaiter(loop,
                                                                                                             9.0).wait(at))
        await asyncio.sleep(1.0)
        one.quickest.seconds = 1.0
        one.release(1.0)
        with pytest.raises(Shed, match=r"after its wait less time was left than the 1 s of its fastest"):
            await late
        assert loop.now() == 1.0
        assert await next_one is one
        empty(one)

    run(main)


def test_limiter_waiter_at_two_limiters_counts_once() -> None:
    """A quick one and a slow one: the wait is that for either, and each has its part of `max_waiting`."""
    async def main(loop: SimLoop) -> None:
        slow, quick = limited("slow", max_waiting=5), limited("quick", max_waiting=5)
        set_mean_duration(slow, 3.0)
        set_mean_duration(quick, 1.0)
        tasks = [loop.create_task(LimiterWaiter(loop, 100.0).wait(choices(slow, quick))) for _ in range(4)]
        await asyncio.sleep(0)
        assert [slow.n_waiting_shares, quick.n_waiting_shares] == pytest.approx([1.0, 3.0])
        assert (slow.n_waiting, quick.n_waiting, slow.n_queued) == (1, 3, 4)
        with pytest.raises(Shed, match=r"upstream slow is at .* a wait of 3\.8 s for a slot"):  # the fifth, of 4 in 3 s
            await LimiterWaiter(loop, 3.0).wait(choices(slow, quick))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        empty(slow, 1)
        empty(quick, 1)

    run(main)


def test_limiter_waiter_is_refused_only_if_all_limiters_refuse() -> None:
    """Where one lets nobody wait the other does; who is pushed out of one queue waits on in the other."""
    async def main(loop: SimLoop) -> None:
        none, some = limited("none", max_waiting=0), limited("some", max_waiting=1)
        waiting = loop.create_task(LimiterWaiter(loop, 100.0, 4).wait(choices(none, some)))
        await asyncio.sleep(0)
        assert (none.n_waiting, some.n_waiting) == (0, 1)
        with pytest.raises(Shed, match=r"it has no queue|its queue is full \(1 waiting\)"):
            await LimiterWaiter(loop, 100.0, 4).wait(choices(none, some))
        both = limited("both")
        also = loop.create_task(LimiterWaiter(loop, 100.0, 3).wait(choices(some, both)))
        await asyncio.sleep(0)
        with pytest.raises(Shed, match="others have priority"):
            await waiting
        first = loop.create_task(LimiterWaiter(loop, 100.0, 0).wait(choices(some)))
        await asyncio.sleep(0)
        assert (some.n_queued, both.n_waiting_shares) == (1, 1.0)
        both.release(1.0)
        assert await also is both
        some.release(1.0)
        assert await first is some

    run(main)


def test_limiter_place_promised_to_a_cancelled_waiter_goes_to_the_next_waiter() -> None:
    """The place and the cancellation arrive in the same turn of the loop. No other place becomes free later."""
    async def main(loop: SimLoop) -> None:
        one = limited()
        first, second = (loop.create_task(LimiterWaiter(loop, 100.0).wait(choices(one))) for _ in range(2))
        await asyncio.sleep(0)
        one.release(1.0)
        first.cancel()
        async with asyncio.timeout(10):
            assert await second is one
        assert first.cancelled()
        empty(one)

    run(main)


def test_limiter_place_promised_to_the_last_waiter_is_free_after_its_cancellation() -> None:
    """A new request starts at once."""
    async def main(loop: SimLoop) -> None:
        one = limited()
        waiter = loop.create_task(LimiterWaiter(loop, 100.0).wait(choices(one)))
        await asyncio.sleep(0)
        one.release(1.0)
        before = one.has_room
        waiter.cancel()
        await asyncio.wait([waiter])
        assert (before, one.has_room) == (False, True)
        empty(one)

    run(main)


async def _request(loop: SimLoop, limits: Sequence[ConcurrencyLimiter], rng: Random) -> None:
    """One that comes some time, waits at some of them, and holds what it gets for a while."""
    await asyncio.sleep(rng.choice([0.0, 0.1, 0.2, rng.uniform(0, 3)]))
    at = rng.sample(limits, rng.randint(1, len(limits)))
    ends_at, quickest_s = loop.now() + rng.uniform(0.1, 4), rng.choice([0.0, 0.1, 0.5])
    while (called := next((one for one in at if one.has_room), None)) is None:  # again, where it was sent on
        try:
            turn = LimiterWaiter(loop, ends_at, rng.randrange(5), rng.choice("abc"), rng.choice([1.0, 2.0]))
            called = await turn.wait(choices(*at, quickest_s=quickest_s))
        except Shed:
            return
        if called is not None:
            break
    called.acquire()
    assert called.n_in_flight <= called.limit.value
    held_s = rng.choice([0.1, 0.2, rng.uniform(0, 1)])
    try:
        await asyncio.sleep(held_s)
    finally:
        called.release(held_s, has_answered=rng.random() < 0.8)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), n_limits=st.integers(1, 4), n_turns=st.integers(1, 30), is_common=st.booleans())
def test_limiter_random_waits_leave_no_state(seed: int, n_limits: int, n_turns: int, is_common: bool) -> None:
    """Waits at any of several limits that are called, refused, pushed out, left and sent on at random: each request has one
    place or none, no limit gives out more than it has, every queue is empty in the end.
    """
    async def main(loop: SimLoop) -> None:
        rng = Random(seed)
        limits = [ConcurrencyLimiter(f"up{n}", LimitConfig("fixed", max=rng.randint(1, 3), max_waiting=rng.randint(0, 6)),
                                     rng=rng)
                  for n in range(n_limits)]
        if is_common:
            for number, one in enumerate(limits):
                one.shared_limit = SharedLimit([0.0] * 20, (2 * number, 2 * number + 1), [])

        tasks = [loop.create_task(_request(loop, limits, rng)) for _ in range(n_turns)]
        for task in tasks:
            if rng.random() < 0.4:
                loop.call_at(rng.choice([0.1, 0.2, 0.3, rng.uniform(0, 4)]), task.cancel)
        for _ in range(rng.randrange(3)):
            loop.call_at(rng.uniform(0, 3), rng.choice(limits).requeue_waiters)
        await asyncio.wait(tasks)
        assert [task.exception() for task in tasks if not task.cancelled()] == [None] * sum(not t.cancelled() for t in tasks)
        for one in limits:
            empty(one)
            assert one.has_room

    run(main)
