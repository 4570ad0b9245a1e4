"""What one picture shows, and how its requests are asked in virtual time."""

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
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, perform
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.virtual import PipelineTarget, virtual
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import Settings
from stayfast.testing.simloop import SimLoop, run

FIRST_TOKEN = "Time to the first token, from when a request was due"


@dataclass(frozen=True, slots=True)
class Scene:
    """A policy off and on. `play` takes the number of requests, about, and a seed; both lines meet the same load."""

    title: str
    about: str
    play: Callable[[int, int], tuple[Line, Line]]
    measure: str = FIRST_TOKEN


def waits_s(result: Result, since_s: float = 0.0, until_s: float = inf) -> list[float]:
    """From when each request was due (in this part of the run) to its first token; infinite where it failed."""
    samples = result.samples
    return [inf if error or isnan(first) else first - at for error, first, at in zip(
        samples.errors, samples.floats["first_s"], samples.floats["at_s"], strict=True) if since_s <= at < until_s]


def bench(settings: Settings, load: LoadSpec, seed: int, plan: MeasurePlan | None = None,
          begin: Callable[[System, SimLoop], None] | None = None) -> Result:
    """The bench's own load on these settings. `plan`: another one than the load's own. `begin`: called before it."""
    plan = plan or load.plan(seed)

    async def main(loop: SimLoop) -> Result:
        prompts = Prompts(seed, plan.workload.n_system)
        system = virtual(settings, loop, seed)
        if begin is not None:
            begin(system, loop)
        target = PipelineTarget(system.gateway, load.asking(), prompts, loop)
        subject = Subject("virtual", "virtual:", "chat", MODEL)
        return (await perform(plan, [(subject, target)], loop, LoadOrigin(), is_virtual=True))[0]

    return run(main)


class Callers:
    """Who asks a gateway, and how long each waited for the first token. One virtual loop's."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._numbers = count()

    async def ask(self, gateway: Gateway, request: Request, waits: list[float], tenant: str | None = None) -> None:
        """Ask and read to the end. Who gets no whole answer waits for ever."""
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
            pass  # what was refused or failed
        waits.append(wait_s)

    async def at(self, instants: Iterator[float], until_s: float, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask at each of these instants, whatever became of those before."""
        async def one() -> None:
            await ask()

        async with asyncio.TaskGroup() as group:
            for at_s in instants:
                if at_s > until_s:
                    return
                await asyncio.sleep(at_s - self._loop.now())
                group.create_task(one())


def poisson(rate_rps: float, seed: int) -> Iterator[float]:
    """Instants."""
    rng, at_s = Random(seed), 0.0
    while True:
        at_s += rng.expovariate(rate_rps)
        yield at_s


def bursts(n: int, every_s: float, lasts_s: float, seed: int) -> Iterator[float]:
    """`n` within `lasts_s`, and again `every_s` later; the first one after half of that."""
    rng = Random(seed)
    for number in count():
        begins_s = (number + 0.5) * every_s
        yield from sorted(begins_s + rng.uniform(0.0, lasts_s) for _ in range(n))
