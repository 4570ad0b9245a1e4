"""Fixed delays tuned by hand, compared with the gateway: prompts of very different sizes, and providers with brownouts.

Two providers with the tail of the claim `tail`, whose usual time to the first token grows with the prompt: lognormal with a
median of 120 ms plus 0.08 ms per token, sigma 0.3, for the prompt lengths of Azure's conversation trace. Each has its own
brownouts, in which new calls take ten times as long. The gateway has its defaults. Its rivals, for each of DELAYS_S:

    a timeout      an attempt without a first token by then is closed and repeated at the other provider at once; N_TRIES
                   attempts at most, the last of them without a timeout
    hedges         the attempt continues, and a second and a third one start, each that long after the previous one

The timeout with the best p99 is the result of tuning by hand. Hedges below 1 s that are better than the gateway need twice
its additional calls; the usual one, after 0.5 s, is the rival. A second run gives the gateway the best timeout's number of
additional calls as its budget.

Common random numbers: the n-th attempt of a request at a provider has the same random numbers for the gateway and all
rivals. The providers have no capacity limit that would make attempts wait. Over sockets a provider's random numbers follow
the order of arrival: the requests and brownouts are the same, the draws differ.

When wrong: here the tail grows with the prompt as the median does. Real brownouts do not follow the clock; the gateway does
not know that these do.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isnan
from typing import Any

from stayfast.core.types import Api
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding
from stayfast.lab.harness.fixed_policy import FixedPolicy, FixedPolicyRun
from stayfast.lab.harness.load import LoadSpec, run_load, simulated_gateway, since_start_s, spoil_reason
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import run_load_virtual, run_virtual_in_thread, simulated_upstream, virtual_system
from stayfast.lab.load.lengths import CONV_INPUT, CONV_OUTPUT
from stayfast.lab.load.result import Result
from stayfast.lab.load.runner import LEAD_S
from stayfast.lab.load.schedule import Shot, generate_shots
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import GapConfig, Mixture, ProviderConfig, Regime, Regimes, RegimeState
from stayfast.lab.simulated.faults import CALM
from stayfast.lab.simulated.request import SimulatedRequest
from stayfast.lab.simulated.timing_plan import Dice, draw_timing
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call

NAMES = ("a", "b")
RATE_RPS, VIRTUAL_RPS = 60.0, 100.0
MEDIAN_S, A_TOKEN_S, GAP_S = 0.12, 0.00008, 0.02
MIXTURE = Mixture(MEDIAN_S, 0.3, 0.068, 3.66, 0.745)
SLOWER, LASTS_S, EVERY_S = 10.0, 5.0, 60.0
BEGINS_S = (15.0, 45.0)  # of each minute, by provider
DELAYS_S = (0.3, 0.5, 1.0, 2.0, 3.0)
USUAL_DELAY_S = 0.5
N_TRIES, N_HEDGED = 6, 3
MAX_TRIES = 16  # of one request at one provider: each has its own random numbers
PATIENCE_S = 60.0
P99_GOAL, TUNED_GOAL = 0.6, 0.5  # multiples of the best timeout's p99: by default, and with as many calls
HEDGE_GOAL = 1.0  # multiple of the p99 of hedges after USUAL_DELAY_S
MAX_CALLS = 1.1
SOCKETS_SLACK = 1.3  # only 144 requests are past p99; in virtual time such short runs gave 0.51 to 0.76
BUCKET_GOAL = 0.6
BUCKETS = (0, 512, 2048, 1 << 30)  # tokens of the prompt
MIN_BUCKET = 1000  # requests; the p99 of fewer is noise
N_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Mixed:
    """hedge: hedge settings of the route, in place of the defaults."""

    full: Extent = Extent(1_000_000, 240.0, warmup_s=30.0, slack=SOCKETS_SLACK)
    quick: Extent = Extent(30_000, 15.0, warmup_s=10.0, slack=1.6, virtual_slack=1.6)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "mixed"
    statement = (f"Prompts of all sizes and brownouts, default settings: p99 to the first token is at most {P99_GOAL:g} "
                 f"times "
            "that of the best fixed timeout with a retry elsewhere, and at most that of two hedges after "
            f"{USUAL_DELAY_S:g} s, for at most {MAX_CALLS - 1:.0%} more calls, fewer than either. With as many calls as "
            f"the timeout it is at most {TUNED_GOAL:g} times as long. No request is lost. Over sockets, with few requests, "
            f"each may be {SOCKETS_SLACK - 1:.0%} more.")

    async def run(self, conditions: Conditions) -> Finding:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{extent.n:,} requests in virtual time, and with each fixed delay")
        load = make_load(VIRTUAL_RPS, extent.n / VIRTUAL_RPS, extent.warmup_s)
        rivals = await asyncio.to_thread(Rivals, load, seed)  # takes seconds, in which signals must be handled
        virtual = await run_virtual_in_thread(run_in_virtual_time, load, HedgeConfig(**self.hedge), seed)
        figures = [*rivals.figures("virtual time"), *rivals.compare("virtual time", virtual, extent.virtual_slack),
                   rivals.compare_with_hedges("virtual time", virtual, extent.virtual_slack)]
        load = make_load(VIRTUAL_RPS, extent.n / 5 / VIRTUAL_RPS, extent.warmup_s) if not conditions.is_quick else load
        rivals = await asyncio.to_thread(Rivals, load, seed)
        conditions.report_progress(f"{rivals.n:,} requests in virtual time, at a budget of {rivals.budget:.1%}")
        config = HedgeConfig(**{**self.hedge, "budget": rivals.budget})
        tuned = await run_virtual_in_thread(run_in_virtual_time, load, config, seed)
        figures += rivals.compare(f"budget {rivals.budget:.1%}, virtual time", tuned, extent.virtual_slack, TUNED_GOAL,
                                  rivals.best.calls)
        conditions.report_progress(f"{extent.real_s:g} s over sockets")
        load = make_load(RATE_RPS, extent.real_s, extent.warmup_s)
        real = await run_over_sockets(load, self.hedge, seed)
        figures += Rivals(load, seed).compare("sockets", real, extent.slack,
                                              max_calls=1 + (MAX_CALLS - 1) * extent.slack)
        return Finding(tuple(figures), spoiled=spoil_reason({"gateway": real}))


def make_load(rate_rps: float, seconds: float, warmup_s: float) -> LoadSpec:
    return LoadSpec(seconds, rate_rps, n_input=CONV_INPUT, n_output=CONV_OUTPUT, warmup_s=warmup_s, timeout_s=PATIENCE_S)


def make_provider(number: int) -> ProviderConfig:
    """The chunks are large, as only the first one matters."""
    return ProviderConfig(seed=number, ttft=MIXTURE, prefill_per_token=A_TOKEN_S / MEDIAN_S, fills_max_tokens=True,
                          gaps=GapConfig(GAP_S, 0.0, 400),
                          regimes=Regimes(normal=Regime(1e9), brownout=Regime(ttft_factor=SLOWER)))


class Rivals:
    """All fixed policies on the requests of one load."""

    def __init__(self, load: LoadSpec, seed: int) -> None:
        plan = load.plan(seed)
        self.shots = [shot for shot in generate_shots(plan.workload, seed, plan.limit) if shot.at_s >= 0]
        self.n = len(self.shots)
        self._dice = [Dice(number, name) for number, name in enumerate(NAMES)]
        self._config = make_provider(0)
        self._zero_s = LEAD_S + load.warmup_s
        self.timeouts = [FixedPolicyRun(FixedPolicy(after_s, N_TRIES), [], 0) for after_s in DELAYS_S]
        self.hedges = [FixedPolicyRun(FixedPolicy(after_s, N_HEDGED, is_hedge=True), [], 0) for after_s in DELAYS_S]
        self.direct = FixedPolicyRun(FixedPolicy(inf, 1), [], 0)
        for shot in self.shots:
            self._simulate(shot)
        self.best = min(self.timeouts, key=lambda rival: rival.p99_s)
        self.usual = next(rival for rival in self.hedges if rival.policy.after_s == USUAL_DELAY_S)
        self.budget = self.best.calls - 1  # additional calls per request

    def _simulate(self, shot: Shot) -> None:
        drawn_s: list[float] = []  # the duration of each attempt without a brownout
        began_s = self._zero_s + shot.at_s

        def attempt_s(n: int, at_s: float) -> float:
            number = (shot.number + n) % 2
            if n == len(drawn_s):
                request = SimulatedRequest(Api.CHAT, MODEL, True, shot.n_input, shot.n_output)
                rng = self._dice[number].for_request(shot.number * MAX_TRIES + n // 2)
                drawn_s.append(draw_timing(self._config, self._config.numbers, request, rng, luck=None, regime=CALM).ttft_s)
            is_brownout = 0 <= (began_s + at_s) % EVERY_S - BEGINS_S[number] < LASTS_S
            return drawn_s[n] * (SLOWER if is_brownout else 1.0)

        for rival in (*self.timeouts, *self.hedges, self.direct):
            rival.add(*rival.policy.simulate(attempt_s))

    def figures(self, where: str) -> list[Figure]:
        return [figure for rival in (*self.timeouts, *self.hedges, self.direct) for figure in rival.figures(where)]

    def compare_with_hedges(self, where: str, result: Result, slack: float) -> Figure:
        """The gateway's p99 as a multiple of that of the usual hedges."""
        ours_s = ExactDistribution(self._waits_s(result)).quantile(0.99)
        usual = self.usual
        return Figure(f"{where}: TTFT p99, over that of {usual.policy.name}, with {usual.calls:.2f} calls a request",
                      ours_s / usual.p99_s, "x", HEDGE_GOAL * slack)

    def compare(self, where: str, result: Result, slack: float, goal: float = P99_GOAL,
                max_calls: float = MAX_CALLS) -> list[Figure]:
        """The gateway's figures, compared with the best timeout. max_calls: the goal per request."""
        samples, best, waits_s = result.samples, self.best, self._waits_s(result)
        rows = self._row_by_number()
        n_lost = sum(bool(error) and self.direct.waits_s[rows[number]] < PATIENCE_S
                     for number, error in zip(samples.ints["number"], samples.errors, strict=True))
        ours, calls = ExactDistribution(waits_s), sum(samples.ints["n_upstream_attempts"]) / self.n
        figures = [
            Figure(f"{where}: TTFT p50 (n={self.n})", ours.quantile(0.5), "s"), Figure(f"{where}: TTFT p95",
                                                                                       ours.quantile(0.95), "s"),
            Figure(f"{where}: TTFT p99", ours.quantile(0.99), "s"),
            Figure(f"{where}: TTFT p99, over that of {best.policy.name}", ours.quantile(0.99) / best.p99_s, "x",
                   goal * slack),
            Figure(f"{where}: calls a request", calls, "", max_calls),
            Figure.count(f"{where}: requests without an answer that a direct call would have served", n_lost)]
        for low, high in pairwise(BUCKETS):
            chosen = [row for row, shot in enumerate(self.shots) if low <= shot.n_input < high]
            p99_s, best_s = (ExactDistribution([waits[row] for row in chosen]).quantile(0.99) for waits in (waits_s,
                                                                                                            best.waits_s))
            bucket_goal = BUCKET_GOAL * slack if len(chosen) >= MIN_BUCKET else None
            words = f"from {low} tokens" if high == BUCKETS[-1] else f"{low} to {high} tokens"
            figures.append(Figure(f"{where}: TTFT p99 of prompts of {words} ({p99_s:.2f} s, n={len(chosen)}), over that of "
                                  f"{best.policy.name}", p99_s / best_s, "x", bucket_goal))
        return figures

    def _row_by_number(self) -> Mapping[int, int]:
        return {shot.number: row for row, shot in enumerate(self.shots)}

    def _waits_s(self, result: Result) -> list[float]:
        """Seconds from the intended start to the first token, in the order of the shots; infinite without a token."""
        rows, waits_s = self._row_by_number(), [inf] * self.n
        for number, wait_s in zip(result.samples.ints["number"], since_start_s(result, "first_s"), strict=True):
            waits_s[rows[number]] = inf if isnan(wait_s) else wait_s
        return waits_s


