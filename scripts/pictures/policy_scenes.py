"""Scenes of policies for which no proof runs in virtual time with the policy off."""

import asyncio
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from draw import Line
from scene import Callers, bench, bursts, poisson, waits_s

from stayfast.compose.system import Observers, System, build
from stayfast.core.deadline import Timeouts
from stayfast.lab.claims import brownout, noisy
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import VirtualTenants, chat_request
from stayfast.lab.load.arrivals import Gamma, Ramp, RateStage
from stayfast.lab.load.lengths import ConstantLength, Lognormal
from stayfast.lab.load.measure import MeasurePlan
from stayfast.lab.load.schedule import PoolConfig, ScheduleLimit, TurnsConfig, Workload
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated import EngineModel, GapConfig, Mixture, ProviderConfig, RegimeState, Simulated
from stayfast.lab.simulated.config import OutputLengths
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig, Mode
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.settings.model import Fallback, OnOverrun
from stayfast.testing.simloop import SimLoop, run
from stayfast.workers.shared_memory import SharedCounters, create_files
from stayfast.workers.sync import WorkerSync

NO_HEDGE, NO_BREAKER, NO_LIMIT = HedgeConfig("off"), BreakerConfig(enabled=False), LimitConfig("off")
PRESET = "gpt-4o-mini-like"
N_SHORT, N_OUTPUT = 20, 24
ENGINE = EngineModel(max_running=32, decode_step_s=0.02)
ENGINE_RPS = 64.0  # its capacity for answers of N_OUTPUT tokens


def breakers(n: int, seed: int) -> tuple[Line, Line]:
    """The providers of `prove brownout`; after a calm start the first one is ten times slower."""
    calm_s, slow_s = n / 4 / brownout.VIRTUAL_RPS, n / brownout.VIRTUAL_RPS
    load = LoadSpec(calm_s + slow_s, brownout.VIRTUAL_RPS, n_output=brownout.N_OUTPUT)

    def run_scene(config: BreakerConfig) -> list[float]:
        upstream = SimulatedUpstream(provider=brownout.make_provider(seed), probe=False, breaker=config)
        route = RouteSettings((brownout.BAD, brownout.GOOD), pick="order", hedge=NO_HEDGE)
        settings = Settings(upstreams=dict.fromkeys(route.upstreams, upstream), routes={MODEL: route})

        def begin(system: System, loop: SimLoop) -> None:
            bad = system.registry[brownout.BAD].upstream
            assert isinstance(bad, Simulated)
            loop.call_at(calm_s, bad.provider.set_regime, RegimeState.BROWNOUT)

        return waits_s(bench(settings, load, seed, begin=begin), calm_s)

    return Line("breakers off", run_scene(NO_BREAKER)), Line("on", run_scene(BreakerConfig()))


def limits(n: int, seed: int) -> tuple[Line, Line]:
    """An engine first, a hosted provider behind it, and for 20 s of each minute 1.5 times the engine's capacity."""
    own = ProviderConfig(seed=seed, engine=ENGINE, ttft=Mixture(0.05, 0.3), fills_max_tokens=True)
    hosted = ProviderConfig(PRESET, seed, fills_max_tokens=True)
    calm, peak = RateStage(40.0, 0.6 * ENGINE_RPS, 0.6 * ENGINE_RPS), RateStage(20.0, 1.5 * ENGINE_RPS, 1.5 * ENGINE_RPS)
    n_minutes = max(1, round(n / (calm.n_expected + peak.n_expected)))
    arrivals = Ramp((calm, peak) * n_minutes)
    workload = Workload(ConstantLength(N_SHORT), ConstantLength(N_OUTPUT), arrivals)
    plan = MeasurePlan(workload, ScheduleLimit(arrivals.seconds), seed, timeout_s=600.0)

    def run_scene(mode: Mode) -> list[float]:
        upstreams = {name: SimulatedUpstream(provider=provider, probe=False, limit=LimitConfig(mode), breaker=NO_BREAKER)
                     for name, provider in (("own", own), ("hosted", hosted))}
        settings = Settings(upstreams=upstreams, routes={
        MODEL: RouteSettings(("own", "hosted"), pick="order", hedge=NO_HEDGE)})
        return waits_s(bench(settings, LoadSpec(1.0), seed, plan))

    return Line("no limit", run_scene("off")), Line("learned limit", run_scene("gradient"))


