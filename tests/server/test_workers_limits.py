"""`stayfast serve --workers`: four processes share quotas, places, limits and breakers, within 10 % of one process."""

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import uvloop

from tests.server.workers_rig import Client, Gateway, running, until

pytestmark = pytest.mark.sockets
N_WORKERS = 4
QUOTA = 'upstreams: {up: UP}}\nroutes: {m: [up]}\ntenants: {"*": {quota: {requests_per_minute: 600}}}\n'
PLACES = "upstreams: {up: UP}}\nroutes: {m: [up]}\nadmission: {max_in_flight: 20, max_wait_s: 30, reserved_share: 0}\n"
LIMIT = "upstreams: {up: UP, limit: {mode: fixed, max: 20, max_waiting: 1000}}}\nroutes: {m: [up]}\n"
BREAKER = "upstreams: {up: UP, breaker: {open_s: 2}}}\nroutes: {m: {upstreams: [up], retry: {max_attempts: 1}}}\n"


async def _let_in(clients: list[Client], seconds: float) -> int:
    """How many of the requests of so many clients that never pause are let in."""
    ends_at = time.monotonic() + seconds

    async def one(client: Client) -> int:
        n = 0
        while time.monotonic() < ends_at:
            if await client.ask() == 200:
                n += 1
            else:
                await asyncio.sleep(0.002)
        return n

    return sum(await asyncio.gather(*map(one, clients)))


async def _most_at_a_time(gateway: Gateway, clients: list[Client], n_each: int, takes_s: float) -> tuple[int, float]:
    """The most that the upstream had at a time while all clients ask `n_each` times, and its load as a share of 20."""
    upstream = gateway.upstream
    upstream.n_most, upstream.takes_s = 0, takes_s
    began_at = time.monotonic()

    async def one(client: Client) -> None:
        for _ in range(n_each):
            assert await client.ask() == 200

    await asyncio.gather(*map(one, clients))
    upstream.takes_s = 0.0
    return upstream.n_most, len(clients) * n_each * takes_s / 20 / (time.monotonic() - began_at)


@pytest.mark.parametrize("spread", [(2, 2, 2, 2), (8, 0, 0, 0), (5, 1, 1, 0)])
def test_workers_share_quota(tmp_path: Path, spread: tuple[int, ...]) -> None:
    """600 a minute: 600 at once, and ten a second after that, in all; and after a reload no more than that."""
    async def main() -> None:
        async with running(tmp_path, QUOTA, N_WORKERS) as gateway:
            of = await gateway.clients(N_WORKERS, max(spread))
            chosen = [client for n, clients in zip(spread, of, strict=True) for client in clients[:n]]
            seconds = 4.0
            n = await _let_in(chosen, seconds)
            assert n == pytest.approx(600 + 10 * seconds, rel=0.1)
            gateway.reload(QUOTA + "# another\n")
            await until(partial(gateway.has_reloaded, N_WORKERS))
            assert await _let_in([clients[0] for clients in of], 2.0) <= 20 + 10

    uvloop.run(main())


@pytest.mark.parametrize("settings", [PLACES, LIMIT], ids=["places", "limit"])
def test_workers_share_admission_slots(tmp_path: Path, settings: str) -> None:
    """20 of them: not one more than 22 at a time from all workers, and all of them where one worker has all the traffic."""
    async def main() -> None:
        async with running(tmp_path, settings, N_WORKERS) as gateway:
            of = await gateway.clients(N_WORKERS, 40)
            n_most, busy = await _most_at_a_time(gateway, [one for clients in of for one in clients[:15]], 6, 0.2)
            assert 18 <= n_most <= 22
            assert busy > 0.5
            n_most, busy = await _most_at_a_time(gateway, of[1], 4, 0.2)
            assert 18 <= n_most <= 22
            assert busy > 0.5
            n_most, busy = await _most_at_a_time(gateway, [*of[0][:30], of[2][0]], 4, 0.2)  # and one client beside a crowd
            assert n_most <= 22

    uvloop.run(main())


def test_workers_reload_together(tmp_path: Path) -> None:
    """Fewer places, then an upstream's limit in their place, then 20 again: each time as many as the settings say."""
    async def main() -> None:
        async with running(tmp_path, PLACES, N_WORKERS) as gateway:
            clients = [one for of in await gateway.clients(N_WORKERS, 10) for one in of]
            for number, (settings, least, most) in enumerate((
                    (PLACES.replace("20", "8"), 8, 9), (LIMIT.replace("20", "40"), 40, 42), (PLACES, 20, 22)), 1):
                gateway.reload(settings)
                await until(partial(gateway.has_reloaded, N_WORKERS * number))
                n_most, _ = await _most_at_a_time(gateway, clients, 2, 0.2)
                assert least - 1 <= n_most <= most

    uvloop.run(main())


def test_workers_killed_worker_releases_slots(tmp_path: Path) -> None:
    """All places at one worker, kill -9: within two seconds the others have them all."""
    async def main() -> None:
        async with running(tmp_path, PLACES, N_WORKERS) as gateway:
            of = await gateway.clients(N_WORKERS, 20)
            gateway.upstream.takes_s = 30.0
            held = [asyncio.ensure_future(client.ask()) for client in of[0]]
            await until(lambda: gateway.upstream.n == 20)
            gateway.upstream.takes_s = 0.0
            asking = asyncio.ensure_future(of[1][0].ask())
            await asyncio.sleep(0.3)
            assert not asking.done()
            killed_at = time.monotonic()
            os.kill(gateway.pid(0), signal.SIGKILL)
            assert await asking == 200
            assert time.monotonic() - killed_at < 2.0
            assert set(await asyncio.gather(*held)) == {0}
            assert set(await asyncio.gather(*[client.ask() for client in of[2]])) == {200}

    uvloop.run(main())


def test_workers_share_breaker(tmp_path: Path) -> None:
    """Five failures, spread over the workers or not, open it in all of them within a second; probes close it for all."""
    async def main() -> None:
        async with running(tmp_path, BREAKER, N_WORKERS) as gateway:
            clients = [of[0] for of in await gateway.clients(N_WORKERS, 1)]

            async def all_say(state: str, within_s: float) -> None:
                began_at = time.monotonic()
                while not all([f"'state': '{state}'" in await client.upstream() for client in clients]):
                    assert time.monotonic() - began_at < within_s, [await client.upstream() for client in clients]
                    await asyncio.sleep(0.02)

            gateway.upstream.status = 500
            for client in (clients[0], clients[1], clients[2], clients[3], clients[0]):
                assert await client.ask() == 502
                await asyncio.sleep(0.15)
            await all_say("open", 1.0)
            gateway.upstream.status = 200
            for _ in range(2):
                assert await clients[3].ask() == 200
            await all_say("closed", 1.0)

    uvloop.run(main())
