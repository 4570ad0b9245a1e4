"""Virtual time: runs of the whole pipeline on a loop on which waiting costs nothing, with simulated providers."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from stayfast.compose.system import System
from stayfast.lab.harness.claim import Conditions, Finding
from stayfast.lab.harness.load import Load
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.load.measure import Origin, perform
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.runner import Target
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.virtual import PipelineTarget
from stayfast.lab.simulated import ProviderConfig, Simulated
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.stages.relay import Reply
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run

P = ParamSpec("P")
T = TypeVar("T")


def run_virtual(play: Callable[Concatenate[SimLoop, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs) -> T:
    """Run `play(loop, ...)` to its end on a virtual loop of its own."""
    return run(lambda loop: play(loop, *args, **options))


async def run_virtual_in_thread(play: Callable[Concatenate[SimLoop, P], Coroutine[Any, Any, T]], *args: P.args,
                                **options: P.kwargs) -> T:
    """The same on another thread: virtual time takes minutes, in which signals must be handled."""
    return await asyncio.to_thread(lambda: run_virtual(play, *args, **options))


@dataclass(frozen=True, slots=True)
class VirtualClaim:
    """A claim that is proven in virtual time alone. `play(loop, n, seed)` measures; `progress` is formatted with n."""

    name: str
    says: str
    play: Callable[[SimLoop, int, int], Coroutine[Any, Any, Finding]]
    progress: str
    n: int
    n_quick: int

    async def run(self, conditions: Conditions) -> Finding:
        n = conditions.choose(self.n, self.n_quick)
        conditions.say(self.progress.format(n))
        return await run_virtual_in_thread(self.play, n, conditions.seed)


def settings_of(providers: Mapping[str, ProviderConfig], upstream: Mapping[str, Any] | None = None,
                **route: Any) -> Settings:
    """Settings with one route, "m", to these simulated providers. upstream: more settings of each of them."""
    upstreams = {name: SimulatedUpstream(provider=provider, probe=False, **(upstream or {}))
                 for name, provider in providers.items()}
    return Settings(upstreams=upstreams, routes={MODEL: Route(tuple(providers), **route)})


def simulated(system: System, name: str) -> Simulated:
    """The upstream of this name."""
    upstream = system.registry[name].upstream
    assert isinstance(upstream, Simulated)
    return upstream


async def ask_pipeline(system: System, load: Load, loop: SimLoop, seed: int, *, tenant: str | None = None,
                       prompts: Prompts | None = None,
                       through: Callable[[Target], Target] = lambda target: target) -> Result:
    """Put the bench's load on a system in virtual time. through: wraps the target."""
    target = through(PipelineTarget(system.gateway, load.asking(), prompts or Prompts(seed), loop, tenant))
    subject = Subject("virtual", "virtual:", load.api.value, load.model)
    [found] = await perform(load.plan(seed), [(subject, target)], loop, Origin(), is_virtual=True)
    return found


async def arrive(n: int, rate: float, rng: Random, begin: Callable[[int], Coroutine[Any, Any, object]]) -> None:
    """Run `begin(number)` for each of n arrivals, which come at random (Poisson), to the end of all."""
    async with asyncio.TaskGroup() as group:
        for number in range(n):
            group.create_task(begin(number))
            await asyncio.sleep(rng.expovariate(rate))


async def read(reply: Reply) -> bytes:
    """The whole body. The reply is closed whatever happens."""
    parts = []
    try:
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
    finally:
        reply.close()
    return b"".join(parts)
