"""Admission: who comes in, who waits, who is turned away, and that nothing is left behind whatever happens."""

import asyncio
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.compose.routes import queue_outlook
from stayfast.core.errors import DeadlineExceeded, Shed, StayfastError
from stayfast.core.events import RequestDone
from stayfast.core.types import Stage
from stayfast.pipeline.admission.controller import QueueOutlook
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.plan import Route
from stayfast.pipeline.routing.selector import Target
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import TenantTier, Urgency
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.resilience.cross_process import SharedLimit
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.testing import SimLoop, Wait, run
from tests.flow.admission_rig import ANSWER, Admitting, anybody, soon
from tests.flow.rig import MODEL, Rig, chat, read


def test_a_place_is_taken_until_the_end() -> None:
    """Two places, five requests of a second each: two at a time, in the order in which they came."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 2, max_wait_s=10)
        assert list(await asyncio.gather(*[it.outcome() for _ in range(5)])) == ["1", "1", "2", "2", "3"]
        it.assert_empty()
        done = it.rig.sink.facts_of(RequestDone)
        assert [round(fact.stages[0].spent_s, 6) for fact in done] == [0, 0, 1, 1, 2]
        assert done[-1].notes == ("queued 2000 ms in band realtime: 2 of 2 places were taken, 2 others waiting",)
        assert done[0].notes == ()

    run(main)


def test_a_full_queue_turns_away_at_once() -> None:
    """503 without waiting, with a Retry-After from a second up; the route and the reason are told."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_queue=1, max_wait_s=10)
        asking = [asyncio.ensure_future(it.outcome()) for _ in range(2)]
        await soon(loop, *asking)
        with pytest.raises(Shed) as shed:
            await it.ask()
        assert loop.now() == 0
        assert (shed.value.status, shed.value.code, shed.value.reason) == (503, "overloaded", "queue_full")
        assert 1 <= (shed.value.retry_after_s or 0) <= 2
        assert not shed.value.is_final
        assert "1 of 1 places are taken, 1 waiting" in shed.value.message
        fact = it.rig.sink.facts_of(RequestDone)[0]
        assert (fact.shed, fact.status, fact.error) == ("queue_full", 503, "overloaded")
        (note,) = fact.notes
        assert note == ("rejected, the queue is full: band realtime, no wait can be predicted yet, "
                        "1 of 1 places taken, 1 waiting, the event loop 0 ms late, 0% of a core in use")
        assert await asyncio.gather(*asking) == ["1", "2"]
        it.assert_empty()

    run(main)


def test_a_refusal_counts_what_other_workers_have_taken() -> None:
    """All places are another worker's: the words say so, by the counts of the decision."""
    async def main(loop: SimLoop) -> None:
        outlook = QueueOutlook(common=SharedLimit([0.0, 0.0, 4.0, 0.0], (0, 1), [(2, 3)]))
        it = Admitting(loop, 4, max_queue=1, max_wait_s=10, outlook=outlook)
        waiting = asyncio.ensure_future(it.outcome())
        await soon(loop, waiting)
        with pytest.raises(Shed) as shed:
            await it.ask()
        assert "4 of 4 places are taken (4 of them by other workers), 1 waiting" in shed.value.message
        (note,) = it.rig.sink.facts_of(RequestDone)[0].notes
        assert "4 of 4 places taken (4 of them by other workers), 1 waiting" in note
        waiting.cancel()

    run(main)


def test_a_wait_in_vain_is_refused_at_once() -> None:
    """By what answers have taken so far: beyond max_wait, and where it would not leave time for a first token."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_wait_s=1.5)
        await it.ask()
        asking = [asyncio.ensure_future(it.outcome()) for _ in range(2)]
        await soon(loop, *asking)
        assert await it.outcome() == "503 predicted_wait at 1"
        assert await asyncio.gather(*asking) == ["2", "3"]
        running = asyncio.ensure_future(it.outcome())
        await soon(loop, running)
        assert await it.outcome(total_s=0.9) == "503 predicted_wait at 3"
        assert await it.outcome(total_s=1.2) == "504 total_s_exceeded at 4.2"
        assert await running == "4"
        it.assert_empty()

    run(main)


def test_what_has_waited_too_long_goes() -> None:
    """Where nothing is known of how long answers take, patience decides."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_wait_s=0.5, target_wait_s=0.125)
        assert list(await asyncio.gather(it.outcome(), it.outcome())) == ["1", "503 queue_timeout at 0.5"]
        it.assert_empty()

    run(main)


