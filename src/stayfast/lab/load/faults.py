"""The same faults for any gateway: what its clients see of an upstream's bad times, and what it makes of them upstream.

The gateway under test stands in front of `stayfast sim`, whose control endpoints this sets before each run. Each scenario is
asked of each target in turn, alone, after a reset: so all meet the same faults, by the same dice. Latencies are of all that
was asked, from the intended start; what failed waits for ever, so that a gateway does not look quick by giving up. Calls
are those that the simulator counted, for each request that was sent.

When wrong: a gateway that learns has the warm-up to do so, in which the faults are there already; one that has learned of an
earlier scenario may still go by it (a breaker that is open). And a fault strikes calls, not requests: who calls more often
meets more of them.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Fanout
from stayfast.http.client.client import HttpClient
from stayfast.http.client.client import HttpConfig as HttpClientConfig
from stayfast.lab.load.arrivals import Gamma
from stayfast.lab.load.client import HttpTarget, LoadTargetConfig
from stayfast.lab.load.lengths import ConstantLength
from stayfast.lab.load.measure import LoadOrigin, MeasurePlan, perform
from stayfast.lab.load.result import Result, Subject
from stayfast.lab.load.schedule import Prompts, ScheduleLimit, Workload, shots
from stayfast.lab.load.stats import Exact

ANSWER_WITHIN_S = 10.0
MAX_BODY_BYTES = 16 * 1024 * 1024
N_INPUT, N_OUTPUT = 100, 32
TAIL_SHARE: Final = 0.068
TAIL_S: Final = (1.23, 2.03, 2.80, 3.66, 4.80, 6.60, 10.9)  # the medians of the sevenths of lognormal(3.66 s, 0.745)
FIRST: Final = "(the first)"  # in a rule: the first provider of the simulator
Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What goes wrong. `rules` are the simulator's fault rules; `regime`: that of its first provider. `spell`: only between
    these shares of the measured part. `is_of_whole`: latencies are to the last token, as the fault comes after the first."""

    name: str
    description: str
    rules: tuple[Rule, ...] = ()
    regime: str | None = None
    spell: tuple[float, float] | None = None
    is_of_whole: bool = False


def _tail() -> tuple[Rule, ...]:
    """One rule a seventh. A rule is asked only about those that the rules before it have left."""
    part = TAIL_SHARE / len(TAIL_S)
    return tuple({"kind": "slow_headers", "rate": part / (1 - n * part), "seconds": seconds}
                 for n, seconds in enumerate(TAIL_S))


SCENARIOS: Final = (
    Scenario("healthy", "nothing: what the others are to be held against"),
    Scenario("tail", "6.8 % of the calls take a median of 3.66 s longer", _tail()),
    Scenario("hangs", "1 call in 20 is never answered", ({"kind": "hang", "rate": 0.05},)),
    Scenario("errors", "1 call in 10 is answered 500", ({"kind": "status", "status": 500, "rate": 0.1},)),
    Scenario("429", "the first provider answers 429, come back in 1 s, from the first quarter to the third",
             ({"provider": FIRST, "kind": "status", "status": 429, "retry_after_s": 1.0},), spell=(0.25, 0.75)),
    Scenario("stalls", "1 answer in 20 pauses for 3 s in its middle", ({"kind": "stall", "rate": 0.05, "seconds": 3.0},),
             is_of_whole=True),
    Scenario("brownout", "the first provider is in a brown-out from the first quarter to the third", regime="brownout",
             spell=(0.25, 0.75)),
    Scenario("disconnects", "1 call in 20 is reset before its answer, 1 in 50 inside of it",
             ({"kind": "reset", "rate": 0.05}, {"kind": "reset_mid", "rate": 0.02}), is_of_whole=True),
)


