"""Routes with tiers, on the real stages."""

import asyncio

import pytest

from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.tiers.config import TierConfig
from stayfast.testing import Fail, SendText, SimLoop, Wait, run
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
