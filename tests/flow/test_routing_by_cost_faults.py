"""Routing by cost before replicas that differ, hang or fail, and for prompts without a prefix to find."""

import asyncio
from collections import Counter
from random import Random

import msgspec
import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.types import Api
from stayfast.observe.metrics.definitions import ATTEMPTS, HEDGES
from stayfast.pipeline.exchange import Arrival
from stayfast.settings import Settings
from stayfast.testing import SimLoop, run
from stayfast.wire.request_body import decode
from tests.flow.rig import read
from tests.flow.routing_rig import RoutingClient, client_of, settings_of

ENGINE = ("{kind: simulated, ttft: {median_s: 0.01}, fills_max_tokens: true, "
          "engine: {prefill_tokens_per_s: 8000, cache_tokens: 60000}}")
HALF = ENGINE.replace("8000,", "4000, decode_step_s: 0.02,")
ROUTE = "{upstreams: [a, b, c], affinity: {mode: prefix}}"


def broken(fault: str, more: str = "") -> str:
    return f"{ENGINE[:-1]}, faults: [{{{fault}}}]{more}}}"


def attempts_of(client: RoutingClient) -> Counter[str]:
    """Calls so far, by upstream."""
    client.system.together.flush_events()
    found = Counter[str]()
    for labels, n in client.system.together.metrics_sink.snapshot().counters[ATTEMPTS.name]:
        found[labels[1]] += int(n)
    return found


async def send_short(client: RoutingClient, number: int) -> str:
    """A request with a prompt of less than a block; returns the upstream."""
    body = {"model": "chat", "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": f"{number} hello"}]}
    request = decode(Api.CHAT, msgspec.json.encode(body))
    began_at = client.loop.now()
    reply = await client.system.gateway.serve(request, Arrival(f"req_{number}", began_at))
    client.waits_s.append(client.loop.now() - began_at)
    await read(reply)
    return reply.upstream


async def send_steadily(client: RoutingClient, n: int, every_s: float, *, is_short: bool) -> list[str]:
    """Different prompts at equal distances; returns the upstreams in order."""
    rng, tasks = Random(1), []
    async with asyncio.TaskGroup() as group:
        for number in range(n):
            if is_short:
                tasks.append(group.create_task(send_short(client, number)))
            else:
                text = f"{number} " + "word " * rng.randrange(200, 2000)
                tasks.append(group.create_task(send_long(client, text)))
            await asyncio.sleep(every_s)
    return [task.result() for task in tasks]


async def send_long(client: RoutingClient, text: str) -> str:
    return (await client.request(text)).upstream


def test_cost_replica_twice_as_slow_gets_less() -> None:
    """Engine b is half as fast; it gets at most 60 % of the others' mean once the rates are known, and nothing queues."""
    async def main(loop: SimLoop) -> tuple[Counter[str], list[float | None]]:
        client = client_of(settings_of(ROUTE, a=ENGINE, b=HALF, c=ENGINE), loop)
        await send_steadily(client, 300, 0.12, is_short=False)
        found = Counter(await send_steadily(client, 400, 0.12, is_short=False))
        members = [client.system.registry[name] for name in "abc"]
        return found, [one.predictors.tokens_per_s("chat") if one.predictors is not None else None for one in members]

    found, rates = run(main)
    assert found["b"] < 0.6 * (found["a"] + found["c"]) / 2
    assert found["b"] > 0
    assert rates[1] is not None
    assert rates[0] is not None
    assert rates[1] < 0.7 * rates[0]


@pytest.mark.parametrize("is_short", [False, True])
def test_cost_replica_that_hangs_is_left(*, is_short: bool) -> None:
    """From the 20th second on it answers nothing; of the last 200 requests at most 5 % are sent there."""
    async def main(loop: SimLoop) -> tuple[int, int]:
        route = "{upstreams: [a, b, c], affinity: {mode: prefix}, timeouts: {first_token_s: 2}}"
        client = client_of(settings_of(route, a=broken("kind: hang, from_s: 20"), b=ENGINE, c=ENGINE), loop)
        await send_steadily(client, 250, 0.12, is_short=is_short)
        before = attempts_of(client)
        await send_steadily(client, 200, 0.12, is_short=is_short)
        sent = attempts_of(client) - before
        return before["a"], sent["a"]

    n_before, n_after = run(main)
    assert n_before > 15
    assert n_after <= 10


