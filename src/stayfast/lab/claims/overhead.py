"""The cost of the gateway itself: CPU and time a request, beside a bare proxy and no proxy at all, in one run.

CPU is the kernel's account of each process while callers keep it busy: whole answers are canned (`harness.loopback`),
streams from the simulator. What is measured has a core of its own, the load and the upstreams have the others. Machines
differ and are shared (one took 118 us for a whole answer in one hour and 175 in another), so the bare proxy in the same
minutes is the yardstick: its distance from "direct" is what any proxy in Python must cost here. When wrong: neighbours share
the caches, so requests a second would say more about the machine than about the gateway, and are not claimed. Nor is the
added time, which an open loop at a modest rate sees: on a shared machine it is the scheduler's as much as ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, figure_of_rounds, ratio
from stayfast.lab.harness.load import LoadSpec, ask, n_failed, since_start_s, why_spoiled
from stayfast.lab.harness.loopback import keep_busy
from stayfast.lab.harness.processes import Processes, ServerProcess, gateway_settings
from stayfast.lab.load.stats import Exact

N_CHUNKS = 32
N_CALLERS = 64
N_STREAMS = 32  # at a time
RATE_RPS = 100.0
CHUNK_GOAL_US = 12.0
BASELINES_GOAL = 8.0  # CPU of a whole answer, in bare proxies
WARMUP_S = 1.0
PROVIDER: Mapping[str, Any] = {"preset": "instant", "fills_max_tokens": True}
GATEWAY, BASELINE, DIRECT = "gateway", "bare proxy", "direct"
PLAIN, EVERY = "gateway without policies of the tail", "gateway with every policy of the tail"
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
    """real_s of an extent: of each of a round's five loads."""

    full: Extent = Extent(real_s=5.0, n_rounds=5)
    quick: Extent = Extent(real_s=2.0, n_rounds=2)
    provider: Mapping[str, Any] = field(default_factory=lambda: PROVIDER)  # which answers

    name = "overhead"
    says = (f"For a whole answer the gateway takes at most {BASELINES_GOAL:g} times the CPU that a bare proxy takes in the "
            f"same minutes, and at most {CHUNK_GOAL_US:g} us for a chunk of a stream. The policies of the tail that are on "
            f"where nothing is set take at most {POLICIES_GOAL_US:g} us of a whole answer.")

    async def run(self, conditions: Conditions) -> Finding:
        extent = conditions.choose(self.full, self.quick)
        async with Processes() as processes:
            sim = await processes.simulator({"fast": self.provider}, conditions.seed)
            upstream = f"{sim.url}/fast/v1"
            canned = await processes.canned_upstream()
            can = gateway_settings({"canned": f"{canned.url}/v1"})
            two = gateway_settings({"one": f"{canned.url}/v1", "other": f"{canned.url}/v1"}, **ROUTING)
            whole = {BASELINE: await processes.baseline_proxy(canned.url), GATEWAY: await processes.gateway(can),
                     PLAIN: await processes.gateway({**can, **NO_POLICY}),
                     EVERY: await processes.gateway({**two, **ADMISSION})}
            streams = {BASELINE: await processes.baseline_proxy(sim.url),
                       GATEWAY: await processes.gateway(gateway_settings({"fast": upstream}))}
            urls = {DIRECT: upstream, BASELINE: f"{streams[BASELINE].url}/fast/v1", GATEWAY: f"{streams[GATEWAY].url}/v1"}
            if not processes.set_apart(*whole.values(), *streams.values()):
                conditions.report_progress("one core for all: caches are shared, and CPU a request is higher")
            await _Meter(urls, whole, streams).round(min(WARMUP_S, extent.real_s), conditions.seed)  # caches, connections
            meter = _Meter(urls, whole, streams)
            for number in range(1, extent.n_rounds + 1):
                conditions.report_progress(f"round {number} of {extent.n_rounds}")
                await meter.round(extent.real_s, conditions.seed + number)
        return meter.finding()


