"""No answer crosses a scope: an answer to one tenant, under one system prompt, is never given under another.

Random requests in virtual time and in many forms (white space, the order of members, streamed or whole), many of them at the
same instant. The upstream puts into each answer for which `Identity` it was made, and each answer is compared with its
request, whose identity is known from how it was drawn, and never from the code that makes keys.

The same again with the semantic cache, whose embedder finds all texts alike (`workloads.memory`): then nothing but the scope
keeps answers apart, and only the question may be another one.

With `--data` also conversations: a question, its answer, and a follow-up ("What are its types?"), which is asked below its
own question twice, and below N_OTHERS of other conversations, to a semantic cache to which a text is only like itself. Below
its own the second is answered from the cache; below another's it never is.

When wrong: it can only cross what it draws. A member that it never sends is covered by the rule that unknown members count.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from stayfast.core.types import Api, Request
from stayfast.lab.harness.claim import Conditions, Figure, Finding, Sense, SetUpFailed
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.workloads.memory import SEMANTIC, Echoed, ask, echo_gateway, name_of
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.testing.simloop import SimLoop
from stayfast.wire.json_input import decode

AT_ONCE: Final = 40
AGAIN: Final = 0.4  # of all, asked again of the last N_RECENT
N_RECENT: Final = 60
LEAST_SERVED: Final = 30.0  # %: a cache that never hits would cross nothing
LEAST_IN_OTHER_WORDS: Final = 5.0  # %
FILES: Final = ("meancache_d1.json", "meancache_Synthetic_Dataset_Diverse.json")
N_OTHERS: Final = 10
LEAST_OWN: Final = 99.0  # %: a cache that never hits would mistake nothing
FROM_A_CACHE: Final = ("hit", "semantic", "coalesced")
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


class Identity(msgspec.Struct, frozen=True):
    """All that an answer depends on: two requests with the same identity may share an answer, and no others."""

    api: str
    tenant: str | None
    model: str
    system: str | None
    tools: str | None
    form: str | None
    parent: str | None
    temperature: float
    question: str


def draw_identity(rng: Random) -> Identity:
    return Identity(rng.choice(_APIS), rng.choice(_TENANTS), rng.choice(MODELS), rng.choice(_SYSTEMS), rng.choice(_TOOLS),
                    rng.choice(_FORMATS), rng.choice(_PARENTS), rng.choice(_TEMPERATURES), rng.choice(_QUESTIONS))


def random_request(identity: Identity, rng: Random) -> Request:
    """One of the many bodies with this identity."""
    body = {Api.CHAT: _chat, Api.MESSAGES: _messages, Api.RESPONSES: _responses}[Api(identity.api)](identity, rng)
    body |= {"model": identity.model, "temperature": identity.temperature, "stream": rng.random() < 0.5}
    members = list(body.items())
    rng.shuffle(members)
    data = msgspec.json.encode(dict(members))
    return decode(Api(identity.api), msgspec.json.format(data, indent=rng.choice((0, 2))))


def _white(text: str, rng: Random) -> str:
    return rng.choice(("", " ", "\n")) + text + rng.choice(("", "\r\n"))


def _turns(identity: Identity, rng: Random) -> list[dict[str, Any]]:
    question = {"role": "user", "content": _white(identity.question, rng)}
    if identity.parent is None:
        return [question]
    return [{"role": "user", "content": identity.parent}, {"role": "assistant", "content": "Yes."}, question]


def _schema(identity: Identity) -> dict[str, Any]:
    return {"type": "object", "properties": {identity.tools or "answer": {"type": "string"}}}


def _chat(identity: Identity, rng: Random) -> dict[str, Any]:
    system = [{"role": "system", "content": _white(identity.system, rng)}] if identity.system is not None else []
    body: dict[str, Any] = {"messages": system + _turns(identity, rng)}
    if identity.tools is not None:
        body["tools"] = [{"type": "function", "function": {"name": identity.tools, "parameters": _schema(identity)}}]
    if identity.form == "object":
        body["response_format"] = {"type": "json_object"}
    elif identity.form is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    return body


def _messages(identity: Identity, rng: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": _turns(identity, rng), "max_tokens": 50}
    if identity.system is not None:
        body["system"] = _white(identity.system, rng)
    if identity.tools is not None:
        body["tools"] = [{"name": identity.tools, "input_schema": _schema(identity)}]
    if identity.form is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": {"type": "object", "title": identity.form}}}
    return body


def _responses(identity: Identity, rng: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"input": _turns(identity, rng)}
    if identity.parent is None and rng.random() < 0.5:
        body["input"] = _white(identity.question, rng)
    if identity.system is not None:
        body["instructions"] = _white(identity.system, rng)
    if identity.tools is not None:
        body["tools"] = [{"type": "function", "name": identity.tools, "parameters": _schema(identity), "strict": False}]
    if identity.form is not None:
        body["text"] = {"format": {"type": "json_schema", "name": identity.form, "schema": {"type": "object"}}}
    return body


@dataclass(frozen=True, slots=True)
class Isolation:
    n: int = 100_000
    n_quick: int = 10_000

    name = "isolation"
    says = ("Of 100,000 random requests none gets an answer of the exact cache, kept or shared in flight, that was made for "
            "another tenant, model, system prompt, tool set, output format, conversation, sampling or dialect; of as many "
            "more none gets one of the semantic cache.")

    async def run(self, conditions: Conditions) -> Finding:
        n, seed = conditions.choose(self.n, self.n_quick), conditions.seed
        conditions.report_progress(f"{n:,} requests in virtual time, with the exact cache and with the semantic one")
        exact = await run_virtual_in_thread(ask_at_random, n, seed)
        semantic = await run_virtual_in_thread(ask_at_random, n, seed, is_semantic=True)
        figures, notes = exact.figures + semantic.figures, exact.notes + semantic.notes
        conversations = read_conversations(conditions.data) if conditions.data is not None else []
        if not conversations:
            return Finding(figures, (*notes, "Follow-ups were not asked: that needs --data DIR (docs/proofs.md)."))
        conditions.report_progress(f"the follow-ups of {len(conversations)} conversations")
        return Finding((*figures, *await run_virtual_in_thread(ask_follow_ups, conversations, seed)), notes)


async def ask_at_random(loop: SimLoop, n: int, seed: int, *, is_semantic: bool = False) -> Finding:
    """All requests to one kind of cache, and the verdict. Raises SetUpFailed."""
    config, which = (SEMANTIC, "semantic cache") if is_semantic else (CacheConfig("exact"), "exact cache")
    rng, results = Random(seed), Counter[str]()
    names: dict[str, str] = {}
    recent: list[Identity] = []
    gateway = echo_gateway(names, MODELS, config, loop, seed)
    n_crossed = 0
    for first in range(0, n, AT_ONCE):
        calls, expected = [], []
        for number in range(first, min(n, first + AT_ONCE)):
            identity = rng.choice(recent) if recent and rng.random() < AGAIN else draw_identity(rng)
            if is_semantic and rng.random() < AGAIN:
                identity = msgspec.structs.replace(identity, question=rng.choice(_QUESTIONS))
            recent = [*recent[-N_RECENT:], identity]
            names[f"req_{number}"] = name_of(msgspec.json.encode(identity))
            request = random_request(identity, rng)
            calls.append(ask(gateway, request, Arrival(f"req_{number}", loop.now(), identity.tenant)))
            expected.append((identity, request.stream))
        for echoed, (identity, streams) in zip(await asyncio.gather(*calls), expected, strict=True):
            results[echoed.result] += 1
            n_crossed += not _is_own_answer(echoed, identity) or echoed.is_stream is not streams
        names.clear()
    figures = [Figure(f"{which}: answers that were made for somebody else", float(n_crossed), "", 0.0),
               Figure(f"{which}: requests served without a call of their own",
                      sum(results[result] for result in FROM_A_CACHE) / n * 100, "%", LEAST_SERVED, Sense.AT_LEAST)]
    if is_semantic:
        figures.append(Figure(f"{which}: requests answered in other words", results["semantic"] / n * 100, "%",
                              LEAST_IN_OTHER_WORDS, Sense.AT_LEAST))
    counts = ", ".join(f"{count:,} {result}" for result, count in sorted(results.items()))
    return Finding(tuple(figures), (f"{n:,} requests, {which}: {counts}.",))


def _is_own_answer(echoed: Echoed, identity: Identity) -> bool:
    """Whether an answer was made for such a request; in other words, for another question in the same place."""
    if echoed.result != "semantic" or not echoed.name:
        return echoed.name == name_of(msgspec.json.encode(identity))
    made_for = msgspec.json.decode(bytes.fromhex(echoed.name), type=Identity)
    return msgspec.structs.replace(made_for, question=identity.question) == identity


class IsolatedConversation(msgspec.Struct, frozen=True, rename={
        "question": "Main Query", "answer": "Main Query Response", "follow_up": "Follow-Up Query"}):
    question: str
    answer: str
    follow_up: str


def read_conversations(folder: Path) -> list[IsolatedConversation]:
    """Those of the files in this folder, each once. Raises SetUpFailed for a file that is none."""
    found: dict[IsolatedConversation, None] = {}
    for path in [folder / name for name in FILES if (folder / name).exists()]:
        try:
            found |= dict.fromkeys(msgspec.json.decode(path.read_bytes(), type=list[IsolatedConversation]))
        except (OSError, msgspec.MsgspecError) as error:
            raise SetUpFailed(f"{path} cannot be read as conversations: {type(error).__name__}") from None
    return list(found)


async def ask_follow_ups(loop: SimLoop, conversations: Sequence[IsolatedConversation], seed: int) -> list[Figure]:
    """Ask all follow-ups, and count."""
    asker, rng = _FollowUps(loop, seed), Random(seed)
    n_own = n_taken = n_others = 0
    for one in conversations:
        await asker.ask(one, one)
        again, _ = await asker.ask(one, one)
        n_own += again in FROM_A_CACHE
        others = [other for other in rng.sample(conversations, min(len(conversations), N_OTHERS + 1))
                  if (other.question, other.answer) != (one.question, one.answer)]
        for other in others[:N_OTHERS]:
            result, is_new = await asker.ask(other, one)
            n_others += is_new
            n_taken += is_new and result in FROM_A_CACHE
    n_sent = f"{n_others:,} times below others'"
    return [
        Figure(f"follow-ups asked {n_sent}: answered from a cache", float(n_taken), "", 0.0),
        Figure("with answers that were made below another question", float(asker.n_crossed), "", 0.0),
        Figure("follow-ups below their own, asked again: answered from a cache",
               n_own / len(conversations) * 100 if conversations else 0.0, "%", LEAST_OWN, Sense.AT_LEAST)]


class _FollowUps:
    """Asks a follow-up below any first turn."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.n_crossed = 0
        self._names: dict[str, str] = {}
        self._gateway = echo_gateway(self._names, MODELS[:1], SEMANTIC, loop, seed, is_alike=False)
        self._loop = loop
        self._known: set[str] = set()
        self._n = 0

    async def ask(self, above: IsolatedConversation, below: IsolatedConversation) -> tuple[str, bool]:
        """The cache's part in the answer, and whether this follow-up was asked below those words for the first time."""
        turns = [("user", above.question), ("assistant", above.answer), ("user", below.follow_up)]
        name = name_of(msgspec.json.encode(turns))
        is_new, self._n = name not in self._known, self._n + 1
        self._known.add(name)
        self._names[f"req_{self._n}"] = name
        body = {"model": MODELS[0], "temperature": 0,
                "messages": [{"role": role, "content": text} for role, text in turns]}
        echoed = await ask(self._gateway, decode(Api.CHAT, msgspec.json.encode(body)),
                           Arrival(f"req_{self._n}", self._loop.now()))
        self.n_crossed += echoed.name != name
        await asyncio.sleep(1.0)  # the cache learns meanwhile
        return echoed.result, is_new
