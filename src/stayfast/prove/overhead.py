"""What the gateway itself costs: CPU and time a request, beside a bare proxy and no proxy at all, in one run.

CPU is read from the kernel's account of each process while a closed loop keeps it busy; time is what an open loop at a
modest rate sees. Machines differ and are shared, so the bare proxy in the same minutes is the yardstick: its distance from
"direct" is what any proxy in Python must cost here. When wrong: the load and the simulator share the machine's cores with
both, so requests a second would say more about the machine than about the gateway, and are not claimed.
"""

from stayfast.bench.result import Result
from stayfast.bench.stats import Exact
from stayfast.prove.claim import Conditions, Figure, Finding, over
from stayfast.prove.load import Load, ask
from stayfast.prove.rig import Rig, Server, gateway_settings

N_CHUNKS = 32
CPU_GOAL_US = 120.0  # a whole answer
CHUNK_GOAL_US = 12.0
FLOORS_GOAL = 6.0  # CPU of a whole answer, in bare proxies


class Overhead:
    """See the module."""

    name = "overhead"
    says = (f"The gateway takes at most {CPU_GOAL_US:g} us of CPU for a whole answer and {CHUNK_GOAL_US:g} us for a chunk "
            "of a stream.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        seconds = 2.0 if conditions.is_quick else 5.0
        n_rounds = 2 if conditions.is_quick else 5
        async with Rig() as rig:
            sim = await rig.simulator({"fast": {"preset": "instant", "fills_max_tokens": True}}, conditions.seed)
            upstream = f"{sim.url}/fast/v1"
            floor = await rig.floor(sim.url)
            gateway = await rig.gateway(gateway_settings({"fast": upstream}))
            urls = {"direct": upstream, "bare proxy": f"{floor.url}/fast/v1", "gateway": f"{gateway.url}/v1"}
            meter = _Meter(urls, {"bare proxy": floor, "gateway": gateway})
            for number in range(n_rounds + 1):  # the first warms caches and connections, and is not counted
                conditions.say(f"round {number} of {n_rounds}")
                await meter.round(seconds if number else 1.0, conditions.seed + number, counts=number > 0)
        return meter.finding()


class _Meter:
    """Rounds of load on each in turn."""

    def __init__(self, urls: dict[str, str], servers: dict[str, Server]) -> None:
        self._urls = urls
        self._servers = servers
        self._whole_us: dict[str, list[float]] = {name: [] for name in servers}
        self._chunk_us: dict[str, list[float]] = {name: [] for name in servers}
        self._ttft_us: dict[str, list[float]] = {name: [] for name in urls}
        self._n_failed = 0

    async def round(self, seconds: float, seed: int, *, counts: bool) -> None:
        """Whole answers, then streams, then an open loop that looks at the time."""
        for name, server in self._servers.items():
            whole = await self._cpu_us(name, server, Load(seconds, n_concurrent=16, stream=False, n_output=16), seed)
            stream = await self._cpu_us(name, server, Load(seconds, n_concurrent=16, n_output=N_CHUNKS), seed)
            if counts:
                self._whole_us[name].append(whole)
                self._chunk_us[name].append(stream / N_CHUNKS)
        timed = await ask(Load(seconds, rate_rps=100.0, n_output=4), self._urls, seed)
        for name, result in timed.items():
            self._note(result)
            if counts:
                self._ttft_us[name].append(_median_us(result))

    async def _cpu_us(self, name: str, server: Server, load: Load, seed: int) -> float:
        before_s = server.cpu_s()
        result = (await ask(load, {name: self._urls[name]}, seed))[name]
        spent_s = server.cpu_s() - before_s
        self._note(result)
        return spent_s / max(1, len(result.samples)) * 1e6

    def _note(self, result: Result) -> None:
        self._n_failed += sum(1 for error in result.samples.errors if error)

    def finding(self) -> Finding:
        """The figures."""
        figures = [
            _figure("CPU of a whole answer, gateway", self._whole_us["gateway"], CPU_GOAL_US),
            _figure("CPU of a chunk of a stream, gateway", self._chunk_us["gateway"], CHUNK_GOAL_US),
            _figure("CPU of a whole answer, bare proxy", self._whole_us["bare proxy"]),
            _figure("CPU of a chunk of a stream, bare proxy", self._chunk_us["bare proxy"]),
            _figure("CPU of a whole answer, gateway over bare proxy",
                    [ours / floors for ours, floors in zip(self._whole_us["gateway"], self._whole_us["bare proxy"],
                                                           strict=True)], FLOORS_GOAL, "x"),
        ]
        for name in ("bare proxy", "gateway"):
            added = [through - direct for through, direct in zip(self._ttft_us[name], self._ttft_us["direct"], strict=True)]
            figures.append(_figure(f"added TTFT p50 at 100 requests/s, {name}", added))
        figures.append(Figure("failed requests", float(self._n_failed), "", 0.0))
        note = (f"A stream's own cost (its head, its end) is spread over its {N_CHUNKS} chunks. CPU counts all threads and "
                "the kernel's share.")
        return Finding(tuple(figures), (note,))


def _figure(name: str, values: list[float], goal: float | None = None, unit: str = "us") -> Figure:
    median, low, high = over(values)
    return Figure(name, median, unit, goal, low=low, high=high)


def _median_us(result: Result) -> float:
    floats = result.samples.floats
    return Exact(first - at for first, at in zip(floats["first_s"], floats["at_s"], strict=True)).at(0.5) * 1e6
