"""Jobs through the gateway: run, retried, cancelled, given back; their streams; a store that is down. On virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from stayfast.core.errors import Fault
from stayfast.core.events import JobEnded, JobLeaseLost, JobReturned, RequestDone
from stayfast.core.jobs import JobState
from stayfast.jobs.config import JobsConfig
from stayfast.jobs.service import WORK
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.testing import Fail, Script, ScriptedUpstream, SendText, SimLoop, Wait, run
from stayfast.upstreams.base import AnswerStream, Call
from tests.flow.jobs_rig import WORKER, JobsRig
from tests.flow.rig import text_of

ANSWER: Script = (Wait(0.5), SendText("four "), Wait(0.1), SendText("words"))
BUSY: Script = (Fail(Fault.STATUS, 503),)


def drive(main: Callable[[SimLoop], Awaitable[None]]) -> None:
    """Run a scenario on virtual time."""
    async def of(loop: SimLoop) -> None:
        await main(loop)

    run(of)


def text_of_body(body: bytes) -> str:
    """The text of a whole chat answer."""
    text = msgspec.json.decode(body)["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("stream", [False, True])
def test_a_job_runs_and_its_result_is_the_whole_answer(*, stream: bool) -> None:
    """Of a stream, the body that the same request without `stream` would get."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit(stream=stream)
            job = await rig.wait_for_end(job_id)
        assert job.state is JobState.COMPLETED
        result = rig.result(job_id)
        assert text_of_body(result.body) == "four words"
        assert (result.request_id, result.upstream, result.token) == ("job_1-1", "up0", 1)
        (ended,) = rig.sink.facts_of(JobEnded)
        assert (ended.state, round(ended.run_s, 1)) == ("completed", 0.6)

    drive(main)


def test_a_job_is_in_explain_with_its_claim_and_wait() -> None:
    """Each claim is a request of role `job`, with a note."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        job_id = await rig.submit()
        await asyncio.sleep(3)
        async with rig.running():
            await rig.wait_for_end(job_id)
        (done,) = rig.sink.facts_of(RequestDone)
        assert (done.request_id, done.role) == ("job_1-1", "job")
        assert done.notes[0] == "job job_1, claim 1, waited 3.0 s"
        assert [attempt.role for attempt in done.attempts] == ["job"]

    drive(main)


def test_upstream_gets_the_job_as_idempotency_key() -> None:
    """The same for every claim, in place of the client's own."""
    async def main(loop: SimLoop) -> None:
        seen: list[dict[str, str]] = []

        class Recording(ScriptedUpstream):
            async def open(self, call: Call) -> AnswerStream:
                seen.append(dict(call.headers))
                return await super().open(call)

        rig = JobsRig(loop, upstreams=[Recording("up", [BUSY, ANSWER], loop)])
        async with rig.running():
            job_id = await rig.submit(headers=(("idempotency-key", "mine"), ("x-tag", "1")))
            await rig.wait_for_end(job_id)
        assert seen == [{"idempotency-key": "job_1", "x-tag": "1"}] * 2

    drive(main)


def test_a_failed_attempt_is_repeated_after_a_pause() -> None:
    """A 503 counts as a failure; the next attempt is a new claim."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [BUSY, BUSY, ANSWER])
        async with rig.running():
            job_id = await rig.submit()
            job = await rig.wait_for_end(job_id)
        assert (job.state, job.n_failures, job.token) == (JobState.COMPLETED, 2, 3)
        assert [fact.is_failure for fact in rig.sink.facts_of(JobReturned)] == [True, True]
        assert loop.now() >= 1 + 2  # at least half of 2 s and of 4 s

    drive(main)


def test_a_job_without_attempts_left_is_dead_with_the_last_error() -> None:
    """For the dead-letter list."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [BUSY], config=JobsConfig(max_attempts=3))
        async with rig.running():
            job_id = await rig.submit()
            job = await rig.wait_for_end(job_id)
        assert (job.state, rig.result(job_id).status_code, rig.scripted[0].n_calls) == (JobState.DEAD, 502, 3)

    drive(main)


