"""Whose fault a failure is: the key's, the model's, the endpoint's; and what that does to requests that come after."""

import asyncio

import pytest

from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import AttemptDone, BreakerChanged
from stayfast.core.types import Api
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.breaker import BreakerConfig, BreakerState
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import SimLoop, run
from stayfast.upstreams.state.permit import acquire_permit
from tests.flow.dialects import ask
from tests.flow.failure_rig import NO_MODEL, FailingUpstream, FailureRig, failure
from tests.flow.rig import read

VLLM = {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}


@pytest.mark.parametrize("said", [NO_MODEL, VLLM, {"detail": "Not Found"}])
@pytest.mark.parametrize("in_turn", [True, False])
def test_failover_unknown_model_goes_to_another_upstream(said: object, in_turn: bool) -> None:
    """The client does not see the 404; for a minute the upstream is not tried first."""
    async def main(loop: SimLoop) -> None:
        missing = FailingUpstream("a", loop, m=failure(404, said))
        rig = FailureRig(loop, missing, FailingUpstream("b", loop), in_turn=in_turn)
        assert [await rig.request() for _ in range(50)] == ["b"] * 50
        assert len(missing.called_models) <= 1
        assert not in_turn or "it does not know the model (404)" in rig.notes[0]
        await asyncio.sleep(61)
        missing.failures = {}
        assert not in_turn or await rig.request() == "a"

    run(main)


def test_failover_model_unknown_at_all_upstreams_is_a_404() -> None:
    """With the error code of the upstream, and final: a retry cannot help."""
    async def main(loop: SimLoop) -> None:
        rig = FailureRig(loop, FailingUpstream("a", loop, m=failure(404, NO_MODEL)), FailingUpstream("b", loop,
                                                                                                     m=failure(404,
                                                                                                               NO_MODEL)))
        with pytest.raises(UpstreamFailed) as refused:
            await rig.request()
        assert (refused.value.status, refused.value.code, refused.value.is_final) == (404, "model_not_found", True)

    run(main)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_refused_key_does_not_open_the_breaker(status: int) -> None:
    """The other upstream goes first, and the note has the reason."""
    async def main(loop: SimLoop) -> None:
        rig = FailureRig(loop, FailingUpstream("a", loop, m=failure(status)), FailingUpstream("b", loop))
        assert [await rig.request() for _ in range(8)] == ["b"] * 8
        assert rig.notes == [f"a is tried last: its key was refused ({status})"]
        alone = FailureRig(loop, FailingUpstream("a", loop, m=failure(status)))
        for _ in range(8):
            with pytest.raises(UpstreamFailed) as refused:
                await alone.request()
            assert refused.value.code == "upstream_credentials"
        assert (alone.registry["a"].n_failed_in_row, alone.sink.facts_of(BreakerChanged)) == (0, [])

    run(main)


@pytest.mark.parametrize("status", [401, 402, 403, 407])
def test_refused_key_delays_no_later_retry(status: int) -> None:
    """After refusals the upstream fails with 500: retries follow after a back-off, and not after a minute."""
    async def main(loop: SimLoop) -> None:
        up = FailingUpstream("a", loop, m=failure(status))
        rig = FailureRig(loop, up, retry=RetryConfig())
        for _ in range(2):
            with pytest.raises(UpstreamFailed):
                await rig.request()
        up.failures = {"m": failure(500)}
        began_at = loop.now()
        with pytest.raises(UpstreamFailed):
            await rig.request()
        assert (len(up.called_models), loop.now() - began_at < 0.5) == (5, True)

    run(main)


def test_refused_key_is_cleared_by_the_first_answer() -> None:
    """The only alternative fails, so that the upstream is tried; from its first token on it goes first again."""
    async def main(loop: SimLoop) -> None:
        first, second = FailingUpstream("a", loop, m=failure(401)), FailingUpstream("b", loop)
        rig = FailureRig(loop, first, second)
        assert [await rig.request() for _ in range(2)] == ["b"] * 2
        first.failures, second.failures = {}, {"m": failure(500)}
        began_at = loop.now()
        assert await rig.request() == "a"
        assert loop.now() - began_at == pytest.approx(0.1)  # no back-off before the first call there
        second.failures = {}
        assert await rig.request() == "a"
        assert rig.notes == []

    run(main)


