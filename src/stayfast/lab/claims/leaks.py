"""Whatever happens to a request, and whenever its client leaves: nothing of it stays behind.

A schedule is five requests of two tenants that come within half a second to a gateway with everything on: quotas, places
with a queue, limits, breakers, retries, hedges or races, a fallback. Its upstreams fail, stall, break off and answer by
chance; its clients leave by chance, often in the very instant at which something else happens. When all is quiet in virtual
time, nothing may be held: no place, no stream, no Task, no timer, no probe, no turn of a tenant; quotas and the budget of
extra attempts must have counted what was used; and every request and every attempt must have had one end. That the schedules
reach the STATES that matter is counted, and has a goal as well.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec

from stayfast.compose.system import Observers, build
from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Fault, StayfastError
from stayfast.core.events import AttemptDone, BreakerChanged, Fact, RequestDone
from stayfast.core.types import Api, Stage
from stayfast.lab.harness.claim import Figure, Finding, Sense
from stayfast.lab.harness.virtual import VirtualClaim, read
from stayfast.lab.simulated import Cut, Fail, Raw, Say, Script, Scripted, Wait
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.policy.admission.overload import AdmissionConfig, TenantConfig
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.policy.resilience.breaker import BreakerConfig, BreakerState
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.resilience.retry_budget import weight_of
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.settings.model import Fallback, OnOverrun
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.upstreams.scripted import Step
from stayfast.wire.json_input import decode

N_REQUESTS = 5
N_A_SYSTEM = 20  # schedules; its breakers, limits and estimates go on from one to the next
QUIET_S = 3.0  # twice what any request has
DAY_S = 86_400.0
A_DAY = 1000.0  # requests: so few that they hardly come back in one schedule
TOKENS_A_DAY = 3_000_000.0
MOST_OUTPUT = 100_000  # reserved for each request, which uses a thousandth of it
MOST_USED = 60.0  # tokens of one attempt
FEW_A_MINUTE = 10.0
GENEROUS, STINGY = "generous", "stingy"
TENANTS = {GENEROUS: TenantConfig(quota=QuotaConfig(requests_per_day=A_DAY, tokens_per_day=TOKENS_A_DAY)),
           STINGY: TenantConfig(quota=QuotaConfig(requests_per_minute=FEW_A_MINUTE))}
BODIES = {stream: msgspec.json.encode({"model": "m", "stream": stream, "max_tokens": MOST_OUTPUT,
                                       "messages": [{"role": "user", "content": "hello"}]}) for stream in (True, False)}
STATES = ("left in the queue", "left while waiting for a limit", "left in back-off", "hedge won", "hedge lost",
          "cut off while connecting", "fallback", "probe of a breaker", "over quota", "shed")


async def play(loop: SimLoop, n_schedules: int, seed: int) -> Finding:
    leaks: Counter[str] = Counter()
    states: Counter[str] = Counter()
    first: list[str] = []
    rng = Random(seed)
    for n in range(0, n_schedules, N_A_SYSTEM):
        under_test = _Gateway(loop, Random(rng.getrandbits(48)))
        for number in range(min(N_A_SYSTEM, n_schedules - n)):
            found = await under_test.schedule()
            leaks.update(found)
            if found and not first:
                first.append(f"The first in schedule {n + number} (seed {seed}): {', '.join(sorted(set(found)))}.")
        states.update(under_test.states)
    least = 1.0 if n_schedules >= 1000 else 0.0
    figures = [Figure("schedules", float(n_schedules), ""), Figure("things held after one", float(leaks.total()), "", 0.0)]
    figures += [Figure(state, float(states[state]), "requests", least, Sense.AT_LEAST) for state in STATES]
    return Finding(tuple(figures), (*first, *(f"{name}: {n}" for name, n in leaks.most_common())))


LEAKS = VirtualClaim(
    "leaks", "Over 100,000 random schedules of failing upstreams and leaving clients, no place, stream, task, timer, probe, "
    "quota or budget is held once all is over.", play, "{:,} schedules in virtual time", 100_000, 2_000)


class _Erratic(Scripted):
    """Counts the calls that are cut off before anything came."""

    n_cut_off = 0

    async def open(self, call: Call) -> AnswerStream:
        try:
            return await super().open(call)
        except asyncio.CancelledError:
            self.n_cut_off += 1
            raise


class _Gateway:
    """One gateway, with settings by chance, and its state between schedules."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._facts: list[Fact] = []
        settings = _settings(rng)
        observers = Observers(settings, loop)
        observers.sink = self
        self._system = build(settings, observers, {}, loop, rng)
        self._upstreams = [_Erratic(member.upstream.name, [_script(rng) for _ in range(7)], loop)
                           for member in self._system.registry]
        for member, upstream in zip(self._system.registry, self._upstreams, strict=True):
            member.upstream = upstream
        admit = self._system.gateway.admit
        assert isinstance(admit, Admission)
        self._admission = admit
        self._hedging = self._system.gateway.router.routes["m"].hedging
        self.states: Counter[str] = Counter()

    def emit(self, fact: Fact) -> None:
        self._facts.append(fact)

    async def schedule(self) -> list[str]:
        """Run one; returns what was held after it."""
        loop, rng = self._loop, self._rng
        before, began_at = self._levels(), loop.now()
        charged = self._charged()
        self._facts.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(N_REQUESTS):
                group.create_task(self._visit(GENEROUS if number % 3 else STINGY))
                await asyncio.sleep(rng.choice((0.0, 0.05, rng.random() / 10)))
        await asyncio.sleep(QUIET_S)
        done = [fact for fact in self._facts if isinstance(fact, RequestDone)]
        self._note(done)
        wrong = ["ends of requests"] if len(done) != N_REQUESTS else []
        if sum(len(fact.attempts) for fact in done) != sum(isinstance(fact, AttemptDone) for fact in self._facts):
            wrong.append("ends of attempts")
        return [*self._held(), *self._miscounted(done, before, loop.now() - began_at), *wrong,
                *self._overspent(done, charged)]

    async def _visit(self, tenant: str) -> None:
        rng = self._rng
        leaves_after_s = rng.choice((0.0, 0.05, 0.1, 0.15, 0.2, rng.random(), rng.random() / 4, 2.0, 2.0, 2.0, 2.0))
        request = decode(Api.CHAT, BODIES[rng.random() < 0.8])
        try:
            async with asyncio.timeout(leaves_after_s):
                reply = await self._system.gateway.serve(request, Arrival("req", self._loop.now(), tenant))
                await read(reply)
        except (StayfastError, TimeoutError):
            pass  # the gateway's facts have it

    def _held(self) -> list[str]:
        places, now = self._admission.places, self._loop.now()
        shares = [self._admission.tenants.of(name, now).share for name in TENANTS]
        members = list(self._system.registry)
        held = {
            "places": places.n_taken, "queue": places.n_waiting,
            "turns": sum(share.n_running + share.n_waiting + (share.due != 0) for share in shares),
            "upstream places": sum(member.n_in_flight + len(member.pending) + (not member.has_room) for member in members),
            "upstream queue": sum(member.n_waiting for member in members),
            "streams": sum(upstream.n_open for upstream in self._upstreams),
            "probes": sum(health.breaker.state is not BreakerState.CLOSED and not health.breaker.wants_probe(now + DAY_S)
                          for member in members for health in member.healths),
            "tasks": len(asyncio.all_tasks()) - 1, "timers": self._loop.n_timers}
        return [name for name, n in held.items() if n]

    def _levels(self) -> tuple[float, float]:
        now = self._loop.now()
        quota = self._admission.tenants.of(GENEROUS, now).quota
        return quota.bucket("requests_per_day").level(now), quota.bucket("tokens_per_day").level(now)

    def _miscounted(self, done: Sequence[RequestDone], before: tuple[float, float], took_s: float) -> list[str]:
        """Quotas that lost more or less than what was used."""
        sent = [fact for fact in done if fact.tenant == GENEROUS and fact.attempts]
        requests, tokens = (level - then for level, then in zip(self._levels(), before, strict=True))
        most = sum(len(fact.attempts) for fact in sent) * MOST_USED
        miscounted = []
        if not -1e-6 <= requests + len(sent) <= took_s * A_DAY / DAY_S + 1e-6:
            miscounted.append("quota of requests")
        if not -most - 1e-3 <= tokens <= took_s * TOKENS_A_DAY / DAY_S + 1e-3:
            miscounted.append("quota of tokens")
        return miscounted

    def _charged(self) -> tuple[float, float]:
        """To the route's budget of extra attempts, and to those of its upstreams."""
        return (sum(self._hedging.budget.export_counts()[2:]),
                sum(sum(member.retry_budget.budget.export_counts()[2:]) for member in self._system.registry))

    def _overspent(self, done: Sequence[RequestDone], before: tuple[float, float]) -> list[str]:
        """Extra attempts that were charged to one and not to the other, or not at all; those of a race are not."""
        n_after = sum(max(0, sum(not attempt.is_hedge for attempt in fact.attempts) - 1) for fact in done)
        weight = weight_of(len(BODIES[True]))
        ours, theirs = (now - then for now, then in zip(self._charged(), before, strict=True))
        return ["budget of extra attempts"] if abs(ours - theirs) > weight / 2 or ours < (n_after - 0.5) * weight else []

    def _note(self, done: Sequence[RequestDone]) -> None:
        """Count the states that were reached."""
        states = self.states
        for fact in done:
            states["fallback"] += fact.degraded == "fallback"
            states["over quota"] += fact.status == 429 and fact.shed is not None
            states["shed"] += fact.status == 503 and fact.shed is not None
            for attempt in fact.attempts:
                states["hedge won"] += attempt.is_hedge and attempt.ttft_s is not None
                states["hedge lost"] += attempt.is_lost
            if fact.status == 499:
                states[_left_in(fact)] += 1
        states["probe of a breaker"] += sum(
            isinstance(fact, BreakerChanged) and fact.state == BreakerState.HALF_OPEN.value for fact in self._facts)
        states["cut off while connecting"] = sum(upstream.n_cut_off for upstream in self._upstreams)


