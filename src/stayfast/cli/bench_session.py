"""The measurements of one `stayfast bench` command: over sockets, or with `--virtual` on the same pipeline and policies in
virtual time.
"""

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import msgspec

from stayfast.cli.bench_options import BenchJob
from stayfast.cli.bench_targets import Misused
from stayfast.cli.terminal import ProgressLine, format_time_left
from stayfast.core import units
from stayfast.core.clock import Clock, SystemClock
from stayfast.lab.load.client import HttpTarget
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, estimate_progress, run_plan
from stayfast.lab.load.result import Result
from stayfast.lab.load.runner import LoadTarget, Runner
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.load.sweep import SweepStep, make_step, plan_at_load, should_stop
from stayfast.lab.load.virtual import PipelineTarget, build_virtual_system, check_simulated
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings, read_environment, read_settings_file
from stayfast.testing.simloop import SimLoop, run

SCENARIO = SettingsText("built-in scenario", "upstreams: {provider: {kind: simulated, preset: gemini-flash-like}}\n"
                  'routes: {"*": [provider]}\n')
PROGRESS_EVERY_S = 0.5, 10.0  # on a terminal, in a log
POLL_EVERY_S = 0.1
VIRTUAL_POLL_EVERY_S = 1.0  # of virtual time
_WALL = SystemClock()
_GC_THRESHOLDS = (200_000, 20, 1000)  # Python's 700 would scan the samples again and again


class Session:
    """The plans of a job, their results, and the progress line; shared by both kinds of session."""

    def __init__(self, job: BenchJob, origin: LoadOrigin, *, is_quiet: bool) -> None:
        self.results: list[Result] = []
        self.steps: list[SweepStep] = []
        self.interrupted_by = 0  # a signal's number
        self.cost = ""  # a line for the report
        self._job = job
        self._origin = origin
        self._is_quiet = is_quiet
        self._line = ProgressLine(is_quiet=is_quiet)
        self._runner: Runner | None = None
        self._began_at = self._wall_at = 0.0
        self._shown_at = _WALL.now()
        self._step = ""  # the label of a sweep's step

    def _make_plans(self) -> Iterator[tuple[MeasurePlan, float]]:
        """The plan, or each step of a sweep with its load."""
        job, sweep = self._job, self._job.sweep
        if sweep is None:
            yield job.plan, 0.0
            return
        n = len(sweep.loads)
        for number, at in enumerate(sweep.steps(), 1):
            self._step = f"step {number}{f' of {n}' if n else ''} ({sweep.label(at)})"
            yield plan_at_load(sweep, job.plan, at, has_length=job.has_length), at

    async def _measure(self, plan: MeasurePlan, targets: Sequence[LoadTarget], clock: Clock, *,
                       is_virtual: bool) -> list[Result]:
        """Run one plan and show its progress."""

        def begin(runner: Runner) -> None:
            self._runner = runner
            self._began_at, self._wall_at = clock.now(), _WALL.now()
            if is_virtual and self.interrupted_by:
                runner.stop()

        subjects = [subject for subject, _ in self._job.subjects]
        async with asyncio.TaskGroup() as group:
            showing = None if self._is_quiet else group.create_task(
                self._show_progress(clock, VIRTUAL_POLL_EVERY_S if is_virtual else POLL_EVERY_S))
            results = await run_plan(plan, list(zip(subjects, targets, strict=True)), clock, self._origin,
                                    is_virtual=is_virtual, on_start=begin)
            if showing is not None:
                showing.cancel()
        return results

    def _add(self, results: Sequence[Result], at: float) -> bool:
        """Add the results of one plan. Returns whether to measure the next one."""
        for result, (_, config) in zip(results, self._job.subjects, strict=True):
            result.workload["answers"] = "streamed" if config.request.stream else "in one piece"
        sweep = self._job.sweep
        if sweep is None:
            self.results += results
            return False
        [result] = results
        result.label = sweep.label(at)
        if not len(result.samples):
            return False
        self.results.append(result)
        self.steps.append(make_step(sweep, at, MeasuredRun(result)))
        return not (self.interrupted_by or (not sweep.loads and should_stop(self.steps)))

    async def _show_progress(self, clock: Clock, poll_every_s: float) -> None:
        """Show the progress by the run's clock, and the remaining time by the wall clock."""
        every_s = PROGRESS_EVERY_S[0 if self._line.is_terminal else 1]
        while True:
            await asyncio.sleep(poll_every_s)
            wall = _WALL.now()
            if self._runner is None or wall - self._shown_at < every_s:
                continue
            self._shown_at = wall
            now = estimate_progress(self._runner, clock.now() - self._began_at)
            first, *others = now.phrases()
            left = ""
            if now.share and not now.is_waiting:
                left = f"{format_time_left((wall - self._wall_at) * (1 - now.share) / now.share)} left"
            self._line.show([self._step, first, left, *others], now.share)


