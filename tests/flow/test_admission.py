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
from tests.flow.admission_rig import ANSWER, AdmissionRig, quota_for_all, run_until_queued
from tests.flow.rig import MODEL, Rig, chat, read


def test_admission_place_is_held_until_the_end_of_the_answer() -> None:
    """Two places, five requests of a second each: two run at a time, in the order of arrival."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 2, max_wait_s=10)
        assert list(await asyncio.gather(*[rig.outcome() for _ in range(5)])) == ["1", "1", "2", "2", "3"]
        rig.assert_empty()
        done = rig.gateway_rig.sink.facts_of(RequestDone)
        assert [round(fact.stages[0].spent_s, 6) for fact in done] == [0, 0, 1, 1, 2]
        assert done[-1].notes == ("queued 2000 ms in band realtime: 2 of 2 places were taken, 2 others waiting",)
        assert done[0].notes == ()

    run(main)


def test_admission_full_queue_rejects_at_once() -> None:
    """503 without a wait, with a Retry-After of at least a second; the fact has the reason."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_queue=1, max_wait_s=10)
        asking = [asyncio.ensure_future(rig.outcome()) for _ in range(2)]
        await run_until_queued(loop, *asking)
        with pytest.raises(Shed) as shed:
            await rig.request()
        assert loop.now() == 0
        assert (shed.value.status, shed.value.code, shed.value.reason) == (503, "overloaded", "queue_full")
        assert 1 <= (shed.value.retry_after_s or 0) <= 2
        assert not shed.value.is_final
        assert "1 of 1 places are taken, 1 waiting" in shed.value.message
        fact = rig.gateway_rig.sink.facts_of(RequestDone)[0]
        assert (fact.shed, fact.status, fact.error) == ("queue_full", 503, "overloaded")
        (note,) = fact.notes
        assert note == ("rejected, the queue is full: band realtime, no wait can be predicted yet, "
                        "1 of 1 places taken, 1 waiting, the event loop 0 ms late, 0% of a core in use")
        assert await asyncio.gather(*asking) == ["1", "2"]
        rig.assert_empty()

    run(main)


def test_admission_refusal_counts_places_taken_by_other_workers() -> None:
    """Another worker has taken all places: the message has the counts of the decision."""
    async def main(loop: SimLoop) -> None:
        outlook = QueueOutlook(common=SharedLimit([0.0, 0.0, 4.0, 0.0], (0, 1), [(2, 3)]))
        rig = AdmissionRig(loop, 4, max_queue=1, max_wait_s=10, outlook=outlook)
        waiting = asyncio.ensure_future(rig.outcome())
        await run_until_queued(loop, waiting)
        with pytest.raises(Shed) as shed:
            await rig.request()
        assert "4 of 4 places are taken (4 of them by other workers), 1 waiting" in shed.value.message
        (note,) = rig.gateway_rig.sink.facts_of(RequestDone)[0].notes
        assert "4 of 4 places taken (4 of them by other workers), 1 waiting" in note
        waiting.cancel()

    run(main)


def test_admission_predicted_wait_beyond_the_limit_is_refused_at_once() -> None:
    """The prediction comes from earlier answers: beyond max_wait_s, or with no time left for a first token."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_wait_s=1.5)
        await rig.request()
        asking = [asyncio.ensure_future(rig.outcome()) for _ in range(2)]
        await run_until_queued(loop, *asking)
        assert await rig.outcome() == "503 predicted_wait at 1"
        assert await asyncio.gather(*asking) == ["2", "3"]
        running = asyncio.ensure_future(rig.outcome())
        await run_until_queued(loop, running)
        assert await rig.outcome(total_s=0.9) == "503 predicted_wait at 3"
        assert await rig.outcome(total_s=1.2) == "504 total_s_exceeded at 4.2"
        assert await running == "4"
        rig.assert_empty()

    run(main)


def test_admission_request_leaves_the_queue_after_max_wait() -> None:
    """No answer has been measured yet, so that no wait can be predicted."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_wait_s=0.5, target_wait_s=0.125)
        assert list(await asyncio.gather(rig.outcome(), rig.outcome())) == ["1", "503 queue_timeout at 0.5"]
        rig.assert_empty()

    run(main)