@pytest.mark.parametrize("status", [402, 403])
def test_refused_key_takes_two_requests_in_a_row(status: int) -> None:
    """A repetition by an SDK does not count; an answer in between resets the count."""
    async def main(loop: SimLoop) -> None:
        up = FailingUpstream("a", loop)
        rig = FailureRig(loop, up, FailingUpstream("b", loop))
        for _ in range(3):
            up.failures = {"m": failure(status)}
            assert await rig.request() == "b"
            assert await rig.request(headers={"x-stainless-retry-count": "1"}) == "b"
            up.failures = {}
            assert await rig.request() == "a"
        up.failures = {"m": failure(status)}
        n_before = len(up.called_models)
        assert [await rig.request() for _ in range(5)] == ["b"] * 5
        assert len(up.called_models) == n_before + 2

    run(main)


def test_readiness_ends_after_ten_refused_keys_in_a_row() -> None:
    """One answer restores it."""
    async def main(loop: SimLoop) -> None:
        up = FailingUpstream("a", loop)
        rig = FailureRig(loop, up)
        await rig.request()
        up.failures = {"any": failure(401)}
        for _ in range(10):
            assert rig.registry.has_proven
            with pytest.raises(UpstreamFailed):
                await rig.request()
        assert not rig.registry.has_proven
        up.failures = {}
        await rig.request()
        assert rig.registry.has_proven

    run(main)


@pytest.mark.parametrize(("error", "n"), [(failure(429, retry_after_s=20), 1), (failure(500), 5),
                                          (failure(404, NO_MODEL), 1)])
@pytest.mark.parametrize("routes", [("x", "y"), ("*",)])
def test_failure_of_one_model_does_not_affect_another(error: UpstreamFailed, n: int, routes: tuple[str, ...]) -> None:
    """Requests for the other model go to the same upstream as before."""
    async def main(loop: SimLoop) -> None:
        sick = FailingUpstream("a", loop, x=error)
        rig = FailureRig(loop, sick, FailingUpstream("b", loop), routes=routes)
        assert [await rig.request("x") for _ in range(8)] == ["b"] * 8
        assert sick.called_models == ["x"] * n
        assert [await rig.request("y") for _ in range(8)] == ["a"] * 8
        assert not any("'x'" not in fact.why for fact in rig.sink.facts_of(BreakerChanged))

    run(main)


def test_refused_key_is_tracked_by_model() -> None:
    """One request for each model is enough, and its client gets an answer."""
    async def main(loop: SimLoop) -> None:
        up = FailingUpstream("a", loop, x=failure(401))
        rig = FailureRig(loop, up, FailingUpstream("b", loop), routes=("x", "y"))
        assert [await rig.request(model) for model in "xyxy"] == ["b", "a", "b", "a"]
        assert up.called_models == ["x", "y", "y"]

    run(main)


def test_failover_503_with_retry_after_pauses_the_upstream() -> None:
    async def main(loop: SimLoop) -> None:
        busy = FailingUpstream("a", loop, m=failure(503, retry_after_s=30))
        rig = FailureRig(loop, busy, FailingUpstream("b", loop))
        assert [await rig.request() for _ in range(4)] == ["b"] * 4
        assert len(busy.called_models) == 1
        assert rig.notes == ["a is tried last: its Retry-After is 30 s"]
        busy.failures = {}
        await asyncio.sleep(30)
        assert await rig.request() == "a"

    run(main)


def test_retry_allowance_at_low_traffic_is_shared_by_routes() -> None:
    """Twenty routes have twenty allowances, their upstream has one."""
    async def main(loop: SimLoop) -> None:
        names = tuple(f"m{n}" for n in range(20))
        down = FailingUpstream("a", loop, any=failure(500))
        rig = FailureRig(loop, down, routes=names, retry=RetryConfig(), breaker=BreakerConfig(enabled=False))
        for name in names * 5:
            with pytest.raises(UpstreamFailed):
                await rig.request(name)
        assert 100 < len(down.called_models) <= 120

    run(main)


@pytest.mark.parametrize(("count", "n_calls"), [("0", 3), ("00", 3), ("", 3), ("1", 1), ("2", 1)])
def test_retry_count_header_disables_retries(count: str, n_calls: int) -> None:
    """Nor does such a request deposit into the retry budget."""
    async def main(loop: SimLoop) -> None:
        down = FailingUpstream("a", loop, any=failure(500))
        rig = FailureRig(loop, down, retry=RetryConfig())
        with pytest.raises(UpstreamFailed):
            await rig.request(headers={"x-stainless-retry-count": count})
        assert len(down.called_models) == n_calls
        assert rig.routes["m"].hedging.budget.deposits.n_requests == (n_calls > 1)

    run(main)


