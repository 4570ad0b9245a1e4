"""After a failure, in virtual time: who is asked next, when, and at whose expense."""

import asyncio

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Fault, Rejected, UpstreamFailed
from stayfast.core.events import AttemptDone, BreakerChanged, RequestDone, Retried
from stayfast.core.types import Api
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, ScriptedUpstream, SendText, SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.dialect import UpstreamMisconfigured
from tests.flow.dialects import ask
from tests.flow.failure_rig import NO_MODEL, FailingUpstream, failure
from tests.flow.failure_rig import FailureRig as PickyRig
from tests.flow.rig import Rig, chat, read

HELLO: Script = [SendText("hello")]
DOWN: Script = [Fail(Fault.STATUS, 500)]
BUSY: Script = [Fail(Fault.STATUS, 503, 30.0)]
SIX = RetryConfig(max_attempts=6, max_retry_after_s=60)
GONE: Script = [Fail(Fault.CONNECT)]


class InexpressibleUpstream(ScriptedUpstream):
    """Its protocol can say nothing."""

    async def open(self, call: Call) -> AnswerStream:
        raise Rejected("cannot be said")


def _rig(loop: SimLoop, *scripts: list[Script], total_s: float = 100.0, n_fallback: int = 0) -> Rig:
    return Rig(loop, *scripts, retry=SIX, timeouts=Timeouts(total_s=total_s), in_turn=True, n_fallback=n_fallback)


def _attempt_starts(rig: Rig) -> list[tuple[str, float]]:
    return [(done.upstream, done.began_at) for done in sorted(rig.sink.facts_of(AttemptDone),
                                                              key=lambda done: done.n_attempt)]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_beyond_the_deadline_fails_at_once(status: int) -> None:
    """Both upstreams send a Retry-After of 30 s."""
    async def main(loop: SimLoop) -> None:
        script: list[Script] = [[Fail(Fault.STATUS, status, 30.0)]]
        rig = _rig(loop, script, script, total_s=20)
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert (loop.now(), failed.value.retry_after_s) == (0.0, 30.0)
        assert _attempt_starts(rig) == [("up0", 0.0), ("up1", 0.0)]

    run(main)


def test_retry_after_within_the_deadline_is_waited_for() -> None:
    """The upstream with the earliest instant is called, at that instant."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [BUSY, HELLO], [[Fail(Fault.STATUS, 503, 10.0)], HELLO])
        await read(await rig.serve())
        assert _attempt_starts(rig) == [("up0", 0.0), ("up1", 0.0), ("up1", 10.0)]

    run(main)


@pytest.mark.parametrize(("retry_after_s", "total_s", "ends_at", "n_asked"), [
    (30.0, 600.0, 0.0, 1),  # longer than a request waits
    (5.0, 600.0, 5.0, 2),  # once, not before each of the three attempts
    (2.0, 600.0, 4.0, 3),
    (2.0, 7.9, 0.0, 1),  # more than a quarter of its time
])
def test_retry_after_is_waited_for_only_if_short(retry_after_s: float, total_s: float, ends_at: float,
                                                 n_asked: int) -> None:
    """As it is, never lengthened; else the client gets the 429 at once, with its Retry-After."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(Fault.STATUS, 429, retry_after_s)]], retry=RetryConfig(), timeouts=Timeouts(total_s=total_s))
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert (loop.now(), len(_attempt_starts(rig))) == (ends_at, n_asked)
        assert (failed.value.upstream_status, failed.value.retry_after_s) == (429, retry_after_s)

    run(main)


def test_retry_after_of_another_request_is_not_waited_for() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [DOWN], retry=RetryConfig())
        rig.registry["up0"].own_health.suspend(30.0, "it asked for that")
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert (loop.now(), len(_attempt_starts(rig))) == (0.0, 1)

    run(main)


