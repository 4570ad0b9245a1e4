"""Several gateways admit a limit once: through Redis, through the death of a gateway, and without Redis.

Four gateways share one Redis server. Two tenants send three times their limit, 70, 20, 10 and 0 % of it to the four
gateways; one is limited in requests, the other in tokens, and both have both limits. The third gateway's clock is an hour
ahead.
The burst of the first minute is taken out of the buckets before, so that every further request needs the refill. Then, in
this order:

    steady       what is admitted in any 10 s, the calls to Redis (counted by Redis), and the cost of the check
    one killed   (SIGKILL) the gateway with 70 % of the load; its clients go to the next one. From 5 s on the others admit
                 no less than the limit in any 10 s, and since the kill no more than the limit in total: what it would
                 have admitted in the first seconds is made up
    Redis frozen (SIGSTOP), then thawed; then killed, and started again, empty: no error, no wait, and at most the limit and
                 the slack that the gateways declared just before (`stayfast_quota_slack`)

The cost of the check is measured in this process: reserve and reconcile with slices, minus the median without.
When wrong: all processes share one machine, and Redis is on loopback. A window is judged by requests that the clients sent
in it, so a late client moves a request from one window to the next.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import nan
from statistics import median
from typing import Any, Final

from stayfast.core.clock import SystemClock
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense, Verdict, mark_invalid, ratio
from stayfast.lab.harness.load import LoopWatch
from stayfast.lab.harness.loopback import numbered_question
from stayfast.lab.harness.processes import Processes, ServerProcess, create_keys, gateway_settings
from stayfast.lab.harness.redis import RedisProcess
from stayfast.lab.harness.steady_load import NO_ANSWER, Answered, SteadyLoad
from stayfast.policy.admission.leased_bucket import LeaseCells, LeasedBucket
from stayfast.policy.admission.quota import QuotaConfig, TenantQuota
from stayfast.policy.fleet.slices import US, LeaseReport
from stayfast.stores.fleet.quota_calls import QuotaCall

PER_S: Final = 50.0  # requests that each tenant's limit admits
N_USED: Final = 57  # tokens of one answer of the canned upstream
GATEWAYS: Final = ("one", "two", "three", "four")
RATES: Final = {"one": 2.1 * PER_S, "two": 0.6 * PER_S, "three": 0.3 * PER_S}  # of each tenant: three times the limit
RATES_AFTER: Final = {"two": 2.1 * PER_S, "three": 0.6 * PER_S, "four": 0.3 * PER_S}
WINDOW_S: Final = 10.0
STEP_S: Final = 0.5
MAX_OFF: Final = 0.02
BACK_S: Final = 5.0
MAX_CALLS: Final = 2.0  # a second, of a gateway and tenant
MAX_ADDED_S: Final = 0.05
MAX_CHECK_S: Final = 1e-4
MANY: Final = 60_000_000
QUOTAS: Final[Mapping[str, Mapping[str, float]]] = {
    "requests": {"requests_per_minute": 60 * PER_S, "tokens_per_minute": MANY},
    "tokens": {"requests_per_minute": MANY, "tokens_per_minute": 60 * PER_S * N_USED},
}
BINDING: Final = {"requests": ("requests_per_minute", 1.0), "tokens": ("tokens_per_minute", float(N_USED))}
_AHEAD: Final = """
import runpy, time
now = time.time
time.time = lambda: now() + 3600
runpy.run_module("stayfast", run_name="__main__")
"""
_SLACK: Final = re.compile(r'^stayfast_quota_slack\{tenant="(\w+)",limit="(\w+)"\} (\S+)$', re.MULTILINE)
_CALLS: Final = re.compile(r"cmdstat_evalsha:calls=(\d+)")  # heartbeats of gateways are EVAL
N_CHECKS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of each phase."""

    warm_s: float
    steady_s: float
    killed_s: float  # after BACK_S
    lost_s: float
    back_s: float