def test_admission_wait_ends_at_the_deadline() -> None:
    """504 in stage admit, at the instant of the deadline."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_wait_s=10)
        running = asyncio.ensure_future(rig.outcome())
        await run_until_queued(loop, running)
        with pytest.raises(DeadlineExceeded) as late:
            await rig.request(total_s=0.25)
        assert (loop.now(), late.value.stage) == (0.25, Stage.ADMIT)
        assert await running == "1"
        rig.assert_empty()

    run(main)


def test_admission_premium_requests_pass_the_queue_and_use_reserved_places() -> None:
    """A premium request passes all that wait; with reserved places it does not wait at all."""
    async def main(loop: SimLoop) -> None:
        tenants = {"gold": TenantConfig(TenantTier.PREMIUM), "bulk": TenantConfig(TenantTier.BATCH)}
        rig = AdmissionRig(loop, 1, tenants, max_wait_s=10)
        asking = [asyncio.ensure_future(rig.outcome(name)) for name in ("bulk", "bulk", "std", "gold")]
        assert await asyncio.gather(*asking) == ["1", "4", "3", "2"]
        held = AdmissionRig(loop, 10, tenants, reserved_share=0.1, max_wait_s=10)
        await held.request("gold")
        began_at = loop.now()
        asking = [asyncio.ensure_future(held.outcome("bulk")) for _ in range(10)]
        await run_until_queued(loop, *asking)
        assert held.admission.places.n_taken == 8  # one is left for the band above, one is what gold has used
        assert await held.request("gold") == pytest.approx(began_at + 1)
        await asyncio.gather(*asking)
        held.assert_empty()

    run(main)


def test_admission_retries_and_batch_requests_go_last() -> None:
    """A retry of an SDK goes after first tries, batch after all; a repeated idempotency key counts as a retry."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_wait_s=10)
        order: list[str] = []

        async def ask(name: str, urgency: Urgency | None = None, *headers: tuple[str, str]) -> None:
            await rig.request(None, urgency=urgency, headers=headers)
            order.append(name)

        await ask("first", None, ("idempotency-key", "k"))
        await asyncio.gather(
            ask("running"), ask("batch", Urgency.BATCH), ask("retry", None, ("x-stainless-retry-count", "1")),
            ask("repeat", None, ("idempotency-key", "k")), ask("new", None, ("x-stainless-retry-count", "0")))
        assert order == ["first", "running", "new", "retry", "repeat", "batch"]
        rig.assert_empty()

    run(main)


def test_admission_quiet_tenant_does_not_wait_behind_the_queue_of_a_noisy_one() -> None:
    """Twenty requests of one tenant wait; the first request of the other tenant goes next."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_wait_s=100)
        noisy = [asyncio.ensure_future(rig.outcome("noisy")) for _ in range(20)]
        await run_until_queued(loop, *noisy)
        assert await rig.outcome("quiet") == "2"
        await asyncio.gather(*noisy)
        rig.assert_empty()

    run(main)


@pytest.mark.parametrize("stage", ["queued", "called", "mid_answer"])
def test_admission_client_that_leaves_frees_its_place_and_unused_quota(stage: str) -> None:
    """The next request gets the place at once; only the quota that was used is gone."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, quota_for_all(requests_per_day=100, tokens_per_day=1000), max_wait_s=10)
        first = asyncio.ensure_future(rig.outcome("other"))
        await run_until_queued(loop, first)
        leaving = asyncio.ensure_future(rig.outcome("leaver", chat(max_tokens=300)))
        await asyncio.sleep({"queued": 0.9, "called": 1.2, "mid_answer": 1.7}[stage])
        left_at = loop.now()
        third = asyncio.ensure_future(rig.outcome("third"))
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await third == f"{max(1.0, left_at) + 1:g}"
        requests, tokens = rig.tenant("leaver").quota.allowances(loop.now())
        n_input = len(chat(max_tokens=300).body) / 4  # of its answer two words came, or one
        assert requests.remaining == (100 if stage == "queued" else 99)
        assert tokens.remaining == int({"queued": 1000, "called": 1000 - n_input, "mid_answer": 1000 - n_input - 1}[stage])
        rig.assert_empty()

    run(main)


