"""`stayfast bench --virtual`: the same load on the same pipeline and policies, on a clock that skips the waiting."""

import asyncio
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import msgspec

from stayfast.cli.bench_options import Job, Misused, at_load
from stayfast.core import units as amounts
from stayfast.core.clock import SystemClock
from stayfast.lab.load.measure import Origin, Plan, perform, progress
from stayfast.lab.load.result import Result
from stayfast.lab.load.runner import Runner
from stayfast.lab.load.schedule import Prompts
from stayfast.lab.load.stats import Measured
from stayfast.lab.load.sweep import Step, is_enough, step_of
from stayfast.lab.load.virtual import PipelineTarget, check_simulated, virtual
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, Source, environment, find, load
from stayfast.testing.simloop import SimLoop, run

SCENARIO = Source("built-in scenario", "upstreams: {provider: {kind: simulated, preset: gemini-flash-like}}\n"
                  'routes: {"*": [provider]}\n')
TOLD_EVERY_S = 60.0  # of virtual time
_GC_THRESHOLDS = (200_000, 20, 1000)  # at Python's 700, the collector walks through the samples again and again


class VirtualSession:
    """One command's measurements, each on a loop of its own."""

    def __init__(self, job: Job, config: str | None, origin: Origin, *, is_quiet: bool) -> None:
        """Raises Misused for settings that cannot be read or are not all simulated."""
        self.steps: list[Step] = []
        self._job = job
        self._origin = origin
        self._is_quiet = is_quiet
        self._settings = _settings(config)
        self._where = config or SCENARIO.name
        self._runner: Runner | None = None
        self.interrupted_by = 0  # the signal
        self.cost = ""  # a line for the report

    def perform(self) -> list[Result]:
        """All results. An interrupt ends the sending; what was done until then is reported."""
        clock = SystemClock()
        began_at, cpu_before_s = clock.now(), clock.cpu()
        with self._interruptible(), _collecting_seldom():
            results = self._sweep() if self._job.sweep is not None else [self._once(self._job.plan)]
        n, cpu_s = sum(len(result.samples) for result in results), clock.cpu() - cpu_before_s
        all_s, each_s, took_s = map(amounts.seconds, (cpu_s, cpu_s / max(1, n), clock.now() - began_at))
        self.cost = f"  cost      {all_s} of CPU in {took_s} on this machine: {each_s} of CPU a request\n"
        return results

    def _once(self, plan: Plan) -> Result:
        return run(lambda loop: self._on(loop, plan))

    async def _on(self, loop: SimLoop, plan: Plan) -> Result:
        [(subject, config)] = self._job.subjects
        system = virtual(self._settings, loop, plan.seed)
        target = PipelineTarget(system.gateway, config.asking, Prompts(plan.seed, plan.workload.n_system), loop)
        subject = msgspec.structs.replace(subject, name="virtual", url=self._where)
        async with asyncio.TaskGroup() as group:
            telling = None if self._is_quiet else group.create_task(self._tell(loop))
            [result] = await perform(plan, [(subject, target)], loop, self._origin, is_virtual=True, on_start=self._begin)
            if telling is not None:
                telling.cancel()
        result.workload["answers"] = "streamed" if config.asking.stream else "in one piece"
        return result

    def _sweep(self) -> list[Result]:
        results: list[Result] = []
        sweep = self._job.sweep
        assert sweep is not None
        for at in sweep.steps():
            result = self._once(at_load(self._job, at))
            result.label = sweep.label(at)
            results.append(result)
            self.steps.append(step_of(sweep, at, Measured(result)))
            if self.interrupted_by or (not sweep.loads and is_enough(self.steps)):
                break
        return results

    def _begin(self, runner: Runner) -> None:
        self._runner = runner
        if self.interrupted_by:
            runner.stop()

    async def _tell(self, loop: SimLoop) -> None:
        is_terminal = sys.stderr.isatty()
        while True:
            await asyncio.sleep(TOLD_EVERY_S if is_terminal else 10 * TOLD_EVERY_S)
            if self._runner is not None:
                line = f"virtual {progress(self._runner, loop.now())}"
                sys.stderr.write(f"\r\x1b[K{line}" if is_terminal else f"{line}\n")
                sys.stderr.flush()

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