def test_the_deadline_ends_a_wait() -> None:
    """504 in stage admit, at the very instant."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_wait_s=10)
        running = asyncio.ensure_future(it.outcome())
        await soon(loop, running)
        with pytest.raises(DeadlineExceeded) as late:
            await it.ask(total_s=0.25)
        assert (loop.now(), late.value.stage) == (0.25, Stage.ADMIT)
        assert await running == "1"
        it.assert_empty()

    run(main)


def test_bands_go_first_and_find_room() -> None:
    """A premium request passes everybody that waits; with places held back it need not even wait."""
    async def main(loop: SimLoop) -> None:
        tenants = {"gold": TenantConfig(TenantTier.PREMIUM), "bulk": TenantConfig(TenantTier.BATCH)}
        it = Admitting(loop, 1, tenants, max_wait_s=10)
        asking = [asyncio.ensure_future(it.outcome(name)) for name in ("bulk", "bulk", "std", "gold")]
        assert await asyncio.gather(*asking) == ["1", "4", "3", "2"]
        held = Admitting(loop, 10, tenants, reserved_share=0.1, max_wait_s=10)
        await held.ask("gold")
        began_at = loop.now()
        asking = [asyncio.ensure_future(held.outcome("bulk")) for _ in range(10)]
        await soon(loop, *asking)
        assert held.admission.places.n_taken == 8  # one is left for the band above, one is what gold has used
        assert await held.ask("gold") == pytest.approx(began_at + 1)
        await asyncio.gather(*asking)
        held.assert_empty()

    run(main)


def test_retries_and_batch_stand_behind() -> None:
    """An SDK's retry goes after first tries; what calls itself batch goes last; a repeated idempotency key is a retry."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_wait_s=10)
        order: list[str] = []

        async def ask(name: str, urgency: Urgency | None = None, *headers: tuple[str, str]) -> None:
            await it.ask(None, urgency=urgency, headers=headers)
            order.append(name)

        await ask("first", None, ("idempotency-key", "k"))
        await asyncio.gather(
            ask("running"), ask("batch", Urgency.BATCH), ask("retry", None, ("x-stainless-retry-count", "1")),
            ask("repeat", None, ("idempotency-key", "k")), ask("new", None, ("x-stainless-retry-count", "0")))
        assert order == ["first", "running", "new", "retry", "repeat", "batch"]
        it.assert_empty()

    run(main)


def test_a_quiet_tenant_is_not_behind_a_noisy_ones_queue() -> None:
    """Twenty of one tenant wait; the other's first goes next."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_wait_s=100)
        noisy = [asyncio.ensure_future(it.outcome("noisy")) for _ in range(20)]
        await soon(loop, *noisy)
        assert await it.outcome("quiet") == "2"
        await asyncio.gather(*noisy)
        it.assert_empty()

    run(main)


@pytest.mark.parametrize("stage", ["queued", "called", "mid_answer"])
def test_a_client_that_leaves_leaves_nothing(stage: str) -> None:
    """The place is given on at once, and of its quota only what was used is gone."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, anybody(requests_per_day=100, tokens_per_day=1000), max_wait_s=10)
        first = asyncio.ensure_future(it.outcome("other"))
        await soon(loop, first)
        leaving = asyncio.ensure_future(it.outcome("leaver", chat(max_tokens=300)))
        await asyncio.sleep({"queued": 0.9, "called": 1.2, "mid_answer": 1.7}[stage])
        left_at = loop.now()
        third = asyncio.ensure_future(it.outcome("third"))
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await third == f"{max(1.0, left_at) + 1:g}"
        requests, tokens = it.tenant("leaver").quota.allowances(loop.now())
        n_input = len(chat(max_tokens=300).body) / 4  # of its answer two words came, or one
        assert requests.remaining == (100 if stage == "queued" else 99)
        assert tokens.remaining == int({"queued": 1000, "called": 1000 - n_input, "mid_answer": 1000 - n_input - 1}[stage])
        it.assert_empty()

    run(main)


