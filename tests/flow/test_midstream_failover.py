"""Answers that halt in their middle, in virtual time: judged, ended or continued elsewhere, and nothing left of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import log
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone, Rescued
from stayfast.core.types import Outcome
from stayfast.pipeline.plan import OnStall
from stayfast.policy.admission.price import Price
from stayfast.policy.resilience.breaker import Breaker, BreakerConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, SendText, SimLoop, Wait, run
from stayfast.upstreams.scripted import SendBytes, Step
from tests.flow.midstream_rig import GAP_S, HALT, TEXT, TTFT_S, ContinuingUpstream, failover_rig
from tests.flow.rig import MODEL, Rig, chat, read, text_of

WORDS = [word for word in TEXT.replace(" ", " \0").split("\0") if word]


async def check_released(rig: Rig) -> None:
    """No slot, no stream, no Task but ours."""
    await asyncio.sleep(0)
    assert (rig.n_in_flight, rig.n_open) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def events_of(body: bytes) -> list[Any]:
    """The chunks of a chat stream."""
    return [msgspec.json.decode(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]


def test_midstream_failover_continues_a_stalled_answer() -> None:
    """Ten words, then a second without any: another upstream continues the same answer; usage is of both."""
    async def main(loop: SimLoop) -> None:
        first, second = ContinuingUpstream("up0", loop, {10: HALT}), ContinuingUpstream("up1", loop)
        rig = failover_rig(loop, first, second)
        body = await read(await rig.serve(chat(stream_options={"include_usage": True})))
        assert text_of(body) == TEXT
        assert body.endswith(b"data: [DONE]\n\n")
        assert len({event["id"] for event in events_of(body)}) == 1
        assert second.prefixes == ["".join(WORDS[:10]).rstrip()]
        stalled, went_on = rig.sink.facts_of(AttemptDone)
        assert (stalled.upstream, stalled.outcome, stalled.fault) == ("up0", Outcome.DROPPED, "timeout")
        assert stalled.ended_at == pytest.approx(TTFT_S + 9 * GAP_S + 1.0 + TTFT_S, abs=0.05)  # a second of silence
        assert (went_on.upstream, went_on.outcome, went_on.n_attempt) == ("up1", Outcome.SUCCESS, 2)
        assert stalled.usage is not None
        assert went_on.usage is not None
        assert stalled.usage.output == 10
        assert events_of(body)[-1]["usage"]["completion_tokens"] == 10 + went_on.usage.output
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.upstream, done.degraded, done.n_attempts) == (200, "up1", None, 2)
        assert done.gap_max_s == pytest.approx(1.0 + TTFT_S, abs=0.05)
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == ["rescued"]
        assert any(note.startswith("rescued from up0 to up1 after 10 tokens: no token for 1 s") for note in done.notes)
        flow = rig.registry["up0"].flow
        assert flow is not None
        assert flow.load_factor(loop.now()) > 5.0  # new requests go elsewhere
        await check_released(rig)

    run(main)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, len(WORDS) - 1), st.integers(1, len(WORDS) - 1), st.booleans())
def test_midstream_failover_text_is_whole_wherever_it_stops(n_words: int, n_more: int, breaks: bool) -> None:
    """A stall or a reset after any word, once or twice: the same text."""
    async def main(loop: SimLoop) -> None:
        halt: Sequence[Step] = [Fail(Fault.RESET)] if breaks else HALT
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {n_words: halt}), ContinuingUpstream("up1", loop,
                                                                                                      {n_more: halt}))
        for _ in range(2):
            assert text_of(await read(await rig.serve())) == TEXT
        await check_released(rig)

    run(main)


def test_midstream_failover_both_attempts_have_their_cost() -> None:
    """Also if the client leaves during the continuation, so that no usage is reported: as far as it came."""
    async def main(loop: SimLoop) -> None:
        for leaves in (False, True):
            rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}), ContinuingUpstream("up1", loop,
                                                                                                     {20: HALT}))
            routes = rig.gateway.router.routes
            assert isinstance(routes, dict)
            routes[MODEL] = replace(routes[MODEL], targets=tuple(
                replace(target, prices={MODEL: Price(1.0, 2.0)}) for target in routes[MODEL].targets))
            reply = await rig.serve()
            while len(rig.sink.facts_of(AttemptDone)) < 1 or not leaves:
                if await reply.next() is None:
                    break
            reply.close()
            costs = [done.cost_usd or 0.0 for done in rig.sink.facts_of(AttemptDone)]
            assert len(costs) >= 2
            assert all(cost > 0 for cost in costs)
            assert rig.sink.facts_of(RequestDone)[0].cost_usd == pytest.approx(sum(costs))
            await check_released(rig)

    run(main)


def test_midstream_failover_continues_after_a_reset() -> None:
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Fail(Fault.RESET)]}), ContinuingUpstream("up1", loop))
        assert text_of(await read(await rig.serve())) == TEXT
        assert rig.sink.facts_of(AttemptDone)[0].fault == "reset"
        await check_released(rig)

    run(main)


@pytest.mark.parametrize("on_stall", ["wait", "end"])
def test_midstream_failover_off_breaks_off_after_a_reset(on_stall: OnStall) -> None:
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Fail(Fault.RESET)]}), ContinuingUpstream("up1", loop),
                           on_stall=on_stall)
        with pytest.raises(UpstreamFailed):
            await read(await rig.serve())
        assert len(rig.sink.facts_of(AttemptDone)) == 1
        await check_released(rig)

    run(main)


def test_midstream_failover_end_mode_ends_a_stalled_answer() -> None:
    """In its protocol, with the reason of a met length limit, and marked."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}), ContinuingUpstream("up1", loop),
                           on_stall="end")
        body = await read(await rig.serve())
        assert text_of(body) == "".join(WORDS[:10])
        assert events_of(body)[-1]["choices"][0]["finish_reason"] == "length"
        assert loop.now() == pytest.approx(TTFT_S + 9 * GAP_S + 1.0, abs=0.05)
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.degraded) == (200, "partial")
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "timeout")
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == ["ended"]
        await check_released(rig)

    run(main)


