"""Stage budgets: what a stage may use, what it must leave, and who is named when it takes more."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Api, Stage
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.stores.remote_store import SharedConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from stayfast.wire.errors import encode_error
from tests.flow.cache_rig import HELLO, CacheRig
from tests.flow.dialects import DIALECTS, ask
from tests.flow.rig import Rig, chat, read
from tests.flow.stage_rig import SlowStage, replace_stage
from tests.unit.stores.shared_rig import Rig as SharedRig

EXACT = CacheConfig("exact")


@pytest.mark.parametrize("api", DIALECTS)
@pytest.mark.parametrize("stage", [Stage.ADMIT, Stage.CACHE])
def test_stage_budget_used_up_is_a_504(stage: Stage, api: Api) -> None:
    """In admit and cache; the error names the stage and the limit, in the dialect of the client."""

    async def main(loop: SimLoop) -> None:
        for request in (ask(api, stream=True), ask(api, stream=False)):
            began_at = loop.now()
            rig = Rig(loop, [[SendText("x")]], timeouts=Timeouts(total_s=5), cache=EXACT,
                      budget=BudgetConfig(admit="0.25", cache="0.25", context="0.25"))
            slow = SlowStage(60)
            n_before = int(stage is Stage.CACHE)  # stages that leave their parts unused
            with pytest.raises(DeadlineExceeded) as late:
                await replace_stage(rig.gateway, stage, slow).serve(request, Arrival("req_1", loop.now()))
            part_s = 0.25 * (n_before + 1)
            assert loop.now() - began_at == part_s
            assert slow.is_cancelled
            status, _, body = encode_error(late.value, request.api, "req_1")
            assert status == 504
            assert f"stage {stage.value} used up its part of the deadline, {part_s:g} s".encode() in body
            (done,) = rig.sink.facts_of(RequestDone)
            assert (done.status, done.error, done.over_stage) == (504, "budget_s_exceeded", stage)
            assert not rig.sink.facts_of(AttemptDone)

    run(main)


def test_stage_without_budget_ends_at_the_deadline() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("x")]], timeouts=Timeouts(total_s=2), cache=EXACT)
        with pytest.raises(DeadlineExceeded) as late:
            await replace_stage(rig.gateway, Stage.CACHE, SlowStage(60)).serve(chat(), Arrival("req_1", loop.now()))
        assert (late.value.stage, late.value.limit, loop.now()) == (Stage.CACHE, "total_s", 2.0)

    run(main)


def test_stage_without_budget_leaves_the_parts_of_later_stages() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("x")]], timeouts=Timeouts(total_s=5), cache=EXACT,
                  budget=BudgetConfig(model="60%", post="1"))
        with pytest.raises(DeadlineExceeded) as late:
            await replace_stage(rig.gateway, Stage.CACHE, SlowStage(60)).serve(chat(), Arrival("req_1", loop.now()))
        assert (late.value.limit, loop.now()) == ("budget_s", 1.0)

    run(main)


def test_stage_budget_used_up_releases_the_place() -> None:
    """A place taken in admit is free again after the cache stage ran out of time."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("x")]], timeouts=Timeouts(total_s=2), cache=EXACT)
        place = SlowStage(0)
        gateway = replace_stage(replace(rig.gateway, admit=place), Stage.CACHE, SlowStage(60))
        with pytest.raises(DeadlineExceeded):
            await gateway.serve(chat(), Arrival("req_1", loop.now()))
        assert place.n_given_back == 1

    run(main)