def test_admission_quota_is_enforced_to_the_token() -> None:
    """429 with the figures of the tenant and a Retry-After; another tenant has a quota of its own."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, None, quota_for_all(tokens_per_minute=600))
        request = chat(max_tokens=400)
        await rig.request("a", request)
        assert rig.tenant("a").quota.allowances(loop.now())[0].remaining > 500  # reconciled with what was said, not with 400
        await asyncio.gather(rig.request("a", request), rig.request("b", request))
        asking = asyncio.ensure_future(rig.outcome("a", request))
        await run_until_queued(loop, asking)
        with pytest.raises(Shed) as shed:
            await rig.request("a", request)
        assert (shed.value.status, shed.value.code, shed.value.reason) == (429, "rate_limit_exceeded", "tokens_per_minute")
        assert "for a on tokens per minute: limit 600" in shed.value.message
        assert 0 < (shed.value.retry_after_s or 0) < 60
        assert not shed.value.is_final
        assert shed.value.allowances[0].limit == 600
        await asking
        rig.assert_empty()

    run(main)


@pytest.mark.parametrize(("max_tokens", "n_passed"), [(2, 10), (4, 5), (None, 1)])
def test_admission_first_burst_costs_no_more_than_the_limit(max_tokens: int | None, n_passed: int) -> None:
    """A new tenant sends a hundred requests at once. Unused reservations return at the end of each request."""
    async def main(loop: SimLoop) -> None:
        # a dollar a token: two an answer
        rig = AdmissionRig(loop, None, quota_for_all(cost_per_day=20.0), price=Price(0.0, 1e6))
        request = chat() if max_tokens is None else chat(max_tokens=max_tokens)
        got = await asyncio.gather(*[rig.outcome("a", request) for _ in range(100)])
        assert Counter(got) == {"1": n_passed, "429 cost_per_day at 0": 100 - n_passed}
        left = rig.tenant("a").quota.levels(loop.now())["cost_per_day"][0]
        assert left == pytest.approx(20.0 - 2 * n_passed, abs=0.001)
        assert await rig.outcome("a", chat(max_tokens=2)) == ("429 cost_per_day at 1" if n_passed == 10 else "2")
        rig.assert_empty()

    run(main)


def test_route_most_expensive_price_includes_the_fallback() -> None:
    """The price is by the name of the model at the fallback; it is known before any call."""
    async def main(loop: SimLoop) -> None:
        one, other = Rig(loop, [ANSWER], [ANSWER]).registry
        dear, cheap = Price(1.0, 1e6), Price(2.0, 3.0)
        route = Route(MODEL, (Target(one, prices={MODEL: cheap}),), fallback=((Target(other, "big", {"big": dear}),),))
        assert route.policy.dearest == {MODEL: Price(2.0, 1e6)}

    run(main)


def test_admission_retry_after_is_capped_at_a_minute() -> None:
    """The message has the whole wait, and `x-should-retry` keeps SDKs from a retry."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, None, quota_for_all(requests_per_day=1))
        await rig.request()
        with pytest.raises(Shed) as shed:
            await rig.request()
        assert (shed.value.retry_after_s, shed.value.is_final) == (60.0, True)
        assert shed.value.message.endswith("on requests per day: limit 1, left 0, requested 1. Please try again in 86400 s.")

    run(main)


def test_admission_rejected_request_uses_no_quota() -> None:
    """The request was rejected for want of a place."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, quota_for_all(requests_per_minute=60), max_queue=0)
        asking = asyncio.ensure_future(rig.outcome("a"))
        await run_until_queued(loop, asking)
        assert await rig.outcome("b") == "503 queue_full at 0"
        assert rig.tenant("b").quota.allowances(0.0)[0].remaining == 60
        await asking

    run(main)


def test_admission_reload_applies_new_settings_to_waiting_requests() -> None:
    """Used quota stays used, a higher ceiling admits at once, a raised quota adds the difference."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, quota_for_all(requests_per_minute=60), max_wait_s=10)
        asking = [asyncio.ensure_future(rig.outcome("a")) for _ in range(3)]
        await run_until_queued(loop, *asking)
        rig.admission.configure(AdmissionRig(loop, 3, max_wait_s=10).config, quota_for_all(requests_per_minute=60))
        assert rig.tenant("a").quota.allowances(0.0)[0].remaining == 57
        assert await asyncio.gather(*asking) == ["1", "1.05", "1.05"]
        rig.admission.configure(rig.config, quota_for_all(requests_per_minute=90))
        assert rig.tenant("a").quota.allowances(loop.now())[0].remaining == 88
        rig.assert_empty()

    run(main)


