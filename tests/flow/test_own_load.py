"""Load is no failure, and a client that leaves no sample: neither opens a breaker; a queue of our own lowers the limit."""

import asyncio
from random import Random

import msgspec
import pytest

from stayfast.core.errors import DeadlineExceeded
from stayfast.core.types import Api, Request
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import read_body, simulated_upstream, virtual_system
from stayfast.lab.simulated import EngineModel, Mixture, ProviderConfig, RegimeState
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from stayfast.wire.request_body import decode
from tests.flow.rig import Rig

UPSTREAM = "engine"
N_BURST = 40
QUICK: Script = [Wait(0.1), SendText("ok")]
STUCK: Script = [Wait(1000), SendText("late")]


def chat(n_input: int, *, stream: bool) -> Request:
    """A prompt of about so many tokens; its answer has 50."""
    return decode(Api.CHAT, msgspec.json.encode({
        "model": MODEL, "messages": [{"role": "user", "content": "word" * n_input}], "stream": stream, "max_tokens": 50}))


@pytest.mark.parametrize("n_input", [20, 2000])
@pytest.mark.parametrize("max_running", [4, 256])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("rate", [0.0, 2.0])
def test_breaker_burst_at_an_idle_engine_does_not_open_it(n_input: int, max_running: int, stream: bool, rate: float) -> None:
    """Forty requests at once, three times; where most of them wait long, the limit falls."""

    async def main(loop: SimLoop) -> None:
        engine = EngineModel(max_running=max_running)
        system = virtual_system(loop, {UPSTREAM: ProviderConfig(seed=1, engine=engine, ttft=Mixture(0.02),
                                                               fills_max_tokens=True)}, 1)
        member = system.registry[UPSTREAM]
        rng = Random(1)

        async def ask() -> None:
            await read_body(await system.gateway.serve(chat(n_input, stream=stream), Arrival("req_1", loop.now())))

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
            assert (member.breaker.state, member.breaker.mark) == (BreakerState.CLOSED, 0), member
            least = min(least, member.limit.value)
        if n_input == 2000 and stream:
            assert least < 100

    run(main)


def test_breaker_brownout_at_normal_concurrency_opens_it() -> None:
    """The engine is ten times slower: a dozen calls are enough, one at a time."""

    async def main(loop: SimLoop) -> None:
        system = virtual_system(loop, {UPSTREAM: ProviderConfig(seed=1, ttft=Mixture(0.2))}, 1)
        member, provider = system.registry[UPSTREAM], simulated_upstream(system, UPSTREAM).provider
        for n in range(60):
            if n == 48:
                provider.set_regime(RegimeState.BROWNOUT)
            await read_body(await system.gateway.serve(chat(20, stream=True), Arrival("req_1", loop.now())))
        assert member.breaker.mark > 0

    run(main)


@pytest.mark.parametrize("patience_s", [0.3, 2.0, 20.0])
def test_limit_clients_that_leave_together_change_nothing(patience_s: float) -> None:
    """Two hundred calls wait at once and are cancelled: limit, breaker and baseline stay."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[QUICK] * 40, *[STUCK] * 200, QUICK])
        member = rig.registry["up0"]

        async def ask() -> None:
            await read_body(await rig.serve())

        for _ in range(40):
            await ask()
        before = member.baselines.all.baseline_s
        leaving = [loop.create_task(ask()) for _ in range(200)]
        await asyncio.sleep(patience_s)
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        for _ in range(3):
            await ask()
            await asyncio.sleep(1.0)
        assert member.limit.value == 10_000
        assert (member.breaker.state, member.breaker.mark) == (BreakerState.CLOSED, 0)
        assert member.baselines.all.baseline_s == pytest.approx(before, rel=0.05)  # one of them began alone, and was slow

    run(main)


def test_breaker_clients_that_leave_one_by_one_open_it_at_a_hanging_upstream() -> None:
    """Each call was slow at normal concurrency before its client left."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[QUICK] * 40, *[STUCK] * 12])
        for n in range(52):
            task = loop.create_task(rig.serve())
            await asyncio.sleep(2.0)
            if n < 40:
                await read_body(task.result())
            else:
                task.cancel()
                await asyncio.wait([task])
        assert rig.registry["up0"].breaker.state is BreakerState.OPEN

    run(main)


@pytest.mark.parametrize("total_s", [1.0, 2.0])
def test_limit_deadlines_in_a_queue_of_the_own_load_open_no_breaker(total_s: float) -> None:
    """An engine reads one prompt in 0.1 s: most of forty at once are late, and the limit falls."""

    async def main(loop: SimLoop) -> None:
        system = virtual_system(loop, {UPSTREAM: ProviderConfig(seed=1, engine=EngineModel(), ttft=Mixture(0.02),
                                                               fills_max_tokens=True)}, 1)
        member, n_late = system.registry[UPSTREAM], 0

        async def ask(total_s: float | None = None) -> None:
            nonlocal n_late
            try:
                await read_body(await system.gateway.serve(chat(2000, stream=True),
                                                           Arrival("r", loop.now(), total_s=total_s)))
            except DeadlineExceeded:
                n_late += 1

        for _ in range(60):
            await ask()
        await asyncio.gather(*[ask(total_s) for _ in range(N_BURST)])
        assert n_late > 15
        for _ in range(3):
            await ask()
            await asyncio.sleep(1.0)
        assert (member.breaker.state, member.breaker.mark) == (BreakerState.CLOSED, 0), member
        assert member.limit.value < 100

    run(main)


def test_breaker_deadline_in_a_running_answer_is_no_failure() -> None:
    """Twenty long answers are cut by their own deadline. An answer that has stalled by then is a failure."""

    async def main(loop: SimLoop) -> None:
        flowing: Script = [part for _ in range(100) for part in (Wait(0.1), SendText("word "))]
        rig = Rig(loop, [flowing])
        for _ in range(20):
            with pytest.raises(DeadlineExceeded):
                await read_body(await rig.serve(total_s=3.05))
        assert (rig.registry["up0"].breaker.state, rig.registry["up0"].n_failed_in_row) == (BreakerState.CLOSED, 0)
        stalling = Rig(loop, [[*flowing[:20], Wait(100)]])
        for _ in range(5):
            with pytest.raises(DeadlineExceeded):
                await read_body(await stalling.serve(total_s=3.05))
        assert stalling.registry["up0"].breaker.state is BreakerState.OPEN

    run(main)