def test_stage_budget_client_that_leaves_is_a_499() -> None:
    """A cancellation from outside, in a stage with a budget, is no overrun."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("x")]], budget=BudgetConfig(cache="10"), template="sorry", cache=EXACT)
        task = loop.create_task(replace_stage(rig.gateway, Stage.CACHE, SlowStage(60)).serve(chat(), Arrival("req_1", 0.0)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.over_stage, done.degraded) == (499, None, None)

    run(main)


def test_stage_budget_unused_time_goes_to_the_model() -> None:
    """0.5 s of admit and 1 s of model allow a first token at 1.4 s."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1.4), SendText("x")]], timeouts=Timeouts(total_s=3), budget=BudgetConfig(admit="0.5",
                                                                                                        model="1"))
        await read(await rig.serve())
        (done,) = rig.sink.facts_of(RequestDone)
        assert done.over_stage is None
        assert {stage.stage: stage.allowance_s for stage in done.stages}[Stage.CALL] == 1.5

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_model_budget_bounds_all_attempts_together(stream: bool) -> None:
    """The second attempt has the time that the first one left."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(0.6), Fail()], [Wait(0.6), SendText("late")]], timeouts=Timeouts(total_s=9),
                  budget=BudgetConfig(model="1"), retry=RetryConfig(max_attempts=3, backoff_base_s=0.001,
                                                                    backoff_cap_s=0.001))
        with pytest.raises(DeadlineExceeded) as late:
            await rig.serve(chat(stream=stream))
        assert (late.value.stage, late.value.limit, loop.now()) == (Stage.CALL, "budget_s", 1.0)
        assert len(rig.sink.facts_of(AttemptDone)) == 2
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_relay_budget_bounds_a_running_stream() -> None:
    """From the first token on; without one, the deadline less the reserve for `post`."""

    async def main(loop: SimLoop) -> None:
        steps = [step for _ in range(100) for step in (Wait(0.5), SendText("x"))]
        rig = Rig(loop, [steps], timeouts=Timeouts(total_s=10), budget=BudgetConfig(relay="2"))
        with pytest.raises(DeadlineExceeded) as late:
            await read(await rig.serve())
        assert (late.value.stage, late.value.limit, loop.now()) == (Stage.RELAY, "budget_s", 2.5)
        rig = Rig(loop, [steps], timeouts=Timeouts(total_s=10), budget=BudgetConfig(post="3"))
        with pytest.raises(DeadlineExceeded):
            await read(await rig.serve())
        assert loop.now() == 2.5 + 7
        assert rig.sink.facts_of(RequestDone)[0].over_stage is Stage.RELAY

    run(main)


def test_retry_that_cannot_finish_in_time_is_not_made() -> None:
    """The upstream has never answered in less than 2 s, and 1 s is left."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(2), SendText("x")], [Wait(1), Fail()], [SendText("never asked")]],
                  retry=RetryConfig(max_attempts=3, backoff_base_s=0.001, backoff_cap_s=0.001))
        await read(await rig.serve())
        began_at = loop.now()
        with pytest.raises(UpstreamFailed):
            await rig.serve(total_s=2.0)
        assert loop.now() - began_at == 1.0
        assert rig.scripted[0].n_calls == 2

    run(main)


def test_server_timing_has_spent_time_and_allowance_of_each_stage() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(0.25), SendText("x")]], timeouts=Timeouts(total_s=4),
                  budget=BudgetConfig(admit="0.5", model="50%"))
        reply = await rig.serve()
        assert reply.server_timing() == (
            'admit;dur=0.00;desc="of 500", cache;dur=0.00;desc="of 2000", context;dur=0.00;desc="of 2000", '
            'route;dur=0.00;desc="of 2000", call;dur=250.00;desc="of 2500", relay;dur=0.00;desc="of 3750"')
        await read(reply)
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.total_s, done.degraded) == (4.0, None)

    run(main)


def test_deadline_is_the_smallest_of_header_body_and_sdk_timeout() -> None:
    """The parts of the stages shrink with it. The time-out of an SDK counts for whole answers only."""

    async def main(loop: SimLoop) -> None:
        for total_s, silence_s, request, expected_s in (
            (1.0, None, chat(), 1.0),
            (3.0, None, chat(stayfast={"deadline_ms": 2000}), 2.0),
            (None, 2.0, chat(stream=False), 3.0),  # its SDK's own time-out comes first
            (None, 3.5, chat(stream=False), 4.0),
            (None, 4.0, chat(stream=False), 4.0),
            (None, 2.0, chat(), 4.0),  # its silence ends with the first comment
        ):
            rig = Rig(loop, [[Wait(30), SendText("x")]], timeouts=Timeouts(total_s=4), budget=BudgetConfig(admit="1",
                                                                                                           model="1"))
            arrival = Arrival("r", loop.now(), total_s=total_s, silence_s=silence_s)
            with pytest.raises(DeadlineExceeded):
                await rig.gateway.serve(request, arrival)
            (done,) = rig.sink.facts_of(RequestDone)
            assert done.total_s == expected_s
            assert done.ended_at - done.accepted_at == pytest.approx(expected_s / 2)  # admit's and model's quarters

    run(main)


