"""Calls that open a stream and stay silent, on a route with a quick model and a reasoning model.

Two providers serve both models on one route, `"*"`. The quick model's times to the first token are lognormal with a median
of 0.3 s and a sigma of 0.5, the reasoning model's with 20 s and 0.3. Every call gets its head and its role, then comments
every 5 s until its first token. One call in twenty never gets one. So only the time tells a silent call from an honest wait:
seconds for one model, a minute for the other.

The gateway has its defaults. Its rivals have a constant, one for the whole route, for each of CONSTANTS_S:

    a timeout      an attempt without a first token by then is closed and repeated, six attempts at most, the last of them
                   without a timeout
    hedges         the attempt continues, and a second one starts; or a second and a third one, each that long after the
                   previous one

A constant meets all goals or is short of some. Each one must be short of at least one, and the note names which: below
20 s it repeats the reasoning model's honest calls, above 2 s it holds the quick model's clients.

Common random numbers: the n-th attempt of a request has the same random numbers for the gateway and all rivals at a
provider. An attempt of a rival that nothing else ends is repeated after BACKSTOP_S, the gateway's own timeout; this call is
not counted. Over sockets the streams are checked byte by byte: each has the role, the id and the text of one attempt. These
runs are too short for percentiles of the reasoning model.

When wrong: one request in 8,000 meets three silent calls, and waits for BACKSTOP_S. Silent calls are independent here; a
provider that is silent for a minute is a matter for breakers.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from random import Random
from urllib.parse import urlsplit

from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, ratio
from stayfast.lab.harness.fixed_policy import N_TIMEOUT_TRIES, FixedPolicy, FixedPolicyRun
from stayfast.lab.harness.intervals import mean_interval
from stayfast.lab.harness.load import LoadSpec, n_failed, waits_s
from stayfast.lab.harness.loopback import encode_chat_post
from stayfast.lab.harness.processes import Processes, gateway_settings
from stayfast.lab.harness.virtual import run_load_virtual, run_virtual_in_thread, simulated_upstream
from stayfast.lab.load.result import Result
from stayfast.lab.load.schedule import generate_shots
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated import FaultKind, FaultRule, GapConfig, Mixture, ModelTiming, ProviderConfig
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.simulated.timing_plan import Dice
from stayfast.settings import RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call

NAMES = ("a", "b")
QUICK, REASONING = "quick", "reasoning"
TTFT = {QUICK: Mixture(0.3, 0.5), REASONING: Mixture(20.0, 0.3)}
RATE_RPS = {QUICK: 10.0, REASONING: 5.0}
SILENT_SHARE, COMMENTS_EVERY_S = 0.05, 5.0
WARMUP_S, PATIENCE_S = 300.0, 900.0
BACKSTOP_S = 120.0  # the default of timeouts.first_token_s
P99_GOALS_S = {QUICK: 1.5, REASONING: 75.0}
MORE_CALLS = 0.10
CONSTANTS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
KINDS = ((N_TIMEOUT_TRIES, False), (2, True), (3, True))  # attempts at most, and whether they run in parallel
MAX_TRIES = 16
N_REMEMBERED = 20_000
N_BLOCKS = 20
N_TOKENS = 12
SOCKETS_RPS = {QUICK: 20.0, REASONING: 2.0}
CLIENT_LEAVES_AFTER_S = 45.0
MAX_QUIET_S = 20.0


def make_provider(seed: int) -> ProviderConfig:
    return ProviderConfig(
        seed=seed, ttft=TTFT[QUICK], by_model={REASONING: ModelTiming(ttft=TTFT[REASONING])}, gaps=GapConfig(0.0, 0.0),
        fills_max_tokens=True, head_share=0.0, comments_every_s=COMMENTS_EVERY_S,
        faults=(FaultRule(FaultKind.SILENT, SILENT_SHARE, sends_role=True, comments_every_s=COMMENTS_EVERY_S),))


def make_load(model: str, seconds: float) -> LoadSpec:
    return LoadSpec(seconds, RATE_RPS[model], n_output=2, warmup_s=WARMUP_S, timeout_s=PATIENCE_S, model=model)


class _CallNumbers:
    """Numbers a provider's calls by model, request and attempt. The number selects the random draws."""

    def __init__(self) -> None:
        self._n_attempts: dict[tuple[str, str], int] = {}

    def number_of(self, call: Call) -> int:
        """Request ids contain the number of the shot."""
        request, n_attempts = (call.model, call.request_id), self._n_attempts
        n = n_attempts.get(request, 0)
        n_attempts[request] = n + 1
        if len(n_attempts) > N_REMEMBERED:
            del n_attempts[next(iter(n_attempts))]
        return call_number(call.model, int(call.request_id.removeprefix("req_"), 16), n)


