"""Calls that clients of different patience share, on virtual time: whose time is over, and what becomes of the others."""

import asyncio
from typing import Any

import pytest

from stayfast.core.errors import DeadlineExceeded, Fault, StayfastError, UpstreamFailed
from stayfast.core.events import AttemptDone
from stayfast.core.types import CacheControl
from stayfast.policy.budget import BudgetConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.cache_rig import CacheRig
from tests.flow.rig import chat, read

SLOW: Script = [Wait(2.0), SendText("slow")]
BREAKS: Script = [Wait(0.1), Fail(Fault.RESET)]


async def request_at(rig: CacheRig, at: float, total_s: float, *, stream: bool = True) -> tuple[float, StayfastError | None]:
    """Ask at that instant, with that much patience: when it ended, and in what."""
    await asyncio.sleep(at - rig.loop.now())
    try:
        reply = await rig.serve_request(chat(stream=stream), total_s=total_s)
        assert b"slow" in await read(reply)
    except StayfastError as failed:
        return rig.loop.now(), failed
    return rig.loop.now(), None


def check_answered(ends: list[tuple[float, StayfastError | None]], at: float) -> None:
    """All of them were, at that instant."""
    assert [ended_at for ended_at, _ in ends] == [pytest.approx(at)] * len(ends)
    assert [failed for _, failed in ends if failed is not None] == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n_impatient", [1, 2, 10])
def test_coalesce_short_deadlines_do_not_fail_a_long_one(stream: bool, n_impatient: int) -> None:
    """However many requests time out before it, one with enough time is answered by the second call."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, *[SLOW] * 20)
        ends = await asyncio.gather(
            *[request_at(rig, 0.01 * i, 0.3 + 0.1 * i, stream=stream) for i in range(n_impatient)],
            *[request_at(rig, 0.2, 30.0, stream=stream) for _ in range(4)])
        for i, (ended_at, failed) in enumerate(ends[:n_impatient]):
            assert isinstance(failed, DeadlineExceeded)
            assert failed.code == "total_s_exceeded"
            assert f"deadline of {0.3 + 0.1 * i:g} s" in failed.message
            assert ended_at == pytest.approx(0.3 + 0.11 * i)
        check_answered(ends[n_impatient:], 2.3)
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


def test_coalesce_endless_short_deadlines_do_not_starve_a_long_one() -> None:
    """Each second call has a longer deadline than all that waited as it began."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, *[SLOW] * 60)
        crowd = [request_at(rig, 0.1 * i, 0.35) for i in range(60)]
        patient = request_at(rig, 1.0, 30.0)
        *_, (ended_at, failed) = await asyncio.gather(*crowd, patient)
        assert failed is None
        assert ended_at <= 1.0 + 0.35 + 2.0 + 0.01
        assert rig.n_calls < 6 / 0.3
        rig.check_clean()

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_coalesce_equal_deadlines_make_one_call(stream: bool) -> None:
    """All requests time out together, each with its own error."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, *[SLOW] * 20)
        ends = await asyncio.gather(*[request_at(rig, 0.0, 1.0, stream=stream) for _ in range(20)])
        assert [(ended_at, type(failed)) for ended_at, failed in ends] == [(1.0, DeadlineExceeded)] * 20
        assert rig.n_calls == 1
        rig.check_clean()

    run(main)


def test_coalesce_model_budget_of_the_maker_does_not_bound_others() -> None:
    """A request with a larger budget makes a second call."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, *[SLOW] * 20, budget=BudgetConfig(model="50%"))
        ends = await asyncio.gather(*[request_at(rig, 0.0, total_s) for total_s in (1.0, 1.0, 1.0, 20.0, 20.0)])
        assert all(isinstance(failed, DeadlineExceeded) and failed.code == "budget_s_exceeded" for _, failed in ends[:3])
        check_answered(ends[3:], 2.5)
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


def test_coalesce_failures_after_a_deadline_are_counted_as_usual() -> None:
    """The time-out of another request is no failure of the upstream; after two failed calls all requests fail."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, SLOW, *[BREAKS] * 20)
        ends = await asyncio.gather(request_at(rig, 0.0, 0.3), *[request_at(rig, 0.1, 30.0) for _ in range(6)])
        assert isinstance(ends[0][1], DeadlineExceeded)
        assert all(isinstance(failed, UpstreamFailed) for _, failed in ends[1:])
        assert [ended_at for ended_at, _ in ends[1:]] == [pytest.approx(0.4)] + [pytest.approx(0.5)] * 5
        assert rig.n_calls == 3
        rig.check_clean()

    run(main)


def test_coalesce_call_of_a_client_that_left_ends_at_its_deadline() -> None:
    """The request with the longest deadline makes another call."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, *[SLOW] * 9)
        leader = asyncio.create_task(rig.text(total_s=0.5))
        others = [asyncio.create_task(request_at(rig, 0.1, total_s)) for total_s in (0.6, 0.7, 30.0)]
        await asyncio.sleep(0.2)
        leader.cancel()
        ends = await asyncio.gather(*others)
        assert [ended_at for ended_at, _ in ends] == [pytest.approx(0.7), pytest.approx(0.8), pytest.approx(2.5)]
        assert ends[2][1] is None
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("control", [None, CacheControl(keep_s=60.0)])
def test_coalesce_all_clients_leave_before_the_first_token(stream: bool, control: CacheControl | None) -> None:
    """One after another, the maker first: the call is closed, nothing is stored, no Task ends in an error."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, SLOW)
        told: list[Any] = []
        loop.set_exception_handler(lambda _, context: told.append(context))
        tasks = []
        for _ in range(3):
            tasks.append(asyncio.create_task(rig.serve_request(chat(stream=stream), control)))
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0.1)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(5.0)
        assert told == []
        assert rig.route_cache.store.n_entries == 0
        assert len(rig.sink.facts_of(AttemptDone)) == 1
        rig.check_clean()

    run(main)
