"""Agents with tools at providers that cache prompts: the share of input read from the cache, with and without the gateway.

All agents have the same instructions and tools, some 20,000 tokens. Each works in turns: it sends a question, calls a tool,
reads the result, sends the next request. The providers are simulated in virtual time, by Anthropic's rules and both of
OpenAI's. A naive request has no cache marks and its tools in random order, as returned by several tool servers. A tidy one
has its tools in a fixed order. With the few agents of a quick run, tidy requests read nearly as much as those through the
gateway, so a quick run has no goal for the difference.

The first token waits for the uncached part of a prompt. `PREFILL_PER_TOKEN` follows from Anthropic's example of a book of
100,000 tokens (11.5 s without the cache, 2.4 s with it).

When wrong: providers have many machines, and a busy cache evicts earlier; with shorter instructions all effects are
smaller.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from random import Random
from statistics import median
from typing import Any, Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Usage
from stayfast.lab.harness.claim import Conditions, Extent, Figure, Finding, Sense
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import run_virtual_in_thread, serve_and_read, simulated_upstream, virtual_system
from stayfast.lab.simulated import GapConfig, Mixture, PromptCacheModel, ProviderConfig, Tariff
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.testing.simloop import SimLoop
from stayfast.wire.request_body import decode

Json = dict[str, Any]
N_TURNS: Final = 12
N_OUTPUT: Final = 40  # tokens
THINK_S: Final = 6.0  # mean pause between an answer and the next request
_SENTENCE: Final = "A rule that never changes is worth being read once and kept for all who come after. "
_INSTRUCTIONS: Final = "You look after a shop that never closes. " + _SENTENCE * 750  # 12,000 words
_TOOLS: Final = tuple((f"tool_{n:02}", f"Number {n} of what the shop can do. " + _SENTENCE * 9) for n in range(40))
_PARAMETERS: Final = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


class AgentRequest(msgspec.Struct, frozen=True):
    """One request of an agent. ttft_s: None for a failed request."""

    n_turn: int
    status: int
    ttft_s: float | None = None
    usage: Usage | None = None


class AgentConversation:
    """One agent's conversation. shuffles: each request has its tools in another order."""

    def __init__(self, api: Api, model: str, number: int, rng: Random, *, shuffles: bool) -> None:
        self._api = api
        self._model = model
        self._number = number
        self._rng = rng
        self._shuffles = shuffles
        self._messages: list[Json] = []
        self._call = 0

    async def run(self, gateway: Gateway, clock: Clock, requests: list[AgentRequest]) -> None:
        """Run all turns, and append each request to `requests`."""
        for n_turn in range(N_TURNS):
            self._add_input(n_turn)
            arrival = Arrival(f"req_{self._number:04x}_{n_turn:04x}", clock.now())
            try:
                served = await serve_and_read(gateway, decode(self._api, self._build_body()), arrival, clock)
                requests.append(AgentRequest(n_turn, 200, served.ttft_s, served.reply.summary.usage))
            except StayfastError as failed:
                requests.append(AgentRequest(n_turn, failed.status))
            self._add_answer(n_turn)
            await asyncio.sleep(self._rng.expovariate(1 / THINK_S))

    def _draw_words(self, n: int) -> str:
        """n words that no other agent uses."""
        return f"Agent {self._number}: " + " ".join(f"{self._rng.randrange(100_000)}" for _ in range(n))

    def _add_input(self, n_turn: int) -> None:
        """Append a question, or the result of the last answer's tool call."""
        if n_turn % 4 == 0:
            self._messages.append({"role": "user", "content": self._draw_words(120)})
        elif self._api is Api.MESSAGES:
            result = {"type": "tool_result", "tool_use_id": f"call_{self._call}", "content": self._draw_words(300)}
            self._messages.append({"role": "user", "content": [result]})
        elif self._api is Api.CHAT:
            self._messages.append({"role": "tool", "tool_call_id": f"call_{self._call}", "content": self._draw_words(300)})
        else:
            output = {"type": "function_call_output", "call_id": f"call_{self._call}", "output": self._draw_words(300)}
            self._messages.append(output)

    def _add_answer(self, n_turn: int) -> None:
        """Append the model's answer: text before a question, otherwise a tool call."""
        if (n_turn + 1) % 4 == 0:
            self._messages.append({"role": "assistant", "content": self._draw_words(N_OUTPUT)})
            return
        self._call += 1
        name, arguments = _TOOLS[self._rng.randrange(len(_TOOLS))][0], {"what": self._draw_words(10)}
        called = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
        if self._api is Api.MESSAGES:
            use = {"type": "tool_use", "id": f"call_{self._call}", "name": name, "input": arguments}
            self._messages.append({"role": "assistant", "content": [{"type": "text", "text": self._draw_words(10)}, use]})
        elif self._api is Api.CHAT:
            call = {"id": f"call_{self._call}", "type": "function", "function": called}
            self._messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        else:
            self._messages.append({"type": "function_call", "call_id": f"call_{self._call}", **called})

    def _build_body(self) -> bytes:
        tools = [self._build_tool(*tool) for tool in _TOOLS]
        if self._shuffles:
            self._rng.shuffle(tools)
        body: Json = {"model": self._model, "stream": True, "tools": tools}
        if self._api is Api.MESSAGES:
            body |= {"max_tokens": N_OUTPUT, "system": _INSTRUCTIONS, "messages": self._messages}
        elif self._api is Api.CHAT:
            body |= {"max_completion_tokens": N_OUTPUT, "stream_options": {"include_usage": True},
                     "messages": [{"role": "system", "content": _INSTRUCTIONS}, *self._messages]}
        else:
            body |= {"max_output_tokens": N_OUTPUT, "store": False, "instructions": _INSTRUCTIONS, "input": self._messages}
        return msgspec.json.encode(body)

    def _build_tool(self, name: str, description: str) -> Json:
        if self._api is Api.MESSAGES:
            return {"name": name, "description": description, "input_schema": _PARAMETERS}
        function = {"name": name, "description": description, "parameters": _PARAMETERS}
        return {"type": "function", "function": function} if self._api is Api.CHAT else {"type": "function", **function}


