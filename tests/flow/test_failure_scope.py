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
from tests.flow.failure_rig import NO_MODEL, Picky, Rig, says
from tests.flow.rig import read

VLLM = {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}


@pytest.mark.parametrize("said", [NO_MODEL, VLLM, {"detail": "Not Found"}])
@pytest.mark.parametrize("in_turn", [True, False])
def test_failover_unknown_model_goes_to_another_upstream(said: object, in_turn: bool) -> None:
    """The client does not see the 404; for a minute the upstream is not tried first."""
    async def main(loop: SimLoop) -> None:
        missing = Picky("a", loop, m=says(404, said))
        rig = Rig(loop, missing, Picky("b", loop), in_turn=in_turn)
        assert [await rig.ask() for _ in range(50)] == ["b"] * 50
        assert len(missing.asked) <= 1
        assert not in_turn or "it does not know the model (404)" in rig.notes[0]
        await asyncio.sleep(61)
        missing.fails = {}
        assert not in_turn or await rig.ask() == "a"

    run(main)


def test_failover_model_unknown_at_all_upstreams_is_a_404() -> None:
    """With the error code of the upstream, and final: a retry cannot help."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, Picky("a", loop, m=says(404, NO_MODEL)), Picky("b", loop, m=says(404, NO_MODEL)))
        with pytest.raises(UpstreamFailed) as refused:
            await rig.ask()
        assert (refused.value.status, refused.value.code, refused.value.is_final) == (404, "model_not_found", True)

    run(main)


@pytest.mark.parametrize("status", [401, 402, 403])
def test_refused_key_does_not_open_the_breaker(status: int) -> None:
    """The other upstream goes first, and the note has the reason."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, Picky("a", loop, m=says(status)), Picky("b", loop))
        assert [await rig.ask() for _ in range(8)] == ["b"] * 8
        assert rig.notes == [f"a is tried last: its key was refused ({status})"]
        alone = Rig(loop, Picky("a", loop, m=says(status)))
        for _ in range(8):
            with pytest.raises(UpstreamFailed) as refused:
                await alone.ask()
            assert refused.value.code == "upstream_credentials"
        assert (alone.registry["a"].n_failed_in_row, alone.sink.facts_of(BreakerChanged)) == (0, [])

    run(main)


@pytest.mark.parametrize("status", [401, 402, 403, 407])
def test_refused_key_delays_no_later_retry(status: int) -> None:
    """After refusals the upstream fails with 500: retries follow after a back-off, and not after a minute."""
    async def main(loop: SimLoop) -> None:
        up = Picky("a", loop, m=says(status))
        rig = Rig(loop, up, retry=RetryConfig())
        for _ in range(2):
            with pytest.raises(UpstreamFailed):
                await rig.ask()
        up.fails = {"m": says(500)}
        began_at = loop.now()
        with pytest.raises(UpstreamFailed):
            await rig.ask()
        assert (len(up.asked), loop.now() - began_at < 0.5) == (5, True)

    run(main)


def test_refused_key_is_cleared_by_the_first_answer() -> None:
    """The only alternative fails, so that the upstream is tried; from its first token on it goes first again."""
    async def main(loop: SimLoop) -> None:
        first, second = Picky("a", loop, m=says(401)), Picky("b", loop)
        rig = Rig(loop, first, second)
        assert [await rig.ask() for _ in range(2)] == ["b"] * 2
        first.fails, second.fails = {}, {"m": says(500)}
        began_at = loop.now()
        assert await rig.ask() == "a"
        assert loop.now() - began_at == pytest.approx(0.1)  # no back-off before the first call there
        second.fails = {}
        assert await rig.ask() == "a"
        assert rig.notes == []

    run(main)


@pytest.mark.parametrize("status", [402, 403])
def test_refused_key_takes_two_requests_in_a_row(status: int) -> None:
    """A repetition by an SDK does not count; an answer in between resets the count."""
    async def main(loop: SimLoop) -> None:
        up = Picky("a", loop)
        rig = Rig(loop, up, Picky("b", loop))
        for _ in range(3):
            up.fails = {"m": says(status)}
            assert await rig.ask() == "b"
            assert await rig.ask(headers={"x-stainless-retry-count": "1"}) == "b"
            up.fails = {}
            assert await rig.ask() == "a"
        up.fails = {"m": says(status)}
        n_before = len(up.asked)
        assert [await rig.ask() for _ in range(5)] == ["b"] * 5
        assert len(up.asked) == n_before + 2

    run(main)


def test_readiness_ends_after_ten_refused_keys_in_a_row() -> None:
    """One answer restores it."""
    async def main(loop: SimLoop) -> None:
        up = Picky("a", loop)
        rig = Rig(loop, up)
        await rig.ask()
        up.fails = {"any": says(401)}
        for _ in range(10):
            assert rig.registry.has_proven
            with pytest.raises(UpstreamFailed):
                await rig.ask()
        assert not rig.registry.has_proven
        up.fails = {}
        await rig.ask()
        assert rig.registry.has_proven

    run(main)


@pytest.mark.parametrize(("error", "n"), [(says(429, retry_after_s=20), 1), (says(500), 5), (says(404, NO_MODEL), 1)])
@pytest.mark.parametrize("routes", [("x", "y"), ("*",)])
def test_failure_of_one_model_does_not_affect_another(error: UpstreamFailed, n: int, routes: tuple[str, ...]) -> None:
    """Requests for the other model go to the same upstream as before."""
    async def main(loop: SimLoop) -> None:
        sick = Picky("a", loop, x=error)
        rig = Rig(loop, sick, Picky("b", loop), routes=routes)
        assert [await rig.ask("x") for _ in range(8)] == ["b"] * 8
        assert sick.asked == ["x"] * n
        assert [await rig.ask("y") for _ in range(8)] == ["a"] * 8
        assert not any("'x'" not in fact.why for fact in rig.sink.facts_of(BreakerChanged))

    run(main)