def test_admission_sheds_only_with_two_signs_of_overload() -> None:
    """A late event loop alone sheds nothing; with a long queue, batch requests are shed."""
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_wait_s=100, target_wait_s=0.4, max_queue=4)
        running = [asyncio.ensure_future(rig.outcome()) for _ in range(2)]
        await asyncio.sleep(0.15)
        loop.stall(0.2)  # the timer at 0.2 rings at 0.35
        await asyncio.sleep(0)
        low = asyncio.ensure_future(rig.outcome(urgency=Urgency.BATCH))
        await run_until_queued(loop, low)
        assert rig.admission.places.queue.n == 2
        assert await rig.outcome(urgency=Urgency.BATCH) == f"503 overloaded at {loop.now():g}"
        standard = asyncio.ensure_future(rig.outcome(urgency=Urgency.PLAIN))
        await run_until_queued(loop, standard)
        await asyncio.gather(*running, low, standard)
        rig.assert_empty()

    run(main)


@pytest.mark.parametrize("is_limited", [True, False])
def test_admission_queue_at_an_upstream_limit_is_a_sign_of_overload(is_limited: bool) -> None:
    """Half of the admitted requests wait for their upstream: the second sign, beside a long queue of the gateway."""
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
def test_admission_random_clients_leave_nothing_held(seed: int, n_places: int, max_queue: int) -> None:
    """Random clients of random tenants leave at random instants: all places and all unused quota return."""
    async def main(loop: SimLoop) -> None:
        rng = Random(seed)
        rig = AdmissionRig(loop, n_places, quota_for_all(tokens_per_day=1e9), [Wait(0.2), *ANSWER],
                       reserved_share=0.1, max_queue=max_queue, max_wait_s=1.0)

        async def client(name: str) -> None:
            await asyncio.sleep(rng.uniform(0, 3))
            asking = asyncio.ensure_future(rig.outcome(
                name, chat(max_tokens=10**6), total_s=rng.uniform(0.1, 3), urgency=rng.choice([None, *Urgency])))
            await asyncio.wait([asking], timeout=rng.choice([0.0, rng.uniform(0, 2), 5.0]))
            asking.cancel()
            await asyncio.wait([asking])

        await asyncio.gather(*[client(rng.choice("abc")) for _ in range(30)])
        rig.assert_empty()
        for name in "abc":
            assert rig.tenant(name).quota.allowances(loop.now())[0].remaining > 1e9 - 30 * 60  # never the reserved million

    run(main)


def test_admission_full_queue_rejects_the_newest_request_of_the_busiest_tenant() -> None:
    """Two requests of one tenant wait in a full queue: a request of another tenant replaces the later one. A batch request
    is rejected before a realtime one of any tenant.
    """
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, 1, max_queue=2, max_wait_s=30, target_wait_s=30)
        await rig.request("noisy")  # one known answer, to predict waits
        noisy = [asyncio.ensure_future(rig.outcome("noisy")) for _ in range(3)]
        await asyncio.sleep(0.1)
        quiet = asyncio.ensure_future(rig.outcome("quiet"))
        assert (await noisy[2]).startswith("503 queue_full at 1.1")
        assert sorted(await asyncio.gather(*noisy[:2], quiet)) == ["2", "3", "4"]
        running = asyncio.ensure_future(rig.outcome("quiet"))
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(rig.outcome("quiet", urgency=urgency)) for urgency in (Urgency.BATCH, None)]
        await asyncio.sleep(0.1)
        urgent = asyncio.ensure_future(rig.outcome("noisy"))
        assert (await waiting[0]).startswith("503 queue_full")
        assert sorted(await asyncio.gather(running, waiting[1], urgent)) == ["5", "6", "7"]
        rig.assert_empty()

    run(main)
