"""The runner in virtual time: send times, recorded samples, and the effect of a stall on the figures."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan

import msgspec
import pytest

from stayfast.lab.load.arrivals import ConstantArrivals, Gamma
from stayfast.lab.load.lengths import ConstantLength as Always
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, RunProgress, estimate_progress, run_plan
from stayfast.lab.load.result import Error, LoadSlo, Mode, Result, Sample, Subject
from stayfast.lab.load.runner import LEAD_S, DueShot, Runner
from stayfast.lab.load.schedule import ScheduleLimit, TurnsConfig, Workload
from stayfast.lab.load.stats import MeasuredRun, metric_column
from stayfast.testing import SimLoop, run

WORKLOAD = Workload(Always(10), Always(5), ConstantArrivals(10))
PLAN = MeasurePlan(WORKLOAD, ScheduleLimit(10.0))


class Fake:
    """Answers after `service_s(now)`, at most `n_slots` at a time."""

    counted_by = "usage"

    def __init__(self, loop: SimLoop, service_s: Callable[[float], float] = lambda _: 0.1, n_slots: int = 1_000_000,
                 error: Error = Error.NONE) -> None:
        self.loop = loop
        self.service_s = service_s
        self.slots = asyncio.Semaphore(n_slots)
        self.error = error
        self.asked_at: list[float] = []
        self.prompts: list[int] = []
        self.n_now = self.n_most = 0

    async def send(self, due: DueShot) -> Sample:
        shot, now = due.shot, self.loop.now
        sent_at = now()
        self.asked_at.append(sent_at - due.zero_at)
        self.prompts.append(shot.prompt)
        self.n_now += 1
        self.n_most = max(self.n_most, self.n_now)
        try:
            async with asyncio.timeout_at(due.timeout_at), self.slots:
                await asyncio.sleep(self.service_s(now()))
        except TimeoutError:
            return Sample(shot.number, shot.at_s, sent_s=sent_at - due.zero_at, error=Error.TIMEOUT)
        finally:
            self.n_now -= 1
        if self.error:
            return Sample(shot.number, shot.at_s, error=self.error)
        at_s = now() - due.zero_at
        return Sample(shot.number, shot.at_s, sent_s=sent_at - due.zero_at, first_s=at_s, last_s=at_s, ended_s=at_s,
                      n_output=5, n_chunks=1)

    def close(self) -> None:
        """Nothing to close."""


def measured(plan: MeasurePlan, make: Callable[[SimLoop], list[Fake]], on_start: Callable[[Runner], None] | None = None,
             ) -> tuple[list[Result], list[Fake]]:
    """Run a plan against fakes in virtual time."""
    async def main(loop: SimLoop) -> tuple[list[Result], list[Fake]]:
        fakes = make(loop)
        subjects = [(Subject(f"t{n}", "http://x", "chat", "m"), fake) for n, fake in enumerate(fakes)]
        return await run_plan(plan, subjects, loop, LoadOrigin(), is_virtual=True, on_start=on_start), fakes

    return run(main)


def one(plan: MeasurePlan, make: Callable[[SimLoop], Fake]) -> tuple[Result, Fake]:
    results, fakes = measured(plan, lambda loop: [make(loop)])
    return results[0], fakes[0]


def test_runner_sends_at_the_scheduled_instants() -> None:
    """10 a second for 10 s with answers of 0.1 s: sent at 0.0, 0.1, ..., all measured, none late."""
    result, fake = one(PLAN, Fake)
    assert fake.asked_at == pytest.approx([n / 10 for n in range(100)])
    assert (len(result.samples), result.offered_rps, result.duration_s, result.mode) == (100, 10, 10, Mode.OPEN)
    assert result.health.lateness_max_s < 1e-9
    assert result.health.is_valid
    assert MeasuredRun(result).distributions["e2e_sched"].quantile(0.99) == pytest.approx(0.1)


def test_runner_same_seed_gives_the_same_run() -> None:
    """Every sample, to the last bit."""
    plan = MeasurePlan(replace(WORKLOAD, arrivals=Gamma(30, 0.5)), ScheduleLimit(20.0), seed=5)
    first, second = (one(plan, Fake)[0] for _ in range(2))
    assert [repr(sample) for sample in first.samples] == [repr(sample) for sample in second.samples]


def test_runner_warmup_is_sent_and_not_measured() -> None:
    """2 s of warm-up before 10 s: 120 sent, 100 measured, from zero on."""
    result, fake = one(replace(PLAN, limit=ScheduleLimit(10.0, warmup_s=2.0)), Fake)
    assert (len(fake.asked_at), len(result.samples)) == (120, 100)
    assert fake.asked_at[0] == pytest.approx(-2)
    assert min(sample.at_s for sample in result.samples) == pytest.approx(0, abs=1e-9)


def stalled(now: float) -> float:
    """Answers in 10 ms, except during a stall from 3.95 to 6.95 s."""
    return max(0.01, 6.95 + LEAD_S - now) if 3.95 <= now - LEAD_S < 6.95 else 0.01


def test_open_loop_shows_a_stalled_target() -> None:
    """A stall of 3 s in 10 s delays all requests due in it: 30 of 100 are slow, by up to 3 s."""
    result, _ = one(PLAN, lambda loop: Fake(loop, stalled))
    slow = [sample for sample in result.samples if sample.ended_s - sample.at_s > 0.04]
    assert len(slow) == 30
    assert max(sample.ended_s - sample.at_s for sample in slow) == pytest.approx(2.95, abs=0.01)
    assert result.health.is_valid


def test_closed_loop_omits_a_stall() -> None:
    """With one caller there is one slow request of hundreds, which p99 does not show."""
    result, fake = one(replace(PLAN, n_concurrent=1), lambda loop: Fake(loop, stalled))
    slow = [sample for sample in result.samples if sample.ended_s - sample.at_s > 0.05]
    assert len(slow) == 1
    assert MeasuredRun(result).distributions["e2e_sched"].quantile(0.99) < 0.05
    assert (result.mode, result.offered_rps, fake.n_most) == (Mode.CLOSED, 0, 1)


def test_stalled_client_shows_in_scheduled_latency_only() -> None:
    """The client's loop hangs for 2 s: sends are late; latency from the send looks normal, from t0 it does not."""
    def hang(runner: Runner) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.call_at(loop.time() + 4.05, loop.stall, 2.0)

    [result], _ = measured(PLAN, lambda loop: [Fake(loop)], hang)
    spreads = MeasuredRun(result).distributions
    assert spreads["ttft"].quantile(0.95) < 0.11
    assert spreads["ttft_sched"].quantile(0.99) > 1.8
    assert len(result.samples) == 100
    assert [reason for reason in result.health.verdict if "late" in reason]


