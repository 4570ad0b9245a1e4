"""The bench recovers percentiles that are known in advance.

The simulator draws its times to the first token from a mixture with quantiles in closed form. The bench measures it over a
socket, through a gateway in front of the same model, and through the same pipeline in virtual time. The last two must also
agree with each other within their bootstrap intervals. Then the simulator is stopped (SIGSTOP) in the middle of a run. A
bench that waits for the answer before it sends the next request would send less during the stall, and report a good p99.
Measured from the intended start, a stall of S seconds in a run of T seconds delays a request by U(0, S) with probability S
/ T, so for 1 - p < S / T

    p-quantile = S - (1 - p) * T     (+ the usual latency, here below a millisecond)

When wrong: sampling. With n answers the quantile of a share p has a standard error of sqrt(p (1 - p) / n) / f, which is
2.4 % of a p99 over sockets.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from random import Random

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, mark_invalid
from stayfast.lab.harness.intervals import absolute_interval, quantile_interval
from stayfast.lab.harness.load import LoadSpec, n_failed, run_load, run_loads, since_start_s, spoil_reason
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess
from stayfast.lab.harness.virtual import run_load_virtual, run_virtual_in_thread, virtual_system
from stayfast.lab.load.result import Result
from stayfast.lab.load.stats import ExactDistribution, MeasuredRun
from stayfast.lab.report.compare import CompareConfig, compare_runs
from stayfast.lab.simulated import PRESETS, Mixture, ProviderConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop

PRESET = "sonnet-4.6-like"
KNOWN = PRESETS[PRESET].ttft
RATE_RPS = 250.0
P50_WITHIN, P99_WITHIN = 0.03, 0.10
UNHEDGED = HedgeConfig(mode="off")  # a hedge would be quicker than the known distribution
LEVEL = 0.999  # of the intervals: three quantiles are compared, and none may differ by chance


@dataclass(frozen=True, slots=True)
class TruthClaim:
    """real_s of an extent: for each of two targets. stalled_run_s: the run in whose middle the target stalls for stall_s."""

    full: Extent = Extent(real_s=60.0, virtual_s=400.0)
    quick: Extent = Extent(real_s=15.0, virtual_s=100.0)
    stalled_run_s: float = 12.0
    stall_s: float = 1.5

    name = "truth"
    statement = (f"The bench recovers a simulated provider's known percentiles within {P50_WITHIN:.0%} at p50 and "
            f"{P99_WITHIN:.0%} at p99, over sockets and in virtual time, and shows a stalled target.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        provider = {"preset": PRESET, "seed": seed}
        async with Processes() as processes:
            sim = await processes.start_simulator({"known": provider, "fast": {"preset": "instant"}}, seed)
            gateway = await processes.start_gateway({
                "upstreams": {"known": {"kind": "simulated", "probe": False, **provider}},
                "routes": {MODEL: {"upstreams": ["known"], "hedge": {"mode": UNHEDGED.mode}}}})
            conditions.report_progress(f"twice {extent.real_s:g} s over sockets at {RATE_RPS:g} requests/s")
            real = await run_loads(LoadSpec(extent.real_s, RATE_RPS, n_output=2, warmup_s=1.0),
                                   {"simulator": f"{sim.url}/known/v1", "gateway": f"{gateway.url}/v1"}, seed)
            conditions.report_progress(f"{extent.virtual_s:g} s in virtual time")
            twin = await run_virtual_in_thread(run_in_virtual_time, extent.virtual_s, seed)
            conditions.report_progress(f"a target that stalls for {self.stall_s:g} s")
            load = LoadSpec(self.stalled_run_s, RATE_RPS, n_output=2)
            stalled, stall_s = await run_with_stall(load, sim, f"{sim.url}/fast/v1", self.stall_s, seed)
        figures = [figure for where, result in (*real.items(), ("virtual time", twin))
                   for figure in mark_invalid(compare_with_formula(where, result, KNOWN), spoil_reason({where: result}))]
        figures += [compare_with_each_other(real["gateway"], twin, seed), *compare_with_stall(stalled, stall_s)]
        return ClaimResult(tuple(figures), spoiled=spoil_reason(real))


async def run_in_virtual_time(loop: SimLoop, seconds: float, seed: int) -> Result:
    system = virtual_system(loop, {"known": ProviderConfig(PRESET, seed)}, seed, hedge=UNHEDGED)
    return await run_load_virtual(system, LoadSpec(seconds, RATE_RPS, n_output=2), loop, seed)


async def run_with_stall(load: LoadSpec, target: ServerProcess, url: str, stall_s: float,
                         seed: int) -> tuple[Result, float]:
    """Stop the target in the middle of a run. Returns the result, and the real length of the stall in seconds."""
    clock = SystemClock()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_load(load, url, seed))
        await asyncio.sleep(load.seconds / 2)
        target.freeze()
        frozen_at = clock.now()
        await asyncio.sleep(stall_s)
        stalled_s = clock.now() - frozen_at
        target.thaw()
    return running.result(), stalled_s


def compare_with_formula(where: str, result: Result, known: Mixture) -> Sequence[Figure]:
    """The quantiles of the TTFT from the intended start, compared with those of `known`."""
    ttft = ExactDistribution(since_start_s(result, "first_s"))
    figures = [_unanswered_figure(where, result)]
    for share, within in ((0.5, P50_WITHIN), (0.99, P99_WITHIN)):
        known_s = known.quantile(share)
        name = f"{where}: TTFT p{share * 100:g}, off by (known: {known_s * 1e3:.1f} ms, n={ttft.n})"
        figures.append(_distance_figure(name, ttft, share, known_s, within))
    return figures


def compare_with_each_other(real: Result, twin: Result, seed: int) -> Figure:
    """The number of TTFT quantiles that differ significantly. NaN if none does, and one could not be compared."""
    compared = compare_runs(MeasuredRun(real), MeasuredRun(twin), Random(seed), CompareConfig(level=LEVEL))
    rows = [row for row in compared.rows if row.quantity.startswith("ttft_sched.")]
    differ = [row.quantity for row in rows if not row.difference.spans_zero]
    is_measured = bool(rows) and not any(isnan(row.difference.value) for row in rows)
    return Figure.exact(f"gateway and virtual time: quantiles of the TTFT that differ ({LEVEL:.1%} intervals): "
                        f"{', '.join(differ) or 'none'}", float(len(differ)) if differ or is_measured else nan, "", 0.0)


def compare_with_stall(result: Result, stall_s: float) -> Sequence[Figure]:
    """The p99 of a run with a stall of `stall_s`, compared with the formula of this module."""
    e2e = ExactDistribution(since_start_s(result, "last_s"))
    known_s = stall_s - 0.01 * result.duration_s
    return [
        _unanswered_figure("stalled target", result),
        _distance_figure(f"stalled target: e2e p99, off by (stalled {stall_s:.3f} s, so known: {known_s * 1e3:.0f} ms)", e2e,
                         0.99, known_s, P99_WITHIN),
        Figure("stalled target: e2e p50", e2e.quantile(0.5) * 1e3, "ms"),
    ]


def _distance_figure(name: str, found: ExactDistribution, share: float, known_s: float, within: float) -> Figure:
    """How far a quantile is from the known one."""
    if known_s <= 0:
        return Figure(name, nan, "%", within * 100)
    low, high = absolute_interval(*[(end_s / known_s - 1) * 100 for end_s in quantile_interval(found.values, share)])
    return Figure(name, abs(found.quantile(share) / known_s - 1) * 100, "%", within * 100, low=low, high=high)


def _unanswered_figure(where: str, result: Result) -> Figure:
    return Figure.count(f"{where}: requests without an answer", n_failed(result))