CACHED_SHARE, LESS_TTFT = 0.85, 0.60
OVER_TIDY: Final = 0.30  # share of the input, above the share of tidy requests
PREFILL_PER_TOKEN: Final = 0.0001
START_WITHIN_S: Final = 20.0  # the agents start at random within this time
UPSTREAM: Final = "provider"
OFF: Final = PrefixConfig()


@dataclass(frozen=True, slots=True)
class Case:
    """One provider's rules, and the dialect for it."""

    name: str
    api: Api
    model: str
    cache: PromptCacheModel


CASES: Final = (
    Case("Anthropic, messages", Api.MESSAGES, "claude-sonnet-4-6", PromptCacheModel("anthropic")),
    Case("OpenAI 5.6, chat", Api.CHAT, "gpt-5.6", PromptCacheModel("breakpoints", ttl_s=1800.0)),
    Case("OpenAI 5.6, responses", Api.RESPONSES, "gpt-5.6", PromptCacheModel("breakpoints", ttl_s=1800.0)),
    Case("OpenAI before, chat", Api.CHAT, "gpt-4.1", PromptCacheModel("automatic", write_factor=1.0)),
    Case("OpenAI before, a name with a date", Api.CHAT, "gpt-5-2025-08-07", PromptCacheModel("automatic", write_factor=1.0)),
)


class PrefixOutcome(msgspec.Struct, frozen=True):
    """The requests of one run. input_usd: the provider's charge for all input."""

    requests: list[AgentRequest]
    input_usd: float

    @property
    def cached_share(self) -> float:
        usages = [request.usage for request in self.requests if request.usage is not None]
        n_input = sum(usage.input_total for usage in usages)
        return sum(usage.cached_read for usage in usages) / n_input if n_input else nan

    @property
    def ttft_s(self) -> float:
        """Median."""
        return median([request.ttft_s for request in self.requests if request.ttft_s is not None] or [nan])


