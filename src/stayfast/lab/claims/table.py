"""The headline: all that waits less and costs less, at once, against asking directly.

Two providers with the tail of the proof `tail` and Anthropic's prices and rules for prompts. Of the requests of a shop's
help desk (`workloads.support_desk`) 40 % ask in some words what others ask, 30 % ask something short of their own, and 30 %
come with a text to read; the same instructions before all of them are 60 % of what is sent. The gateway begins empty and
earns its hits: labels are of misses and audits alone, learned while the first requests pass, which are left out of the
figures.

The bound of p50 is what 40 % set: were all of them answered in no time, it would be 0.120 s, the direct answers' p17. Every
answer is judged by its question's article. A cancelled call pays its prompt, and what it had said; audits are paid for, too.

With `--data` the questions that come again are, in a run of its own, a bank's (BANKING77), which are harder to tell apart:
at `max_error: 5%`, and no goal but that.

When wrong: wordings are made up, and a help desk's tasks lie apart; a provider's draws are independent.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from math import nan
from pathlib import Path
from random import Random
from typing import Any, Final

from stayfast.lab.claims.semantic import CLASSES, HELP_DESK
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense, SetUpFailed, ratio
from stayfast.lab.harness.load import waits, why_spoiled
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.workloads.memory import MemoryEmbedder
from stayfast.lab.workloads.support_desk import (
    Outcomes,
    QuestionSource,
    Visit,
    prepare_embedder,
    visit_in_virtual_time,
    visit_over_sockets,
    visits,
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
    "cache": CacheConfig("semantic", semantic=SemanticConfig(f"{MAX_ERROR:.0%}", eligible=HELP_DESK))}
BANK_MAX_ERROR: Final = 0.05
BANK: Final[Mapping[str, Any]] = {
    **ALL_ON, "cache": CacheConfig("semantic", semantic=SemanticConfig(f"{BANK_MAX_ERROR:.0%}", eligible=HELP_DESK))}


@dataclass(frozen=True, slots=True)
class Slack:
    """How much wider the goals of fewer requests are: quantiles and wrong answers by a factor. less_spend: that goal."""

    quantiles: float = 1.0
    wrong: float = 1.0
    less_spend: float = LESS_SPEND


@dataclass(frozen=True, slots=True)
class Size:
    """n_warm requests, or `extent.warmup_s` over sockets, come before those that count."""

    n_warm: int
    extent: Extent
    slack: Slack = Slack()
    slack_sockets: Slack = Slack()


@dataclass(frozen=True, slots=True)
class TableClaim:
    full: Size = Size(20_000, Extent(200_000, 200.0, warmup_s=120.0), Slack(), Slack(1.1))
    quick: Size = Size(3000, Extent(3000, 8.0, warmup_s=15.0), Slack(1.25, 2.0, 0.35), Slack(2.5, less_spend=0.2))
    route: Mapping[str, Any] = field(default_factory=lambda: ALL_ON)  # the gateway's settings for it

    name = "table"
    says = (f"With every cache on, where 40 % of the requests come again in other words: p50 at most {P50_S * 1000:.0f} ms, "
            f"p95 {P95_S:g} s, p99 {P99_S:g} s, {PAST_5_S:.2%} past 5 s, for {LESS_SPEND:.0%} less than asked directly; of "
            f"the semantic cache's answers at most {MAX_ERROR:.0%} are wrong.")

    async def run(self, conditions: Conditions) -> Finding:
        size, seed = conditions.choose(self.full, self.quick), conditions.seed
        extent, slack = size.extent, size.slack_sockets
        bank = _wordings(conditions.data) if conditions.data is not None else []
        runs = await self._in_virtual_time(size, conditions)
        figures = [*_of_direct(runs.direct), *_of_gateway("virtual time", runs, size.slack)]
        conditions.report_progress(f"{extent.real_s:g} s over sockets, after {extent.warmup_s:g} s")
        drawn = visits(QuestionSource(Random(seed)), Random(seed), round((extent.warmup_s + extent.real_s) * RATE_RPS * 1.5))
        real = await visit_over_sockets(drawn, _written(self.route), RATE_RPS, warmup_s=extent.warmup_s,
                                        seconds=extent.real_s, seed=seed)
        goals = {"p50_s": P50_S * slack.quantiles, "p95_s": P95_S * slack.quantiles, "p99_s": P99_S * slack.quantiles,
                 "past_5_s": _past_goal(real.n), "n_failed": 0.0}
        figures += waits(real.result).figures("sockets", goals)
        figures.append(_less("sockets", ratio(real.usd, real.n), runs.direct, slack))
        if bank:
            figures += await self._of_bank(bank, size, conditions)
        return Finding(tuple(figures), (f"{size.n_warm:,} requests before those that count.",),
                       why_spoiled({"gateway": real.result}))

    async def _in_virtual_time(self, size: Size, conditions: Conditions) -> "_Runs":
        n, seed = size.extent.n, conditions.seed
        drawn = visits(QuestionSource(Random(seed)), Random(seed), size.n_warm + n)
        embedder = await asyncio.to_thread(prepare_embedder, drawn, conditions.report_progress)
        conditions.report_progress(f"{n:,} requests in virtual time, directly and through the gateway")
        few = drawn[:max(n // 4, min(n, 2000))]
        direct, tidy = [await _visit(few, len(few) // 10, route, seed) for route in (DIRECT, TIDY)]
        return _Runs(direct, tidy, await _visit(drawn, size.n_warm, self.route, seed, embedder))

    async def _of_bank(self, bank: Sequence[Sequence[str]], size: Size, conditions: Conditions) -> list[Figure]:
        """The same desk, where the questions that come again are those of a bank's customers."""
        n, seed = size.extent.n // 4, conditions.seed
        drawn = visits(QuestionSource(Random(seed), bank), Random(seed), size.n_warm + n)
        embedder = await asyncio.to_thread(prepare_embedder, drawn, conditions.report_progress)
        conditions.report_progress(f"{n:,} requests in virtual time, with the questions of a bank")
        outcomes = await _visit(drawn, size.n_warm, BANK, seed, embedder)
        where, (p50, p95, p99) = "a bank's questions", outcomes.at(SHARES)
        return [Figure(f"{where}: TTFT p50", p50, "s"), Figure(f"{where}: TTFT p95", p95, "s"),
                Figure(f"{where}: TTFT p99", p99, "s"), *_of_hits(where, outcomes, BANK_MAX_ERROR * size.slack.wrong)]


