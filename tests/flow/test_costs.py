"""What attempts cost, by why they were made; also those that nobody read to their end."""

import asyncio
from dataclasses import replace

import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
from stayfast.core.events import AttemptDone, RequestDone
from stayfast.lab.simulated import GapConfig, Mixture, OutputLengths, ProviderConfig, Simulated
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.policy.admission.price import Price
from stayfast.policy.context.token_estimate import PromptTokens
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.rig import MODEL, Rig, chat, read

PRICE = Price(1.0, 100.0)
N_PROMPT = 1000  # characters
UNLEARNED = PromptTokens().estimate("", MODEL, chat().body)  # tokens of its prompt before any is reported
HANGS: Script = [Wait(600), SendText("never")]
HALTS: Script = [Wait(0.1), SendText("a"), SendText("b"), Wait(600)]


def hedged(rig: Rig) -> Rig:
    """The same, racing a second attempt after 0.1 s."""
    routes = rig.gateway.router.routes
    assert isinstance(routes, dict)
    hedging = Hedging(HedgeConfig("race", race_after_s=0.1), RetryConfig(max_attempts=1))
    routes[MODEL] = replace(routes[MODEL], hedging=hedging)
    return rig


def test_cost_of_a_lost_hedge_is_estimated_from_reported_usage() -> None:
    """After some answers, within a tenth of the count of the provider."""

    async def main(loop: SimLoop) -> None:
        slow = Simulated("slow", ProviderConfig(ttft=Mixture(5.0), gaps=GapConfig(0.01, 0.0), output=OutputLengths(5, 0.0)),
                         loop)
        quick = Simulated("quick", ProviderConfig(ttft=Mixture(0.2), gaps=GapConfig(0.01, 0.0),
                                                  output=OutputLengths(5, 0.0)),
                          loop)
        rig = Rig(loop, upstreams=[slow, quick], in_turn=True, price=PRICE, timeouts=Timeouts(total_s=60))
        request = chat(messages=[{"role": "user", "content": "hi"}], metadata={"session": "x" * 80})
        for _ in range(8):
            await read(await rig.serve(request))
        (reported,) = {attempt.usage.input_total for attempt in rig.sink.facts_of(AttemptDone) if attempt.usage is not None}
        assert len(request.body) // 4 > 2.5 * reported
        hedged(rig)
        await read(await rig.serve(request))
        *_, done = rig.sink.facts_of(RequestDone)
        lost, won = done.attempts
        assert (lost.is_lost, lost.is_estimated, won.is_estimated) == (True, True, False)
        assert lost.usage is not None
        assert lost.usage.input_total == pytest.approx(reported, rel=0.1)
        assert done.cost_by_role == {"first": lost.cost_usd, "hedge": won.cost_usd}
        assert done.cost_usd == pytest.approx(sum(done.cost_by_role.values()))

    run(main)


@pytest.mark.parametrize(("script", "n_said"), [(HANGS, 0), (HALTS, 2)])
def test_cost_of_a_timeout_has_the_prompt_and_the_received_tokens(script: Script, n_said: int) -> None:
    """The provider has read the prompt, and generates on."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [script], price=PRICE, timeouts=Timeouts(total_s=3))
        with pytest.raises(DeadlineExceeded):
            await read(await rig.serve())
        (done,) = rig.sink.facts_of(RequestDone)
        assert done.cost_usd == pytest.approx((UNLEARNED + 100 * n_said) / 1e6)

    run(main)


def test_cost_of_a_cancelled_request_has_the_prompt() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [HANGS], price=PRICE)
        serving = asyncio.ensure_future(rig.serve())
        await asyncio.sleep(1)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert rig.sink.facts_of(RequestDone)[0].cost_usd == pytest.approx(UNLEARNED / 1e6)

    run(main)


@pytest.mark.parametrize("fault", [Fail(Fault.CONNECT), Fail(Fault.STATUS, 500), Fail(Fault.RESET)])
def test_cost_of_a_refused_attempt_is_unknown(fault: Fail) -> None:
    """No connection, an error, or no part of an answer: the provider bills nothing."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[fault]], price=PRICE)
        with pytest.raises(UpstreamFailed):
            await rig.serve()
        assert rig.sink.facts_of(RequestDone)[0].cost_usd is None

    run(main)


def test_cost_is_split_by_role_of_attempts() -> None:
    """First attempt, retry and fallback; an attempt that failed at once cost nothing."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail()], HANGS], [[SendText("well")]], n_fallback=1, price=PRICE,
                  timeouts=Timeouts(total_s=10, first_token_s=2), retry=RetryConfig(max_attempts=2, backoff_base_s=0.01))
        await read(await rig.serve())
        (done,) = rig.sink.facts_of(RequestDone)
        assert [attempt.role for attempt in done.attempts] == ["first", "retry", "fallback"]
        assert set(done.cost_by_role) == {"retry", "fallback"}
        assert done.cost_usd == pytest.approx(sum(done.cost_by_role.values()))

    run(main)
