"""One provider alone, hedged to itself, against itself without: what second attempts buy where there is nobody else to ask.

The provider is the preset `gpt-4o-mini-like` (median 0.53 s, 3 % of answers at 3.7 s). Spend is counted in calls, which is
more than in tokens: a second attempt mostly ends before its answer is paid for.

When wrong: its draws are independent here; a provider whose bad luck sticks to a session gains less (`tail_correlation`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.load import Load, why_spoiled
from stayfast.prove.waits import Waits, in_virtual_time, over_sockets, waits
from stayfast.upstreams.simulated import ProviderConfig

PRESET = "gpt-4o-mini-like"
RATE_RPS = 60.0
LESS_P99, MORE_CALLS, P50_WITHIN = 0.60, 0.05, 0.03
SLACK_QUICK = 2.0  # of the last two


@dataclass(frozen=True, slots=True)
class Hedge:
    """See the module. `hedge`: what the hedged route has beside the defaults."""

    real_s: float = 90.0
    real_quick_s: float = 8.0
    n_virtual: int = 500_000  # of each
    n_virtual_quick: int = 8_000
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "hedge"
    says = (f"Hedging one provider to itself takes {LESS_P99:.0%} off its p99 for {MORE_CALLS:.0%} more calls, and nothing "
            "is worse at p50.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        seed, is_quick = conditions.seed, conditions.is_quick
        real_s, n = (self.real_quick_s, self.n_virtual_quick) if is_quick else (self.real_s, self.n_virtual)
        conditions.say(f"twice {real_s:g} s over sockets, twice {n:,} requests in virtual time")
        load = Load(real_s, RATE_RPS, n_output=2, warmup_s=10.0)
        provider = {"a": {"preset": PRESET, "seed": seed, "fills_max_tokens": True}}
        async with asyncio.TaskGroup() as group:
            plain = group.create_task(over_sockets(provider, {"mode": "off"}, load, seed))
            hedged = group.create_task(over_sockets(provider, self.hedge, load, seed))
        load = Load(n / RATE_RPS, RATE_RPS, n_output=2, warmup_s=10.0)
        config = {"a": ProviderConfig(PRESET, seed, fills_max_tokens=True)}
        off = await asyncio.to_thread(in_virtual_time, config, HedgeConfig("off"), load, seed)
        on = await asyncio.to_thread(in_virtual_time, config, HedgeConfig(**self.hedge), load, seed)
        figures = (*_compared("sockets", waits(plain.result()), waits(hedged.result()), SLACK_QUICK if is_quick else 1.3),
                   *_compared("virtual time", waits(off), waits(on), SLACK_QUICK if is_quick else 1.0))
        return Finding(figures, spoiled=why_spoiled({"plain": plain.result(), "hedged": hedged.result()}))


def _compared(where: str, plain: Waits, hedged: Waits, slack: float) -> Sequence[Figure]:
    return (
        *plain.figures(f"{where}, without", {}), *hedged.figures(f"{where}, hedged", {}),
        Figure(f"{where}: p99 shorter by", (1 - hedged.p99_s / plain.p99_s) * 100, "%",
               (1 - (1 - LESS_P99) * (slack**0.5)) * 100, Sense.AT_LEAST),
        Figure(f"{where}: more calls", (hedged.calls / plain.calls - 1) * 100, "%", MORE_CALLS * 100 * slack),
        Figure(f"{where}: p50 longer by", (hedged.p50_s / plain.p50_s - 1) * 100, "%", P50_WITHIN * 100 * slack),
    )
