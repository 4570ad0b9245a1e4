"""One of twenty calls hangs for 30 s and longer; the healthy ones take milliseconds. Nothing is configured but the defaults.

Gateways with a time-out of 1 s have a p99 of 1.0 s and more here. Counted are calls to upstreams, too: what hangs must be
asked for again, 5.3 % with the second attempts that hang themselves. One of 8,000 requests meets three hanging calls and
waits for its time-out: hedging does not mend that.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Conditions, Finding
from stayfast.prove.load import Load, why_spoiled
from stayfast.prove.waits import in_virtual_time, over_sockets, waits
from stayfast.upstreams.simulated import FaultRule, Gaps, Kind, Mixture, ProviderConfig

RATE_RPS = 40.0
SHARE = 0.05
GOALS: Mapping[str, float] = {"p99_s": 0.1, "calls": 1.07}
PROVIDER: Mapping[str, Any] = {"ttft": {"median_s": 0.002, "sigma": 0.4}, "fills_max_tokens": True,
                               "faults": [{"kind": "hang", "rate": SHARE}]}


@dataclass(frozen=True, slots=True)
class Hangs:
    """See the module. `hedge`: what the route has instead of the defaults."""

    real_s: float = 60.0
    real_quick_s: float = 6.0
    n_virtual: int = 1_000_000
    n_virtual_quick: int = 10_000
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "hangs"
    says = "Where one call in twenty hangs, p99 is at most 100 ms at 1.07 calls a request, with no constant configured."

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        seed = conditions.seed
        real_s, n = ((self.real_quick_s, self.n_virtual_quick) if conditions.is_quick else (self.real_s, self.n_virtual))
        conditions.say(f"{real_s:g} s over sockets, {n:,} requests in virtual time")
        load = Load(real_s, RATE_RPS, n_output=2, warmup_s=5.0, timeout_s=10.0)
        real = await over_sockets({name: {**PROVIDER, "seed": number} for number, name in enumerate("ab")}, self.hedge, load,
                                  seed)
        load = Load(n / RATE_RPS, RATE_RPS, n_output=2, warmup_s=5.0, timeout_s=10.0)
        twin = await asyncio.to_thread(in_virtual_time, {name: _provider(number) for number, name in enumerate("ab")},
                                       HedgeConfig(**self.hedge), load, seed)
        figures = (*waits(real).figures("sockets", GOALS), *waits(twin).figures("virtual time", GOALS))
        return Finding(figures, spoiled=why_spoiled({"gateway": real}))


def _provider(seed: int) -> ProviderConfig:
    return ProviderConfig(seed=seed, ttft=Mixture(0.002, 0.4), gaps=Gaps(0.0, 0.0), fills_max_tokens=True,
                          faults=(FaultRule(Kind.HANG, SHARE),))
