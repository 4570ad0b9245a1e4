"""Second attempts in virtual time: who wins, who is closed when, and that nothing is left of any of it."""

import asyncio
import gc
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Fault, StayfastError, UpstreamFailed
from stayfast.core.events import AttemptDone, Hedged, RequestDone
from stayfast.core.types import Outcome
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.stages.admit.admission import Admission, Admit
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.resilience.hedge import LEAST_AFTER_S, HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Cut, Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.admission_rig import quota_for_all
from tests.flow.rig import MODEL, Rig, chat, read

RACE = HedgeConfig("race", race_after_s=0.1)
SLOW: Script = [Wait(5.0), SendText("slow")]
QUICK: Script = [Wait(0.2), SendText("quick")]


def _hedging_rig(loop: SimLoop, *scripts: list[Script], config: HedgeConfig = RACE, retry: RetryConfig | None = None,
         n_fallback: int = 0, timeouts: Timeouts | None = None, admit: Admit | None = None) -> Rig:
    """A rig whose route hedges."""
    retry = retry or RetryConfig(max_attempts=1)
    rig = Rig(loop, *scripts, in_turn=True, retry=retry, n_fallback=n_fallback, timeouts=timeouts, admit=admit)
    routes = rig.gateway.router.routes
    assert isinstance(routes, dict)
    routes[MODEL] = replace(routes[MODEL], hedging=Hedging(config, retry))
    return rig


def _assert_nothing_left(rig: Rig) -> None:
    """No slot, no stream, no Task but ours, no attempt without an end."""
    assert (rig.n_in_flight, rig.n_open) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_hedged_requests_leave_no_object_after_their_end() -> None:
    """Calls are not seen by the garbage collector, so that a way back from one to its attempt would stay for ever."""
    async def main(loop: SimLoop) -> None:
        gc.collect()
        n_before = sum(isinstance(one, Attempt) for one in gc.get_objects())
        rig = _hedging_rig(loop, *[[SLOW] * 5, [QUICK] * 5])
        for _ in range(5):
            await read(await rig.serve())
        assert len(rig.sink.facts_of(AttemptDone)) == 10
        await asyncio.sleep(1)
        gc.collect()
        assert sum(isinstance(one, Attempt) for one in gc.get_objects()) - n_before <= 2

    run(main)


def test_hedge_wins_and_the_first_attempt_is_closed_at_once() -> None:
    """Sent at 0.1 s, first token at 0.3 s; the first attempt is closed at that instant."""
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [SLOW], [QUICK])
        reply = await rig.serve()
        assert loop.now() == pytest.approx(0.3)
        assert (reply.upstream, rig.scripted[0].n_open) == ("up1", 0)
        assert b"quick" in await read(reply)
        lost, won = rig.sink.facts_of(AttemptDone)
        assert (lost.upstream, lost.outcome, lost.fault, lost.is_lost) == ("up0", Outcome.IGNORED, None, True)
        assert (won.upstream, won.outcome, won.is_hedge) == ("up1", Outcome.SUCCESS, True)
        assert won.began_at == pytest.approx(0.1)
        assert lost.usage is not None
        assert lost.usage.input_total > 0
        assert rig.sink.facts_of(RequestDone)[0].notes == ("hedged to up1: race: no first token after 0.1 s",)
        await asyncio.sleep(0)
        _assert_nothing_left(rig)

    run(main)


def test_hedge_loses_and_is_closed() -> None:
    """It had run for 0.1 s when the first attempt had its token."""
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [QUICK], [SLOW])
        assert b"quick" in await read(await rig.serve())
        assert [(done.upstream, done.is_lost) for done in rig.sink.facts_of(AttemptDone)] == [("up1", True), ("up0", False)]
        await asyncio.sleep(0)
        _assert_nothing_left(rig)

    run(main)


def test_hedge_answers_after_the_first_attempt_failed() -> None:
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [[Wait(0.15), Fail(status=503)]], [QUICK])
        assert (await rig.serve()).upstream == "up1"
        assert loop.now() == pytest.approx(0.3)

    run(main)


def test_hedge_and_first_attempt_fail_with_the_first_error() -> None:
    """No attempt stays open."""
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [[Wait(0.15), Fail(status=503)]], [[Wait(0.2), Fail(Fault.RESET)]])
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert failed.value.upstream == "up0"
        assert loop.now() == pytest.approx(0.3)
        await asyncio.sleep(0)
        _assert_nothing_left(rig)

    run(main)


