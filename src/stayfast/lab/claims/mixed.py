"""Fixed delays tuned by hand, compared with the gateway: prompts of very different sizes, and providers with brownouts.

Two providers with the tail of the claim `tail`, whose usual time to the first token grows with the prompt: lognormal with a
median of 120 ms plus 0.08 ms per token, sigma 0.3, for the prompt lengths of Azure's conversation trace. Each has its own
brownouts, in which new calls take ten times as long. The gateway has its defaults. Its rivals, for each of DELAYS_S:

    a time-out         an attempt without a first token by then is closed and repeated at the other provider at once;
                       N_TIMEOUT_TRIES attempts at most, the last of them without a time-out
    one hedge          the attempt continues, and one more starts at the other provider
    repeated hedges    a second and a third (and a fourth) one start, each that long after the previous one, all of them
                       continue: Envoy's `hedge_on_per_try_timeout` with 2 or 3 retries

The best rival has the lowest p99 of those with at most RIVAL_CALLS calls a request, which is what the best time-out spends;
the frugal one that of those with at most MAX_CALLS, the gateway's own limit. They are chosen on the first N_TUNED requests.
A second run gives the gateway the best rival's number of additional calls as its budget.

Common random numbers: the n-th attempt of a request at a provider has the same random numbers for the gateway and all
rivals. So intervals of ratios are those of a paired block bootstrap. The providers have no capacity limit that would make
attempts wait. Over sockets a provider's random numbers follow the order of arrival: the requests and brownouts are the same,
the draws differ.

When wrong: here the tail grows with the prompt as the median does. Real brownouts do not follow the clock; the gateway does
not know that these do. Calls are compared, and long prompts are dear: a constant delay repeats most of them, the gateway as
many as of the short ones. The figures of the tokens sent show it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isnan
from statistics import fmean
from typing import Any

from stayfast.core.types import Api
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, mark_invalid
from stayfast.lab.harness.fixed_policy import DIRECT, FAMILIES, FixedPolicy, FixedPolicyRun, choose_best, grid_of_policies
from stayfast.lab.harness.intervals import block_interval, mean_interval, ratio_interval
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
DELAYS_S = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0, 1.3, 1.6, 2.0, 3.0)
N_TUNED = 200_000  # requests on which the rivals are tuned
RIVAL_CALLS = 1.18  # a request; the best time-out's
MAX_CALLS = 1.1  # the gateway's, by default
MAX_TRIES = 16  # of one request at one provider: each has its own random numbers
PATIENCE_S = 60.0
P99_GOAL, FRUGAL_GOAL, TUNED_GOAL = 0.8, 0.45, 0.7  # multiples of a rival's p99
SOCKETS_GOAL = 0.9
SHORT, SHORT_GOAL = 2048, 0.6  # tokens of the prompt; longer prompts have no goal
BUCKETS = (0, 512, SHORT, 1 << 30)
BEST, FRUGAL = f"best with at most {RIVAL_CALLS:g} calls", f"best with at most {MAX_CALLS:g} calls"
PLAIN = "no second attempts"
MIN_BLOCKS = 20
N_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Mixed:
    """hedge: hedge settings of the route, in place of the defaults."""

    full: Extent = Extent(400_000, 240.0, warmup_s=30.0)
    quick: Extent = Extent(30_000, 15.0, warmup_s=10.0)
    hedge: Mapping[str, Any] = field(default_factory=dict)

    name = "mixed"
    statement = (
        f"Prompts of all sizes and brownouts, compared with the best of {4 * len(DELAYS_S)} fixed time-outs and hedges. "
        f"Default settings, in virtual time: p99 to the first token is at most {P99_GOAL:g} times that of the best rival "
        f"with at most {RIVAL_CALLS:g} calls a request ({SHORT_GOAL:g} times for prompts below {SHORT:,} tokens), and at "
        f"most {FRUGAL_GOAL:g} times that of the best one with at most {MAX_CALLS:g} calls, for at most {MAX_CALLS:g} "
        f"calls. With no more calls than the former, p99 is at most {TUNED_GOAL:g} times its p99. No request is lost that a "
        f"direct call would have served. Over sockets p99 is at most {SOCKETS_GOAL:g} times that of the best rival, and no "
        "more requests are lost than by direct calls.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{extent.n:,} requests in virtual time, and with each fixed delay")
        load = make_load(VIRTUAL_RPS, extent.n / VIRTUAL_RPS, extent.warmup_s)
        rivals = await asyncio.to_thread(Rivals, load, seed)  # takes seconds, in which signals must be handled
        ours = rivals.record(await run_virtual_in_thread(run_in_virtual_time, load, HedgeConfig(**self.hedge), seed))
        figures = [*rivals.figures("virtual time"), *ours.figures("virtual time"), *ours.compare_by_default("virtual time")]
        if not conditions.is_quick:
            load = make_load(VIRTUAL_RPS, extent.n / 2 / VIRTUAL_RPS, extent.warmup_s)
            rivals = await asyncio.to_thread(Rivals, load, seed, rivals.policies)
        conditions.report_progress(f"{rivals.n:,} requests in virtual time, at a budget of {rivals.budget:.1%}")
        config = HedgeConfig(**{**self.hedge, "budget": rivals.budget})
        tuned = rivals.record(await run_virtual_in_thread(run_in_virtual_time, load, config, seed))
        where = f"budget {rivals.budget:.1%}, virtual time"
        figures += [*tuned.figures(where), *tuned.compare_with_as_many_calls(where)]
        conditions.report_progress(f"{extent.real_s:g} s over sockets")
        load = make_load(RATE_RPS, extent.real_s, extent.warmup_s)
        result = await run_over_sockets(load, self.hedge, seed)
        real = (await asyncio.to_thread(Rivals, load, seed, rivals.policies)).record(result)
        spoiled = spoil_reason({"gateway": result})
        figures += mark_invalid((*real.figures("sockets", has_same_draws=False), real.calls_figure("sockets"),
                                 real.compare("sockets", real.rivals.best, SOCKETS_GOAL)), spoiled)
        return ClaimResult(tuple(figures), spoiled=spoiled)


def make_load(rate_rps: float, seconds: float, warmup_s: float) -> LoadSpec:
    return LoadSpec(seconds, rate_rps, n_input=CONV_INPUT, n_output=CONV_OUTPUT, warmup_s=warmup_s, timeout_s=PATIENCE_S)


def make_provider(number: int) -> ProviderConfig:
    """The chunks are large, as only the first one matters."""
    return ProviderConfig(seed=number, ttft=MIXTURE, prefill_per_token=A_TOKEN_S / MEDIAN_S, fills_max_tokens=True,
                          gaps=GapConfig(GAP_S, 0.0, 400),
                          regimes=Regimes(normal=Regime(1e9), brownout=Regime(ttft_factor=SLOWER)))


class Rivals:
    """The best fixed policies on the requests of one load, in the order of time. policies: by title; None: tune them on
    this load.
    """

    def __init__(self, load: LoadSpec, seed: int, policies: Mapping[str, FixedPolicy] | None = None) -> None:
        plan = load.plan(seed)
        self.shots = [shot for shot in generate_shots(plan.workload, seed, plan.limit) if shot.at_s >= 0]
        self.n = len(self.shots)
        self.n_blocks = max(MIN_BLOCKS, round(2 * load.seconds / EVERY_S))  # of intervals: one brownout in each
        self._dice = [Dice(number, name) for number, name in enumerate(NAMES)]
        self._config = make_provider(0)
        self._zero_s = LEAD_S + load.warmup_s
        self.policies = self._tune() if policies is None else policies
        runs = {policy: FixedPolicyRun(policy) for policy in self.policies.values()}
        self._simulate(list(runs.values()), self.shots)
        self.by_title = {title: runs[policy] for title, policy in self.policies.items()}
        self.best, self.frugal, self.direct = (self.by_title[title] for title in (BEST, FRUGAL, PLAIN))

    def _tune(self) -> Mapping[str, FixedPolicy]:
        runs = [FixedPolicyRun(policy) for policy in grid_of_policies(DELAYS_S)]
        self._simulate(runs, self.shots[:N_TUNED])
        by_family = {family: choose_best(runs, RIVAL_CALLS, family).policy for family in FAMILIES}
        best, frugal, costly = (choose_best(runs, max_calls).policy for max_calls in (RIVAL_CALLS, MAX_CALLS, inf))
        return {**{f"best of {family}, at most {RIVAL_CALLS:g} calls": policy for family, policy in by_family.items()},
                BEST: best, FRUGAL: frugal, "best with any number of calls": costly, PLAIN: DIRECT}

    @property
    def budget(self) -> float:
        """The best rival's additional calls a request."""
        return self.best.calls - 1

    def _simulate(self, runs: Sequence[FixedPolicyRun], shots: Sequence[Shot]) -> None:
        for shot in shots:
            attempt_s = self._attempts_of(shot)
            first_s = attempt_s(0, 0.0)
            for run in runs:
                run.add(*((first_s, 1) if first_s <= DELAYS_S[0] else run.policy.simulate(attempt_s)))

    def _attempts_of(self, shot: Shot) -> Callable[[int, float], float]:
        """The duration of the shot's n-th attempt, which starts at_s after it."""
        drawn_s: list[float] = []  # without a brownout
        began_s = self._zero_s + shot.at_s

        def attempt_s(n: int, at_s: float) -> float:
            number = (shot.number + n) % 2
            if n == len(drawn_s):
                request = SimulatedRequest(Api.CHAT, MODEL, True, shot.n_input, shot.n_output)
                rng = self._dice[number].for_request(shot.number * MAX_TRIES + n // 2)
                drawn_s.append(draw_timing(self._config, self._config.numbers, request, rng, luck=None, regime=CALM).ttft_s)
            is_brownout = 0 <= (began_s + at_s) % EVERY_S - BEGINS_S[number] < LASTS_S
            return drawn_s[n] * (SLOWER if is_brownout else 1.0)

        return attempt_s

    def figures(self, where: str) -> list[Figure]:
        """p99, calls and tokens of the chosen rivals. The best one is also that of its family."""
        return [figure for title, run in self.by_title.items() if title != BEST for figure in (
            self.p99_figure(f"{where}: {title}, {run.policy.name}: TTFT p99", run.waits_s),
            self.mean_figure(f"{where}: {title}: calls a request", run.each_n_calls),
            self.tokens_figure(f"{where}: {title}", run.each_n_calls))]

    def p99_figure(self, name: str, waits_s: Sequence[float]) -> Figure:
        low_s, high_s = block_interval(waits_s, 0.99, n_blocks=self.n_blocks)
        return Figure(name, ExactDistribution(waits_s).quantile(0.99), "s", low=low_s, high=high_s)

    def ratio_figure(self, name: str, ours_s: Sequence[float], theirs_s: Sequence[float], goal: float | None) -> Figure:
        """A p99 as a multiple of another one, of the same requests."""
        ours, theirs = (ExactDistribution(waits_s).quantile(0.99) for waits_s in (ours_s, theirs_s))
        low, high = ratio_interval(ours_s, theirs_s, 0.99, n_blocks=self.n_blocks)
        return Figure(name, ours / theirs, "x", goal, low=low, high=high)

    def mean_figure(self, name: str, values: Sequence[float], goal: float | None = None) -> Figure:
        """The mean of values in the order of time."""
        ends = [len(values) * block // self.n_blocks for block in range(self.n_blocks + 1)]
        low, high = mean_interval([fmean(values[begin:end]) for begin, end in pairwise(ends)])
        return Figure(name, fmean(values), "", goal, low=low, high=high)

    def tokens_figure(self, where: str, each_n_calls: Sequence[int]) -> Figure:
        """The prompt tokens sent, as a multiple of those of the requests."""
        n_sent = sum(shot.n_input * n_calls for shot, n_calls in zip(self.shots, each_n_calls, strict=True))
        return Figure(f"{where}: prompt tokens sent, over those of the requests",
                      n_sent / sum(shot.n_input for shot in self.shots), "x")

    def record(self, result: Result) -> "Recorded":
        """The gateway's result on the same requests."""
        rows = {shot.number: row for row, shot in enumerate(self.shots)}
        recorded = Recorded(self, [inf] * self.n, [0] * self.n, [False] * self.n)
        samples = result.samples
        for number, wait_s, n_calls, error in zip(samples.ints["number"], since_start_s(result, "first_s"),
                                                  samples.ints["n_upstream_attempts"], samples.errors, strict=True):
            row = rows[number]
            recorded.waits_s[row] = inf if isnan(wait_s) else wait_s
            recorded.each_n_calls[row] = n_calls
            recorded.is_lost[row] = bool(error)
        return recorded


@dataclass(frozen=True, slots=True)
class Recorded:
    """The gateway's requests, in the order of the rivals' ones. waits_s: from the intended start to the first token;
    infinite without one.
    """

    rivals: Rivals
    waits_s: list[float]
    each_n_calls: list[int]
    is_lost: list[bool]

    def figures(self, where: str, *, has_same_draws: bool = True) -> list[Figure]:
        """Quantiles, calls, and the requests without an answer that have one (over sockets: as many as have one) without
        the gateway. has_same_draws: as the rivals, attempt by attempt.
        """
        ours, direct_s = ExactDistribution(self.waits_s), self.rivals.direct.waits_s
        if has_same_draws:
            lost = Figure.count(f"{where}: requests without an answer that a direct call would have served", sum(
                is_lost and wait_s < PATIENCE_S for is_lost, wait_s in zip(self.is_lost, direct_s, strict=True)))
        else:
            n_direct = sum(wait_s >= PATIENCE_S for wait_s in direct_s)
            lost = Figure.count(f"{where}: requests without an answer; of direct calls {n_direct}", sum(self.is_lost),
                                n_direct)
        return [Figure(f"{where}: TTFT p50 (n={self.rivals.n})", ours.quantile(0.5), "s"),
                Figure(f"{where}: TTFT p95", ours.quantile(0.95), "s"),
                self.rivals.p99_figure(f"{where}: TTFT p99", self.waits_s), lost,
                self.rivals.tokens_figure(where, self.each_n_calls)]

    def compare_by_default(self, where: str) -> list[Figure]:
        """With the best rival, with the frugal one, and by size of the prompt."""
        rivals = self.rivals
        return [self.calls_figure(where, MAX_CALLS), self.compare(where, rivals.best, P99_GOAL),
                self.compare(where, rivals.frugal, FRUGAL_GOAL), *self._compare_sizes(where, rivals.best, SHORT_GOAL)]

    def compare_with_as_many_calls(self, where: str) -> list[Figure]:
        """With the best rival, whose calls are the budget."""
        best = self.rivals.best
        more = [ours - theirs for ours, theirs in zip(self.each_n_calls, best.each_n_calls, strict=True)]
        return [self.calls_figure(where),
                self.rivals.mean_figure(f"{where}: calls a request, less those of {best.policy.name}", more, 0.0),
                self.compare(where, best, TUNED_GOAL), *self._compare_sizes(where, best)]

    def calls_figure(self, where: str, goal: float | None = None) -> Figure:
        return self.rivals.mean_figure(f"{where}: calls a request", self.each_n_calls, goal)

    def compare(self, where: str, rival: FixedPolicyRun, goal: float | None) -> Figure:
        """The p99 as a multiple of a rival's."""
        return self.rivals.ratio_figure(f"{where}: TTFT p99, over that of {rival.policy.name} ({rival.p99_s:.2f} s, "
                                        f"{rival.calls:.3f} calls)", self.waits_s, rival.waits_s, goal)

    def _compare_sizes(self, where: str, rival: FixedPolicyRun, goal: float | None = None) -> list[Figure]:
        """By size of the prompt. goal: of prompts below SHORT tokens."""
        figures = []
        for low, high in pairwise(BUCKETS):
            rows = [row for row, shot in enumerate(self.rivals.shots) if low <= shot.n_input < high]
            words = f"of at least {low} tokens" if high == BUCKETS[-1] else f"of {low} to {high} tokens"
            ours_s, theirs_s = ([waits_s[row] for row in rows] for waits_s in (self.waits_s, rival.waits_s))
            figures.append(self.rivals.ratio_figure(
                f"{where}: TTFT p99 of prompts {words} ({ExactDistribution(ours_s).quantile(0.99):.2f} s, n={len(rows)}), "
                f"over that of {rival.policy.name}", ours_s, theirs_s, goal if high <= SHORT else None))
        return figures


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