def test_lateness_is_equal_in_health_and_rows() -> None:
    """20 ms to build a request is the client's lateness, the time to connect is not."""
    class Slow(Fake):
        async def send(self, due: DueShot) -> Sample:
            sample = await super().send(due)
            at_s = sample.at_s
            return msgspec.structs.replace(sample, sent_s=at_s + 0.07, connect_s=0.05)

    found, _ = one(PLAN, Slow)
    assert found.health.lateness_p99_s == pytest.approx(max(metric_column(found.samples, "lateness"))) == pytest.approx(0.02)
    assert not found.health.is_valid


def test_open_loop_is_not_delayed_by_a_slow_target() -> None:
    """Each answer takes 100 s: all are sent on time, with 100 in flight."""
    result, fake = one(replace(PLAN, timeout_s=1000), lambda loop: Fake(loop, lambda _: 100.0))
    assert fake.n_most == 100
    assert (result.health.lateness_max_s < 1e-9, result.duration_s) == (True, 10)


def test_open_loop_saturated_target_queues() -> None:
    """Two slots of 1 s against 10 a second for 60 s: latency from t0 grows to 240 s."""
    plan = replace(PLAN, limit=ScheduleLimit(60.0), timeout_s=1000, slo=LoadSlo(e2e_sched_s=5.0))
    run = MeasuredRun(one(plan, lambda loop: Fake(loop, lambda _: 1.0, n_slots=2))[0])
    assert (run.n_offered, run.error_share) == (600, 0)
    assert run.distributions["e2e_sched"].quantile(1.0) == pytest.approx(240, abs=2)
    assert run.goodput.n_good == pytest.approx(12, abs=2)


