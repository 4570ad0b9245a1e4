"""Agents that talk to providers with a cache of prompts: the share of their input that is read from it, with the gateway and
without.

Each agent has the same instructions and tools, some 20,000 tokens, and works in turns: it asks, calls a tool, reads what
the tool says, asks again. The providers are simulated, by Anthropic's rules and by both of OpenAI's, in virtual time; the
gateway is the whole pipeline. The naive request is what agents send without any care: no marks, and the tools in
the order in which their servers happened to answer, which is another one each time. "Tidy" is the same with the tools in
one order: of so few agents as one machine takes, it reads nearly as much as what goes through the gateway, so a quick run,
with some eight of them, has no goal against it.

The first token waits for what is new in a prompt: `PREFILL_PER_TOKEN` is what Anthropic's own example of a book of 100,000
tokens comes to (11.5 s without the cache, 2.4 s with it), beside the fit of a provider's first token of small prompts.

When wrong: machines are many, and a cache that is busy forgets; the shorter the instructions, the smaller all of it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from random import Random
from statistics import median
from typing import Final

import msgspec

from stayfast.core.types import Api
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import run_virtual_in_thread, settings_of, simulated
from stayfast.lab.load.virtual import virtual
from stayfast.lab.simulated import Gaps, Mixture, PromptCacheModel, ProviderConfig, Tariff
from stayfast.lab.workloads.conversations import N_TURNS, Agent, Turn
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop

CACHED_SHARE, LESS_TTFT = 0.85, 0.60
OVER_TIDY: Final = 0.30  # of the input, more than what the same requests read with their tools in one order
PREFILL_PER_TOKEN: Final = 0.0001
BEGIN_S: Final = 20.0  # agents begin within about so many seconds
UPSTREAM: Final = "provider"
OFF: Final = PrefixConfig()


@dataclass(frozen=True, slots=True)
class Case:
    """One provider's rules, and what is spoken to it."""

    name: str
    api: Api
    model: str
    cache: PromptCacheModel


CASES: Final = (
    Case("Anthropic, messages", Api.MESSAGES, "claude-sonnet-4-6", PromptCacheModel("anthropic")),
    Case("OpenAI 5.6, chat", Api.CHAT, "gpt-5.6", PromptCacheModel("breakpoints", keeps_s=1800.0)),
    Case("OpenAI 5.6, responses", Api.RESPONSES, "gpt-5.6", PromptCacheModel("breakpoints", keeps_s=1800.0)),
    Case("OpenAI before, chat", Api.CHAT, "gpt-4.1", PromptCacheModel("automatic", write_factor=1.0)),
    Case("OpenAI before, a name with a date", Api.CHAT, "gpt-5-2025-08-07", PromptCacheModel("automatic", write_factor=1.0)),
)


class Outcome(msgspec.Struct, frozen=True):
    """The turns of one kind of agents. `input_usd`: what their provider charges for all input."""

    turns: list[Turn]
    input_usd: float

    @property
    def share(self) -> float:
        """Of the input that was read from the cache."""
        usages = [turn.usage for turn in self.turns if turn.usage is not None]
        n_input = sum(usage.input_total for usage in usages)
        return sum(usage.cached_read for usage in usages) / n_input if n_input else nan

    @property
    def ttft_s(self) -> float:
        """Median."""
        return median([turn.ttft_s for turn in self.turns if turn.ttft_s is not None] or [nan])


@dataclass(frozen=True, slots=True)
class Prefix:
    """n of an extent: agents."""

    full: Extent = Extent(60)
    quick: Extent = Extent(8)
    prefix: PrefixConfig = field(default_factory=lambda: PrefixConfig("auto"))  # of the route on trial

    name = "prefix"
    says = (f"Agents with tools read at least {CACHED_SHARE:.0%} of their input from their provider's cache, their first "
            f"token takes {LESS_TTFT:.0%} less time than that of naive requests, they read {OVER_TIDY:.0%} of it more than "
            "requests whose tools are in order, and no request is refused for its marks.")

    async def run(self, conditions: Conditions) -> Finding:
        n, seed = conditions.choose(self.full, self.quick).n, conditions.seed
        figures: list[Figure] = []
        for case in CASES:
            conditions.say(f"{case.name}: three times {n} agents of {N_TURNS} turns")
            naive, tidy, seen = [await run_virtual_in_thread(ask, case, config, n, seed, shuffles=shuffles)
                                 for config, shuffles in ((OFF, True), (OFF, False), (self.prefix, True))]
            figures += _figures(case, naive, tidy, seen, None if conditions.is_quick else OVER_TIDY * 100)
        return Finding(tuple(figures))


async def ask(loop: SimLoop, case: Case, prefix: PrefixConfig, n_agents: int, seed: int, *, shuffles: bool) -> Outcome:
    """Let agents work."""
    provider = ProviderConfig(seed=seed, ttft=Mixture(0.918, 0.3), gaps=Gaps(0.0125, 0.3), fills_max_tokens=True,
                              prefill_per_token=PREFILL_PER_TOKEN, prompt_cache=case.cache, tariff=Tariff(3.0, 0.0))
    turns: list[Turn] = []
    settings = settings_of({UPSTREAM: provider}, model=case.model, prefix=prefix, hedge=HedgeConfig("off"))
    system, rng = virtual(settings, loop, seed), Random(seed)

    async def one(number: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        agent = Agent(case.api, MODEL, number, Random(seed * 1000 + number), shuffles=shuffles)
        await agent.run(system.gateway, loop, turns)

    async with asyncio.TaskGroup() as group:
        for number in range(n_agents):
            group.create_task(one(number, rng.uniform(0, BEGIN_S)))
    return Outcome(turns, simulated(system, UPSTREAM).counts.cost_usd)


def _figures(case: Case, naive: Outcome, tidy: Outcome, seen: Outcome, over_tidy: float | None) -> Sequence[Figure]:
    n_failed = sum(turn.status != 200 for outcome in (naive, tidy, seen) for turn in outcome.turns)
    return (
        Figure(f"{case.name}: input read from the cache, naive", naive.share * 100, "%"),
        Figure(f"{case.name}: the same, tidy", tidy.share * 100, "%"),
        Figure(f"{case.name}: the same, through the gateway (n={len(seen.turns)})", seen.share * 100, "%",
               CACHED_SHARE * 100, Sense.AT_LEAST),
        Figure(f"{case.name}: more than tidy by", (seen.share - tidy.share) * 100, "points", over_tidy, Sense.AT_LEAST),
        Figure(f"{case.name}: TTFT p50, naive", naive.ttft_s, "s"), Figure(f"{case.name}: TTFT p50, tidy", tidy.ttft_s, "s"),
        Figure(f"{case.name}: TTFT p50, through the gateway", seen.ttft_s, "s"),
        Figure(f"{case.name}: TTFT shorter by", (1 - seen.ttft_s / naive.ttft_s) * 100, "%", LESS_TTFT * 100,
               Sense.AT_LEAST),
        Figure(f"{case.name}: TTFT shorter than tidy's by", (1 - seen.ttft_s / tidy.ttft_s) * 100, "%"),
        Figure(f"{case.name}: input costs less by", (1 - seen.input_usd / naive.input_usd) * 100, "%"),
        Figure(f"{case.name}: requests refused", float(n_failed), "", 0.0),
    )
