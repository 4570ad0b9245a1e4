"""The same faults for several gateways: their effect on clients, and the calls that each gateway makes upstream.

The gateways under test use `stayfast sim` as their upstream; its control endpoints set the faults before each run. Each
scenario runs against one target at a time, after a reset with the same seed, so all get the same faults. Latencies are of
all requests, from the intended start. Failed requests count as infinitely slow, so a gateway gains nothing by giving up.
Calls are those counted by the simulator, for each request sent.

When wrong: the faults are already active in the warm-up, in which a gateway may learn; its state (an open breaker) may also
carry over from an earlier scenario. Faults apply to calls, not requests, so a gateway that calls more often gets more.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Fanout
from stayfast.core.setting import check_bounds
from stayfast.http.client.client import HttpClient
from stayfast.http.client.client import HttpConfig as HttpClientConfig
from stayfast.lab.load.arrivals import Gamma
from stayfast.lab.load.client import HttpTarget, LoadTargetConfig
from stayfast.lab.load.lengths import ConstantLength
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, run_plan
from stayfast.lab.load.options import Option
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.schedule import Prompts, ScheduleLimit, Workload, generate_shots
from stayfast.lab.load.stats import ExactDistribution

ANSWER_WITHIN_S = 10.0
MAX_BODY_BYTES = 16 * 1024 * 1024
N_INPUT, N_OUTPUT = 100, 32
TAIL_SHARE: Final = 0.068
TAIL_S: Final = (1.23, 2.03, 2.80, 3.66, 4.80, 6.60, 10.9)  # medians of the sevenths of lognormal(3.66 s, 0.745)
FIRST: Final = "(the first)"  # placeholder in a rule: the first provider of the simulator
Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of fault. `rules`: the simulator's fault rules; `regime`: of its first provider. `active_share`: the shares
    of the measured part between which the fault is active (None: always). `is_to_last_token`: latencies are to the last
    token, because the fault comes after the first."""

    name: str
    description: str
    rules: tuple[Rule, ...] = ()
    regime: str | None = None
    active_share: tuple[float, float] | None = None
    is_to_last_token: bool = False


def _make_tail_rules() -> tuple[Rule, ...]:
    """One rule for each seventh. A rule only applies to calls that no earlier rule matched."""
    part = TAIL_SHARE / len(TAIL_S)
    return tuple({"kind": "slow_headers", "rate": part / (1 - n * part), "seconds": seconds}
                 for n, seconds in enumerate(TAIL_S))


SCENARIOS: Final = (
    Scenario("healthy", "no faults, the baseline"),
    Scenario("tail", "6.8 % of the calls take longer, by a median of 3.66 s", _make_tail_rules()),
    Scenario("hangs", "1 call in 20 is never answered", ({"kind": "hang", "rate": 0.05},)),
    Scenario("silent", "1 call in 20 sends a head, a role and a comment every 2 s, and no content",
             ({"kind": "silent", "rate": 0.05, "sends_role": True, "comments_every_s": 2.0},)),
    Scenario("errors", "1 call in 10 is answered 500", ({"kind": "status", "status": 500, "rate": 0.1},)),
    Scenario("429", "the first provider answers 429 with retry-after 1 s, from the first quarter to the third",
             ({"provider": FIRST, "kind": "status", "status": 429, "retry_after_s": 1.0},), active_share=(0.25, 0.75)),
    Scenario("stalls", "1 answer in 20 pauses for 3 s half-way", ({"kind": "stall", "rate": 0.05, "seconds": 3.0},),
             is_to_last_token=True),
    Scenario("brownout", "the first provider has a brown-out from the first quarter to the third", regime="brownout",
             active_share=(0.25, 0.75)),
    Scenario("disconnects", "1 call in 20 is reset before its answer, 1 in 50 during it",
             ({"kind": "reset", "rate": 0.05}, {"kind": "reset_mid", "rate": 0.02}), is_to_last_token=True),
)