def test_timeout_counts_from_the_intended_start() -> None:
    """Answers take 3 s, the time-out is 2 s: all end 2 s after their t0."""
    result, _ = one(replace(PLAN, timeout_s=2.0), lambda loop: Fake(loop, lambda _: 3.0))
    assert {sample.error for sample in result.samples} == {Error.TIMEOUT}


def test_runner_too_late_to_send_is_a_failed_request() -> None:
    """The client hangs for longer than the time-out: those requests are unsent and counted."""
    def hang(runner: Runner) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.call_at(loop.time() + 2.05, loop.stall, 3.0)

    [result], _ = measured(replace(PLAN, timeout_s=1.0), lambda loop: [Fake(loop)], hang)
    unsent = [sample for sample in result.samples if sample.error is Error.UNSENT]
    assert (len(result.samples), len(unsent)) == (100, 20)
    assert all(isnan(sample.sent_s) for sample in unsent)
    assert [reason for reason in result.health.verdict if "could not be sent" in reason]
    assert [reason for reason in result.health.verdict if "too few" in reason]


def test_runner_two_targets_take_turns_with_the_same_requests() -> None:
    """Blocks of 2 s: each target gets the same requests at the same times, never at once with the other."""
    plan = MeasurePlan(replace(WORKLOAD, arrivals=Gamma(20)), ScheduleLimit(10.0, warmup_s=1.0), seed=3, block_s=2.0)
    (a, b), (fake_a, fake_b) = measured(plan, lambda loop: [Fake(loop), Fake(loop, lambda _: 0.3)])
    assert fake_a.prompts == fake_b.prompts
    assert fake_a.asked_at == pytest.approx(fake_b.asked_at)
    assert sorted(sample.at_s for sample in a.samples) == pytest.approx(sorted(sample.at_s for sample in b.samples))
    assert (a.duration_s, a.offered_rps) == (10, b.offered_rps)
    assert MeasuredRun(b).distributions["e2e"].quantile(0.5) == pytest.approx(0.3)


def test_runner_turns_do_not_overlap() -> None:
    """Requests of one target are at least a block apart from those of the other."""
    starts: dict[int, list[float]] = {0: [], 1: []}

    class Noting(Fake):
        def __init__(self, loop: SimLoop, number: int) -> None:
            super().__init__(loop)
            self.number = number

        async def send(self, due: DueShot) -> Sample:
            starts[self.number].append(self.loop.now() - LEAD_S)
            return await super().send(due)

    measured(replace(PLAN, limit=ScheduleLimit(4.0), block_s=1.0), lambda loop: [Noting(loop, 0), Noting(loop, 1)])
    blocks = [{int(at + 1e-6) for at in found} for found in starts.values()]
    assert blocks[0] & blocks[1] == set()
    assert blocks[0] | blocks[1] == set(range(8))


def test_closed_loop_callers_are_always_busy() -> None:
    """4 callers, 0.1 s an answer, 10 s: 400 requests, the last ends at about 10 s."""
    result, fake = one(replace(PLAN, n_concurrent=4), Fake)
    assert fake.n_most == 4
    assert len(result.samples) == pytest.approx(400, abs=4)
    assert result.duration_s == pytest.approx(10, abs=0.11)
    by_number, _ = one(replace(PLAN, limit=ScheduleLimit(n_requests=30), n_concurrent=4), Fake)
    assert 30 <= len(by_number.samples) <= 33