def test_a_quota_is_kept_to_the_token() -> None:
    """429 with the tenant's own figures and when to come back; another tenant has its own."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, None, anybody(tokens_per_minute=600))
        request = chat(max_tokens=400)
        await it.ask("a", request)
        assert it.tenant("a").quota.allowances(loop.now())[0].remaining > 500  # reconciled with what was said, not with 400
        await asyncio.gather(it.ask("a", request), it.ask("b", request))
        asking = asyncio.ensure_future(it.outcome("a", request))
        await soon(loop, asking)
        with pytest.raises(Shed) as shed:
            await it.ask("a", request)
        assert (shed.value.status, shed.value.code, shed.value.reason) == (429, "rate_limit_exceeded", "tokens_per_minute")
        assert "for a on tokens per minute: limit 600" in shed.value.message
        assert 0 < (shed.value.retry_after_s or 0) < 60
        assert not shed.value.is_final
        assert shed.value.allowances[0].limit == 600
        await asking
        it.assert_empty()

    run(main)


@pytest.mark.parametrize(("max_tokens", "n_passed"), [(2, 10), (4, 5), (None, 1)])
def test_a_first_burst_costs_no_more_than_it_may(max_tokens: int | None, n_passed: int) -> None:
    """A tenant that is new asks a hundred times at once, for a hundredth of its limit each: what these may cost passes.

    Of what was not used the next ones get their part at once, and in the end the books are right.
    """
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, None, anybody(cost_per_day=20.0), price=Price(0.0, 1e6))  # a dollar a token: two an answer
        request = chat() if max_tokens is None else chat(max_tokens=max_tokens)
        got = await asyncio.gather(*[it.outcome("a", request) for _ in range(100)])
        assert Counter(got) == {"1": n_passed, "429 cost_per_day at 0": 100 - n_passed}
        left = it.tenant("a").quota.levels(loop.now())["cost_per_day"][0]
        assert left == pytest.approx(20.0 - 2 * n_passed, abs=0.001)
        assert await it.outcome("a", chat(max_tokens=2)) == ("429 cost_per_day at 1" if n_passed == 10 else "2")
        it.assert_empty()

    run(main)


def test_who_may_answer_instead_counts_by_its_price() -> None:
    """A fallback's price, by the model's name there: it is known before anything is asked."""
    async def main(loop: SimLoop) -> None:
        one, other = Rig(loop, [ANSWER], [ANSWER]).registry
        dear, cheap = Price(1.0, 1e6), Price(2.0, 3.0)
        route = Route(MODEL, (Target(one, prices={MODEL: cheap}),), fallback=((Target(other, "big", {"big": dear}),),))
        assert route.policy.dearest == {MODEL: Price(2.0, 1e6)}

    run(main)


def test_nobody_shall_sleep_for_hours() -> None:
    """A wait beyond a minute is said in words; Retry-After is capped and SDKs are told not to retry."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, None, anybody(requests_per_day=1))
        await it.ask()
        with pytest.raises(Shed) as shed:
            await it.ask()
        assert (shed.value.retry_after_s, shed.value.is_final) == (60.0, True)
        assert shed.value.message.endswith("on requests per day: limit 1, left 0, requested 1. Please try again in 86400 s.")

    run(main)


def test_a_quotas_refusal_is_no_overload() -> None:
    """A request that is turned away for want of a place has used nothing."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, anybody(requests_per_minute=60), max_queue=0)
        asking = asyncio.ensure_future(it.outcome("a"))
        await soon(loop, asking)
        assert await it.outcome("b") == "503 queue_full at 0"
        assert it.tenant("b").quota.allowances(0.0)[0].remaining == 60
        await asking

    run(main)


def test_other_settings_while_some_wait() -> None:
    """A reload: what was used stays used, a new ceiling lets in at once, a raised quota adds the difference."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, anybody(requests_per_minute=60), max_wait_s=10)
        asking = [asyncio.ensure_future(it.outcome("a")) for _ in range(3)]
        await soon(loop, *asking)
        it.admission.configure(Admitting(loop, 3, max_wait_s=10).admission.places._config, anybody(requests_per_minute=60))
        assert it.tenant("a").quota.allowances(0.0)[0].remaining == 57
        assert await asyncio.gather(*asking) == ["1", "1.05", "1.05"]
        it.admission.configure(it.admission.places._config, anybody(requests_per_minute=90))
        assert it.tenant("a").quota.allowances(loop.now())[0].remaining == 88
        it.assert_empty()

    run(main)


