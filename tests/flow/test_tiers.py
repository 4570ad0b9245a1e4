"""Routes with tiers, on the real stages."""

import asyncio

import pytest

from stayfast.core.deadline import Deadline
from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Chunk, Request
from stayfast.pipeline.tiers.verification import TierFacts, TierVerdict
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.tiers.config import TierConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.rig import Rig, chat, read
from tests.flow.tiers_rig import TiersRig, answers

SMALL, LARGE = answers("small ", 0.2, 0.1), answers("large ", 1.0, 0.5)


def test_request_with_time_goes_to_the_tier_that_is_enough() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE})
        await rig.warm(small=0.4, large=2.0)
        assert await rig.text() == "large"
        assert rig.last.degraded is None
        assert "tier large: predicted 2 s of 10 s left" in rig.last.notes
        assert rig.n_calls("small") == 0
    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_request_without_time_for_the_large_tier_goes_to_the_small_one(*, stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE})
        await rig.warm(small=0.4, large=2.0)
        assert await rig.text(stream=stream, total_s=1.5) == "small"
        assert rig.last.degraded == "tier"
        assert "tier small: predicted 0.4 s of 1.5 s left; not large: predicted 2 s of 1.5 s left" in rig.last.notes
        assert rig.n_calls("large") == 0
    run(main)


def test_request_prefers_a_faster_service_tier_to_a_smaller_model() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE, "large-fast": answers("fast ", 0.3, 0.1)},
                       config=TierConfig(start="large"))
        await rig.warm(small=0.4, large=2.0, large_fast=0.6)
        assert await rig.text(total_s=1.5) == "fast"
        assert rig.last.degraded is None
    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_slow_large_tier_is_left_in_time_for_the_small_one(*, stream: bool) -> None:
    """The prediction was wrong: the large tier hangs. The small one answers by the deadline."""
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": [[Wait(60)]]})
        await rig.warm(small=0.4, large=1.0)
        assert await rig.text(stream=stream, total_s=2.0) == "small"
        assert loop.now() <= 2.0
        assert rig.last.degraded == "tier"
        assert rig.n_calls("large") == 1
        for _ in range(5):  # given up: longer than 1.6 s, so no longer predicted to fit
            await rig.text(stream=stream, total_s=2.0)
        n_before = rig.n_calls("large")
        assert await rig.text(stream=stream, total_s=2.0) == "small"
        assert rig.n_calls("large") == n_before
    run(main)


def test_cold_tiers_meet_the_deadline_of_whole_answers() -> None:
    """Nothing is known: half of the time is left for the small tier."""
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": [[Wait(60)]]})
        for _ in range(8):
            assert await rig.text(stream=False, total_s=2.0) == "small"
        assert rig.n_calls("large") < 8
    run(main)


def test_failed_tier_is_replaced_by_the_next_and_then_by_the_fallback() -> None:
    async def main(loop: SimLoop) -> None:
        broken = [[Fail(Fault.STATUS, 500)]]
        rig = TiersRig(loop, {"small": SMALL, "large": broken})
        assert await rig.text() == "small"
        assert rig.last.degraded == "tier"
        assert [attempt.role for attempt in rig.last.attempts] == ["first", "fallback"]
        rig = TiersRig(loop, {"small": broken, "large": broken}, fallback=answers("spare ", 0.1))
        assert await rig.text() == "spare"
        assert rig.last.degraded == "fallback"
        rig = TiersRig(loop, {"small": broken, "large": broken})
        with pytest.raises(UpstreamFailed):
            await rig.serve()
    run(main)


def test_full_tier_is_left_for_the_next_one() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE}, limit=LimitConfig(mode="fixed", max=1))
        await rig.warm(small=0.4, large=2.0)
        first = asyncio.ensure_future(rig.text())
        await asyncio.sleep(0.1)
        assert await rig.text() == "small"
        assert "not large: its upstreams are full" in " ".join(rig.last.notes)
        assert await first == "large"
    run(main)


def test_down_off_never_uses_a_smaller_model() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": [[Wait(60)]]}, config=TierConfig(down=False))
        with pytest.raises(DeadlineExceeded):
            await rig.serve(total_s=2.0)
        assert rig.n_calls("small") == 0
    run(main)


def test_bound_of_a_tier_ends_with_its_first_token() -> None:
    """A stream that has begun may last to the deadline, although its tier had to begin earlier."""
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": [[Wait(0.5), SendText("large "), Wait(6), SendText("end")]]})
        await rig.warm(small=4.0, large=1.0)
        assert await rig.text(total_s=8.0) == "large"
        assert rig.last.error is None
    run(main)


def test_tier_is_learned_from_its_own_attempts() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE})
        for _ in range(3):
            await rig.text()
        request = rig.ladder.tiers[1]
        found = rig.speeds.predict(request, 100, None, loop.now(), 0.9)
        assert found is not None
        assert (round(found.first_s, 3), found.n) == (1.0, 3)
        assert await rig.text(total_s=1.5) == "small"  # unknown, where the large one is known not to fit
    run(main)


def test_start_within_calls_the_slow_service_tier_first_and_leaves_it_in_time() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"large-flex": answers("flex ", 3.0), "large": answers("large ", 1.0)},
                       config=TierConfig(start="large"), total_s=60)
        await rig.warm(large_flex=9.0, large=3.0)  # first tokens at a third of it
        assert await rig.text() == "large"
        assert await rig.text(start_within=5) == "flex"
        assert await rig.text(start_within="2s") == "large"
        rig.upstreams["large-flex"].scripts = [[Wait(60)]]
        began_at = loop.now()
        assert await rig.text(start_within=5) == "large"
        assert loop.now() - began_at <= 5
        assert rig.last.degraded is None
        assert [attempt.upstream for attempt in rig.last.attempts] == ["large-flex", "large"]
    run(main)