@dataclass(frozen=True, slots=True)
class FaultsConfig:
    """How each scenario is run. `simulator`: its URL, without a path."""

    simulator: str
    rate_rps: float = 20.0
    seconds: float = 30.0
    warmup_s: float = 10.0
    timeout_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if urlsplit(self.simulator).scheme != "http" or not urlsplit(self.simulator).hostname:
            raise ValueError(f"the simulator must be an http:// URL, not {self.simulator}")
        for name, most in (("rate_rps", 1e5), ("seconds", 86_400), ("timeout_s", 3600)):
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} must be more than 0 and at most {most:g}, not {getattr(self, name):g}")
        if not 0 <= self.warmup_s <= 86_400:
            raise ValueError(f"warmup_s must be from 0 to 86400, not {self.warmup_s:g}")

    def about_s(self, scenarios: Sequence[Scenario], n_targets: int) -> float:
        """How long all of them take, in seconds: a call that hangs is waited for until its time is over."""
        n_hanging = sum(any(rule["kind"] == "hang" for rule in scenario.rules) for scenario in scenarios)
        return n_targets * (len(scenarios) * (self.warmup_s + self.seconds) + n_hanging * self.timeout_s)

    @property
    def plan(self) -> MeasurePlan:
        workload = Workload(ConstantLength(N_INPUT), ConstantLength(N_OUTPUT), Gamma(self.rate_rps))
        return MeasurePlan(workload, ScheduleLimit(self.seconds, None, self.warmup_s), self.seed, 0, self.timeout_s)


class FaultRow(msgspec.Struct, frozen=True):
    """What one target made of one scenario. Seconds; None: more than that share failed."""

    scenario: str
    target: str
    of: str  # "first token" or "last token"
    n: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    n_failed: int
    calls: float  # to upstreams, a request
    invalid: tuple[str, ...] = ()  # why the figures are the client's own


class NoSimulator(Exception):
    """The simulator cannot be reached, or does not take what it is told; the message says which."""


class SimulatorControl:
    """The control endpoints of a simulator."""

    def __init__(self, url: str, clock: Clock, key: str | None = None) -> None:
        config = HttpClientConfig(url, max_idle=0, http="1.1")  # minutes between calls: none finds a closed connection
        self._client = HttpClient("simulator", config, sink=Fanout(), clock=clock)
        self._headers = [("authorization", f"Bearer {key}")] if key else []
        self._first = ""

    async def reset(self) -> None:
        """As after a start. Raises NoSimulator."""
        self._first = (await self._call("POST", "/_sim/reset"))["providers"][0]

    async def begin(self, scenario: Scenario) -> None:
        """From now on it goes wrong. Raises NoSimulator."""
        for rule in scenario.rules:
            fault = {**rule, **({"provider": self._first} if rule.get("provider") == FIRST else {})}
            await self._call("POST", "/_sim/faults", fault)
        if scenario.regime is not None:
            await self._call("POST", "/_sim/regime", {"provider": self._first, "regime": scenario.regime})

    async def end(self) -> None:
        """All is well again. Raises NoSimulator."""
        await self._call("DELETE", "/_sim/faults")
        await self._call("POST", "/_sim/regime", {"provider": self._first, "regime": None})

    async def count_requests(self) -> int:
        """Calls since the reset. Raises NoSimulator."""
        return sum(of["n_asked"] for of in (await self._call("GET", "/_sim/counts"))["providers"].values())

    async def _call(self, method: str, path: str, body: Rule | None = None) -> Any:
        sent = json.dumps(body).encode() if body is not None else b""
        try:
            answer = await self._client.fetch(method, path, self._headers, sent, timeout_s=ANSWER_WITHIN_S,
                                              max_body_bytes=MAX_BODY_BYTES)
            if answer.status != 200:
                raise NoSimulator(f"{method} {path} at the simulator answered {answer.status}: is it `stayfast sim`?")
            return json.loads(answer.body)
        except (UpstreamFailed, ValueError) as error:
            raise NoSimulator(f"{method} {path} at the simulator: {type(error).__name__}: {error}") from None