HANGS: Script = [Wait(60.0), SendText("at last")]
FAILS: Script = [Wait(0.3), Fail(Fault.STATUS, 500)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("scripts", "asked"), [
    (([FAILS], [HANGS], [QUICK]), [("up0", False), ("up1", True), ("up2", False)]),  # the first one fails, its hedge hangs
    (([HANGS], [[Wait(0.2), Fail(Fault.STATUS, 429)]], [QUICK]), [("up0", False), ("up1", True), ("up2", False)]),
    (([FAILS], [HANGS], [FAILS], [QUICK]), [("up0", False), ("up1", True), ("up2", False), ("up3", False)]),
])
def test_hedge_of_a_hanging_attempt_is_retried_elsewhere(stream: bool, scripts: tuple[list[Script], ...],
                                                             asked: list[tuple[str, bool]]) -> None:
    """At once, from the retry budget; the hanging attempt is closed with the answer."""
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, *scripts, retry=RetryConfig(max_attempts=3))
        for upstream in rig.scripted:
            upstream.always_streams = stream  # else it is not asked twice for whole answers
        reply = await rig.serve(chat(stream=stream))
        assert loop.now() == pytest.approx(0.3 * (len(scripts) - 2) + 0.2)
        assert b"quick" in await read(reply)
        (request,) = rig.sink.facts_of(RequestDone)
        assert [(attempt.upstream, attempt.is_hedge) for attempt in request.attempts] == asked
        assert [attempt.is_lost for attempt in request.attempts].count(True) == 1
        assert rig.gateway.router.routes[MODEL].hedging.budget.withdrawn > 0
        assert sum("retried at" in note for note in request.notes) == len(scripts) - 2
        await asyncio.sleep(0)
        _assert_nothing_left(rig)

    run(main)


@pytest.mark.parametrize(("retry", "n_retries"), [(RetryConfig(max_attempts=1), 0), (RetryConfig(max_attempts=2), 1)])
def test_race_makes_no_more_retries_than_allowed(retry: RetryConfig, n_retries: int) -> None:
    """Three attempts fail one after another beside one that hangs until it times out."""
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [FAILS], [HANGS], [FAILS], [FAILS], retry=retry, timeouts=Timeouts(total_s=10,
                                                                                                    first_token_s=2))
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert failed.value.upstream == "up0"
        assert [upstream.n_calls for upstream in rig.scripted] == [1, 1, n_retries, 0]
        await asyncio.sleep(0)
        _assert_nothing_left(rig)

    run(main)


def test_hedge_that_hangs_does_not_block_a_retry() -> None:
    """`auto`, with the one hedge of `max_extra: 1` hanging: a failure of the first attempt is retried."""
    async def main(loop: SimLoop) -> None:
        script: list[Script] = [*[QUICK] * 9, [Wait(3.0), SendText("late")]]
        rig = _hedging_rig(loop, script, script, [QUICK], config=HedgeConfig(budget=0.2, max_extra=1),
                   retry=RetryConfig(max_attempts=2))
        for _ in range(300):
            await read(await rig.serve())
            await asyncio.sleep(0.05)
        rig.scripted[0].scripts = [[Wait(2.0), Fail(Fault.STATUS, 500)]]
        rig.scripted[1].scripts = [HANGS]
        began_at = loop.now()
        assert (await rig.serve()).upstream == "up2"
        assert loop.now() - began_at == pytest.approx(2.2)

    run(main)


def test_hedge_is_not_sent_for_a_stateful_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [SLOW], [QUICK])
        assert (await rig.serve(chat(store=True))).upstream == "up0"
        assert rig.sink.facts_of(Hedged) == []

    run(main)


def test_hedge_delay_follows_the_live_distribution() -> None:
    """One in ten of the answers takes 3 s: after two hundred samples, slow requests are hedged within the second."""
    async def main(loop: SimLoop) -> None:
        script: list[Script] = [*[QUICK] * 9, [Wait(3.0), SendText("late")]]
        rig = _hedging_rig(loop, script, script, config=HedgeConfig(budget=0.2))
        took = []
        for _ in range(300):
            began_at = loop.now()
            await read(await rig.serve())
            took.append(loop.now() - began_at)
            await asyncio.sleep(0.05)
        assert max(took[:50]) > 2.9
        assert max(took[-100:]) < 1.0  # in two hundred, two slow ones meet: the third attempt is quick
        sent = [fact for fact in rig.sink.facts_of(Hedged) if not fact.refused]
        assert 0 < len(sent) <= 0.2 * 300 + 20
        notes = [note for done in rig.sink.facts_of(RequestDone) for note in done.notes]
        assert any("no first token after " in note and "limit 20 %" in note for note in notes)

    run(main)


