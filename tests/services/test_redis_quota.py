"""Limits that several gateways share, on a real server: skewed load, deaths, and everything that happens to servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.events import Fanout
from stayfast.core.types import Api
from stayfast.policy.admission.quota import Bucket, QuotaConfig, Refusal, TenantQuota
from stayfast.policy.fleet.config import FleetConfig
from stayfast.policy.fleet.slices import IDLE_S, RECENT_S, US, WAIT_S, LeaseGrant, LeaseReport
from stayfast.stores.fleet.quota_calls import QuotaCall, QuotaReply, QuotaStoreLost
from stayfast.stores.fleet.redis_quota import RedisQuota
from stayfast.upstreams.rate_limited import UpstreamRate
from stayfast.wire.request_body import decode
from stayfast.workers.fleet.quota_leases import LeaseMemory, QuotaLeases
from stayfast.workers.shared_memory import SharedCounters, create_files
from tests.services.redis_server import RedisServer, redis_server

TENANT, LIMIT = "web", "requests_per_minute"
CAPACITY, PER_S = 120.0, 40.0
SLOW_S = 0.3  # that a busy machine may add to what a test measures in real time


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


def report(*, wanted: float = 0.0, needed: float = 0.0, spent: float = 0.0, held: float = 0.0,
           base: tuple[float, float] = (0.0, 0.0), demand: float = 1.0, alone: float = 0.0, full_at_us: int = 0
           ) -> LeaseReport:
    """Of a limit of 100 a minute, in seconds of the bucket."""
    numbers = (60, spent, held, *base, demand, wanted, needed, alone)
    return LeaseReport._make((*(round(number * US) for number in numbers), full_at_us))


class Caller:
    """One gateway's calls for one limit of a tenant of its own."""

    def __init__(self, store: RedisQuota, tenant: str, gateway: str) -> None:
        self.store, self.tenant, self.gateway = store, tenant, gateway
        self.number, self.epoch = 0, ""

    async def send(self, limit: LeaseReport, number: int | None = None) -> LeaseGrant | None:
        self.number = self.number + 1 if number is None else number
        call = QuotaCall(self.tenant, self.number, self.epoch, {f"{LIMIT}@100.0": limit})
        reply, = await self.store.exchange(self.gateway, [call])
        if not isinstance(reply, QuotaReply):
            return None
        self.epoch = reply.epoch
        return reply.limits[f"{LIMIT}@100.0"]


def run_calls(server: RedisServer, tenant: str, test: Callable[[Caller, Caller], Awaitable[None]]) -> None:
    """Two gateways, in a loop of their own."""
    async def main() -> None:
        store = RedisQuota(server.url, "calls", 5.0)
        try:
            await test(Caller(store, tenant, "a"), Caller(store, tenant, "b"))
        finally:
            await store.close()

    asyncio.run(main())


def seconds(grant: LeaseGrant | None) -> float:
    assert grant is not None
    return grant.granted_us / US


def test_redis_quota_takes_a_slice_out_of_the_bucket(server: RedisServer) -> None:
    async def test(a: Caller, b: Caller) -> None:
        first = await a.send(report(wanted=20.0))
        assert first is not None
        assert (seconds(first), first.level_us, first.n_gateways) == (20.0, 40 * US, 1)
        second = await b.send(report(wanted=60.0, demand=3.0))
        assert second is not None
        assert seconds(second) == pytest.approx(30.0, abs=SLOW_S)  # three quarters of 40 s
        assert second.n_gateways == 2

    run_calls(server, "slice", test)


def test_redis_quota_lost_reply_is_returned_by_the_next_call(server: RedisServer) -> None:
    async def test(a: Caller, _: Caller) -> None:
        await a.send(report(wanted=20.0))  # the gateway never reads this reply
        grant = await a.send(report(wanted=60.0))
        assert seconds(grant) == 60.0

    run_calls(server, "lost reply", test)


