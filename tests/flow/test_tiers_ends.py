"""Routes with tiers: clients that leave, checks that hang or break, and requests that a model refuses."""

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from stayfast.core.deadline import Deadline
from stayfast.core.errors import DeadlineExceeded, UpstreamFailed
from stayfast.core.types import AnswerSummary, Chunk, Request
from stayfast.pipeline.tiers.answer_verifier import CheckedAnswers
from stayfast.pipeline.tiers.verification import TierFacts, TierVerdict
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.tiers.config import TierConfig
from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.testing import SendBytes, SimLoop, run
from tests.flow.tiers_rig import TiersRig, answers

SMALL, LARGE = answers("small ", 0.2, 0.1), answers("large ", 0.5, 0.1)
TOO_LONG = [[SendBytes(b'data: {"error":{"message":"too long","type":"invalid_request_error","code":"x"}}\n\n')]]


class SlowJudge:
    """Takes a time for each verdict."""

    def __init__(self, seconds: float = 0.3, error: Exception | None = None) -> None:
        self.seconds = seconds
        self.error = error

    def applies_to(self, request: Request, tier: str, facts: TierFacts) -> bool:
        return True

    async def verify(self, request: Request, answer: Chunk, summary: AnswerSummary, tier: str,
                     deadline: Deadline) -> TierVerdict:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return TierVerdict(False, "too short")


def cascade(loop: SimLoop, verifier: SlowJudge | CheckedAnswers) -> TiersRig:
    return TiersRig(loop, {"small": SMALL, "large": LARGE}, verifier=verifier,
                    config=TierConfig(start="small", hold_streams=True))


def n_held(rig: TiersRig) -> int:
    return sum(member.n_in_flight for member in rig.members.values())


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_during_the_check_frees_the_place_of_the_small_tier(*, stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, SlowJudge(5.0))
        request = asyncio.ensure_future(rig.text(stream=stream))
        await asyncio.sleep(1.0)  # within the check
        assert n_held(rig) == 1
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert n_held(rig) == 0
    run(main)


def test_check_that_raises_frees_the_place_of_the_small_tier() -> None:
    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, SlowJudge(0.0, KeyError("x")))
        with pytest.raises(KeyError):
            await rig.serve(stream=False)
        assert n_held(rig) == 0
    run(main)


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_leave_at_any_instant_leave_nothing_behind(seed: int) -> None:
    """First call, hold, check, escalation and relay: 0.2 to 1.4 s after the start."""
    async def main(loop: SimLoop) -> None:
        rng, rig = Random(seed), cascade(loop, SlowJudge(0.2))

        async def answer(*, stream: bool) -> None:
            async with aclosing(await rig.serve(stream=stream)) as reply:
                while await reply.next() is not None:
                    pass

        async def visit() -> None:
            request = asyncio.ensure_future(answer(stream=rng.random() < 0.5))
            await asyncio.sleep(rng.random() * 1.6)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

        await asyncio.gather(*(visit() for _ in range(60)))
        await asyncio.sleep(5)
        assert n_held(rig) == 0
    run(main)


def test_own_check_that_hangs_ends_in_time_for_the_answer_at_hand() -> None:
    async def hang(body: object, text: str) -> str:
        await asyncio.sleep(60)
        return ""

    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, CheckedAnswers(EnoughConfig(mode="cascade"), holds_streams=True, own_check=hang))
        assert await rig.text(stream=False, total_s=0.8) == "small"
        assert loop.now() <= 0.8
        assert rig.last.error is None
    run(main)


def test_request_that_a_small_model_refuses_goes_to_a_larger_one() -> None:
    """Its prompt may be too long for the small model, or have an image."""
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": TOO_LONG, "large": LARGE}, config=TierConfig(start="small"))
        assert await rig.text() == "large"
        assert rig.last.degraded is None
        rig = TiersRig(loop, {"small": SMALL, "large": TOO_LONG})
        with pytest.raises(UpstreamFailed):  # a smaller model would not take it either
            await rig.serve()
        assert rig.n_calls("small") == 0
        rig = TiersRig(loop, {"small": TOO_LONG, "small-fast": SMALL, "large": LARGE}, config=TierConfig(start="small"))
        assert await rig.text() == "large"
        assert rig.n_calls("small-fast") == 0
    run(main)


@pytest.mark.parametrize(("total_s", "word"), [(1.55, "small"), (10.0, "large")])
def test_smaller_answer_for_lack_of_time_is_shared_only_by_similar_deadlines(total_s: float, word: str) -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE}, cache=CacheConfig("exact", max_temperature=1.0))
        await rig.warm(small=0.4, large=2.0)
        hasty = asyncio.ensure_future(rig.text(total_s=1.5))
        await asyncio.sleep(0.05)
        assert await rig.text(total_s=total_s) == word
        assert await hasty == "small"
        assert (rig.n_calls("small"), rig.n_calls("large")) == ((1, 0) if word == "small" else (1, 1))
    run(main)


def test_call_is_not_shared_by_a_request_that_must_start_sooner() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": answers("large ", 3.0)}, config=TierConfig(down=False),
                       cache=CacheConfig("exact", max_temperature=1.0))
        patient = asyncio.ensure_future(rig.text())
        await asyncio.sleep(0.05)
        with pytest.raises(DeadlineExceeded):
            await rig.text(start_within=1.0)
        assert loop.now() <= 1.1
        assert await patient == "large"
    run(main)


def test_answer_that_was_replaced_is_billed_in_the_record() -> None:
    """Both attempts have their usage; the client reads that of the answer it got."""
    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, SlowJudge(0.0))
        await rig.text(stream=False)
        assert [(attempt.upstream, attempt.usage is not None) for attempt in rig.last.attempts] == [
            ("small", True), ("large", True)]
    run(main)