def test_overload_takes_two_signs() -> None:
    """A late loop alone sheds nobody; with a long queue or a long wait low bands go, with both all but the first two."""
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_wait_s=100, target_wait_s=0.4, max_queue=4)
        running = [asyncio.ensure_future(it.outcome()) for _ in range(2)]
        await asyncio.sleep(0.15)
        loop.stall(0.2)  # the timer at 0.2 rings at 0.35
        await asyncio.sleep(0)
        low = asyncio.ensure_future(it.outcome(urgency=Urgency.BATCH))
        await soon(loop, low)
        assert it.admission.places.queue.n == 2
        assert await it.outcome(urgency=Urgency.BATCH) == f"503 overloaded at {loop.now():g}"
        standard = asyncio.ensure_future(it.outcome(urgency=Urgency.PLAIN))
        await soon(loop, standard)
        await asyncio.gather(*running, low, standard)
        it.assert_empty()

    run(main)


@pytest.mark.parametrize("is_limited", [True, False])
def test_a_queue_at_an_upstreams_limit_is_a_sign(is_limited: bool) -> None:
    """Where half of those that are in wait for their upstream, a long queue before the gateway is the second sign."""
    async def main(loop: SimLoop) -> list[str]:
        config = AdmissionConfig(4, QueueConfig(max_wait_s=100, target_wait_s=50, max_queue=4), reserved_share=0.0)
        admission = Admission(config, {}, loop, Random(3))
        rig = Rig(loop, [ANSWER], admit=admission, limit=LimitConfig("fixed", 1, 1) if is_limited else None)
        admission.configure(config, {}, queue_outlook(rig.router.routes, rig.registry))

        async def ask(urgency: Urgency) -> str:
            try:
                reply = await rig.gateway.serve(chat(), Arrival("req_1", loop.now(), total_s=60.0, urgency=urgency))
                await read(reply)
            except StayfastError as error:
                return f"{error.status} {error.code}"
            return "served"

        before = [asyncio.ensure_future(ask(Urgency.PLAIN)) for _ in range(6)]  # four are in, two wait for a place
        await asyncio.sleep(0.1)
        asked = [asyncio.ensure_future(ask(urgency)) for urgency in (Urgency.BATCH, Urgency.PLAIN)]
        said = await asyncio.gather(*asked)
        assert set(await asyncio.gather(*before)) == {"served"}
        return said

    assert run(main) == ["503 overloaded" if is_limited else "served", "served"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
def test_nothing_leaks(seed: int, n_places: int, max_queue: int) -> None:
    """Random clients of random tenants leave at random instants: at the end all places and all unused quota are back."""
    async def main(loop: SimLoop) -> None:
        rng = Random(seed)
        it = Admitting(loop, n_places, anybody(tokens_per_day=1e9), [Wait(0.2), *ANSWER],
                       reserved_share=0.1, max_queue=max_queue, max_wait_s=1.0)

        async def client(name: str) -> None:
            await asyncio.sleep(rng.uniform(0, 3))
            asking = asyncio.ensure_future(it.outcome(
                name, chat(max_tokens=10**6), total_s=rng.uniform(0.1, 3), urgency=rng.choice([None, *Urgency])))
            await asyncio.wait([asking], timeout=rng.choice([0.0, rng.uniform(0, 2), 5.0]))
            asking.cancel()
            await asyncio.wait([asking])

        await asyncio.gather(*[client(rng.choice("abc")) for _ in range(30)])
        it.assert_empty()
        for name in "abc":
            assert it.tenant(name).quota.allowances(loop.now())[0].remaining > 1e9 - 30 * 60  # never the reserved million

    run(main)


def test_full_queue_rejects_the_newest_of_the_busiest_tenant() -> None:
    """Two of one tenant wait and the queue is full: another tenant's request replaces the later one. A batch request is
    rejected before a realtime one of any tenant.
    """
    async def main(loop: SimLoop) -> None:
        it = Admitting(loop, 1, max_queue=2, max_wait_s=30, target_wait_s=30)
        await it.ask("noisy")  # one known answer, to predict waits
        noisy = [asyncio.ensure_future(it.outcome("noisy")) for _ in range(3)]
        await asyncio.sleep(0.1)
        quiet = asyncio.ensure_future(it.outcome("quiet"))
        assert (await noisy[2]).startswith("503 queue_full at 1.1")
        assert sorted(await asyncio.gather(*noisy[:2], quiet)) == ["2", "3", "4"]
        running = asyncio.ensure_future(it.outcome("quiet"))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(it.outcome("quiet", urgency=urgency)) for urgency in (Urgency.BATCH, None)]
        await asyncio.sleep(0.1)
        urgent = asyncio.ensure_future(it.outcome("noisy"))
        assert (await waiting[0]).startswith("503 queue_full")
        assert sorted(await asyncio.gather(running, waiting[1], urgent)) == ["5", "6", "7"]
        it.assert_empty()

    run(main)
