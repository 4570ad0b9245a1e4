"""What a time-out tuned by hand cannot do: prompts that differ a hundredfold, and providers with bad minutes.

Two providers with the tail of the proof `tail`, whose usual time to the first token grows with the prompt: a lognormal with
a median of 120 ms and 0.08 ms a token, sigma 0.3, at the lengths of Azure's conversation trace. Each has brown-outs of its
own, in which whatever begins takes ten times as long, for 5 s of every 60. Against it stand the time-outs 0.3, 0.5, 1, 2 and
3 s: an attempt without a first token by then is closed and made again at the other provider at once, six attempts at most,
the last of them without a time-out. The one with the best p99 is what somebody who tunes by hand ends up with. The gateway
has no constant but its budget, which is what that one's further calls came to, and must not make more calls.

Common random numbers: the dice of a request's n-th attempt at a provider are the same whoever makes it. The time-outs, and
what is asked directly, are worked out from those very dice; the simulated providers have no capacity that would make one
attempt wait for another. Over sockets a provider's dice go by the order of arrival: there the same requests meet the same
weather, with other dice.

When wrong: the tail grows with the prompt here as the body does (by half at the median prompt), as the simulator has it. And
real brown-outs do not come by the clock; nothing in the gateway knows that these do.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import inf, isnan
from typing import Any, NamedTuple

from stayfast.bench.arrivals import Gamma
from stayfast.bench.asking import AskingConfig
from stayfast.bench.client import HttpConfig, HttpTarget
from stayfast.bench.lengths import CONV_INPUT, CONV_OUTPUT
from stayfast.bench.perform import Origin, Plan, perform
from stayfast.bench.pipeline import PipelineTarget
from stayfast.bench.result import Result, Subject
from stayfast.bench.run import LEAD_S
from stayfast.bench.schedule import Limit, Prompts, Shot, Workload, shots
from stayfast.bench.stats import Exact
from stayfast.compose.virtual import virtual
from stayfast.core.clock import SystemClock
from stayfast.core.types import Api
from stayfast.policy.hedge import HedgeConfig
from stayfast.prove.claim import Conditions, Figure, Finding
from stayfast.prove.load import MODEL, why_spoiled
from stayfast.prove.rig import Rig, Server, gateway_settings
from stayfast.settings import Route, Settings
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.base import Call
from stayfast.upstreams.simulated import Gaps, Mixture, ProviderConfig, Regime, Regimes, Simulated, Weather
from stayfast.upstreams.simulated.ask import Ask
from stayfast.upstreams.simulated.plan import Dice
from stayfast.upstreams.simulated.plan import plan as thrown
from stayfast.upstreams.simulated.regimes import CALM
from stayfast.upstreams.simulated.settings import SimulatedUpstream

NAMES = ("a", "b")
MEDIAN_S, A_TOKEN_S, GAP_S = 0.12, 0.00008, 0.02
MIXTURE = Mixture(MEDIAN_S, 0.3, 0.068, 3.66, 0.745)
SLOWER, LASTS_S, EVERY_S = 10.0, 5.0, 60.0
BEGINS_S = (15.0, 45.0)  # of each minute, by provider
TIMEOUTS_S = (0.3, 0.5, 1.0, 2.0, 3.0)
N_TRIES = 6
MAX_TRIES = 16  # of one request at one provider: apart in the numbers of their dice
PATIENCE_S = 60.0
P99_GOAL = 0.5
BUCKET_GOAL = 0.6  # of long prompts even a healthy provider takes a good part of it
BUCKETS = (0, 512, 2048, 1 << 30)  # tokens of the prompt
LEAST_BUCKET = 1000  # requests; of fewer a p99 is chance
SLACK, SLACK_QUICK = 1.1, 1.6  # over sockets; of fewer samples
N_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Mixed:
    """See the module. `hedge`: what the route has beside its budget."""

    rate_rps: float = 60.0
    virtual_rps: float = 100.0
    real_s: float = 240.0
    real_quick_s: float = 15.0
    warmup_s: float = 30.0
    warmup_quick_s: float = 10.0
    n_virtual: int = 1_000_000
    n_virtual_quick: int = 30_000
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "mixed"
    says = (f"With prompts of all sizes and brown-outs, p99 to the first token is at most {P99_GOAL:g} times that of the "
            "best constant time-out with a retry elsewhere, at no more calls, and nothing is lost.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        is_quick, seed = conditions.is_quick, conditions.seed
        real_s, n, warmup_s = ((self.real_quick_s, self.n_virtual_quick, self.warmup_quick_s) if is_quick else
                               (self.real_s, self.n_virtual, self.warmup_s))
        conditions.say(f"{n:,} requests in virtual time, and with each of the time-outs")
        plan = plan_of(self.virtual_rps, n / self.virtual_rps, warmup_s, seed)
        rivals = await asyncio.to_thread(Rivals, plan)  # for seconds, in which a signal is to be heard
        hedge = HedgeConfig(**{"budget": rivals.best.n_calls / rivals.n - 1, **self.hedge})
        twin = await asyncio.to_thread(in_virtual_time, plan, hedge)
        figures = [*rivals.figures("virtual time"), *rivals.against("virtual time", twin, SLACK_QUICK if is_quick else 1.0)]
        conditions.say(f"{real_s:g} s over sockets")
        plan = plan_of(self.rate_rps, real_s, warmup_s, seed)
        rivals = Rivals(plan)
        budget = {"mode": "auto", "budget": rivals.best.n_calls / rivals.n - 1, **self.hedge}
        real = await over_sockets(plan, budget)
        figures += rivals.against("sockets", real, SLACK_QUICK if is_quick else SLACK)
        return Finding(tuple(figures), spoiled=why_spoiled({"gateway": real}))


def plan_of(rate_rps: float, seconds: float, warmup_s: float, seed: int) -> Plan:
    """The load."""
    workload = Workload(input=CONV_INPUT, output=CONV_OUTPUT, arrivals=Gamma(rate_rps))
    return Plan(workload, Limit(seconds, None, warmup_s), seed, 0, PATIENCE_S)


def provider(number: int) -> ProviderConfig:
    """One of the two. Its chunks are large: only the first is of interest."""
    return ProviderConfig(seed=number, ttft=MIXTURE, prefill_per_token=A_TOKEN_S / MEDIAN_S, fills_max_tokens=True,
                          gaps=Gaps(GAP_S, 0.0, 400),
                          regimes=Regimes(normal=Regime(1e9), brownout=Regime(ttft_factor=SLOWER)))


def _settings(number: int) -> Mapping[str, Any]:
    """The same for `stayfast sim`."""
    return {"seed": number, "ttft": asdict(MIXTURE), "prefill_per_token": A_TOKEN_S / MEDIAN_S, "fills_max_tokens": True,
            "gaps": {"median_s": GAP_S, "sigma": 0.0, "tokens_per_chunk": 25},
            "regimes": {"normal": {"mean_s": 1e9}, "brownout": {"ttft_factor": SLOWER}}}


def is_brownout(number: int, at_s: float) -> bool:
    """Whether a provider has one, so long after the start of the run."""
    return 0 <= at_s % EVERY_S - BEGINS_S[number] < LASTS_S


class Rival(NamedTuple):
    """What one way to ask came to: waits in the order of the shots, and calls."""

    timeout_s: float  # infinite: asked directly
    waits_s: Sequence[float]
    n_calls: int

    @property
    def p99_s(self) -> float:
        """The figure by which the best is chosen."""
        return Exact(self.waits_s).at(0.99)


class Rivals:
    """All time-outs on the requests of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.shots = [shot for shot in shots(plan.workload, plan.seed, plan.limit) if shot.at_s >= 0]
        self.n = len(self.shots)
        self._dice = [Dice(number, name) for number, name in enumerate(NAMES)]
        self._config = provider(0)
        self._zero_s = LEAD_S + plan.limit.warmup_s
        *timeouts, self.direct = self._ask((*TIMEOUTS_S, inf))
        self.timeouts = timeouts
        self.best = min(timeouts, key=lambda rival: rival.p99_s)

    def _ask(self, timeouts_s: Sequence[float]) -> list[Rival]:
        waits_s: list[list[float]] = [[] for _ in timeouts_s]
        n_calls = [0] * len(timeouts_s)
        for shot in self.shots:
            drawn_s: list[float] = []
            for which, timeout_s in enumerate(timeouts_s):
                wait_s, n_tries = self._wait_s(shot, timeout_s, drawn_s)
                waits_s[which].append(wait_s)
                n_calls[which] += n_tries
        return [Rival(*found) for found in zip(timeouts_s, waits_s, n_calls, strict=True)]

    def _wait_s(self, shot: Shot, timeout_s: float, drawn_s: list[float]) -> tuple[float, int]:
        """From the intended start to the first token, and calls. `drawn_s`: what each attempt takes in calm weather."""
        at_s = began_s = self._zero_s + shot.at_s
        for n in range(N_TRIES):
            number = (shot.number + n) % 2
            if n == len(drawn_s):
                drawn_s.append(self._drawn_s(shot, number, n // 2))
            took_s = drawn_s[n] * (SLOWER if is_brownout(number, at_s) else 1.0)
            if took_s <= timeout_s or n == N_TRIES - 1:
                break
            at_s += timeout_s
        return at_s + took_s - began_s, n + 1

    def _drawn_s(self, shot: Shot, number: int, n_before: int) -> float:
        ask = Ask(Api.CHAT, MODEL, True, shot.n_input, shot.n_output)
        rng = self._dice[number].of_request(shot.number * MAX_TRIES + n_before)
        return thrown(self._config, self._config.numbers, ask, rng, luck=None, regime=CALM).ttft_s

    def figures(self, where: str) -> list[Figure]:
        """What each of them came to."""
        return [figure for rival in (*self.timeouts, self.direct) for figure in (
            Figure(f"{where}: {_said(rival)}: TTFT p99", rival.p99_s, "s"),
            Figure(f"{where}: {_said(rival)}: calls a request", rival.n_calls / self.n, ""))]

    def against(self, where: str, result: Result, slack: float) -> list[Figure]:
        """The gateway's, beside the best of them."""
        samples, best = result.samples, self.best
        rows = {shot.number: row for row, shot in enumerate(self.shots)}
        waits_s = [inf] * self.n
        n_lost = 0
        for number, at_s, first_s, error in zip(samples.ints["number"], samples.floats["at_s"], samples.floats["first_s"],
                                                samples.errors, strict=True):
            row = rows[number]
            waits_s[row] = inf if isnan(first_s) else first_s - at_s
            n_lost += bool(error) and self.direct.waits_s[row] < PATIENCE_S
        ours, calls = Exact(waits_s), sum(samples.ints["n_upstream_attempts"]) / self.n
        found = [
            Figure(f"{where}: TTFT p50 (n={self.n})", ours.at(0.5), "s"), Figure(f"{where}: TTFT p95", ours.at(0.95), "s"),
            Figure(f"{where}: TTFT p99", ours.at(0.99), "s"),
            Figure(f"{where}: TTFT p99, over that of {_said(best)}", ours.at(0.99) / best.p99_s, "x", P99_GOAL * slack),
            Figure(f"{where}: calls a request", calls, "", best.n_calls / self.n),
            Figure(f"{where}: requests without an answer that a direct call would have served", float(n_lost), "", 0.0)]
        for least, below in pairwise(BUCKETS):
            of = [row for row, shot in enumerate(self.shots) if least <= shot.n_input < below]
            mine, its = (Exact([waits[row] for row in of]).at(0.99) for waits in (waits_s, best.waits_s))
            said = f"from {least} tokens" if below == BUCKETS[-1] else f"{least} to {below} tokens"
            found.append(Figure(f"{where}: TTFT p99 of prompts of {said} ({mine:.2f} s, n={len(of)}), over that of "
                                f"{_said(best)}", mine / its, "x", BUCKET_GOAL * slack if len(of) >= LEAST_BUCKET else None))
        return found


def _said(rival: Rival) -> str:
    return "direct" if rival.timeout_s == inf else f"a time-out of {rival.timeout_s:g} s"


def in_virtual_time(plan: Plan, hedge: HedgeConfig) -> Result:
    """The requests of a plan through the pipeline on a virtual loop, with the dice of `Rivals`."""
    upstreams = {name: SimulatedUpstream(provider=provider(number), probe=False) for number, name in enumerate(NAMES)}
    settings = Settings(upstreams=upstreams, routes={MODEL: Route(NAMES, hedge=hedge)})

    async def main(loop: SimLoop) -> Result:
        system = virtual(settings, loop, plan.seed)
        for number, name in enumerate(NAMES):
            upstream = system.registry[name].upstream
            assert isinstance(upstream, Simulated)
            upstream.number_of = _Numbers().of
            for begins_s in _brownouts(number, plan):
                loop.call_at(begins_s, upstream.provider.set_regime, Weather.BROWNOUT)
                loop.call_at(begins_s + LASTS_S, upstream.provider.set_regime, Weather.NORMAL)
        target = PipelineTarget(system.gateway, AskingConfig(Api.CHAT, MODEL), Prompts(plan.seed), loop)
        [found] = await perform(plan, [(Subject("virtual", "virtual:", "chat", MODEL), target)], loop, Origin(),
                                is_virtual=True)
        return found

    return run(main)


def _brownouts(number: int, plan: Plan) -> list[float]:
    """When a provider's begin, in seconds from the start of the run."""
    assert plan.limit.until_s is not None
    n_times = int((plan.limit.until_s + plan.limit.warmup_s) / EVERY_S) + 1
    return [n * EVERY_S + BEGINS_S[number] for n in range(n_times)]


class _Numbers:
    """Which dice a call to one provider throws: those of its request, and of how often that has asked there."""

    def __init__(self) -> None:
        self._n_asked: dict[int, int] = {}

    def of(self, call: Call) -> int:
        """See `Simulated.number_of`. The bench numbers its requests as they begin, which is the order of its shots."""
        request = int(call.request_id.removeprefix("req_"), 16)
        n_asked = self._n_asked.get(request, 0)
        self._n_asked[request] = n_asked + 1
        if len(self._n_asked) > N_REMEMBERED:
            del self._n_asked[next(iter(self._n_asked))]
        return request * MAX_TRIES + min(n_asked, MAX_TRIES - 1)


async def over_sockets(plan: Plan, hedge: Mapping[str, Any]) -> Result:
    """The requests of a plan at a gateway in front of the simulator."""
    clock = SystemClock()
    async with Rig() as rig:
        sim = await rig.simulator({name: _settings(number) for number, name in enumerate(NAMES)}, plan.seed)
        gateway = await rig.gateway(gateway_settings({name: f"{sim.url}/{name}/v1" for name in NAMES}, hedge=dict(hedge)))
        config = HttpConfig(f"{gateway.url}/v1", AskingConfig(Api.CHAT, MODEL))
        target = HttpTarget("gateway", config, Prompts(plan.seed), clock)
        async with asyncio.TaskGroup() as group:
            weather = [group.create_task(_weather(sim, number, plan)) for number in range(len(NAMES))]
            [found] = await perform(plan, [(Subject("gateway", gateway.url, "chat", MODEL), target)], clock, Origin())
            for task in weather:
                task.cancel()
        return found


async def _weather(sim: Server, number: int, plan: Plan) -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for begins_s in _brownouts(number, plan):
        for at_s, weather in ((begins_s, Weather.BROWNOUT), (begins_s + LASTS_S, Weather.NORMAL)):
            await asyncio.sleep(began_at + at_s - loop.time())
            await sim.get("/_sim/regime", "POST", {"provider": NAMES[number], "regime": weather})
