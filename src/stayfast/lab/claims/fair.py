"""Tenants that always want more than there is get their shares, whatever their requests look like.

Four tenants of different weights, each with so many callers that it always wants more: one with short requests, one with
long ones, one that mixes them, one that is away every other two minutes. Service is counted as `policy.admission.fair_share`
counts it, from what the upstream reported: input tokens once, output tokens twice. Each one's part of it is put beside its
part of the weights of those who were there.

When wrong: the first WARMUP_S, in which the first to come have more than their shares, are left out.
"""

import asyncio
from collections.abc import Mapping
from random import Random

from stayfast.lab.harness.claim import Figure, Finding
from stayfast.lab.harness.virtual import TenantTotals, VirtualClaim, VirtualTenants, chat
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.policy.admission.fair_share import weighted
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.testing.simloop import SimLoop

WITHIN = 5.0  # %
N_PLACES = 32
N_CALLERS = 40
AWAY_S = 120.0
WARMUP_S = 20.0
PROVIDER = ProviderConfig(ttft=Mixture(0.1, 0.5), gaps=GapConfig(0.02, 0.2, 64), fills_max_tokens=True)
ADMISSION = AdmissionConfig(N_PLACES, QueueConfig(max_wait_s=3000.0, target_wait_s=3000.0))
WEIGHTS: Mapping[str, float] = {"short": 1.0, "long": 2.0, "mixed": 3.0, "now and then": 2.0}
SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {  # tokens of prompt and answer
    "short": ((20, 10),), "long": ((2000, 300),), "mixed": ((20, 10), (400, 200)), "now and then": ((100, 50),)}


async def play(loop: SimLoop, seconds: float, seed: int, weights: Mapping[str, float] = WEIGHTS) -> Finding:
    """All phases, and the verdict. The gateway gets `weights`; it is judged by WEIGHTS."""
    crowd = VirtualTenants(PROVIDER, {name: TenantConfig(weight=weight) for name, weight in weights.items()}, ADMISSION,
                           loop, seed)
    phases: dict[bool, dict[str, float]] = {True: dict.fromkeys(WEIGHTS, 0.0), False: dict.fromkeys(WEIGHTS, 0.0)}
    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(_caller(crowd, name, Random(seed * 1000 + n), loop))
                   for name in WEIGHTS for n in range(N_CALLERS)]
        while loop.now() < seconds:
            phase_ends_at = loop.now() + AWAY_S
            await asyncio.sleep(WARMUP_S)
            before = {name: _service(crowd.books.of.get(name)) for name in WEIGHTS}
            is_here = loop.now() % (2 * AWAY_S) < AWAY_S  # the one that comes now and then
            await asyncio.sleep(phase_ends_at - loop.now())
            for name in WEIGHTS:
                phases[is_here][name] += _service(crowd.books.of.get(name)) - before[name]
        for task in callers:
            task.cancel()
    n = sum(book.n for book in crowd.books.of.values())
    left = Figure("places still taken at the end", float(crowd.admission.places.n_taken), "", 0.0)
    return Finding((*_figures(phases), left), (f"{n:,} requests in {seconds / 60:.0f} virtual minutes.",))


FAIR = VirtualClaim(
    "fair", f"Tenants that always want more than there is get their weighted shares of the tokens within {WITHIN:g} %.",
    play, "{:g} s in virtual time", 2400, 480)


async def _caller(crowd: VirtualTenants, tenant: str, rng: Random, loop: SimLoop) -> None:
    shapes = [chat(*shape) for shape in SHAPES[tenant]]
    while True:
        if tenant == "now and then" and loop.now() % (2 * AWAY_S) >= AWAY_S:
            await asyncio.sleep(AWAY_S - loop.now() % AWAY_S)
        await crowd.ask(tenant, rng.choice(shapes))


def _service(book: TenantTotals | None) -> float:
    return weighted(book.input_tokens, book.tokens - book.input_tokens) if book is not None else 0.0


def _figures(phases: Mapping[bool, Mapping[str, float]]) -> list[Figure]:
    figures = []
    for is_here, served in phases.items():
        present = [name for name in WEIGHTS if is_here or name != "now and then"]
        whole = sum(served[name] for name in present)
        weights = sum(WEIGHTS[name] for name in present)
        for name in present:
            share, due = served[name] / whole, WEIGHTS[name] / weights
            words = "all four" if is_here else "three"
            figures.append(Figure(f"{words}: {name}, due {due:.1%}: off by", abs(share / due - 1) * 100, "%", WITHIN))
    return figures