def call_number(model: str, request: int, attempt: int) -> int:
    return (request * len(TTFT) + (model == REASONING)) * MAX_TRIES + min(attempt, MAX_TRIES - 1)


async def run_in_virtual_time(loop: SimLoop, seconds: float, seed: int) -> dict[str, Result]:
    """Both loads at once, through the pipeline: the results by model."""
    upstreams = {name: SimulatedUpstream(provider=make_provider(number), probe=False) for number, name in enumerate(NAMES)}
    system = build_virtual_system(Settings(upstreams=upstreams, routes={"*": RouteSettings(NAMES)}), loop, seed)
    for name in NAMES:
        simulated_upstream(system, name).number_of = _CallNumbers().number_of
    async with asyncio.TaskGroup() as group:
        tasks = {model: group.create_task(run_load_virtual(system, make_load(model, seconds), loop, seed + number))
                 for number, model in enumerate(TTFT)}
    return {model: task.result() for model, task in tasks.items()}


def make_figures(model: str, result: Result) -> list[Figure]:
    """One model's figures in virtual time."""
    each_s, calls = waits_s(result), result.samples.ints["n_upstream_attempts"]
    n = len(each_s)
    low_calls, high_calls = mean_interval(split_means(calls))
    return [Figure.quantile_s(f"{model}: TTFT p50 (n={n})", each_s, 0.5),
            Figure.quantile_s(f"{model}: TTFT p99", each_s, 0.99, P99_GOALS_S[model]),
            Figure.exact(f"{model}: longest wait", max(each_s, default=nan), "s"),
            Figure(f"{model}: more calls", (ratio(sum(calls), n) - 1) * 100, "%", MORE_CALLS * 100,
                   low=(low_calls - 1) * 100, high=(high_calls - 1) * 100),
            Figure.count(f"{model}: requests without an answer", n_failed(result))]


def split_means(values: Sequence[int]) -> list[float]:
    """The means of N_BLOCKS blocks of equal length, in the order of time."""
    size = len(values) // N_BLOCKS
    return [ratio(sum(values[n * size:(n + 1) * size]), size) for n in range(N_BLOCKS)]


@dataclass(frozen=True, slots=True)
class ConstantRun:
    """One constant for both models."""

    policy: FixedPolicy
    by_model: Mapping[str, FixedPolicyRun]

    @property
    def missed(self) -> list[str]:
        """The goals that it is short of, with its figures."""
        found = []
        for model, run in self.by_model.items():
            if run.p99_s > P99_GOALS_S[model]:
                found.append(f"{model} p99 {run.p99_s:.3g} s")
            if run.calls - 1 > MORE_CALLS:
                found.append(f"{model} {run.calls - 1:.0%} more calls")
        return found

    @property
    def worst(self) -> float:
        """The largest of its figures relative to their goals."""
        return max(value for model, run in self.by_model.items()
                   for value in (run.p99_s / P99_GOALS_S[model], (run.calls - 1) / MORE_CALLS))

    @property
    def description(self) -> str:
        return f"{self.policy.name}: {' and '.join(self.missed) or 'meets all goals'}"