def test_hedge_defaults_shorten_a_tail() -> None:
    """One in fifteen of the answers is slow; the notes have the limit of 10 %."""
    async def main(loop: SimLoop) -> None:
        script: list[Script] = [*[QUICK] * 14, [Wait(3.0), SendText("late")]]
        rig = _hedging_rig(loop, script, script, config=HedgeConfig())
        took = []
        for _ in range(400):
            began_at = loop.now()
            await read(await rig.serve())
            took.append(loop.now() - began_at)
            await asyncio.sleep(0.05)
        assert max(took[-200:]) < 1.0
        notes = [note for done in rig.sink.facts_of(RequestDone)[200:] for note in done.notes]
        assert any("hedged to" in note and "limit 10 %" in note for note in notes)

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_hedge_that_is_not_sent_has_a_reason_in_the_notes(stream: bool) -> None:
    """At first too few samples are known; after two hundred fast answers, one slow answer is no tail."""
    async def main(loop: SimLoop) -> None:
        slow: Script = [Wait(3.0), SendText("late")]
        rig = _hedging_rig(loop, [slow, *[QUICK] * 200, slow, *[QUICK] * 9], config=HedgeConfig())
        rig.scripted[0].always_streams = stream  # else it is not asked twice for whole answers
        for _ in range(202):
            await read(await rig.serve(chat(stream=stream)))
        done = rig.sink.facts_of(RequestDone)
        first, last = done[0], done[201]
        assert first.notes == ("not hedged to up0: no help is expected, as only 1 of 32 attempts are known",)
        assert len(last.notes) == 1
        assert last.notes[0].startswith("not hedged to up0: no help is expected, as p99 of 20")
        assert all(not one.notes for one in done[1:201])

    run(main)


def test_hedge_delay_has_a_lower_bound() -> None:
    """Nearly all answers take a millisecond: the hedge is sent after LEAST_AFTER_S."""
    async def main(loop: SimLoop) -> None:
        quick: Script = [Wait(0.001), SendText("quick")]
        script: list[Script] = [*[quick] * 19, [Wait(3.0), SendText("late")]]
        rig = _hedging_rig(loop, script, script, config=HedgeConfig(budget=0.2))
        for _ in range(300):
            await read(await rig.serve())
            await asyncio.sleep(0.05)
        waited = [hedge.began_at - first.began_at
                  for first, hedge in pairwise(sorted(rig.sink.facts_of(AttemptDone), key=lambda done: done.began_at))
                  if hedge.is_hedge and not first.is_hedge]
        assert min(waited) == pytest.approx(LEAST_AFTER_S, abs=0.001)

    run(main)


def test_hedge_streak_of_slow_answers_moves_traffic_elsewhere() -> None:
    """All answers of an upstream begin to take 5 s: a few requests are hedged, the next ones start elsewhere."""
    async def main(loop: SimLoop) -> None:
        usual: list[Script] = [*[QUICK] * 9, [Wait(3.0), SendText("late")]] * 12
        rig = _hedging_rig(loop, [*usual, *[SLOW] * 100], [QUICK], config=HedgeConfig(budget=0.1))
        for _ in range(len(usual)):
            await read(await rig.serve())
        before = len(rig.sink.facts_of(RequestDone))
        for _ in range(12):
            await read(await rig.serve())
        asked = [[attempt.upstream for attempt in done.attempts] for done in rig.sink.facts_of(RequestDone)[before:]]
        assert 1 <= asked.count(["up0", "up1"]) <= 6
        assert asked[-6:] == [["up1"]] * 6

    run(main)


def test_hedge_goes_to_the_same_upstream_while_the_other_fails() -> None:
    """After five failures in a row the other upstream is out."""
    async def main(loop: SimLoop) -> None:
        rig = _hedging_rig(loop, [[Wait(0.3), SendText("first")]], [[Fail(status=503)]])
        for _ in range(7):
            await read(await rig.serve())
        asked = [sorted(attempt.upstream for attempt in done.attempts) for done in rig.sink.facts_of(RequestDone)]
        assert (asked[0], asked[-1]) == (["up0", "up1"], ["up0", "up0"])

    run(main)