def test_refused_key_is_tracked_by_model() -> None:
    """One request for each model is enough, and its client gets an answer."""
    async def main(loop: SimLoop) -> None:
        up = Picky("a", loop, x=says(401))
        rig = Rig(loop, up, Picky("b", loop), routes=("x", "y"))
        assert [await rig.ask(model) for model in "xyxy"] == ["b", "a", "b", "a"]
        assert up.asked == ["x", "y", "y"]

    run(main)


def test_failover_503_with_retry_after_pauses_the_upstream() -> None:
    async def main(loop: SimLoop) -> None:
        busy = Picky("a", loop, m=says(503, retry_after_s=30))
        rig = Rig(loop, busy, Picky("b", loop))
        assert [await rig.ask() for _ in range(4)] == ["b"] * 4
        assert len(busy.asked) == 1
        assert rig.notes == ["a is tried last: its Retry-After is 30 s"]
        busy.fails = {}
        await asyncio.sleep(30)
        assert await rig.ask() == "a"

    run(main)


def test_retry_allowance_at_low_traffic_is_shared_by_routes() -> None:
    """Twenty routes have twenty allowances, their upstream has one."""
    async def main(loop: SimLoop) -> None:
        names = tuple(f"m{n}" for n in range(20))
        down = Picky("a", loop, any=says(500))
        rig = Rig(loop, down, routes=names, retry=RetryConfig(), breaker=BreakerConfig(enabled=False))
        for name in names * 5:
            with pytest.raises(UpstreamFailed):
                await rig.ask(name)
        assert 100 < len(down.asked) <= 120

    run(main)


@pytest.mark.parametrize(("count", "n_calls"), [("0", 3), ("00", 3), ("", 3), ("1", 1), ("2", 1)])
def test_retry_count_header_disables_retries(count: str, n_calls: int) -> None:
    """Nor does such a request deposit into the retry budget."""
    async def main(loop: SimLoop) -> None:
        down = Picky("a", loop, any=says(500))
        rig = Rig(loop, down, retry=RetryConfig())
        with pytest.raises(UpstreamFailed):
            await rig.ask(headers={"x-stainless-retry-count": count})
        assert len(down.asked) == n_calls
        assert rig.routes["m"].hedging.budget.deposits.n_requests == (n_calls > 1)

    run(main)


def test_retry_count_header_disables_hedging() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, Picky("a", loop), Picky("b", loop), hedge=HedgeConfig(mode="race", race_after_s=0.01))
        await rig.ask(headers={"x-stainless-retry-count": "1"})
        assert len(rig.sink.facts_of(AttemptDone)) == 1
        await rig.ask(headers={"x-stainless-retry-count": "0"})
        assert len(rig.sink.facts_of(AttemptDone)) == 3

    run(main)


def test_race_hedges_do_not_use_the_retry_budget() -> None:
    """A hundred races, then one in which both attempts fail: it is retried."""
    async def main(loop: SimLoop) -> None:
        ups = Picky("a", loop), Picky("b", loop)
        rig = Rig(loop, *ups, hedge=HedgeConfig(mode="race", race_after_s=0.01), retry=RetryConfig(),
                  breaker=BreakerConfig(enabled=False))
        for _ in range(100):
            await rig.ask()
        assert rig.routes["m"].hedging.budget.extra_share(loop.now()) == 0
        for up in ups:
            up.fails = {"m": says(500)}
        with pytest.raises(UpstreamFailed):
            await rig.ask()
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
        down = Rig(loop, Picky("a", loop, m=says(500)), Picky("b", loop, m=says(500)), retry=retry)
        race = Rig(loop, Picky("a", loop), Picky("b", loop), retry=retry,
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
        for error in (says(429), says(401), says(404, NO_MODEL)):
            rig = Rig(loop, Picky("a", loop, m=error), Picky("b", loop))
            assert await rig.ask(store=True) == "b"

    run(main)


def test_backlog_counts_long_prompts_by_length() -> None:
    """An upstream reads a prompt of a hundred thousand tokens: short requests go to the other one."""
    async def main(loop: SimLoop) -> None:
        ups = Picky("a", loop), Picky("b", loop)
        rig = Rig(loop, *ups, in_turn=False)
        for _ in range(60):
            await rig.ask()
        member = rig.registry["a"]
        place = acquire_permit(member, member.baselines.baseline_for("m", 100_000, False), loop.now(), "m", n_tokens=100_000)
        other = rig.registry["b"]
        beside = acquire_permit(other, other.baselines.baseline_for("m", 20, False), loop.now(), "m", n_tokens=20)
        for up in ups:
            up.asked.clear()
        for _ in range(40):
            await rig.ask()
        assert (len(ups[0].asked), len(ups[1].asked)) == (0, 40)
        place.record_first_token(loop.now())
        assert member.backlog is not None
        assert member.backlog.work == 0
        beside.record_first_token(loop.now())

    run(main)


def test_health_of_models_named_by_clients_is_bounded() -> None:
    """The oldest models are dropped, so that clients cannot fill the memory with names."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, Picky("a", loop), routes=("*", "x"))
        for n in range(200):
            await rig.ask(f"m{n}")
        assert len(list(rig.registry["a"].healths)) == 65
        assert all(health.breaker.state is BreakerState.CLOSED for health in rig.registry["a"].healths)

    run(main)