@dataclass(frozen=True, slots=True)
class PrefixClaim:
    """n of an extent: agents. prefix: the settings of the route under test."""

    full: Extent = Extent(60)
    quick: Extent = Extent(8)
    prefix: PrefixConfig = field(default_factory=lambda: PrefixConfig("auto"))

    name = "prefix"
    statement = (f"Agents with tools read at least {CACHED_SHARE:.0%} of their input from their provider's cache, and get "
                 f"their "
            f"first token {LESS_TTFT:.0%} sooner than naive requests. Their cached share is {OVER_TIDY * 100:.0f} points "
            "above that of requests with ordered tools, and no request is rejected for its marks.")

    async def run(self, conditions: Conditions) -> Finding:
        n, seed = conditions.choose(self.full, self.quick).n, conditions.seed
        figures: list[Figure] = []
        for case in CASES:
            conditions.report_progress(f"{case.name}: three times {n} agents of {N_TURNS} turns")
            naive, tidy, seen = [await run_virtual_in_thread(run_agents, case, config, n, seed, shuffles=shuffles)
                                 for config, shuffles in ((OFF, True), (OFF, False), (self.prefix, True))]
            figures += _figures(case, naive, tidy, seen, None if conditions.is_quick else OVER_TIDY * 100)
        return Finding(tuple(figures))


async def run_agents(loop: SimLoop, case: Case, prefix: PrefixConfig, n_agents: int, seed: int, *,
                     shuffles: bool) -> PrefixOutcome:
    provider = ProviderConfig(seed=seed, ttft=Mixture(0.918, 0.3), gaps=GapConfig(0.0125, 0.3), fills_max_tokens=True,
                              prefill_per_token=PREFILL_PER_TOKEN, prompt_cache=case.cache, tariff=Tariff(3.0, 0.0))
    system = virtual_system(loop, {UPSTREAM: provider}, seed, model=case.model, prefix=prefix, hedge=HedgeConfig("off"))
    requests: list[AgentRequest] = []
    rng = Random(seed)

    async def run_agent(number: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        agent = AgentConversation(case.api, MODEL, number, Random(seed * 1000 + number), shuffles=shuffles)
        await agent.run(system.gateway, loop, requests)

    async with asyncio.TaskGroup() as group:
        for number in range(n_agents):
            group.create_task(run_agent(number, rng.uniform(0, START_WITHIN_S)))
    return PrefixOutcome(requests, simulated_upstream(system, UPSTREAM).counts.cost_usd)


def _figures(case: Case, naive: PrefixOutcome, tidy: PrefixOutcome, seen: PrefixOutcome,
             over_tidy: float | None) -> Sequence[Figure]:
    n_failed = sum(request.status != 200 for outcome in (naive, tidy, seen) for request in outcome.requests)
    return (
        Figure.percent(f"{case.name}: input read from the cache, naive", naive.cached_share),
        Figure.percent(f"{case.name}: the same, tidy", tidy.cached_share),
        Figure.percent(f"{case.name}: the same, through the gateway (n={len(seen.requests)})", seen.cached_share,
                       CACHED_SHARE, Sense.AT_LEAST),
        Figure(f"{case.name}: more than tidy by", (seen.cached_share - tidy.cached_share) * 100, "points", over_tidy,
               Sense.AT_LEAST),
        Figure(f"{case.name}: TTFT p50, naive", naive.ttft_s, "s"), Figure(f"{case.name}: TTFT p50, tidy", tidy.ttft_s, "s"),
        Figure(f"{case.name}: TTFT p50, through the gateway", seen.ttft_s, "s"),
        Figure.percent(f"{case.name}: TTFT shorter by", 1 - seen.ttft_s / naive.ttft_s, LESS_TTFT, Sense.AT_LEAST),
        Figure.percent(f"{case.name}: TTFT shorter than tidy's by", 1 - seen.ttft_s / tidy.ttft_s),
        Figure.percent(f"{case.name}: input costs less by", 1 - seen.input_usd / naive.input_usd),
        Figure.count(f"{case.name}: requests refused", n_failed),
    )
