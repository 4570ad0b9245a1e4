"""Replicas that start, sleep and drain: what requests do meanwhile, in a gateway that compose puts together."""

import asyncio
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from stayfast.compose.scaling import Loads
from stayfast.compose.system import Observers, System, build
from stayfast.core.engine_signals import EngineSignals
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.types import Api
from stayfast.lab.harness.starting_replica import ReplicaTimes, StartingReplica, StartingUpstream
from stayfast.lab.harness.virtual import VirtualReply, chat_request, serve_and_read
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig, Simulated
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.tiers.config import TierEntry
from stayfast.policy.warm.config import ReplicaConfig, ReplicaPoolConfig
from stayfast.policy.warm.phases import Phase, Replica
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.settings.model import Fallback, OnOverrun
from stayfast.testing import SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call

ENGINE = ProviderConfig(ttft=Mixture(0.2), gaps=GapConfig(0.01, 0.0), fills_max_tokens=True)
ON, OFF = ReplicaConfig(phases="on"), ReplicaConfig(phases="off")
FALLBACK = OnOverrun(fallback=Fallback(("provider",)))


ONE_PLACE = LimitConfig(mode="fixed", max=1)


def starting(warm_at: float, warm: ReplicaConfig = ON, limit: LimitConfig | None = None) -> StartingUpstream:
    return StartingUpstream(ENGINE, ReplicaTimes(warm_at, warm_at), warm=warm, limit=limit or LimitConfig())


class Rig:
    """A gateway whose replicas are watched."""

    def __init__(self, loop: SimLoop, upstreams: Mapping[str, Any], own: tuple[str, ...], **route: Any) -> None:
        settings = Settings(upstreams=upstreams, routes={"m": RouteSettings(own, **route)},
                            log=LogSettings(level="error", requests=False))
        self.loop = loop
        self.observers = Observers(settings, loop)
        self.system: System = build(settings, self.observers, {}, loop, Random(1))
        self._tasks = [loop.create_task(self.system.prober.run()),
                       *[loop.create_task(watch.run()) for watch in self.system.watches]]

    def replica(self, name: str) -> Replica:
        replica = self.system.registry[name].replica
        assert replica is not None
        return replica

    async def send(self) -> VirtualReply:
        return await serve_and_read(self.system.gateway, chat_request(50, 5), Arrival("r", self.loop.now()), self.loop)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


def test_request_waits_for_the_replica_if_its_deadline_holds_the_start() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": starting(20.0), "provider": starting(0.0, OFF)}, ("gpu",), deadline=120.0,
                  on_overrun=FALLBACK)
        await asyncio.sleep(1.0)
        served = await rig.send()
        assert served.reply.upstream == "gpu"
        assert 19.0 <= served.ttft_s <= 23.0
        assert rig.replica("gpu").loads.n_starts == 1
        await rig.close()

    run(main)


def test_request_is_not_held_for_a_start_while_a_ready_replica_has_an_open_breaker() -> None:
    """The other replica is slow for a moment, as its sibling was killed: it answers long before any start ends."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0), "b": starting(40.0)}, ("a", "b"), deadline=120.0)
        await asyncio.sleep(5.0)
        assert [rig.replica(name).is_ready for name in "ab"] == [True, False]
        breaker = rig.system.registry["a"].own_health.breaker
        breaker.record_verdicts(20, 0, loop.now())
        assert breaker.traffic_share(loop.now()) == 0
        held = [loop.create_task(rig.send()) for _ in range(4)]
        served = await asyncio.gather(*held)
        assert {one.reply.upstream for one in served} == {"a"}
        assert max(one.ttft_s for one in served) < 1.0
        await rig.close()

    run(main)


def test_request_with_a_shorter_deadline_goes_to_the_fallback_at_once() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": starting(20.0), "provider": starting(0.0, OFF)}, ("gpu",), deadline=30.0,
                  on_overrun=FALLBACK)
        await asyncio.sleep(1.0)
        served = await rig.send()
        assert (served.reply.upstream, served.ttft_s < 1.0) == ("provider", True)
        await asyncio.sleep(30.0)
        assert (await rig.send()).reply.upstream == "gpu"
        await rig.close()

    run(main)


def test_request_waiting_for_a_start_that_is_late_still_gets_the_fallback_in_time() -> None:
    """The settings expect 10 s, and the replica needs an hour."""

    async def main(loop: SimLoop) -> None:
        warm = ReplicaConfig(phases="on", cold_start_s=10.0)
        rig = Rig(loop, {"gpu": starting(3600.0, warm), "provider": starting(0.0, OFF)}, ("gpu",), deadline=30.0,
                  on_overrun=FALLBACK)
        await asyncio.sleep(1.0)
        served = await rig.send()
        assert (served.reply.upstream, 5.0 < served.ttft_s < 25.0) == ("provider", True)
        await rig.close()

    run(main)


def test_route_without_fallback_tries_a_loading_replica_as_the_last_resort() -> None:
    """The failure is the replica's own, at once: phases refuse nothing."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": starting(3600.0)}, ("gpu",), deadline=20.0)
        await asyncio.sleep(1.0)
        began_at = loop.now()
        with pytest.raises(StayfastError, match="refused the connection"):
            await rig.send()
        assert loop.now() - began_at < 20.0
        await rig.close()

    run(main)


