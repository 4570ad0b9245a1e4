"""An outage ends, and all clients come back at once.

One engine that runs a known number of requests at a time serves some callers; then it answers nothing but errors while many
more callers ask, each again the moment that it is refused, whatever `Retry-After` it was told; then it is well. From then
on the most that the engine has at a time, running or waiting, is held against what it can run. The gateway is told nothing
of that number. The same storm in virtual time is also run without limits: how high it would be.

When wrong: callers of a closed loop that are refused in a millisecond keep this machine busy, so what they are served is
told and not claimed. In virtual time they are 100 ms away.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stayfast.bench.perform import Origin, Plan, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.samples import Sample
from stayfast.bench.schedule import Prompts
from stayfast.bench.target import Asking, Target
from stayfast.compose.virtual import virtual as system_in_virtual_time
from stayfast.policy.limits import LimitConfig, Mode
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.load import MODEL, Load, ask
from stayfast.prove.rig import Rig, gateway_settings
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import EngineModel, FaultRule, Kind, Mixture, ProviderConfig, Simulated
from stayfast.upstreams.simulated.settings import SimulatedUpstream

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
class Extent:
    """Seconds of each part."""

    calm_s: float = 20.0
    outage_s: float = 10.0
    storm_s: float = 40.0


@dataclass(frozen=True, slots=True)
class Storm:
    """See the module. `mode`: of the limit."""

    full: Extent = Extent()
    quick: Extent = Extent(6.0, 6.0, 10.0)
    mode: Mode = "gradient"

    name = "storm"
    says = (f"When all clients come back at once after an outage, the upstream never has more than {GOAL:g} times what it "
            "can run.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent = self.quick if conditions.is_quick else self.full
        provider: Mapping[str, Any] = {"engine": asdict(ENGINE), "ttft": {"median_s": TTFT_S, "sigma": 0.0},
                                       "fills_max_tokens": True}
        async with Rig() as rig:
            sim = await rig.simulator({UPSTREAM: provider}, conditions.seed)
            settings = gateway_settings({UPSTREAM: f"{sim.url}/{UPSTREAM}/v1"})
            settings["defaults"] = {"limit": {"mode": self.mode}}
            url = f"{(await rig.gateway(settings)).url}/v1"
            conditions.say(f"{N_CALM} callers for {extent.calm_s:g} s")
            await ask(Load(extent.calm_s, n_concurrent=N_CALM, n_output=N_OUTPUT), {"calm": url}, conditions.seed)
            conditions.say(f"an outage of {extent.outage_s:g} s and a storm of {N_STORM} callers")
            await sim.get("/_sim/faults", "POST", {"kind": "status", "status": 503})
            load = Load(extent.outage_s + extent.storm_s, n_concurrent=N_STORM, n_output=N_OUTPUT)
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(ask(load, {"storm": url}, conditions.seed))
                await asyncio.sleep(extent.outage_s)
                await sim.get("/_sim/reset", "POST")
            peak = (await sim.get("/_sim/counts"))["providers"][UPSTREAM]["n_running_peak"]
        conditions.say("the same in virtual time")
        twin, twin_peak = await asyncio.to_thread(in_virtual_time, extent, conditions.seed, self.mode)
        _, peak_without = await asyncio.to_thread(in_virtual_time, extent, conditions.seed, "off")
        return Finding((
            _load("sockets", peak), _served("sockets", asking.result()["storm"], extent),
            _load("virtual time", twin_peak), _served("virtual time", twin, extent, SERVED_GOAL),
            Figure("virtual time, without limits: most at the engine at a time, over what it can run",
                   peak_without / N_RUNNING, "x")))


def in_virtual_time(extent: Extent, seed: int, mode: Mode) -> tuple[Result, int]:
    """The same through the pipeline on a virtual loop: the storm, and the most at the engine from its return on."""
    provider = ProviderConfig(seed=seed, engine=ENGINE, ttft=Mixture(TTFT_S), fills_max_tokens=True)
    upstream = SimulatedUpstream(provider=provider, probe=False, limit=LimitConfig(mode))
    settings = Settings(upstreams={UPSTREAM: upstream}, routes={MODEL: Route((UPSTREAM,))})

    async def main(loop: SimLoop) -> tuple[Result, int]:
        system = system_in_virtual_time(settings, loop, seed)
        engine = system.registry[UPSTREAM].upstream
        assert isinstance(engine, Simulated)

        async def put(load: Load) -> Result:
            target = _Afar(PipelineTarget(system.gateway, load.asking(), Prompts(seed), loop))
            plan: Plan = load.plan(seed)
            return (await perform(plan, [(Subject("virtual", "virtual:", "chat", MODEL), target)], loop, Origin(),
                                  is_virtual=True))[0]

        def comes_back() -> None:
            engine.provider.clear()
            engine.provider.reset_counts()

        await put(Load(extent.calm_s, n_concurrent=N_CALM, n_output=N_OUTPUT))
        engine.provider.inject(FaultRule(Kind.STATUS, status=503))
        loop.call_later(extent.outage_s, comes_back)
        storm = await put(Load(extent.outage_s + extent.storm_s, n_concurrent=N_STORM, n_output=N_OUTPUT))
        return storm, engine.counts.n_running_peak

    return run(main)


class _Afar:
    """A target that is so far away that asking it takes time."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def counted_by(self) -> str:
        """See `Target`."""
        return self._target.counted_by

    async def ask(self, asking: Asking) -> Sample:
        """See `Target`."""
        await asyncio.sleep(AWAY_S)
        return await self._target.ask(asking)

    def close(self) -> None:
        """See `Target`."""
        self._target.close()


def _load(where: str, n_peak: int) -> Figure:
    return Figure(f"{where}: most at the engine at a time, over what it can run ({N_RUNNING})", n_peak / N_RUNNING, "x",
                  GOAL)


def _served(where: str, storm: Result, extent: Extent, goal: float | None = None) -> Figure:
    """The share of what the engine can do that was done from its return on."""
    step_s = ENGINE.decode_step_s + N_RUNNING * ENGINE.decode_step_per_sequence_s
    capacity = N_RUNNING / (step_s * (N_OUTPUT - 1)) * extent.storm_s
    n_served = sum(1 for error in storm.samples.errors if not error)
    return Figure(f"{where}: served after its return, of what it can do", n_served / capacity * 100, "%",
                  goal * 100 if goal is not None else None, Sense.AT_LEAST)
