"""A route that sees to its provider's cache of prompts: what goes out, who waits for whom, and what is found."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.types import Api, Request
from stayfast.lab.simulated import FaultKind, FaultRule, Mixture, PromptCacheModel
from stayfast.pipeline.prompt_cache.planner import PromptCachePlanner
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing import RecordingSink, SimLoop
from stayfast.testing.simloop import run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.prefix_rig import AUTO, LONG, PrefixRig

MARK = {"type": "ephemeral"}
POINTS = PromptCacheModel("breakpoints", ttl_s=1800.0)
TOOLS = [{"name": name, "description": "Looks. " * 40, "input_schema": {"type": "object"}} for name in "cba"]


def n_marks(body: Any) -> int:
    """In a body that was sent."""
    return msgspec.json.encode(body).count(b'"cache_control"')


def test_prompt_cache_reads_instructions_and_earlier_turns() -> None:
    """State and metrics count reads and writes."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop)
        first = await rig.request(LONG, "one")
        second = await rig.request(LONG, "one", "yes", "two")
        third = await rig.request(LONG, "other")
        assert first.cached_read == 0
        assert first.cache_write_5m == first.input_total
        assert second.cached_read == first.input_total
        assert third.cached_read == first.input_total - 1
        assert max(map(n_marks, rig.sent)) <= 4
        assert rig.state["requests"] == {"up0 written": 1, "up0 read": 2}
        assert rig.state["findings"] == []
        text = await rig.metrics()
        assert 'stayfast_prefix_cache_requests_total{route="m",upstream="up0",result="read"} 2' in text
        n_read = 2 * first.input_total - 1
        assert f'stayfast_prefix_cache_tokens_total{{route="m",upstream="up0",kind="read"}} {n_read}' in text

    run(main)


def test_prompt_cache_off_leaves_requests_unchanged() -> None:
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig())
        assert (await rig.request(LONG, "one", tools=TOOLS)).cached_read == 0
        assert n_marks(rig.sent) == 0
        assert [tool["name"] for tool in rig.sent[0]["tools"]] == ["c", "b", "a"]
        assert b"prefix" not in rig.system.state()

    run(main)


@pytest.mark.parametrize("fields", [
    {"system": [{"type": "text", "text": LONG, "cache_control": MARK}]}, {"cache_control": MARK},
    {"tools": [*TOOLS[:2], TOOLS[2] | {"cache_control": MARK}]}])
def test_prompt_cache_keeps_the_marks_of_a_client(fields: dict[str, Any]) -> None:
    """A mark anywhere, the top level included: nothing is added and nothing is moved."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop)
        await rig.request(**{"system": LONG, **fields}, turns=("hi",))
        assert n_marks(rig.sent) == 1
        assert [tool["name"] for tool in rig.sent[0].get("tools", [])] in ([], ["c", "b", "a"])

    run(main)


def test_prompt_cache_ignores_the_order_of_tools() -> None:
    """They are sorted by name before a mark, a hash or a route is chosen."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop)
        await rig.request(LONG, "one", tools=TOOLS)
        usage = await rig.request(LONG, "two", tools=TOOLS[::-1])
        assert usage.cached_read > usage.input_total * 0.9

    run(main)


@pytest.mark.parametrize(("model", "api"), [
    ("mistral-large", Api.MESSAGES), ("gemini-2.5-pro", Api.CHAT), ("deepseek-chat", Api.CHAT), ("gpt-4.1", Api.CHAT),
    ("claude-sonnet-4-6", Api.CHAT), ("gpt-5.6", Api.MESSAGES)])
