"""Load is no failure: a queue of our own making at an engine lowers its limit, and opens no breaker."""

import asyncio
from random import Random

import msgspec
import pytest

from stayfast.core.types import Api, Request
from stayfast.lab.harness.virtual import MODEL, read, simulated, virtual_system
from stayfast.lab.simulated import EngineModel, Mixture, ProviderConfig, Weather
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.breaker import State
from stayfast.testing import SimLoop, run
from stayfast.wire.json_input import decode

UPSTREAM = "engine"
N_BURST = 40


def chat(n_input: int, *, stream: bool) -> Request:
    """A prompt of about so many tokens; its answer has 50."""
    return decode(Api.CHAT, msgspec.json.encode({
        "model": MODEL, "messages": [{"role": "user", "content": "word" * n_input}], "stream": stream, "max_tokens": 50}))


@pytest.mark.parametrize("n_input", [20, 2000])
@pytest.mark.parametrize("max_running", [4, 256])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("rate", [0.0, 2.0])
def test_a_burst_at_an_idle_engine_opens_no_breaker(n_input: int, max_running: int, stream: bool, rate: float) -> None:
    """Forty at once, three times, after one at a time or two a second; where most wait long, the limit comes down."""

    async def main(loop: SimLoop) -> None:
        engine = EngineModel(max_running=max_running)
        system = virtual_system(loop, {UPSTREAM: ProviderConfig(seed=1, engine=engine, ttft=Mixture(0.02),
                                                               fills_max_tokens=True)}, 1)
        member = system.registry[UPSTREAM]
        rng = Random(1)

        async def ask() -> None:
            await read(await system.gateway.serve(chat(n_input, stream=stream), Arrival("req_1", loop.now())))

        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                task = group.create_task(ask())
                if rate:
                    await asyncio.sleep(rng.expovariate(rate))
                else:
                    await task
        least = member.limit.value
        for _ in range(3):
            await asyncio.gather(*[ask() for _ in range(N_BURST)])
            await ask()
            await asyncio.sleep(1.0)
            await ask()
            assert (member.breaker.state, member.breaker.mark) == (State.CLOSED, 0), member
            least = min(least, member.limit.value)
        if n_input == 2000 and stream:
            assert least < 100

    run(main)


def test_a_brown_out_at_ordinary_concurrency_opens_it() -> None:
    """The same engine, ten times slower: the next dozen calls are enough, one at a time."""

    async def main(loop: SimLoop) -> None:
        system = virtual_system(loop, {UPSTREAM: ProviderConfig(seed=1, ttft=Mixture(0.2))}, 1)
        member, provider = system.registry[UPSTREAM], simulated(system, UPSTREAM).provider
        for n in range(60):
            if n == 48:
                provider.set_regime(Weather.BROWNOUT)
            await read(await system.gateway.serve(chat(20, stream=True), Arrival("req_1", loop.now())))
        assert member.breaker.mark > 0

    run(main)
