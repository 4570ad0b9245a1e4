"""Whatever happens to a request, and whenever its client leaves: all its resources are released.

A schedule is five requests of two tenants within half a second, at a gateway with all features on: quotas, places with a
queue, limits, breakers, retries, hedges or races, a fallback. Its upstreams fail, stall, break off and answer at random.
Its clients leave at random, often at the instant of another event. Once everything is quiet in virtual time, nothing may be
held: no place, stream, task, timer, probe or fair-share turn. Quotas and the retry budget must have counted the actual
usage, and each request and attempt must have ended once. That the schedules reach the relevant STATES has a goal, too.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Fault, StayfastError
from stayfast.core.events import AttemptDone, BreakerChanged, Fact, RequestDone
from stayfast.core.types import Api, Stage
from stayfast.lab.harness.claim import ClaimResult, Figure, Sense
from stayfast.lab.harness.virtual import VirtualClaim, serve_and_read, system_with_sink
from stayfast.lab.simulated import Cut, Fail, Script, ScriptedUpstream, SendBytes, SendText, Wait
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
from stayfast.wire.request_body import decode

N_REQUESTS = 5
N_PER_SYSTEM = 20  # schedules, which share breakers, limits and estimates
QUIET_S = 3.0  # twice the deadline of a request
DAY_S = 86_400.0
REQUESTS_PER_DAY = 1000.0  # so few that hardly any are refilled during a schedule
TOKENS_PER_DAY = 3_000_000.0
MAX_OUTPUT = 100_000  # reserved for each request, which uses a thousandth of it
MAX_USED = 60.0  # tokens of one attempt
REQUESTS_PER_MINUTE = 10.0
GENEROUS, STINGY = "generous", "stingy"
TENANTS = {GENEROUS: TenantConfig(quota=QuotaConfig(requests_per_day=REQUESTS_PER_DAY, tokens_per_day=TOKENS_PER_DAY)),
           STINGY: TenantConfig(quota=QuotaConfig(requests_per_minute=REQUESTS_PER_MINUTE))}
BODIES = {stream: msgspec.json.encode({"model": "m", "stream": stream, "max_tokens": MAX_OUTPUT,
                                       "messages": [{"role": "user", "content": "hello"}]}) for stream in (True, False)}
STATES = ("left in the queue", "left while waiting for a limit", "left in back-off", "hedge won", "hedge lost",
          "cut off while connecting", "fallback", "probe of a breaker", "over quota", "shed")


async def measure(loop: SimLoop, n_schedules: int, seed: int) -> ClaimResult:
    leaks: Counter[str] = Counter()
    states: Counter[str] = Counter()
    first: list[str] = []
    rng = Random(seed)
    for n in range(0, n_schedules, N_PER_SYSTEM):
        gateway = _GatewayUnderTest(loop, Random(rng.getrandbits(48)))
        for number in range(min(N_PER_SYSTEM, n_schedules - n)):
            found = await gateway.run_schedule()
            leaks.update(found)
            if found and not first:
                first.append(f"The first in schedule {n + number} (seed {seed}): {', '.join(sorted(set(found)))}.")
        states.update(gateway.states)
    figures = [Figure.count("schedules", n_schedules, None), Figure.count("things held after one", leaks.total())]
    figures += [Figure.exact(state, float(states[state]), "requests", 1.0, Sense.AT_LEAST) for state in STATES]
    return ClaimResult(tuple(figures), (*first, *(f"{name}: {n}" for name, n in leaks.most_common())))


LEAKS = VirtualClaim(
    "leaks", "After 100,000 random schedules of failing upstreams and leaving clients no place, stream, task, timer, "
    "probe, quota or budget is held.",
    measure, "{:,} schedules in virtual time", 100_000, 2_000)


class _Erratic(ScriptedUpstream):
    """Counts the calls that are cancelled before their first byte."""

    n_cut_off = 0

    async def open(self, call: Call) -> AnswerStream:
        try:
            return await super().open(call)
        except asyncio.CancelledError:
            self.n_cut_off += 1
            raise


class _GatewayUnderTest:
    """A gateway with random settings, which runs schedules and finds their leaks."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._facts: list[Fact] = []
        settings = _draw_settings(rng)
        self._system = system_with_sink(settings, self, loop, rng)
        self._upstreams = [_Erratic(member.upstream.name, [_draw_script(rng) for _ in range(7)], loop)
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

    async def run_schedule(self) -> list[str]:
        """Returns the names of the leaks."""
        loop, rng = self._loop, self._rng
        before, began_at = self._quota_levels(), loop.now()
        charged = self._retry_charges()
        self._facts.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(N_REQUESTS):
                group.create_task(self._send(GENEROUS if number % 3 else STINGY))
                await asyncio.sleep(rng.choice((0.0, 0.05, rng.random() / 10)))
        await asyncio.sleep(QUIET_S)
        done = [fact for fact in self._facts if isinstance(fact, RequestDone)]
        self._count_states(done)
        wrong = ["ends of requests"] if len(done) != N_REQUESTS else []
        if sum(len(fact.attempts) for fact in done) != sum(isinstance(fact, AttemptDone) for fact in self._facts):
            wrong.append("ends of attempts")
        return [*self._find_held(), *self._find_wrong_quotas(done, before, loop.now() - began_at), *wrong,
                *self._find_wrong_budget(done, charged)]

    async def _send(self, tenant: str) -> None:
        rng = self._rng
        leaves_after_s = rng.choice((0.0, 0.05, 0.1, 0.15, 0.2, rng.random(), rng.random() / 4, 2.0, 2.0, 2.0, 2.0))
        request = decode(Api.CHAT, BODIES[rng.random() < 0.8])
        try:
            async with asyncio.timeout(leaves_after_s):
                await serve_and_read(self._system.gateway, request, Arrival("req", self._loop.now(), tenant), self._loop)
        except (StayfastError, TimeoutError):
            pass  # the gateway's facts contain the failure

    def _find_held(self) -> list[str]:
        places, now = self._admission.places, self._loop.now()
        shares = [self._admission.tenants.get(name, now).share for name in TENANTS]
        members = list(self._system.registry)
        held = {
            "places": places.n_taken, "queue": places.n_waiting,
            "turns": sum(share.n_running + share.n_waiting + (share.due != 0) for share in shares),
            "upstream places": sum(member.n_in_flight + len(member.pending) + (not member.has_room) for member in members),
            "upstream queue": sum(member.n_waiting for member in members),
            "streams": sum(upstream.n_open for upstream in self._upstreams),
            "probes": sum(health.breaker.state is not BreakerState.CLOSED and not health.breaker.needs_probe(now + DAY_S)
                          for member in members for health in member.healths),
            "tasks": len(asyncio.all_tasks()) - 1, "timers": self._loop.n_timers}
        return [name for name, n in held.items() if n]

    def _quota_levels(self) -> tuple[float, float]:
        now = self._loop.now()
        quota = self._admission.tenants.get(GENEROUS, now).quota
        return quota.bucket_for("requests_per_day").level(now), quota.bucket_for("tokens_per_day").level(now)

    def _find_wrong_quotas(self, done: Sequence[RequestDone], before: tuple[float, float], took_s: float) -> list[str]:
        """The names of quotas that were not charged with the actual usage."""
        sent = [fact for fact in done if fact.tenant == GENEROUS and fact.attempts]
        requests, tokens = (level - then for level, then in zip(self._quota_levels(), before, strict=True))
        max_tokens = sum(len(fact.attempts) for fact in sent) * MAX_USED
        miscounted = []
        if not -1e-6 <= requests + len(sent) <= took_s * REQUESTS_PER_DAY / DAY_S + 1e-6:
            miscounted.append("quota of requests")
        if not -max_tokens - 1e-3 <= tokens <= took_s * TOKENS_PER_DAY / DAY_S + 1e-3:
            miscounted.append("quota of tokens")
        return miscounted

    def _retry_charges(self) -> tuple[float, float]:
        """The total charges to the retry budgets of the route and of its upstreams."""
        return (sum(self._hedging.budget.export_counts()[2:]),
                sum(sum(member.retry_budget.budget.export_counts()[2:]) for member in self._system.registry))

    def _find_wrong_budget(self, done: Sequence[RequestDone], before: tuple[float, float]) -> list[str]:
        """Second attempts must be charged to both budgets; those of a race need not be charged."""
        n_after = sum(max(0, sum(not attempt.is_hedge for attempt in fact.attempts) - 1) for fact in done)
        weight = weight_of(len(BODIES[True]))
        route, upstreams = (now - then for now, then in zip(self._retry_charges(), before, strict=True))
        is_wrong = abs(route - upstreams) > weight / 2 or route < (n_after - 0.5) * weight
        return ["budget of extra attempts"] if is_wrong else []

    def _count_states(self, done: Sequence[RequestDone]) -> None:
        states = self.states
        for fact in done:
            states["fallback"] += fact.degraded == "fallback"
            states["over quota"] += fact.status == 429 and fact.shed is not None
            states["shed"] += fact.status == 503 and fact.shed is not None
            for attempt in fact.attempts:
                states["hedge won"] += attempt.is_hedge and attempt.ttft_s is not None
                states["hedge lost"] += attempt.is_lost
            if fact.status == 499:
                states[_waiting_state(fact)] += 1
        states["probe of a breaker"] += sum(
            isinstance(fact, BreakerChanged) and fact.state == BreakerState.HALF_OPEN.value for fact in self._facts)
        states["cut off while connecting"] = sum(upstream.n_cut_off for upstream in self._upstreams)


def _waiting_state(fact: RequestDone) -> str:
    """The state of a request when its client left."""
    stage = fact.stages[-2].stage  # before the last one, SETTLE
    if stage is Stage.ADMIT:
        return "left in the queue"
    if stage is not Stage.CALL:
        return "left later"
    if not fact.attempts:
        return "left while waiting for a limit"
    return "left in back-off" if max(attempt.ended_at for attempt in fact.attempts) < fact.ended_at else "left in a call"


def _draw_script(rng: Random) -> Script:
    """A wait before or after the head of the answer, then a random rest."""
    wait = Wait(rng.choice((0.0, 0.05, 0.05, 0.1, 0.1, 0.2, rng.random(), 5.0)))
    head = SendBytes(b": ok\n\n")
    steps: list[Step] = [wait, head] if rng.random() < 0.5 else [head, wait]
    failures = (Cut(), Fail(status=503), Fail(status=429), Fail(status=400), Fail(Fault.RESET))
    end: Step = SendText("a") if rng.random() < 0.6 else rng.choice(failures)
    if not isinstance(end, SendText):
        return [wait, end] if rng.random() < 0.5 else [*steps, end]
    pause = Wait(rng.choice((0.0, 0.05, rng.random() / 3)))
    return [*steps, end, pause, rng.choice((SendText("b"), SendText("b"), SendText("b"), Cut(), Fail(Fault.RESET)))]


def _draw_settings(rng: Random) -> Settings:
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