@pytest.mark.parametrize("is_short", [False, True])
def test_cost_fast_replica_that_fails_at_once_attracts_nothing(*, is_short: bool) -> None:
    """Without a breaker, only the cost keeps requests away from a replica where nothing is ever in flight."""
    async def main(loop: SimLoop) -> int:
        fails = broken("kind: status, status: 500, from_s: 10", ", breaker: {enabled: false}")
        route = "{upstreams: [a, b, c], affinity: {mode: prefix}, retry: {budget: 1}}"
        client = client_of(settings_of(route, a=fails, b=ENGINE, c=ENGINE), loop)
        await send_steadily(client, 100, 0.12, is_short=is_short)
        before = attempts_of(client)
        await send_steadily(client, 300, 0.12, is_short=is_short)
        return (attempts_of(client) - before)["a"]

    assert run(main) < 0.2 * 300


def test_cost_short_prompts_are_balanced_as_without_affinity() -> None:
    """They have no block, so that the same load gives the same upstreams."""
    def upstreams(mode: str) -> list[str]:
        async def main(loop: SimLoop) -> list[str]:
            route = f"{{upstreams: [a, b, c], affinity: {{mode: {mode}}}}}"
            client = client_of(settings_of(route, a=ENGINE, b=HALF, c=ENGINE), loop)
            return await send_steadily(client, 200, 0.05, is_short=True)

        return run(main)

    found = upstreams("prefix")
    assert found == upstreams("'off'")
    assert len(set(found)) == 3


def test_cost_late_first_token_is_hedged_elsewhere() -> None:
    """A race ends at another upstream than the one with the prefix, which has stopped answering."""
    async def main(loop: SimLoop) -> tuple[set[str], float, int]:
        route = "{upstreams: [a, b], affinity: {mode: prefix}, hedge: {mode: race, race_after_s: 0.3, budget: 1}}"
        client = client_of(settings_of(route, a=broken("kind: hang, from_s: 5"), b=ENGINE), loop)
        for number in range(40):
            await client.request(f"{number} hello")
            await asyncio.sleep(0.5)
        client.system.together.flush_events()
        counters = client.system.together.metrics_sink.snapshot().counters
        return set(client.n_by_upstream), max(client.waits_s), int(sum(n for _, n in counters[HEDGES.name]))

    names, longest_s, n_hedges = run(main)
    assert names == {"a", "b"}
    assert longest_s < 1.0
    assert n_hedges > 0


def test_cost_slow_outlier_is_ejected() -> None:
    """It reads prompts as fast as the others, each half a second later: the cost does not show that, ejection does."""
    async def main(loop: SimLoop) -> Counter[str]:
        late = ENGINE.replace("median_s: 0.01", "median_s: 0.6")
        route = "{upstreams: [a, b, c], affinity: {mode: prefix}, eject: {enabled: true}}"
        client = client_of(settings_of(route, a=late, b=ENGINE, c=ENGINE), loop)
        await send_steadily(client, 300, 0.12, is_short=False)
        selector = client.system.gateway.router.routes["chat"].selector
        assert selector is not None
        assert "a" in selector.list_ejected(loop.now())
        return Counter(await send_steadily(client, 60, 0.12, is_short=False))

    assert run(main)["a"] == 0


def test_cost_reload_keeps_rates_and_beliefs() -> None:
    """With unchanged settings; an upstream with other settings loses its rate."""
    async def main(loop: SimLoop) -> None:
        def built(old: System | None, **upstreams: str) -> System:
            settings: Settings = settings_of("{upstreams: [a, b], affinity: {mode: prefix}}", **upstreams)
            return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)

        before = built(None, a=ENGINE, b=ENGINE)
        client = RoutingClient(before, loop)
        await send_steadily(client, 150, 0.2, is_short=False)
        rates = [rate_of(before, name) for name in "ab"]
        assert None not in rates
        after, changed = built(before, a=ENGINE, b=ENGINE), built(before, a=ENGINE, b=HALF)
        assert [rate_of(after, name) for name in "ab"] == rates
        old, new = before.gateway.router.routes["chat"].selector, after.gateway.router.routes["chat"].selector
        assert old is not None
        assert new is not None
        assert new.beliefs.n_blocks == old.beliefs.n_blocks > 100
        assert new.beliefs.truths.keys() == {"a", "b"}
        assert (rate_of(changed, "a"), rate_of(changed, "b")) == (rates[0], None)

    run(main)


def rate_of(system: System, name: str) -> float | None:
    predictors = system.registry[name].predictors
    return predictors.tokens_per_s("chat") if predictors is not None else None
