"""Tenants with permanent demand get their weighted shares, whatever the shapes of their requests.

Four tenants of different weights have so many callers that each always has requests waiting: one with short requests, one
with long ones, one with both, and one that is absent every other two minutes. Service is counted as in
`policy.admission.fair_share`, from the usage that the upstream reported: input tokens once, output tokens twice. Each
tenant's share of it is compared with its share of the weights of the tenants that were present.

When wrong: the first WARMUP_S of each phase are excluded, in which the first tenants to arrive have more than their shares.
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from stayfast.lab.harness.claim import ClaimResult, Figure, ratio
from stayfast.lab.harness.virtual import TenantTotals, VirtualClaim, VirtualTenants, chat_request
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.fair_share import weighted_tokens
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop

WITHIN = 5.0  # %
N_PLACES = 32
N_CALLERS = 40
AWAY_S = 120.0
WARMUP_S = 20.0
N_SLICES = 5  # of the rest of a phase, over which the share's interval is computed
PROVIDER = ProviderConfig(ttft=Mixture(0.1, 0.5), gaps=GapConfig(0.02, 0.2, 64), fills_max_tokens=True)
ADMISSION = AdmissionConfig(N_PLACES, QueueConfig(max_wait_s=3000.0, target_wait_s=3000.0))
PART_TIME = "now and then"
WEIGHTS: Mapping[str, float] = {"short": 1.0, "long": 2.0, "mixed": 3.0, PART_TIME: 2.0}
SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {  # tokens of prompt and answer
    "short": ((20, 10),), "long": ((2000, 300),), "mixed": ((20, 10), (400, 200)), PART_TIME: ((100, 50),)}


async def measure(loop: SimLoop, seconds: float, seed: int, weights: Mapping[str, float] = WEIGHTS) -> ClaimResult:
    """Run all phases. The gateway is configured with `weights`; the goals follow from WEIGHTS."""
    tenants = VirtualTenants(PROVIDER, {name: TenantConfig(weight=weight) for name, weight in weights.items()}, ADMISSION,
                             loop, seed)
    totals = tenants.ledger.by_tenant
    slices: dict[bool, list[dict[str, float]]] = {True: [], False: []}  # service by tenant; key: PART_TIME is present
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(_call_forever(tenants, name, Random(seed * 1000 + n), loop))
                   for name in WEIGHTS for n in range(N_CALLERS)]
        while loop.now() < seconds:
            phase_ends_at = loop.now() + AWAY_S
            await asyncio.sleep(WARMUP_S)
            is_present = loop.now() % (2 * AWAY_S) < AWAY_S
            slice_s = (phase_ends_at - loop.now()) / N_SLICES
            for _ in range(N_SLICES):
                before = {name: _service(totals.get(name)) for name in WEIGHTS}
                await asyncio.sleep(slice_s)
                slices[is_present].append({name: _service(totals.get(name)) - before[name] for name in WEIGHTS})
        for task in callers:
            task.cancel()
    n = sum(each.n for each in totals.values())
    figures = [figure for is_present, served in slices.items() for figure in _share_figures(served, is_present=is_present)]
    return ClaimResult((*figures, tenants.leftover_figure()), (f"{n:,} requests in {seconds / 60:.0f} virtual minutes.",))


FAIR = VirtualClaim(
    "fair", f"Tenants with permanent demand get their weighted shares of the tokens within {WITHIN:g} %.",
    measure, "{:g} s in virtual time", 2400, 480)


async def _call_forever(tenants: VirtualTenants, tenant: str, rng: Random, loop: SimLoop) -> None:
    requests = [chat_request(*shape) for shape in SHAPES[tenant]]
    while True:
        if tenant == PART_TIME and loop.now() % (2 * AWAY_S) >= AWAY_S:
            await asyncio.sleep(AWAY_S - loop.now() % AWAY_S)
        await tenants.send(tenant, rng.choice(requests))


def _service(totals: TenantTotals | None) -> float:
    return weighted_tokens(totals.input_tokens, totals.tokens - totals.input_tokens) if totals is not None else 0.0


def _share_figures(slices: Sequence[Mapping[str, float]], *, is_present: bool) -> list[Figure]:
    present = [name for name in WEIGHTS if is_present or name != PART_TIME]
    all_weights = sum(WEIGHTS[name] for name in present)
    figures = []
    for name in present:
        due = WEIGHTS[name] / all_weights
        off = [(ratio(served[name], sum(served[each] for each in present)) / due - 1) * 100 for served in slices]
        words = "all four" if is_present else "three"
        figures.append(Figure.mean_distance(f"{words}: {name}, due {due:.1%}: off by", off, "%", WITHIN))
    return figures
