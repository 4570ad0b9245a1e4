"""No answer crosses a scope: what was said to one tenant, under one system prompt, is never said under another.

Random requests over tenants, system prompts, tools, output formats, earlier turns, sampling and dialects, in virtual time
and in many dresses (white space, the order of members, streamed or whole), many of them at the same instant. The upstream
says in each answer for which of all these it was made, and everybody looks whether it is theirs. What a request is, is known
from how it was drawn, and never from the code that makes keys.

The same again with the semantic cache, whose embedder finds all texts alike (`prove.alike`): then nothing but the scope
keeps answers apart, and only the question may be another one.
With `--data` also conversations of two turns whose follow-up is asked below other first turns (`prove.parents`).

When wrong: it can only cross what it draws. A member that it never sends is covered by the rule that unknown members count.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from stayfast.core.types import Api, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.cache import CacheConfig
from stayfast.prove.claim import Conditions, Figure, Finding, Sense
from stayfast.prove.oracle import SEMANTIC, Oracle, Told, ask, gateway_of, name_of
from stayfast.prove.parents import below_others, conversations
from stayfast.testing.simloop import SimLoop, run
from stayfast.wire.json_input import decode

AT_ONCE = 40
AGAIN = 0.4  # of all, asked again of the last N_RECENT
N_RECENT = 60
LEAST_SERVED = 30.0  # %: a cache that never hits would cross nothing
LEAST_IN_OTHER_WORDS = 5.0  # %
MODELS = ("m", "other")
_TENANTS = ("a", "b", "ab", "", None)
_SYSTEMS = (None, "Be brief.", "Be long.", "be brief.")
_TOOLS = (None, "find", "delete")
_FORMATS = (None, "object", "schema")
_PARENTS = (None, "Is it red?", "Is it green?", "And why?")
_TEMPERATURES = (0, 0.1)
_QUESTIONS = ("Why?", "why?", "Is it red?", "And its types?", "How can I paint a fence?", "How do you paint the fence?",
              "Paint for a fence, which?", "Tell me how to paint fences.")
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


@dataclass(frozen=True, slots=True)
class Isolation:
    """See the module."""

    n: int = 100_000
    n_quick: int = 10_000

    name = "isolation"
    says = ("Of 100,000 random requests none gets an answer of the exact cache, kept or shared in flight, that was made for "
            "another tenant, model, system prompt, tool set, output format, conversation, sampling or dialect; of as many "
            "more none gets one of the semantic cache.")

    async def run(self, conditions: Conditions) -> Finding:
        """See `Claim`."""
        n = self.n_quick if conditions.is_quick else self.n
        seed = conditions.seed
        conditions.say(f"{n:,} requests in virtual time, with the exact cache and with the semantic one")
        exact = await asyncio.to_thread(in_virtual_time, n, seed)
        semantic = await asyncio.to_thread(in_virtual_time, n, seed, is_semantic=True)
        figures, notes = exact.figures + semantic.figures, exact.notes + semantic.notes
        asked = conversations(conditions.data) if conditions.data is not None else []
        if not asked:
            return Finding(figures, (*notes, "Follow-ups were not asked: that needs --data DIR (docs/proofs.md)."))
        conditions.say(f"the follow-ups of {len(asked)} conversations")
        return Finding((*figures, *await asyncio.to_thread(below_others, asked, seed)), notes)


def in_virtual_time(n: int, seed: int, *, is_semantic: bool = False) -> Finding:
    """All requests to one kind of cache, and the verdict. Raises SetUpFailed."""
    config, which = (SEMANTIC, "semantic cache") if is_semantic else (CacheConfig("exact"), "exact cache")

    async def main(loop: SimLoop) -> Finding:
        rng, results = Random(seed), Counter[str]()
        names: dict[str, str] = {}
        recent: list[Drawn] = []
        gateway = gateway_of(Oracle(names), MODELS, config, loop, Random(seed))
        n_crossed = 0
        for first in range(0, n, AT_ONCE):
            asked, whats = [], []
            for number in range(first, min(n, first + AT_ONCE)):
                what = rng.choice(recent) if recent and rng.random() < AGAIN else drawn(rng)
                if is_semantic and rng.random() < AGAIN:
                    what = msgspec.structs.replace(what, question=rng.choice(_QUESTIONS))
                recent = [*recent[-N_RECENT:], what]
                names[f"req_{number}"] = name_of(msgspec.json.encode(what))
                request = dressed(what, rng)
                asked.append(ask(gateway, request, Arrival(f"req_{number}", loop.now(), what.tenant)))
                whats.append((what, request.stream))
            for told, (what, streams) in zip(await asyncio.gather(*asked), whats, strict=True):
                results[told.result] += 1
                n_crossed += not _is_its_own(told, what) or told.is_stream is not streams
            names.clear()
        figures = [Figure(f"{which}: answers that were made for somebody else", float(n_crossed), "", 0.0),
                   Figure(f"{which}: requests served without a call of their own",
                          sum(results[result] for result in ("hit", "coalesced", "semantic")) / n * 100, "%", LEAST_SERVED,
                          Sense.AT_LEAST)]
        if is_semantic:
            figures.append(Figure(f"{which}: requests answered in other words", results["semantic"] / n * 100, "%",
                                  LEAST_IN_OTHER_WORDS, Sense.AT_LEAST))
        said = ", ".join(f"{count:,} {result}" for result, count in sorted(results.items()))
        return Finding(tuple(figures), (f"{n:,} requests, {which}: {said}.",))

    return run(main)


def _is_its_own(told: Told, what: Drawn) -> bool:
    """Whether an answer was made for such a request; in other words, for another question in the same place."""
    if told.result != "semantic" or not told.name:
        return told.name == name_of(msgspec.json.encode(what))
    made_for = msgspec.json.decode(bytes.fromhex(told.name), type=Drawn)
    return msgspec.structs.replace(made_for, question=what.question) == what
