"""What a route does instead of failing: a fallback, a template, a partial answer; in every dialect, streamed and whole."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, Rejected, StayfastError, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import Api, Outcome, Stage, Usage
from stayfast.lab.simulated import FaultKind, FaultRule, GapConfig, Mixture, OutputLengths, ProviderConfig, Simulated
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Cut, Fail, Script, SendText, SimLoop, Wait, run
from stayfast.wire.request_body import decode
from tests.flow.dialects import DIALECTS, LENGTH, STOP, TEXT, ask, parse_answer
from tests.flow.rig import MODEL, Rig, chat, read, text_of
from tests.flow.stage_rig import SlowStage, replace_stage

EACH_WAY = [(api, stream) for api in DIALECTS for stream in (True, False)]
EMBEDDINGS = decode(Api.EMBEDDINGS, b'{"model":"m","input":"hello"}')
HANGS: Script = [Wait(600), SendText("never")]
FAILS: Script = [Fail(Fault.RESET)]
HALTS: Script = [Wait(0.1), SendText("Half"), Wait(600), SendText("never")]
QUICK: Script = [Wait(0.2), SendText("from the fallback")]


@pytest.mark.parametrize(("api", "stream"), EACH_WAY)
@pytest.mark.parametrize("script", [HANGS, FAILS, [Cut()], [Fail(Fault.CONNECT)], [Fail(Fault.STATUS, 429)]])
def test_fallback_answers_when_the_route_fails(script: Script, api: Api, stream: bool) -> None:
    """However the first choice fails, the answer comes before the deadline, and is marked as degraded."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [script], [QUICK], n_fallback=1, reserve="1", timeouts=Timeouts(total_s=3))
        reply = await rig.serve(ask(api, stream=stream))
        answer = parse_answer(api, await read(reply), stream=stream)
        assert (answer.text, answer.reason, answer.is_whole) == ("from the fallback", STOP[api], True)
        assert (reply.degraded, reply.upstream) == ("fallback", "up1")
        assert loop.now() == pytest.approx(2.2 if script is HANGS else 0.2)
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.degraded) == (200, "fallback")
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_fallback_replaces_a_whole_answer_that_stalls_half_way() -> None:
    """Nothing has reached the client. A stream has had its first token, and fails at the deadline."""

    async def main(loop: SimLoop) -> None:
        for stream in (False, True):
            began_at = loop.now()
            rig = Rig(loop, [HALTS], [QUICK], n_fallback=1, reserve="1", timeouts=Timeouts(total_s=3))
            reply = await rig.serve(ask(Api.CHAT, stream=stream))
            if stream:
                with pytest.raises(DeadlineExceeded):
                    await read(reply)
                assert loop.now() - began_at == pytest.approx(3.0)
            else:
                assert parse_answer(Api.CHAT, await read(reply), stream=False).text == "from the fallback"
                assert loop.now() - began_at == pytest.approx(2.2)

    run(main)


def test_retry_replaces_a_whole_answer_that_stalls() -> None:
    """`idle_s` ends an attempt at a whole answer, and a retry follows."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HALTS, QUICK], timeouts=Timeouts(total_s=60, idle_s=2),
                  retry=RetryConfig(max_attempts=2, backoff_base_s=0.001, backoff_cap_s=0.001))
        reply = await rig.serve(ask(Api.CHAT, stream=False))
        assert parse_answer(Api.CHAT, await read(reply), stream=False).text == "from the fallback"
        assert loop.now() == pytest.approx(2.3, abs=0.01)
        assert [attempt.fault for attempt in rig.sink.facts_of(AttemptDone)] == ["timeout", None]

    run(main)


def test_fallback_comes_after_retries() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [FAILS, [SendText("mended")]], [QUICK], n_fallback=1, timeouts=Timeouts(total_s=3),
                  retry=RetryConfig(max_attempts=2, backoff_base_s=0.01))
        reply = await rig.serve()
        assert text_of(await read(reply)) == "mended"
        assert reply.degraded is None

    run(main)


def test_fallback_that_hangs_ends_at_the_deadline() -> None:
    """It has the reserve and no more."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HANGS], [HANGS], n_fallback=1, reserve="1", timeouts=Timeouts(total_s=3))
        with pytest.raises(DeadlineExceeded) as late:
            await rig.serve()
        assert (late.value.stage, late.value.limit, loop.now()) == (Stage.CALL, "total_s", 3.0)
        assert [attempt.ended_at for attempt in rig.sink.facts_of(AttemptDone)] == [2.0, 3.0]
        assert rig.sink.facts_of(RequestDone)[0].degraded is None

    run(main)