def quotas(n: int, seed: int) -> tuple[Line, Line]:
    """Two tenants of one engine, one of which sends a thousand requests in ten seconds of each minute."""
    usual_rps, n_burst, every_s = 25.0, 1000, 60.0
    provider = ProviderConfig(seed=seed, engine=ENGINE, ttft=Mixture(0.2, 0.3), fills_max_tokens=True)

    def run_scene(quota: QuotaConfig) -> list[float]:
        async def main(loop: SimLoop) -> list[float]:
            tenants = {"greedy": TenantConfig(quota=quota), "usual": TenantConfig()}
            crowd = VirtualTenants(provider, tenants, AdmissionConfig(), loop, seed)
            callers, request, waits, others = Callers(loop), chat_request(N_SHORT, N_OUTPUT), [], []
            gateway, until_s = crowd.system.gateway, n / (usual_rps + n_burst / every_s)
            async with asyncio.TaskGroup() as group:
                group.create_task(callers.at(poisson(usual_rps, seed), until_s,
                                             partial(callers.ask, gateway, request, waits, "usual")))
                group.create_task(callers.at(bursts(n_burst, every_s, 10.0, seed), until_s,
                                             partial(callers.ask, gateway, request, others, "greedy")))
            return waits

        return run(main)

    return (Line("no quota", run_scene(QuotaConfig())),
            Line("requests_per_minute: 120", run_scene(QuotaConfig(requests_per_minute=120))))


def fairness(n: int, seed: int) -> tuple[Line, Line]:
    """The tenants of `prove noisy`: as one tenant (first come, first served), and as three."""
    until_s = 3 * n / (2 * noisy.QUIET_RPS + noisy.TIMES * noisy.SHARE_RPS)

    def run_scene(*, is_known: bool) -> list[float]:
        names = (*noisy.QUIET, noisy.NOISY) if is_known else ("all",) * 3

        async def main(loop: SimLoop) -> list[float]:
            admission = AdmissionConfig(noisy.N_PLACES)
            crowd = VirtualTenants(noisy.PROVIDER, dict.fromkeys(names, TenantConfig()), admission, loop, seed)
            callers, request, quiet, noise = Callers(loop), chat_request(N_SHORT, noisy.N_OUTPUT), [], []
            async with asyncio.TaskGroup() as group:
                for number, name in enumerate(names):
                    is_quiet = number < len(noisy.QUIET)
                    arrivals = Gamma(noisy.QUIET_RPS) if is_quiet else noisy.BURSTS
                    group.create_task(callers.at(
                        iter(arrivals.instants(Random(seed + number))), until_s,
                        partial(callers.ask, crowd.system.gateway, request, quiet if is_quiet else noise, name)))
            return quiet

        return run(main)

    return Line("as one tenant", run_scene(is_known=False)), Line("as separate tenants", run_scene(is_known=True))


def retries(n: int, seed: int) -> tuple[Line, Line]:
    """An engine that reads ten prompts a second, two seconds for each attempt, and a burst half-way through five minutes.
    Each five minutes start anew, because an overload by retries may never end.
    """
    rate_rps, n_burst, lasts_s = 5.0, 32, 300.0
    n_prompt = 2000
    seeds = range(seed, seed + max(1, round(n / (rate_rps * lasts_s + n_burst))))
    provider = ProviderConfig(ttft=Mixture(0.1, 0.3), fills_max_tokens=True, cancels_on_disconnect=False,
                              engine=EngineModel(max_running=256, decode_step_s=0.001))

    def run_scene(retry: RetryConfig, seed: int) -> list[float]:
        async def main(loop: SimLoop) -> list[float]:
            upstream = SimulatedUpstream(provider=replace(provider, seed=seed), probe=False, limit=NO_LIMIT,
                                         breaker=NO_BREAKER)
            route = RouteSettings(("engine",), hedge=NO_HEDGE, retry=retry, timeouts=Timeouts(first_token_s=2.0))
            system = build_virtual_system(Settings(upstreams={"engine": upstream}, routes={MODEL: route}), loop, seed)
            callers, waits = Callers(loop), []
            ask = partial(callers.ask, system.gateway, chat_request(n_prompt, 8), waits)
            async with asyncio.TaskGroup() as group:
                group.create_task(callers.at(poisson(rate_rps, seed), lasts_s, ask))
                group.create_task(callers.at(bursts(n_burst, lasts_s, 1.0, seed), lasts_s, ask))
            return waits

        return run(main)

    off, on = ([wait_s for seed in seeds for wait_s in run_scene(retry, seed)] for retry in (
        RetryConfig(budget=1.0), RetryConfig()))
    return Line("retry.budget: 1 (two retries each)", off), Line("0.1", on)


