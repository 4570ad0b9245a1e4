"""Routes with several upstreams on virtual time: prompts and sessions stay together, outliers are left out, tiers follow."""

import asyncio
from collections import Counter
from random import Random

import msgspec
import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.types import Api
from stayfast.lab.simulated import Simulated
from stayfast.observe.metrics.definitions import AFFINITY, EJECTED, PREFIX_TOKENS, TOKENS
from stayfast.pipeline.stages.relay import Reply
from stayfast.settings import SettingsError
from stayfast.testing import SimLoop, run
from tests.flow.routing_rig import RoutingClient, client_of, settings_of

ENGINE = ("{kind: simulated, ttft: {median_s: 0.01}, fills_max_tokens: true, "
          "engine: {prefill_tokens_per_s: 8000, cache_tokens: 60000}}")
QUICK = "{kind: simulated, ttft: {median_s: 0.1}, fills_max_tokens: true}"


def test_routing_conversation_stays_at_one_upstream() -> None:
    """All turns but the first go to one of four engines; metrics and notes have it."""
    async def main(loop: SimLoop) -> tuple[list[str], Counter[str], RoutingClient, list[str]]:
        client = client_of(settings_of("{upstreams: [a, b, c, d], affinity: {mode: prefix}}", a=ENGINE, b=ENGINE, c=ENGINE,
                                       d=ENGINE), loop)
        for seed in range(12):  # until first tokens can be predicted everywhere
            await client.converse(4, seed)
        before = client.counter(PREFIX_TOKENS.name)
        answered_by = await client.converse(8, 99)
        return answered_by, client.counter(PREFIX_TOKENS.name) - before, client, await client.last_verdict()

    answered_by, tokens, client, verdict = run(main)
    assert len(set(answered_by[1:])) == 1
    assert tokens["known"] > 3 * tokens["new"]
    assert client.counter(AFFINITY.name).keys() >= {"hit", "new"}
    assert any(line.startswith(f"picked {answered_by[-1]}: about ") for line in verdict)