def test_prompt_cache_marks_nothing_where_the_field_may_be_unknown(model: str, api: Api) -> None:
    """Unknown models, models with automatic caches, and models behind the protocol of another provider."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, model=model)
        await rig.request(LONG, "one", api=api)
        assert b"ephemeral" not in msgspec.json.encode(rig.sent)
        assert b"explicit" not in msgspec.json.encode(rig.sent)

    run(main)


def test_prompt_cache_openai_request_has_breakpoint_and_key() -> None:
    """A breakpoint after the instructions; another question reads them."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, model="gpt-5.6", cache=POINTS)
        await rig.request(LONG, "one", api=Api.CHAT)
        usage = await rig.request(LONG, "two", api=Api.CHAT)
        assert usage.cached_read > usage.input_total * 0.9
        assert rig.sent[0]["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
        assert rig.sent[0]["prompt_cache_key"] == rig.sent[1]["prompt_cache_key"]

    run(main)


def test_prompt_cache_older_openai_model_gets_a_key_only() -> None:
    """It would refuse a breakpoint."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, model="gpt-4.1", cache=PromptCacheModel("automatic"))
        await rig.request(LONG, "one", api=Api.CHAT)
        assert (await rig.request(LONG, "two", api=Api.CHAT)).cached_read > 1024
        assert isinstance(rig.sent[0]["messages"][0]["content"], str)
        assert len(rig.sent[0]["prompt_cache_key"]) == 32

    run(main)


def test_prompt_cache_first_request_writes_and_the_others_wait_for_it() -> None:
    """Of ten at once one writes; the others wait for its first token."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop)
        usages = await asyncio.gather(*[rig.request(LONG, f"question {n}") for n in range(10)])
        assert sorted(usage.cached_read > 0 for usage in usages) == [False] + [True] * 9
        assert loop.now() < 2.2
        assert 'stayfast_prefix_waits_total{route="m"} 9' in await rig.metrics()

    run(main)


def test_prompt_cache_wait_for_the_first_request_is_bounded() -> None:
    """After leader_wait_s the others go; with 0 none waits."""
    async def main(loop: SimLoop, wait_s: float, took_s: float) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", leader_wait_s=wait_s), ttft=Mixture(5.0))
        usages = await asyncio.gather(rig.request(LONG, "one"), rig.request(LONG, "two"))
        assert [usage.cached_read for usage in usages] == [0, 0]
        assert loop.now() == pytest.approx(took_s, abs=0.1)

    run(lambda loop: main(loop, 2.0, 7.0))
    run(lambda loop: main(loop, 0.0, 5.0))


def test_prompt_cache_failed_first_request_is_replaced() -> None:
    """One of those that wait goes next, and the others wait for it."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, faults=(FaultRule(FaultKind.STATUS, status=400, max_count=1),))
        came = await asyncio.gather(*[rig.request(LONG, f"question {n}") for n in range(4)], return_exceptions=True)
        assert [isinstance(one, StayfastError) for one in came] == [True, False, False, False]
        assert sorted(one.cached_read > 0 for one in came if not isinstance(one, BaseException)) == [False, True, True]

    run(main)


def test_prompt_cache_client_that_leaves_passes_the_lead_on() -> None:
    """A client that leaves while it waits changes nothing."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop)
        tasks = [asyncio.create_task(rig.request(LONG, f"question {n}")) for n in range(4)]
        await asyncio.sleep(0.3)
        tasks[0].cancel()
        tasks[2].cancel()
        came = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in came] == [True, False, True, False]
        assert [member.n_in_flight for member in rig.system.registry] == [0]
        assert loop.now() < 2.5

    run(main)


def test_prompt_cache_volatile_instructions_are_reported_once() -> None:
    """A time at the head of the instructions: in state and metric with its price, without any text of the prompt."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop)
        for n in range(60):
            await rig.request([{"type": "text", "text": f"It is 10:{n:02}, dear secret friend. {LONG}"}], "hi", tools=TOOLS)
            await asyncio.sleep(9)
            told = [found["detail"].endswith(" a day") for found in rig.state["findings"]]
            assert told in ([], [False], [True])
            assert n > 30 or told != [True]  # a sum of some seconds would be a guess
        (found,) = rig.state["findings"]
        assert found["what"] == "moves"
        assert found["detail"].startswith("a time at byte 33 of system[0] makes ")
        assert found["detail"].endswith(" a day")
        assert "secret" not in str(rig.state)
        assert 'stayfast_prefix_moving_tokens{route="m",upstream="up0"}' in await rig.metrics()
        assert n_marks(rig.sent[-1]) == 0  # the tools alone are too short, and all else is never read

    run(main)


def test_prompt_cache_moves_volatile_instructions_to_the_end() -> None:
    """With move_volatile, the static part is read in spite of them."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", move_volatile=True))
        usage = None
        for n in range(30):
            now = f"Today is 2026-11-{n % 30 + 1:02}T10:{n:02}."
            blocks = [{"type": "text", "text": now}, {"type": "text", "text": LONG}]
            usage = await rig.request(blocks, "hi")
            await asyncio.sleep(4)
        assert usage is not None
        assert usage.cached_read > usage.input_total * 0.9

    run(main)


def test_prompt_cache_hedge_has_the_marks_of_the_first_attempt() -> None:
    """It does not count as another request with the prompt."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, hedge=HedgeConfig("race", budget=1.0, race_after_s=0.1))
        await rig.request(LONG, "one")
        assert len(rig.sent) > 1
        assert all(body == rig.sent[0] for body in rig.sent)
        assert planner_of(rig).n_seen == 1

    run(main)


def test_prompt_cache_route_with_several_upstreams_has_affinity() -> None:
    """The cache of one provider is of no use at another one."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, n=3)
        for n in range(60):  # until each is known to be as quick as the others
            await rig.request(LONG, f"question {n}")
        turns: tuple[str, ...] = ()
        for n in range(4):
            turns += (f"turn {n} " * 500,)
            await rig.request(LONG, turns=turns)
            turns += (f"answer {n} " * 500,)
        assert len(set(rig.called_upstreams[60:])) == 1

    run(main)


@pytest.mark.parametrize("fields", [{"tools": [1]}, {"system": [None]}, {"messages": [5]}, {"messages": {}},
                                    {"messages": LONG}])