def routing(n: int, seed: int) -> tuple[Line, Line]:
    """Conversations before four engines with prefix caches."""
    provider = ProviderConfig(ttft=Mixture(0.01, 0.3), engine=EngineModel(prefill_tokens_per_s=8000.0, cache_tokens=150_000))
    workload = Workload(Lognormal(log(400), 0.8), Lognormal(log(100), 0.6), Gamma(0.8), turns=TurnsConfig(8, 8.0),
                        n_system=1000)
    plan = MeasurePlan(workload, ScheduleLimit(None, n // 6, 60.0), seed, timeout_s=600.0)

    def run_scene(affinity: AffinityConfig) -> list[float]:
        upstreams = {f"gpu-{number}": SimulatedUpstream(provider=replace(provider, seed=number), probe=False)
                     for number in range(1, 5)}
        settings = Settings(upstreams=upstreams, routes={MODEL: RouteSettings(tuple(upstreams), affinity=affinity)})
        return waits_s(bench(settings, LoadSpec(1.0), seed, plan))

    return Line("affinity off", run_scene(AffinityConfig())), Line("mode: prefix", run_scene(AffinityConfig("prefix")))


def budget(n: int, seed: int) -> tuple[Line, Line]:
    """A first choice that takes four seconds one time in ten, a deadline of 2.5 s, and a steady fallback."""
    rate_rps = 40.0
    upstreams = {
        "big": SimulatedUpstream(probe=False, provider=ProviderConfig(
            seed=seed, ttft=Mixture(0.4, 0.5, 0.1, 4.0), gaps=GapConfig(0.01, 0.3), fills_max_tokens=True)),
        "small": SimulatedUpstream(probe=False, provider=ProviderConfig(
            seed=seed, ttft=Mixture(0.15, 0.2), gaps=GapConfig(0.01, 0.3), fills_max_tokens=True))}

    def run_scene(on_overrun: OnOverrun) -> list[float]:
        route = RouteSettings(("big",), deadline=2.5, hedge=NO_HEDGE, on_overrun=on_overrun)
        settings = Settings(upstreams=upstreams, routes={MODEL: route})
        return waits_s(bench(settings, LoadSpec(n / rate_rps, rate_rps, n_output=N_SHORT), seed))

    return (Line("deadline: 2.5 alone", run_scene(OnOverrun())),
            Line("with a fallback, reserve: 50%", run_scene(OnOverrun(Fallback(("small",), reserve="50%")))))


def workers(n: int, seed: int) -> tuple[Line, Line]:
    """Four workers and forty clients, each connected to a random worker."""
    n_workers, n_clients, n_slots = 4, 40, 32
    provider = ProviderConfig(seed=seed, ttft=Mixture(0.3, 0.25), gaps=GapConfig(0.01, 0.0, 4), fills_max_tokens=True)
    rate_rps = 0.75 * n_slots / (0.31 + 0.01 * 40)

    def run_scene(folder: Path | None) -> list[float]:
        max_in_flight = n_slots // n_workers if folder is None else n_slots
        settings = Settings(upstreams={"provider": SimulatedUpstream(provider=provider, probe=False, limit=NO_LIMIT)},
                            routes={MODEL: RouteSettings(("provider",), hedge=NO_HEDGE)},
                            admission=AdmissionConfig(max_in_flight),
                            log=LogSettings(level="error", requests=False))

        async def main(loop: SimLoop) -> list[float]:
            rng, callers, waits = Random(seed), Callers(loop), []
            observers = [Observers(settings, loop) for _ in range(n_workers)]
            async with asyncio.TaskGroup() as group:
                sharing = []
                for number, worker in enumerate(observers):
                    if folder is not None:
                        worker.worker_sync = WorkerSync(SharedCounters(folder), number, n_workers, loop)
                        sharing.append(group.create_task(worker.worker_sync.run()))
                systems = [build(settings, worker, {}, loop, Random(seed + number))
                           for number, worker in enumerate(observers)]
                async with asyncio.TaskGroup() as asking:
                    for number in range(n_clients):
                        gateway = rng.choice(systems).gateway
                        ask = partial(callers.ask, gateway, chat_request(N_SHORT, 40), waits)
                        asking.create_task(callers.at(poisson(rate_rps / n_clients, seed + number), n / rate_rps, ask))
                for task in sharing:
                    task.cancel()
            return waits

        return run(main)

    with TemporaryDirectory() as name:
        create_files(Path(name))
        return Line("8 slots each", run_scene(None)), Line("32 shared slots", run_scene(Path(name)))


def cache(n: int, seed: int) -> tuple[Line, Line]:
    """Questions of which four in five are among five hundred frequent ones."""
    rate_rps = 40.0
    workload = Workload(Lognormal(log(60), 0.6), ConstantLength(200), Gamma(rate_rps), pool=PoolConfig(500, 0.8, 1.0))
    plan = MeasurePlan(workload, ScheduleLimit(n / rate_rps, None, 0.0), seed)
    provider = ProviderConfig(PRESET, seed, output=OutputLengths(15.0, 0.3))  # truncated answers are not cached
    upstreams = {"provider": SimulatedUpstream(provider=provider, probe=False)}

    def run_scene(config: CacheConfig) -> list[float]:
        settings = Settings(upstreams=upstreams, routes={MODEL: RouteSettings(("provider",), hedge=NO_HEDGE, cache=config)})
        return waits_s(bench(settings, LoadSpec(1.0), seed, plan))

    exact = CacheConfig("exact", max_temperature=1.0)
    return Line("cache off", run_scene(CacheConfig())), Line("mode: exact", run_scene(exact))
