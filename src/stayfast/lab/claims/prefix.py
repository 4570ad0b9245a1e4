"""Agents with tools at providers that cache prompts: the share of input read from the cache, with and without the gateway.

All agents have the same instructions and tools, some 20,000 tokens. Each works in turns: it sends a question, calls a tool,
reads the result, sends the next request. The providers are simulated in virtual time, by Anthropic's rules and both of
OpenAI's. A naive request has no cache marks and its tools in random order, as returned by several tool servers. A tidy one
has its tools in a fixed order. With few agents, tidy requests read nearly as much as those through the gateway.

The first token waits for the uncached part of a prompt. `PREFILL_PER_TOKEN` follows from Anthropic's example of a book of
100,000 tokens (11.5 s without the cache, 2.4 s with it).

When wrong: providers have many machines, and a busy cache evicts earlier; with shorter instructions all effects are
smaller.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api, Usage
from stayfast.lab.harness.claim import ClaimResult, Conditions, Extent, Figure, Sense, ratio
from stayfast.lab.harness.intervals import ratio_interval
from stayfast.lab.harness.processes import MODEL
from stayfast.lab.harness.virtual import run_virtual_in_thread, serve_and_read, simulated_upstream, virtual_system
from stayfast.lab.load.stats import ExactDistribution
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

    n_agent: int
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
                requests.append(AgentRequest(self._number, n_turn, 200, served.ttft_s, served.reply.summary.usage))
            except StayfastError as failed:
                requests.append(AgentRequest(self._number, n_turn, failed.status))
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


N_AGENTS: Final = 60
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
    def cached_percents(self) -> list[float]:
        """The share of its input that each agent read from the cache."""
        read, total = Counter[int](), Counter[int]()
        for request in self.requests:
            if request.usage is not None:
                read[request.n_agent] += request.usage.cached_read
                total[request.n_agent] += request.usage.input_total
        return [ratio(read[n_agent], total[n_agent]) * 100 for n_agent in sorted(total)]

    @property
    def ttft_s(self) -> list[float]:
        """Seconds to the first token of each request, by agent; infinite for a failed one."""
        return [inf if request.ttft_s is None else request.ttft_s
                for request in sorted(self.requests, key=lambda request: request.n_agent)]


@dataclass(frozen=True, slots=True)
class PrefixClaim:
    """n of an extent: agents. prefix: the settings of the route under test."""

    full: Extent = Extent(N_AGENTS)
    quick: Extent = Extent(8)
    prefix: PrefixConfig = field(default_factory=lambda: PrefixConfig("auto"))

    name = "prefix"
    statement = (f"Agents with tools read at least {CACHED_SHARE:.0%} of their input from their provider's cache, and get "
                 f"their first token {LESS_TTFT:.0%} sooner than naive requests. With {N_AGENTS} agents, their cached share "
                 f"is {OVER_TIDY * 100:.0f} points above that of requests with ordered tools, and no request is rejected "
                 "for its marks.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n, seed = conditions.choose(self.full, self.quick).n, conditions.seed
        figures: list[Figure] = []
        for case in CASES:
            conditions.report_progress(f"{case.name}: three times {n} agents of {N_TURNS} turns")
            naive, tidy, seen = [await run_virtual_in_thread(run_agents, case, config, n, seed, shuffles=shuffles)
                                 for config, shuffles in ((OFF, True), (OFF, False), (self.prefix, True))]
            figures += _figures(case, naive, tidy, seen)
        return ClaimResult(tuple(figures))


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


def _figures(case: Case, naive: PrefixOutcome, tidy: PrefixOutcome, seen: PrefixOutcome) -> Sequence[Figure]:
    more = [ours - theirs for ours, theirs in zip(seen.cached_percents, tidy.cached_percents, strict=False)]
    low, high = ratio_interval(seen.ttft_s, naive.ttft_s, 0.5, n_blocks=len(seen.requests) // N_TURNS)  # a block is an agent
    naive_s, tidy_s, seen_s = (ExactDistribution(outcome.ttft_s).quantile(0.5) for outcome in (naive, tidy, seen))
    over_tidy = OVER_TIDY * 100 if len(seen.cached_percents) >= N_AGENTS else None  # the claim is about as many agents
    n_failed = sum(request.status != 200 for outcome in (naive, tidy, seen) for request in outcome.requests)
    return (
        Figure.mean(f"{case.name}: input read from the cache, naive", naive.cached_percents, "%"),
        Figure.mean(f"{case.name}: the same, tidy", tidy.cached_percents, "%"),
        Figure.mean(f"{case.name}: the same, through the gateway (n={len(seen.requests)})", seen.cached_percents, "%",
                    CACHED_SHARE * 100, Sense.AT_LEAST),
        Figure.mean(f"{case.name}: more than tidy by", more, "points", over_tidy, Sense.AT_LEAST),
        Figure(f"{case.name}: TTFT p50, naive", naive_s, "s"), Figure(f"{case.name}: TTFT p50, tidy", tidy_s, "s"),
        Figure(f"{case.name}: TTFT p50, through the gateway", seen_s, "s"),
        Figure.percent(f"{case.name}: TTFT shorter by", 1 - seen_s / naive_s, LESS_TTFT, Sense.AT_LEAST,
                       (1 - high, 1 - low)),
        Figure.percent(f"{case.name}: TTFT shorter than tidy's by", 1 - seen_s / tidy_s),
        Figure.percent(f"{case.name}: input costs less by", 1 - seen.input_usd / naive.input_usd),
        Figure.count(f"{case.name}: requests refused", n_failed),
    )
