"""An upstream whose streams turn slow in their middle gets fewer of the next requests, on routes that ask for nothing."""

import asyncio
from collections import Counter
from random import Random

import pytest

from stayfast.lab.harness.virtual import chat_request, read_body, simulated_upstream, virtual_system
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig, Regime, Regimes, RegimeState
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing import SimLoop, run
from tests.flow.routing_rig import RoutingClient, client_of, settings_of

EVEN = ("{kind: simulated, fills_max_tokens: true, ttft: {median_s: 0.1, sigma: 0.05}, "
        "gaps: {median_s: 0.02, sigma: 0.1, tokens_per_chunk: 1}}")
SAGS = EVEN[:-1] + ", slowdown: {share: 0.8, rate_factor: 0.1}}"


def share_of_a(a: str) -> float:
    """What `a` got of 200 requests, one after the other, beside a twin that never sags."""
    async def main(loop: SimLoop) -> RoutingClient:
        client = client_of(settings_of("{upstreams: [a, b]}", a=a, b=EVEN), loop)
        for number in range(200):
            await client.request(f"question {number}", n=60)
        return client

    by = run(main).n_by_upstream
    return by["a"] / by.total()


def test_throughput_upstream_that_slows_in_mid_answer_gets_less() -> None:
    """Beside an even twin its share falls; two even upstreams share evenly."""
    assert share_of_a(EVEN) == pytest.approx(0.5, abs=0.1)
    assert share_of_a(SAGS) < 0.3


def shares(rate: float, times: float) -> tuple[float, float, float]:
    """Of two even upstreams, what `a` gets in the minute before every gap there is so many times as long, in the second half
    of the two minutes after that, and in the second minute after it is well again.
    """
    async def main(loop: SimLoop) -> tuple[float, float, float]:
        provider = ProviderConfig(seed=1, ttft=Mixture(0.1, 0.05), gaps=GapConfig(0.02, 0.1), fills_max_tokens=True,
                                  regimes=Regimes(normal=Regime(1e9), brownout=Regime(gap_factor=times)))
        system = virtual_system(loop, {"a": provider, "b": provider}, 1, hedge=HedgeConfig(mode="off"))
        rng, by = Random(1), [Counter[str]() for _ in range(5)]
        loop.call_at(60.0, simulated_upstream(system, "a").provider.set_regime, RegimeState.BROWNOUT)
        loop.call_at(180.0, simulated_upstream(system, "a").provider.set_regime, None)

        async def ask() -> None:
            began_at = loop.now()
            reply = await system.gateway.serve(chat_request(20, 100), Arrival("req_1", began_at))
            by[int(began_at // 60)][reply.upstream] += 1
            await read_body(reply)

        async with asyncio.TaskGroup() as group:
            while loop.now() < 299:
                group.create_task(ask())
                await asyncio.sleep(rng.expovariate(rate))
        return by[0]["a"] / by[0].total(), by[2]["a"] / by[2].total(), by[4]["a"] / by[4].total()

    return run(main)


@pytest.mark.parametrize(("rate", "times", "most"), [(2.0, 3.0, 0.22), (10.0, 3.0, 0.2), (2.0, 10.0, 0.1),
                                                     (10.0, 10.0, 0.07)])
def test_throughput_upstream_slow_from_the_start_gets_less(rate: float, times: float, most: float) -> None:
    """Less than the longer answers alone would leave it, 0.3 and 0.15. After its recovery it has its half."""
    before, meanwhile, after = shares(rate, times)
    assert before == pytest.approx(0.5, abs=0.08)
    assert meanwhile < most
    assert after > 0.35