@dataclass(frozen=True, slots=True)
class FaultsConfig:
    """How each scenario is run. `simulator`: its URL, without a path."""

    simulator: str
    rate_rps: Annotated[float, Option("requests a second", more_than=0, maximum=1e5, flag="--rate", metavar="R")] = 20.0
    seconds: Annotated[float, Option("measured part of each run", more_than=0, maximum=86_400, flag="--duration",
                                     metavar="TIME")] = 30.0
    warmup_s: Annotated[float, Option("before the measured part, with the faults", 0, 86_400, flag="--warmup",
                                      metavar="TIME")] = 10.0
    timeout_s: Annotated[float, Option("time-out from the intended start", more_than=0, maximum=3600, flag="--timeout",
                                       metavar="TIME")] = 30.0
    seed: Annotated[int, Option("same seed, same requests (default: 0)", flag="--seed")] = 0

    def __post_init__(self) -> None:
        if urlsplit(self.simulator).scheme != "http" or not urlsplit(self.simulator).hostname:
            raise ValueError(f"the simulator must be an http:// URL, not {self.simulator}")
        check_bounds(self)

    def estimate_s(self, scenarios: Sequence[Scenario], n_targets: int) -> float:
        """The expected time of all runs in seconds. Hanging calls take until their time-out."""
        n_hanging = sum(any(rule["kind"] in ("hang", "silent") for rule in scenario.rules) for scenario in scenarios)
        return n_targets * (len(scenarios) * (self.warmup_s + self.seconds) + n_hanging * self.timeout_s)

    @property
    def plan(self) -> MeasurePlan:
        workload = Workload(ConstantLength(N_INPUT), ConstantLength(N_OUTPUT), Gamma(self.rate_rps))
        return MeasurePlan(workload, ScheduleLimit(self.seconds, None, self.warmup_s), self.seed, 0, self.timeout_s)


class FaultRow(msgspec.Struct, frozen=True):
    """One target in one scenario. Seconds; None: the quantile falls among failed requests."""

    scenario: str
    target: str
    of: str  # "first token" or "last token"
    n: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    n_failed: int
    calls: float  # upstream calls per request
    invalid: tuple[str, ...] = ()  # why the run is invalid


class NoSimulator(Exception):
    """The simulator cannot be reached, or rejected a request. The message says which."""


class SimulatorControl:
    """Client of a simulator's control endpoints. All methods raise NoSimulator."""

    def __init__(self, url: str, clock: Clock, key: str | None = None) -> None:
        config = HttpClientConfig(url, max_idle=0, http="1.1")  # minutes between calls: no connection is reused
        self._client = HttpClient("simulator", config, sink=Fanout(), clock=clock)
        self._headers = [("authorization", f"Bearer {key}")] if key else []
        self._first = ""

    async def reset(self) -> None:
        """Reset the simulator to its state after the start."""
        self._first = (await self._request("POST", "/_sim/reset"))["providers"][0]

    async def activate_faults(self, scenario: Scenario) -> None:
        """Activate the faults of a scenario."""
        for rule in scenario.rules:
            fault = {**rule, **({"provider": self._first} if rule.get("provider") == FIRST else {})}
            await self._request("POST", "/_sim/faults", fault)
        if scenario.regime is not None:
            await self._request("POST", "/_sim/regime", {"provider": self._first, "regime": scenario.regime})

    async def remove_faults(self) -> None:
        """Remove all faults."""
        await self._request("DELETE", "/_sim/faults")
        await self._request("POST", "/_sim/regime", {"provider": self._first, "regime": None})

    async def count_requests(self) -> int:
        """Calls since the reset."""
        return sum(provider["n_asked"] for provider in (await self._request("GET", "/_sim/counts"))["providers"].values())

    async def _request(self, method: str, path: str, body: Rule | None = None) -> Any:
        sent = json.dumps(body).encode() if body is not None else b""
        try:
            answer = await self._client.fetch(method, path, self._headers, sent, timeout_s=ANSWER_WITHIN_S,
                                              max_body_bytes=MAX_BODY_BYTES)
            if answer.status != 200:
                raise NoSimulator(f"{method} {path} at the simulator answered {answer.status}: is it `stayfast sim`?")
            return json.loads(answer.body)
        except (UpstreamFailed, ValueError) as error:
            raise NoSimulator(f"{method} {path} at the simulator: {type(error).__name__}: {error}") from None