class _Meter:
    """Rounds of load on each in turn."""

    def __init__(self, urls: Mapping[str, str], whole: Mapping[str, ServerProcess],
                 streams: Mapping[str, ServerProcess]) -> None:
        self._urls = urls
        self._whole = whole
        self._streams = streams
        self._whole_us: dict[str, list[float]] = {name: [] for name in whole}
        self._chunk_us: dict[str, list[float]] = {name: [] for name in streams}
        self._ttft_us: dict[str, list[float]] = {name: [] for name in urls}
        self._n_failed = 0
        self._doubts: list[str] = []

    async def round(self, seconds: float, seed: int) -> None:
        """Whole answers, then streams, then an open loop that looks at the time."""
        for name, server in self._whole.items():
            self._whole_us[name].append(await self._answer_us(server, seconds))
        for name in self._streams:
            self._chunk_us[name].append(await self._cpu_of_chunk_us(name, seconds, seed))
        timed = await ask(LoadSpec(seconds, RATE_RPS, n_output=4), self._urls, seed)
        doubt = why_spoiled(timed)
        self._doubts += [doubt] if doubt is not None else []
        for name, result in timed.items():
            self._n_failed += n_failed(result)
            self._ttft_us[name].append(Exact(since_start_s(result, "first_s")).at(0.5) * 1e6)

    async def _answer_us(self, server: ServerProcess, seconds: float) -> float:
        """CPU for each whole answer. NaN where none came."""
        before_s = server.cpu_s()
        n_answers, n_bad = await keep_busy(f"{server.url}/v1", seconds, N_CALLERS)
        self._n_failed += n_bad
        return ratio(server.cpu_s() - before_s, n_answers) * 1e6

    async def _cpu_of_chunk_us(self, name: str, seconds: float, seed: int) -> float:
        """CPU for each chunk of the streams. NaN where none came."""
        server, load = self._streams[name], LoadSpec(seconds, n_concurrent=N_STREAMS, n_output=N_CHUNKS)
        before_s = server.cpu_s()
        result = (await ask(load, {name: self._urls[name]}, seed))[name]
        spent_s = server.cpu_s() - before_s
        self._n_failed += n_failed(result)
        return ratio(spent_s, sum(result.samples.ints["n_chunks"])) * 1e6

    def finding(self) -> Finding:
        whole, chunk = self._whole_us, self._chunk_us
        in_baselines = [ours / bare if bare else nan for ours, bare in zip(whole[GATEWAY], whole[BASELINE], strict=True)]
        policies, every = ([with_it - without for with_it, without in zip(whole[name], whole[PLAIN], strict=True)]
                           for name in (GATEWAY, EVERY))
        figures = [
            figure_of_rounds("CPU of a whole answer, gateway", whole[GATEWAY], "us"),
            figure_of_rounds("CPU of a chunk of a stream, gateway", chunk[GATEWAY], "us", CHUNK_GOAL_US),
            figure_of_rounds("CPU of a whole answer, bare proxy", whole[BASELINE], "us"),
            figure_of_rounds("CPU of a chunk of a stream, bare proxy", chunk[BASELINE], "us"),
            figure_of_rounds("CPU of a whole answer, gateway over bare proxy", in_baselines, "x", BASELINES_GOAL),
            figure_of_rounds("CPU of the policies of the tail that are on by default", policies, "us", POLICIES_GOAL_US),
            figure_of_rounds("the same, with admission, lanes, quotas, affinity, weights, ejection, a limit of size", every,
                             "us"),
        ]
        for name in (BASELINE, GATEWAY):
            added = [through - direct for through, direct in zip(self._ttft_us[name], self._ttft_us[DIRECT], strict=True)]
            figures.append(figure_of_rounds(f"added TTFT p50 at {RATE_RPS:g} requests/s, {name}", added, "us"))
        figures.append(Figure("failed requests", float(self._n_failed), "", 0.0))
        note = (f"A stream's own cost (its head, its end) is spread over its {N_CHUNKS} chunks. CPU counts all threads and "
                "the kernel's share.")
        doubts = [f"The added TTFT is the client's as much as the gateway's: {doubt}." for doubt in self._doubts[:1]]
        return Finding(tuple(figures), (note, *doubts))