async def run_in_virtual_time(loop: SimLoop, load: LoadSpec, hedge: HedgeConfig, seed: int) -> Result:
    """The load through the pipeline, with the random numbers of `Rivals`."""
    system = virtual_system(loop, {name: make_provider(number) for number, name in enumerate(NAMES)}, seed, hedge=hedge)
    for number, name in enumerate(NAMES):
        upstream = simulated_upstream(system, name)
        upstream.number_of = _CallNumbers().number_of
        for at_s, regime in _regime_changes(number, load):
            loop.call_at(at_s, upstream.provider.set_regime, regime)
    return await run_load_virtual(system, load, loop, seed)


def _regime_changes(number: int, load: LoadSpec) -> list[tuple[float, RegimeState]]:
    """The begins and ends of a provider's brownouts, in seconds from the start of the run."""
    begins_s = [n * EVERY_S + BEGINS_S[number] for n in range(int((load.seconds + load.warmup_s) / EVERY_S) + 1)]
    return [change for at_s in begins_s for change in ((at_s, RegimeState.BROWNOUT), (at_s + LASTS_S, RegimeState.NORMAL))]


class _CallNumbers:
    """Numbers a provider's calls by request and attempt. The number selects the random draws."""

    def __init__(self) -> None:
        self._n_attempts: dict[int, int] = {}

    def number_of(self, call: Call) -> int:
        """Request ids contain the number of the shot."""
        request = int(call.request_id.removeprefix("req_"), 16)
        n_attempts = self._n_attempts.get(request, 0)
        self._n_attempts[request] = n_attempts + 1
        if len(self._n_attempts) > N_REMEMBERED:
            del self._n_attempts[next(iter(self._n_attempts))]
        return request * MAX_TRIES + min(n_attempts, MAX_TRIES - 1)


async def run_over_sockets(load: LoadSpec, hedge: Mapping[str, Any], seed: int) -> Result:
    providers = {name: replace(make_provider(number), gaps=GapConfig(GAP_S, 0.0, 25)) for number, name in enumerate(NAMES)}
    async with simulated_gateway(providers, seed, hedge=dict(hedge)) as (sim, url), asyncio.TaskGroup() as group:
        began_at = asyncio.get_running_loop().time()

        async def change_regimes(number: int) -> None:
            for at_s, regime in _regime_changes(number, load):
                await asyncio.sleep(began_at + at_s - asyncio.get_running_loop().time())
                await sim.get("/_sim/regime", "POST", {"provider": NAMES[number], "regime": regime})

        changing = [group.create_task(change_regimes(number)) for number in range(len(NAMES))]
        result = await run_load(load, url, seed)
        for task in changing:
            task.cancel()
    return result
