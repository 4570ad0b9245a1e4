"""Whether the instrument tells the truth: the bench must recover percentiles that are known in advance.

The simulator draws its times to the first token from a mixture whose quantiles are known in closed form. The bench
measures it over a socket, through a gateway in front of the same model, and through the same pipeline in virtual time: all
must come out where the formula says, and the last two must agree with each other within their bootstrap intervals. Then the
simulator is stopped in its tracks (SIGSTOP) in mid-run: a bench that waits with its next request until the target answers
would send less while it is slow and report a fine p99. From the intended start, the known stall of `STALL_S` seconds in a
run of T seconds delays a request by U(0, STALL_S) with probability STALL_S / T, so for 1 - p < STALL_S / T

    p-quantile = STALL_S - (1 - p) * T     (+ the usual latency, here below a millisecond)

When wrong: sampling. With n answers the quantile of a share p has a standard error of sqrt(p (1 - p) / n) / f; the runs are
as long as makes that, at p99, a third of what is allowed.
"""

import asyncio
from random import Random

from stayfast.bench.compare import CompareConfig, compare
from stayfast.bench.perform import Origin, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Prompts
from stayfast.bench.stats import Exact, Measured
from stayfast.compose.virtual import virtual as in_virtual_time
from stayfast.prove.claim import Conditions, Figure, Finding
from stayfast.prove.load import MODEL, Load, ask, why_spoiled
from stayfast.prove.rig import Rig
from stayfast.settings import Route, Settings, SimulatedUpstream
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import PRESETS, ProviderConfig

PRESET = "sonnet-4.6-like"
TTFT = PRESETS[PRESET].ttft
RATE_RPS = 250.0
REAL_S = 60.0
VIRTUAL_S = 400.0
STALL_S = 1.5
STALLED_RUN_S = 12.0
P50_WITHIN, P99_WITHIN = 0.03, 0.07
LEVEL = 0.99  # of the intervals: three quantiles are looked at
QUICK_WITHIN = 2.0  # times as much: a quarter of the answers


class Truth:
    """See the module."""

    name = "truth"
    says = (f"The bench recovers a simulated provider's known percentiles within {P50_WITHIN:.0%} at p50 and "
            f"{P99_WITHIN:.0%} at p99, over sockets and in virtual time, and shows a stalled target.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        scale, slack = (0.25, QUICK_WITHIN) if conditions.is_quick else (1.0, 1.0)
        provider = {"preset": PRESET, "seed": conditions.seed}
        async with Rig() as rig:
            sim = await rig.simulator({"known": provider, "fast": {"preset": "instant"}}, conditions.seed)
            gateway = await rig.gateway({"upstreams": {"known": {"kind": "simulated", "probe": False, **provider}},
                                         "routes": {MODEL: {"upstreams": ["known"]}}})
            conditions.say(f"twice {REAL_S * scale:g} s over sockets at {RATE_RPS:g} requests/s")
            real = await ask(Load(REAL_S * scale, RATE_RPS, n_output=2, warmup_s=1.0),
                             {"simulator": f"{sim.url}/known/v1", "gateway": f"{gateway.url}/v1"}, conditions.seed)
            conditions.say(f"{VIRTUAL_S * scale:g} s in virtual time")
            virtual = await asyncio.to_thread(_in_virtual_time, VIRTUAL_S * scale, conditions.seed)
            figures = [*_against_formula("simulator", real["simulator"], slack),
                       *_against_formula("gateway", real["gateway"], slack),
                       *_against_formula("virtual time", virtual, slack),
                       _against_each_other(real["gateway"], virtual, conditions.seed)]
            conditions.say(f"a target that stalls for {STALL_S:g} s")
            load = Load(STALLED_RUN_S, RATE_RPS, n_output=2)
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(ask(load, {"stalled": f"{sim.url}/fast/v1"}, conditions.seed))
                await asyncio.sleep(STALLED_RUN_S / 2)
                sim.freeze()
                await asyncio.sleep(STALL_S)
                sim.thaw()
            figures += _against_stall(asking.result()["stalled"])
        return Finding(tuple(figures), spoiled=why_spoiled(real))


def _in_virtual_time(seconds: float, seed: int) -> Result:
    """The same provider, asked through the pipeline on a virtual loop."""
    load = Load(seconds, RATE_RPS, n_output=2)
    settings = Settings(upstreams={"known": SimulatedUpstream(provider=ProviderConfig(PRESET, seed), probe=False)},
                        routes={MODEL: Route(("known",))})

    async def main(loop: SimLoop) -> Result:
        target = PipelineTarget(in_virtual_time(settings, loop, seed).gateway, load.asking(), Prompts(seed), loop)
        found = await perform(load.plan(seed), [(Subject("virtual", "virtual:", "chat", MODEL), target)], loop, Origin(),
                              is_virtual=True)
        return found[0]

    return run(main)


def _against_formula(where: str, result: Result, slack: float) -> list[Figure]:
    floats = result.samples.floats
    ttft = Exact(first - at for first, at in zip(floats["first_s"], floats["at_s"], strict=True))
    figures = [Figure(f"requests without an answer, {where}", float(sum(1 for error in result.samples.errors if error)), "",
                      0.0)]
    for share, within in ((0.5, P50_WITHIN), (0.99, P99_WITHIN)):
        known = TTFT.quantile(share)
        figures.append(Figure(f"TTFT p{share * 100:g} {where}, off by (known: {known * 1e3:.1f} ms, n={ttft.n})",
                              abs(ttft.at(share) / known - 1) * 100, "%", within * slack * 100))
    return figures


def _against_each_other(real: Result, virtual: Result, seed: int) -> Figure:
    compared = compare(Measured(real), Measured(virtual), Random(seed), CompareConfig(level=LEVEL))
    ours = [row for row in compared.rows if row.quantity.startswith("ttft_sched.")]
    differ = [row.quantity for row in ours if not row.difference.spans_zero]
    return Figure(f"quantiles of the TTFT in which gateway and virtual time differ ({LEVEL:.0%} intervals): "
                  f"{', '.join(differ) or 'none'}", float(len(differ)), "", 0.0)


def _against_stall(result: Result) -> list[Figure]:
    floats = result.samples.floats
    e2e = Exact(last - at for last, at in zip(floats["last_s"], floats["at_s"], strict=True))
    known = STALL_S - 0.01 * result.duration_s
    return [
        Figure(f"e2e p99 of a target that stalled {STALL_S:g} s, off by (known: {known * 1e3:.0f} ms)",
               abs(e2e.at(0.99) / known - 1) * 100, "%", P99_WITHIN * 100),
        Figure("e2e p50 of the same run", e2e.at(0.5) * 1e3, "ms"),
    ]
