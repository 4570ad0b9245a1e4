"""Load for proofs: the bench, driven from code."""

from collections.abc import Mapping
from dataclasses import dataclass

from stayfast.bench.arrivals import Arrivals, Gamma
from stayfast.bench.asking import AskingConfig
from stayfast.bench.client import HttpConfig, HttpTarget
from stayfast.bench.lengths import Constant
from stayfast.bench.perform import Origin, Plan, perform
from stayfast.bench.result import Result, Subject
from stayfast.bench.schedule import Limit, Prompts, Workload
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.types import Api

MODEL = "m"
BLOCK_S = 5.0  # of several targets, each is asked so long in turn


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked. `rate_rps` for an open loop (Poisson), else `n_concurrent` callers."""

    seconds: float
    rate_rps: float = 0.0
    n_concurrent: int = 0
    stream: bool = True
    n_input: int = 20
    n_output: int = 16
    warmup_s: float = 0.0
    timeout_s: float = 30.0
    api: Api = Api.CHAT
    model: str = MODEL

    def plan(self, seed: int) -> Plan:
        """The bench's own form of it."""
        arrivals: Arrivals | None = None if self.n_concurrent else Gamma(self.rate_rps)
        workload = Workload(input=Constant(self.n_input), output=Constant(self.n_output), arrivals=arrivals)
        return Plan(workload, Limit(self.seconds, None, self.warmup_s), seed, self.n_concurrent, self.timeout_s,
                    min(BLOCK_S, self.seconds))

    def asking(self) -> AskingConfig:
        """How requests are said."""
        return AskingConfig(self.api, self.model, self.stream)


async def ask(load: Load, urls: Mapping[str, str], seed: int) -> dict[str, Result]:
    """Put the load on each of `urls` (base URLs, by name), interleaved where there are several; the results by name."""
    clock: Clock = SystemClock()
    subjects = [(Subject(name, url, load.api.value, load.model),
                 HttpTarget(name, HttpConfig(url, load.asking()), Prompts(seed), clock)) for name, url in urls.items()]
    found = await perform(load.plan(seed), subjects, clock, Origin())
    return {result.label: result for result in found}


def why_spoiled(results: Mapping[str, Result]) -> str | None:
    """Why these results prove nothing: the client was the bottleneck. None where they are valid."""
    told = [f"{name}: {reason}" for name, result in results.items() for reason in result.health.verdict]
    return "; ".join(told) or None