def test_drained_replica_gets_nothing_while_another_is_ready() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0), "b": starting(0.0)}, ("a", "b"))
        await asyncio.sleep(5.0)
        assert await rig.observers.aggregate.drain_upstream("a", "drain") == (
            b'{"upstream":"a","draining":true,"workers":1,"silent_workers":0}')
        assert {(await rig.send()).reply.upstream for _ in range(20)} == {"b"}
        await rig.observers.aggregate.drain_upstream("a", "undrain")
        await asyncio.sleep(60.0)
        assert {(await rig.send()).reply.upstream for _ in range(40)} == {"a", "b"}
        assert await rig.observers.aggregate.drain_upstream("nowhere", "drain") is None
        await rig.close()

    run(main)


async def send_many(rig: Rig, n: int) -> list[VirtualReply]:
    """So many at once, after some that teach how long an answer takes."""
    await asyncio.sleep(5.0)
    for _ in range(10):
        await rig.send()
    return await asyncio.gather(*[rig.send() for _ in range(n)])


def test_fewer_ready_than_min_warm_queue_at_the_ready_one_and_fall_back_at_once_where_that_is_too_late() -> None:
    """A place at `a` is free every 0.3 s."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0, limit=ONE_PLACE), "b": starting(3600.0), "provider": starting(0.0, OFF)},
                  ("a", "b"), deadline=3.0, on_overrun=FALLBACK, pool=ReplicaPoolConfig(min_warm=2))
        served = await send_many(rig, 20)
        assert (rig.replica("a").phase, rig.replica("b").phase) == (Phase.READY, Phase.LOADING)
        waits_s = {name: [one.ttft_s for one in served if one.reply.upstream == name] for name in ("a", "b", "provider")}
        assert len(waits_s["a"]) >= 4
        assert max(waits_s["a"]) > 1.0
        assert waits_s["b"] == []
        assert len(waits_s["provider"]) >= 4
        assert max(waits_s["provider"]) < 1.0  # of 13 at once
        assert len(waits_s["a"]) + len(waits_s["provider"]) == 20
        await rig.close()

    run(main)


def test_fewer_ready_than_min_warm_without_a_fallback_refuse_only_what_cannot_be_in_time() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0, limit=ONE_PLACE), "b": starting(3600.0)}, ("a", "b"), deadline=60.0,
                  pool=ReplicaPoolConfig(min_warm=2))
        served = await send_many(rig, 20)
        assert {one.reply.upstream for one in served} == {"a"}
        assert max(one.ttft_s for one in served) > 3.0
        await rig.close()

    run(main)


def test_fewer_ready_than_min_warm_without_a_fallback_refuse_a_wait_past_the_deadline_with_503() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0, limit=ONE_PLACE), "b": starting(3600.0)}, ("a", "b"), deadline=2.0,
                  pool=ReplicaPoolConfig(min_warm=2))
        await send_many(rig, 1)
        sent = await asyncio.gather(*[rig.send() for _ in range(20)], return_exceptions=True)
        refused = [one for one in sent if isinstance(one, StayfastError)]
        assert {(one.status, one.retry_after_s is not None) for one in refused} == {(503, True)}
        answered = [one for one in sent if isinstance(one, VirtualReply)]
        assert {one.reply.upstream for one in answered} == {"a"}
        assert len(answered) >= 4
        assert len(answered) + len(refused) == 20
        await rig.close()

    run(main)


def test_fewer_ready_than_min_warm_on_a_route_with_tiers_use_the_smaller_tier_while_the_ready_one_is_full() -> None:
    async def main(loop: SimLoop) -> None:
        tiers = (TierEntry("small", ("little",), model="s"), TierEntry("large", ("a", "b"), model="l"))
        rig = Rig(loop, {"a": starting(0.0, limit=ONE_PLACE), "b": starting(3600.0), "little": starting(0.0, OFF)}, (),
                  deadline=60.0, tiers=tiers, pool=ReplicaPoolConfig(min_warm=2))
        served = await send_many(rig, 5)
        assert sorted(one.reply.upstream or "" for one in served) == ["a", *["little"] * 4]
        assert max(one.ttft_s for one in served) < 0.5
        await rig.close()

    run(main)


def test_gateway_that_starts_puts_no_running_replica_into_slow_start() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0), "b": starting(0.0)}, ("a", "b"))
        assert [rig.replica(name).share(loop.now()) for name in "ab"] == [1.0, 1.0]
        await asyncio.sleep(5.0)
        assert [(rig.replica(name).phase, rig.replica(name).share(loop.now())) for name in "ab"] == [(Phase.READY, 1.0)] * 2
        await rig.close()

    run(main)


class Sleeper:
    """An engine that sleeps until it is woken, and then takes a second."""

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, loop: SimLoop) -> None:
        self.name = name
        self.n_woken = 0
        self._awake_at = float("inf")
        self._loop = loop
        self._engine = Simulated(name, ENGINE, loop)

    def can_serve(self, api: Api) -> bool:
        return True

    async def open(self, call: Call) -> AnswerStream:
        if self._loop.now() < self._awake_at:
            raise UpstreamFailed(self.name, Fault.STATUS, "asleep", upstream_status=500)
        return await self._engine.open(call)

    async def check_health(self) -> bool | None:
        return True

    async def check_sleep(self) -> bool | None:
        return self._loop.now() < self._awake_at

    async def wake(self) -> bool:
        self.n_woken += 1
        await asyncio.sleep(1.0)
        self._awake_at = self._loop.now()
        return True

    def close(self) -> None:
        """Nothing to close."""


class SleeperSettings(msgspec.Struct, frozen=True):
    """A kind of upstream as a package adds it."""

    warm: ReplicaConfig
    kind: str = "sleeper"
    models: dict[str, str] = {}
    prices: dict[str, Any] = {}
    probe: bool = True
    limit: LimitConfig = LimitConfig()
    breaker: BreakerConfig = BreakerConfig()

    def build_upstream(self, name: str, clock: SimLoop) -> Sleeper:
        return Sleeper(name, clock)


def test_sleeping_replica_is_woken_once_by_the_first_of_many_requests() -> None:
    async def main(loop: SimLoop) -> None:
        warm = ReplicaConfig(phases="on", wake=True, check_s=100.0)
        rig = Rig(loop, {"gpu": SleeperSettings(warm)}, ("gpu",), pool=ReplicaPoolConfig(min_warm=0), deadline=300.0)
        await asyncio.sleep(1.0)
        assert rig.replica("gpu").phase is Phase.SLEEPING
        answers = await asyncio.gather(*[rig.send() for _ in range(5)])
        assert all(answer.ttft_s < 5.0 for answer in answers)
        sleeper = rig.system.registry["gpu"].upstream
        assert isinstance(sleeper, Sleeper)
        assert sleeper.n_woken == 1
        await rig.close()

    run(main)


def test_sleeping_replica_is_woken_without_a_request_while_min_warm_is_missed() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": SleeperSettings(ReplicaConfig(phases="on", wake=True))}, ("gpu",))
        await asyncio.sleep(10.0)
        assert rig.replica("gpu").phase is Phase.READY
        await rig.close()

    run(main)


def test_replica_that_unloads_when_idle_gets_a_token_every_half_period() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": starting(0.0, ReplicaConfig(phases="on", idle_unload_s=60.0))}, ("gpu",))
        await asyncio.sleep(300.0)
        upstream = rig.system.registry["gpu"].upstream
        assert isinstance(upstream, StartingReplica)
        assert 9 <= upstream.engine.counts.n_asked <= 12
        await rig.close()

    run(main)


async def no_others() -> Iterable[Loads]:
    return ()


async def read_pool(rig: Rig) -> dict[str, Any]:
    """The advice for the only route, made now."""
    scaling = rig.observers.aggregate.scaling
    assert scaling is not None
    await scaling.renew(no_others)
    pool: dict[str, Any] = msgspec.json.decode(scaling.report())["pools"]["m"]
    return pool


@pytest.mark.parametrize(("kv_used_ratio", "waiting", "wanted", "why"), [
    (0.95, None, 3, "KV memory 95% used, against 80%"),
    (None, 2.0, 3, "0 requests wait at 2 ready replicas and 2 in their engines"),
    (None, None, 1, "only the queue is known: neither places, nor prefill rate, nor KV memory"),
])
def test_scaling_uses_what_engines_show_until_it_is_stale(kv_used_ratio: float | None, waiting: float | None, wanted: int,
                                                          why: str) -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"a": starting(0.0), "b": starting(0.0)}, ("a", "b"), pool=ReplicaPoolConfig(quiet_s=1.0))
        await asyncio.sleep(200.0)
        without = await read_pool(rig)
        await asyncio.sleep(200.0)
        assert (without["kv_used_ratio"], without["engine_queue"]) == (None, None)
        rig.observers.aggregate.signals.board.publish(
            "a", EngineSignals(loop.now(), "vllm", kv_used_ratio=kv_used_ratio, waiting=waiting))
        pool = await read_pool(rig)
        assert (pool["kv_used_ratio"], pool["engine_queue"]) == (kv_used_ratio, waiting)
        assert pool["replicas_wanted"] == wanted
        assert why in pool["why"]
        await asyncio.sleep(400.0)
        stale = await read_pool(rig)
        assert (stale["kv_used_ratio"], stale["engine_queue"], stale["replicas_wanted"]) == (None, None, 1)
        await rig.close()

    run(main)


def test_scaling_shows_how_long_requests_waited_before_their_call_in_the_last_minute() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": starting(20.0)}, ("gpu",), deadline=200.0)
        await asyncio.sleep(1.0)
        assert (await read_pool(rig))["wait_p95_s"] is None
        served = await rig.send()
        rig.observers.batch.flush()
        waited_s = (await read_pool(rig))["wait_p95_s"]
        assert waited_s == pytest.approx(served.ttft_s - 0.2, rel=0.02)
        await asyncio.sleep(50.0)
        assert (await read_pool(rig))["wait_p95_s"] == waited_s
        await asyncio.sleep(20.0)
        assert (await read_pool(rig))["wait_p95_s"] is None
        await rig.close()

    run(main)


def test_scaling_report_names_what_a_pool_needs_and_forgets_old_advice() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, {"gpu": starting(50.0)}, ("gpu",), deadline=200.0)
        await asyncio.sleep(1.0)

        held = [loop.create_task(rig.send()) for _ in range(3)]
        await asyncio.sleep(1.0)
        scaling = rig.observers.aggregate.scaling
        assert scaling is not None
        await scaling.renew(no_others)
        pool = msgspec.json.decode(scaling.report())["pools"]["m"]
        assert (pool["queue"], pool["n_ready"], pool["replicas_wanted"]) == (3, 0, 1)
        assert [pool[name] for name in ("wait_p95_s", "engine_queue", "kv_used_ratio")] == [None] * 3
        assert "3 requests wait at 0 ready replicas" in pool["why"]
        assert scaling.gauges()["stayfast_scaling_replicas_wanted"] == [(("m",), 1)]
        await asyncio.sleep(16.0)
        assert scaling.report() == b'{"pools":{}}'
        assert scaling.gauges()["stayfast_scaling_replicas_wanted"] == []
        await asyncio.gather(*held)
        await rig.close()

    run(main)