@pytest.mark.parametrize(("scripts", "order"), [
    (([GONE], [GONE]), ["up0", "up1", "up2"]),  # both were tried: no back-off mends that
    (([[Fail(Fault.TIMEOUT)]], [GONE]), ["up0", "up1", "up2"]),
    (([GONE], [DOWN, HELLO]), ["up0", "up1", "up1"]),  # a 500 may be over by then
])
def test_fallback_does_not_wait_for_a_useless_back_off(scripts: tuple[list[Script], ...], order: list[str]) -> None:
    """Upstreams that refuse connections are called once each."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, *scripts, [HELLO], n_fallback=1)
        await read(await rig.serve())
        assert [name for name, _ in _attempt_starts(rig)] == order
        assert loop.now() == 0.0 or order[-1] != "up2"

    run(main)


def test_retry_second_round_backs_off() -> None:
    """Only the first failover is immediate."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [DOWN], [DOWN])
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        began_at = [at for _, at in _attempt_starts(rig)]
        assert began_at[:2] == [0.0, 0.0]
        assert len(set(began_at)) == 5
        assert all(0 < facts.wait_s <= 0.1 * 2**n for n, facts in enumerate(rig.sink.facts_of(Retried)[1:], 1))

    run(main)


def test_retry_skips_an_upstream_with_retry_after() -> None:
    """It was sent to another request: up1 is not called; without up2, up0 is called again."""
    async def main(loop: SimLoop) -> None:
        for scripts, order in (([DOWN], [HELLO], [HELLO]), ["up0", "up2"]), (([DOWN, HELLO], [HELLO]), ["up0", "up0"]):
            rig = _rig(loop, *scripts)
            rig.registry["up1"].own_health.suspend(loop.now() + 30, "it said so")
            await read(await rig.serve())
            assert [name for name, _ in _attempt_starts(rig)] == order

    run(main)


def test_fallback_does_not_wait_for_the_retry_after_of_others() -> None:
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [BUSY], [HELLO], n_fallback=1)
        await read(await rig.serve())
        assert _attempt_starts(rig) == [("up0", 0.0), ("up1", 0.0)]

    run(main)


def test_retry_wait_ignores_an_upstream_that_cannot_express_the_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [BUSY, HELLO], upstreams=[InexpressibleUpstream("up1", [HELLO], loop)], retry=SIX, in_turn=True)
        await read(await rig.serve())
        assert _attempt_starts(rig) == [("up0", 0.0), ("up1", 0.0), ("up0", 30.0)]

    run(main)


