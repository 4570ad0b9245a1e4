"""The queue at upstreams' limits: no more wait than can be served in time, at all of them at once, the urgent ones first."""

import asyncio
from collections import Counter
from random import Random

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.events import RequestDone
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.priority import TenantTier
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from stayfast.upstreams.state.limiter import ConcurrencyLimiter
from tests.flow.rig import Rig, chat, read

ONE = LimitConfig("fixed", min=1, max=1)
A_SECOND: Script = [Wait(1.0), SendText("ok")]


async def serve_timed(rig: Rig, tenant: str | None = None) -> tuple[str, float]:
    """Who answered, or the error's code, and after how long."""
    began_at = rig.loop.now()
    try:
        reply = await rig.gateway.serve(chat(), Arrival("req_1", began_at, tenant))
        await read(reply)
    except StayfastError as error:
        return error.code, rig.loop.now() - began_at
    return reply.upstream, round(rig.loop.now() - began_at, 6)


@pytest.mark.parametrize(("load", "total_s", "goal"), [(0.8, 3.0, 0.97), (1.2, 3.0, 0.9), (2.0, 3.0, 0.9), (2.0, 1.5, 0.8)])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_limit_queue_overload_is_rejected_at_once_and_the_rest_served(load: float, total_s: float, goal: float,
                                                                      spread: float) -> None:
    """Eight places of about a second, nothing else configured: nearly all of the capacity is used, at any load."""
    n, n_places = 600, 8

    async def main(loop: SimLoop) -> None:
        rng = Random(5)
        scripts: list[Script] = [[Wait(rng.uniform(1 - spread, 1 + spread)), SendText("ok")] for _ in range(n)]
        rig = Rig(loop, scripts, limit=LimitConfig("fixed", max=n_places), timeouts=Timeouts(total_s=total_s))
        tasks = []
        for _ in range(n):
            tasks.append(loop.create_task(serve_timed(rig)))
            await asyncio.sleep(rng.expovariate(load * n_places))
        could = min(n, loop.now() * n_places)
        results = await asyncio.gather(*tasks)
        codes = Counter(code for code, _ in results)
        assert codes["up0"] >= goal * could
        assert codes["total_s_exceeded"] <= 0.05 * n * (spread > 0)
        refused_after = [seconds for code, seconds in results if code == "upstream_busy"]
        assert sum(seconds == 0 for seconds in refused_after) >= 0.8 * len(refused_after)

    run(main)


def test_limit_queue_takes_the_first_free_place_of_any_upstream() -> None:
    """One upstream hangs for 25 s, the other is free at 1.0 s; the note has the upstream of the wait."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(25), SendText("ok")]], [A_SECOND], limit=ONE, in_turn=True)
        busy = [loop.create_task(serve_timed(rig)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert await serve_timed(rig) == ("up1", 1.9)
        assert rig.sink.facts_of(RequestDone)[-1].notes == (
            "waited 900 ms for a place at up1: 1 of 1 places were taken, 0 others waiting",)
        assert [member.n_waiting for member in rig.registry] == [0, 0]
        await asyncio.gather(*busy)
        assert (rig.n_in_flight, rig.n_open) == (0, 0)

    run(main)


def test_limit_queue_full_at_one_upstream_waits_at_another() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(5), SendText("ok")]], [A_SECOND], in_turn=True)
        for member, max_waiting in zip(rig.registry, (0, 100), strict=True):
            member.whole_limiter = ConcurrencyLimiter(member.upstream.name, LimitConfig("fixed", max=1,
                                                                                        max_waiting=max_waiting))
        busy = [loop.create_task(serve_timed(rig)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert await serve_timed(rig) == ("up1", 1.9)
        await asyncio.gather(*busy)

    run(main)


def test_limit_queue_does_not_wait_for_an_unhealthy_upstream() -> None:
    """Its place is free first, but healthy upstreams go before it."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(3), SendText("ok")]], [A_SECOND], limit=ONE, in_turn=True)
        busy = [loop.create_task(serve_timed(rig)) for _ in range(2)]
        await asyncio.sleep(0.1)
        rig.registry["up1"].own_health.suspend(100.0, "a test says so")
        assert await serve_timed(rig) == ("up0", 5.9)
        await asyncio.gather(*busy)

    run(main)


def test_limit_queue_lanes_added_during_a_wait_keep_the_order() -> None:
    """A request waits at two upstreams and queues at both again; neither keeps a share of the first wait."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [A_SECOND], [[Wait(0.4), SendText("ok")]], limit=LimitConfig("gradient", min=1), in_turn=True)
        for member in rig.registry:
            member.limit.adopt_value(1.0)
        tasks = [loop.create_task(serve_timed(rig)) for _ in range(4)]
        await asyncio.sleep(0.1)
        before = rig.registry["up0"].whole_limiter
        rig.registry["up0"].split_by_lane(["short"])  # what is in no lane stays under the whole limit
        assert (before.n_waiting_shares, before.has_room) == (0, False)
        assert sorted(await asyncio.gather(*tasks)) == [
            ("up0", 1.0), ("up1", 0.4), ("up1", 0.8), ("up1", 1.2)]
        for member in rig.registry:
            assert [(one.n_in_flight, one.n_waiting_shares, one.n_taken) for one in member.all_limiters] == [
                (0, 0, 0)] * len(member.all_limiters)

    run(main)


def test_limit_queue_premium_tenant_goes_before_batch() -> None:
    async def main(loop: SimLoop) -> None:
        tenants = {"vip": TenantConfig(tier=TenantTier.PREMIUM), "bulk": TenantConfig(tier=TenantTier.BATCH)}
        rig = Rig(loop, [A_SECOND], limit=ONE, admit=Admission(AdmissionConfig(None), tenants, loop, Random(3)))
        bulk = [loop.create_task(serve_timed(rig, "bulk")) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert await serve_timed(rig, "vip") == ("up0", 1.9)
        assert sorted(seconds for _, seconds in await asyncio.gather(*bulk)) == [1, *range(3, 22)]

    run(main)


def test_limit_queue_noisy_tenant_does_not_delay_another() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [A_SECOND], limit=ONE, admit=Admission(AdmissionConfig(None), {}, loop, Random(3)))
        noisy = [loop.create_task(serve_timed(rig, "noisy")) for _ in range(10)]
        await asyncio.sleep(0.1)
        assert await serve_timed(rig, "quiet") == ("up0", 2.9)
        await asyncio.gather(*noisy)

    run(main)


def test_limit_queue_retry_after_is_spread() -> None:
    """Forty requests at once, none may wait: each refused one has another Retry-After."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(4), SendText("ok")]], limit=LimitConfig("fixed", max=1, max_waiting=0))
        await serve_timed(rig)
        results = await asyncio.gather(*[rig.serve() for _ in range(40)], return_exceptions=True)
        told = [round(one.retry_after_s or 0, 3) for one in results if isinstance(one, Shed)]
        assert (len(told), len(set(told))) == (39, 39)
        assert 4.0 <= min(told) < max(told) <= 8.0

    run(main)