def test_retry_count_header_disables_hedging() -> None:
    async def main(loop: SimLoop) -> None:
        rig = FailureRig(loop, FailingUpstream("a", loop), FailingUpstream("b", loop), hedge=HedgeConfig(mode="race",
                                                                                                         race_after_s=0.01))
        await rig.request(headers={"x-stainless-retry-count": "1"})
        assert len(rig.sink.facts_of(AttemptDone)) == 1
        await rig.request(headers={"x-stainless-retry-count": "0"})
        assert len(rig.sink.facts_of(AttemptDone)) == 3

    run(main)


def test_race_hedges_do_not_use_the_retry_budget() -> None:
    """A hundred races, then one in which both attempts fail: it is retried."""
    async def main(loop: SimLoop) -> None:
        ups = FailingUpstream("a", loop), FailingUpstream("b", loop)
        rig = FailureRig(loop, *ups, hedge=HedgeConfig(mode="race", race_after_s=0.01), retry=RetryConfig(),
                  breaker=BreakerConfig(enabled=False))
        for _ in range(100):
            await rig.request()
        assert rig.routes["m"].hedging.budget.extra_share(loop.now()) == 0
        for up in ups:
            up.failures = {"m": failure(500)}
        with pytest.raises(UpstreamFailed):
            await rig.request()
        assert rig.routes["m"].hedging.budget.extra_share(loop.now()) > 0

    run(main)


@pytest.mark.parametrize(("fields", "n_calls"), [({"store": None}, 1), ({"store": True}, 1), ({"store": False}, 2)])
@pytest.mark.parametrize("may_repeat", [False, True])
def test_stored_responses_request_is_sent_once_unless_allowed(fields: dict[str, object], n_calls: int,
                                                              may_repeat: bool) -> None:
    """A Responses request is stored by default; allow_stateful permits a second attempt."""
    async def main(loop: SimLoop) -> None:
        sent = {name: value for name, value in fields.items() if value is not None}
        retry = RetryConfig(max_attempts=2, allow_stateful=may_repeat)
        down = FailureRig(loop, FailingUpstream("a", loop, m=failure(500)), FailingUpstream("b", loop, m=failure(500)),
                          retry=retry)
        race = FailureRig(loop, FailingUpstream("a", loop), FailingUpstream("b", loop), retry=retry,
                   hedge=HedgeConfig(mode="race", race_after_s=0.01, allow_stateful=may_repeat))
        request = ask(Api.RESPONSES, stream=True, store=sent.get("store"))
        with pytest.raises(UpstreamFailed):
            await down.gateway.serve(request, Arrival("req_1", loop.now()))
        await read(await race.gateway.serve(request, Arrival("req_1", loop.now())))
        n_expected = 2 if may_repeat else n_calls
        assert [len(rig.sink.facts_of(AttemptDone)) for rig in (down, race)] == [n_expected] * 2

    run(main)


def test_stored_request_refused_by_one_upstream_is_sent_to_another() -> None:
    """A refusal is certain to have had no effect."""
    async def main(loop: SimLoop) -> None:
        for error in (failure(429), failure(401), failure(404, NO_MODEL)):
            rig = FailureRig(loop, FailingUpstream("a", loop, m=error), FailingUpstream("b", loop))
            assert await rig.request(store=True) == "b"

    run(main)


def test_backlog_counts_long_prompts_by_length() -> None:
    """An upstream reads a prompt of a hundred thousand tokens: short requests go to the other one."""
    async def main(loop: SimLoop) -> None:
        ups = FailingUpstream("a", loop), FailingUpstream("b", loop)
        rig = FailureRig(loop, *ups, in_turn=False)
        for _ in range(60):
            await rig.request()
        member = rig.registry["a"]
        place = acquire_permit(member, member.baselines.baseline_for("m", 100_000, False), loop.now(), "m", n_tokens=100_000)
        other = rig.registry["b"]
        beside = acquire_permit(other, other.baselines.baseline_for("m", 20, False), loop.now(), "m", n_tokens=20)
        for up in ups:
            up.called_models.clear()
        for _ in range(40):
            await rig.request()
        assert (len(ups[0].called_models), len(ups[1].called_models)) == (0, 40)
        place.record_first_token(loop.now())
        assert member.backlog is not None
        assert member.backlog.work == 0
        beside.record_first_token(loop.now())

    run(main)


def test_health_of_models_named_by_clients_is_bounded() -> None:
    """The oldest models are dropped, so that clients cannot fill the memory with names."""
    async def main(loop: SimLoop) -> None:
        rig = FailureRig(loop, FailingUpstream("a", loop), routes=("*", "x"))
        for n in range(200):
            await rig.request(f"m{n}")
        assert len(list(rig.registry["a"].healths)) == 65
        assert all(health.breaker.state is BreakerState.CLOSED for health in rig.registry["a"].healths)

    run(main)