def test_prompt_cache_invalid_bodies_are_sent_unchanged(fields: dict[str, Any]) -> None:
    """The upstream decides on them."""
    async def main(loop: SimLoop) -> None:
        body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": LONG}], **fields})
        request = Request(Api.MESSAGES, "m", False, body)
        laid, layout = PromptCachePlanner("m", AUTO, loop, RecordingSink()).plan_prompt(request)
        assert laid is request
        if layout is not None:
            assert layout.new_marker("up", "claude-sonnet-4-6", None).write(body, Api.MESSAGES) is body

    run(main)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["user", "system", "assistant", "text", LONG]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "name", "function", "defer_loading"]), inner, max_size=4),
    max_leaves=20)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["tools", "messages", "system", "input", "instructions", "store"]), JSON),
       st.sampled_from([(Api.MESSAGES, "claude-opus-5"), (Api.CHAT, "gpt-5.6"), (Api.RESPONSES, "gpt-5.6")]))
def test_prompt_cache_any_json_body_gives_json_with_few_marks(body: dict[str, Any], asked: tuple[Api, str]) -> None:
    """Never more marks than the model accepts."""
    async def main(loop: SimLoop) -> None:
        of, (api, model) = PromptCachePlanner("m", PrefixConfig("auto", move_volatile=True), loop, RecordingSink()), asked
        data = msgspec.json.encode({"metadata": {"long": LONG}, **body})
        for _ in range(2):
            request, layout = of.plan_prompt(Request(api, "m", False, data))
            if layout is not None:
                marker = layout.new_marker("up", model, None)
                written = marker.write(request.body, api)
                marker.on_end(None)
                msgspec.json.decode(written)
                assert written.count(b'"ephemeral"') <= 4
                assert written.count(b'"explicit"') <= 3

    run(main)


def planner_of(rig: PrefixRig) -> PromptCachePlanner:
    """The planner of the route."""
    found = rig.system.gateway.router.routes["m"].policy.prefix
    assert found is not None
    return found


@pytest.mark.parametrize(("budget", "is_read"), [(0, False), (100_000, True)])
def test_prompt_cache_refresh_keeps_hot_prompts_cached(budget: int, is_read: bool) -> None:
    """The next request after twenty minutes reads the prompt; without a budget it does not."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", refresh_tokens_per_hour=budget))
        for n in range(3):
            await rig.request(LONG, f"question {n}")
        warmer = rig.system.refresher
        assert (warmer is not None) is is_read
        task = asyncio.create_task(warmer.run()) if warmer is not None else None
        await asyncio.sleep(1200)
        usage = await rig.request(LONG, "still there?")
        assert (usage.cached_read > 2000) is is_read
        if task is not None:
            task.cancel()
            assert rig.state["requests"]["up0 refreshed"] == 4
            opening = rig.sent[-2]
            assert opening["max_tokens"] == 0
            assert n_marks(opening) == 1
            assert opening["messages"] == [{"role": "user", "content": "."}]

    run(main)


def test_prompt_cache_refresh_of_many_prompts_is_in_time() -> None:
    """A hundred and twenty prompts expire within a minute: none is written anew."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", refresh_tokens_per_hour=100_000_000))
        assert rig.system.refresher is not None
        systems = [f"You are number {n}. {LONG}" for n in range(120)]
        for turn in range(3):
            await asyncio.gather(*[rig.request(system, f"question {turn}") for system in systems])
        task = asyncio.create_task(rig.system.refresher.run())
        await asyncio.sleep(1500)
        task.cancel()
        n_warmed = rig.state["requests"]["up0 refreshed"]
        assert n_warmed >= 5 * 120
        assert "up0 refresh_failed" not in rig.state["requests"]

    run(main)


def test_prompt_cache_failed_refresh_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed one does not count as refreshed."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", refresh_tokens_per_hour=100_000))
        for n in range(3):
            await rig.request(LONG, f"question {n}")
        upstream = next(iter(rig.system.registry)).upstream
        opened, failing = upstream.open, [True]

        async def open_once(call: Call) -> AnswerStream:
            if failing:
                failing.pop()
                raise UpstreamFailed("up0", Fault.STATUS, "busy", upstream_status=529)
            return await opened(call)

        monkeypatch.setattr(upstream, "open", open_once)
        assert rig.system.refresher is not None
        task = asyncio.create_task(rig.system.refresher.run())
        await asyncio.sleep(320)
        task.cancel()
        requests = rig.state["requests"]
        assert (requests["up0 refresh_failed"], requests["up0 refreshed"]) == (1, 1)
        assert (await rig.request(LONG, "still there?")).cached_read > 2000

    run(main)


def test_prompt_cache_refresh_ends_without_requests() -> None:
    """After an hour of refreshes, a new write costs less."""
    async def main(loop: SimLoop) -> None:
        rig = PrefixRig(loop, PrefixConfig("auto", refresh_tokens_per_hour=100_000))
        for n in range(3):
            await rig.request(LONG, f"question {n}")
        assert rig.system.refresher is not None
        task = asyncio.create_task(rig.system.refresher.run())
        await asyncio.sleep(20_000)
        task.cancel()
        assert rig.state["requests"]["up0 refreshed"] == 11

    run(main)