def test_routing_affinity_lowers_latency_where_prefixes_are_cached() -> None:
    """Forty conversations on four engines: more prompt tokens are cached, the median falls to a third, p99 by a fifth."""
    def figures(mode: str) -> tuple[float, float, float]:
        async def main(loop: SimLoop) -> tuple[float, float, float]:
            settings = settings_of(f"{{upstreams: [a, b, c, d], affinity: {{mode: {mode}}}}}", a=ENGINE, b=ENGINE, c=ENGINE,
                                   d=ENGINE)
            client = client_of(settings, loop)
            async with asyncio.TaskGroup() as group:
                for seed in range(40):
                    group.create_task(client.converse(5, seed, think_s=4.0))
                    await asyncio.sleep(0.4)
            tokens, waits_s = client.counter(TOKENS.name), sorted(client.waits_s)
            n = len(waits_s)
            return tokens["cached"] / tokens["input"], waits_s[n // 2], waits_s[n * 99 // 100]

        return run(main)

    share_off, p50_off_s, p99_off_s = figures("off")
    share, p50_s, p99_s = figures("prefix")
    assert share > share_off + 0.2
    assert p50_s < p50_off_s / 3
    assert p99_s < 0.8 * p99_off_s


def test_routing_popular_prompt_is_spread() -> None:
    """One long prompt in all requests does not queue at the one engine that has it cached."""
    async def main(loop: SimLoop) -> Counter[str]:
        client = client_of(settings_of("{upstreams: [a, b, c], affinity: {mode: prefix}}", a=ENGINE, b=ENGINE,
                                       c=ENGINE), loop)
        for seed in range(30):
            await client.converse(1, seed)
        client.n_by_upstream.clear()
        async with asyncio.TaskGroup() as group:
            for n in range(60):
                group.create_task(client.request("the same for all " * 300, str(n), n=50))
                await asyncio.sleep(0.01)
        return client.n_by_upstream

    by = run(main)
    assert min(by.values()) > 5


@pytest.mark.parametrize("said", [
    {"headers": (("x-session-id", "s-{n}"),)}, {"user": "u-{n}"}, {"prompt_cache_key": "k-{n}"}, {"session_id": "i-{n}"},
    {"metadata": {"user_id": "m-{n}"}}])
def test_routing_session_has_one_upstream(said: dict[str, object]) -> None:
    """By any name of a session; ten sessions are at more than one upstream."""
    async def main(loop: SimLoop) -> list[set[str]]:
        settings = settings_of("{upstreams: [a, b, c], affinity: {mode: sessions}}", a=QUICK, b=QUICK, c=QUICK)
        client = client_of(settings, loop)
        for _ in range(9):
            await client.request("hello")  # who has not been heard of gets one request before anybody's session
        found: list[set[str]] = []
        for n in range(10):
            its = msgspec.json.decode(msgspec.json.encode(said).replace(b"{n}", b"%d" % n))
            if "headers" in its:
                its["headers"] = tuple(tuple(header) for header in its["headers"])
            found.append({(await client.request(f"turn {turn}", **its)).upstream for turn in range(6)})
        return found

    found = run(main)
    assert [len(homes) for homes in found] == [1] * 10
    assert len(set.union(*found)) > 1


def test_routing_response_is_continued_where_it_is_stored() -> None:
    """previous_response_id is known at one upstream only, whatever its load."""
    async def main(loop: SimLoop) -> list[str]:
        client = client_of(settings_of("{upstreams: [a, b, c, d], affinity: {mode: sessions}}", a=QUICK, b=QUICK, c=QUICK,
                                       d=QUICK), loop)
        reply = await client.request("first", api=Api.RESPONSES)
        answered_by = [reply.upstream]
        for _ in range(8):
            reply = await client.request("next", api=Api.RESPONSES, previous_response_id=reply.summary.response_id)
            answered_by.append(reply.upstream)
        return answered_by

    assert len(set(run(main))) == 1


def test_routing_outlier_is_ejected() -> None:
    """One in four of its calls fails: it is out after some dozens, and the notes and a gauge have it."""
    bad = QUICK[:-1] + ", faults: [{kind: status, status: 500, rate: 0.25}], breaker: {enabled: false}}"

    async def main(loop: SimLoop) -> tuple[RoutingClient, list[str]]:
        route = "{upstreams: [bad, a, c], pick: order, retry: {budget: 1}, eject: {enabled: true}}"
        client = client_of(settings_of(route, a=QUICK, bad=bad, c=QUICK), loop)
        for _ in range(150):
            await client.request("hello")
        client.n_by_upstream.clear()
        for _ in range(60):
            await client.request("hello")
        return client, await client.last_verdict()

    client, verdict = run(main)
    assert client.n_by_upstream["bad"] == 0
    assert any(line.startswith("ejected bad: ") for line in verdict)
    gauges = dict(client.system.together.metrics_sink.snapshot().gauges[EJECTED.name])
    assert gauges == {("chat", "a"): 0.0, ("chat", "bad"): 1.0, ("chat", "c"): 0.0}


def test_routing_weights_are_shares() -> None:
    """Nine to one, as long as both keep up."""
    async def main(loop: SimLoop) -> Counter[str]:
        client = client_of(settings_of("{upstreams: [a, b], weights: {a: 9}}", a=QUICK, b=QUICK), loop)
        for _ in range(600):
            await client.request("hello")
        return client.n_by_upstream

    assert run(main)["a"] == pytest.approx(540, abs=30)


def test_routing_is_a_function_of_the_seed() -> None:
    async def main(loop: SimLoop) -> list[str]:
        route = "{upstreams: [a, b, c], weights: {a: 3}, affinity: {mode: both}, eject: {enabled: true}}"
        client = client_of(settings_of(route, a=ENGINE, b=ENGINE, c=ENGINE), loop, seed=5)
        return [name for seed in range(25) for name in await client.converse(4, seed)]

    assert run(main) == run(main)


DOWN = "{kind: simulated, faults: [{kind: refused, rate: 1}]}"
STUCK = "{kind: simulated, ttft: {median_s: 100}}"


def test_routing_fallback_tiers_are_used_in_order() -> None:
    """Each when the one before has failed or used its part of the reserve."""
    async def main(loop: SimLoop) -> tuple[Reply, Counter[str], float]:
        route = ("{upstreams: [a], deadline: 10, retry: {max_attempts: 1}, "
                 "on_overrun: {fallback: {upstreams: [b], reserve: 60%, then: [[c], {upstreams: [d], model: small}]}}}")
        client = client_of(settings_of(route, a=DOWN, b=STUCK, c=DOWN, d=QUICK), loop)
        reply = await client.request("hello")
        asked = Counter({member.upstream.name: member.upstream.counts.n_asked for member in client.system.registry
                         if isinstance(member.upstream, Simulated)})
        return reply, asked, client.waits_s[0]

    reply, asked, wait_s = run(main)
    assert (reply.upstream, reply.degraded) == ("d", "fallback")
    assert asked == Counter(a=1, b=1, c=1, d=1)
    assert wait_s == pytest.approx(10 - 10 * 0.6 * 2 / 3 + 0.1, abs=0.2)  # b may not use what is kept for two more tiers


def test_routing_later_tiers_are_bounded_by_the_retry_budget() -> None:
    """In an outage of the first fallback tier, the second one does not get all traffic."""
    async def main(loop: SimLoop) -> tuple[int, int]:
        route = ("{upstreams: [a], retry: {max_attempts: 1, budget: 0.05}, "
                 "on_overrun: {template: Later., fallback: {upstreams: [b], then: [[c]]}}}")
        down = DOWN[:-1] + ", breaker: {enabled: false}}"  # else the last tier would soon go first
        client = client_of(settings_of(route, a=down, b=down, c=QUICK), loop)
        for _ in range(200):
            await client.request("hello")
        return client.n_by_upstream["c"], client.n_by_upstream.total()

    n_of_c, n = run(main)
    assert n == 200
    assert 0 < n_of_c < 100


def test_routing_upstream_added_by_a_reload_starts_slowly() -> None:
    """At a tenth of its share; health and affinity of the others stay."""
    async def main(loop: SimLoop) -> None:
        def built(names: str, old: System | None, **upstreams: str) -> System:
            settings = settings_of(f"{{upstreams: [{names}], affinity: {{mode: prefix}}}}", **upstreams)
            return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)

        before = built("a, b", None, a=QUICK, b=QUICK)
        assert [member.breaker.traffic_share(loop.now()) for member in before.registry] == [1.0, 1.0]
        after = built("a, b, c", before, a=QUICK, b=QUICK, c=QUICK)
        assert [member.breaker.traffic_share(loop.now()) for member in after.registry] == [1.0, 1.0, pytest.approx(0.1)]
        assert after.gateway.router.routes["chat"].selector is before.gateway.router.routes["chat"].selector
        await asyncio.sleep(10)
        assert after.registry["c"].breaker.traffic_share(loop.now()) == 1.0

    run(main)


@pytest.mark.parametrize(("route", "why"), [
    ("{upstreams: [a, b], weights: {z: 1}}", "weights.z: is not one of the route's upstreams"),
    ("{upstreams: [a, b], weights: {a: 0}}", "weights.a: must be from 0.001 to 1000"),
    ("{upstreams: [a, b], pick: order, affinity: {mode: prefix}}", "pick: must be balance"),
    ("{upstreams: [a, b], affinity: {max_load: 6}}", "affinity.max_load: removed: "),
    ("{upstreams: [a, b], on_overrun: {fallback: {upstreams: [a], then: [[y]]}}}", "there is no upstream \"y\""),
])
def test_routing_settings_errors_name_the_setting(route: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why.replace(".", r"\.")):
        settings_of(route, a=QUICK, b=QUICK)
