"""All features at once: shorter waits and less spend than asking the providers directly.

Two providers have the tail of the claim `tail`, and Anthropic's prices and prompt-cache rules. Of the requests of a shop's
help desk (`workloads.support_desk`) 40 % repeat common questions in other words, 30 % are short questions that occur once,
and 30 % include a text to read. All share the same instructions, which are 60 % of the input. The gateway starts empty. It
learns from misses and audits during the first requests, which are not counted; with fewer than LEAST_WARM of them no figure
of the gateway is conclusive.

Direct requests have no cache marks, as those of a client that does nothing; direct requests with marks have the instructions
marked for the provider's cache. Both are measured in virtual time, and the spend over sockets is compared with them.

The bound of p50 follows from the 40 %: if all of them were answered in no time, it would be 0.120 s, the p17 of the direct
answers. Each answer is checked against its question's article. Calls word their answers anew, so the
route's own model compares answers, and errs in 2 % of its verdicts. Cancelled calls are charged for their prompt and for
their output so far; audits and verdicts are charged, too.

With `--data` a separate run takes the repeated questions from a bank (BANKING77), whose questions are harder to tell apart.
It uses `max_error: 5%`, and has no other goal but that.

When wrong: wordings are generated, and the tasks of a help desk differ clearly. The draws of a provider are independent.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, nan
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final

from stayfast.lab.claims.semantic import CLASSES, HELP_DESK, read_questions
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, mark_invalid, ratio
from stayfast.lab.harness.intervals import block_interval, mean_interval
from stayfast.lab.harness.load import spoil_reason
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.harness.waits import QUANTILES, read_waits
from stayfast.lab.workloads.in_memory import MemoryEmbedder
from stayfast.lab.workloads.support_answers import JUDGE_ERROR
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
LESS_SPEND, LESS_THAN_MARKED = 0.40, 0.05
GOALS: Final[Mapping[str, float]] = {"p50_s": 0.15, "p95_s": 0.57, "p99_s": 0.82, "past_5_s": 0.0002}
SOCKET_LESS_SPEND, SOCKET_LESS_THAN_MARKED = 0.38, 0.03
SOCKET_GOALS: Final[Mapping[str, float]] = {"p50_s": 0.165, "p95_s": 0.62, "p99_s": 0.9, "past_5_s": 0.001, "n_failed": 0.0}
NO_GOALS: Final[Mapping[str, float]] = {}
LEAST_WARM: Final = 12_000  # visits, in which the semantic cache collects its labels and confirms its answers
DIRECT: Final[Mapping[str, Any]] = {"hedge": HedgeConfig("off")}
TIDY: Final[Mapping[str, Any]] = {**DIRECT, "prefix": PrefixConfig("auto")}
ALL_ON: Final[Mapping[str, Any]] = {
    "hedge": HedgeConfig(budget=0.15), "prefix": PrefixConfig("auto"),
    "cache": CacheConfig("semantic", semantic=SemanticConfig(f"{MAX_ERROR:.0%}", eligible=HELP_DESK))}
BANK_MAX_ERROR: Final = 0.05
BANK: Final[Mapping[str, Any]] = {
    **ALL_ON, "cache": CacheConfig("semantic", semantic=SemanticConfig(f"{BANK_MAX_ERROR:.0%}", eligible=HELP_DESK))}


@dataclass(frozen=True, slots=True)
class Size:
    """n_warm requests (over sockets: `extent.warmup_s`) precede the counted ones."""

    n_warm: int
    extent: Extent


@dataclass(frozen=True, slots=True)
class TableClaim:
    """route: the gateway's settings of its route."""

    full: Size = Size(20_000, Extent(40_000, 150.0, warmup_s=300.0))
    quick: Size = Size(LEAST_WARM, Extent(3000, 8.0, warmup_s=15.0))
    route: Mapping[str, Any] = field(default_factory=lambda: ALL_ON)

    name = "table"
    statement = (
        "With all features on, and 40 % of the requests repeated in other words: "
        f"p50 at most {GOALS['p50_s'] * 1000:.0f} ms, p95 {GOALS['p95_s']:g} s, p99 {GOALS['p99_s']:g} s, "
        f"{GOALS['past_5_s']:.2%} past 5 s, for {LESS_SPEND:.0%} less than direct requests and {LESS_THAN_MARKED:.0%} less "
        f"than direct ones with cache marks; over sockets {SOCKET_GOALS['p50_s'] * 1000:.0f} ms, "
        f"{SOCKET_GOALS['p95_s']:g} s, {SOCKET_GOALS['p99_s']:g} s, {SOCKET_GOALS['past_5_s']:.1%}, "
        f"{SOCKET_LESS_SPEND:.0%} and {SOCKET_LESS_THAN_MARKED:.0%}. All are answered. At most {MAX_ERROR:.0%} of the "
        f"semantic cache's answers are wrong ({BANK_MAX_ERROR:.0%} with a bank's questions), and no other answers.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        size, seed = conditions.choose(self.full, self.quick), conditions.seed
        extent = size.extent
        bank = _read_bank(conditions.data) if conditions.data is not None else []
        runs = await self._run_in_virtual_time(size, conditions)
        figures = [*_direct_figures(runs), *mark_invalid(_gateway_figures("virtual time", runs), _learning(size.n_warm))]
        conditions.report_progress(f"{extent.real_s:g} s over sockets, after {extent.warmup_s:g} s")
        n_drawn = round((extent.warmup_s + extent.real_s) * RATE_RPS * 1.5)
        drawn = draw_visits(QuestionSource(Random(seed)), Random(seed), n_drawn)
        real = await visit_over_sockets(drawn, _encode_route(self.route), RATE_RPS, warmup_s=extent.warmup_s,
                                        seconds=extent.real_s, seed=seed)
        spoiled = spoil_reason({"gateway": real.result})
        figures += mark_invalid([
            *read_waits(real.result).figures("sockets", SOCKET_GOALS),
            *_saving_figures("sockets", real.batch_usd, runs, (SOCKET_LESS_SPEND, SOCKET_LESS_THAN_MARKED))],
            spoiled or _learning(real.n_warm))
        if bank:
            figures += await self._run_bank(bank, size, conditions)
        notes = [f"{size.n_warm:,} requests before those that count, {real.n_warm:,} over sockets.",
                 f"{JUDGE_ERROR:.0%} of the verdicts on answers are wrong; the spend includes them.",
                 *filter(None, [_learning(min(size.n_warm, real.n_warm))])]
        return ClaimResult(tuple(figures), tuple(notes), spoiled)

    async def _run_in_virtual_time(self, size: Size, conditions: Conditions) -> "_Runs":
        n, seed = size.extent.n, conditions.seed
        drawn = draw_visits(QuestionSource(Random(seed)), Random(seed), size.n_warm + n)
        embedder = await asyncio.to_thread(prepare_embedder, drawn, conditions.report_progress)
        conditions.report_progress(f"{n:,} requests in virtual time, directly and through the gateway")
        few = drawn[:max(n // 4, min(n, 2000))]
        direct, tidy = [await _run_visits(few, len(few) // 10, route, seed) for route in (DIRECT, TIDY)]
        return _Runs(direct, tidy, await _run_visits(drawn, size.n_warm, self.route, seed, embedder))

    async def _run_bank(self, bank: Sequence[Sequence[str]], size: Size, conditions: Conditions) -> Sequence[Figure]:
        """The same with the questions of a bank's customers as the repeated ones."""
        n, seed = size.extent.n // 4, conditions.seed
        drawn = draw_visits(QuestionSource(Random(seed), bank), Random(seed), size.n_warm + n)
        embedder = await asyncio.to_thread(prepare_embedder, drawn, conditions.report_progress)
        conditions.report_progress(f"{n:,} requests in virtual time, with the questions of a bank")
        outcomes = await _run_visits(drawn, size.n_warm, BANK, seed, embedder)
        where = "a bank's questions"
        return mark_invalid([*_ttft_figures(where, outcomes), *_hit_figures(where, outcomes, BANK_MAX_ERROR)],
                            _learning(size.n_warm))


def _learning(n_warm: int) -> str | None:
    """Why a run shows nothing: the semantic cache was still learning when the counted requests began."""
    if n_warm >= LEAST_WARM:
        return None
    return f"Fewer than {LEAST_WARM:,} requests before those that count: the semantic cache was still learning."


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


def _ttft_figures(where: str, outcomes: Outcomes, goals: Mapping[str, float] = NO_GOALS) -> list[Figure]:
    figures = []
    for (name, share), value in zip(QUANTILES.items(), outcomes.at(list(QUANTILES.values())), strict=True):
        low, high = block_interval(outcomes.waits_s, share)
        words = f"{where}: TTFT {name.removesuffix('_s')} (n={outcomes.n})"
        figures.append(Figure(words, value, "s", goals.get(name), low=low, high=high))
    return [*figures, Figure.share(f"{where}: past 5 s", outcomes.n_past, outcomes.n, goals.get("past_5_s"))]


def _direct_figures(runs: _Runs) -> list[Figure]:
    return [*_ttft_figures("direct", runs.direct),
            *(Figure.mean(f"{name}: spend for 1,000 requests", [usd * 1000 for usd in outcomes.batch_usd], "USD")
              for name, outcomes in (("direct", runs.direct), ("direct with marks", runs.tidy)))]


def _gateway_figures(where: str, runs: _Runs) -> list[Figure]:
    outcomes = runs.all_on
    return [*_ttft_figures(where, outcomes, GOALS),
            *_saving_figures(where, outcomes.batch_usd, runs, (LESS_SPEND, LESS_THAN_MARKED)),
            Figure.percent(f"{where}: input read from the providers' caches", ratio(outcomes.n_cached, outcomes.n_prompted)),
            Figure.exact(f"{where}: calls a request", ratio(outcomes.n_calls, outcomes.n), ""),
            Figure.exact(f"{where}: of these, to the judge", ratio(outcomes.n_verdicts, outcomes.n), ""),
            Figure.count(f"{where}: requests without an answer", outcomes.n_failed),
            *_hit_figures(where, outcomes, MAX_ERROR)]


def _hit_figures(where: str, outcomes: Outcomes, max_error: float) -> list[Figure]:
    """The share of answers from the caches, and of wrong ones."""
    n, n_repeated, kinds = outcomes.n, sum(outcomes.repeated.values()), outcomes.by_kind
    n_wrong = outcomes.wrong["semantic"]
    return [Figure.share(f"{where}: of what comes again, answered from a cache", n_repeated - outcomes.repeated["miss"],
                         n_repeated),
            Figure.share(f"{where}: of all requests, answered by the exact cache or a call in flight",
                         kinds["hit"] + kinds["coalesced"], n),
            Figure.share(f"{where}: of all requests, answered by the semantic cache", kinds["semantic"], n),
            Figure.share(f"{where}: of its answers, wrong", n_wrong, kinds["semantic"], max_error),
            Figure.count(f"{where}: other answers that were wrong", sum(outcomes.wrong.values()) - n_wrong)]


def _saving_figures(where: str, batch_usd: Sequence[float], runs: _Runs, goals: Sequence[float]) -> list[Figure]:
    """batch_usd: per request. goals: without and with marks."""
    return [_saving_figure(f"{where}: spend, less than {name} by", batch_usd, baseline.batch_usd, goal)
            for name, baseline, goal in zip(("direct", "direct with marks"), (runs.direct, runs.tidy), goals, strict=True)]


def _saving_figure(name: str, batch_usd: Sequence[float], baseline_usd: Sequence[float], goal: float) -> Figure:
    """The interval is from the ends of both means, so it is wider than needed."""
    if not batch_usd or not baseline_usd:
        return Figure.percent(name, nan, goal, Sense.AT_LEAST)
    (low, high), (least, most) = mean_interval(batch_usd), mean_interval(baseline_usd)
    interval = 1 - high / max(least, 0.0) if least > 0 else -inf, 1 - low / most
    return Figure.percent(name, 1 - fmean(batch_usd) / fmean(baseline_usd), goal, Sense.AT_LEAST, interval)


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
