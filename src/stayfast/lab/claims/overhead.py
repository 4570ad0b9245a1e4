"""The cost of the gateway: CPU and time per request, beside a bare proxy and no proxy at all, in one run.

CPU is the kernel's account of each process under full load. Whole answers are canned (`harness.loopback`), streams come from
the simulator. The measured server has a core of its own, the load and the upstreams run on the others. Machines differ and
are shared (one measured 118 us for a whole answer in one hour and 175 us in another), so the yardstick is the bare proxy in
the same minutes: its distance from "direct" is the minimum cost of any Python proxy here. When wrong: neighbours share the
CPU caches, so requests per second would measure the machine more than the gateway, and are not claimed. Neither is the added
latency of an open loop at a moderate rate, which on a shared machine depends on the scheduler as much as on the gateway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Verdict, mark_invalid, ratio
from stayfast.lab.harness.load import LoadSpec, measure_cpu_us, n_failed, run_load, run_loads, since_start_s, spoil_reason
from stayfast.lab.harness.processes import ONE_CORE, Processes, ServerProcess, gateway_settings
from stayfast.lab.load.stats import ExactDistribution

N_CHUNKS = 32
N_CALLERS = 64
N_STREAMS = 32  # at a time
RATE_RPS = 100.0
CHUNK_GOAL_US = 12.0
BASELINES_GOAL = 8.0  # CPU of a whole answer, as a multiple of the bare proxy's
WARMUP_S = 1.0
PROVIDER: Mapping[str, Any] = {"preset": "instant", "fills_max_tokens": True}
GATEWAY, BASELINE, DIRECT = "gateway", "bare proxy", "direct"
PLAIN, ALL_ON = "gateway without policies of the tail", "gateway with every policy of the tail"
POLICIES_GOAL_US = 30.0
NO_POLICY: Mapping[str, Any] = {
    "defaults": {"hedge": {"mode": "off"}, "limit": {"mode": "off"}, "breaker": {"enabled": False}}}
ADMISSION: Mapping[str, Any] = {
    "admission": {"max_in_flight": 1000, "lanes": {}},
    "tenants": {"*": {"quota": {"requests_per_minute": 1e9, "tokens_per_minute": 1e12, "tokens_per_day": 1e13}}}}
ROUTING: Mapping[str, Any] = {
    "affinity": {"mode": "both"}, "eject": {"enabled": True}, "weights": {"one": 1.5}, "max_input_tokens": 100_000}


@dataclass(frozen=True, slots=True)
class Overhead:
    """real_s of an extent: for each of the loads of a round. provider: generates the streams."""

    full: Extent = Extent(real_s=5.0, n_rounds=6)
    quick: Extent = Extent(real_s=0.8, n_rounds=6)
    provider: Mapping[str, Any] = field(default_factory=lambda: PROVIDER)

    name = "overhead"
    statement = (f"A whole answer takes at most {BASELINES_GOAL:g} times the CPU of a bare proxy in the same minutes, and a "
            f"chunk of a stream at most {CHUNK_GOAL_US:g} us. The tail policies that are on by default take at most "
            f"{POLICIES_GOAL_US:g} us per whole answer.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent = conditions.choose(self.full, self.quick)
        async with Processes() as processes:
            sim = await processes.start_simulator({"fast": self.provider}, conditions.seed)
            upstream = f"{sim.url}/fast/v1"
            canned = await processes.start_canned_upstream()
            one_upstream = gateway_settings({"canned": f"{canned.url}/v1"})
            two_upstreams = gateway_settings({"one": f"{canned.url}/v1", "other": f"{canned.url}/v1"}, **ROUTING)
            whole = {BASELINE: await processes.start_bare_proxy(canned.url),
                     GATEWAY: await processes.start_gateway(one_upstream),
                     PLAIN: await processes.start_gateway({**one_upstream, **NO_POLICY}),
                     ALL_ON: await processes.start_gateway({**two_upstreams, **ADMISSION})}
            streams = {BASELINE: await processes.start_bare_proxy(sim.url),
                       GATEWAY: await processes.start_gateway(gateway_settings({"fast": upstream}))}
            urls = {DIRECT: upstream, BASELINE: f"{streams[BASELINE].url}/fast/v1", GATEWAY: f"{streams[GATEWAY].url}/v1"}
            if not processes.reserve_core(*whole.values(), *streams.values()):
                conditions.report_progress(ONE_CORE)
            await _Meter(urls, whole, streams).run_round(min(WARMUP_S, extent.real_s), conditions.seed)  # a warm-up
            meter = _Meter(urls, whole, streams)
            for number in range(1, extent.n_rounds + 1):
                conditions.report_progress(f"round {number} of {extent.n_rounds}")
                await meter.run_round(extent.real_s, conditions.seed + number)
        return meter.make_finding()


class _Meter:
    """Runs rounds of load on each server in turn, and collects their figures."""

    def __init__(self, urls: Mapping[str, str], whole: Mapping[str, ServerProcess],
                 streams: Mapping[str, ServerProcess]) -> None:
        self._urls = urls
        self._whole = whole
        self._streams = streams
        self._whole_us: dict[str, list[float]] = {name: [] for name in whole}
        self._chunk_us: dict[str, list[float]] = {name: [] for name in streams}
        self._ttft_us: dict[str, list[float]] = {name: [] for name in urls}
        self._n_failed = 0
        self._spoil_reasons: list[str] = []

    async def run_round(self, seconds: float, seed: int) -> None:
        """Whole answers, then streams, then an open loop that measures latency."""
        for name, server in self._whole.items():
            cpu_us, n_bad = await measure_cpu_us(server, seconds, N_CALLERS)
            self._whole_us[name].append(cpu_us)
            self._n_failed += n_bad
        for name in self._streams:
            self._chunk_us[name].append(await self._measure_chunk_us(name, seconds, seed))
        timed = await run_loads(LoadSpec(seconds, RATE_RPS, n_output=4), self._urls, seed)
        reason = spoil_reason(timed)
        self._spoil_reasons += [reason] if reason is not None else []
        for name, result in timed.items():
            self._n_failed += n_failed(result)
            self._ttft_us[name].append(ExactDistribution(since_start_s(result, "first_s")).quantile(0.5) * 1e6)

    async def _measure_chunk_us(self, name: str, seconds: float, seed: int) -> float:
        """CPU microseconds per chunk of a stream. NaN without chunks."""
        server, load = self._streams[name], LoadSpec(seconds, n_concurrent=N_STREAMS, n_output=N_CHUNKS)
        before_s = server.cpu_s()
        result = await run_load(load, self._urls[name], seed)
        cpu_s = server.cpu_s() - before_s
        self._n_failed += n_failed(result)
        return ratio(cpu_s, sum(result.samples.ints["n_chunks"])) * 1e6

    def make_finding(self) -> ClaimResult:
        whole, chunk = self._whole_us, self._chunk_us
        in_baselines = [ours / bare if bare else nan for ours, bare in zip(whole[GATEWAY], whole[BASELINE], strict=True)]
        policies, all_on = ([with_it - without for with_it, without in zip(whole[name], whole[PLAIN], strict=True)]
                           for name in (GATEWAY, ALL_ON))
        figures = [
            Figure.of_rounds("CPU of a whole answer, gateway", whole[GATEWAY], "us"),
            Figure.of_rounds("CPU of a chunk of a stream, gateway", chunk[GATEWAY], "us", CHUNK_GOAL_US),
            Figure.of_rounds("CPU of a whole answer, bare proxy", whole[BASELINE], "us"),
            Figure.of_rounds("CPU of a chunk of a stream, bare proxy", chunk[BASELINE], "us"),
            Figure.of_rounds("CPU of a whole answer, gateway over bare proxy", in_baselines, "x", BASELINES_GOAL),
            Figure.of_rounds("CPU of the policies of the tail that are on by default", policies, "us", POLICIES_GOAL_US),
            Figure.of_rounds("the same, with admission, lanes, quotas, affinity, weights, ejection, a limit of size", all_on,
                             "us"),
        ]
        for name in (BASELINE, GATEWAY):
            added = [through - direct for through, direct in zip(self._ttft_us[name], self._ttft_us[DIRECT], strict=True)]
            figures.append(Figure.of_rounds(f"added TTFT p50 at {RATE_RPS:g} requests/s, {name}", added, "us"))
        figures.append(Figure.count("failed requests", self._n_failed))
        note = (f"A stream's own cost (its head, its end) is spread over its {N_CHUNKS} chunks. CPU counts all threads and "
                "the kernel's share.")
        return judge_figures(figures, note, next(iter(self._spoil_reasons), None))


def judge_figures(figures: Sequence[Figure], note: str, reason: str | None) -> ClaimResult:
    """reason: why the client was late. A machine without a core to spare also slows the servers down, by evicting their
    caches, so that CPU times which fall short on it show nothing.
    """
    if reason is None:
        return ClaimResult(tuple(figures), (note,))
    is_late = any(figure.unit and figure.verdict is Verdict.FALLS_SHORT for figure in figures)
    judged = [figure for each in figures for figure in mark_invalid(
        (each,), reason if each.unit and each.verdict is Verdict.FALLS_SHORT else None)]
    doubt = f"The client may have caused some of the added TTFT: {reason}."
    return ClaimResult(tuple(judged), (note, doubt), reason if is_late else None)