def simulate_constants(seconds: float, seed: int) -> list[ConstantRun]:
    """Each constant on the requests of both models."""
    policies = [FixedPolicy(after_s, n_tries, is_hedge=is_hedge) for n_tries, is_hedge in KINDS for after_s in CONSTANTS_S]
    runs = [ConstantRun(policy, {model: FixedPolicyRun(policy, [], 0) for model in TTFT}) for policy in policies]
    dice = [Dice(number, name) for number, name in enumerate(NAMES)]
    for number, model in enumerate(TTFT):
        plan = make_load(model, seconds).plan(seed + number)
        for shot in generate_shots(plan.workload, seed + number, plan.limit):
            if shot.at_s >= 0:
                attempt_s = _draw_attempts(dice, model, shot.number)
                for run in runs:
                    run.by_model[model].add(*run.policy.simulate(attempt_s))
    return runs


def _draw_attempts(dice: Sequence[Dice], model: str, request: int) -> Callable[[int, float], float]:
    """The durations of a request's attempts, at the two providers in turn."""
    drawn_s: list[float] = []

    def attempt_s(n: int, at_s: float) -> float:
        while n >= len(drawn_s):
            drawn_s.append(_draw_s(dice, model, request, len(drawn_s)))
        return drawn_s[n]

    return attempt_s