FULL, QUICK = Phases(5.0, 40.0, 20.0, 10.0, 12.0), Phases(3.0, 12.0, 10.6, 3.0, 3.0)


@dataclass(frozen=True, slots=True)
class FleetClaim:
    """shares: False: each gateway has the whole limit, as without the section `fleet`."""

    name: str = "fleet"
    statement: str = (
        "fleet: four gateways on one Redis admit a tenant's limit once: within 2 % over any 10 s at a load of 70/20/10/0 %, "
        "with at most two calls a second per gateway and tenant and less than 0.1 ms per request; a killed gateway's share "
        "is back within 5 s; with Redis frozen or killed for 10 s no request fails or waits 50 ms longer, and at most the "
        "limit and the declared slack are admitted (about a second of the limit)")
    shares: bool = True
    full: Phases = FULL
    quick: Phases = QUICK

    async def run(self, conditions: Conditions) -> ClaimResult:
        phases = conditions.choose(self.full, self.quick)
        conditions.report_progress("the check of one request")
        checks_s = measure_checks()
        async with RedisProcess() as redis, Processes() as processes:
            upstream = await processes.start_canned_upstream()
            secrets, digests = create_keys(QUOTAS)
            settings = gateway_settings({"canned": f"{upstream.url}/v1"}) | {
                "server": {"keys": digests, "metrics_access": "open"}, "log": {"requests": False},
                "tenants": {tenant: {"quota": dict(quota)} for tenant, quota in QUOTAS.items()}}
            if self.shares:
                settings["fleet"] = {"url": redis.url, "expected_gateways": len(GATEWAYS)}
            servers = dict(zip(GATEWAYS, await asyncio.gather(
                *(_start(processes, settings, name) for name in GATEWAYS)), strict=True))
            await take_bursts(redis.url)
            with LoopWatch() as watch:
                async with SteadyLoad({name: f"{server.url}/v1" for name, server in servers.items()}, secrets,
                                      numbered_question(1)) as load:
                    course = _Course(redis, servers, load, phases, conditions.report_progress)
                    figures = await course.measure()
            figures += (Figure.quantile_s("reserve and reconcile with slices, p99 (per request, beyond a bucket's own)",
                                          checks_s, 0.99, MAX_CHECK_S),)
            figures = tuple(found for figure in figures for found in mark_invalid((figure,), why_late(
                figure, watch.max_lag_s)))
        note = (f"The declared slack was {course.declared} requests, of {PER_S:g} a second. The client's own loop was at "
                f"most {watch.max_lag_s * 1e3:.0f} ms late.")
        return ClaimResult(figures, (note,))


def why_late(figure: Figure, lag_s: float) -> str | None:
    """Why a figure that falls short shows nothing: the client was late, or a window did not get its requests."""
    most_s = MAX_ADDED_S / 2 if figure.unit == "ms" else MAX_OFF * WINDOW_S / 2 if figure.unit == "%" else float("inf")
    return f"{lag_s:.2g} s late" if figure.verdict is Verdict.FALLS_SHORT and lag_s > most_s else None


async def _start(processes: Processes, settings: Mapping[str, Any], name: str) -> ServerProcess:
    file = processes.write_file(settings)
    if name != "three":
        return await processes.start("-m", "stayfast", "serve", "--config", file, "--port", "0")
    return await processes.start("-c", _AHEAD, "serve", "--config", file, "--port", "0")


async def take_bursts(url: str) -> None:
    """Take all buckets' first minute, as a gateway that spends its slice and ends."""
    store = import_module("stayfast.stores.fleet.redis_quota").RedisQuota(url, "stayfast")  # here: it needs an extra
    try:
        for tenant, (limit, _) in BINDING.items():
            name = f"{limit}@{float(QUOTAS[tenant][limit])!r}"
            for number, spent in ((1, 0), (2, 60 * US)):
                report = LeaseReport(60 * US, spent, 0, 0, 0, 0, 0 if spent else 60 * US, 0, 0, 0)
                await store.exchange("burst", [QuotaCall(tenant, number, "", {name: report})])
    finally:
        await store.close()