def test_hedge_is_not_sent_while_requests_wait_for_places() -> None:
    """One place, taken; a second request waits from 0.05 s until its client leaves at 0.35 s."""
    async def main(loop: SimLoop) -> None:
        admission = Admission(AdmissionConfig(1), {}, loop, Random(1))
        rig = _hedging_rig(loop, [SLOW], [QUICK], admit=admission)

        async def wait() -> None:
            await asyncio.sleep(0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await rig.serve()

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait())
            await read(await rig.serve())
            assert waiting.done()
        refused, sent = rig.sink.facts_of(Hedged)
        assert (refused.refused, sent.refused) == ("shedding", "")
        assert refused.at == pytest.approx(0.1)
        assert 0.35 < sent.at < 0.5
        notes = rig.sink.facts_of(RequestDone)[-1].notes
        assert "not hedged to up1 at once: requests wait for places, or are rejected" in notes

    run(main)


def test_retry_budget_empty_fails_at_once() -> None:
    """Ten retries a minute are the allowance; after them a failure is final."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=500)]], retry=RetryConfig(max_attempts=2, backoff_base_s=0.01, backoff_cap_s=0.01))
        for _ in range(20):
            with pytest.raises(UpstreamFailed):
                await rig.serve()
        n_calls = [done.n_attempts for done in rig.sink.facts_of(RequestDone)]
        assert n_calls[0] == 2
        assert sum(n_calls) <= 20 + 10 + 0.1 * 20
        assert any("not retried" in note for done in rig.sink.facts_of(RequestDone) for note in done.notes)

    run(main)


STEPS = (SendText("a"), Cut(), Fail(status=503), Fail(status=429), Fail(Fault.RESET), Fail(status=429, retry_after_s=0.2))


def _script(rng: Random) -> Script:
    """A wait, and whatever comes after it."""
    steps = [Wait(rng.choice((0.0, 0.05, 0.1, 0.2, rng.random(), 60.0))), rng.choice(STEPS)]
    return [*steps, Wait(rng.random() / 10), SendText("b")] if isinstance(steps[-1], SendText) else steps


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**48))
def test_hedge_random_upstreams_and_clients_leave_nothing_held(seed: int) -> None:
    """Random upstreams, five requests each, clients that leave at random instants. Nothing stays held, no request is sent
    more often than allowed, and every attempt has one fact.
    """
    rng = Random(seed)

    async def visit(rig: Rig) -> None:
        limit_s = rng.choice((0.1, 0.1001, 0.2, rng.random(), 2.0))
        try:
            async with asyncio.timeout(limit_s):
                reply = await rig.serve(chat(stream=rng.random() < 0.8))
                try:
                    await read(reply)
                finally:
                    reply.close()
        except (TimeoutError, StayfastError):
            pass

    async def main(loop: SimLoop) -> None:
        config = HedgeConfig("race", race_after_s=rng.choice((0.0, 0.05, 0.1)))
        scripts = [[_script(rng) for _ in range(3)] for _ in range(4)]
        n_fallback = rng.choice((0, 1))
        rig = _hedging_rig(loop, *scripts, config=config, retry=RetryConfig(max_attempts=3, backoff_base_s=0.05),
                   n_fallback=n_fallback, timeouts=Timeouts(total_s=1.5, first_token_s=0.4, idle_s=0.3))
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(visit(rig))
                await asyncio.sleep(rng.random() / 10)
        await asyncio.sleep(0)
        _assert_nothing_left(rig)
        assert len(rig.sink.facts_of(RequestDone)) == 5
        told = [attempt for done in rig.sink.facts_of(RequestDone) for attempt in done.attempts]
        assert len(told) == len(rig.sink.facts_of(AttemptDone)) >= sum(upstream.n_calls for upstream in rig.scripted)
        for done in rig.sink.facts_of(RequestDone):
            assert sum(not attempt.is_hedge for attempt in done.attempts) <= 3 * (1 + n_fallback)

    run(main)


def test_hedge_counts_once_in_the_quota_of_a_tenant() -> None:
    async def main(loop: SimLoop) -> None:
        used = []
        for config in (HedgeConfig("off"), RACE):
            admission = Admission(AdmissionConfig(), quota_for_all(tokens_per_day=1e6), loop, Random(3))
            rig = _hedging_rig(loop, [SLOW], [QUICK], config=config, admit=admission)
            await read(await rig.serve(chat(messages=[{"role": "user", "content": "x" * 4000}], max_tokens=10)))
            used.append(1e6 - admission.tenants.get(None, loop.now()).quota.bucket_for("tokens_per_day").level(loop.now()))
        assert used[0] == pytest.approx(used[1], abs=20)

    run(main)
