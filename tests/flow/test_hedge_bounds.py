"""What bounds a hedge, in virtual time: the deadline of its request, and the budget, whose empty state feeds back."""

from dataclasses import replace
from random import Random

from stayfast.core.errors import DeadlineExceeded
from stayfast.core.events import AttemptDone, Hedged
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from tests.flow.rig import MODEL, Rig, read

QUICK: Script = [Wait(0.2), SendText("quick")]
LATE: Script = [Wait(3.0), SendText("late")]


def _rig(loop: SimLoop, scripts: list[Script], budget: float) -> tuple[Rig, Hedging]:
    """Two upstreams with the same scripts, on a route that hedges."""
    retry = RetryConfig(max_attempts=1)
    rig = Rig(loop, scripts, scripts, in_turn=True, retry=retry)
    routes = rig.gateway.router.routes
    assert isinstance(routes, dict)
    hedging = Hedging(HedgeConfig(budget=budget), retry)
    routes[MODEL] = replace(routes[MODEL], hedging=hedging)
    return rig, hedging


def test_hedge_without_time_before_the_deadline_is_refused() -> None:
    """A token usually takes 0.2 s: with less time left, a hedge would only be load."""
    async def main(loop: SimLoop) -> None:
        rig, _ = _rig(loop, [*[QUICK] * 9, LATE], 0.2)
        for _ in range(200):
            await read(await rig.serve())
        n_facts, n_attempts, n_over = len(rig.sink.facts_of(Hedged)), len(rig.sink.facts_of(AttemptDone)), 0
        for _ in range(30):
            try:
                await read(await rig.serve(total_s=0.38))
            except DeadlineExceeded:
                n_over += 1
        facts = rig.sink.facts_of(Hedged)[n_facts:]
        assert n_over >= 2
        assert {fact.refused for fact in facts} == {"deadline"}
        assert len(rig.sink.facts_of(AttemptDone)) == n_attempts + 30
        await read(await rig.serve())
        while not [fact for fact in rig.sink.facts_of(Hedged)[n_facts:] if not fact.refused]:
            await read(await rig.serve(total_s=5.0))

    run(main)


def test_hedge_refused_by_the_budget_shows_in_the_demand() -> None:
    """Once for each slow request, and not in the spending."""
    async def main(loop: SimLoop) -> None:
        rig, hedging = _rig(loop, [*[QUICK] * 9, LATE], 0.2)
        for _ in range(200):
            await read(await rig.serve())
        hedging.budget.withdraw_hedge(1e6, loop.now())
        spent, n_facts = hedging.budget.hedged_share(loop.now()), len(rig.sink.facts_of(Hedged))
        assert hedging.budget.hedge_demand(loop.now()) == spent
        for _ in range(10):
            await read(await rig.serve())
        assert {fact.refused for fact in rig.sink.facts_of(Hedged)[n_facts:]} == {"budget"}
        assert hedging.budget.hedged_share(loop.now()) <= spent
        assert hedging.budget.hedge_demand(loop.now()) > hedging.budget.hedged_share(loop.now())

    run(main)


def test_hedge_delay_grows_with_blocked_hedges() -> None:
    """The samples are the same; blocked hedges in the last minute make the next hedge later."""
    def planned_after_s(n_blocked: int) -> float:
        rng, hedging = Random(4), Hedging(HedgeConfig(budget=0.1), RetryConfig())
        tokens, weight = hedging.first_tokens(("a", "m"), 400, is_whole=False), weight_of(400)
        for _ in range(1000):
            tokens.start_attempt(rng, 50.0 - rng.lognormvariate(-1.6, 1.0))
            tokens.record_first_token(rng, 50.0)
            hedging.budget.deposit(weight, 50.0)
        for _ in range(n_blocked):
            hedging.budget.record_blocked_hedge(weight, 50.0)
        return hedging.plan_hedge(("a", "m"), ("a", "m"), 400, 51.0, is_whole=False).after_s

    assert planned_after_s(0) < planned_after_s(100) < planned_after_s(150)