def measure_checks() -> list[float]:
    """Seconds of reserve and reconcile of one request with slices, minus the median with buckets of one process."""
    def build(make: Callable[..., Any]) -> TenantQuota:
        return TenantQuota(QuotaConfig(requests_per_minute=MANY, tokens_per_minute=MANY), 0.0, make)

    def make_leased(_: str, capacity: float, per_s: float, now: float) -> LeasedBucket:
        bucket = LeasedBucket(capacity, per_s, now, [0.0] * 7, LeaseCells(*range(7)), on_loss="local", wake=lambda: None)
        bucket.add_grant(capacity)
        return bucket

    clock = SystemClock()

    def time_all(quota: TenantQuota) -> list[float]:
        took_s = []
        for n in range(N_CHECKS):
            began_at = clock.now()
            quota.reserve((1.0, 100.0, 0.0), float(n))
            quota.reconcile((1.0, 100.0, 0.0), (1.0, 60.0, 0.0), float(n))
            took_s.append(clock.now() - began_at)
        return took_s

    own_s = median(time_all(TenantQuota(QuotaConfig(requests_per_minute=MANY, tokens_per_minute=MANY), 0.0)))
    return [took_s - own_s for took_s in time_all(build(make_leased))]


class _Course:
    """The phases of one run."""

    def __init__(self, redis: RedisProcess, servers: Mapping[str, ServerProcess], load: SteadyLoad, phases: Phases,
                 report: Callable[[str], None]) -> None:
        self._redis = redis
        self._servers = servers
        self._load = load
        self._phases = phases
        self._report = report
        self._loop = asyncio.get_running_loop()
        self.declared = ""

    async def measure(self) -> tuple[Figure, ...]:
        steady = await self._run_steady()
        killed = await self._run_killed()
        usual_s = self._longest_s(*steady[1])
        frozen = await self._run_lost("frozen", usual_s)
        gone = await self._run_lost("killed", usual_s)
        return (*steady[0], *killed, *frozen, *gone)

    async def _run_steady(self) -> tuple[tuple[Figure, ...], tuple[float, float]]:
        self._report("four gateways, one Redis")
        self._load.set_rates(RATES)
        await asyncio.sleep(self._phases.warm_s)
        began_at, n_before = self._loop.time(), await self._n_calls()
        await asyncio.sleep(self._phases.steady_s)
        ended_at, n_after = self._loop.time(), await self._n_calls()
        n_callers = len(RATES) * len(QUOTAS)
        figures = (*self._window_figures("any 10 s", began_at, ended_at),
                   Figure.exact("calls to Redis a second, of a gateway and tenant",
                                ratio(n_after - n_before, n_callers * (ended_at - began_at)), "/s", MAX_CALLS),
                   self._failure_figure("with Redis", began_at, ended_at))
        return figures, (began_at, ended_at)

    async def _run_killed(self) -> tuple[Figure, ...]:
        self._report("one gateway killed")
        victim = self._servers["one"].process
        self._load.set_rates(RATES_AFTER)
        victim.kill()
        await victim.wait()
        killed_at = self._loop.time()
        await asyncio.sleep(BACK_S + self._phases.killed_s)
        ended_at = self._loop.time()
        least = self._window_figures(f"any 10 s from {BACK_S:g} s after a gateway was killed", killed_at + BACK_S, ended_at)
        most = []
        for tenant in QUOTAS:
            shares = [ratio(self._n_admitted(tenant, killed_at, killed_at + after_s), PER_S * after_s) - 1
                      for after_s in range(int(WINDOW_S), int(ended_at - killed_at) + 1)]
            most.append(Figure.exact(f"most admitted since then, beyond the limit, {BINDING[tenant][0]}",
                                     100 * max(shares, default=nan), "%", 100 * MAX_OFF))
        return (*least[1::2], *most)

    async def _run_lost(self, how: str, usual_s: float) -> tuple[Figure, ...]:
        self._report(f"Redis {how}")
        slack = await self._read_slack()
        self.declared += f"{', ' if self.declared else ''}" + " and ".join(f"{slack[tenant]:.0f}" for tenant in QUOTAS)
        lost_at = self._loop.time()
        if how == "frozen":
            self._redis.freeze()
        else:
            await self._redis.kill()
        await asyncio.sleep(self._phases.lost_s)
        back_at = self._loop.time()
        if how == "frozen":
            self._redis.thaw()
        else:
            await self._redis.start()
        await asyncio.sleep(self._phases.back_s)
        ended_at = self._loop.time()
        figures = []
        for tenant in QUOTAS:
            for name, until in (("while", back_at), ("while and after", ended_at)):
                limit = PER_S * (until - lost_at) + slack[tenant]
                figures.append(Figure.exact(
                    f"admitted of limit and slack {name} Redis was {how}, {BINDING[tenant][0]}",
                    100 * ratio(self._n_admitted(tenant, lost_at, until), limit + 1), "%", 100.0))
            figures.append(Figure.exact(
                f"admitted of the limit while Redis was {how}, {BINDING[tenant][0]}",
                100 * ratio(self._n_admitted(tenant, lost_at, back_at), PER_S * (back_at - lost_at)), "%", 70.0,
                Sense.AT_LEAST))
        return (*figures, self._failure_figure(f"while and after Redis was {how}", lost_at, ended_at), Figure.exact(
            f"longest answer beyond the longest with Redis, while it was {how}",
            1e3 * (self._longest_s(lost_at, ended_at) - usual_s), "ms", MAX_ADDED_S * 1e3))

    def _window_figures(self, when: str, began_at: float, ended_at: float) -> tuple[Figure, ...]:
        """How far what was admitted in any window is from the limit."""
        figures = []
        for tenant in QUOTAS:
            n_admitted = [self._n_admitted(tenant, began_at + n * STEP_S, began_at + n * STEP_S + WINDOW_S)
                          for n in range(1 + int((ended_at - began_at - WINDOW_S) / STEP_S))]
            for name, count in (("most", max(n_admitted, default=nan)), ("least", min(n_admitted, default=nan))):
                share = ratio(count, PER_S * WINDOW_S) - 1
                goal, sense = (MAX_OFF, Sense.AT_MOST) if name == "most" else (-MAX_OFF, Sense.AT_LEAST)
                figures.append(Figure.exact(f"{name} admitted in {when}, beyond the limit, {BINDING[tenant][0]}",
                                            100 * share, "%", 100 * goal, sense))
        return tuple(figures)

    def _failure_figure(self, when: str, began_at: float, ended_at: float) -> Figure:
        answers = self._between(began_at, ended_at)
        return Figure.count(f"requests of {len(answers):,} without an answer or with 5xx, {when}",
                            sum(answer.status == NO_ANSWER or answer.status >= 500 for answer in answers))

    def _between(self, began_at: float, ended_at: float) -> Sequence[Answered]:
        return [answer for answer in self._load.answered if began_at <= answer.at < ended_at]

    def _n_admitted(self, tenant: str, began_at: float, ended_at: float) -> int:
        return sum(answer.status == 200 and answer.tenant == tenant for answer in self._between(began_at, ended_at))

    def _longest_s(self, began_at: float, ended_at: float) -> float:
        return max((answer.took_s for answer in self._between(began_at, ended_at)), default=nan)

    async def _n_calls(self) -> int:
        return sum(map(int, _CALLS.findall(await self._redis.read("INFO", "commandstats"))))

    async def _read_slack(self) -> Mapping[str, float]:
        """Of all live gateways, in requests."""
        slack = dict.fromkeys(QUOTAS, 0.0)
        for server in self._servers.values():
            if server.process.returncode is None:
                for tenant, limit, amount in _SLACK.findall((await server.read("/metrics")).decode()):
                    known, unit = BINDING.get(tenant, ("", 1.0))
                    if limit == known:
                        slack[tenant] += float(amount) / unit
        return slack
