"""Two providers with a heavy tail, and no constant configured but the share of extra calls.

Each provider's time to the first token is a mixture: 93.2 % lognormal with a median of 191 ms and a sigma of 0.5, 6.8 %
lognormal with a median of 3.66 s and a sigma of 0.745; draws are independent. What is asked directly has a p99 of 8 s. The
ideal for 9.9 % more calls, two hedges after 0.5 s with the distribution known, has p95 0.66 s, p99 0.88 s and 0.002 % past
5 s; gateways with a time-out tuned by hand to this very mixture come to 0.67 to 0.69 s and 0.90 to 0.92 s.

When wrong: draws of one provider are correlated in life. And sampling: of n answers the p99 has a standard error of about
1 % at n = 60,000, so the run over sockets is held to the same goals with what it is short of that.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Conditions, Figure, Finding
from stayfast.prove.load import Load, why_spoiled
from stayfast.prove.waits import in_virtual_time, over_sockets, waits
from stayfast.upstreams.simulated import Gaps, Mixture, ProviderConfig

MIXTURE = Mixture(0.191, 0.5, 0.068, 3.66, 0.745)
PROVIDER: Mapping[str, Any] = {"ttft": asdict(MIXTURE), "gaps": {"median_s": 0.0, "sigma": 0.0}, "fills_max_tokens": True}
GOALS: Mapping[float, Mapping[str, float]] = {
    0.10: {"p95_s": 0.68, "p99_s": 0.92, "past_5_s": 0.0001, "calls": 1.10},
    0.25: {"p95_s": 0.50, "p99_s": 0.72},
}
SHARE = 0.10  # of the claim in one number; the other is run more briefly
SLACK_QUANTILES = 1.05  # over sockets: 30,000 answers and timers of a busy machine
SLACK_QUICK = 1.5
SLACK_QUICK_VIRTUAL = 1.15
QUANTILES = ("p95_s", "p99_s")
VIRTUAL_RPS = 100.0


@dataclass(frozen=True, slots=True)
class Tail:
    """See the module. `hedge`: what the routes have beside the budget."""

    rate_rps: float = 100.0
    real_s: float = 300.0  # in 100 s these seeds draw 9.1 % past 0.55 s, and the mixture has 8.4
    real_quick_s: float = 8.0
    n_virtual: int = 1_000_000
    n_virtual_quick: int = 10_000
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "tail"
    says = ("Behind two providers with p99 8 s, with no constant configured: p95 at most 0.68 s, p99 at most 0.92 s, 0.01 % "
            "past 5 s at 10 % more calls; with a budget of 25 % p95 0.5 s, p99 0.72 s.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        is_quick, seed = conditions.is_quick, conditions.seed
        real_s, n_virtual = (self.real_quick_s, self.n_virtual_quick) if is_quick else (self.real_s, self.n_virtual)
        figures: list[Figure] = []
        spoiled = None
        for share, goals in GOALS.items():
            config = {"mode": "auto", "budget": share, **self.hedge}
            if share != SHARE and not is_quick:
                real_s, n_virtual = self.real_s / 3, self.n_virtual // 5
            conditions.say(f"budget {share:.0%}: {real_s:g} s over sockets, {n_virtual:,} requests in virtual time")
            load = Load(real_s, self.rate_rps, n_output=2, warmup_s=10.0)
            real = await over_sockets({name: {**PROVIDER, "seed": number} for number, name in enumerate("ab")}, config, load,
                                      seed)
            spoiled = spoiled or why_spoiled({"gateway": real})
            load = Load(n_virtual / VIRTUAL_RPS, VIRTUAL_RPS, n_output=2, warmup_s=10.0)
            twin = await asyncio.to_thread(in_virtual_time, {name: _provider(number) for number, name in enumerate("ab")},
                                           HedgeConfig(**config), load, seed)
            slack = SLACK_QUICK if is_quick else SLACK_QUANTILES
            figures += waits(real).figures(f"budget {share:.0%}, sockets", _eased(goals, slack))
            figures += waits(twin).figures(f"budget {share:.0%}, virtual time",
                                           _eased(goals, SLACK_QUICK_VIRTUAL) if is_quick else goals)
        return Finding(tuple(figures), spoiled=spoiled)


def _provider(seed: int) -> ProviderConfig:
    return ProviderConfig(seed=seed, ttft=MIXTURE, gaps=Gaps(0.0, 0.0), fills_max_tokens=True)


def _eased(goals: Mapping[str, float], slack: float) -> Mapping[str, float]:
    """The goals of a run with fewer samples: quantiles by `slack`; what is counted in single requests by one request."""
    eased = {name: goal * slack if name in QUANTILES else goal for name, goal in goals.items()}
    if "calls" in eased:
        eased["calls"] = 1 + (eased["calls"] - 1) * slack
    if "past_5_s" in eased:
        eased["past_5_s"] = 0.001
    return eased
