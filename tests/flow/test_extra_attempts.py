"""When an extra attempt is not made, where it goes, and what it costs."""

import asyncio
from random import Random

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, UpstreamFailed
from stayfast.core.events import AttemptDone, Hedged, RequestDone
from stayfast.core.types import Api, Request
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.pipeline.stages.call import caller
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.admission_rig import quota_for_all
from tests.flow.dialects import ask
from tests.flow.rig import MODEL, Rig, chat, read

RACE = HedgeConfig("race", race_after_s=0.1)
SLOW: Script = [Wait(5.0), SendText("slow")]
QUICK: Script = [Wait(0.2), SendText("quick")]
TAILED: list[Script] = [*[QUICK] * 9, [Wait(3.0), SendText("late")]]
SDK_RETRY = (("x-stainless-retry-count", "1"),)
TWICE = RetryConfig(max_attempts=2)
ONE = LimitConfig("fixed", max=1)


def hedging_rig(loop: SimLoop, *scripts: list[Script], config: HedgeConfig = RACE, admission: Admission | None = None
                ) -> Rig:
    """A route that hedges, with prices."""
    rig = Rig(loop, *scripts, in_turn=True, admit=admission, price=Price(1.0, 1.0))
    rig.change_route(hedging=Hedging(config, RetryConfig(max_attempts=1)))
    return rig


async def serve(rig: Rig, request: Request | None = None, headers: tuple[tuple[str, str], ...] = (),
                total_s: float | None = None) -> RequestDone:
    """One request, read to its end."""
    arrival = Arrival("req_1", rig.loop.now(), headers=headers, total_s=total_s)
    await read(await rig.gateway.serve(request or chat(), arrival))
    return rig.sink.facts_of(RequestDone)[-1]


def test_hedge_that_cannot_finish_before_the_deadline_is_not_sent() -> None:
    """A hedge is due, but less time is left than an answer usually takes."""
    async def main(loop: SimLoop) -> None:
        rig = hedging_rig(loop, [*TAILED * 30, *[SLOW] * 50], [QUICK] * 100, config=HedgeConfig(budget=0.2))
        for _ in range(300):
            await serve(rig)
            await asyncio.sleep(0.05)
        n_facts, n_attempts = len(rig.sink.facts_of(Hedged)), len(rig.sink.facts_of(AttemptDone))
        with pytest.raises(DeadlineExceeded):
            await serve(rig, total_s=0.37)
        assert {fact.refused for fact in rig.sink.facts_of(Hedged)[n_facts:]} == {"deadline"}
        assert len(rig.sink.facts_of(AttemptDone)) == n_attempts + 1

    run(main)


def test_hedge_blocked_by_an_empty_budget_counts_as_demand() -> None:
    """The demand is larger than the spending: the delay is chosen by the demand."""
    async def main(loop: SimLoop) -> None:
        late: Script = [Wait(3.0), SendText("late")]
        rig = hedging_rig(loop, [*[*[QUICK] * 29, late] * 10, *[late] * 500], [QUICK], config=HedgeConfig(budget=0.1))
        for _ in range(300):
            await serve(rig)
        await asyncio.gather(*[serve(rig) for _ in range(200)])
        budget, now = rig.router.routes[MODEL].hedging.budget, loop.now()
        assert "budget" in {fact.refused for fact in rig.sink.facts_of(Hedged)}
        assert budget.hedge_demand(now) > budget.hedged_share(now)

    run(main)


def test_hedge_goes_to_a_spare_that_was_never_called() -> None:
    """The first target has a tail; the second one has no samples, and answers the first hedge."""
    async def main(loop: SimLoop) -> None:
        rig = hedging_rig(loop, TAILED, [QUICK], config=HedgeConfig(budget=0.2))
        done = [await serve(rig) for _ in range(120)]
        hedged = next(fact for fact in done if len(fact.attempts) > 1)
        assert [attempt.upstream for attempt in hedged.attempts] == ["up0", "up1"]
        assert hedged.upstream == "up1"

    run(main)


def test_hedge_avoids_a_target_that_is_slow_now() -> None:
    """The second target had a streak of late attempts, the third had none."""
    async def main(loop: SimLoop) -> None:
        rig = hedging_rig(loop, [SLOW], [QUICK], [QUICK])
        for _ in range(20):
            rig.router.routes[MODEL].hedging.late_streak(("up1", MODEL), is_whole=False).record_late(loop.now())
        assert [attempt.upstream for attempt in (await serve(rig)).attempts] == ["up0", "up2"]

    run(main)


STORED_BY_DEFAULT = ask(Api.RESPONSES, stream=True, store=None)  # the provider stores it unless the request says no


