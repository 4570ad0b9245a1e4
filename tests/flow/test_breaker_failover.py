"""What is done while an upstream is left alone, and how it comes back."""

import asyncio

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
from stayfast.core.events import BreakerChanged, RequestDone
from stayfast.policy.resilience.breaker import BreakerConfig, BreakerState
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.rig import Rig, read

DOWN: Script = [Fail(Fault.CONNECT)]
WELL: Script = [Wait(0.1), SendText("ok")]
STUCK: Script = [Wait(1000), SendText("late")]
SHORT = BreakerConfig(open_s=10.0)


async def upstreams_of(rig: Rig, n: int = 1, total_s: float | None = None) -> list[str]:
    """Who answers so many requests, one after another."""
    names = []
    for _ in range(n):
        reply = await rig.serve(total_s=total_s)
        names.append(reply.upstream)
        await read(reply)
    return names


def state_changes(rig: Rig) -> list[tuple[str, str]]:
    """The changes that were told, and of whom."""
    return [(fact.upstream, fact.state) for fact in rig.sink.facts_of(BreakerChanged)]


def test_breaker_open_sends_traffic_elsewhere_and_returns_it_slowly() -> None:
    """Five failures, a pause, two probes, then a growing share."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[DOWN] * 5, *[WELL] * 200], [WELL], breaker=SHORT, retry=RetryConfig(max_attempts=2), in_turn=True)
        assert await upstreams_of(rig, 20) == ["up1"] * 20
        assert rig.scripted[0].n_calls == 5
        await asyncio.sleep(15)
        assert await upstreams_of(rig, 2) == ["up0", "up0"]
        assert rig.sink.facts_of(BreakerChanged)[0].why == "5 failures in a row"
        assert state_changes(rig) == [("up0", "open"), ("up0", "half_open"), ("up0", "closed")]
        shares = []
        for _ in range(3):
            shares.append((await upstreams_of(rig, 30)).count("up0"))
            await asyncio.sleep(2.0)
        assert shares[0] < 20 < shares[2]

    run(main)


def test_breaker_half_open_admits_one_probe_at_a_time() -> None:
    """Ten requests come at once after the pause."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[DOWN] * 5, [Wait(1), SendText("ok")]], [WELL], breaker=SHORT, retry=RetryConfig(max_attempts=2),
                  in_turn=True)
        await upstreams_of(rig, 5)
        await asyncio.sleep(15)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(upstreams_of(rig)) for _ in range(10)]
        assert sum(task.result() == ["up0"] for task in tasks) == 1

    run(main)


def test_breaker_probe_cancelled_by_its_client_is_repeated() -> None:
    """The next request is the probe."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[DOWN] * 5, STUCK, WELL], [WELL], breaker=SHORT, retry=RetryConfig(max_attempts=2), in_turn=True)
        await upstreams_of(rig, 5)
        await asyncio.sleep(15)
        leaver = loop.create_task(upstreams_of(rig))
        await asyncio.sleep(1)
        leaver.cancel()
        await asyncio.wait([leaver])
        assert state_changes(rig) == [("up0", "open")]
        assert await upstreams_of(rig) == ["up0"]

    run(main)


def test_breaker_all_open_goes_to_the_fallback() -> None:
    """At once and marked as degraded; the open upstreams are the last resort when the fallback fails."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[DOWN] * 5, WELL], [*[WELL] * 6, DOWN, WELL], breaker=SHORT, n_fallback=1)
        await upstreams_of(rig, 5)
        assert rig.scripted[0].n_calls == 5
        reply = await rig.serve()
        assert (reply.upstream, reply.degraded, reply.n_attempts) == ("up1", "fallback", 1)
        await read(reply)
        done = rig.sink.facts_of(RequestDone)[-1]
        assert [attempt.role for attempt in done.attempts] == ["fallback"]
        assert [note.split(":")[0] for note in done.notes] == ["up0 is tried after the fallback"]
        assert await upstreams_of(rig) == ["up0"]
        assert rig.sink.facts_of(RequestDone)[-1].degraded is None  # it is what was asked for

    run(main)


def test_breaker_of_the_only_upstream_does_not_reject() -> None:
    """An upstream that fails half of its calls still serves the other half."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[DOWN] * 10, WELL, WELL])
        for _ in range(10):
            with pytest.raises(UpstreamFailed):
                await rig.serve()
        assert rig.registry["up0"].breaker.state is BreakerState.OPEN
        assert await upstreams_of(rig, 2) == ["up0", "up0"]
        assert state_changes(rig)[-1] == ("up0", "closed")

    run(main)


def test_breaker_all_open_without_fallback_tries_all() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[DOWN] * 10, WELL], [*[DOWN] * 10, WELL], retry=RetryConfig(max_attempts=2))
        for _ in range(10):
            with pytest.raises(UpstreamFailed):
                await rig.serve()
        assert {member.breaker.state for member in rig.registry} == {BreakerState.OPEN}
        assert await upstreams_of(rig) in (["up0"], ["up1"])

    run(main)


def test_breaker_opens_on_slow_calls_before_any_failure() -> None:
    """The upstream answered in 0.1 s and now hangs: calls that are late so far count."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[WELL] * 20, *[STUCK] * 100], [WELL], in_turn=True, breaker=BreakerConfig(slow_ratio=0.5))
        await upstreams_of(rig, 20)
        async with asyncio.TaskGroup() as group:
            tasks = []
            for _ in range(100):
                tasks.append(group.create_task(upstreams_of(rig, total_s=900.0)))
                await asyncio.sleep(0.02)
            assert state_changes(rig) == [("up0", "open")]
            assert rig.scripted[0].n_calls < 20 + 45
            for task in tasks:
                task.cancel()

    run(main)