async def _visit(drawn: Sequence[Visit], n_warm: int, route: Mapping[str, Any], seed: int,
                 embedder: MemoryEmbedder | None = None) -> Outcomes:
    return await run_virtual_in_thread(visit_in_virtual_time, drawn, n_warm, route, rate_rps=VIRTUAL_RPS, seed=seed,
                                       embedder=embedder)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The same questions, asked in three ways. tidy: directly, with the instructions marked for the provider's cache."""

    direct: Outcomes
    tidy: Outcomes
    all_on: Outcomes


def _of_direct(direct: Outcomes) -> list[Figure]:
    p50, p95, p99 = direct.at(SHARES)
    return [Figure(f"direct: TTFT p50 (n={direct.n})", p50, "s"), Figure("direct: TTFT p95", p95, "s"),
            Figure("direct: TTFT p99", p99, "s"), Figure("direct: past 5 s", direct.past * 100, "%"),
            Figure("direct: spend for 1,000 requests", ratio(direct.usd, direct.n) * 1000, "USD")]


def _of_gateway(where: str, runs: _Runs, slack: Slack) -> list[Figure]:
    outcomes, factor = runs.all_on, slack.quantiles
    p50, p95, p99 = outcomes.at(SHARES)
    return [Figure(f"{where}: TTFT p50 (n={outcomes.n})", p50, "s", P50_S * factor),
            Figure(f"{where}: TTFT p95", p95, "s", P95_S * factor), Figure(f"{where}: TTFT p99", p99, "s", P99_S * factor),
            Figure(f"{where}: past 5 s", outcomes.past * 100, "%", _past_goal(outcomes.n) * 100),
            _less(where, ratio(outcomes.usd, outcomes.n), runs.direct, slack),
            Figure(f"{where}: spend, less than direct with instructions marked by",
                   (1 - ratio(outcomes.usd, outcomes.n) / ratio(runs.tidy.usd, runs.tidy.n)) * 100, "%"),
            Figure(f"{where}: input read from the providers' caches",
                   ratio(outcomes.n_cached, outcomes.n_prompted) * 100, "%"),
            Figure(f"{where}: calls a request", ratio(outcomes.n_calls, outcomes.n), ""),
            Figure(f"{where}: requests without an answer", float(outcomes.n_failed), "", 0.0),
            *_of_hits(where, outcomes, MAX_ERROR * slack.wrong)]


def _of_hits(where: str, outcomes: Outcomes, max_error: float) -> list[Figure]:
    """The answers of the caches, and the wrong ones among them."""
    n, n_again, kinds = outcomes.n, sum(outcomes.again.values()), outcomes.by_kind
    n_known = n_again - outcomes.again["miss"]
    n_wrong = outcomes.wrong["semantic"]
    n_other = sum(outcomes.wrong.values()) - n_wrong
    return [Figure(f"{where}: of what comes again, answered from a cache", ratio(n_known, n_again) * 100, "%"),
            Figure(f"{where}: of all requests, answered by the exact cache or a call in flight",
                   ratio(kinds["hit"] + kinds["coalesced"], n) * 100, "%"),
            Figure(f"{where}: of all requests, answered by the semantic cache", ratio(kinds["semantic"], n) * 100, "%"),
            Figure(f"{where}: of its answers, wrong", ratio(n_wrong, kinds["semantic"]) * 100, "%", max_error * 100),
            Figure(f"{where}: other answers that were wrong", float(n_other), "", 0.0)]


def _less(where: str, usd: float, direct: Outcomes, slack: Slack) -> Figure:
    """usd: for one request."""
    return Figure(f"{where}: spend, less than direct by", (1 - usd / ratio(direct.usd, direct.n)) * 100, "%",
                  slack.less_spend * 100, Sense.AT_LEAST)


def _past_goal(n: int) -> float:
    """The share that may wait so long; of so few that it would be less than three requests, three."""
    return max(PAST_5_S, 3 / n) if n else nan


def _written(route: Mapping[str, Any]) -> dict[str, Any]:
    """A route's settings as a file has them: those of the semantic cache stand among the cache's."""
    written = {}
    for name, config in route.items():
        fields = asdict(config)
        fields |= fields.pop("semantic", {})
        written[name] = {field: value for field, value in fields.items() if value not in (None, "")}
    return written


def _wordings(folder: Path) -> list[list[str]]:
    """Of a bank's customers, by what they want; none where they are not in this folder. Raises SetUpFailed."""
    if not (folder / CLASSES).exists():
        return []
    read = import_module("stayfast.lab.semantic_eval.evaluate")
    try:
        found = read.of_classes(folder / CLASSES)
    except read.Unreadable as why:
        raise SetUpFailed(str(why)) from why
    wordings: dict[int, list[str]] = {}
    for text, answer in zip(found.texts, found.answers, strict=True):
        wordings.setdefault(answer, []).append(" ".join(text.split()))
    return list(wordings.values())
