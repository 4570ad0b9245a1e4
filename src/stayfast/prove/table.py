"""The headline: all that waits less and costs less, at once, against asking directly.

Two providers with the tail of `prove.tail` and Anthropic's prices and rules for prompts. Of the requests of a shop's help
desk (`prove.desk`) 40 % ask in some words what others ask, 30 % ask something short of their own, and 30 % come with a text
to read; the same instructions before all of them are 60 % of what is sent. The gateway has every cache on, semantic at
`max_error: 2%`, and 15 % for second attempts. It begins empty and earns its hits: labels are of misses and audits alone,
learned while the first requests pass, which are left out of the figures.

The bound of p50 is what 40 % set: were all of them answered in no time, it would be 0.120 s, the direct answers' p17.
Every answer is judged by its question's article. A cancelled call pays its prompt, and what it had said.

In virtual time vectors are made beforehand (`prove.answered`). With `--data` what comes again is, in a run of its own, a
bank's questions (BANKING77), which are harder to tell apart: at `max_error: 5%`, and no goal but that.

When wrong: wordings are made up, and a help desk's tasks lie apart; a provider's draws are independent. Calls of audits are
made while nobody waits and are paid for; they are in the spend.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from math import nan
from pathlib import Path
from random import Random
from typing import Any, Final

from stayfast.policy.cache import CacheConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.policy.prefix import PrefixConfig
from stayfast.policy.semantic import SemanticConfig
from stayfast.prove.answered import Came, in_virtual_time, prepared
from stayfast.prove.claim import Conditions, Figure, Finding, Sense, SetUpFailed
from stayfast.prove.counter import over_sockets
from stayfast.prove.desk import Desk, visits
from stayfast.prove.load import why_spoiled
from stayfast.prove.semantic import CLASSES, HELP_DESK
from stayfast.prove.waits import waits

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
class Extent:
    """How much is asked, in virtual time and over sockets. n_warm, warm_s: before what counts."""

    n_warm: int
    n: int
    warm_s: float
    seconds: float
    slack: Slack
    slack_sockets: Slack


@dataclass(frozen=True, slots=True)
class Table:
    """See the module. `route`: the gateway's settings for it."""

    rate_rps: float = 50.0
    virtual_rps: float = 100.0
    full: Extent = Extent(20_000, 200_000, 120.0, 200.0, Slack(), Slack(1.1))
    quick: Extent = Extent(3000, 3000, 15.0, 8.0, Slack(1.25, 2.0, 0.35), Slack(2.5, less_spend=0.2))
    route: Mapping[str, Any] = field(default_factory=lambda: ALL_ON)

    name = "table"
    says = (f"With every cache on, where 40 % of the requests come again in other words: p50 at most {P50_S * 1000:.0f} ms, "
            f"p95 {P95_S:g} s, p99 {P99_S:g} s, {PAST_5_S:.2%} past 5 s, for {LESS_SPEND:.0%} less than asked directly; of "
            f"the semantic cache's answers at most {MAX_ERROR:.0%} are wrong.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        extent, seed = self.quick if conditions.is_quick else self.full, conditions.seed
        bank = _wordings(conditions.data) if conditions.data is not None else []
        asked = await asyncio.to_thread(self._in_virtual_time, extent, conditions)
        figures = [*_of_direct(asked.direct), *_of_gateway("virtual time", asked, extent.slack)]
        conditions.say(f"{extent.seconds:g} s over sockets, after {extent.warm_s:g} s")
        n = round((extent.warm_s + extent.seconds) * self.rate_rps * 1.5)
        said = visits(Desk(Random(seed)), Random(seed), n)
        real = await over_sockets(said, _written(self.route), self.rate_rps, (extent.warm_s, extent.seconds), seed)
        slack = extent.slack_sockets
        goals = {"p50_s": P50_S * slack.quantiles, "p95_s": P95_S * slack.quantiles, "p99_s": P99_S * slack.quantiles,
                 "past_5_s": _past_goal(real.n), "n_failed": 0.0}
        figures += waits(real.result).figures("sockets", goals)
        figures.append(_less("sockets", _each(real.usd, real.n), asked.direct, slack))
        if bank:
            figures += await asyncio.to_thread(self._of_bank, bank, extent, conditions)
        return Finding(tuple(figures), (f"{extent.n_warm:,} requests before those that count.",),
                       why_spoiled({"gateway": real.result}))

    def _in_virtual_time(self, extent: Extent, conditions: Conditions) -> "_Asked":
        seed = conditions.seed
        said = visits(Desk(Random(seed)), Random(seed), extent.n_warm + extent.n)
        embedder = prepared(said, conditions.say)
        conditions.say(f"{extent.n:,} requests in virtual time, directly and through the gateway")
        few = said[:max(extent.n // 4, min(extent.n, 2000))]
        direct, tidy = (in_virtual_time(few, len(few) // 10, route, rate_rps=self.virtual_rps, seed=seed)
                        for route in (DIRECT, TIDY))
        return _Asked(direct, tidy, in_virtual_time(said, extent.n_warm, self.route, rate_rps=self.virtual_rps, seed=seed,
                                                    embedder=embedder))

    def _of_bank(self, bank: Sequence[Sequence[str]], extent: Extent, conditions: Conditions) -> list[Figure]:
        """The same desk, where a bank's customers ask what comes again."""
        seed = conditions.seed
        said = visits(Desk(Random(seed), bank), Random(seed), extent.n_warm + extent.n // 4)
        embedder = prepared(said, conditions.say)
        conditions.say(f"{extent.n // 4:,} requests in virtual time, with the questions of a bank")
        came = in_virtual_time(said, extent.n_warm, BANK, rate_rps=self.virtual_rps, seed=seed, embedder=embedder)
        where, (p50, p95, p99) = "a bank's questions", came.at(SHARES)
        return [Figure(f"{where}: TTFT p50", p50, "s"), Figure(f"{where}: TTFT p95", p95, "s"),
                Figure(f"{where}: TTFT p99", p99, "s"), *_of_hits(where, came, BANK_MAX_ERROR * extent.slack.wrong)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The same questions, asked in three ways. tidy: directly, with the instructions marked for the provider's cache."""

    direct: Came
    tidy: Came
    all_on: Came


def _of_direct(direct: Came) -> list[Figure]:
    p50, p95, p99 = direct.at(SHARES)
    return [Figure(f"direct: TTFT p50 (n={direct.n})", p50, "s"), Figure("direct: TTFT p95", p95, "s"),
            Figure("direct: TTFT p99", p99, "s"), Figure("direct: past 5 s", direct.past * 100, "%"),
            Figure("direct: spend for 1,000 requests", _each(direct.usd, direct.n) * 1000, "USD")]


def _of_gateway(where: str, asked: _Asked, slack: Slack) -> list[Figure]:
    """What is claimed."""
    came, factor = asked.all_on, slack.quantiles
    p50, p95, p99 = came.at(SHARES)
    return [Figure(f"{where}: TTFT p50 (n={came.n})", p50, "s", P50_S * factor),
            Figure(f"{where}: TTFT p95", p95, "s", P95_S * factor), Figure(f"{where}: TTFT p99", p99, "s", P99_S * factor),
            Figure(f"{where}: past 5 s", came.past * 100, "%", _past_goal(came.n) * 100),
            _less(where, _each(came.usd, came.n), asked.direct, slack),
            Figure(f"{where}: spend, less than direct with instructions marked by",
                   (1 - _each(came.usd, came.n) / _each(asked.tidy.usd, asked.tidy.n)) * 100, "%"),
            Figure(f"{where}: input read from the providers' caches", _each(came.n_cached, came.n_prompted) * 100, "%"),
            Figure(f"{where}: calls a request", _each(came.n_calls, came.n), ""),
            Figure(f"{where}: requests without an answer", float(came.n_failed), "", 0.0),
            *_of_hits(where, came, MAX_ERROR * slack.wrong)]


def _of_hits(where: str, came: Came, max_error: float) -> list[Figure]:
    """What the caches answered, and what of it was wrong."""
    n, n_again, kinds = came.n, sum(came.again.values()), came.by_kind
    n_known = n_again - came.again["miss"]
    n_wrong = came.wrong["semantic"]
    n_else = sum(came.wrong.values()) - n_wrong
    return [Figure(f"{where}: of what comes again, answered from a cache", _each(n_known, n_again) * 100, "%"),
            Figure(f"{where}: of all requests, answered by the exact cache or a call in flight",
                   _each(kinds["hit"] + kinds["coalesced"], n) * 100, "%"),
            Figure(f"{where}: of all requests, answered by the semantic cache", _each(kinds["semantic"], n) * 100, "%"),
            Figure(f"{where}: of its answers, wrong", _each(n_wrong, kinds["semantic"]) * 100, "%", max_error * 100),
            Figure(f"{where}: other answers that were wrong", float(n_else), "", 0.0)]


def _less(where: str, usd: float, direct: Came, slack: Slack) -> Figure:
    """usd: for one request."""
    return Figure(f"{where}: spend, less than direct by", (1 - usd / _each(direct.usd, direct.n)) * 100, "%",
                  slack.less_spend * 100, Sense.AT_LEAST)


def _past_goal(n: int) -> float:
    """The share that may wait so long; of so few that it would be less than three requests, three."""
    return max(PAST_5_S, 3 / n) if n else nan


def _each(value: float, n: float) -> float:
    return value / n if n else nan


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
    read = import_module("stayfast.bench.semantic.questions")
    try:
        found = read.of_classes(folder / CLASSES)
    except read.Unreadable as why:
        raise SetUpFailed(str(why)) from why
    wordings: dict[int, list[str]] = {}
    for text, answer in zip(found.texts, found.answers, strict=True):
        wordings.setdefault(answer, []).append(" ".join(text.split()))
    return list(wordings.values())