class SocketSession(Session):
    """Over sockets, on one loop."""

    async def run(self) -> None:
        """Measure. The first interrupt ends the sends, the second aborts the requests in flight."""
        loop, clock = asyncio.get_running_loop(), SystemClock()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        for plan, at in self._make_plans():
            prompts = Prompts(plan.seed, plan.workload.n_system)
            targets = [HttpTarget(subject.name, config, prompts, clock) for subject, config in self._job.subjects]
            if not self._add(await self._measure(plan, targets, clock, is_virtual=False), at):
                break
        self._line.clear()

    def _interrupt(self, number: int) -> None:
        if self._runner is None:
            return
        if self.interrupted_by:
            self._runner.abort()
        else:
            self._line.note("stayfast bench: no more is sent; waiting for answers in flight (interrupt again to abort them)")
            self.interrupted_by = number
            self._runner.stop()


class VirtualSession(Session):
    """In virtual time, each plan on its own loop."""

    def __init__(self, job: BenchJob, config: str | None, origin: LoadOrigin, *, is_quiet: bool) -> None:
        """Raises Misused for settings that are invalid or not all simulated."""
        super().__init__(job, origin, is_quiet=is_quiet)
        variables = read_environment()
        try:
            settings = load_settings(read_settings_file(config, variables) if config is not None else SCENARIO, variables,
                                     kinds=KINDS)
            check_simulated(settings)
        except (SettingsError, ValueError) as why:
            raise Misused(str(why)) from None
        self._settings: Settings = replace(settings, workers=1)
        subject, target = job.subjects[0]
        subject = msgspec.structs.replace(subject, name="virtual", url=config or SCENARIO.name)
        self._job = replace(job, subjects=((subject, target),))

    def run(self) -> None:
        """Measure. An interrupt ends the sends."""
        clock = SystemClock()
        began_at, cpu_before_s = clock.now(), clock.cpu()
        with self._stop_on_interrupt(), _rare_gc():
            for plan, at in self._make_plans():
                if not self._add(self._run_plan(plan), at):
                    break
        self._line.clear()
        n, cpu_s = sum(len(result.samples) for result in self.results), clock.cpu() - cpu_before_s
        all_s, each_s, took_s = map(units.format_seconds, (cpu_s, cpu_s / max(1, n), clock.now() - began_at))
        self.cost = f"  cost      {all_s} of CPU in {took_s} on this machine: {each_s} of CPU a request\n"

    def _run_plan(self, plan: MeasurePlan) -> list[Result]:
        async def measure(loop: SimLoop) -> list[Result]:
            [(_, config)] = self._job.subjects
            system = build_virtual_system(self._settings, loop, plan.seed)
            target = PipelineTarget(system.gateway, config.request, Prompts(plan.seed, plan.workload.n_system), loop)
            return await self._measure(plan, [target], loop, is_virtual=True)

        return run(measure)

    @contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        """Handle SIGINT in a plain signal handler: the virtual loop polls no file descriptors."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupted_by = number
            if self._runner is not None:
                self._runner.stop()

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _rare_gc() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