def test_redis_quota_late_call_changes_nothing(server: RedisServer) -> None:
    async def test(a: Caller, _: Caller) -> None:
        await a.send(report(wanted=20.0), number=5)
        assert await a.send(report(wanted=20.0), number=4) is None
        assert await a.send(report(wanted=20.0), number=5) is None
        assert seconds(await a.send(report(held=20.0, wanted=60.0), number=6)) == pytest.approx(40.0, abs=SLOW_S)

    run_calls(server, "late", test)


def test_redis_quota_held_slice_keeps_its_place_in_the_bucket(server: RedisServer) -> None:
    """A bucket that refills while slices are out holds no more than the capacity together with them."""
    async def test(a: Caller, b: Caller) -> None:
        await a.send(report(wanted=1.0))
        await asyncio.sleep(1.1)
        assert seconds(await b.send(report(wanted=60.0, demand=1e6))) <= 59.0 + 1e-3

    run_calls(server, "held", test)


def test_redis_quota_debt_is_charged_and_needs_are_all_or_nothing(server: RedisServer) -> None:
    async def test(a: Caller, b: Caller) -> None:
        await a.send(report(wanted=10.0))
        await a.send(report(spent=58.0, base=(0.0, 10.0)))  # 48 s more than it had
        assert seconds(await b.send(report(wanted=10.0, needed=9.0))) == 0.0
        assert seconds(await b.send(report(wanted=1.5, needed=1.0))) >= 1.0

    run_calls(server, "debt", test)


def test_redis_quota_refill_that_a_full_bucket_could_not_take_is_not_charged(server: RedisServer) -> None:
    async def test(a: Caller, _: Caller) -> None:
        await a.send(report())
        await asyncio.sleep(RECENT_S + 0.5)  # a full bucket overflows
        grant = await a.send(report(spent=1.5, alone=1.5))
        assert grant is not None
        assert grant.level_us == 60 * US
        grant = await a.send(report(spent=6.5, alone=5.0))
        assert grant is not None
        assert 55 * US <= grant.level_us <= 56 * US  # what is left of the credit

    run_calls(server, "entitled debt", test)


def test_redis_quota_entitlements_add_up_to_one_at_most(server: RedisServer) -> None:
    async def test(a: Caller, _: Caller) -> None:
        rng = Random(3)
        callers = [Caller(a.store, a.tenant, f"g{n}") for n in range(6)]
        last: dict[str, int] = {}
        for _n in range(60):
            caller = rng.choice(callers)
            grant = await caller.send(report(demand=rng.choice([0.0, 0.5, 4.0])))
            assert grant is not None
            last[caller.gateway] = grant.entitled_ppm
            assert sum(last.values()) <= US

    run_calls(server, "entitled", test)


def test_redis_quota_flushed_script_is_sent_again(server: RedisServer) -> None:
    async def test(a: Caller, _: Caller) -> None:
        await a.send(report(wanted=1.0))
        assert server.say(b"SCRIPT", b"FLUSH") == b"+OK\r\n"
        assert seconds(await a.send(report(held=1.0, wanted=1.0))) == 1.0

    run_calls(server, "script", test)


def test_redis_quota_lost_data_comes_back_from_the_gateways(server: RedisServer) -> None:
    async def test(a: Caller, b: Caller) -> None:
        grant = await a.send(report(wanted=60.0))
        assert grant is not None
        server.say(b"FLUSHALL")
        again = await a.send(report(spent=60.0, base=(0.0, 60.0), wanted=60.0, full_at_us=grant.full_at_us))
        assert seconds(again) <= SLOW_S
        assert seconds(await b.send(report(wanted=60.0, demand=1e6))) <= SLOW_S

    run_calls(server, "empty", test)


def test_redis_quota_keys_expire(server: RedisServer) -> None:
    async def test(a: Caller, _: Caller) -> None:
        await a.send(report(wanted=60.0))

    run_calls(server, "expires", test)
    ttl_ms = int(server.say(b"PTTL", b"calls:q:{expires}")[1:])
    assert 60_000 < ttl_ms <= 66_000


def test_redis_quota_wrong_password_is_named_without_the_url(server: RedisServer) -> None:
    async def main() -> None:
        store = RedisQuota(server.url.replace("redis://", "redis://:hush@"), "calls")
        with pytest.raises(QuotaStoreLost) as caught:
            await Caller(store, "password", "a").send(report(wanted=1.0))
        assert "hush" not in str(caught.value)
        assert "Error" in str(caught.value)
        await store.close()

    asyncio.run(main())