@pytest.mark.parametrize(("request_", "headers"), [(chat(store=True), ()), (STORED_BY_DEFAULT, ()), (chat(), SDK_RETRY)])
def test_hedge_is_not_sent_for_stored_requests_and_sdk_retries(request_: Request,
                                                               headers: tuple[tuple[str, str], ...]) -> None:
    """In a race, which hedges every other request."""
    async def main(loop: SimLoop) -> None:
        rig = hedging_rig(loop, [SLOW], [QUICK])
        assert len((await serve(rig)).attempts) == 2
        assert len((await serve(rig, request_, headers)).attempts) == 1

    run(main)


@pytest.mark.parametrize(("request_", "headers", "notes"), [
    (chat(), SDK_RETRY, ("not retried: the client's SDK retries (500 of up0)",)), (chat(store=True), (), ()),
    (STORED_BY_DEFAULT, (), ())])
def test_retry_is_not_made_for_stored_requests_and_sdk_retries(request_: Request, headers: tuple[tuple[str, str], ...],
                                                               notes: tuple[str, ...]) -> None:
    """A second upstream would answer."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=500)]], [QUICK], retry=TWICE, in_turn=True)
        with pytest.raises(UpstreamFailed):
            await serve(rig, request_, headers)
        assert rig.scripted[1].n_calls == 0
        assert rig.sink.facts_of(RequestDone)[0].notes == notes
        assert (await serve(rig)).upstream == "up1"

    run(main)


def test_retry_budget_gets_no_deposit_from_sdk_retries() -> None:
    """A client in a retry loop would otherwise pay for more retries."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=500)], *[QUICK] * 20], [QUICK], retry=TWICE, in_turn=True)
        budget = rig.router.routes[MODEL].hedging.budget
        await serve(rig)
        before = budget.extra_share(loop.now())
        for _ in range(10):
            await serve(rig, headers=SDK_RETRY)
        assert budget.extra_share(loop.now()) == before > 0

    run(main)


def test_lost_hedge_uses_no_quota_and_its_tokens_are_estimates() -> None:
    """A tenant with a limit of money pays for the winner only."""
    async def main(loop: SimLoop) -> None:
        left = []
        for config in (HedgeConfig("off"), RACE):
            admission = Admission(AdmissionConfig(), quota_for_all(cost_per_day=10.0), loop, Random(3))
            rig = hedging_rig(loop, [[Wait(1.0), SendText("first")]], [QUICK], config=config, admission=admission)
            done = await serve(rig, chat(messages=[{"role": "user", "content": "x" * 40_000}], max_tokens=10))
            left.append(admission.tenants.get(None, loop.now()).quota.levels(loop.now())["cost_per_day"][0])
            assert all(attempt.is_estimated for attempt in done.attempts if attempt.is_lost)
        assert left[0] == pytest.approx(left[1], abs=1e-6)

    run(main)


def test_lost_attempts_do_not_open_a_breaker() -> None:
    """Fifty attempts in a row that were slower than their hedge: the upstream stays healthy."""
    async def main(loop: SimLoop) -> None:
        rig = hedging_rig(loop, [[Wait(0.4), SendText("first")]], [QUICK])
        for _ in range(50):
            assert (await serve(rig)).upstream == "up1"
        assert rig.registry["up0"].n_failed_in_row == 0
        assert rig.registry["up0"].is_healthy(loop.now(), MODEL)

    run(main)


def test_place_freed_by_a_cancelled_waiter_goes_to_the_next() -> None:
    """The first waiter is called and leaves in the same turn of the loop: the second starts at that instant."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1.0), SendText("ok")]], limit=ONE)
        first = await rig.serve()
        leaving, staying = (loop.create_task(serve(rig)) for _ in range(2))
        await asyncio.sleep(0.5)
        await read(first)
        leaving.cancel()
        await staying
        assert (rig.sink.facts_of(AttemptDone)[-1].began_at, rig.n_in_flight) == (1.5, 0)
        assert leaving.cancelled()

    run(main)


def test_place_at_an_upstream_that_began_to_hang_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waiter gives up the place; the second one, which has more time, uses it."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1.0), SendText("ok")]], limit=ONE, timeouts=Timeouts(total_s=20.0))
        first = await rig.serve()
        waiting = [loop.create_task(serve(rig)) for _ in range(2)]
        await asyncio.sleep(0.5)
        hangs = iter([True])
        monkeypatch.setattr(caller, "awake", lambda plan, targets, now, ends_at: () if next(hangs, False) else targets)
        await read(first)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], UpstreamFailed)
        assert isinstance(found[1], RequestDone)
        assert loop.now() == 2.5

    run(main)
