"""All clients return at once after an outage.

An engine that runs a known number of requests at a time serves some callers. Then it returns only errors, while many more
callers send requests, each again as soon as it is rejected, ignoring `Retry-After`. Then it is healthy again. From that
moment on, the maximum number of requests at the engine (running or waiting) is compared with the number that it can run,
which the gateway does not know. The same storm also runs in virtual time without limits, for comparison.

When wrong: callers in a closed loop that are rejected within a millisecond keep this machine busy, so over sockets the
throughput is shown without a goal. In virtual time the callers are 100 ms away.
"""

import asyncio
from dataclasses import dataclass

from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense
from stayfast.lab.harness.load import LoadSpec, n_failed, run_load, simulated_gateway
from stayfast.lab.harness.virtual import run_load_virtual, run_virtual_in_thread, simulated_upstream, virtual_system
from stayfast.lab.load.result import Result, Sample
from stayfast.lab.load.runner import DueShot, LoadTarget
from stayfast.lab.simulated import EngineModel, FaultKind, FaultRule, Mixture, ProviderConfig
from stayfast.policy.resilience.limits import LimitConfig, Mode
from stayfast.testing.simloop import SimLoop

N_RUNNING = 32  # the engine's maximum
N_CALM, N_STORM = 24, 200
N_OUTPUT = 24
GOAL = 1.3
SERVED_GOAL = 0.5  # share of the engine's capacity, from its return on
ENGINE = EngineModel(max_running=N_RUNNING, decode_step_s=0.02)
TTFT_S = 0.02  # before a request reaches the engine: with a longer time, requests on their way would count as arrived
UPSTREAM = "engine"
DISTANCE_S = 0.1


@dataclass(frozen=True, slots=True)
class StormPhases:
    """Seconds of each phase."""

    calm_s: float = 20.0
    outage_s: float = 10.0
    storm_s: float = 40.0

    @property
    def calm(self) -> LoadSpec:
        return LoadSpec(self.calm_s, n_concurrent=N_CALM, n_output=N_OUTPUT)

    @property
    def storm(self) -> LoadSpec:
        return LoadSpec(self.outage_s + self.storm_s, n_concurrent=N_STORM, n_output=N_OUTPUT)


@dataclass(frozen=True, slots=True)
class Storm:
    """mode: of the concurrency limit."""

    full: StormPhases = StormPhases()
    quick: StormPhases = StormPhases(6.0, 6.0, 10.0)
    mode: Mode = "gradient"

    name = "storm"
    statement = (f"When all clients return at once after an outage, the upstream never has more than {GOAL:g} times the "
            f"requests that it can run, and in virtual time serves at least {SERVED_GOAL:.0%} of what it can.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        phases, seed = conditions.choose(self.full, self.quick), conditions.seed
        settings = {"defaults": {"limit": {"mode": self.mode}}}
        async with simulated_gateway({UPSTREAM: make_provider(seed)}, seed, settings) as (sim, url):
            conditions.report_progress(f"{N_CALM} callers for {phases.calm_s:g} s")
            await run_load(phases.calm, url, seed)
            conditions.report_progress(f"an outage of {phases.outage_s:g} s and a storm of {N_STORM} callers")
            await sim.get("/_sim/faults", "POST", {"kind": "status", "status": 503})
            async with asyncio.TaskGroup() as group:
                running = group.create_task(run_load(phases.storm, url, seed))
                await asyncio.sleep(phases.outage_s)
                await sim.get("/_sim/reset", "POST")
            peak = (await sim.get("/_sim/counts"))["providers"][UPSTREAM]["n_running_peak"]
        conditions.report_progress("the same in virtual time")
        virtual, virtual_peak = await run_virtual_in_thread(run_in_virtual_time, phases, seed, self.mode)
        _, peak_without = await run_virtual_in_thread(run_in_virtual_time, phases, seed, "off")
        return ClaimResult((
            _peak_figure("sockets", peak), _served_figure("sockets", running.result(), phases),
            _peak_figure("virtual time", virtual_peak), _served_figure("virtual time", virtual, phases, SERVED_GOAL),
            Figure("virtual time, without limits: most at the engine at a time, over what it can run",
                   peak_without / N_RUNNING, "x")))


def make_provider(seed: int) -> ProviderConfig:
    return ProviderConfig(seed=seed, engine=ENGINE, ttft=Mixture(TTFT_S), fills_max_tokens=True)


async def run_in_virtual_time(loop: SimLoop, phases: StormPhases, seed: int, mode: Mode) -> tuple[Result, int]:
    """Returns the result of the storm, and the maximum number of requests at the engine from its return on."""
    system = virtual_system(loop, {UPSTREAM: make_provider(seed)}, seed, {"limit": LimitConfig(mode)})
    engine = simulated_upstream(system, UPSTREAM)

    def end_outage() -> None:
        engine.provider.clear_faults()
        engine.provider.reset_counts()

    await run_load_virtual(system, phases.calm, loop, seed, wrap_target=_DistantTarget)
    engine.provider.add_fault(FaultRule(FaultKind.STATUS, status=503))
    loop.call_later(phases.outage_s, end_outage)
    storm = await run_load_virtual(system, phases.storm, loop, seed, wrap_target=_DistantTarget)
    return storm, engine.counts.n_running_peak


class _DistantTarget:
    """A target which each request reaches after DISTANCE_S."""

    def __init__(self, target: LoadTarget) -> None:
        self._target = target

    @property
    def counted_by(self) -> str:
        return self._target.counted_by

    async def send(self, due: DueShot) -> Sample:
        await asyncio.sleep(DISTANCE_S)
        return await self._target.send(due)

    def close(self) -> None:
        self._target.close()


def _peak_figure(where: str, n_peak: int) -> Figure:
    return Figure.exact(f"{where}: most at the engine at a time, over what it can run ({N_RUNNING})", n_peak / N_RUNNING,
                        "x", GOAL)


def _served_figure(where: str, storm: Result, phases: StormPhases, goal: float | None = None) -> Figure:
    """Served requests as a share of the engine's capacity from its return on."""
    step_s = ENGINE.decode_step_s + N_RUNNING * ENGINE.decode_step_per_sequence_s
    capacity = N_RUNNING / (step_s * (N_OUTPUT - 1)) * phases.storm_s
    n_served = len(storm.samples.errors) - n_failed(storm)
    return Figure.exact(f"{where}: served after its return, of what it can do", n_served / capacity * 100, "%",
                        None if goal is None else goal * 100, Sense.AT_LEAST)
