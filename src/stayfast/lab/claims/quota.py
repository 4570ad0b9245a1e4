"""Quotas are exact: tenants are charged for what they used, and the limits are given out in full.

Three tenants send three times their quota in virtual time: one is limited in tokens, one in requests, one in cost. Estimates
are wrong on purpose: a request may use 400 tokens and uses about 40. Of the second tenant's clients one in five leaves at a
random moment. At the end the accounts must balance. For a bucket that was never full:

    level = level at the start + refill - used,      used: as reported by the upstream, summed here

When wrong: an upstream that reports no usage is charged by estimate, and the true usage is unknown.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from math import nan
from random import Random
from typing import Any, NamedTuple

from stayfast.lab.harness.claim import ClaimResult, Figure, Sense
from stayfast.lab.harness.virtual import VirtualClaim, VirtualTenants, chat_request, run_arrivals
from stayfast.lab.simulated import GapConfig, Mixture, OutputLengths, ProviderConfig
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.quota import Bucket, QuotaConfig
from stayfast.testing.simloop import SimLoop

RATE_RPS = 60.0  # of each tenant
N_INPUT, N_OUTPUT = 20, 400
PROVIDER = ProviderConfig(ttft=Mixture(0.2, 0.5), gaps=GapConfig(0.01, 0.0, 64), output=OutputLengths(40.0, 0.5, N_OUTPUT))
PRICE = Price(1.0, 4.0)
TENANTS: Mapping[str, TenantConfig] = {
    "by tokens": TenantConfig(quota=QuotaConfig(tokens_per_minute=84_000)),
    "by requests": TenantConfig(quota=QuotaConfig(requests_per_minute=1200, requests_per_day=1_700_000)),
    "by cost": TenantConfig(quota=QuotaConfig(cost_per_minute=0.25)),
}
LEAVING_SHARE = 0.2
LIMITS = {"by tokens": "tokens_per_minute", "by requests": "requests_per_minute", "by cost": "cost_per_minute"}
UNITS = {"by tokens": "tokens", "by requests": "requests", "by cost": "USD"}
MAX_OFF = 1e-4  # the rounding error of a sum of a million floats
MIN_PERCENT = 99.0
WARMUP_SHARE = 20  # %
N_REQUESTS = 1_000_000
N_BEFORE = 100  # requests of each tenant before the start, so that no bucket is full


async def measure(loop: SimLoop, n_requests: int, seed: int, tenants: Mapping[str, TenantConfig] = TENANTS) -> ClaimResult:
    rng = Random(seed)
    virtual = VirtualTenants(PROVIDER, tenants, AdmissionConfig(), loop, seed, price=PRICE)
    n_each = n_requests // len(tenants)
    await asyncio.gather(*[virtual.send(name, chat_request(N_INPUT, N_OUTPUT)) for name in tenants for _ in range(N_BEFORE)])
    openings = {name: _Opening(loop.now(), _bucket(virtual, name, loop.now()).level(loop.now()), _used(virtual, name))
                for name in tenants}
    windows = {name: _Window(virtual, name, loop) for name in tenants}
    async with asyncio.TaskGroup() as group:
        for name in tenants:
            group.create_task(_send_requests(virtual, name, n_each, Random(rng.random()), windows[name]))
    figures = [figure for name in tenants for figure in _figures(virtual, name, openings[name], windows[name], loop.now())]
    return ClaimResult((*figures, virtual.leftover_figure()),
                   (f"{n_each * len(tenants):,} requests in {loop.now() / 60:.1f} virtual minutes.",))


QUOTA = VirtualClaim(
    "quota", "In a million requests at three times their quota, tenants are charged exactly what they used, up to the "
    f"rounding of sums ({MAX_OFF:g}). They get at least {MIN_PERCENT:g} % of their quota, and never more.",
    measure, "{:,} requests in virtual time", N_REQUESTS, 30_000)


async def _send_requests(virtual: VirtualTenants, tenant: str, n: int, rng: Random, window: "_Window") -> None:
    request = chat_request(N_INPUT, N_OUTPUT)

    def begin(number: int) -> Coroutine[Any, Any, float]:
        if number in {n * WARMUP_SHARE // 100, n - 1}:
            window.read()
        leaves = tenant == "by requests" and rng.random() < LEAVING_SHARE
        return virtual.send(tenant, request, *([rng.uniform(0.0, 0.6)] if leaves else []))

    await run_arrivals(n, RATE_RPS, rng, begin)


class _Opening(NamedTuple):
    """A tenant's account at a moment without requests in flight."""

    at: float
    level: float
    used: float


class _Window:
    """A tenant's usage from WARMUP_SHARE of its arrivals on to the last one. Requests that are in flight at its end have
    reserved more than they will use; about as many are in flight at its begin.
    """

    def __init__(self, virtual: VirtualTenants, tenant: str, loop: SimLoop) -> None:
        self._virtual = virtual
        self._tenant = tenant
        self._loop = loop
        self._readings: list[tuple[float, float]] = []

    def read(self) -> None:
        """Read the time and the usage so far."""
        self._readings.append((self._loop.now(), _used(self._virtual, self._tenant)))

    @property
    def used_percent(self) -> float:
        """Of what the bucket was filled with in the window."""
        (since, before), (until, after) = self._readings[0], self._readings[-1]
        filled = (until - since) * _bucket(self._virtual, self._tenant, until).per_s
        return (after - before) / filled * 100 if filled else nan


def _bucket(virtual: VirtualTenants, tenant: str, now: float) -> Bucket:
    return virtual.admission.tenants.get(tenant, now).quota.bucket_for(LIMITS[tenant])


def _used(virtual: VirtualTenants, tenant: str) -> float:
    """As reported by the upstream."""
    totals = virtual.ledger.by_tenant[tenant]
    return {"by tokens": totals.tokens, "by requests": totals.requests, "by cost": totals.cost_usd}[tenant]


def _figures(virtual: VirtualTenants, tenant: str, opening: _Opening, window: _Window, now: float) -> list[Figure]:
    totals, bucket, unit = virtual.ledger.by_tenant[tenant], _bucket(virtual, tenant, now), UNITS[tenant]
    allowed, used = opening.level + (now - opening.at) * bucket.per_s, _used(virtual, tenant) - opening.used
    return [
        Figure.exact(f"{tenant}: the books are off by", abs(bucket.level(now) - (allowed - used)), unit, MAX_OFF),
        Figure.exact(f"{tenant}: used of what was allowed, while requests arrived", window.used_percent, "%", MIN_PERCENT,
                     Sense.AT_LEAST),
        Figure.exact(f"{tenant}: used above what was allowed", max(0.0, used - allowed), unit, 0.0),
        Figure.percent(f"{tenant}: rejected", totals.n_shed / totals.n),
    ]
