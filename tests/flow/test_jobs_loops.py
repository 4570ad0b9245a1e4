"""The loops of jobs go on after an unexpected exception, which is reported. On virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from stayfast.core.jobs import JobResult, JobState, QueueDepth
from stayfast.core.setting import Secret
from stayfast.jobs.config import WebhookConfig
from stayfast.jobs.outcomes import OutcomeWriter
from stayfast.jobs.presence import WorkerPresence
from stayfast.jobs.sweeper import JobSweeper
from stayfast.jobs.webhooks import WebhookSender
from stayfast.stores.jobs.base import FileBodies, JobStore
from stayfast.stores.jobs.reports import ReportStore
from stayfast.testing import RecordingSink, SendText, SimLoop, Wait, run
from stayfast.testing.job_store import MemoryJobStore
from tests.flow.jobs_rig import JobsRig
from tests.flow.rig import MODEL

ANSWER = (Wait(0.5), SendText("four words"))


class FaultyStore:
    """Passes calls on; the first `n_failures` of one method end in an unexpected error."""

    def __init__(self, store: Any, method: str, n_failures: int = 1) -> None:
        self._store = store
        self._method = method
        self.n_failures = n_failures

    def as_store(self) -> JobStore:
        return cast("JobStore", self)

    def __getattr__(self, name: str) -> Any:
        if name != self._method or not self.n_failures:
            return getattr(self._store, name)

        async def fail(*_: Any, **__: Any) -> None:
            self.n_failures -= 1
            raise ZeroDivisionError

        return fail


class NoFiles:
    """Contents of no files."""

    async def remove_orphans(self, _: object) -> int:
        return 0


def drive(main: Callable[[SimLoop], Awaitable[None]]) -> None:
    async def of(loop: SimLoop) -> None:
        await main(loop)

    run(of)


@pytest.mark.parametrize("method", ["claim", "extend", "wait"])
def test_runner_goes_on_after_an_unexpected_exception(method: str) -> None:
    """Each of its loops: claims, heartbeats, notifications."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(100.0), SendText("x")), ANSWER])
        rig.store = cast("Any", FaultyStore(rig.store, method))
        async with rig.running():
            first = await rig.submit()
            await asyncio.sleep(15)
            n_calls = rig.store.n_calls[method]
            second = await rig.submit()
            assert (await rig.wait_for_end(first)).token == 1
            assert (await rig.wait_for_end(second)).state is JobState.COMPLETED
            assert rig.store.n_calls[method] > n_calls
        assert [type(error) for error in rig.reported] == [ZeroDivisionError]

    drive(main)


def test_outcomes_are_written_after_an_unexpected_exception() -> None:
    """Of a group: each one alone, so none is lost."""
    async def main(loop: SimLoop) -> None:
        rig, reported = JobsRig(loop, [ANSWER]), list[BaseException]()
        ids = [await rig.submit() for _ in range(4)]
        await rig.store.claim("w", {MODEL: 4}, 1000.0)
        writer = OutcomeWriter(FaultyStore(rig.store, "finish").as_store(), Random(1), reported.append)
        writing = asyncio.create_task(writer.run())
        results = [JobResult(job_id, 1, JobState.COMPLETED) for job_id in ids]
        assert await asyncio.gather(*(writer.write(result) for result in results)) == [True] * 4
        writing.cancel()
        assert [type(error) for error in reported] == [ZeroDivisionError]

    drive(main)


def test_an_outcome_that_cannot_be_stored_does_not_stop_the_others() -> None:
    """Its job is left to the end of its lease."""
    async def main(loop: SimLoop) -> None:
        errors: list[object] = []
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        rig = JobsRig(loop, [ANSWER])
        rig.store = cast("Any", FaultyStore(rig.store, "finish"))
        async with rig.running() as runner:
            broken = await rig.submit()
            await asyncio.sleep(5)
            assert runner.n_running == 0
            later = await rig.submit()
            assert (await rig.wait_for_end(later)).state is JobState.COMPLETED
            assert rig.state(broken) is JobState.RUNNING
        assert [type(error) for error in errors] == [ZeroDivisionError]

    drive(main)


class SetClock:
    """The time of a loop, and a wall clock that is set."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def now(self) -> float:
        return self._loop.now()

    def wall(self) -> float:
        return self._loop.wall() + self.ahead_s

    def cpu(self) -> float:
        return 0.0


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_sweeper_after_a_jump_of_the_clock_leaves_jobs_to_their_live_workers(tmp_path: Path, ahead_s: float) -> None:
    """Their heartbeats extend the leases, which have ended by the new time, before the next sweep."""
    async def main(loop: SimLoop) -> None:
        rig, clock = JobsRig(loop, [(Wait(100.0), SendText("once"))]), SetClock(loop)
        rig.store = MemoryJobStore(clock)
        sweeper = JobSweeper(rig.store.as_store(), cast("FileBodies", None), WorkerPresence(tmp_path), rig.get_config,
                             clock=clock, sink=RecordingSink(), on_depths=lambda _: None, report=rig.reported.append)
        async with rig.running():
            job_id = await rig.submit()
            sweeping = asyncio.create_task(sweeper.run(sweeps=True))
            for _ in range(3):
                await asyncio.sleep(20.5)
                clock.ahead_s += ahead_s
            job = await rig.wait_for_end(job_id)
            sweeping.cancel()
        assert (job.state, job.token) == (JobState.COMPLETED, 1)

    drive(main)


def test_sweeper_goes_on_after_an_unexpected_exception(tmp_path: Path) -> None:
    """The next sweep follows after the usual pause."""
    async def main(loop: SimLoop) -> None:
        rig, reported, depths = JobsRig(loop, [ANSWER]), list[BaseException](), list[QueueDepth]()
        store = FaultyStore(rig.store, "sweep").as_store()
        sweeper = JobSweeper(store, cast("FileBodies", NoFiles()), WorkerPresence(tmp_path), rig.get_config, clock=loop,
                             sink=RecordingSink(), on_depths=depths.extend, report=reported.append)
        await rig.submit()
        sweeping = asyncio.create_task(sweeper.run(sweeps=True))
        await asyncio.sleep(10)
        sweeping.cancel()
        assert [type(error) for error in reported] == [ZeroDivisionError]
        assert len(depths) in (2, 3)

    drive(main)


def test_webhook_sender_goes_on_after_an_unexpected_exception() -> None:
    """It looks for reports again."""
    async def main(loop: SimLoop) -> None:
        n_claims, reported = 0, list[BaseException]()

        async def claim_reports(*_: object) -> list[object]:
            nonlocal n_claims
            n_claims += 1
            return []

        store = JobsRig(loop, [ANSWER]).store
        reports = FaultyStore(type("Reports", (), {"claim_reports": staticmethod(claim_reports)}), "claim_reports")
        hook = WebhookConfig("http://127.0.0.1:9/", Secret("s"))
        sender = WebhookSender(store.as_store(), cast("ReportStore", reports), lambda: [hook], "w", clock=loop,
                               rng=Random(1), sink=RecordingSink(), report=reported.append)
        sending = asyncio.create_task(sender.run())
        await asyncio.sleep(20)
        sending.cancel()
        assert [type(error) for error in reported] == [ZeroDivisionError]
        assert n_claims > 2

    drive(main)
