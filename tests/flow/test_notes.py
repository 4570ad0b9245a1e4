"""What `stayfast explain` says of waits, full upstreams and breakers: a note of each decision, and no other."""

import asyncio

from stayfast.core.events import RequestDone
from stayfast.policy.breaker import BreakerConfig
from stayfast.policy.limits import LimitConfig
from stayfast.policy.retry import RetryConfig
from stayfast.testing import Fail, Say, SimLoop, Wait, run
from tests.flow.rig import Rig, read


async def _read_one(rig: Rig) -> None:
    """A request, to its end."""
    await read(await rig.serve())



def test_explain_tells_of_waits_and_of_fuller_upstreams() -> None:
    """Of the one that had to wait, how long and for what; of the one that went elsewhere, where from; of others, nothing."""
    async def main(loop: SimLoop) -> None:
        limit = LimitConfig("fixed", 1, 1)
        rig = Rig(loop, [[Wait(1.0), Say("a")]], [[Wait(1.0), Say("b")]], limit=limit, in_turn=True)
        await asyncio.gather(*[_read_one(rig) for _ in range(3)])
        notes = sorted(done.notes for done in rig.sink.of(RequestDone))
        assert notes == [(), ("up1 before up0, which is full: 1 of 1 places were taken, 0 others waiting",),
                         ("waited 1000 ms for a place at up0: 1 of 1 places were taken, 0 others waiting",)]

    run(main)


def test_explain_tells_of_breakers() -> None:
    """Why an upstream stands behind, and why one is tried all the same."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=500)]], [[Say("b")]], breaker=BreakerConfig(failures_in_row=1), in_turn=True,
                  retry=RetryConfig(max_attempts=2))
        await _read_one(rig)
        await _read_one(rig)
        first, second = rig.sink.of(RequestDone)
        assert first.notes == ()
        assert second.notes == ("up0 stands behind: its breaker is open, 1 failures in a row",)
        await asyncio.sleep(100.0)
        await _read_one(rig)
        assert rig.sink.of(RequestDone)[2].notes == ("up0 goes first, as a probe: its breaker is open, 1 failures in a row",)

    run(main)
