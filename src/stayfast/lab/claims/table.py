"""All features at once: shorter waits and less spend than asking the providers directly.

Two providers have the tail of the claim `tail`, and Anthropic's prices and prompt-cache rules. Of the requests of a shop's
help desk (`workloads.support_desk`) 40 % repeat common questions in other words, 30 % are short questions that occur once,
and 30 % include a text to read. All share the same instructions, which are 60 % of the input. The gateway starts empty. It
learns from misses and audits during the first requests, which are not counted.

The bound of p50 follows from the 40 %: if all of them were answered in no time, it would be 0.120 s, the p17 of the direct
answers. Each answer is checked against its question's article. Cancelled calls are charged for their prompt and for their
output so far; audits are charged, too.

With `--data` a separate run takes the repeated questions from a bank (BANKING77), whose questions are harder to tell apart.
It uses `max_error: 5%`, and has no other goal.

When wrong: wordings are generated, and the tasks of a help desk differ clearly. The draws of a provider are independent.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from random import Random
from typing import Any, Final

from stayfast.lab.claims.semantic import CLASSES, HELP_DESK, read_questions
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense, ratio
from stayfast.lab.harness.load import spoil_reason, summarize_waits
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.workloads.in_memory import MemoryEmbedder
from stayfast.lab.workloads.support_desk import (
    Outcomes,
    QuestionSource,
    Visit,
    draw_visits,
    prepare_embedder,
    visit_in_virtual_time,
    visit_over_sockets,
)
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.hedge import HedgeConfig

RATE_RPS, VIRTUAL_RPS = 50.0, 100.0
MAX_ERROR: Final = 0.02
LESS_SPEND: Final = 0.45
P50_S, P95_S, P99_S, PAST_5_S = 0.125, 0.57, 0.82, 0.0001
SHARES: Final = (0.5, 0.95, 0.99)
DIRECT: Final[Mapping[str, Any]] = {"hedge": HedgeConfig("off")}
TIDY: Final[Mapping[str, Any]] = {**DIRECT, "prefix": PrefixConfig("auto")}
ALL_ON: Final[Mapping[str, Any]] = {
    "hedge": HedgeConfig(budget=0.15), "prefix": PrefixConfig("auto"),
    "cache": CacheConfig("semantic", semantic=SemanticConfig(f"{MAX_ERROR:.0%}", judge="local", eligible=HELP_DESK))}
BANK_MAX_ERROR: Final = 0.05
BANK: Final[Mapping[str, Any]] = {
    **ALL_ON, "cache": CacheConfig("semantic", semantic=SemanticConfig(
        f"{BANK_MAX_ERROR:.0%}", judge="local", eligible=HELP_DESK))}


@dataclass(frozen=True, slots=True)
class Slack:
    """The goals of runs with few requests. quantiles, wrong: factors. less_spend: the goal itself."""

    quantiles: float = 1.0
    wrong: float = 1.0
    less_spend: float = LESS_SPEND


@dataclass(frozen=True, slots=True)
class Size:
    """n_warm requests (over sockets: `extent.warmup_s`) precede the counted ones."""

    n_warm: int
    extent: Extent
    slack: Slack = Slack()
    slack_sockets: Slack = Slack()


@dataclass(frozen=True, slots=True)
class TableClaim:
    """route: the gateway's settings of its route."""

    full: Size = Size(20_000, Extent(200_000, 200.0, warmup_s=120.0), Slack(), Slack(1.1))
    quick: Size = Size(3000, Extent(3000, 8.0, warmup_s=15.0), Slack(1.25, 2.0, 0.35), Slack(2.5, less_spend=0.2))
    route: Mapping[str, Any] = field(default_factory=lambda: ALL_ON)

    name = "table"
    statement = (f"With all features on, and 40 % of the requests repeated in other words: p50 at most {P50_S * 1000:.0f} "
                 f"ms, "
            f"p95 {P95_S:g} s, p99 {P99_S:g} s, {PAST_5_S:.2%} past 5 s, for {LESS_SPEND:.0%} less than direct requests. "
            f"At most {MAX_ERROR:.0%} of the semantic cache's answers are wrong.")

    async def run(self, conditions: Conditions) -> Finding:
        size, seed = conditions.choose(self.full, self.quick), conditions.seed
        extent, slack = size.extent, size.slack_sockets
        bank = _read_bank(conditions.data) if conditions.data is not None else []
        runs = await self._run_in_virtual_time(size, conditions)
        figures = [*_direct_figures(runs.direct), *_gateway_figures("virtual time", runs, size.slack)]
        conditions.report_progress(f"{extent.real_s:g} s over sockets, after {extent.warmup_s:g} s")
        n_drawn = round((extent.warmup_s + extent.real_s) * RATE_RPS * 1.5)
        drawn = draw_visits(QuestionSource(Random(seed)), Random(seed), n_drawn)
        real = await visit_over_sockets(drawn, _encode_route(self.route), RATE_RPS, warmup_s=extent.warmup_s,
                                        seconds=extent.real_s, seed=seed)
        goals = {"p50_s": P50_S * slack.quantiles, "p95_s": P95_S * slack.quantiles, "p99_s": P99_S * slack.quantiles,
                 "past_5_s": _past_goal(real.n), "n_failed": 0.0}
        figures += summarize_waits(real.result).figures("sockets", goals)
        figures.append(_saving_figure("sockets", ratio(real.usd, real.n), runs.direct, slack))
        if bank:
            figures += await self._run_bank(bank, size, conditions)
        return Finding(tuple(figures), (f"{size.n_warm:,} requests before those that count.",),
                       spoil_reason({"gateway": real.result}))

    async def _run_in_virtual_time(self, size: Size, conditions: Conditions) -> "_Runs":
        n, seed = size.extent.n, conditions.seed
        drawn = draw_visits(QuestionSource(Random(seed)), Random(seed), size.n_warm + n)
        embedder = await asyncio.to_thread(prepare_embedder, drawn, conditions.report_progress)
        conditions.report_progress(f"{n:,} requests in virtual time, directly and through the gateway")
        few = drawn[:max(n // 4, min(n, 2000))]
        direct, tidy = [await _run_visits(few, len(few) // 10, route, seed) for route in (DIRECT, TIDY)]
        return _Runs(direct, tidy, await _run_visits(drawn, size.n_warm, self.route, seed, embedder))

    async def _run_bank(self, bank: Sequence[Sequence[str]], size: Size, conditions: Conditions) -> list[Figure]:
        """The same with the questions of a bank's customers as the repeated ones."""
        n, seed = size.extent.n // 4, conditions.seed
        drawn = draw_visits(QuestionSource(Random(seed), bank), Random(seed), size.n_warm + n)
        embedder = await asyncio.to_thread(prepare_embedder, drawn, conditions.report_progress)
        conditions.report_progress(f"{n:,} requests in virtual time, with the questions of a bank")
        outcomes = await _run_visits(drawn, size.n_warm, BANK, seed, embedder)
        where = "a bank's questions"
        return [*_ttft_figures(where, outcomes), *_hit_figures(where, outcomes, BANK_MAX_ERROR * size.slack.wrong)]


async def _run_visits(drawn: Sequence[Visit], n_warm: int, route: Mapping[str, Any], seed: int,
                      embedder: MemoryEmbedder | None = None) -> Outcomes:
    return await run_virtual_in_thread(visit_in_virtual_time, drawn, n_warm, route, rate_rps=VIRTUAL_RPS, seed=seed,
                                       embedder=embedder)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The same questions in three ways. tidy: sent directly, with the instructions marked for the provider's cache."""

    direct: Outcomes
    tidy: Outcomes
    all_on: Outcomes


def _ttft_figures(where: str, outcomes: Outcomes, goals_s: Sequence[float | None] = (None,) * 3,
                  n: str = "") -> list[Figure]:
    return [Figure(f"{where}: TTFT {name}", value, "s", goal) for name, value, goal in zip(
        (f"p50{n}", "p95", "p99"), outcomes.at(SHARES), goals_s, strict=True)]


def _direct_figures(direct: Outcomes) -> list[Figure]:
    return [*_ttft_figures("direct", direct, n=f" (n={direct.n})"), Figure.percent("direct: past 5 s", direct.past),
            Figure("direct: spend for 1,000 requests", ratio(direct.usd, direct.n) * 1000, "USD")]


def _gateway_figures(where: str, runs: _Runs, slack: Slack) -> list[Figure]:
    outcomes, factor = runs.all_on, slack.quantiles
    return [*_ttft_figures(where, outcomes, (P50_S * factor, P95_S * factor, P99_S * factor), f" (n={outcomes.n})"),
            Figure.percent(f"{where}: past 5 s", outcomes.past, _past_goal(outcomes.n)),
            _saving_figure(where, ratio(outcomes.usd, outcomes.n), runs.direct, slack),
            Figure.percent(f"{where}: spend, less than direct with instructions marked by",
                           1 - ratio(outcomes.usd, outcomes.n) / ratio(runs.tidy.usd, runs.tidy.n)),
            Figure.percent(f"{where}: input read from the providers' caches", ratio(outcomes.n_cached, outcomes.n_prompted)),
            Figure(f"{where}: calls a request", ratio(outcomes.n_calls, outcomes.n), ""),
            Figure.count(f"{where}: requests without an answer", outcomes.n_failed),
            *_hit_figures(where, outcomes, MAX_ERROR * slack.wrong)]


def _hit_figures(where: str, outcomes: Outcomes, max_error: float) -> list[Figure]:
    """The share of answers from the caches, and of wrong ones."""
    n, n_repeated, kinds = outcomes.n, sum(outcomes.repeated.values()), outcomes.by_kind
    n_wrong = outcomes.wrong["semantic"]
    return [Figure.percent(f"{where}: of what comes again, answered from a cache",
                           ratio(n_repeated - outcomes.repeated["miss"], n_repeated)),
            Figure.percent(f"{where}: of all requests, answered by the exact cache or a call in flight",
                           ratio(kinds["hit"] + kinds["coalesced"], n)),
            Figure.percent(f"{where}: of all requests, answered by the semantic cache", ratio(kinds["semantic"], n)),
            Figure.percent(f"{where}: of its answers, wrong", ratio(n_wrong, kinds["semantic"]), max_error),
            Figure.count(f"{where}: other answers that were wrong", sum(outcomes.wrong.values()) - n_wrong)]


def _saving_figure(where: str, usd: float, direct: Outcomes, slack: Slack) -> Figure:
    """usd: per request."""
    return Figure.percent(f"{where}: spend, less than direct by", 1 - usd / ratio(direct.usd, direct.n), slack.less_spend,
                          Sense.AT_LEAST)


def _past_goal(n: int) -> float:
    """The maximum share of requests past 5 s, but no less than three requests."""
    return max(PAST_5_S, 3 / n) if n else nan


def _encode_route(route: Mapping[str, Any]) -> dict[str, Any]:
    """A route as in a settings file, where the semantic cache's settings are members of `cache`."""
    encoded = {}
    for name, config in route.items():
        fields = asdict(config)
        fields |= fields.pop("semantic", {})
        encoded[name] = {field: value for field, value in fields.items() if value not in (None, "")}
    return encoded


def _read_bank(folder: Path) -> list[list[str]]:
    """A bank's questions, grouped by intent; empty if the folder has no such file. Raises SetUpFailed."""
    if not (folder / CLASSES).exists():
        return []
    questions = read_questions(folder / CLASSES)
    wordings: dict[int, list[str]] = {}
    for text, answer in zip(questions.texts, questions.answers, strict=True):
        wordings.setdefault(answer, []).append(" ".join(text.split()))
    return list(wordings.values())