def _draw_s(dice: Sequence[Dice], model: str, request: int, n: int) -> float:
    """One attempt. A silent one is repeated after BACKSTOP_S."""
    at = dice[(request + n) % len(dice)]
    number = call_number(model, request, n // len(dice))
    if n < MAX_TRIES - 1 and at.for_faults(number).random() < SILENT_SHARE:
        return BACKSTOP_S + _draw_s(dice, model, request, n + 1)
    rng = at.for_request(number)
    return TTFT[model].draw(rng, rng.random())


def compare_constants(runs: Sequence[ConstantRun]) -> list[Figure]:
    best = min(runs, key=lambda run: (len(run.missed), run.worst))
    return [Figure.count("constants that meet all goals", sum(not run.missed for run in runs)),
            Figure.count(f"goals that the best constant, {best.policy.name}, is short of ({', '.join(best.missed)})",
                         len(best.missed), 1.0, Sense.AT_LEAST)]


class StreamCheck:
    """What one client received over a socket."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.is_over = False  # the answer ended before the client left
        self.body = b""
        self.quiet_s = 0.0  # the longest wait for a byte

    @property
    def is_of_one_attempt(self) -> bool:
        """Whether the stream has one role, one id, the whole text and the end."""
        events = [json.loads(line[6:]) for line in self.body.split(b"\n\n") if line.startswith(b"data: {")]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        n_words = sum(bool(delta.get("content")) for delta in deltas)
        return (len({event["id"] for event in events}) == 1 and sum("role" in delta for delta in deltas) == 1
                and n_words == N_TOKENS and self.body.count(b"data: [DONE]") == 1)

    async def read(self, url: str) -> None:
        """Send the request and read to the end, or leave after CLIENT_LEAVES_AFTER_S."""
        address, loop = urlsplit(url), asyncio.get_running_loop()
        body = json.dumps({"model": self.model, "stream": True, "max_tokens": N_TOKENS,
                           "messages": [{"role": "user", "content": "Hello!"}]}).encode()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        last_at = loop.time()
        try:
            writer.write(encode_chat_post(url, body))
            async with asyncio.timeout(CLIENT_LEAVES_AFTER_S):
                await reader.readuntil(b"\r\n\r\n")
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    self.quiet_s, last_at = max(self.quiet_s, loop.time() - last_at), loop.time()
                    self.body += (await reader.readexactly(size + 2))[:-2]
            self.is_over = True
        except (asyncio.IncompleteReadError, OSError):  # TimeoutError is an OSError
            pass
        finally:
            self.quiet_s = max(self.quiet_s, loop.time() - last_at)
            writer.transport.abort()


async def check_streams(seconds: float, seed: int) -> list[Figure]:
    """Requests of both models over sockets, each checked as a stream."""
    async with Processes() as processes:
        sim = await processes.start_simulator({name: make_provider(number) for number, name in enumerate(NAMES)}, seed)
        settings = gateway_settings({name: f"{sim.url}/{name}/v1" for name in NAMES})
        gateway = await processes.start_gateway({**settings, "routes": {"*": {"upstreams": list(NAMES)}}})
        checks: list[StreamCheck] = []
        rng = Random(seed)
        async with asyncio.TaskGroup() as group:
            for model in TTFT:
                group.create_task(_send_requests(model, seconds, f"{gateway.url}/v1", rng, checks))
        counts = (await sim.get("/_sim/counts"))["providers"].values()
    n_calls, n_silent = (sum(provider["n_asked"] for provider in counts),
                         sum(provider["outcomes"].get(FaultKind.SILENT.value, 0) for provider in counts))
    ended = [check for check in checks if check.is_over]
    return [Figure.count("sockets: streams that ended", len(ended), 1.0, Sense.AT_LEAST),
            Figure.count("sockets: of those, not of one attempt from role to end",
                         sum(not check.is_of_one_attempt for check in ended)),
            Figure.count("sockets: calls that stayed silent", n_silent, 1.0, Sense.AT_LEAST),
            Figure.count("sockets: second and further calls", n_calls - len(checks), 1.0, Sense.AT_LEAST),
            Figure.exact("sockets: longest wait of a client without a byte",
                         max([check.quiet_s for check in checks], default=nan), "s", MAX_QUIET_S)]


async def _send_requests(model: str, seconds: float, url: str, rng: Random, checks: list[StreamCheck]) -> None:
    """An open loop, Poisson."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    async with asyncio.TaskGroup() as group:
        while loop.time() < ends_at:
            check = StreamCheck(model)
            checks.append(check)
            group.create_task(check.read(url))
            await asyncio.sleep(rng.expovariate(SOCKETS_RPS[model]))


@dataclass(frozen=True, slots=True)
class SilentClaim:
    """virtual_s of an extent: seconds of load in virtual time."""

    full: Extent = Extent(virtual_s=10_000.0, real_s=60.0)
    quick: Extent = Extent(virtual_s=600.0, real_s=10.0)

    name = "silent"
    statement = (
        f"A quick model ({TTFT[QUICK].median_s:g} s to the first token) and a reasoning model "
        f"({TTFT[REASONING].median_s:g} s) on one route; {SILENT_SHARE:.0%} of the calls send a role and comments but no "
        f"content. With default settings p99 is at most {P99_GOALS_S[QUICK]:g} s for the quick model "
        f"({TTFT[QUICK].quantile(0.99):.2f} s without silent calls) and {P99_GOALS_S[REASONING]:g} s for the reasoning "
        f"model ({TTFT[REASONING].quantile(0.99):.0f} s), for at most {MORE_CALLS:.0%} more calls of each, and no request "
        f"is lost. No constant timeout or hedge from {CONSTANTS_S[0]:g} to {CONSTANTS_S[-1]:g} s meets these goals. Over "
        f"sockets each stream is of one attempt, and no client waits {MAX_QUIET_S:g} s without a byte.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        extent, seed = conditions.choose(self.full, self.quick), conditions.seed
        conditions.report_progress(f"{extent.virtual_s:g} s in virtual time, and with each constant")
        rivals = await asyncio.to_thread(simulate_constants, extent.virtual_s, seed)
        results = await run_virtual_in_thread(run_in_virtual_time, extent.virtual_s, seed)
        figures = [figure for model, result in results.items() for figure in make_figures(model, result)]
        conditions.report_progress(f"{extent.real_s:g} s over sockets, {CLIENT_LEAVES_AFTER_S:g} s for the last ones")
        wire = await check_streams(extent.real_s, seed)
        return ClaimResult((*figures, *compare_constants(rivals), *wire), tuple(rival.description for rival in rivals))
