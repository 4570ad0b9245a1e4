"""Whether the instrument tells the truth: the bench must recover percentiles that are known in advance.

The simulator draws its times to the first token from a mixture whose quantiles are known in closed form. The bench
measures it over a socket, through a gateway in front of the same model, and through the same pipeline in virtual time: all
must come out where the formula says, and the last two must agree with each other within their bootstrap intervals. Then the
simulator is stopped in its tracks (SIGSTOP) in mid-run: a bench that waits with its next request until the target answers
would send less while it is slow and report a fine p99. From the intended start, a stall of S seconds in a run of T seconds
delays a request by U(0, S) with probability S / T, so for 1 - p < S / T

    p-quantile = S - (1 - p) * T     (+ the usual latency, here below a millisecond)

When wrong: sampling. With n answers the quantile of a share p has a standard error of sqrt(p (1 - p) / n) / f; the runs are
as long as makes that, at p99, a third of what is allowed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from random import Random

from stayfast.bench.compare import CompareConfig, compare
from stayfast.bench.perform import Origin, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Prompts
from stayfast.bench.stats import Exact, Measured
from stayfast.compose.virtual import virtual as system_in_virtual_time
from stayfast.core.clock import SystemClock
from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Conditions, Figure, Finding
from stayfast.prove.load import MODEL, Load, ask, why_spoiled
from stayfast.prove.rig import Rig, Server
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import PRESETS, Mixture, ProviderConfig
from stayfast.upstreams.simulated.settings import SimulatedUpstream

PRESET = "sonnet-4.6-like"
KNOWN = PRESETS[PRESET].ttft
RATE_RPS = 250.0
P50_WITHIN, P99_WITHIN = 0.03, 0.07
UNHEDGED = HedgeConfig(mode="off")  # second attempts would be quicker than what is known
LEVEL = 0.99  # of the intervals: three quantiles are looked at


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run. `slack`: how many times as much a quantile may be off, where there are fewer answers."""

    real_s: float = 60.0  # of each of two targets
    virtual_s: float = 400.0
    stalled_run_s: float = 12.0
    stall_s: float = 1.5
    slack: float = 1.0


@dataclass(frozen=True, slots=True)
class Truth:
    """See the module."""

    full: Extent = Extent()
    quick: Extent = Extent(real_s=15.0, virtual_s=100.0, slack=2.0)

    name = "truth"
    says = (f"The bench recovers a simulated provider's known percentiles within {P50_WITHIN:.0%} at p50 and "
            f"{P99_WITHIN:.0%} at p99, over sockets and in virtual time, and shows a stalled target.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent = self.quick if conditions.is_quick else self.full
        seed = conditions.seed
        provider = {"preset": PRESET, "seed": seed}
        async with Rig() as rig:
            sim = await rig.simulator({"known": provider, "fast": {"preset": "instant"}}, seed)
            gateway = await rig.gateway({"upstreams": {"known": {"kind": "simulated", "probe": False, **provider}},
                                         "routes": {MODEL: {"upstreams": ["known"], "hedge": {"mode": UNHEDGED.mode}}}})
            conditions.say(f"twice {extent.real_s:g} s over sockets at {RATE_RPS:g} requests/s")
            real = await ask(Load(extent.real_s, RATE_RPS, n_output=2, warmup_s=1.0),
                             {"simulator": f"{sim.url}/known/v1", "gateway": f"{gateway.url}/v1"}, seed)
            conditions.say(f"{extent.virtual_s:g} s in virtual time")
            virtual = await asyncio.to_thread(in_virtual_time, extent.virtual_s, seed)
            conditions.say(f"a target that stalls for {extent.stall_s:g} s")
            load = Load(extent.stalled_run_s, RATE_RPS, n_output=2)
            stalled, stall_s = await with_a_stall(load, sim, f"{sim.url}/fast/v1", extent.stall_s, seed)
        figures = [figure for where, result in (*real.items(), ("virtual time", virtual))
                   for figure in against_formula(where, result, KNOWN, extent.slack)]
        figures += [against_each_other(real["gateway"], virtual, seed), *against_stall(stalled, stall_s)]
        return Finding(tuple(figures), spoiled=why_spoiled(real))


def in_virtual_time(seconds: float, seed: int) -> Result:
    """The same provider, asked through the pipeline on a virtual loop."""
    load = Load(seconds, RATE_RPS, n_output=2)
    settings = Settings(upstreams={"known": SimulatedUpstream(provider=ProviderConfig(PRESET, seed), probe=False)},
                        routes={MODEL: Route(("known",), hedge=UNHEDGED)})

    async def main(loop: SimLoop) -> Result:
        gateway = system_in_virtual_time(settings, loop, seed).gateway
        target = PipelineTarget(gateway, load.asking(), Prompts(seed), loop)
        found = await perform(load.plan(seed), [(Subject("virtual", "virtual:", "chat", MODEL), target)], loop, Origin(),
                              is_virtual=True)
        return found[0]

    return run(main)


async def with_a_stall(load: Load, target: Server, url: str, stall_s: float, seed: int) -> tuple[Result, float]:
    """What came of a run in whose middle the target was stopped, and for how many seconds it really was."""
    clock = SystemClock()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ask(load, {"stalled": url}, seed))
        await asyncio.sleep(load.seconds / 2)
        target.freeze()
        frozen_at = clock.now()
        await asyncio.sleep(stall_s)
        stalled_s = clock.now() - frozen_at
        target.thaw()
    return asking.result()["stalled"], stalled_s


