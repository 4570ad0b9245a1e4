"""The measurements of one `stayfast bench` command: over sockets, or (`--virtual`) the same load on the same pipeline and
policies, on a clock that skips the waiting.
"""

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import msgspec

from stayfast.cli.bench_options import Job, Misused, at_load
from stayfast.cli.terminal import ProgressLine, time_left
from stayfast.core import units
from stayfast.core.clock import Clock, SystemClock
from stayfast.lab.load.client import HttpTarget
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, perform, progress
from stayfast.lab.load.result import Result
from stayfast.lab.load.runner import Runner
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.stats import Measured
from stayfast.lab.load.sweep import SweepStep, is_enough, step_of
from stayfast.lab.load.virtual import PipelineTarget, check_simulated, virtual
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, environment, find, load
from stayfast.testing.simloop import SimLoop, run

SCENARIO = SettingsText("built-in scenario", "upstreams: {provider: {kind: simulated, preset: gemini-flash-like}}\n"
                  'routes: {"*": [provider]}\n')
PROGRESS_EVERY_S = 0.5, 10.0  # for a person, for a log
LOOK_EVERY_S = 0.1
VIRTUAL_LOOK_EVERY_S = 1.0  # of virtual time
_WALL = SystemClock()
_GC_THRESHOLDS = (200_000, 20, 1000)  # at Python's 700, the collector walks through the samples again and again


class Session:
    """What both kinds share: the plans of the steps, what came of them, and the line of progress."""

    def __init__(self, job: Job, origin: LoadOrigin, *, is_quiet: bool) -> None:
        self.results: list[Result] = []
        self.steps: list[SweepStep] = []  # of a sweep
        self.interrupted_by = 0  # the signal
        self.cost = ""  # a line for the report
        self._job = job
        self._origin = origin
        self._is_quiet = is_quiet
        self._line = ProgressLine(is_quiet=is_quiet)
        self._runner: Runner | None = None
        self._began_at = self._wall_at = 0.0
        self._step = ""  # of a sweep

    def _plans(self) -> Iterator[tuple[MeasurePlan, float]]:
        """One plan, or those of a sweep, with their loads."""
        if self._job.sweep is None:
            yield self._job.plan, 0.0
        else:
            n = len(self._job.sweep.loads)
            for number, at in enumerate(self._job.sweep.steps(), 1):
                self._step = f"step {number}{f' of {n}' if n else ''} ({self._job.sweep.label(at)})"
                yield at_load(self._job, at), at

    def _add(self, results: Sequence[Result], at: float) -> bool:
        """Take what came of one plan; whether the next is to be carried out."""
        for result, (_, config) in zip(results, self._job.subjects, strict=True):
            result.workload["answers"] = "streamed" if config.asking.stream else "in one piece"
        sweep = self._job.sweep
        if sweep is None:
            self.results += results
            return False
        [result] = results
        result.label = sweep.label(at)
        if not len(result.samples):
            return False
        self.results.append(result)
        self.steps.append(step_of(sweep, at, Measured(result)))
        return not (self.interrupted_by or (not sweep.loads and is_enough(self.steps)))

    async def _watch(self, clock: Clock, poll_every_s: float) -> None:
        """Show how far the run is, by the clock that it runs on; the time left is this machine's."""
        every_s = PROGRESS_EVERY_S[0 if self._line.is_terminal else 1]
        shown_at = _WALL.now()
        while True:
            await asyncio.sleep(poll_every_s)
            wall = _WALL.now()
            if self._runner is None or wall - shown_at < every_s:
                continue
            shown_at = wall
            now = progress(self._runner, clock.now() - self._began_at)
            first, *others = now.words()
            left = ""
            if now.share and not now.is_waiting:
                left = f"{time_left((wall - self._wall_at) * (1 - now.share) / now.share)} left"
            self._line.show([self._step, first, left, *others], now.share)

    def _begin(self, runner: Runner, clock: Clock) -> None:
        self._runner = runner
        self._began_at, self._wall_at = clock.now(), _WALL.now()


