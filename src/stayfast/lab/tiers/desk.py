"""Questions to a gateway whose route has two tiers, in virtual time: who answered what, and what it cost.

The upstreams are classifiers (`labellers`); everything else is the product: routing, checks, escalation, comparisons off the
path, and the prices, from which the gateway computes the cost of each attempt, whoever waits for it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from typing import Final, NamedTuple

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.events import AttemptDone, Fact
from stayfast.core.types import Api
from stayfast.lab.harness.virtual import serve_and_read, system_with_sink
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.tiers.labellers import LabelledAnswer, TierAnswers
from stayfast.lab.workloads.in_memory import BodyStream
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.admission.price import Price
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.tiers.config import TierEntry
from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.settings import LogSettings, MetricsSettings, RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import decode

ROUTE: Final = "bank"
SMALL, LARGE = "small", "large"
PRICE_RATIO: Final = 10.0  # the large tier costs so many times as much
PRICES: Final = {SMALL: 1.0 / PRICE_RATIO, LARGE: 1.0}  # dollars a million tokens, read or written
ANSWER_S: Final = {SMALL: 0.05, LARGE: 0.5}
N_TOKENS: Final = 20  # read, of each question: all questions cost the same
RATE_RPS: Final = 20.0
_LEAST_P: Final = 1e-9


class DeskAnswer(NamedTuple):
    """What a client got. intent: None: an error. tier: that answered."""

    intent: int | None
    tier: str


@dataclass(slots=True)
class DeskRun:
    """The answers in the order of the questions, and the cost in dollars by tier and role of the attempts."""

    answers: list[DeskAnswer] = field(default_factory=list)
    cost_usd: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total_usd(self) -> float:
        return sum(self.cost_usd.values())

    @property
    def exploration_usd(self) -> float:
        """The cost of answers that no client got."""
        return sum(cost for (_, role), cost in self.cost_usd.items() if role == "shadow")

    def share_of(self, tier: str) -> float:
        return sum(answer.tier == tier for answer in self.answers) / len(self.answers)


class _CostSink:
    """Sums what attempts cost."""

    def __init__(self, run: DeskRun) -> None:
        self._run = run

    def emit(self, fact: Fact) -> None:
        if isinstance(fact, AttemptDone) and fact.cost_usd is not None:
            self._run.cost_usd[fact.upstream, fact.role.partition(" ")[0]] += fact.cost_usd


class LabelUpstream:
    """One tier: answers a question with the name of its intent, and the log-probability of that name."""

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, answers: Mapping[str, LabelledAnswer], names: Sequence[str]) -> None:
        """answers: by question. names: of the intents."""
        self.name = name
        self._answers = answers
        self._names = names

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        question = msgspec.json.decode(call.request.body)["messages"][-1]["content"]
        found = self._answers[question]
        await asyncio.sleep(ANSWER_S[self.name])
        return BodyStream(call, self._render(call, self._names[found.intent], found.p), self.name)

    def _render(self, call: Call, label: str, p: float) -> bytes:
        token = {"token": label, "logprob": log(max(p, _LEAST_P)), "bytes": None, "top_logprobs": []}
        return msgspec.json.encode({
            "id": call.request_id, "object": "chat.completion", "created": 0, "model": call.model, "choices": [{
                "index": 0, "message": {"role": "assistant", "content": label}, "finish_reason": "stop",
                "logprobs": {"content": [token]}}],
            "usage": {"prompt_tokens": N_TOKENS, "completion_tokens": 1, "total_tokens": N_TOKENS + 1}})

    def close(self) -> None:
        """Holds nothing."""


async def run_desk(loop: SimLoop, tiers: TierAnswers, names: Sequence[str], enough: EnoughConfig, seed: int) -> DeskRun:
    """All questions, in their order, as Poisson arrivals. names: of the intents."""
    run, answers = DeskRun(), {SMALL: tiers.small, LARGE: tiers.large}
    upstreams = {name: SimulatedUpstream(probe=False, limit=LimitConfig("off"), breaker=BreakerConfig(enabled=False),
                                         prices={name: Price(PRICES[name], PRICES[name])}) for name in PRICES}
    route = RouteSettings(tiers=tuple([TierEntry(name, (name,), name) for name in (SMALL, LARGE)]), enough=enough,
                          hedge=HedgeConfig("off"))
    settings = Settings(upstreams=upstreams, routes={ROUTE: route}, log=LogSettings(level="error", requests=False),
                        metrics=MetricsSettings(enabled=False))
    system = system_with_sink(settings, _CostSink(run), loop, Random(seed))
    texts = [question.text for question in tiers.questions]
    for name in PRICES:
        system.registry[name].upstream = LabelUpstream(name, dict(zip(texts, answers[name], strict=True)), names)
    numbers = {name: number for number, name in enumerate(names)}
    run.answers = [DeskAnswer(None, "")] * len(texts)

    async def send(number: int) -> None:
        body = {"model": ROUTE, "messages": [{"role": "user", "content": texts[number]}], "logprobs": True}
        request = decode(Api.CHAT, msgspec.json.encode(body))
        try:
            reply = await serve_and_read(system.gateway, request, Arrival(f"q{number}", loop.now()), loop)
        except StayfastError:
            return
        label = msgspec.json.decode(reply.body)["choices"][0]["message"]["content"]
        run.answers[number] = DeskAnswer(numbers[label], reply.reply.upstream)

    rng = Random(seed)
    async with asyncio.TaskGroup() as group:
        for number in range(len(texts)):
            group.create_task(send(number))
            await asyncio.sleep(rng.expovariate(RATE_RPS))
    await asyncio.sleep(10 * max(ANSWER_S.values()))  # the last comparisons
    return run