def against_formula(where: str, result: Result, known: Mixture, slack: float = 1.0) -> Sequence[Figure]:
    """The quantiles of the TTFT from the intended start, against those of `known`."""
    ttft = Exact(_since_t0(result, "first_s"))
    figures = [_unanswered(where, result)]
    for share, within in ((0.5, P50_WITHIN), (0.99, P99_WITHIN)):
        known_s = known.quantile(share)
        figures.append(Figure(f"{where}: TTFT p{share * 100:g}, off by (known: {known_s * 1e3:.1f} ms, n={ttft.n})",
                              _off_by_percent(ttft.at(share), known_s), "%", within * slack * 100))
    return figures


def against_each_other(real: Result, virtual: Result, seed: int) -> Figure:
    """How many quantiles of the TTFT are beyond chance; one that could not be compared is."""
    compared = compare(Measured(real), Measured(virtual), Random(seed), CompareConfig(level=LEVEL))
    ours = [row for row in compared.rows if row.quantity.startswith("ttft_sched.")]
    differ = [row.quantity for row in ours if isnan(row.difference.value) or not row.difference.spans_zero]
    return Figure(f"gateway and virtual time: quantiles of the TTFT that differ ({LEVEL:.0%} intervals): "
                  f"{', '.join(differ) or 'none'}", float(len(differ)) if ours else nan, "", 0.0)


def against_stall(result: Result, stall_s: float) -> Sequence[Figure]:
    """The p99 of a run in which the target stood still for `stall_s`, against the formula; see the module."""
    e2e = Exact(_since_t0(result, "last_s"))
    known_s = stall_s - 0.01 * result.duration_s
    return [
        _unanswered("stalled target", result),
        Figure(f"stalled target: e2e p99, off by (stalled {stall_s:.3f} s, so known: {known_s * 1e3:.0f} ms)",
               _off_by_percent(e2e.at(0.99), known_s), "%", P99_WITHIN * 100),
        Figure("stalled target: e2e p50", e2e.at(0.5) * 1e3, "ms"),
    ]


def _since_t0(result: Result, name: str) -> list[float]:
    floats = result.samples.floats
    return [then - at for then, at in zip(floats[name], floats["at_s"], strict=True)]


def _off_by_percent(found_s: float, known_s: float) -> float:
    return abs(found_s / known_s - 1) * 100 if known_s > 0 else nan


def _unanswered(where: str, result: Result) -> Figure:
    return Figure(f"{where}: requests without an answer", float(sum(1 for error in result.samples.errors if error)), "", 0.0)