@pytest.mark.parametrize("status", [400, 422])
def test_fallback_is_not_used_for_a_rejected_request(status: int) -> None:
    """The upstream refuses the request as invalid: the client gets the error at once."""

    async def main(loop: SimLoop) -> None:
        strict = Simulated("strict", ProviderConfig(faults=(FaultRule(status=status),)), loop)
        spare = Simulated("spare", ProviderConfig(), loop)
        rig = Rig(loop, upstreams=[strict, spare], n_fallback=1, template=TEXT)
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert [attempt.upstream for attempt in rig.sink.facts_of(AttemptDone)] == ["strict"]

    run(main)


def test_fallback_is_not_used_for_a_stored_request_that_timed_out() -> None:
    """`store: true`: the first call may have had an effect. A refused connection cannot have had one."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HANGS], [QUICK], n_fallback=1, reserve="1", timeouts=Timeouts(total_s=3))
        with pytest.raises(DeadlineExceeded):
            await rig.serve(chat(store=True))
        assert (rig.scripted[1].n_calls, loop.now()) == (0, 3.0)  # nothing is reserved for a fallback that may not be asked
        rig = Rig(loop, [[Fail(Fault.CONNECT)]], [QUICK], n_fallback=1)
        assert text_of(await read(await rig.serve(chat(store=True)))) == "from the fallback"

    run(main)


def test_fallback_serves_an_api_that_the_route_cannot() -> None:
    async def main(loop: SimLoop) -> None:
        able = Simulated("able", ProviderConfig(preset="instant"), loop)
        rig = Rig(loop, [QUICK], upstreams=[able], n_fallback=1)
        reply = await rig.gateway.serve(EMBEDDINGS, Arrival("r", loop.now()))
        assert b"embedding" in await read(reply)
        assert reply.degraded == "fallback"
        with pytest.raises(Rejected):
            await Rig(loop, [QUICK], [QUICK], n_fallback=1).gateway.serve(EMBEDDINGS, Arrival("r", loop.now()))

    run(main)


@pytest.mark.parametrize(("api", "stream"), EACH_WAY)
@pytest.mark.parametrize("stage", [Stage.ADMIT, Stage.CACHE, Stage.CALL])
def test_template_answers_when_the_time_of_a_stage_is_up(stage: Stage, api: Api, stream: bool) -> None:
    """In any stage before the first token: a valid answer without tokens, marked, with nothing held."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HANGS], template=TEXT, timeouts=Timeouts(total_s=3), cache=CacheConfig("exact"),
                  budget=BudgetConfig(admit="0.5", cache="0.5", model="1"))
        gateway = rig.gateway if stage is Stage.CALL else replace_stage(rig.gateway, stage, SlowStage(60))
        reply = await gateway.serve(ask(api, stream=stream), Arrival("req_1", loop.now()))
        answer = parse_answer(api, await read(reply), stream=stream)
        assert (answer.text, answer.reason, answer.is_whole) == (TEXT, STOP[api], True)
        assert not answer.n_output
        assert loop.now() == {Stage.ADMIT: 0.5, Stage.CACHE: 1.0, Stage.CALL: 2.0}[stage]
        assert (reply.degraded, reply.upstream) == ("template", "(template)")
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.degraded, done.over_stage, done.ttft_s) == (200, "template", stage, None)
        assert (done.usage, done.finish_reason, done.error) == (Usage(), "stop", None)
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_template_answers_at_the_deadline() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HANGS], template=TEXT, timeouts=Timeouts(total_s=3))
        assert text_of(await read(await rig.serve())) == TEXT
        assert loop.now() == 3.0

    run(main)


def test_template_answers_when_the_fallback_fails() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [FAILS], [HANGS], n_fallback=1, reserve="1", template=TEXT, timeouts=Timeouts(total_s=3))
        reply = await rig.serve()
        assert text_of(await read(reply)) == TEXT
        assert (reply.degraded, reply.n_attempts) == ("template", 2)

    run(main)


def test_template_answers_completions_but_no_embeddings() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [FAILS], template=TEXT)
        assert TEXT.encode() in await read(await rig.serve(ask(Api.COMPLETIONS, stream=False)))
        assert TEXT.encode() in await read(await rig.serve(ask(Api.COMPLETIONS, stream=True)))
        broken = Simulated("broken", ProviderConfig(preset="instant"), loop)
        broken.provider.add_fault(FaultRule())
        rig = Rig(loop, upstreams=[broken], template=TEXT)
        with pytest.raises(UpstreamFailed):
            await rig.gateway.serve(EMBEDDINGS, Arrival("r", loop.now()))

    run(main)


