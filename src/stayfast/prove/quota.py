"""Quotas are kept to the unit: what was charged is what was used, and what the limits allow is given out in full.

Three tenants ask in virtual time for three times of what they may: one is limited in tokens, one in requests, one in cost.
Estimates are wrong on purpose: a request says at most 400 tokens and gets about 40. Of the second tenant's clients one in
five leaves, at any moment. In the end the books must close: a bucket that was never full again holds

    level = level at the start + refill - used,      used: as the upstream reported it, summed here, not by the gateway

When wrong: an upstream that reports no usage is charged by estimate, and then nobody knows the truth.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from stayfast.policy.admission import AdmissionConfig, TenantConfig
from stayfast.policy.price import Price
from stayfast.policy.quota import QuotaConfig
from stayfast.policy.rate import Bucket
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.crowd import Crowd, chat
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import ProviderConfig
from stayfast.upstreams.simulated.config import Lengths
from stayfast.upstreams.simulated.latency import Gaps, Mixture

RATE_RPS = 60.0  # of each tenant's clients
N_INPUT, N_OUTPUT = 20, 400
PROVIDER = ProviderConfig(ttft=Mixture(0.2, 0.5), gaps=Gaps(0.01, 0.0, 64), output=Lengths(40.0, 0.5, N_OUTPUT))
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
N_BEFORE = 100  # requests of each, so that no bucket is full when the books are opened


@dataclass(frozen=True, slots=True)
class QuotaProof:
    """See the module."""

    n_requests: int = 1_000_000
    n_quick: int = 30_000
    tenants: Mapping[str, TenantConfig] = field(default_factory=lambda: TENANTS)

    name = "quota"
    says = ("Over a million requests at three times their quota, what tenants are charged is to the unit what they used; "
            "they get at least 99 % of what they may, and never more.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        n = self.n_quick if conditions.is_quick else self.n_requests
        conditions.say(f"{n:,} requests in virtual time")
        least = 95.0 if conditions.is_quick else 99.0
        return await asyncio.to_thread(in_virtual_time, n, self.tenants, conditions.seed, least)


def in_virtual_time(n_requests: int, tenants: Mapping[str, TenantConfig], seed: int, least: float) -> Finding:
    """All of it, and the verdict. `least`: % of what is allowed that must be given out; what is reserved for the last ones
    is too much by half, and weighs the more the shorter the run is.
    """
    async def main(loop: SimLoop) -> Finding:
        rng = Random(seed)
        crowd = Crowd(PROVIDER, tenants, AdmissionConfig(), loop, seed, price=PRICE)
        n_each = n_requests // len(tenants)
        await asyncio.gather(*[crowd.ask(name, chat(N_INPUT, N_OUTPUT)) for name in tenants for _ in range(N_BEFORE)])
        openings = {name: _opening(crowd, name, loop.now()) for name in tenants}
        async with asyncio.TaskGroup() as group:
            for name in tenants:
                group.create_task(_clients(crowd, name, n_each, Random(rng.random())))
        figures = [figure for name in tenants for figure in _figures(crowd, name, openings[name], loop.now(), least)]
        figures.append(Figure("places still taken at the end", float(crowd.admission.places.n_taken), "", 0.0))
        return Finding(tuple(figures), (f"{n_each * len(tenants):,} requests in {loop.now() / 60:.1f} virtual minutes.",))

    return run(main)


async def _clients(crowd: Crowd, tenant: str, n: int, rng: Random) -> None:
    request = chat(N_INPUT, N_OUTPUT)
    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            leaves = tenant == "by requests" and rng.random() < LEAVERS
            group.create_task(crowd.ask(tenant, request, *([rng.uniform(0.0, 0.6)] if leaves else [])))
            await asyncio.sleep(rng.expovariate(RATE_RPS))


class _Opening(NamedTuple):
    """The books of one tenant when nothing is under way."""

    at: float
    level: float
    used: float


def _opening(crowd: Crowd, tenant: str, now: float) -> _Opening:
    return _Opening(now, _bucket(crowd, tenant, now).level(now), _used(crowd, tenant))


def _bucket(crowd: Crowd, tenant: str, now: float) -> Bucket:
    return crowd.admission.tenants.of(tenant, now).quota.bucket(LIMITS[tenant])


def _used(crowd: Crowd, tenant: str) -> float:
    """As the upstream says."""
    book = crowd.books.of[tenant]
    return {"by tokens": book.tokens, "by requests": book.requests, "by cost": book.cost_usd}[tenant]


def _figures(crowd: Crowd, tenant: str, opening: _Opening, now: float, least: float) -> list[Figure]:
    book, bucket, unit = crowd.books.of[tenant], _bucket(crowd, tenant, now), UNITS[tenant]
    allowed, used = opening.level + (now - opening.at) * bucket.per_s, _used(crowd, tenant) - opening.used
    return [
        Figure(f"{tenant}: the books are off by", abs(bucket.level(now) - (allowed - used)), unit, MOST_OFF),
        Figure(f"{tenant}: used of what was allowed", used / allowed * 100, "%", least, Sense.AT_LEAST),
        Figure(f"{tenant}: used above what was allowed", max(0.0, used - allowed), unit, 0.0),
        Figure(f"{tenant}: turned away", book.n_shed / book.n * 100, "%"),
    ]
