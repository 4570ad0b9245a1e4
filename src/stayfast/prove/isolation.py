"""No answer crosses a scope: what was said to one tenant, under one system prompt, is never said under another.

Random requests over tenants, system prompts, tools, output formats, earlier turns, sampling and dialects, in virtual time
and in many dresses (white space, the order of members, streamed or whole), many of them at the same instant. The upstream
says in each answer for which of all these it was made, and everybody looks whether it is theirs. What a request is, is known
from how it was drawn, and never from the code that makes keys.

When wrong: it can only cross what it draws. A member that it never sends is covered by the rule that unknown members count.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec

from stayfast.core.types import Api, Chunk, Request
from stayfast.pipeline.alarms import Alarms
from stayfast.pipeline.caching import Caching
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.handoffs import Route, Target, Terms
from stayfast.pipeline.stages.admit import AdmitAll
from stayfast.pipeline.stages.cache import ExactCache
from stayfast.pipeline.stages.call import Caller
from stayfast.pipeline.stages.context import AsSent
from stayfast.pipeline.stages.relay import Relay
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.stages.settle import Settle
from stayfast.pipeline.stages.template import Template
from stayfast.policy.cache import CacheConfig
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.stores.memory import MemoryStore
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.base import Call, Stream
from stayfast.upstreams.registry import Member
from stayfast.wire.decode import decode
from stayfast.wire.transcode import recite, transcoder

AT_ONCE = 40
AGAIN = 0.4  # of all, asked again of the last N_RECENT
N_RECENT = 60
THINKS_S = 0.2
LEAST_SERVED = 30.0  # %: a cache that never hits would cross nothing
MODELS = ("m", "other")
_TENANTS = ("a", "b", "ab", "", None)
_SYSTEMS = (None, "Be brief.", "Be long.", "be brief.")
_TOOLS = (None, "find", "delete")
_FORMATS = (None, "object", "schema")
_PARENTS = (None, "Is it red?", "Is it green?", "And why?")
_TEMPERATURES = (0, 0.1)
_QUESTIONS = ("Why?", "why?", "Is it red?", "And its types?")
_APIS = (Api.CHAT, Api.MESSAGES, Api.RESPONSES)


class Drawn(msgspec.Struct, frozen=True):
    """What a request is: two with the same may share an answer, and no others."""

    api: str
    tenant: str | None
    model: str
    system: str | None
    tools: str | None
    form: str | None
    parent: str | None
    temperature: float
    question: str


def drawn(rng: Random) -> Drawn:
    """Any."""
    return Drawn(rng.choice(_APIS), rng.choice(_TENANTS), rng.choice(MODELS), rng.choice(_SYSTEMS), rng.choice(_TOOLS),
                 rng.choice(_FORMATS), rng.choice(_PARENTS), rng.choice(_TEMPERATURES), rng.choice(_QUESTIONS))


def dressed(what: Drawn, rng: Random) -> Request:
    """One of the many ways to say it."""
    body = {Api.CHAT: _chat, Api.MESSAGES: _messages, Api.RESPONSES: _responses}[Api(what.api)](what, rng)
    body |= {"model": what.model, "temperature": what.temperature, "stream": rng.random() < 0.5}
    members = list(body.items())
    rng.shuffle(members)
    data = msgspec.json.encode(dict(members))
    return decode(Api(what.api), msgspec.json.format(data, indent=rng.choice((0, 2))))


def _white(text: str, rng: Random) -> str:
    return rng.choice(("", " ", "\n")) + text + rng.choice(("", "\r\n"))


def _turns(what: Drawn, rng: Random) -> list[dict[str, Any]]:
    asked = {"role": "user", "content": _white(what.question, rng)}
    if what.parent is None:
        return [asked]
    return [{"role": "user", "content": what.parent}, {"role": "assistant", "content": "Yes."}, asked]


def _schema(what: Drawn) -> dict[str, Any]:
    return {"type": "object", "properties": {what.tools or "answer": {"type": "string"}}}


def _chat(what: Drawn, rng: Random) -> dict[str, Any]:
    system = [{"role": "system", "content": _white(what.system, rng)}] if what.system is not None else []
    body: dict[str, Any] = {"messages": system + _turns(what, rng)}
    if what.tools is not None:
        body["tools"] = [{"type": "function", "function": {"name": what.tools, "parameters": _schema(what)}}]
    if what.form == "object":
        body["response_format"] = {"type": "json_object"}
    elif what.form is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    return body


def _messages(what: Drawn, rng: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": _turns(what, rng), "max_tokens": 50}
    if what.system is not None:
        body["system"] = _white(what.system, rng)
    if what.tools is not None:
        body["tools"] = [{"name": what.tools, "input_schema": _schema(what)}]
    if what.form is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": {"type": "object", "title": what.form}}}
    return body


def _responses(what: Drawn, rng: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"input": _turns(what, rng)}
    if what.parent is None and rng.random() < 0.5:
        body["input"] = _white(what.question, rng)
    if what.system is not None:
        body["instructions"] = _white(what.system, rng)
    if what.tools is not None:
        body["tools"] = [{"type": "function", "name": what.tools, "parameters": _schema(what), "strict": False}]
    if what.form is not None:
        body["text"] = {"format": {"type": "json_schema", "name": what.form, "schema": {"type": "object"}}}
    return body


class _Answer:
    """One answer, in the client's own dialect, through the transcoder that a real one comes through."""

    def __init__(self, call: Call, text: str) -> None:
        request = call.request
        self._coder = transcoder(request.api, request, source_streams=request.stream, upstream="oracle")
        self._chunks = self._read(recite(request, text, answer_id=call.request_id, created_at=0))
        self.sight = self._coder.sight

    def _read(self, body: bytes) -> Iterator[Chunk]:
        for chunk in (self._coder.feed(body), self._coder.finish()):
            if chunk is not None:
                yield chunk

    async def next(self) -> Chunk | None:
        return next(self._chunks, None)

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        pass