class Gateways:
    """Some gateways in one loop. `admitted`: instants, by gateway."""

    def __init__(self, url: str, prefix: str, n: int) -> None:
        clock = SystemClock()
        self.all = [QuotaLeases(RedisQuota(url, prefix), f"g{n}", LeaseMemory(), clock, Fanout(), rng=Random(n))
                    for n in range(n)]
        self.buckets: list[Bucket] = []
        for leases in self.all:
            leases.configure(FleetConfig(expected_gateways=n), {})
            self.buckets.append(leases.bucket(TENANT, LIMIT, CAPACITY, PER_S, clock.now()))
        self.admitted: list[list[float]] = [[] for _ in range(n)]
        self.longest_wait_s = 0.0

    async def admit(self, n: int) -> bool:
        """A request, as `Admission` admits it."""
        now = time.monotonic()
        bucket = self.buckets[n]
        is_admitted = bucket.take(1.0, now)
        if not is_admitted and await self.all[n].wait_for_grant(TENANT, LIMIT, 1.0, now + WAIT_S):
            is_admitted = bucket.take(1.0, time.monotonic())
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - now)
        if is_admitted:
            self.admitted[n].append(time.monotonic())
        return is_admitted

    async def load(self, rates: tuple[float, ...], load_s: float) -> None:
        """Evenly spaced requests at each gateway, a second."""
        async def send(n: int) -> None:
            begin, at = time.monotonic(), 0
            while rates[n] and (due := begin + at / rates[n]) < begin + load_s:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self.admit(n)
                at += 1

        await asyncio.gather(*(send(n) for n in range(len(rates))))

    def n_since(self, since: float) -> int:
        return sum(at >= since for each in self.admitted for at in each)

    @property
    def slack(self) -> float:
        return sum(state.slack for leases in self.all for state in leases.states())


@asynccontextmanager
async def gateways(server: RedisServer, prefix: str, n: int = 4) -> AsyncIterator[Gateways]:
    fleet = Gateways(server.url, prefix, n)
    for leases in fleet.all:
        leases.begin(asyncio.create_task)
    try:
        yield fleet
    finally:
        for leases in fleet.all:
            await leases.close()


def test_gateways_skewed_load_admits_the_limit(server: RedisServer) -> None:
    async def main() -> None:
        async with gateways(server, "skewed") as fleet:
            began_at = time.monotonic()
            await fleet.load((84.0, 24.0, 12.0, 0.0), 8.0)
            took_s = time.monotonic() - began_at
            assert fleet.n_since(began_at) <= CAPACITY + PER_S * took_s
            assert fleet.n_since(began_at + 4) >= 0.95 * PER_S * (took_s - 4)
            for leases in fleet.all:
                assert sum(leases.leader.calls.values()) <= 2 * took_s + 1

    asyncio.run(main())


def test_gateways_first_request_of_a_tenant_is_admitted(server: RedisServer) -> None:
    async def main() -> None:
        async with gateways(server, "first", 2) as fleet:
            assert await fleet.admit(0)
            assert await fleet.admit(1)

    asyncio.run(main())


def test_gateways_after_idleness_refuse_nothing_within_the_limit(server: RedisServer) -> None:
    """The gateway has dropped the tenant, but the server has its record: a call with an earlier number would be stale."""
    async def main() -> None:
        async with gateways(server, "idle", 1) as fleet:
            calls = fleet.all[0].leader.calls
            await fleet.load((30.0,), 2.5)
            for _ in range(2):
                await asyncio.sleep(IDLE_S)
                async with asyncio.timeout(10.0):
                    while list(fleet.all[0].states()):
                        await asyncio.sleep(0.05)
                before = fleet.n_since(0.0)
                for _n in range(20):
                    assert await fleet.admit(0)
                    await asyncio.sleep(0.02)
                assert fleet.n_since(0.0) == before + 20
            assert calls["stale"] == 0

    asyncio.run(main())