def halting(loop: SimLoop, n_chunks: int) -> Simulated:
    """A provider that speaks every API natively and stops in the middle of its answers."""
    rule = FaultRule(FaultKind.STALL, seconds=600, after_chunks=n_chunks)
    return Simulated("halting", ProviderConfig(ttft=Mixture(0.5), gaps=GapConfig(0.1, 0.0), output=OutputLengths(50, 0.0),
                                               faults=(rule,)), loop)


@pytest.mark.parametrize("limit", ["total_s", "idle_s", "budget_s"])
@pytest.mark.parametrize("api", DIALECTS)
def test_partial_stream_ends_in_its_protocol(api: Api, limit: str) -> None:
    """A native stream ends like one of its provider that met its length limit."""

    async def main(loop: SimLoop) -> None:
        provider = halting(loop, 10)
        timeouts = Timeouts(total_s=5, idle_s=2 if limit == "idle_s" else 60)
        rig = Rig(loop, upstreams=[provider], partial=True, timeouts=timeouts,
                  budget=BudgetConfig(relay="3" if limit == "budget_s" else ""))
        reply = await rig.serve(ask(api, stream=True))
        answer = parse_answer(api, await read(reply), stream=True)
        assert (answer.reason, answer.is_whole) == (LENGTH[api], True)
        assert answer.text
        assert loop.now() == pytest.approx({"total_s": 5.0, "idle_s": 3.4, "budget_s": 3.5}[limit])
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.error, done.degraded, done.finish_reason) == (200, None, "partial", LENGTH[api])
        assert done.over_stage is (None if limit == "idle_s" else Stage.RELAY)
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "timeout")
        assert rig.n_in_flight == 0
        assert provider.counts.n_running == 0

    run(main)


@pytest.mark.parametrize(("api", "stream"), EACH_WAY)
def test_partial_answer_of_a_translated_upstream_is_in_the_dialect_of_the_client(api: Api, stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HALTS], partial=True, timeouts=Timeouts(total_s=3))
        reply = await rig.serve(ask(api, stream=stream))
        answer = parse_answer(api, await read(reply), stream=stream)
        reason = "length" if api is Api.CHAT else LENGTH[api]
        assert (answer.text, answer.reason, answer.is_whole) == ("Half", reason, True)
        assert (loop.now(), reply.degraded) == (3.0, "partial")
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.degraded, done.over_stage) == (200, "partial", Stage.RELAY if stream else Stage.CALL)
        assert rig.n_open == rig.n_in_flight == 0
        assert await reply.next() is None

    run(main)


def test_partial_answer_reaches_a_client_that_reads_late() -> None:
    """A client that reads nothing until the deadline finds the end of a partial answer."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), SendText("b"), SendText("c")]], partial=True, timeouts=Timeouts(total_s=5))
        reply = await rig.serve()
        first = await reply.next()
        assert first is not None
        await asyncio.sleep(6)
        body = first.data + await read(reply)
        assert parse_answer(Api.CHAT, body, stream=True).reason == "length"
        assert rig.n_open == rig.n_in_flight == 0

    run(main)


def test_partial_answer_needs_content() -> None:
    """Without any content the request fails, or the template answers."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HANGS], partial=True, timeouts=Timeouts(total_s=3))
        with pytest.raises(DeadlineExceeded):
            await rig.serve()
        rig = Rig(loop, [HANGS], partial=True, template=TEXT, timeouts=Timeouts(total_s=3))
        assert text_of(await read(await rig.serve())) == TEXT

    run(main)