class Oracle:
    """An upstream that answers with the name of the request that it was asked for."""

    name = "oracle"
    kind = "simulated"
    always_streams = False

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names  # by request id

    def can_serve(self, api: Api) -> bool:
        return api.can_stream

    async def open(self, call: Call) -> Stream:
        await asyncio.sleep(THINKS_S)
        return _Answer(call, self._names[call.request_id])

    def close(self) -> None:
        pass


class _Deaf:
    """Takes no fact."""

    def emit(self, fact: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Isolation:
    """See the module."""

    n: int = 100_000
    n_quick: int = 10_000

    name = "isolation"
    says = ("Of 100,000 random requests none gets an answer of the exact cache, kept or shared in flight, that was made for "
            "another tenant, model, system prompt, tool set, output format, conversation, sampling or dialect.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        n = self.n_quick if conditions.is_quick else self.n
        conditions.say(f"{n} requests in virtual time")
        return await asyncio.to_thread(in_virtual_time, n, conditions.seed)


def in_virtual_time(n: int, seed: int) -> Finding:
    """All of it, and the verdict."""
    async def main(loop: SimLoop) -> Finding:
        rng, results = Random(seed), Counter[str]()
        names: dict[str, str] = {}
        recent: list[Drawn] = []
        gateway = _gateway(Oracle(names), loop, Random(seed))
        n_crossed = 0
        for first in range(0, n, AT_ONCE):
            asked = []
            for number in range(first, min(n, first + AT_ONCE)):
                what = rng.choice(recent) if recent and rng.random() < AGAIN else drawn(rng)
                recent = [*recent[-N_RECENT:], what]
                name = msgspec.json.encode(what).hex()  # letters that no dialect would write otherwise
                names[f"req_{number}"] = name
                asked.append(_ask(gateway, dressed(what, rng), Arrival(f"req_{number}", loop.now(), what.tenant), name))
            for result, is_mine in await asyncio.gather(*asked):
                results[result] += 1
                n_crossed += not is_mine
            names.clear()
        served = (results["hit"] + results["coalesced"]) / n * 100
        figures = (Figure("answers that were made for somebody else", float(n_crossed), "", 0.0),
                   Figure("requests served without a call of their own", served, "%", LEAST_SERVED, Sense.AT_LEAST))
        said = ", ".join(f"{count:,} {result}" for result, count in sorted(results.items()))
        return Finding(figures, (f"{n:,} requests: {said}.",))

    return run(main)


async def _ask(gateway: Gateway, request: Request, arrival: Arrival, name: str) -> tuple[str, bool]:
    """What the cache had to do with it, and whether the answer was made for this name, in the form that was asked for."""
    reply = await gateway.serve(request, arrival)
    parts = []
    try:
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
    finally:
        reply.close()
    body = b"".join(parts)
    is_stream = body.startswith((b"data: ", b"event: "))
    return (reply.cache or "").partition(";")[0], name.encode() in body and is_stream is request.stream


def _gateway(upstream: Oracle, loop: SimLoop, rng: Random) -> Gateway:
    sink = _Deaf()
    settle, caller = Settle(loop, sink), Caller(loop, rng, sink)
    member = Member(upstream, None, None, rng, sink)
    config = CacheConfig("exact")
    terms = Terms()
    routes = {name: Route(name, (Target(member),), terms=replace(
        terms, route=name, cache=Caching(config, name, MemoryStore(config.max_bytes)))) for name in MODELS}
    return Gateway(Alarms(loop), AdmitAll(), ExactCache(caller.start, loop, sink), AsSent(),
                   Router(routes, terms, loop, rng), caller, Template(loop, sink), Relay(loop, settle.done), settle)