def _left_in(fact: RequestDone) -> str:
    """What a request waited for when its client left."""
    stage = fact.stages[-2].stage  # before the last one, which settles
    if stage is Stage.ADMIT:
        return "left in the queue"
    if stage is not Stage.CALL:
        return "left later"
    if not fact.attempts:
        return "left while waiting for a limit"
    return "left in back-off" if max(attempt.ended_at for attempt in fact.attempts) < fact.ended_at else "left in a call"


def _script(rng: Random) -> Script:
    """A wait, with the head of the answer before it or after, and whatever comes then."""
    wait = Wait(rng.choice((0.0, 0.05, 0.05, 0.1, 0.1, 0.2, rng.random(), 5.0)))
    head = Raw(b": ok\n\n")
    steps: list[Step] = [wait, head] if rng.random() < 0.5 else [head, wait]
    failures = (Cut(), Fail(status=503), Fail(status=429), Fail(status=400), Fail(Fault.RESET))
    end: Step = Say("a") if rng.random() < 0.6 else rng.choice(failures)
    if not isinstance(end, Say):
        return [wait, end] if rng.random() < 0.5 else [*steps, end]
    pause = Wait(rng.choice((0.0, 0.05, rng.random() / 3)))
    return [*steps, end, pause, rng.choice((Say("b"), Say("b"), Say("b"), Cut(), Fail(Fault.RESET)))]