class SocketSession(Session):
    """Over sockets, on one loop."""

    def __init__(self, job: Job, origin: LoadOrigin, *, is_quiet: bool) -> None:
        super().__init__(job, origin, is_quiet=is_quiet)
        self._clock = SystemClock()

    async def perform(self) -> None:
        """Measure. The first interrupt ends the sending, the second the waiting."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        async with asyncio.TaskGroup() as group:
            watching = None if self._is_quiet else group.create_task(self._watch(self._clock, LOOK_EVERY_S))
            for plan, at in self._plans():
                prompts = Prompts(plan.seed, plan.workload.n_system)
                subjects = [(subject, HttpTarget(subject.name, config, prompts, self._clock))
                            for subject, config in self._job.subjects]
                results = await perform(plan, subjects, self._clock, self._origin,
                                        on_start=lambda runner: self._begin(runner, self._clock))
                if not self._add(results, at):
                    break
            if watching is not None:
                watching.cancel()
        self._line.clear()

    def _interrupt(self, number: int) -> None:
        if self._runner is None:
            return
        if self.interrupted_by:
            self._runner.cut()
        else:
            self._line.note("stayfast bench: no more is sent; waiting for the answers on their way (again: do not wait)")
            self.interrupted_by = number
            self._runner.stop()


class VirtualSession(Session):
    """Each plan on a loop of its own."""

    def __init__(self, job: Job, config: str | None, origin: LoadOrigin, *, is_quiet: bool) -> None:
        """Raises Misused for settings that cannot be read or are not all simulated."""
        super().__init__(job, origin, is_quiet=is_quiet)
        self._settings = _settings(config)
        self._where = config or SCENARIO.name

    def perform(self) -> None:
        """Measure. An interrupt ends the sending; what was done until then is reported."""
        clock = SystemClock()
        began_at, cpu_before_s = clock.now(), clock.cpu()
        with self._interruptible(), _collecting_seldom():
            for plan, at in self._plans():
                if not self._add([self._once(plan)], at):
                    break
        self._line.clear()
        n, cpu_s = sum(len(result.samples) for result in self.results), clock.cpu() - cpu_before_s
        all_s, each_s, took_s = map(units.seconds, (cpu_s, cpu_s / max(1, n), clock.now() - began_at))
        self.cost = f"  cost      {all_s} of CPU in {took_s} on this machine: {each_s} of CPU a request\n"

    def _once(self, plan: MeasurePlan) -> Result:
        async def on(loop: SimLoop) -> Result:
            [(subject, config)] = self._job.subjects
            system = virtual(self._settings, loop, plan.seed)
            target = PipelineTarget(system.gateway, config.asking, Prompts(plan.seed, plan.workload.n_system), loop)
            subject = msgspec.structs.replace(subject, name="virtual", url=self._where)
            async with asyncio.TaskGroup() as group:
                watching = None if self._is_quiet else group.create_task(
                    self._watch(loop, VIRTUAL_LOOK_EVERY_S))
                [result] = await perform(plan, [(subject, target)], loop, self._origin, is_virtual=True,
                                         on_start=lambda runner: self._start(runner, loop))
                if watching is not None:
                    watching.cancel()
            return result

        return run(on)

    def _start(self, runner: Runner, loop: SimLoop) -> None:
        self._begin(runner, loop)
        if self.interrupted_by:
            runner.stop()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The virtual loop never looks at file descriptors, so the signal's own handler has to do it."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupted_by = number
            if self._runner is not None:
                self._runner.stop()

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _settings(config: str | None) -> Settings:
    variables = environment()
    try:
        settings = load(find(config, variables) if config is not None else SCENARIO, variables, kinds=KINDS)
        check_simulated(settings)
    except (SettingsError, ValueError) as why:
        raise Misused(str(why)) from None
    return replace(settings, workers=1)


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