def test_closed_loop_pauses_after_a_refused_connection() -> None:
    """A dead target gives some hundred failures, not a busy loop."""
    result, _ = one(replace(PLAN, n_concurrent=2), lambda loop: Fake(loop, lambda _: 0.0, error=Error.CONNECT))
    assert 190 <= len(result.samples) <= 202


def test_conversation_turn_starts_after_answer_and_think_time() -> None:
    """t0 of a later turn is the end of the previous answer plus the think time."""
    plan = MeasurePlan(replace(WORKLOAD, arrivals=ConstantArrivals(1), turns=TurnsConfig(3, 0.5)),
                       ScheduleLimit(n_requests=9), seed=1)
    result, fake = one(plan, Fake)
    assert len(result.samples) == 9
    assert result.health.lateness_max_s < 1e-9
    by_number = {sample.number: sample for sample in result.samples}
    assert by_number[1].at_s > by_number[0].ended_s
    assert fake.prompts[0] != by_number[1].number


def test_conversation_ends_after_a_failed_turn() -> None:
    """Later turns are not offered."""
    plan = MeasurePlan(replace(WORKLOAD, arrivals=ConstantArrivals(1), turns=TurnsConfig(3, 0.5)),
                       ScheduleLimit(n_requests=9))
    result, _ = one(plan, lambda loop: Fake(loop, error=Error.STATUS))
    assert len(result.samples) == 3


def test_runner_stop_waits_for_requests_in_flight() -> None:
    """Stopped at 2.05 s: 21 were sent, all are answered, and a note says that it was interrupted."""
    def stop(runner: Runner) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + 2.05 + LEAD_S, runner.stop)

    [result], _ = measured(PLAN, lambda loop: [Fake(loop, lambda _: 1.0)], stop)
    assert len(result.samples) == 21
    assert all(sample.error is Error.NONE for sample in result.samples)
    assert result.health.is_valid
    assert result.offered_rps == pytest.approx(10, rel=0.01)
    assert "interrupted" in result.notes[0]


def test_sim_loop_fired_timers_are_not_counted_as_cancelled() -> None:
    """Each finished sleep cancels its timer; counting those would trigger needless clean-ups."""
    async def main(loop: SimLoop) -> int:
        for _ in range(3000):
            await asyncio.sleep(1)
        cancelled = [loop.call_later(9, print) for _ in range(5)]
        for timer in cancelled:
            timer.cancel()
            timer.cancel()
        return loop.n_cancelled_timers

    assert run(main) == 5


def test_progress_counts_sent_and_waiting_requests() -> None:
    """Sent, in flight, failed; and waiting once the schedule is finished."""
    seen: list[RunProgress] = []

    def watch(runner: Runner) -> None:
        loop = asyncio.get_running_loop()
        for at_s in (5.01, 10.5):
            loop.call_at(loop.time() + at_s + LEAD_S, lambda seconds: seen.append(estimate_progress(runner, seconds)), at_s)

    measured(PLAN, lambda loop: [Fake(loop, lambda _: 1.0)], watch)
    assert seen[0].phrases()[:3] == ["51 of 100 sent", "0 failed", "10 in flight"]
    assert seen[0].share == pytest.approx(0.5, abs=0.02)
    assert seen[1].phrases() == ["waiting for the last 5 of 100 answers", "0 failed"]
    assert seen[1].share == 1.0


def test_measure_plan_without_an_end_is_refused() -> None:
    for limit in (ScheduleLimit(), ScheduleLimit(0.0), ScheduleLimit(-1), ScheduleLimit(n_requests=0),
                  ScheduleLimit(1.0, warmup_s=-1)):
        with pytest.raises(ValueError, match=r"end|more than 0|at least 0"):
            MeasurePlan(WORKLOAD, limit)
    with pytest.raises(ValueError, match="time-out"):
        MeasurePlan(WORKLOAD, ScheduleLimit(1.0), timeout_s=nan)