def _settings(rng: Random) -> Settings:
    limit = rng.choice((LimitConfig(), LimitConfig("fixed", 1, 1, rng.choice((0, 1, 5))), LimitConfig("fixed", 1, 2, 3)))
    breaker = BreakerConfig(consecutive_failures=rng.choice((1, 2, 5)), open_s=rng.choice((0.05, 1.0, 10.0)))
    upstream = SimulatedUpstream(probe=False, limit=limit, breaker=breaker)
    hedge = rng.choice((HedgeConfig("off"), HedgeConfig(), HedgeConfig("race", race_after_s=rng.choice((0.0, 0.05, 0.1)))))
    fallback = Fallback(("spare",)) if rng.random() < 0.5 else None
    route = RouteSettings(("a", "b", "c")[:rng.choice((1, 2, 3))], pick=rng.choice(("balance", "order")), hedge=hedge,
                  retry=RetryConfig(max_attempts=3, backoff_base_s=rng.choice((0.001, 0.05, 0.3))),
                          on_overrun=OnOverrun(fallback),
                  timeouts=Timeouts(total_s=1.5, first_token_s=0.4, idle_s=0.3))
    queue = QueueConfig(rng.choice((0, 1, 10)), max_wait_s=rng.choice((0.1, 1.0)), target_wait_s=0.05)
    admission = AdmissionConfig(rng.choice((None, None, 1, 2, 4)), queue)
    return Settings(upstreams=dict.fromkeys(("a", "b", "c", "spare"), upstream), routes={"m": route}, tenants=TENANTS,
                    admission=admission, log=LogSettings(level="error", requests=False))
