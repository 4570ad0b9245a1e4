"""One of twenty calls hangs for 30 s and longer; the healthy ones take milliseconds. Nothing is configured but the defaults.

Gateways with a time-out of 1 s have a p99 of 1.0 s and more here. Calls to upstreams are counted, too: a call that hangs
must be made again, 5.3 % with the second attempts that hang themselves. One of 8,000 requests meets three hanging calls and
waits for its time-out: hedging does not mend that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfast.lab.harness.claim import Conditions, Extent, Finding
from stayfast.lab.harness.hedging_runs import ask_in_virtual_time, ask_over_sockets, twins, waits
from stayfast.lab.harness.load import Load, why_spoiled
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.simulated import FaultRule, Gaps, Kind, Mixture, ProviderConfig
from stayfast.policy.resilience.hedge import HedgeConfig

RATE_RPS = 40.0
GOALS: Mapping[str, float] = {"p99_s": 0.1, "calls": 1.07}
PROVIDERS = twins(ProviderConfig(ttft=Mixture(0.002, 0.4), gaps=Gaps(0.0, 0.0), fills_max_tokens=True,
                                 faults=(FaultRule(Kind.HANG, 0.05),)))


@dataclass(frozen=True, slots=True)
class Hangs:
    """hedge: what the route has instead of the defaults."""

    full: Extent = Extent(1_000_000, 60.0)
    quick: Extent = Extent(10_000, 6.0)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "hangs"
    says = "Where one call in twenty hangs, p99 is at most 100 ms at 1.07 calls a request, with no constant configured."

    async def run(self, conditions: Conditions) -> Finding:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.say(f"{extent.real_s:g} s over sockets, {extent.n:,} requests in virtual time")
        real = await ask_over_sockets(PROVIDERS, self.hedge, load(extent.real_s), seed)
        twin = await run_virtual_in_thread(ask_in_virtual_time, PROVIDERS, HedgeConfig(**self.hedge),
                                           load(extent.n / RATE_RPS), seed)
        figures = (*waits(real).figures("sockets", GOALS), *waits(twin).figures("virtual time", GOALS))
        return Finding(figures, spoiled=why_spoiled({"gateway": real}))


def load(seconds: float) -> Load:
    """The requests."""
    return Load(seconds, RATE_RPS, n_output=2, warmup_s=5.0, timeout_s=10.0)