async def run_scenarios(config: FaultsConfig, scenarios: Sequence[Scenario],
                        subjects: Sequence[tuple[Subject, LoadTargetConfig]],
                  control: SimulatorControl, clock: Clock, *, report_progress: Callable[[str], None],
                  on_row: Callable[[FaultRow], None]) -> None:
    """Run each scenario against each target, one at a time; `on_row` gets each row. Raises NoSimulator."""
    for scenario in scenarios:
        for subject, http_config in subjects:
            report_progress(f"{scenario.name}, {subject.name}: {config.warmup_s + config.seconds:g} s")
            await control.reset()
            if scenario.active_share is None:
                await control.activate_faults(scenario)
            target = HttpTarget(subject.name, http_config, Prompts(config.seed), clock)
            async with asyncio.TaskGroup() as group:
                spell = group.create_task(_activate_for_spell(scenario, config, control))
                [result] = await run_plan(config.plan, [(subject, target)], clock, LoadOrigin())
                spell.cancel()
            n_sent = sum(1 for _ in generate_shots(config.plan.workload, config.seed, config.plan.limit))
            on_row(make_row(scenario, result, await control.count_requests() / n_sent))


async def _activate_for_spell(scenario: Scenario, config: FaultsConfig, control: SimulatorControl) -> None:
    if scenario.active_share is None:
        return
    since, until = scenario.active_share
    await asyncio.sleep(config.warmup_s + since * config.seconds)
    await control.activate_faults(scenario)
    await asyncio.sleep((until - since) * config.seconds)
    await control.remove_faults()


def make_row(scenario: Scenario, result: Result, calls: float) -> FaultRow:
    samples = result.samples
    ends = samples.floats["last_s" if scenario.is_to_last_token else "first_s"]
    took = ExactDistribution(inf if error or isnan(end) else end - at for error, end, at in zip(
        samples.errors, ends, samples.floats["at_s"], strict=True))
    p50_s, p95_s, p99_s = (seconds if isfinite(seconds := took.quantile(share)) else None for share in (0.5, 0.95, 0.99))
    token = "last token" if scenario.is_to_last_token else "first token"
    return FaultRow(scenario.name, result.label, token, len(samples), p50_s, p95_s, p99_s,
                    sum(1 for error in samples.errors if error), calls, result.health.verdict)


class FaultTable:
    """The report as text: a line for each scenario and target, and the descriptions of the scenarios."""

    def __init__(self, scenarios: Sequence[Scenario], targets: Sequence[str]) -> None:
        self._scenarios = scenarios
        named = [("scenario", "target", "first"), *((scenario.name, "", "") for scenario in scenarios),
                 *(("", target, "") for target in targets)]
        self._widths = [max(map(len, column)) for column in zip(*named, strict=True)]

    def format_head(self) -> str:
        return self._format_line(("scenario", "target", "token"), ("p50", "p95", "p99", "failed"), "calls")

    def format_row(self, row: FaultRow) -> str:
        cells = [*(_format_s(seconds) for seconds in (row.p50_s, row.p95_s, row.p99_s)),
                 f"{row.n_failed / row.n if row.n else 0.0:.2%}"]
        names = (row.scenario, row.target, row.of.removesuffix(" token"))
        return self._format_line(names, cells, f"{row.calls:.3f}" + "  INVALID" * bool(row.invalid))

    def format_foot(self, rows: Sequence[FaultRow]) -> str:
        why = [f"INVALID: {row.scenario}, {row.target}: {'; '.join(row.invalid)}" for row in rows if row.invalid]
        return "\n".join(["", *why, *(f"{scenario.name}: {scenario.description}" for scenario in self._scenarios), ""])

    def _format_line(self, names: Sequence[str], cells: Sequence[str], last: str) -> str:
        padded = (f"{name:{width}}" for name, width in zip(names, self._widths, strict=True))
        return "  ".join([*padded, *(f"{cell:>7}" for cell in cells), last]) + "\n"


def _format_s(seconds: float | None) -> str:
    if seconds is None:
        return "failed"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