@pytest.mark.parametrize("api", DIALECTS)
def test_partial_whole_answer_is_given_at_the_deadline(api: Api) -> None:
    """The upstream is called with a stream, so that the part that has come can be given."""

    async def main(loop: SimLoop) -> None:
        provider = halting(loop, 10)
        rig = Rig(loop, upstreams=[provider], partial=True, timeouts=Timeouts(total_s=5, first_token_s=0.2, idle_s=1))
        reply = await rig.serve(ask(api, stream=False))
        answer = parse_answer(api, await read(reply), stream=False)
        assert (answer.reason, answer.is_whole) == (LENGTH[api], True)
        assert answer.text
        assert (loop.now(), reply.degraded) == (5.0, "partial")  # neither limit of a stream is a whole answer's
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.status, done.error, done.degraded, done.over_stage) == (200, None, "partial", Stage.CALL)
        (attempt,) = rig.sink.facts_of(AttemptDone)
        assert (attempt.outcome, attempt.fault) == (Outcome.DROPPED, "timeout")
        assert (rig.n_in_flight, provider.counts.n_running) == (0, 0)

    run(main)


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.IN_BAND])
def test_partial_answer_is_the_longest_of_a_race(kind: FaultKind) -> None:
    """The first attempt has nothing or has failed; no attempt stays open."""

    async def main(loop: SimLoop) -> None:
        mute = Simulated("mute", ProviderConfig(ttft=Mixture(0.5), faults=(FaultRule(kind, after_chunks=1),)), loop)
        spare = halting(loop, 10)
        rig = Rig(loop, upstreams=[mute, spare], partial=True, in_turn=True, timeouts=Timeouts(total_s=5))
        routes = rig.gateway.router.routes
        assert isinstance(routes, dict)
        hedging = Hedging(HedgeConfig("race", race_after_s=0.1), RetryConfig(max_attempts=1))
        routes[MODEL] = replace(routes[MODEL], hedging=hedging)
        reply = await rig.serve(ask(Api.CHAT, stream=False))
        assert parse_answer(Api.CHAT, await read(reply), stream=False).text
        assert (loop.now(), reply.degraded, reply.upstream) == (5.0, "partial", "halting")
        assert rig.n_in_flight == 0
        await asyncio.sleep(0)  # the second one's Task, which was cancelled
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_partial_answer_with_several_choices_is_an_error() -> None:
    """Several choices are fetched as one JSON document, and half of it is no answer."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, upstreams=[halting(loop, 10)], partial=True, timeouts=Timeouts(total_s=5))
        with pytest.raises(DeadlineExceeded):
            await rig.serve(chat(stream=False, n=2))

    run(main)


def test_partial_whole_answer_needs_content() -> None:
    async def main(loop: SimLoop) -> None:
        slow = Simulated("slow", ProviderConfig(ttft=Mixture(60.0)), loop)
        rig = Rig(loop, upstreams=[slow], partial=True, timeouts=Timeouts(total_s=3))
        with pytest.raises(DeadlineExceeded):
            await rig.serve(chat(stream=False))

    run(main)


def test_partial_answer_is_not_used_for_a_broken_connection() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), Fail()]], partial=True)
        with pytest.raises(UpstreamFailed):
            await read(await rig.serve())

    run(main)


def test_partial_stream_with_several_choices_finishes_each_choice() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HALTS], partial=True, timeouts=Timeouts(total_s=3))
        body = await read(await rig.serve(chat(n=3)))
        assert body.count(b'"finish_reason":"length"') == 3
        assert [b'"index":%d' % n in body for n in range(3)] == [True] * 3

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_fallback_serves_all_requests_of_a_faulty_upstream(stream: bool) -> None:
    """Two hundred requests to a first choice with all kinds of faults: all are answered in time."""

    async def main(loop: SimLoop) -> None:
        faults = tuple(FaultRule(kind, rate=0.15, after_chunks=0) for kind in (
            FaultKind.HANG, FaultKind.RESET, FaultKind.STATUS, FaultKind.SILENT, FaultKind.TRUNCATED, FaultKind.IN_BAND))
        jagged = Simulated("jagged", ProviderConfig(preset="gpt-4o-like", faults=faults, output=OutputLengths(20, 0.5)),
                           loop)
        steady = Simulated("steady", ProviderConfig(ttft=Mixture(0.2, 0.3), gaps=GapConfig(0.005, 0.1)), loop)
        rig = Rig(loop, upstreams=[jagged, steady], n_fallback=1, reserve="2", timeouts=Timeouts(total_s=4),
                  retry=RetryConfig(max_attempts=2, backoff_base_s=0.05, backoff_cap_s=0.1))

        async def one() -> None:
            with suppress(StayfastError):
                await read(await rig.serve(chat(stream=stream, max_tokens=60)))

        async with asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(one())
        done = rig.sink.facts_of(RequestDone)
        assert len(done) == 200
        failed = [each for each in done if each.status != 200]
        assert all(stream and each.ttft_s is not None for each in failed)  # an answer that had begun: nobody can take over
        assert max(each.ended_at - each.accepted_at for each in done) <= 4.0
        n_fell_back = sum(each.degraded == "fallback" for each in done)
        assert n_fell_back > 20

    run(main)
