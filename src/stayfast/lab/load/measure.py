"""One measurement: the schedule, the run, the client's own health, and a `Result` for each target.

The same code measures HTTP targets in real time and the pipeline in virtual time; the caller supplies targets and a clock.

A run is invalid if its figures may be the client's and not the target's: if p99 of the lateness of its sends, or of the lag
of its event loop, exceeds max(5 ms, 2 % of the median TTFT); if it sent over 1 % fewer requests/s than scheduled; or if it
ran out of sockets.
"""

import asyncio
import gc
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, isnan
from random import Random
from typing import Annotated

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.setting import check_bounds
from stayfast.core.units import format_duration
from stayfast.lab.load.options import Option
from stayfast.lab.load.result import ClientHealth, LoadSlo, Mode, Result, Subject
from stayfast.lab.load.runner import (
    LoadTarget,
    RunConfig,
    RunEstimate,
    Runner,
    TargetRecord,
    interleave_targets,
    make_rounds,
)
from stayfast.lab.load.schedule import ScheduleLimit, Shot, Workload, generate_shots

TICK_S = 0.01
LEAST_BOUND_S = 0.005
TTFT_SHARE = 0.02
MAX_SHORTFALL = 0.01
SPIN_S = 0.001
MAX_LISTED_ENDS = 4
FIRST_ERROR_STATUS = 300


class LoopLagMeter:
    """Measures how late the loop's own timer is. Timestamps of bytes that arrived meanwhile are as late."""

    def __init__(self, clock: Clock) -> None:
        self.lags_s: array[float] = array("d")
        self._clock = clock

    async def run(self) -> None:
        while True:
            due_at = self._clock.now() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lags_s.append(max(0.0, self._clock.now() - due_at))


def judge_client(record: TargetRecord, lags_s: Sequence[float], *, n_scheduled: int, seconds: float,
              cpu_share: float = 0.0) -> ClientHealth:
    """The client's health in a run. `n_scheduled`: measured requests of the schedule, 0 in a closed loop; `seconds`: the
    length of the schedule."""
    late_s = sorted(record.lateness_s)
    lags_s = sorted(lags_s)
    requested_rps = n_scheduled / seconds if seconds else 0.0
    n_sent = len(record.lateness_s) - record.n_unsent
    behind_s = max(0.0, record.last_began_s - record.last_at_s)  # delay of the last send
    achieved_rps = n_sent / (seconds + behind_s) if seconds else 0.0
    health = ClientHealth(
        lateness_p50_s=_quantile(late_s, 0.5), lateness_p99_s=_quantile(late_s, 0.99), lateness_max_s=_quantile(late_s, 1.0),
        loop_lag_p50_s=_quantile(lags_s, 0.5), loop_lag_p99_s=_quantile(lags_s, 0.99), loop_lag_max_s=_quantile(lags_s, 1.0),
        requested_rps=requested_rps, achieved_rps=achieved_rps, cpu_share=cpu_share)
    return msgspec.structs.replace(health, verdict=tuple(_find_invalid_reasons(health, record)))