def test_a_wrong_request_is_final() -> None:
    """Its 400 is the result, at once."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit(body=b'{"model": "m"}')
            await rig.wait_for_end(job_id)
        result = rig.result(job_id)
        assert (result.state, result.status_code, rig.scripted[0].n_calls) == (JobState.FAILED, 400, 0)

    drive(main)


def test_a_quota_puts_a_job_back_without_a_failure() -> None:
    """It runs once there is quota again."""
    async def main(loop: SimLoop) -> None:
        from random import Random

        from stayfast.pipeline.stages.admit.admission import Admission
        from stayfast.policy.admission.quota import QuotaConfig

        tenants = {"a": TenantConfig(quota=QuotaConfig(requests_per_minute=1))}
        rig = JobsRig(loop, [ANSWER], admit=Admission(AdmissionConfig(), tenants, loop, Random(1)))
        async with rig.running():
            first, second = [await rig.submit(tenant="a") for _ in range(2)]
            await rig.wait_for_end(first)
            job = await rig.wait_for_end(second)
        assert (job.state, job.n_failures) == (JobState.COMPLETED, 0)
        assert loop.now() > 30
        assert rig.sink.facts_of(JobReturned)[0].is_failure is False

    drive(main)


def test_a_job_past_its_deadline_expires_without_a_call() -> None:
    """It was claimed just before its deadline."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit(deadline_at=loop.wall() + 0.3)
            job = await rig.wait_for_end(job_id)
        assert job.state is JobState.EXPIRED
        assert rig.result(job_id).status_code == 504

    drive(main)


def test_a_running_job_is_cancelled_within_a_second_or_so() -> None:
    """Its attempt at the upstream ends, and the result is a cancellation."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(0.1), SendText("one"), Wait(100.0), SendText("two"))])
        async with rig.running():
            job_id = await rig.submit(stream=True)
            await asyncio.sleep(1.5)
            await rig.store.cancel(job_id)
            await rig.store.notify("work")
            began_at = loop.now()
            job = await rig.wait_for_end(job_id)
        assert job.state is JobState.CANCELLED
        assert loop.now() - began_at < 2
        assert rig.n_open == 0
        events = rig.store.jobs[job_id].events
        assert events[-1].is_last
        assert b"cancelled" in events[-1].data

    drive(main)


def test_a_lost_lease_stops_the_job_and_discards_its_result() -> None:
    """Another worker has it; a result of this one would be refused."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(100.0), SendText("late"))])
        async with rig.running() as runner:
            job_id = await rig.submit()
            await asyncio.sleep(1)
            await rig.store.recover(WORKER)
            await rig.store.claim("other:boot:1", {"m": 1}, 1000.0)
            await asyncio.sleep(11)
            assert runner.n_running == 0
        assert rig.n_open == 0
        assert rig.store.jobs[job_id].job.worker == "other:boot:1"
        assert len(rig.sink.facts_of(JobLeaseLost)) == 1

    drive(main)


def test_a_worker_that_claims_its_own_lost_job_again_holds_the_new_claim() -> None:
    """As after a pause of the process that is longer than the lease: the sweep and the claim come before the heartbeat."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(100.0), SendText("late")), (Wait(100.0), SendText("again"))])
        async with rig.running() as runner:
            job_id = await rig.submit()
            await asyncio.sleep(1)
            await rig.store.recover(WORKER)
            await rig.store.notify(WORK)
            for _ in range(9):  # leases end, unless heartbeats extend them
                await asyncio.sleep(10)
                await rig.store.sweep(max_claims=3)
                assert runner.n_running == 1
                assert rig.n_open == 1
            job = await rig.wait_for_end(job_id)
        assert (job.state, job.token) == (JobState.COMPLETED, 2)
        assert text_of_body(rig.result(job_id).body) == "again"
        assert len(rig.sink.facts_of(JobLeaseLost)) == 1

    drive(main)


def test_a_heartbeat_that_meets_the_end_of_its_job_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store ends the job and answers the heartbeat in one transaction; the end is announced all the same."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        finish, extend = rig.store.finish, rig.store.extend
        finished, committed = asyncio.Event(), asyncio.Event()

        async def finish_late(results: Any) -> list[bool]:
            replies = await finish(results)
            finished.set()
            await committed.wait()
            return replies

        async def extend_after(*args: Any) -> Any:
            await finished.wait()
            heartbeat = await extend(*args)
            committed.set()
            return heartbeat

        monkeypatch.setattr(rig.store, "finish", finish_late)
        monkeypatch.setattr(rig.store, "extend", extend_after)
        async with rig.running():
            job_id = await rig.submit()
            await asyncio.sleep(0.1)
            await rig.store.notify(WORK)  # a heartbeat
            await asyncio.sleep(5)
        assert rig.state(job_id) is JobState.COMPLETED
        assert len(rig.sink.facts_of(JobEnded)) == 1
        assert not rig.sink.facts_of(JobLeaseLost)

    drive(main)


def test_a_stopping_runner_gives_jobs_back_without_a_failure() -> None:
    """Another worker takes them at once."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(100.0), SendText("late"))])
        async with rig.running():
            job_id = await rig.submit()
            await asyncio.sleep(1)
        job = rig.store.jobs[job_id].job
        assert (job.state, job.n_failures, rig.n_open) == (JobState.QUEUED, 0, 0)

    drive(main)