def test_gateways_dead_one_leaves_its_share_to_the_others(server: RedisServer) -> None:
    async def main() -> None:
        async with gateways(server, "dead", 3) as fleet:
            began_at = time.monotonic()
            await fleet.load((90.0, 20.0, 10.0), 4.0)
            await fleet.all[0].stop()  # as a kill: it gives nothing back
            died_at = time.monotonic()
            await fleet.load((0.0, 80.0, 40.0), 5.0)
            took_s = time.monotonic() - died_at
            since = time.monotonic()
            await fleet.load((0.0, 80.0, 40.0), 3.0)
            assert fleet.n_since(since) >= 0.95 * PER_S * (time.monotonic() - since) - 2
            assert fleet.n_since(began_at) <= CAPACITY + PER_S * (time.monotonic() - began_at)
            assert took_s < 7

    asyncio.run(main())


def test_gateways_frozen_server_continue_with_their_shares(server: RedisServer) -> None:
    async def main() -> None:
        async with gateways(server, "frozen") as fleet:
            await fleet.load((84.0, 24.0, 12.0, 0.0), 4.0)
            slack, lost_at = fleet.slack, time.monotonic()
            server.freeze()
            try:
                await fleet.load((84.0, 24.0, 12.0, 0.0), 4.0)
                took_s = time.monotonic() - lost_at
                assert all(leases.leader.is_lost for leases in fleet.all[:3])
                n_lost = fleet.n_since(lost_at)
            finally:
                server.thaw()
            assert 0.7 * PER_S * took_s <= n_lost <= PER_S * took_s + slack + 3
            assert fleet.longest_wait_s < WAIT_S + SLOW_S
            back_at = time.monotonic()
            await fleet.load((84.0, 24.0, 12.0, 0.0), 4.0)
            assert not any(leases.leader.is_lost for leases in fleet.all[:3])
            assert fleet.n_since(lost_at) <= PER_S * (time.monotonic() - lost_at) + slack + 3
            assert fleet.n_since(back_at + 2) >= 0.9 * PER_S * (time.monotonic() - back_at - 2)

    asyncio.run(main())


def test_gateways_server_restarted_empty_gives_no_second_burst(tmp_path: Path) -> None:
    async def main(server: RedisServer) -> None:
        async with gateways(server, "restart") as fleet:
            began_at = time.monotonic()
            await fleet.load((84.0, 24.0, 12.0, 0.0), 3.0)
            slack = fleet.slack
            server.kill()
            await fleet.load((84.0, 24.0, 12.0, 0.0), 1.5)
            server.start()
            await fleet.load((84.0, 24.0, 12.0, 0.0), 3.0)
            assert fleet.n_since(began_at) <= CAPACITY + PER_S * (time.monotonic() - began_at) + slack + 3
            assert not any(leases.leader.is_lost for leases in fleet.all[:3])

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))


def test_gateways_unreachable_server_admit_an_equal_part(server: RedisServer) -> None:
    """From the start: half of the burst, then half of the refill."""
    async def main() -> None:
        fleet = Gateways(server.url.replace("redis://", "redis://:hush@"), "wrong", 2)
        for leases in fleet.all:
            leases.begin(asyncio.create_task)
        began_at = time.monotonic()
        await fleet.load((100.0, 0.0), 2.0)
        took_s = time.monotonic() - began_at
        assert CAPACITY / 2 <= fleet.n_since(began_at) <= CAPACITY / 2 + PER_S / 2 * took_s + 3
        assert fleet.all[0].leader.why_lost == "AuthenticationError"
        assert fleet.longest_wait_s < WAIT_S + SLOW_S
        for leases in fleet.all:
            await leases.close()

    asyncio.run(main())


class AheadClock(SystemClock):
    """An hour ahead of the others, in all that it shows."""

    def __init__(self) -> None:
        self.now = lambda: time.monotonic() + 3600
        self.wall = lambda: time.time() + 3600


