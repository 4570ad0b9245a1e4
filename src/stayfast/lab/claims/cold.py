"""A replica starts under load, and no request waits for it or misses its deadline.

Two replicas serve a steady load of sessions; a third one refuses connections, then listens while it warms up, then answers
with an empty prefix cache. The gateway is the production one, with session affinity, which sends a new replica its sessions
at once. Baselines: ready when its health endpoint is well, with its full share at once; and `phases: off`, where breakers
and probes decide. Then a route scales from zero: with a deadline shorter than the cold start its fallback answers; with a
longer one the requests wait for the replica.

In virtual time. The times to the first token are stated without a goal: in a start they are those of the replica's cold
cache, and by health its breaker keeps nearly all requests away from it. When wrong: the times of the start are assumed; with
balancing by load alone the gateway's own caution with unknown upstreams hides most of the difference.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final

from stayfast.compose.system import Observers, System, build
from stayfast.core.errors import StayfastError
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense, ratio
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.starting_replica import SESSION_HEADER, ReplicaTimes, StartingReplica, StartingUpstream
from stayfast.lab.harness.virtual import chat_request, run_virtual_in_thread, serve_and_read
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.routing.affinity import AffinityConfig
from stayfast.policy.warm.config import ReplicaConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.settings.model import Fallback, OnOverrun
from stayfast.testing.simloop import SimLoop

LISTENS_S, WARM_S, END_S = 20.0, 35.0, 75.0
RATE_RPS: Final = 16.0
N_SESSIONS: Final = 120
DEADLINE_S: Final = 10.0
ZERO_RPS: Final = 4.0
MIN_ANSWERED: Final = 10.0  # requests that the new replica must answer in one start
BY_TOKEN: Final = ReplicaConfig(phases="on")
BY_HEALTH: Final = ReplicaConfig(phases="on", ready_by="health", slow_start_s=0.0)
WITHOUT: Final = ReplicaConfig(phases="off")
ENGINE: Final = ProviderConfig(ttft=Mixture(0.15, 0.3), gaps=GapConfig(0.02, 0.0), fills_max_tokens=True)
TIMES: Final = ReplicaTimes(known_s=0.06, new_s=0.8)


@dataclass(slots=True)
class StartedRun:
    """waits_s: instant of the request and its wait for the first token; infinite if it failed. by: answers, by upstream."""

    waits_s: list[tuple[float, float]] = field(default_factory=list)
    by: dict[str, int] = field(default_factory=dict)
    n_failed: int = 0
    n_early: int = 0

    def p99_s(self, since_s: float) -> float:
        return ExactDistribution([wait_s for at, wait_s in self.waits_s if at >= since_s]).quantile(0.99)


def _build(loop: SimLoop, upstreams: Mapping[str, StartingUpstream], seed: int, names: tuple[str, ...], **route: Any
           ) -> System:
    """names: of the route's own upstreams."""
    settings = Settings(upstreams=upstreams, routes={MODEL: RouteSettings(names, hedge=HedgeConfig(mode="off"), **route)},
                        log=LogSettings(level="error", requests=False))
    return build(settings, Observers(settings, loop), {}, loop, Random(seed))


async def _send_load(loop: SimLoop, system: System, seed: int, rate_rps: float, until_s: float) -> StartedRun:
    """Poisson arrivals of sessions until then, while the gateway watches its replicas."""
    run, rng, request = StartedRun(), Random(seed), chat_request(200, 20)
    tasks = [loop.create_task(system.prober.run()), *[loop.create_task(watch.run()) for watch in system.watches]]

    async def send(number: int, session: int) -> None:
        at = loop.now()
        try:
            served = await serve_and_read(system.gateway, request, Arrival(
                f"req_{number:x}", at, headers=((SESSION_HEADER, f"s{session}"),)), loop)
        except StayfastError:
            run.n_failed += 1
            run.waits_s.append((at, inf))
            return
        run.waits_s.append((at, served.ttft_s))
        name = served.reply.upstream
        run.by[name] = run.by.get(name, 0) + 1

    async with asyncio.TaskGroup() as group:
        number = 0
        while loop.now() < until_s:
            group.create_task(send(number, rng.randrange(N_SESSIONS)))
            number += 1
            await asyncio.sleep(rng.expovariate(rate_rps))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    run.n_early = sum(member.upstream.n_early for member in system.registry if isinstance(member.upstream, StartingReplica))
    return run


async def run_start(loop: SimLoop, seed: int, warm: ReplicaConfig) -> StartedRun:
    """One start of a third replica."""
    upstreams = {name: StartingUpstream(ENGINE, TIMES, warm=warm) for name in ("a", "b")}
    upstreams["new"] = StartingUpstream(ENGINE, ReplicaTimes(LISTENS_S, WARM_S, TIMES.known_s, TIMES.new_s), warm=warm)
    system = _build(loop, upstreams, seed, tuple(upstreams), deadline=DEADLINE_S,
                    affinity=AffinityConfig(mode="sessions"))
    return await _send_load(loop, system, seed, RATE_RPS, END_S)


