"""Quotas are kept to the unit: tenants are charged for exactly what they used, and all that the limits allow is given out.

Three tenants ask in virtual time for three times of what they may: one is limited in tokens, one in requests, one in cost.
Estimates are wrong on purpose: a request says at most 400 tokens and gets about 40. Of the second tenant's clients one in
five leaves, at any moment. In the end the books must close: a bucket that was never full again holds

    level = level at the start + refill - used,      used: as the upstream reported it, summed here, not by the gateway

When wrong: an upstream that reports no usage is charged by estimate, and then the truth is unknown.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from random import Random
from typing import Any, NamedTuple

from stayfast.lab.harness.claim import Figure, Finding, Sense
from stayfast.lab.harness.virtual import VirtualClaim, VirtualTenants, arrive, chat
from stayfast.lab.simulated import GapConfig, Lengths, Mixture, ProviderConfig
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.quota import Bucket, QuotaConfig
from stayfast.testing.simloop import SimLoop

RATE_RPS = 60.0  # of each tenant's clients
N_INPUT, N_OUTPUT = 20, 400
PROVIDER = ProviderConfig(ttft=Mixture(0.2, 0.5), gaps=GapConfig(0.01, 0.0, 64), output=Lengths(40.0, 0.5, N_OUTPUT))
PRICE = Price(1.0, 4.0)
TENANTS: Mapping[str, TenantConfig] = {
    "by tokens": TenantConfig(quota=QuotaConfig(tokens_per_minute=84_000)),
    "by requests": TenantConfig(quota=QuotaConfig(requests_per_minute=1200, requests_per_day=1_700_000)),
    "by cost": TenantConfig(quota=QuotaConfig(cost_per_minute=0.25)),
}
LEAVERS = 0.2
LIMITS = {"by tokens": "tokens_per_minute", "by requests": "requests_per_minute", "by cost": "cost_per_minute"}
UNITS = {"by tokens": "tokens", "by requests": "requests", "by cost": "USD"}
MOST_OFF = 1e-4  # a sum of a million floats
N_REQUESTS = 1_000_000
N_BEFORE = 100  # requests of each, so that no bucket is full when the books are opened


async def play(loop: SimLoop, n_requests: int, seed: int, tenants: Mapping[str, TenantConfig] = TENANTS,
               least: float | None = None) -> Finding:
    """All requests, and the verdict. `least`: % of what is allowed that must be given out; the reservations of the last
    requests are too large by half, and weigh the more the shorter the run is.
    """
    if least is None:
        least = 99.0 if n_requests >= N_REQUESTS else 95.0
    rng = Random(seed)
    crowd = VirtualTenants(PROVIDER, tenants, AdmissionConfig(), loop, seed, price=PRICE)
    n_each = n_requests // len(tenants)
    await asyncio.gather(*[crowd.ask(name, chat(N_INPUT, N_OUTPUT)) for name in tenants for _ in range(N_BEFORE)])
    openings = {name: _Opening(loop.now(), _bucket(crowd, name, loop.now()).level(loop.now()), _used(crowd, name))
                for name in tenants}
    async with asyncio.TaskGroup() as group:
        for name in tenants:
            group.create_task(_clients(crowd, name, n_each, Random(rng.random())))
    figures = [figure for name in tenants for figure in _figures(crowd, name, openings[name], loop.now(), least)]
    figures.append(Figure("places still taken at the end", float(crowd.admission.places.n_taken), "", 0.0))
    return Finding(tuple(figures), (f"{n_each * len(tenants):,} requests in {loop.now() / 60:.1f} virtual minutes.",))


QUOTA = VirtualClaim(
    "quota", "Over a million requests at three times their quota, what tenants are charged is to the unit what they used; "
    "they get at least 99 % of what they may, and never more.", play, "{:,} requests in virtual time", N_REQUESTS, 30_000)


async def _clients(crowd: VirtualTenants, tenant: str, n: int, rng: Random) -> None:
    request = chat(N_INPUT, N_OUTPUT)

    def begin(_: int) -> Coroutine[Any, Any, float]:
        leaves = tenant == "by requests" and rng.random() < LEAVERS
        return crowd.ask(tenant, request, *([rng.uniform(0.0, 0.6)] if leaves else []))

    await arrive(n, RATE_RPS, rng, begin)


class _Opening(NamedTuple):
    """The books of one tenant when nothing is under way."""

    at: float
    level: float
    used: float


def _bucket(crowd: VirtualTenants, tenant: str, now: float) -> Bucket:
    return crowd.admission.tenants.of(tenant, now).quota.bucket(LIMITS[tenant])


def _used(crowd: VirtualTenants, tenant: str) -> float:
    """As the upstream says."""
    book = crowd.books.of[tenant]
    return {"by tokens": book.tokens, "by requests": book.requests, "by cost": book.cost_usd}[tenant]


def _figures(crowd: VirtualTenants, tenant: str, opening: _Opening, now: float, least: float) -> list[Figure]:
    book, bucket, unit = crowd.books.of[tenant], _bucket(crowd, tenant, now), UNITS[tenant]
    allowed, used = opening.level + (now - opening.at) * bucket.per_s, _used(crowd, tenant) - opening.used
    return [
        Figure(f"{tenant}: the books are off by", abs(bucket.level(now) - (allowed - used)), unit, MOST_OFF),
        Figure(f"{tenant}: used of what was allowed", used / allowed * 100, "%", least, Sense.AT_LEAST),
        Figure(f"{tenant}: used above what was allowed", max(0.0, used - allowed), unit, 0.0),
        Figure(f"{tenant}: turned away", book.n_shed / book.n * 100, "%"),
    ]