def test_retry_wait_ends_with_its_client() -> None:
    """During back-off nothing is held."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [BUSY], total_s=200)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await rig.serve()
        assert (loop.now(), rig.n_in_flight, rig.n_open, len(rig.sink.facts_of(RequestDone))) == (5.0, 0, 0, 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


NOT_HERE = {"error": {"message": "no such response", "type": "invalid_request_error", "param": "response_id"}}
NAMED = {"error": {"message": "no such response", "type": "invalid_request_error", "code": "previous_response_not_found"}}


@pytest.mark.parametrize(("status", "said"), [(404, NOT_HERE), (404, NAMED), (400, NAMED), (404, NO_MODEL), (404, {})])
@pytest.mark.parametrize("n_repeats", ["0", "1"])
def test_previous_response_is_searched_at_all_upstreams(status: int, said: object, n_repeats: str) -> None:
    """Once each, whatever max_attempts is; no budget is used, and no upstream counts as failed."""
    async def main(loop: SimLoop) -> None:
        ups = [FailingUpstream(f"up{n}", loop, m=failure(status, said)) for n in range(5)]
        rig = PickyRig(loop, *ups, FailingUpstream("there", loop), retry=RetryConfig(max_attempts=2))
        request = ask(Api.RESPONSES, stream=True, store=True, previous_response_id="resp_1")
        headers = (("x-stainless-retry-count", n_repeats),)
        for _ in range(3):
            reply = await rig.gateway.serve(request, Arrival("req_1", loop.now(), headers=headers))
            await read(reply)
            assert reply.upstream == "there"
        assert [len(up.called_models) for up in ups] == [3] * 5
        assert rig.routes["m"].hedging.budget.withdrawn == 0
        assert rig.sink.facts_of(BreakerChanged) == []
        assert all(member.is_healthy(loop.now(), "m") for member in rig.registry)

    run(main)


def test_previous_response_unknown_at_all_upstreams_is_a_404() -> None:
    async def main(loop: SimLoop) -> None:
        ups = [FailingUpstream(f"up{n}", loop, m=failure(404, NOT_HERE)) for n in range(5)]
        rig = PickyRig(loop, *ups)
        request = ask(Api.RESPONSES, stream=False, previous_response_id="resp_1")
        with pytest.raises(UpstreamFailed) as failed:
            await rig.gateway.serve(request, Arrival("req_1", loop.now()))
        assert (failed.value.status, failed.value.is_clients_fault) == (404, True)
        assert [len(up.called_models) for up in ups] == [1] * 5

    run(main)


def test_previous_response_failed_search_is_the_failure() -> None:
    """One upstream does not have the response, another one fails: a 404 would be wrong. The request is not sent twice."""
    async def main(loop: SimLoop) -> None:
        ups = FailingUpstream("a", loop, m=failure(404, NOT_HERE)), FailingUpstream("b", loop, m=failure(500))
        rig = PickyRig(loop, *ups, retry=SIX)
        with pytest.raises(UpstreamFailed) as failed:
            await rig.gateway.serve(ask(Api.RESPONSES, stream=True, store=True, previous_response_id="resp_1"),
                                    Arrival("req_1", loop.now()))
        assert (failed.value.upstream_status, [len(up.called_models) for up in ups]) == (500, [1, 1])

    run(main)


@pytest.mark.parametrize("request_of", [chat, lambda: ask(Api.RESPONSES, stream=True)])
def test_request_without_previous_response_is_not_searched(request_of: object) -> None:
    """A 404 for the request itself is the answer of its upstream."""
    async def main(loop: SimLoop) -> None:
        ups = FailingUpstream("a", loop, m=failure(404, NOT_HERE)), FailingUpstream("b", loop)
        rig = PickyRig(loop, *ups)
        assert callable(request_of)
        with pytest.raises(UpstreamFailed):
            await rig.gateway.serve(request_of(), Arrival("req_1", loop.now()))
        assert [len(up.called_models) for up in ups] == [1, 0]

    run(main)


NEVER_BETTER = [UpstreamMisconfigured("up", Fault.MALFORMED, "compressed"), failure(501),
                UpstreamMisconfigured("up", Fault.STATUS, "moved", upstream_status=307)]


@pytest.mark.parametrize("error", NEVER_BETTER)
def test_retry_is_not_made_where_the_answer_cannot_change(error: UpstreamFailed) -> None:
    """Each upstream is called once."""
    async def main(loop: SimLoop) -> None:
        alone = FailingUpstream("a", loop, m=error)
        rig = PickyRig(loop, alone, retry=SIX)
        with pytest.raises(UpstreamFailed):
            await rig.request()
        ups = FailingUpstream("a", loop, m=error), FailingUpstream("b", loop, m=error), FailingUpstream("c", loop)
        assert await PickyRig(loop, *ups, retry=SIX).request() == "c"
        assert [len(up.called_models) for up in (alone, *ups)] == [1] * 4
        few = FailingUpstream("a", loop, m=error), FailingUpstream("b", loop, m=error), FailingUpstream("c", loop)
        rig = PickyRig(loop, *few, retry=RetryConfig(max_attempts=2))
        with pytest.raises(UpstreamFailed):  # each of them counts
            await rig.request()
        assert [len(up.called_models) for up in few] == [1, 1, 0]

    run(main)


def test_retry_that_comes_too_late_is_not_made() -> None:
    """The upstream has never answered within the time that is left."""
    async def main(loop: SimLoop) -> None:
        rig = _rig(loop, [DOWN, HELLO], total_s=1.5)
        rig.registry["up0"].fastest_ttft.seconds = 2.0
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert len(_attempt_starts(rig)) == 1

    run(main)