def test_a_stopping_runner_waits_for_running_jobs() -> None:
    """Up to the time that it has; it claims no others."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        runner = rig.new_runner()
        runner.start(WORKER)
        job_id = await rig.submit()
        await asyncio.sleep(0.1)
        runner.drain()
        later = await rig.submit()
        await runner.stop(5.0)
        assert (rig.state(job_id), rig.state(later)) == (JobState.COMPLETED, JobState.QUEUED)
        assert loop.now() < 2

    drive(main)


def test_a_result_survives_a_store_that_is_down() -> None:
    """It is written once the store is back, without a second generation, and without a busy loop."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit()
            await asyncio.sleep(0.3)
            rig.store.is_down = True
            await asyncio.sleep(25)
            assert rig.store.n_calls["finish"] < 20
            rig.store.is_down = False
            job = await rig.wait_for_end(job_id)
        assert (job.state, rig.scripted[0].n_calls) == (JobState.COMPLETED, 1)

    drive(main)


def test_a_stream_is_stored_event_by_event_and_ends_in_the_log() -> None:
    """In order, without gaps; `[DONE]` is the last event."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit(stream=True)
            await rig.wait_for_end(job_id)
        events = rig.store.jobs[job_id].events
        assert [event.n for event in events] == list(range(len(events)))
        assert text_of(b"".join(event.data for event in events)) == "four words"
        assert [event.is_last for event in events] == [False] * (len(events) - 1) + [True]
        assert events[-1].data == b"data: [DONE]\n\n"

    drive(main)


def test_a_second_attempt_begins_a_new_epoch_with_a_reset() -> None:
    """Clients drop the half text of the first."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(0.1), SendText("half"), Wait(0.2), Fail()), ANSWER])
        async with rig.running():
            job_id = await rig.submit(stream=True)
            job = await rig.wait_for_end(job_id)
        events = rig.store.jobs[job_id].events
        assert job.state is JobState.COMPLETED
        assert [event.n for event in events] == list(range(len(events)))
        first = next(event for event in events if event.epoch == 2)
        assert first.data == b'event: reset\ndata: {"type":"reset","epoch":2}\n\n'
        assert text_of(b"".join(event.data for event in events if event.epoch == 2)) == "four words"
        assert sum(event.is_last for event in events) == 1

    drive(main)


def test_a_whole_stream_of_a_dead_worker_is_the_result_without_a_second_generation() -> None:
    """The worker died between its last event and the result."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit(stream=True)
            await rig.wait_for_end(job_id)
        stored = rig.store.jobs[job_id]
        body, stored.result = rig.result(job_id).body, None
        stored.job = msgspec.structs.replace(stored.job, state=JobState.QUEUED)
        async with rig.running():
            await rig.wait_for_end(job_id)
        assert rig.result(job_id).body == body
        assert rig.scripted[0].n_calls == 1

    drive(main)


def test_a_route_that_is_unknown_here_stays_queued() -> None:
    """Another gateway may have it."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [ANSWER])
        async with rig.running():
            job_id = await rig.submit(model="elsewhere")
            await asyncio.sleep(20)
        assert rig.store.jobs[job_id].job.token == 0

    drive(main)


def test_jobs_leave_a_reserve_of_places() -> None:
    """A quarter of a fixed limit of 8, so that the next request need not wait."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(5.0), SendText("x"))], limit=LimitConfig(mode="fixed", max=8))
        for _ in range(20):
            await rig.submit()
        async with rig.running():
            await asyncio.sleep(4)
            assert rig.n_in_flight == 6

    drive(main)


def test_no_jobs_are_claimed_while_requests_wait() -> None:
    """The place that becomes free is the waiting request's."""
    async def main(loop: SimLoop) -> None:
        rig = JobsRig(loop, [(Wait(5.0), SendText("x"))], limit=LimitConfig(mode="fixed", max=2))
        waiting = [asyncio.ensure_future(rig.serve()) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert rig.capacity.room_at(next(iter(rig.registry))) == 0
        for reply in waiting:
            (await reply).close()

    drive(main)