def _find_invalid_reasons(health: ClientHealth, record: TargetRecord) -> list[str]:
    sent = zip(record.samples.floats["first_s"], record.samples.floats["sent_s"], strict=True)
    ttfts_s = sorted(first_s - sent_s for first_s, sent_s in sent if not isnan(first_s - sent_s))
    bound_s = max(LEAST_BOUND_S, TTFT_SHARE * _quantile(ttfts_s, 0.5))
    reasons = []
    late_s = health.lateness_p99_s if health.requested_rps else 0.0  # a closed loop has no schedule
    for what, p99_s in (("its sends were late by", late_s), ("its loop lagged by", health.loop_lag_p99_s)):
        if p99_s > bound_s:
            reasons.append(f"{what} {p99_s * 1e3:.1f} ms at p99, more than {bound_s * 1e3:.1f} ms (the larger of 5 ms and "
                           "2 % of the median TTFT): the figures are the client's as much as the target's")
    if health.requested_rps and health.achieved_rps < health.requested_rps * (1 - MAX_SHORTFALL):
        reasons.append(f"it sent {health.achieved_rps:.1f} requests/s of the {health.requested_rps:.1f} scheduled: over 1 % "
                       "too few")
    if record.n_unsent:
        reasons.append(f"{record.n_unsent} requests could not be sent (no socket, no port, or already timed out)")
    if reasons:
        reasons[-1] += f" (try a quieter machine or {'a lower rate' if health.requested_rps else 'fewer callers'})"
    return reasons


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank, a value that was measured."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """What to measure. `n_concurrent`: callers of a closed loop, 0 for an open loop. `block_s`: see `runner.in_turn`."""

    workload: Workload
    limit: ScheduleLimit
    seed: Annotated[int, Option("same seed, same requests (default: 0)", flag="--seed")] = 0
    n_concurrent: Annotated[int, Option("closed loop with N callers: for comparison only", 1, 1_000_000,
                                        flag="--concurrency")] = 0
    timeout_s: Annotated[float, Option("time-out from the intended start", flag="--timeout", metavar="TIME")] = 60.0
    block_s: Annotated[float, Option("A/B: length of each target's turn", more_than=0, flag="--block",
                                     metavar="TIME")] = 5.0
    slo: LoadSlo = field(default_factory=LoadSlo)

    def __post_init__(self) -> None:
        RunConfig(self.timeout_s)
        limit = self.limit
        if limit.until_s is None and limit.n_requests is None and (self.n_concurrent or not self.workload.trace):
            raise ValueError(f"a {'closed loop' if self.n_concurrent else 'run'} needs an end: a duration or a number of "
                             "requests")
        check_bounds(limit)
        if self.block_s <= 0:
            raise ValueError("the block must be more than 0")


def _estimate(plan: MeasurePlan, fixed: Sequence[Shot], n_targets: int) -> RunEstimate:
    limit = plan.limit
    if plan.n_concurrent:
        seconds = None if limit.until_s is None else (limit.until_s + limit.warmup_s) * n_targets
        return RunEstimate(limit.n_requests and limit.n_requests * n_targets, seconds, is_closed=True)
    n = len(fixed) * n_targets if plan.workload.turns.n_turns == 1 else None
    return RunEstimate(n, (max((shot.at_s for shot in fixed), default=0.0) + limit.warmup_s) * n_targets)


@dataclass(frozen=True, slots=True)
class LoadOrigin:
    """How and where a result was measured, for the report."""

    command: str = ""
    machine: dict[str, str] = field(default_factory=dict)


async def run_plan(plan: MeasurePlan, subjects: Sequence[tuple[Subject, LoadTarget]], clock: Clock, origin: LoadOrigin, *,
                  is_virtual: bool = False, on_start: Callable[[Runner], None] | None = None) -> list[Result]:
    """Run the plan; one result for each subject. `on_start` gets the runner, to observe or stop it."""
    config = RunConfig(plan.timeout_s, 0.0 if is_virtual else SPIN_S, plan.limit.until_s, plan.limit.n_requests)
    runner = Runner([target for _, target in subjects], clock, config)
    fixed = [] if plan.n_concurrent else list(generate_shots(plan.workload, plan.seed, plan.limit))
    runner.estimate = _estimate(plan, fixed, len(subjects))
    began_at_wall, began_at, cpu_before_s = clock.wall(), clock.now(), read_cpu_s()
    lag = LoopLagMeter(clock)
    with exclude_from_gc():
        async with asyncio.TaskGroup() as group:
            watching = None if is_virtual else group.create_task(lag.run())
            if on_start is not None:
                on_start(runner)
            try:
                await _run_load(plan, runner, fixed, len(subjects))
            finally:
                if watching is not None:
                    watching.cancel()
    for _, target in subjects:
        target.close()
    cpu_share = 0.0 if is_virtual else (read_cpu_s() - cpu_before_s) / max(1e-9, clock.now() - began_at)
    n_fixed = sum(shot.at_s >= 0 for shot in fixed)
    results = []
    for record, (subject, target) in zip(runner.records, subjects, strict=True):
        seconds = _measured_seconds(plan, runner, record)
        n_scheduled = 0 if plan.n_concurrent else max(len(record.lateness_s), 0 if runner.is_stopped else n_fixed)
        health = judge_client(record, lag.lags_s, n_scheduled=n_scheduled, seconds=seconds, cpu_share=cpu_share)
        results.append(Result(
            label=subject.name, subject=subject, command=origin.command, machine=origin.machine, began_at_wall=began_at_wall,
            seed=plan.seed, mode=Mode.CLOSED if plan.n_concurrent else Mode.OPEN,
            workload=_describe_workload(plan, len(subjects)), counted_by=target.counted_by, duration_s=seconds,
            offered_rps=n_scheduled / seconds, n_concurrent=plan.n_concurrent, is_virtual=is_virtual, samples=record.samples,
            gaps=record.gaps, health=health, slo=plan.slo, notes=_make_notes(runner, record)))
    return results


async def _run_load(plan: MeasurePlan, runner: Runner, fixed: Sequence[Shot], n_targets: int) -> None:
    rng = Random(plan.seed + 2)
    warmup_s = plan.limit.warmup_s
    if not plan.n_concurrent:
        await runner.run_open_loop(interleave_targets(fixed, n_targets, warmup_s, plan.block_s, rng))
        return
    until_s = plan.limit.until_s
    turns = make_rounds(1e9 if until_s is None else until_s, n_targets, warmup_s, plan.block_s, rng)
    endless = [generate_shots(plan.workload, plan.seed, ScheduleLimit()) for _ in range(n_targets)]
    await runner.run_closed_loop(turns, endless, plan.n_concurrent)


def _measured_seconds(plan: MeasurePlan, runner: Runner, record: TargetRecord) -> float:
    """The measured part: the schedule of an open loop, or a closed loop until its last answer."""
    limit = plan.limit
    if plan.n_concurrent:
        return max((at_s for at_s in record.samples.floats["ended_s"] if not isnan(at_s)), default=limit.until_s or 1.0)
    if limit.until_s is not None and not runner.is_stopped and not plan.workload.trace:
        return limit.until_s
    n, last_s = len(record.lateness_s), record.last_at_s
    return max(1e-3, last_s * n / (n - 1) if n > 1 else last_s)


def _make_notes(runner: Runner, record: TargetRecord) -> tuple[str, ...]:
    notes = []
    if runner.is_stopped:
        notes.append("The run was interrupted. Requests not sent by then are not counted.")
    if runner.is_aborted:
        notes.append("It was cut short: requests in flight count as time-outs.")
    if record.n_unsent:
        notes.append(f"{record.n_unsent} requests were never sent; each is a failed request at its t0.")
    if not len(record.samples):
        notes.append("No request was measured.")
    elif all(record.samples.errors):
        if record.unreached:
            notes.append(f"{record.unreached}.")
        ends = Counter(f"status {status}" if status >= FIRST_ERROR_STATUS else str(error)
                       for status, error in zip(record.samples.ints["status"], record.samples.errors, strict=True))
        listed = ", ".join(f"{end} ({n})" for end, n in ends.most_common(MAX_LISTED_ENDS))
        notes.append(f"Nothing succeeded: {listed}.")
        if record.excerpt:
            notes.append(f"Body of the first failed answer: {record.excerpt}")
    return tuple(notes)


def _describe_workload(plan: MeasurePlan, n_targets: int) -> dict[str, str]:
    workload, limit = plan.workload, plan.limit
    if plan.n_concurrent:
        arrivals = f"closed loop, {plan.n_concurrent} at once: a slow target slows the load down"
    else:
        arrivals = f"trace of {len(workload.trace)} requests" if workload.trace else str(workload.arrivals)
    lengths = {"input": "as in the trace", "output": "as in the trace"} if workload.trace else {
        "input": str(workload.input), "output": f"at most {workload.output}"}
    found = {"arrivals": arrivals, **lengths, "prompts": str(workload.pool)}
    if workload.n_system:
        found["system prompt"] = f"{workload.n_system} tokens, shared by all"
    if workload.turns.n_turns > 1:
        think = format_duration(workload.turns.think_s)
        found["turns"] = f"{workload.turns.n_turns} a conversation, mean think time {think}"
    if n_targets > 1:
        found["targets"] = f"{n_targets}, in turns of {format_duration(plan.block_s)}: same requests, each in its own time"
    if limit.warmup_s:
        found["warm-up"] = f"{format_duration(limit.warmup_s)}, not measured"
    found["time-out"] = f"{format_duration(plan.timeout_s)} from the intended start"
    return found


@contextmanager
def exclude_from_gc() -> Iterator[None]:
    """Exclude existing objects from garbage collection: scanning a million planned requests would look like a slow
    target."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def read_cpu_s() -> float:
    times = os.times()
    return times.user + times.system


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run. `share`: of its sends, 0 to 1; None if unknown."""

    n_sent: int
    n_done: int
    n_bad: int
    n_expected: int | None
    share: float | None
    late_s: float  # of the last send
    is_waiting: bool  # all requests are sent

    def phrases(self) -> list[str]:
        """Phrases for a progress line, the most important first."""
        if self.is_waiting:
            return [f"waiting for the last {self.n_sent - self.n_done} of {self.n_sent} answers", f"{self.n_bad} failed"]
        return [f"{self.n_sent}{f' of {self.n_expected}' if self.n_expected else ''} sent", f"{self.n_bad} failed",
                f"{self.n_sent - self.n_done} in flight", f"last send {self.late_s * 1e3:.1f} ms late"]


def estimate_progress(runner: Runner, seconds: float) -> RunProgress:
    """The progress `seconds` into the run."""
    records, expected = runner.records, runner.estimate
    n_sent, n_done, n_bad = (sum(getattr(record, name) for record in records) for name in ("n_sent", "n_done", "n_bad"))
    shares = [] if expected.seconds is None else [seconds / max(1e-9, expected.seconds)]
    if expected.is_closed and expected.n_requests:
        shares.append(n_done / expected.n_requests)
    is_waiting = runner.is_stopped or runner.is_all_sent
    share = 1.0 if is_waiting else min(1.0, max(shares)) if shares else None
    late_s = max((record.lateness_s[-1] for record in records if record.lateness_s), default=0.0)
    return RunProgress(n_sent, n_done, n_bad, expected.n_requests, share, late_s, is_waiting)