async def compare(config: FaultsConfig, scenarios: Sequence[Scenario], subjects: Sequence[tuple[Subject, LoadTargetConfig]],
                  control: SimulatorControl, clock: Clock, *, report_progress: Callable[[str], None],
                  on_row: Callable[[FaultRow], None]) -> None:
    """Every scenario for every target, one after the other; `on_row` gets each row as it is known. Raises NoSimulator."""
    for scenario in scenarios:
        for subject, http_config in subjects:
            report_progress(f"{scenario.name}, {subject.name}: {config.warmup_s + config.seconds:g} s")
            await control.reset()
            if scenario.spell is None:
                await control.begin(scenario)
            target = HttpTarget(subject.name, http_config, Prompts(config.seed), clock)
            async with asyncio.TaskGroup() as group:
                spell = group.create_task(_spell(scenario, config, control))
                [result] = await perform(config.plan, [(subject, target)], clock, LoadOrigin())
                spell.cancel()
            n_sent = sum(1 for _ in shots(config.plan.workload, config.seed, config.plan.limit))
            on_row(row(scenario, result, await control.count_requests() / n_sent))


async def _spell(scenario: Scenario, config: FaultsConfig, control: SimulatorControl) -> None:
    if scenario.spell is None:
        return
    since, until = scenario.spell
    await asyncio.sleep(config.warmup_s + since * config.seconds)
    await control.begin(scenario)
    await asyncio.sleep((until - since) * config.seconds)
    await control.end()


def row(scenario: Scenario, result: Result, calls: float) -> FaultRow:
    samples = result.samples
    ends = samples.floats["last_s" if scenario.is_of_whole else "first_s"]
    took = Exact(inf if error or isnan(end) else end - at for error, end, at in zip(
        samples.errors, ends, samples.floats["at_s"], strict=True))
    p50_s, p95_s, p99_s = (seconds if isfinite(seconds := took.at(share)) else None for share in (0.5, 0.95, 0.99))
    of = "last token" if scenario.is_of_whole else "first token"
    return FaultRow(scenario.name, result.label, of, len(samples), p50_s, p95_s, p99_s,
               sum(1 for error in samples.errors if error), calls, result.health.verdict)


class FaultTable:
    """A line a scenario and target, each as it is known, and what the scenarios are."""

    def __init__(self, scenarios: Sequence[Scenario], targets: Sequence[str]) -> None:
        self._scenarios = scenarios
        named = [("scenario", "target", "first"), *((scenario.name, "", "") for scenario in scenarios),
                 *(("", target, "") for target in targets)]
        self._widths = [max(map(len, column)) for column in zip(*named, strict=True)]

    def head(self) -> str:
        return self._line(("scenario", "target", "token"), ("p50", "p95", "p99", "failed"), "calls")

    def row(self, one: FaultRow) -> str:
        cells = [*(_format_s(seconds) for seconds in (one.p50_s, one.p95_s, one.p99_s)),
                 f"{one.n_failed / one.n if one.n else 0.0:.2%}"]
        names = (one.scenario, one.target, one.of.removesuffix(" token"))
        return self._line(names, cells, f"{one.calls:.3f}" + "  INVALID" * bool(one.invalid))

    def foot(self, rows: Sequence[FaultRow]) -> str:
        why = [f"INVALID: {one.scenario}, {one.target}: {'; '.join(one.invalid)}" for one in rows if one.invalid]
        return "\n".join(["", *why, *(f"{scenario.name}: {scenario.description}" for scenario in self._scenarios), ""])

    def _line(self, names: Sequence[str], cells: Sequence[str], last: str) -> str:
        padded = (f"{name:{width}}" for name, width in zip(names, self._widths, strict=True))
        return "  ".join([*padded, *(f"{cell:>7}" for cell in cells), last]) + "\n"


def _format_s(seconds: float | None) -> str:
    if seconds is None:
        return "failed"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
