"""A gateway with a route that shortens histories by a route of a small model, in virtual time."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from stayfast.core.events import Fanout, RequestDone
from stayfast.core.types import Api, Request
from stayfast.lab.harness.virtual import read_body, system_with_sink
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.workloads.in_memory import BodyStream
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.context.config import ContextConfig
from stayfast.policy.context.history import HistoryConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, RouteSettings, Settings
from stayfast.testing import RecordingSink, SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.local_answers import render_text_answer
from stayfast.wire.request_body import decode

Answer = Callable[[str], str]  # of a prompt
CONFIG = HistoryConfig("summarize", allowance_tokens=1000, by="small")
HONEST = "NARRATIVE: " + "The user talks about the harbour, and about the weather at sea next week. " * 2
PER_TURN = 100  # tokens of a turn, about


class TextUpstream:
    """Answers after `delay_s` with what `answer` makes of the last message. error: raised instead."""

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, answer: Answer, delay_s: float = 0.1) -> None:
        self.name = name
        self.answer = answer
        self.delay_s = delay_s
        self.error: Exception | None = None
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []

    def can_serve(self, api: Api) -> bool:
        return api.can_stream

    async def open(self, call: Call) -> AnswerStream:
        self.raw.append(call.request.body)
        self.bodies.append(body := msgspec.json.decode(call.request.body))
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        text = self.answer(str((body.get("messages") or body["input"])[-1]["content"]))
        answer = render_text_answer(call.request, text, answer_id="a1", created_at=0)
        return BodyStream(call, answer, self.name, source_streams=call.request.stream)

    def close(self) -> None:
        """Holds nothing."""


class HistoryRig:
    """The gateway, its models and its facts. summarize: the small model's answer to a prompt."""

    def __init__(self, loop: SimLoop, history: HistoryConfig = CONFIG, summarize: Answer = lambda prompt: HONEST,
                 **settings: Any) -> None:
        self.loop = loop
        quiet = SimulatedUpstream(probe=False, limit=LimitConfig("off"), breaker=BreakerConfig(enabled=False))
        self.settings = Settings(
            upstreams={"large": quiet, "tiny": quiet}, log=LogSettings(level="error", requests=False),
            routes={"m": RouteSettings(("large",), context=ContextConfig(history=history)),
                    "small": RouteSettings(("tiny",))}, **settings)
        self.sink = RecordingSink()
        self.system = system_with_sink(self.settings, Fanout(self.sink), loop, Random(1))
        self.large, self.small = TextUpstream("large", lambda prompt: "fine"), TextUpstream("tiny", summarize)
        self.system.registry["large"].upstream = self.large
        self.system.registry["tiny"].upstream = self.small
        self.gateway = self.system.gateway
        self.n_requests = 0

    async def send(self, request: Request, tenant: str | None = None, session: str = "") -> dict[str, Any]:
        """Send a request; what the large model got."""
        self.n_requests += 1
        headers = (("x-session-id", session),) if session else ()
        arrival = Arrival(f"req_{self.n_requests}", self.loop.now(), tenant, headers)
        await read_body(await self.gateway.serve(request, arrival))
        return self.large.bodies[-1]

    async def settle(self, seconds: float = 5.0) -> None:
        """Time for summaries to be made."""
        await asyncio.sleep(seconds)

    @property
    def done(self) -> list[RequestDone]:
        """The facts of the clients' requests."""
        return self.sink.facts_of(RequestDone)


def say(number: int, words: str = "") -> list[dict[str, Any]]:
    """One turn of about 100 tokens, without numbers and names."""
    filler = " ".join(("the harbour and the weather at sea next week",) * 8)
    return [{"role": "user", "content": f"{words or letters(number)} {filler[:160]}"},
            {"role": "assistant", "content": f"{letters(number)} {filler[:150]}"}]


def letters(number: int) -> str:
    """A word that no other turn has."""
    return "about " + "".join(chr(97 + int(digit)) for digit in f"{number:03}")


def chat_of(n_turns: int, *, first: str = "", question: str = "and now tell me more please", model: str = "m") -> Request:
    """A chat of so many turns and a question."""
    messages = [{"role": "system", "content": "You are kind."}]
    for number in range(n_turns):
        messages += say(number, first if number == 0 else "")
    return as_chat([*messages, {"role": "user", "content": question}], model)


def as_chat(messages: list[dict[str, Any]], model: str = "m", **fields: Any) -> Request:
    """A chat request."""
    return decode(Api.CHAT, msgspec.json.encode({"model": model, "messages": messages, **fields}))


def summary_in(body: dict[str, Any]) -> str:
    """The summary in what was sent; empty: none."""
    messages = body.get("messages") or body["input"]
    return next((str(each["content"]) for each in messages if str(each.get("content")).startswith("<summary")), "")
