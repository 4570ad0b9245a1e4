"""What `stayfast explain` says of waits, full upstreams and breakers: a note of each decision, and no other."""

import asyncio
import re

import pytest

from stayfast.core.errors import Shed
from stayfast.core.events import RequestDone, Retried
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.testing import Fail, SendText, SimLoop, Wait, run
from tests.flow.admission_rig import AdmissionRig, quota_for_all
from tests.flow.rig import Rig, read


async def _read_one(rig: Rig) -> None:
    """A request, to its end."""
    await read(await rig.serve())


def test_notes_have_waits_and_full_upstreams() -> None:
    """A request without a wait has no note."""
    async def main(loop: SimLoop) -> None:
        limit = LimitConfig("fixed", 1, 1)
        rig = Rig(loop, [[Wait(1.0), SendText("a")]], [[Wait(1.0), SendText("b")]], limit=limit, in_turn=True)
        await asyncio.gather(*[_read_one(rig) for _ in range(3)])
        notes = sorted(done.notes for done in rig.sink.facts_of(RequestDone))
        assert notes == [(), ("up1 before up0, which is full: 1 of 1 places were taken, 0 others waiting",),
                         ("waited 1000 ms for a place at up0: 1 of 1 places were taken, 0 others waiting",)]

    run(main)


def test_notes_have_breakers() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=500)]], [[SendText("b")]], breaker=BreakerConfig(consecutive_failures=1), in_turn=True,
                  retry=RetryConfig(max_attempts=2))
        await _read_one(rig)
        await _read_one(rig)
        first, second = rig.sink.facts_of(RequestDone)
        assert first.notes == ("retried at up1: 500 from up0, extra attempts 0.0 %, limit 10 %",)
        assert second.notes == ("up0 is tried last: its breaker is open, 1 failures in a row",)
        await asyncio.sleep(100.0)
        await _read_one(rig)
        assert rig.sink.facts_of(RequestDone)[2].notes == (
            "up0 is tried first, as a probe: its breaker is open, 1 failures in a row",
            "retried at up1: 500 from up0, extra attempts 0.0 %, limit 10 %")

    run(main)


def test_notes_have_the_quota_that_refused() -> None:
    async def main(loop: SimLoop) -> None:
        rig = AdmissionRig(loop, tenants=quota_for_all(requests_per_minute=1))
        await rig.request("web")
        with pytest.raises(Shed):
            await rig.request("web")
        assert rig.gateway_rig.sink.facts_of(RequestDone)[-1].notes == (
            "over the quota of web on requests per minute: 0 of 1 left, 1 needed, available in 59 s",)

    run(main)


def test_notes_have_the_full_upstream_that_refused() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Wait(1.0), SendText("a")]], limit=LimitConfig("fixed", 1, 1, max_waiting=0))
        reply = await rig.serve()
        with pytest.raises(Shed, match="up0 is at its concurrency limit: it has no queue"):
            await rig.serve()
        (note,) = rig.sink.facts_of(RequestDone)[0].notes
        assert re.fullmatch(r"rejected, no place in time at up0: 1 of 1 places were taken, 0 others waiting; retry "
                            r"after 1(\.\d)? s", note)
        reply.close()

    run(main)


def test_notes_have_failover_and_fallback() -> None:
    """With the state of the retry budget; each is an event with the same figures."""
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=503)]], [[Fail(status=500)]], [[SendText("c")]], in_turn=True, n_fallback=1,
                  retry=RetryConfig(max_attempts=2))
        await _read_one(rig)
        assert rig.sink.facts_of(RequestDone)[0].notes == (
            "retried at up1: 503 from up0, extra attempts 0.0 %, limit 10 %",
            "fell back to up2: 500 from up1, extra attempts 100.0 %, limit 10 % plus low-traffic allowance")
        first, second = rig.sink.facts_of(Retried)
        assert (first.upstream, first.to, first.what, first.spent, first.budget) == ("up0", "up1", "503", 0.0, 0.1)
        assert (second.upstream, second.to, second.spent) == ("up1", "up2", 1.0)

    run(main)


def test_notes_retry_after_a_refused_key_uses_no_budget() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[Fail(status=401)]], [[SendText("b")]], in_turn=True, retry=RetryConfig(max_attempts=2))
        await _read_one(rig)
        assert rig.sink.facts_of(RequestDone)[0].notes == ("retried at up1: 401 from up0",)

    run(main)
