"""Load over sockets: runs of the bench, and the figures that proofs derive from its results."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any, Final

from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.lab.harness.claim import ratio
from stayfast.lab.harness.loopback import keep_busy
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess, gateway_settings
from stayfast.lab.load.arrivals import Arrivals, Gamma
from stayfast.lab.load.client import HttpTarget, LoadTargetConfig, RequestConfig
from stayfast.lab.load.lengths import ConstantLength, Length
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, run_plan
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.schedule import Prompts, ScheduleLimit, Workload

LONG_S: Final = 5.0
WATCH_EVERY_S: Final = 0.005
BLOCK_S: Final = 5.0  # several targets get the load in turns of this length


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The requests of a run: an open loop at `rate_rps` (Poisson) or by `arrivals`, or a closed loop of `n_concurrent`."""

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
    extra: Mapping[str, Any] = field(default_factory=dict)  # additional members of each body

    def plan(self, seed: int) -> MeasurePlan:
        """The load as the bench's plan."""
        arrivals = None if self.n_concurrent else self.arrivals or Gamma(self.rate_rps)
        n_input, n_output = (ConstantLength(n) if isinstance(n, int) else n for n in (self.n_input, self.n_output))
        workload = Workload(input=n_input, output=n_output, arrivals=arrivals)
        return MeasurePlan(workload, ScheduleLimit(self.seconds, None, self.warmup_s), seed, self.n_concurrent,
                           self.timeout_s, min(BLOCK_S, self.seconds))

    def request_config(self) -> RequestConfig:
        """The dialect, model, key and additional members of each request."""
        return RequestConfig(self.api, self.model, self.stream, self.key, extra=dict(self.extra))


async def run_loads(load: LoadSpec, urls: Mapping[str, str], seed: int, prompts: Prompts | None = None) -> dict[str, Result]:
    """Put the load on each of `urls` (base URLs by name), interleaved if there are several. Returns the results by name."""
    clock = SystemClock()
    subjects = [(Subject(name, url, load.api.value, load.model),
                 HttpTarget(name, LoadTargetConfig(url, load.request_config()), prompts or Prompts(seed), clock))
                for name, url in urls.items()]
    results = await run_plan(load.plan(seed), subjects, clock, LoadOrigin())
    return {result.label: result for result in results}


async def run_load(load: LoadSpec, url: str, seed: int, prompts: Prompts | None = None) -> Result:
    """Put the load on one base URL."""
    return (await run_loads(load, {"target": url}, seed, prompts))["target"]


async def run_together(loads: Sequence[LoadSpec], url: str, seed: int) -> list[Result]:
    """Put all loads on one base URL at the same time, the n-th with the seed `seed + n`."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_load(load, url, seed + n)) for n, load in enumerate(loads)]
    return [task.result() for task in tasks]


@asynccontextmanager
async def simulated_gateway(providers: Mapping[str, Any], seed: int, settings: Mapping[str, Any] | None = None,
                            **route: Any) -> AsyncIterator[tuple[ServerProcess, str]]:
    """A simulator and a gateway in front of it, as processes: yields the simulator and the gateway's base URL.

    providers: as in settings files, or `ProviderConfig`s. settings: additional settings of the gateway. route: settings of
    its one route.
    """
    async with Processes() as processes:
        sim = await processes.start_simulator(providers, seed)
        urls = {name: f"{sim.url}/{name}/v1" for name in providers}
        gateway = await processes.start_gateway({**gateway_settings(urls, **route), **(settings or {})})
        yield sim, f"{gateway.url}/v1"


async def measure_cpu_us(server: ServerProcess, seconds: float, n_callers: int, numbers: Iterator[int] | None = None, *,
                         first_thread: bool = False) -> tuple[float, int]:
    """Keep a server busy with whole answers. Returns CPU microseconds per answer (NaN if there were none) and failed calls.

    numbers: see `loopback.keep_busy`. first_thread: count only the thread that runs the server's event loop.
    """
    read_cpu_s = server.first_thread_cpu_s if first_thread else server.cpu_s
    before_s = read_cpu_s()
    n_answers, n_failed = await keep_busy(f"{server.url}/v1", seconds, n_callers, numbers=numbers)
    return ratio(read_cpu_s() - before_s, n_answers) * 1e6, n_failed


def since_start_s(result: Result, field_name: str, since_s: float = -inf, until_s: float = inf) -> list[float]:
    """Seconds from the intended start of each request to an instant of its sample (NaN if that is missing), for the requests
    whose start is in [since_s, until_s).
    """
    floats = result.samples.floats
    return [then - at for then, at in zip(floats[field_name], floats["at_s"], strict=True) if since_s <= at < until_s]


def waits_s(result: Result) -> list[float]:
    """Seconds from the intended start of each request to its first token; infinite for a failed request."""
    return [inf if error or isnan(wait_s) else wait_s
            for error, wait_s in zip(result.samples.errors, since_start_s(result, "first_s"), strict=True)]


def n_failed(result: Result) -> int:
    """The number of requests that ended in an error."""
    return sum(1 for error in result.samples.errors if error)


def max_lag_ms(results: Iterable[Result]) -> float:
    """The longest time by which the client's event loop was late."""
    return max((result.health.loop_lag_max_s for result in results), default=0.0) * 1e3


class LoopWatch:
    """Measures by how much this event loop is late while the context is open. max_lag_s: the maximum so far."""

    def __init__(self) -> None:
        self.max_lag_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "LoopWatch":
        self._set_timer()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        due_at = self._loop.time() + WATCH_EVERY_S
        self._timer = self._loop.call_at(due_at, self._measure, due_at)

    def _measure(self, due_at: float) -> None:
        self.max_lag_s = max(self.max_lag_s, self._loop.time() - due_at)
        self._set_timer()


def spoil_reason(results: Mapping[str, Result]) -> str | None:
    """Why the results are invalid: the client was the bottleneck. None for valid results."""
    reasons = [f"{name}: {reason}" for name, result in results.items() for reason in result.health.verdict]
    return "; ".join(reasons) or None
