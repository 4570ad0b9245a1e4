"""One picture's scene, and the load on it in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from math import inf, isnan
from random import Random

from draw import Line

from stayfast.compose.system import System
from stayfast.core.errors import StayfastError
from stayfast.core.types import Request
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, run_plan
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.virtual import PipelineTarget, build_virtual_system
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import Settings
from stayfast.testing.simloop import SimLoop, run

FIRST_TOKEN = "Time to the first token, from the intended start"


@dataclass(frozen=True, slots=True)
class Scene:
    """A policy off and on. `play` takes the approximate number of requests and a seed; both lines have the same load."""

    title: str
    about: str
    play: Callable[[int, int], tuple[Line, Line]]
    measure: str = FIRST_TOKEN


def waits_s(result: Result, since_s: float = 0.0, until_s: float = inf) -> list[float]:
    """The time to the first token of each request in this part of the run; infinite if it failed."""
    samples = result.samples
    return [inf if error or isnan(first) else first - at for error, first, at in zip(
        samples.errors, samples.floats["first_s"], samples.floats["at_s"], strict=True) if since_s <= at < until_s]


def bench(settings: Settings, load: LoadSpec, seed: int, plan: MeasurePlan | None = None,
          begin: Callable[[System, SimLoop], None] | None = None) -> Result:
    """Run the bench on these settings. `plan` replaces the load's own. `begin` is called before it."""
    plan = plan or load.plan(seed)

    async def main(loop: SimLoop) -> Result:
        prompts = Prompts(seed, plan.workload.n_system)
        system = build_virtual_system(settings, loop, seed)
        if begin is not None:
            begin(system, loop)
        target = PipelineTarget(system.gateway, load.request_config(), prompts, loop)
        subject = Subject("virtual", "virtual:", "chat", MODEL)
        return (await run_plan(plan, [(subject, target)], loop, LoadOrigin(), is_virtual=True))[0]

    return run(main)


class Callers:
    """Sends requests on one virtual loop and records their times to the first token."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._numbers = count()

    async def ask(self, gateway: Gateway, request: Request, waits: list[float], tenant: str | None = None) -> None:
        """Send a request and read to the end. A failed request counts as infinitely slow."""
        began_at, wait_s = self._loop.now(), inf
        try:
            reply = await gateway.serve(request, Arrival(f"req_{next(self._numbers):x}", began_at, tenant))
            first_s = self._loop.now() - began_at
            try:
                while await reply.next() is not None:
                    pass
                wait_s = first_s
            finally:
                reply.close()
        except StayfastError:
            pass  # rejected or failed
        waits.append(wait_s)

    async def at(self, instants: Iterator[float], until_s: float, ask: Callable[[], Awaitable[None]]) -> None:
        """Call `ask` at each of these instants, whatever became of earlier calls."""
        async def call() -> None:
            await ask()

        async with asyncio.TaskGroup() as group:
            for at_s in instants:
                if at_s > until_s:
                    return
                await asyncio.sleep(at_s - self._loop.now())
                group.create_task(call())


def poisson(rate_rps: float, seed: int) -> Iterator[float]:
    """Instants of a Poisson process."""
    rng, at_s = Random(seed), 0.0
    while True:
        at_s += rng.expovariate(rate_rps)
        yield at_s


def bursts(n: int, every_s: float, lasts_s: float, seed: int) -> Iterator[float]:
    """`n` instants within `lasts_s`, every `every_s`; the first burst after half of that."""
    rng = Random(seed)
    for number in count():
        begins_s = (number + 0.5) * every_s
        yield from sorted(begins_s + rng.uniform(0.0, lasts_s) for _ in range(n))