@pytest.mark.parametrize("substitute", [{"template": "Later, please."}, {"n_fallback": 1}, {"partial": True}])
def test_sdk_timeout_is_preempted_where_the_route_has_a_substitute(substitute: dict[str, Any]) -> None:
    """At 95 % of it; the fallback has its reserve of that."""

    async def main(loop: SimLoop) -> None:
        slow: Script = [Wait(0.5), SendText("Half"), Wait(30), SendText("x")]
        second: Script = [Wait(0.1), SendText("ok")] if "n_fallback" in substitute else slow
        rig = Rig(loop, [slow], [second], timeouts=Timeouts(total_s=60), **substitute)
        reply = await rig.gateway.serve(chat(stream=False), Arrival("r", loop.now(), silence_s=2.0))
        await read(reply)
        assert loop.now() == pytest.approx(1.9 * 0.7 + 0.1 if substitute.get("n_fallback") else 1.9)
        assert (reply.degraded is not None, rig.n_open) == (True, 0)

    run(main)


@pytest.mark.parametrize(("silence_s", "ends_after_s"), [(600.0, 595.0), (610.0, 600.0)])
def test_template_comes_before_the_usual_sdk_timeout(silence_s: float, ends_after_s: float) -> None:
    """The usual time-out of SDKs is 600 s, as long as the deadline of the route."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1000), SendText("x")]], timeouts=Timeouts(total_s=600, first_token_s=600), template="Later.")
        await read(await rig.gateway.serve(chat(stream=False), Arrival("r", loop.now(), silence_s=silence_s)))
        assert loop.now() == pytest.approx(ends_after_s)

    run(main)


def test_sdk_timeout_without_substitute_is_left_to_the_client() -> None:
    """Its hang-up closes the upstream; a client that stays gets the error a second later."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(30), SendText("x")]], timeouts=Timeouts(total_s=60))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await rig.gateway.serve(chat(stream=False), Arrival("r", loop.now(), silence_s=0.7))
        assert (loop.now(), rig.n_open, rig.n_in_flight) == (0.7, 0, 0)
        began_at = loop.now()
        with pytest.raises(DeadlineExceeded):
            await rig.gateway.serve(chat(stream=False), Arrival("r", began_at, silence_s=0.7))
        assert loop.now() - began_at == pytest.approx(1.7)
        assert (rig.n_open, rig.n_in_flight) == (0, 0)

    run(main)


def test_retry_after_the_sdk_timeout_is_not_made() -> None:
    """After a failure at 0.6 s of 0.7 s; the upstream has never answered in less than 0.2 s."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(0.6), Fail()], [SendText("x")]], timeouts=Timeouts(total_s=60),
                  retry=RetryConfig(backoff_base_s=0.001))
        rig.registry["up0"].fastest_ttft.seconds = 0.2
        with pytest.raises(UpstreamFailed):
            await rig.gateway.serve(chat(stream=False), Arrival("r", loop.now(), silence_s=0.7))
        assert (loop.now(), rig.scripted[0].n_calls) == (0.6, 1)

    run(main)


def test_cache_budget_used_up_is_a_miss() -> None:
    """The request goes on with its call, which has a budget of its own."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, timeouts=Timeouts(total_s=4), budget=BudgetConfig(cache="0.5", model="1"))
        shared = SharedRig(loop, SharedConfig(local_bytes=0, timeout_s=10))
        shared.door.takes_s = 5
        rig.route_cache.store = shared.store
        assert await rig.text() == "Hello"
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.over_stage, done.cache) == (200, Stage.CACHE, "miss")
        assert done.ttft_s == pytest.approx(0.5 + 0.25)

    run(main)