def test_midstream_failover_wait_mode_ends_at_the_idle_timeout() -> None:
    """No stall is detected, and the upstream has no flow."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}), on_stall="wait", timeouts=Timeouts(idle_s=5.0),
                     knows_gaps=False)
        with pytest.raises(DeadlineExceeded):
            await read(await rig.serve())
        assert loop.now() == pytest.approx(TTFT_S + 9 * GAP_S + 5.0, abs=0.05)
        assert rig.registry["up0"].flow is None
        await check_released(rig)

    run(main)


def test_midstream_failover_usual_pause_is_no_stall() -> None:
    """One gap in a hundred takes a second and a half there."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Wait(1.5)]}), ContinuingUpstream("up1", loop))
        flow = rig.registry["up0"].flow
        assert flow is not None
        flow.add_gaps([1.5] * 3, loop.now())
        assert text_of(await read(await rig.serve())) == TEXT
        assert len(rig.sink.facts_of(AttemptDone)) == 1
        await check_released(rig)

    run(main)


def test_midstream_failover_other_models_of_the_target_do_not_delay_it() -> None:
    """The second upstream also serves a reasoning model, with 20 s to its first token."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}), ContinuingUpstream("up1", loop))
        baselines, request = rig.registry["up1"].baselines, chat()
        for model, seconds in ((MODEL, TTFT_S), ("reasoning", 20.0)):
            baseline = baselines.baseline_for(model, len(request.body) // 4, is_whole=False)
            baselines.learn(baseline, 100 * log(seconds), 100)
        assert text_of(await read(await rig.serve(request))) == TEXT
        assert loop.now() < TTFT_S + len(WORDS) * GAP_S + 2.0

    run(main)


def test_midstream_failover_needs_known_gaps() -> None:
    """The first answers of a gateway that has just started."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Wait(20.0)]}), ContinuingUpstream("up1", loop),
                           knows_gaps=False)
        assert text_of(await read(await rig.serve())) == TEXT
        assert len(rig.sink.facts_of(AttemptDone)) == 1

    run(main)


def test_midstream_failover_pings_are_no_tokens() -> None:
    """Comments keep the connection alive and do not end a stall."""
    async def main(loop: SimLoop) -> None:
        pings = [step for _ in range(100) for step in (Wait(0.3), SendBytes(b": ping\n\n"))]
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: pings}), ContinuingUpstream("up1", loop))
        assert text_of(await read(await rig.serve())) == TEXT
        assert rig.sink.facts_of(AttemptDone)[0].upstream == "up0"
        assert rig.sink.facts_of(AttemptDone)[0].outcome is Outcome.DROPPED

    run(main)


def test_midstream_failover_refused_by_all_ends_the_answer() -> None:
    """It ends as partial."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}, fails=Fail(status=500)),
                     ContinuingUpstream("up1", loop, fails=Fail(status=500)))
        body = await read(await rig.serve())
        assert text_of(body) == "".join(WORDS[:10])
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.degraded, done.n_attempts) == ("partial", 3)
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == ["failed"]
        await check_released(rig)

    run(main)


def test_midstream_failover_long_answer_is_not_continued() -> None:
    """More than four megabytes are not kept for a continuation: the answer is waited for."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [*[SendText("x" * 1_000_000)] * 5, Wait(5.0)]}),
                           ContinuingUpstream("up1", loop))
        reply = await rig.serve()
        assert len(text_of(await read(reply))) == len(TEXT) + 5_000_000
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == ["refused_length"]
        await check_released(rig)

    run(main)