def test_breaker_ignores_429() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(Fault.STATUS, status=429)]])
        for _ in range(20):
            with pytest.raises(UpstreamFailed):
                await rig.serve()
        assert state_changes(rig) == []
        assert rig.registry["up0"].n_failed_in_row == 0

    run(main)


def test_breaker_ignores_clients_that_leave_and_short_deadlines() -> None:
    """Clients leave before the first token, or allow a tenth of the usual time."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1), SendText("ok")]], [WELL], in_turn=True)
        await upstreams_of(rig, 20)
        before = repr(rig.registry["up0"])
        for number in range(50):
            task = loop.create_task(upstreams_of(rig, total_s=0.1 if number % 2 else None))
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.wait([task])
        assert repr(rig.registry["up0"]) == before

    run(main)


def test_breaker_429_with_retry_after_pauses_the_upstream() -> None:
    async def main(loop: SimLoop) -> None:
        busy: Script = [Fail(Fault.STATUS, status=429, retry_after_s=20)]
        rig = Rig(loop, [busy, WELL], [WELL], retry=RetryConfig(max_attempts=2), in_turn=True)
        assert await upstreams_of(rig, 5) == ["up1"] * 5
        assert rig.scripted[0].n_calls == 1
        await asyncio.sleep(20)
        assert await upstreams_of(rig) == ["up0"]

    run(main)


HANGS = Timeouts(total_s=8, first_token_s=8)  # of which a quarter is 2 s


async def _took_s(rig: Rig) -> float:
    """Seconds to the first token, or to the failure, of one request."""
    began_at = rig.loop.now()
    try:
        await read(await rig.serve())
    except (DeadlineExceeded, UpstreamFailed):
        return rig.loop.now() - began_at
    return rig.loop.now() - began_at


def test_breaker_hanging_upstream_gives_the_template_at_once() -> None:
    """Five requests time out; then one in ten seconds is a probe, and all others get the template at once."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [*[STUCK] * 7, *[WELL] * 20], timeouts=HANGS, template="Later, please.", retry=RetryConfig())
        assert [await _took_s(rig) for _ in range(15)] == [8.0] * 5 + [0.0] * 10
        assert "not sent to up0: calls there hang until they fail" in rig.sink.facts_of(RequestDone)[-1].notes
        await asyncio.sleep(10)
        assert [await _took_s(rig) for _ in range(4)] == [8.0, 0.0, 0.0, 0.0]
        await asyncio.sleep(10)
        async with asyncio.TaskGroup() as group:
            probe = group.create_task(_took_s(rig))
            await asyncio.sleep(1)
            assert [await _took_s(rig) for _ in range(4)] == [0.0] * 4  # one probe at a time
        assert probe.result() == 8.0
        await asyncio.sleep(10)
        assert await upstreams_of(rig, 3) == ["up0"] * 3  # it is back, with the first good probe
        assert state_changes(rig)[-1] == ("up0", "closed")

    run(main)


def test_breaker_hanging_upstream_ends_waits_for_its_places() -> None:
    """The waiting requests end as soon as the upstream is known to hang, and do not take their turns."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [STUCK], timeouts=Timeouts(total_s=60, first_token_s=8), template="Later, please.",
                  limit=LimitConfig(mode="fixed", max=5))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_took_s(rig)) for _ in range(20)]
        assert [task.result() for task in tasks] == [8.0] * 20
        assert (rig.scripted[0].n_calls, rig.n_in_flight) == (5, 0)

    run(main)


def test_breaker_hanging_upstream_without_template_fails_at_once() -> None:
    """With a Retry-After; nothing was sent, so that even a stateful request may go to a fallback."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [STUCK], timeouts=HANGS, retry=RetryConfig())
        assert [await _took_s(rig) for _ in range(6)] == [8.0] * 5 + [0.0]
        await asyncio.sleep(4)
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert (failed.value.status, failed.value.code, failed.value.retry_after_s) == (503, "upstream_down", 6.0)
        assert failed.value.is_undone

    run(main)


def test_breaker_hanging_fallback_is_skipped() -> None:
    """Both upstreams are known to hang: no request waits for either."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [STUCK], [STUCK], timeouts=HANGS, n_fallback=1, template="Later, please.", retry=RetryConfig())
        times_s = [await _took_s(rig) for _ in range(8)]
        assert times_s[0] == 8.0
        assert times_s[-1] == 0.0
        reply = await rig.serve()
        assert (reply.degraded, reply.n_attempts) == ("template", 0)

    run(main)


def test_breaker_upstream_that_answers_half_of_its_calls_stays_in_use() -> None:
    """The breaker opens, and the good half is still served."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [STUCK, WELL], timeouts=HANGS, breaker=BreakerConfig(window_s=1000))
        times_s = [await _took_s(rig) for _ in range(60)]
        assert sum(took_s < 0.2 for took_s in times_s) == 30
        assert ("up0", "open") in state_changes(rig)

    run(main)
