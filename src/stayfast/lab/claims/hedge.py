"""One provider alone, hedged to itself, against itself without: what second attempts gain where there is no other provider.

The provider is the preset `gpt-4o-mini-like` (median 0.53 s, 3 % of answers at 3.7 s). Spend is counted in calls, which is
more than in tokens: a second attempt mostly ends before its answer is paid for.

When wrong: draws are independent here; a provider whose bad luck sticks to a session gains less (`tail_correlation`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense
from stayfast.lab.harness.hedging_runs import Waits, ask_in_virtual_time, ask_over_sockets, waits
from stayfast.lab.harness.load import Load, why_spoiled
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.simulated import ProviderConfig
from stayfast.policy.resilience.hedge import HedgeConfig

PRESET = "gpt-4o-mini-like"
RATE_RPS = 60.0
LESS_P99, MORE_CALLS, P50_WITHIN = 0.60, 0.05, 0.03


@dataclass(frozen=True, slots=True)
class Hedge:
    """hedge: what the hedged route has beside the defaults."""

    full: Extent = Extent(500_000, 90.0, slack=1.3)  # of each
    quick: Extent = Extent(8_000, 8.0, slack=2.0, virtual_slack=2.0)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "hedge"
    says = (f"Hedging one provider to itself takes {LESS_P99:.0%} off its p99 for {MORE_CALLS:.0%} more calls, and nothing "
            "is worse at p50.")

    async def run(self, conditions: Conditions) -> Finding:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.say(f"twice {extent.real_s:g} s over sockets, twice {extent.n:,} requests in virtual time")
        load = Load(extent.real_s, RATE_RPS, n_output=2, warmup_s=10.0)
        provider = {"a": ProviderConfig(PRESET, seed, fills_max_tokens=True)}
        async with asyncio.TaskGroup() as group:
            plain = group.create_task(ask_over_sockets(provider, {"mode": "off"}, load, seed))
            hedged = group.create_task(ask_over_sockets(provider, self.hedge, load, seed))
        load = Load(extent.n / RATE_RPS, RATE_RPS, n_output=2, warmup_s=10.0)
        off, on = [await run_virtual_in_thread(ask_in_virtual_time, provider, config, load, seed)
                   for config in (HedgeConfig("off"), HedgeConfig(**self.hedge))]
        figures = (*_compare("sockets", waits(plain.result()), waits(hedged.result()), extent.slack),
                   *_compare("virtual time", waits(off), waits(on), extent.virtual_slack))
        return Finding(figures, spoiled=why_spoiled({"plain": plain.result(), "hedged": hedged.result()}))


def _compare(where: str, plain: Waits, hedged: Waits, slack: float) -> Sequence[Figure]:
    return (
        *plain.figures(f"{where}, without", {}), *hedged.figures(f"{where}, hedged", {}),
        Figure(f"{where}: p99 shorter by", (1 - hedged.p99_s / plain.p99_s) * 100, "%",
               (1 - (1 - LESS_P99) * (slack**0.5)) * 100, Sense.AT_LEAST),
        Figure(f"{where}: more calls", (hedged.calls / plain.calls - 1) * 100, "%", MORE_CALLS * 100 * slack),
        Figure(f"{where}: p50 longer by", (hedged.p50_s / plain.p50_s - 1) * 100, "%", P50_WITHIN * 100 * slack),
    )