@pytest.mark.parametrize(("fields", "why"), [
    ({"store": True}, "request"), ({"response_format": {"type": "json_object"}}, "format"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "tools")])
def test_midstream_failover_not_possible_waits_for_the_answer(fields: dict[str, Any], why: str) -> None:
    """A stateful request, a required format, a forced tool call."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Wait(5.0)]}), ContinuingUpstream("up1", loop))
        assert text_of(await read(await rig.serve(chat(**fields)))) == TEXT
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == [f"refused_{why}"]
        assert any("not rescued from up0" in note for note in rig.sink.facts_of(RequestDone)[0].notes)
        await check_released(rig)

    run(main)


def test_midstream_failover_happens_twice_at_most() -> None:
    """A third stall is waited for; the text is whole."""
    async def main(loop: SimLoop) -> None:
        halts: dict[int, Sequence[Step]] = {5: HALT, 10: HALT, 15: [Wait(3.0)]}
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, halts), ContinuingUpstream("up1", loop, halts))
        assert text_of(await read(await rig.serve())) == TEXT
        assert [fact.result for fact in rig.sink.facts_of(Rescued)] == ["rescued", "rescued", "refused_tries"]
        assert [done.upstream for done in rig.sink.facts_of(AttemptDone)] == ["up0", "up1", "up0"]
        await check_released(rig)

    run(main)


def test_midstream_failover_without_target_or_time_waits() -> None:
    """No upstream can continue, or the deadline is near."""
    async def main(loop: SimLoop) -> None:
        for why in ("busy", "deadline"):
            rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Wait(2.0)]}), ContinuingUpstream("up1", loop),
                               timeouts=Timeouts(total_s=6.0))
            routes = rig.gateway.router.routes
            assert isinstance(routes, dict)
            if why == "busy":
                targets = tuple(replace(target, continues=False) for target in routes[MODEL].targets)
                routes[MODEL] = replace(routes[MODEL], targets=targets)
            else:
                routes[MODEL] = replace(routes[MODEL], retry=RetryConfig(min_remaining_s=5.5))
            assert text_of(await read(await rig.serve())) == TEXT
            assert [fact.result for fact in rig.sink.facts_of(Rescued)] == [f"refused_{why}"]
            await check_released(rig)

    run(main)


def test_midstream_failover_is_bounded_by_the_retry_budget() -> None:
    """Ten a minute are the allowance; later answers are waited for."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: [Wait(3.0)]}), ContinuingUpstream("up1", loop))
        for _ in range(14):
            assert text_of(await read(await rig.serve())) == TEXT
            rig.registry["up0"].own_health.breaker = Breaker(BreakerConfig(enabled=False), Random(1))
        results = [fact.result for fact in rig.sink.facts_of(Rescued)]
        assert results.count("rescued") <= 11
        assert "refused_budget" in results
        await check_released(rig)

    run(main)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 3.0))
def test_midstream_failover_client_that_leaves_leaves_nothing(at: float) -> None:
    """At any instant: before the stall, in it, during the call for the rest, after the seam."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}), ContinuingUpstream("up1", loop))

        async def client() -> None:
            reply = await rig.serve()
            try:
                await read(reply)
            finally:
                reply.close()

        task = asyncio.get_running_loop().create_task(client())
        await asyncio.sleep(at)
        task.cancel()
        await asyncio.wait([task])
        await check_released(rig)
        assert len(rig.sink.facts_of(RequestDone)) == 1

    run(main)


@pytest.mark.parametrize("partial", [True, False])
def test_midstream_failover_deadline_holds_during_the_second_call(partial: bool) -> None:
    """It ends the answer as partial where the route permits that, and else breaks it off."""
    async def main(loop: SimLoop) -> None:
        total_s = TTFT_S + 9 * GAP_S + 1.0 + TTFT_S + 0.5
        second = ContinuingUpstream("up1", loop)
        rig = failover_rig(loop, ContinuingUpstream("up0", loop, {10: HALT}), second, timeouts=Timeouts(total_s=total_s),
                           partial=partial)
        second.fails = Wait(50.0)
        reply = await rig.serve()
        if partial:
            assert text_of(await read(reply)) == "".join(WORDS[:10])
        else:
            with pytest.raises(DeadlineExceeded):
                await read(reply)
        assert loop.now() == pytest.approx(total_s, abs=0.01)
        await check_released(rig)

    run(main)


def test_midstream_failover_slow_reader_is_no_stall() -> None:
    """The client takes five seconds for every ten parts."""
    async def main(loop: SimLoop) -> None:
        rig = failover_rig(loop, ContinuingUpstream("up0", loop), ContinuingUpstream("up1", loop))
        reply = await rig.serve()
        parts = []
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
            if len(parts) % 10 == 0:
                await asyncio.sleep(5.0)
        assert text_of(b"".join(parts)) == TEXT
        assert len(rig.sink.facts_of(AttemptDone)) == 1

    run(main)
