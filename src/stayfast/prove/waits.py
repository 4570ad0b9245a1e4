"""Waits for the first token with second attempts on and off: over sockets and in virtual time, with the same figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any

from stayfast.bench.perform import Origin, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Prompts
from stayfast.bench.stats import Exact
from stayfast.compose.virtual import virtual
from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Figure
from stayfast.prove.load import MODEL, Load, ask
from stayfast.prove.rig import Rig, gateway_settings
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import ProviderConfig
from stayfast.upstreams.simulated.settings import SimulatedUpstream


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
        shown = (("p50_s", "TTFT p50", "s", 1.0), ("p95_s", "TTFT p95", "s", 1.0), ("p99_s", "TTFT p99", "s", 1.0),
                 ("past_5_s", "past 5 s", "%", 100.0), ("calls", "calls a request", "", 1.0),
                 ("n_failed", "requests without an answer", "", 1.0))
        return [Figure(f"{where}: {words} (n={self.n})", getattr(self, name) * factor, unit,
                       goals[name] * factor if name in goals else None) for name, words, unit, factor in shown]


def waits(result: Result) -> Waits:
    """The figures of one run; NaN where nothing was asked. What got no answer waits for ever."""
    samples = result.samples
    took = [first - at for first, at in zip(samples.floats["first_s"], samples.floats["at_s"], strict=True)]
    took, n = [inf if isnan(seconds) else seconds for seconds in took], len(took)
    exact = Exact(took)
    attempts = samples.ints["n_upstream_attempts"]
    past = sum(seconds > 5 for seconds in took) / n if n else nan
    return Waits(n, exact.at(0.5), exact.at(0.95), exact.at(0.99), past, sum(attempts) / n if n else nan,
                 sum(1 for error in samples.errors if error))


async def over_sockets(providers: Mapping[str, Any], hedge: Mapping[str, Any], load: Load, seed: int) -> Result:
    """Ask a gateway in front of a simulator that plays these providers."""
    async with Rig() as rig:
        sim = await rig.simulator(providers, seed)
        settings = gateway_settings({name: f"{sim.url}/{name}/v1" for name in providers}, hedge=dict(hedge))
        gateway = await rig.gateway(settings)
        return (await ask(load, {"gateway": f"{gateway.url}/v1"}, seed))["gateway"]


def in_virtual_time(providers: Mapping[str, ProviderConfig], hedge: HedgeConfig, load: Load, seed: int) -> Result:
    """Ask the same pipeline, policies and providers on a virtual loop."""
    upstreams = {name: SimulatedUpstream(provider=config, probe=False) for name, config in providers.items()}
    settings = Settings(upstreams=upstreams, routes={MODEL: Route(tuple(providers), hedge=hedge)})

    async def main(loop: SimLoop) -> Result:
        target = PipelineTarget(virtual(settings, loop, seed).gateway, load.asking(), Prompts(seed), loop)
        found = await perform(load.plan(seed), [(Subject("virtual", "virtual:", "chat", MODEL), target)], loop, Origin(),
                              is_virtual=True)
        return found[0]

    return run(main)
