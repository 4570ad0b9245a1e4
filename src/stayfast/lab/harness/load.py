"""Load over sockets: the bench, driven from code, and what a proof reads from its results."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any, Final

from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.lab.harness.claim import Figure, ratio
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess, gateway_settings
from stayfast.lab.load.arrivals import Arrivals, Gamma
from stayfast.lab.load.client import AskingConfig, HttpTarget, LoadTargetConfig
from stayfast.lab.load.lengths import ConstantLength, Length
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, perform
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.schedule import Prompts, ScheduleLimit, Workload
from stayfast.lab.load.stats import Exact

LONG_S: Final = 5.0
BLOCK_S: Final = 5.0  # of several targets, each gets the whole load for so long in turn


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The requests of a run: an open loop at `rate_rps` (Poisson) or by `arrivals`, or a closed one of `n_concurrent`."""

    seconds: float
    rate_rps: float = 0.0
    n_concurrent: int = 0
    stream: bool = True
    n_input: int | Length = 20
    n_output: int | Length = 16
    warmup_s: float = 0.0
    timeout_s: float = 30.0
    api: Api = Api.CHAT
    model: str = MODEL
    arrivals: Arrivals | None = None
    key: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # more members of each body

    def plan(self, seed: int) -> MeasurePlan:
        """The bench's own form of the load."""
        arrivals = None if self.n_concurrent else self.arrivals or Gamma(self.rate_rps)
        n_input, n_output = (ConstantLength(n) if isinstance(n, int) else n for n in (self.n_input, self.n_output))
        workload = Workload(input=n_input, output=n_output, arrivals=arrivals)
        return MeasurePlan(workload, ScheduleLimit(self.seconds, None, self.warmup_s), seed, self.n_concurrent,
                           self.timeout_s,
                    min(BLOCK_S, self.seconds))

    def asking(self) -> AskingConfig:
        """The form of the requests."""
        return AskingConfig(self.api, self.model, self.stream, self.key, extra=dict(self.extra))


async def ask(load: LoadSpec, urls: Mapping[str, str], seed: int, prompts: Prompts | None = None) -> dict[str, Result]:
    """Put the load on each of `urls` (base URLs, by name), interleaved where there are several; the results by name."""
    clock = SystemClock()
    subjects = [(Subject(name, url, load.api.value, load.model),
                 HttpTarget(name, LoadTargetConfig(url, load.asking()), prompts or Prompts(seed), clock))
                for name, url in urls.items()]
    found = await perform(load.plan(seed), subjects, clock, LoadOrigin())
    return {result.label: result for result in found}


@asynccontextmanager
async def simulated_gateway(providers: Mapping[str, Any], seed: int, settings: Mapping[str, Any] | None = None,
                            **route: Any) -> AsyncIterator[tuple[ServerProcess, str]]:
    """A simulator and a gateway in front of it as processes: the simulator, and the gateway's base URL.

    providers: as settings files have them, or `ProviderConfig`s. settings: the gateway's, beside its upstreams and route.
    """
    async with Processes() as processes:
        sim = await processes.simulator(providers, seed)
        urls = {name: f"{sim.url}/{name}/v1" for name in providers}
        gateway = await processes.gateway({**gateway_settings(urls, **route), **(settings or {})})
        yield sim, f"{gateway.url}/v1"


def since_start_s(result: Result, field_name: str, since_s: float = -inf, until_s: float = inf) -> list[float]:
    """From the intended start of each request in this part of the run to an instant of its sample; NaN without one."""
    floats = result.samples.floats
    return [then - at for then, at in zip(floats[field_name], floats["at_s"], strict=True) if since_s <= at < until_s]


def waits_s(result: Result) -> list[float]:
    """From the intended start of each request to its first token; infinite where it failed."""
    return [inf if error or isnan(wait_s) else wait_s
            for error, wait_s in zip(result.samples.errors, since_start_s(result, "first_s"), strict=True)]


@dataclass(frozen=True, slots=True)
class RunWaits:
    """What one run came to: waits from the intended start, and calls to upstreams a request."""

    n: int
    p50_s: float
    p95_s: float
    p99_s: float
    past_5_s: float  # share
    calls: float
    n_failed: int

    def figures(self, where: str, goals: Mapping[str, float]) -> list[Figure]:
        """Each as a figure, with its goal where there is one."""
        shown = (("p50_s", "TTFT p50", "s", 1.0), ("p95_s", "TTFT p95", "s", 1.0), ("p99_s", "TTFT p99", "s", 1.0),
                 ("past_5_s", "past 5 s", "%", 100.0), ("calls", "calls a request", "", 1.0),
                 ("n_failed", "requests without an answer", "", 1.0))
        return [Figure(f"{where}: {words} (n={self.n})", getattr(self, name) * factor, unit,
                       goals[name] * factor if name in goals else None) for name, words, unit, factor in shown]


def waits(result: Result) -> RunWaits:
    """The figures of one run; NaN where nothing was asked. A request without an answer waits for ever."""
    each_s = waits_s(result)
    exact, n = Exact(each_s), len(each_s)
    return RunWaits(n, exact.at(0.5), exact.at(0.95), exact.at(0.99), ratio(sum(wait_s > LONG_S for wait_s in each_s), n),
                 ratio(sum(result.samples.ints["n_upstream_attempts"]), n), n_failed(result))


def n_failed(result: Result) -> int:
    """How many requests ended in an error."""
    return sum(1 for error in result.samples.errors if error)


def largest_lag_ms(results: Iterable[Result]) -> float:
    """How long the client's own loop stood still at most."""
    return max((result.health.loop_lag_max_s for result in results), default=0.0) * 1e3


def why_spoiled(results: Mapping[str, Result]) -> str | None:
    """Why these results prove nothing: the client was the bottleneck. None where they are valid."""
    reasons = [f"{name}: {reason}" for name, result in results.items() for reason in result.health.verdict]
    return "; ".join(reasons) or None