def test_start_within_that_no_tier_meets_ends_the_request() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": [[Wait(5)]], "large": [[Wait(5)]]})
        with pytest.raises(DeadlineExceeded):
            await rig.serve(start_within=1)
        assert loop.now() == pytest.approx(1.0, abs=0.05)
    run(main)


def test_start_within_on_a_route_without_tiers_limits_the_first_token() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(2), SendText("late")]])
        with pytest.raises(DeadlineExceeded):
            await rig.serve(chat(start_within=1))
        await read(await rig.serve(chat(start_within=3)))
    run(main)


def test_hedge_up_goes_to_the_faster_service_tier() -> None:
    async def main(loop: SimLoop) -> None:
        tiers: dict[str, list[Script]] = {"large": [[Wait(8), SendText("large ")]], "large-fast": answers("fast ", 0.3)}
        for up, expected in ((True, ["large", "large-fast"]), (False, ["large", "large"])):
            rig = TiersRig(loop, tiers, config=TierConfig(start="large", hedge_up=up), total_s=60,
                           hedge=HedgeConfig(mode="race", race_after_s=1.0))
            assert await rig.text() == ("fast" if up else "large")
            assert [attempt.upstream for attempt in sorted(rig.last.attempts, key=lambda one: one.n_attempt)] == expected
            assert [attempt.role for attempt in rig.last.attempts].count("hedge") == 1
    run(main)


class Judge:
    """Finds the answers of one tier not to be enough."""

    def __init__(self, bad: str = "small") -> None:
        self.bad = bad
        self.seen: list[tuple[str, bytes, float]] = []

    def applies_to(self, request: Request, tier: str, facts: TierFacts) -> bool:
        assert tier in facts.tiers
        return request.max_output_tokens != 1

    async def verify(self, request: Request, answer: Chunk, summary: AnswerSummary, tier: str,
                     deadline: Deadline) -> TierVerdict:
        self.seen.append((tier, answer.data, deadline.at))
        return TierVerdict(tier != self.bad, "too short")


def cascade(loop: SimLoop, judge: Judge, *, large_s: float = 0.5, hold: bool = False) -> TiersRig:
    return TiersRig(loop, {"small": SMALL, "large": answers("large ", large_s)}, verifier=judge,
                    config=TierConfig(start="small", hold_streams=hold))


@pytest.mark.parametrize("stream", [True, False])
def test_answer_that_is_not_enough_is_replaced_by_a_larger_tier(*, stream: bool) -> None:
    async def main(loop: SimLoop) -> None:
        judge = Judge()
        rig = cascade(loop, judge, hold=True)
        assert await rig.text(stream=stream) == "large"
        assert [attempt.role for attempt in rig.last.attempts] == ["first", "escalation"]
        assert rig.last.degraded is None
        assert "escalated from tier small to large (too short)" in rig.last.notes
        assert judge.seen[0][1].count(b"small ") >= 1
        assert await rig.text(stream=stream, max_tokens=1) == "small"
        assert len(judge.seen) == 1
    run(main)


def test_answer_that_is_enough_is_returned_as_it_is() -> None:
    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, Judge("none"), hold=True)
        for stream in (True, False):
            assert await rig.text(stream=stream) == "small"
            assert rig.last.notes[-1] == "tier small: its answer is enough (too short)"
        assert rig.n_calls("large") == 0
    run(main)


def test_streams_are_not_verified_unless_they_are_held() -> None:
    async def main(loop: SimLoop) -> None:
        judge = Judge()
        rig = cascade(loop, judge)
        assert await rig.text() == "small"
        assert judge.seen == []
    run(main)


def test_answer_that_is_not_enough_is_returned_where_no_time_is_left() -> None:
    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, Judge())
        await rig.warm(small=0.4, large=3.0)
        assert await rig.text(stream=False, total_s=2.0) == "small"
        assert rig.last.degraded == "tier"
        assert rig.n_calls("large") == 0
    run(main)


@pytest.mark.parametrize("script", [[Wait(60)], [Fail(Fault.STATUS, 500)]])
def test_answer_at_hand_is_returned_where_the_larger_tier_fails(script: Script) -> None:
    async def main(loop: SimLoop) -> None:
        rig = cascade(loop, Judge())
        rig.upstreams["large"].scripts = [script]
        assert await rig.text(stream=False, total_s=2.0) == "small"
        assert loop.now() <= 2.0
        assert rig.last.degraded == "tier"
        assert rig.last.error is None
        assert all(member.n_in_flight == 0 for member in rig.members.values())
    run(main)


class Advisor:
    """Advises the small tier for requests with a limit of tokens."""

    def advise(self, request: Request, facts: TierFacts) -> str | None:
        return facts.tiers[0] if request.max_output_tokens is not None else None


def test_advised_tier_replaces_the_start_of_the_settings() -> None:
    async def main(loop: SimLoop) -> None:
        rig = TiersRig(loop, {"small": SMALL, "large": LARGE}, advisor=Advisor())
        assert await rig.text(max_tokens=5) == "small"
        assert rig.last.degraded is None
        assert await rig.text() == "large"
    run(main)
