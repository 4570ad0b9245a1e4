"""What is told of a request after its end: when its parts came, what each attempt did and cost, and whose time it took."""

import asyncio

import pytest

from stayfast.core.errors import Fault, StayfastError
from stayfast.core.events import AttemptDone, RequestDone, TokenGaps
from stayfast.core.types import Outcome, Usage
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.admission.price import ListPrice, Price
from stayfast.policy.context.token_estimate import PromptTokens
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Cut, Fail, Script, SendBytes, SendText, SimLoop, Wait, run
from tests.flow.rig import MODEL, Rig, chat, read

THREE: Script = [Wait(0.2), SendText("a"), Wait(0.1), SendText("b"), Wait(0.3), SendText("c")]
UNLEARNED = PromptTokens().estimate("", MODEL, chat().body)  # tokens of its prompt before any is reported
PING = SendBytes(b": ping\n\n")


def request_fact(rig: Rig) -> RequestDone:
    """The one request's end."""
    (fact,) = rig.sink.facts_of(RequestDone)
    return fact


def test_facts_of_a_stream_have_its_gaps() -> None:
    """Gaps between content, the longest one, and the time for each token after the first."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [THREE])
        await read(await rig.serve())
        fact = request_fact(rig)
        assert [gap for seen in rig.sink.facts_of(TokenGaps) for gap in seen.gaps_s] == pytest.approx([0.1, 0.3])
        assert (fact.ttft_s, fact.gap_max_s, fact.tpot_s) == pytest.approx((0.2, 0.3, 0.2))

    run(main)


def test_facts_pings_are_no_content() -> None:
    """A ping neither ends a gap nor hides a stall."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), Wait(0.9), PING, Wait(0.9), PING, SendText("b")]])
        await read(await rig.serve())
        (attempt,) = request_fact(rig).attempts
        assert [stall.seconds for stall in attempt.stalls] == pytest.approx([1.8])

    run(main)


def test_facts_stall_that_ends_the_answer_is_counted() -> None:
    """The client leaves after a wait of 4 s, at whose end nothing came."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[SendText("a"), Wait(0.1), SendText("b"), Wait(60), SendText("c")]])
        reply = await rig.serve()
        await reply.next()
        await reply.next()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await reply.next()
        reply.close()
        fact = request_fact(rig)
        (attempt,) = fact.attempts
        assert fact.status == 499
        assert fact.gap_max_s == pytest.approx(4)
        assert [stall.seconds for stall in attempt.stalls] == pytest.approx([4])

    run(main)


def test_facts_of_a_request_have_all_attempts() -> None:
    """Two failures and one answer, each with the same facts as its own event."""
    async def main(loop: SimLoop) -> None:
        scripts: list[Script] = [[Wait(0.1), Fail(Fault.STATUS, 503)], [Wait(0.2), Fail(Fault.RESET)], THREE]
        rig = Rig(loop, *([script] for script in scripts), retry=RetryConfig(max_attempts=3), in_turn=True)
        await read(await rig.serve())
        fact = request_fact(rig)
        assert fact.attempts == tuple(rig.sink.facts_of(AttemptDone))
        assert [(one.upstream, one.n_attempt, one.outcome, one.fault, one.upstream_status) for one in fact.attempts] == [
            ("up0", 1, Outcome.DROPPED, "status", 503), ("up1", 2, Outcome.DROPPED, "reset", None),
            ("up2", 3, Outcome.SUCCESS, None, None)]
        assert {one.request_id for one in fact.attempts} == {"req_1"}
        assert fact.ttft_s == pytest.approx(0.5)
        assert fact.own_s == pytest.approx(0.0, abs=1e-9)

    run(main)


def test_facts_back_off_is_time_of_the_gateway() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(0.1), Fail(Fault.STATUS, 503, retry_after_s=2.0)], THREE],
                  retry=RetryConfig(max_attempts=2))
        await read(await rig.serve())
        assert request_fact(rig).own_s == pytest.approx(2.0, abs=0.2)

    run(main)


def test_facts_cost_is_by_attempt_and_reported_usage() -> None:
    """10 tokens in, 3 out; of a truncated attempt, an estimate of the prompt and the tokens that came."""
    price = Price(1.0, 100.0)

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [THREE], price=price)
        await read(await rig.serve())
        assert request_fact(rig).cost_usd == pytest.approx((10 + 300) / 1e6)
        cut = Rig(loop, [[SendText("a"), Cut()]], price=price)
        with pytest.raises(StayfastError):
            await read(await cut.serve())
        (attempt,) = request_fact(cut).attempts
        assert (attempt.fault, attempt.is_estimated) == ("truncated", True)
        assert attempt.usage == Usage(UNLEARNED, 1)  # nothing is known there yet
        assert attempt.cost_usd == pytest.approx((UNLEARNED + 100) / 1e6)

    run(main)


def test_facts_name_the_source_of_the_price() -> None:
    """Own or of the table; without a price, tokens are unpriced, not free."""
    for price, source, cost_usd in ((Price(1.0, 100.0), "own", 310 / 1e6), (ListPrice(1.0, 100.0), "table", 310 / 1e6),
                                    (None, "unpriced", None)):
        async def main(loop: SimLoop, price: Price | None = price) -> tuple[str, float | None]:
            rig = Rig(loop, [THREE], price=price)
            await read(await rig.serve())
            fact = request_fact(rig)
            return fact.price, fact.cost_usd

        found = run(main)
        assert found[0] == source
        assert found[1] == pytest.approx(cost_usd)


def test_facts_of_a_whole_answer_have_the_pace_of_its_upstream() -> None:
    """The upstream streams, the client does not."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [THREE])
        await read(await rig.serve(chat(stream=False)))
        fact = request_fact(rig)
        assert not fact.stream
        assert (fact.ttft_s, fact.tpot_s) == pytest.approx((0.2, 0.2))

    run(main)


def test_facts_queue_time_is_from_the_first_byte_to_the_start() -> None:
    """The event loop was blocked for 0.4 s."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [THREE])
        loop.stall(0.4)
        await read(await rig.gateway.serve(chat(), Arrival("req_1", loop.now() - 0.4)))
        assert request_fact(rig).queue_s == pytest.approx(0.4)
        assert request_fact(rig).own_s == pytest.approx(0.4)

    run(main)
