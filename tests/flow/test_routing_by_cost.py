"""Routing by cost with what engines show: their queues, their memory, their own index, their cached tokens."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from stayfast.compose.snapshot_source import describe_upstream
from stayfast.core.engine_signals import EngineSignals
from stayfast.core.types import Request
from stayfast.observe.metrics.definitions import PREFIX_CHECKED
from stayfast.pipeline.routing.exact_prefixes import ExactPrefixes
from stayfast.pipeline.routing.selector import PickConfig, UpstreamSelector
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.testing import SimLoop, run
from stayfast.upstreams.state.signal_board import SignalBoard
from tests.flow.routing_rig import RoutingClient, client_of, settings_of

ENGINE = ("{kind: simulated, ttft: {median_s: 0.01}, fills_max_tokens: true, "
          "engine: {prefill_tokens_per_s: 8000, cache_tokens: 60000}}")
SMALL = ENGINE.replace("60000", "2000")
ROUTE = "{upstreams: [a, b], affinity: {mode: prefix}}"


def client_with(loop: SimLoop, signals: SignalBoard | None = None, exact: ExactPrefixes | None = None, *,
                engine: str = ENGINE) -> RoutingClient:
    client = client_of(settings_of(ROUTE, a=engine, b=engine), loop)
    routes = client.system.gateway.router.routes
    assert isinstance(routes, dict)
    config = PickConfig(affinity=AffinityConfig("prefix"))
    routes["chat"] = replace(routes["chat"], selector=UpstreamSelector(config, "chat", signals=signals, exact=exact))
    return client


class FixedIndex:
    """An exact index with the same answer to everything."""

    def __init__(self, *cached: float | None) -> None:
        self.cached = cached

    def cached_tokens(self, request: Request, upstreams: Sequence[str], now: float) -> Sequence[float | None]:
        return self.cached


def count_answers(n: int, signals: SignalBoard | None = None, exact: ExactPrefixes | None = None) -> Counter[str]:
    """By upstream, of different prompts one after the other."""
    async def main(loop: SimLoop) -> Counter[str]:
        client = client_with(loop, signals, exact)
        for number in range(n):
            await client.request(f"{number} " * 300)
        return client.n_by_upstream

    return run(main)


def test_cost_other_clients_queue_at_an_engine_is_avoided() -> None:
    board = SignalBoard(1e6)
    board.publish("a", EngineSignals(read_at=0.0, waiting=30.0, running=20.0))
    board.publish("b", EngineSignals(read_at=0.0, waiting=0.0, running=2.0))
    assert count_answers(20, board)["b"] == 20


def test_cost_stale_signals_are_ignored() -> None:
    board = SignalBoard(1e-6)
    board.publish("a", EngineSignals(read_at=-10.0, waiting=30.0))
    assert count_answers(20, board)["a"] > 3


def test_cost_exact_index_decides_where_it_is_known() -> None:
    assert count_answers(10, exact=FixedIndex(0.0, 900.0))["b"] == 10


def test_cost_unknown_exact_index_leaves_the_belief() -> None:
    """Turns of a conversation stay together, as without it."""
    async def main(loop: SimLoop) -> set[str]:
        client = client_with(loop, exact=FixedIndex(None, None))
        return set((await client.converse(6, 1))[1:])

    assert len(run(main)) == 1


def test_cost_reported_hits_are_counted_like_the_belief() -> None:
    async def main(loop: SimLoop) -> tuple[Counter[str], float | None, float | None, int]:
        client = client_with(loop)
        for seed in range(6):
            await client.converse(4, seed)
        selector = client.system.gateway.router.routes["chat"].selector
        assert selector is not None
        [truth, *_] = selector.beliefs.truths.values()
        member = client.system.registry["a"]
        gauges = describe_upstream(member, loop.now(), 0, [truth])
        return client.counter(PREFIX_CHECKED.name), truth.truth, truth.belief, gauges.prefix.n_answers

    tokens, truth, belief, n_answers = run(main)
    assert tokens["cached"] <= tokens["input"]
    assert tokens["cached"] > 0.5 * tokens["believed"] > 0
    assert truth is not None
    assert belief is not None
    assert belief - truth < 0.05
    assert belief > 0.5
    assert n_answers > 3


def test_cost_engine_with_a_small_cache_is_believed_less() -> None:
    """Prompts that it drops between two turns: belief falls to what answers show."""
    async def main(loop: SimLoop) -> tuple[float, float]:
        client = client_with(loop, engine=SMALL)
        for _ in range(12):
            for number in range(8):
                await client.request(f"{number} " * 2000)
        before = client.counter(PREFIX_CHECKED.name)
        for _ in range(4):
            for number in range(8):
                await client.request(f"{number} " * 2000)
        tokens = client.counter(PREFIX_CHECKED.name) - before
        return tokens["believed"] / tokens["input"], tokens["cached"] / tokens["input"]

    believed, cached = run(main)
    assert believed - cached < 0.15


def test_cost_failing_upstream_does_not_attract_requests() -> None:
    """It fails at once, so nothing is in flight there."""
    async def main(loop: SimLoop) -> int:
        broken = ENGINE.replace("ttft:", "faults: [{kind: status, status: 500}], ttft:")
        client = client_of(settings_of(ROUTE, a=broken, b=ENGINE), loop)
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(client.request(f"{number} " * 300))
                await asyncio.sleep(0.05)
        return client.system.registry["a"].n_failed_in_row

    assert run(main) < 10
