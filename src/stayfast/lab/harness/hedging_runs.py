"""Waits for the first token with second attempts on and off: over sockets and in virtual time, with the same figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Final

from stayfast.lab.harness.claim import Figure
from stayfast.lab.harness.load import Load, ask, n_failed, simulated_gateway, waits_s
from stayfast.lab.harness.virtual import ask_pipeline, settings_of
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import Exact
from stayfast.lab.load.virtual import virtual
from stayfast.lab.simulated import Gaps, Mixture, ProviderConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop

HEAVY_TAIL: Final = Mixture(0.191, 0.5, 0.068, 3.66, 0.745)  # p99 8 s
LONG_S: Final = 5.0
_SHOWN: Final = (("p50_s", "TTFT p50", "s", 1.0), ("p95_s", "TTFT p95", "s", 1.0), ("p99_s", "TTFT p99", "s", 1.0),
                 ("past_5_s", "past 5 s", "%", 100.0), ("calls", "calls a request", "", 1.0),
                 ("n_failed", "requests without an answer", "", 1.0))


@dataclass(frozen=True, slots=True)
class Waits:
    """What one run came to: waits from the intended start, and calls to upstreams a request."""

    n: int
    p50_s: float
    p95_s: float
    p99_s: float
    past_5_s: float  # share
    calls: float
    n_failed: int

    def figures(self, where: str, goals: Mapping[str, float]) -> Sequence[Figure]:
        """Each as a figure, with its goal where there is one."""
        return [Figure(f"{where}: {words} (n={self.n})", getattr(self, name) * factor, unit,
                       goals[name] * factor if name in goals else None) for name, words, unit, factor in _SHOWN]


def waits(result: Result) -> Waits:
    """The figures of one run; NaN where nothing was asked. A request without an answer waits for ever."""
    each_s = waits_s(result)
    exact, n = Exact(each_s), len(each_s)
    share_past = sum(wait_s > LONG_S for wait_s in each_s) / n if n else nan
    calls = sum(result.samples.ints["n_upstream_attempts"]) / n if n else nan
    return Waits(n, exact.at(0.5), exact.at(0.95), exact.at(0.99), share_past, calls, n_failed(result))


def twins(config: ProviderConfig) -> dict[str, ProviderConfig]:
    """Two providers that differ in their draws only."""
    return {name: replace(config, seed=number) for number, name in enumerate("ab")}


def heavy_tailed(seed: int = 0) -> ProviderConfig:
    """A provider with the heavy tail of the proof `tail`."""
    return ProviderConfig(seed=seed, ttft=HEAVY_TAIL, gaps=Gaps(0.0, 0.0), fills_max_tokens=True)


async def ask_over_sockets(providers: Mapping[str, Any], hedge: Mapping[str, Any], load: Load, seed: int) -> Result:
    """The load on a gateway in front of a simulator that plays these providers."""
    async with simulated_gateway(providers, seed, hedge=dict(hedge)) as (_, url):
        return (await ask(load, {"gateway": url}, seed))["gateway"]


async def ask_in_virtual_time(loop: SimLoop, providers: Mapping[str, ProviderConfig], hedge: HedgeConfig, load: Load,
                              seed: int) -> Result:
    """The load on the same pipeline, policies and providers."""
    return await ask_pipeline(virtual(settings_of(providers, hedge=hedge), loop, seed), load, loop, seed)
