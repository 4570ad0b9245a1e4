"""An outage ends, and all clients come back at once.

One engine that runs a known number of requests at a time serves some callers; then it answers nothing but errors while many
more callers ask, each again the moment that it is refused, whatever `Retry-After` it was given; then it is well. From then
on the most that the engine has at a time, running or waiting, is held against what it can run, which the gateway is not
given. The same storm in virtual time is also run without limits: how high it would be.

When wrong: callers of a closed loop that are refused in a millisecond keep this machine busy, so what they are served is
shown and not claimed. In virtual time they are 100 ms away.
"""

import asyncio
from dataclasses import dataclass

from stayfast.lab.harness.claim import Conditions, Figure, Finding, Sense
from stayfast.lab.harness.load import LoadSpec, ask, n_failed, simulated_gateway
from stayfast.lab.harness.virtual import ask_pipeline, run_virtual_in_thread, simulated, virtual_system
from stayfast.lab.load.result import Result, Sample
from stayfast.lab.load.runner import DueShot, LoadTarget
from stayfast.lab.simulated import EngineModel, FaultKind, FaultRule, Mixture, ProviderConfig
from stayfast.policy.resilience.limits import LimitConfig, Mode
from stayfast.testing.simloop import SimLoop

N_RUNNING = 32  # what the engine can run at a time
N_CALM, N_STORM = 24, 200
N_OUTPUT = 24
GOAL = 1.3
SERVED_GOAL = 0.5  # of what the engine can do, in the time from its return on
ENGINE = EngineModel(max_running=N_RUNNING, decode_step_s=0.02)
TTFT_S = 0.02  # before it reaches the engine: longer, and what is under way would be counted as there
UPSTREAM = "engine"
AWAY_S = 0.1


@dataclass(frozen=True, slots=True)
class StormPhases:
    """Seconds of each part."""

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
    """mode: of the limit."""

    full: StormPhases = StormPhases()
    quick: StormPhases = StormPhases(6.0, 6.0, 10.0)
    mode: Mode = "gradient"

    name = "storm"
    says = (f"When all clients come back at once after an outage, the upstream never has more than {GOAL:g} times what it "
            "can run.")

    async def run(self, conditions: Conditions) -> Finding:
        phases, seed = conditions.choose(self.full, self.quick), conditions.seed
        settings = {"defaults": {"limit": {"mode": self.mode}}}
        async with simulated_gateway({UPSTREAM: provider(seed)}, seed, settings) as (sim, url):
            conditions.report_progress(f"{N_CALM} callers for {phases.calm_s:g} s")
            await ask(phases.calm, {"calm": url}, seed)
            conditions.report_progress(f"an outage of {phases.outage_s:g} s and a storm of {N_STORM} callers")
            await sim.get("/_sim/faults", "POST", {"kind": "status", "status": 503})
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(ask(phases.storm, {"storm": url}, seed))
                await asyncio.sleep(phases.outage_s)
                await sim.get("/_sim/reset", "POST")
            peak = (await sim.get("/_sim/counts"))["providers"][UPSTREAM]["n_running_peak"]
        conditions.report_progress("the same in virtual time")
        twin, twin_peak = await run_virtual_in_thread(in_virtual_time, phases, seed, self.mode)
        _, peak_without = await run_virtual_in_thread(in_virtual_time, phases, seed, "off")
        return Finding((
            _load("sockets", peak), _served("sockets", asking.result()["storm"], phases),
            _load("virtual time", twin_peak), _served("virtual time", twin, phases, SERVED_GOAL),
            Figure("virtual time, without limits: most at the engine at a time, over what it can run",
                   peak_without / N_RUNNING, "x")))


def provider(seed: int) -> ProviderConfig:
    return ProviderConfig(seed=seed, engine=ENGINE, ttft=Mixture(TTFT_S), fills_max_tokens=True)


async def in_virtual_time(loop: SimLoop, phases: StormPhases, seed: int, mode: Mode) -> tuple[Result, int]:
    """The storm through the pipeline, and the most at the engine from its return on."""
    system = virtual_system(loop, {UPSTREAM: provider(seed)}, seed, {"limit": LimitConfig(mode)})
    engine = simulated(system, UPSTREAM)

    def come_back() -> None:
        engine.provider.clear()
        engine.provider.reset_counts()

    await ask_pipeline(system, phases.calm, loop, seed, through=_Distant)
    engine.provider.inject(FaultRule(FaultKind.STATUS, status=503))
    loop.call_later(phases.outage_s, come_back)
    storm = await ask_pipeline(system, phases.storm, loop, seed, through=_Distant)
    return storm, engine.counts.n_running_peak


class _Distant:
    """A target that is so far away that a request takes time to get there."""

    def __init__(self, target: LoadTarget) -> None:
        self._target = target

    @property
    def counted_by(self) -> str:
        return self._target.counted_by

    async def ask(self, asking: DueShot) -> Sample:
        await asyncio.sleep(AWAY_S)
        return await self._target.ask(asking)

    def close(self) -> None:
        self._target.close()


def _load(where: str, n_peak: int) -> Figure:
    return Figure(f"{where}: most at the engine at a time, over what it can run ({N_RUNNING})", n_peak / N_RUNNING, "x",
                  GOAL)


def _served(where: str, storm: Result, phases: StormPhases, goal: float | None = None) -> Figure:
    """The share of what the engine can do that was done from its return on."""
    step_s = ENGINE.decode_step_s + N_RUNNING * ENGINE.decode_step_per_sequence_s
    capacity = N_RUNNING / (step_s * (N_OUTPUT - 1)) * phases.storm_s
    n_served = len(storm.samples.errors) - n_failed(storm)
    return Figure(f"{where}: served after its return, of what it can do", n_served / capacity * 100, "%",
                  goal * 100 if goal is not None else None, Sense.AT_LEAST)