async def run_from_zero(loop: SimLoop, seed: int, warm: ReplicaConfig, *, deadline_s: float, until_s: float) -> StartedRun:
    """The only replica starts, and its settings expect 15 s; a provider is the fallback. until_s: of the last arrival."""
    warm = ReplicaConfig(phases=warm.phases, ready_by=warm.ready_by, slow_start_s=warm.slow_start_s, cold_start_s=15.0)
    provider = ProviderConfig(ttft=Mixture(0.6, 0.3), gaps=ENGINE.gaps, fills_max_tokens=True)
    upstreams = {"own": StartingUpstream(ENGINE, ReplicaTimes(8.0, 12.0, TIMES.known_s, 0.1), warm=warm),
                 "provider": StartingUpstream(provider, ReplicaTimes(known_s=0.0), warm=ReplicaConfig(phases="off"))}
    system = _build(loop, upstreams, seed, ("own",), deadline=deadline_s,
                    on_overrun=OnOverrun(fallback=Fallback(("provider",))))
    return await _send_load(loop, system, seed, ZERO_RPS, until_s)


@dataclass(frozen=True, slots=True)
class ColdClaim:
    """warm: how replicas become ready; the default is the shipped one."""

    warm: ReplicaConfig = BY_TOKEN
    n: int = 10
    n_quick: int = 2

    name = "cold"
    statement = ("A replica starts under load: no request fails or misses its deadline, and none reaches the replica before "
                 "it is warm; by its health endpoint at full weight some do. (Without phases, breakers and probes are "
                 "compared without a goal.) From zero, the fallback answers at least 99 % of the requests whose deadline is "
                 "shorter than the start, the replica at least 99 % of the others.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n, runs, base, without = conditions.choose(self.n, self.n_quick), *(list[StartedRun]() for _ in range(3))
        for number in range(n):
            conditions.report_progress(f"start {number + 1} of {n}, in virtual time")
            seed = conditions.seed + number
            runs.append(await run_virtual_in_thread(run_start, seed, self.warm))
            base.append(await run_virtual_in_thread(run_start, seed, BY_HEALTH))
            without.append(await run_virtual_in_thread(run_start, seed, WITHOUT))
        conditions.report_progress("from zero")
        short = await run_virtual_in_thread(run_from_zero, conditions.seed, self.warm, deadline_s=DEADLINE_S, until_s=6.0)
        long = await run_virtual_in_thread(run_from_zero, conditions.seed, self.warm, deadline_s=60.0, until_s=11.0)
        return ClaimResult((*_start_figures(runs, base, without), *_zero_figures(short, long)))


def _start_figures(runs: Sequence[StartedRun], base: Sequence[StartedRun], without: Sequence[StartedRun]) -> list[Figure]:
    n = sum(len(run.waits_s) for run in runs)
    return [
        Figure.count(f"failed or past the deadline (n={n})", sum(run.n_failed for run in runs)),
        Figure.count("reached the replica before it was warm", sum(run.n_early for run in runs)),
        Figure.count("answered by the new replica, in the start with the fewest", _least_by_new(runs), MIN_ANSWERED,
                     Sense.AT_LEAST),
        Figure.count("by health: reached it before it was warm", sum(run.n_early for run in base), 1.0, Sense.AT_LEAST),
        Figure.count("by health: failed or past the deadline", sum(run.n_failed for run in base), None),
        Figure.count("by health: answered by the new replica, in the start with the fewest", _least_by_new(base), None),
        Figure.count("without phases: failed or past the deadline", sum(run.n_failed for run in without), None),
        Figure.count("without phases: reached it before it was warm", sum(run.n_early for run in without), None),
        Figure.count("without phases: answered by the new replica, in the start with the fewest", _least_by_new(without),
                     None),
        Figure.quantile_s("TTFT p99 before", _waits(runs, 0.0, LISTENS_S), 0.99),
        Figure.quantile_s("TTFT p99 of the start", _waits(runs, LISTENS_S, END_S), 0.99),
        Figure.quantile_s("by health: TTFT p99 of the start", _waits(base, LISTENS_S, END_S), 0.99),
        Figure.quantile_s("without phases: TTFT p99 of the start", _waits(without, LISTENS_S, END_S), 0.99),
    ]


def _least_by_new(runs: Sequence[StartedRun]) -> int:
    return min(run.by.get("new", 0) for run in runs)


def _waits(runs: Sequence[StartedRun], since_s: float, until_s: float) -> list[float]:
    return [wait_s for run in runs for at, wait_s in run.waits_s if since_s <= at < until_s]


def _zero_figures(short: StartedRun, long: StartedRun) -> list[Figure]:
    n_short, n_long = len(short.waits_s), len(long.waits_s)
    return [
        Figure.count(f"from zero: failed or past the deadline (n={n_short + n_long})", short.n_failed + long.n_failed),
        Figure.exact("from zero, short deadline: answered by the fallback",
                     100 * ratio(short.by.get("provider", 0), n_short), "%", 99.0, Sense.AT_LEAST),
        Figure.exact("from zero, long deadline: answered by the replica", 100 * ratio(long.by.get("own", 0), n_long), "%",
                     99.0, Sense.AT_LEAST),
        Figure.exact("from zero, short deadline: TTFT p99", short.p99_s(0.0), "s"),
        Figure.exact("from zero, long deadline: TTFT p99", long.p99_s(0.0), "s"),
    ]