def test_gateways_clock_of_one_an_hour_ahead_changes_nothing(server: RedisServer) -> None:
    async def main() -> None:
        clocks = (SystemClock(), AheadClock())
        fleet = [QuotaLeases(RedisQuota(server.url, "ahead", 5.0), f"g{n}", LeaseMemory(), clock, Fanout(), rng=Random(n))
                 for n, clock in enumerate(clocks)]
        buckets = [leases.bucket(TENANT, LIMIT, CAPACITY, 0.001, clock.now())
                   for leases, clock in zip(fleet, clocks, strict=True)]
        n_admitted = 0
        for leases in fleet:
            leases.begin(asyncio.create_task)
        began_at = time.monotonic()
        while time.monotonic() < began_at + 4.0:
            for bucket, clock in zip(buckets, clocks, strict=True):
                n_admitted += bucket.take(1.0, clock.now())
            await asyncio.sleep(0.005)
        assert 0.9 * CAPACITY <= n_admitted <= CAPACITY
        for leases in fleet:
            await leases.close()

    asyncio.run(main())


def test_workers_of_one_gateway_share_its_slices_and_another_takes_the_lead(server: RedisServer, tmp_path: Path) -> None:
    """Only the leader calls the server. When it ends, the other worker continues with what is left in shared memory."""
    async def main() -> None:
        create_files(tmp_path)
        clock = SystemClock()
        workers = [QuotaLeases(RedisQuota(server.url, "workers", 5.0), "g", LeaseMemory(SharedCounters(tmp_path), n, 2),
                               clock, Fanout(), rng=Random(n)) for n in range(2)]
        quota = QuotaConfig(requests_per_minute=600)  # 10 a second
        buckets = []
        for leases in workers:
            leases.configure(FleetConfig(), {TENANT: quota})
            buckets.append(leases.bucket(TENANT, LIMIT, 600.0, 10.0, clock.now()))
            leases.begin(asyncio.create_task)

        async def admit(n: int) -> bool:
            bucket, now = buckets[n], clock.now()
            if bucket.take(1.0, now):
                return True
            return await workers[n].wait_for_grant(TENANT, LIMIT, 1.0, now + 1.0) and bucket.take(1.0, clock.now())

        await asyncio.sleep(0.1)
        assert [leases.leader.is_leading for leases in workers] == [True, False]
        n_admitted = 0
        for _ in range(100):
            n_admitted += await admit(1)  # the worker that does not lead
            await asyncio.sleep(0.01)
        assert n_admitted >= 90
        assert sum(workers[1].leader.calls.values()) == 0
        await workers[0].stop()
        began_at = time.monotonic()
        while not workers[1].leader.is_leading:
            assert time.monotonic() < began_at + 10.0
            await asyncio.sleep(0.05)
        for _ in range(100):
            n_admitted += await admit(1)
            await asyncio.sleep(0.01)
        assert n_admitted >= 170
        assert workers[1].leader.calls["ok"] > 0
        for leases in workers:
            await leases.close()

    asyncio.run(main())


def test_provider_limit_of_two_gateways_is_one(server: RedisServer) -> None:
    """Calls of one provider's key, beyond 120 at once and 2 a second."""
    async def main() -> None:
        clock, n_sent = SystemClock(), 0
        fleet = [QuotaLeases(RedisQuota(server.url, "provider", 5.0), f"g{n}", LeaseMemory(), clock, Fanout(), rng=Random(n))
                 for n in range(2)]
        config = QuotaConfig(requests_per_minute=120)
        rates = []
        for leases in fleet:
            leases.configure(FleetConfig(), {"upstream p": config})
            leases.begin(asyncio.create_task)
            quota = TenantQuota(config, clock.now(), partial(leases.bucket, "upstream p"))
            rates.append(UpstreamRate("upstream p", quota, clock, wait_for_grant=leases.wait_for_grant))
        request = decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
        began_at = time.monotonic()
        while time.monotonic() < began_at + 4.0:
            for rate in rates:
                n_sent += not isinstance(await rate.reserve(request), Refusal)
            await asyncio.sleep(0.01)
        assert 108 <= n_sent <= 120 + 2 * (time.monotonic() - began_at)
        for leases in fleet:
            await leases.close()

    asyncio.run(main())
