"""No answer crosses a scope: a tenant never receives an answer that was made for another tenant, prompt or dialect.

Random requests in many forms (white space, order of members, streamed or whole) run in virtual time, many at the same
instant. The upstream puts the `Identity` of the request into each answer. The identity is known from the random draw, not
from the code that computes cache keys, and each answer is compared with it.

The same again with the semantic cache, whose embedder finds all texts alike (`workloads.memory`): only the scope separates
answers, and only the question may differ.

With `--data` also conversations: a question, its answer, and a follow-up ("What are its types?"), which is sent twice after
its own question, and after N_OTHERS other conversations, to a semantic cache to which a text is similar only to itself.
After its own question the second one is answered from the cache. After another question it never is.

When wrong: only drawn members are tested. Other members are covered by the rule that unknown members are part of the key.
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
from stayfast.lab.harness.claim import ClaimResult, Conditions, Figure, Sense, SetUpFailed
from stayfast.lab.harness.virtual import run_virtual_in_thread
from stayfast.lab.workloads.in_memory import SEMANTIC, Echoed, echo_gateway, encode_name, send_to_echo
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.testing.simloop import SimLoop
from stayfast.wire.request_body import decode

AT_ONCE: Final = 40
REPEATED: Final = 0.4  # share of requests that repeat one of the last N_RECENT
N_RECENT: Final = 60
MIN_SERVED: Final = 0.3  # a cache that never hits would trivially cross nothing
MIN_SEMANTIC: Final = 0.05
FILES: Final = ("meancache_d1.json", "meancache_Synthetic_Dataset_Diverse.json")
N_OTHERS: Final = 10
MIN_OWN: Final = 0.99  # a cache that never hits would trivially confuse nothing
CACHED: Final = ("hit", "semantic", "coalesced")
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
    """All that an answer depends on. Only requests with the same identity may share an answer."""

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


def draw_request(identity: Identity, rng: Random) -> Request:
    """A random body with this identity."""
    body = _BUILDERS[Api(identity.api)](identity, rng)
    body |= {"model": identity.model, "temperature": identity.temperature, "stream": rng.random() < 0.5}
    members = list(body.items())
    rng.shuffle(members)
    data = msgspec.json.encode(dict(members))
    return decode(Api(identity.api), msgspec.json.format(data, indent=rng.choice((0, 2))))


def _pad_white_space(text: str, rng: Random) -> str:
    return rng.choice(("", " ", "\n")) + text + rng.choice(("", "\r\n"))


def _build_turns(identity: Identity, rng: Random) -> list[dict[str, Any]]:
    question = {"role": "user", "content": _pad_white_space(identity.question, rng)}
    if identity.parent is None:
        return [question]
    return [{"role": "user", "content": identity.parent}, {"role": "assistant", "content": "Yes."}, question]


def _schema_for(identity: Identity) -> dict[str, Any]:
    return {"type": "object", "properties": {identity.tools or "answer": {"type": "string"}}}


def _build_chat(identity: Identity, rng: Random) -> dict[str, Any]:
    system = [{"role": "system", "content": _pad_white_space(identity.system, rng)}] if identity.system is not None else []
    body: dict[str, Any] = {"messages": system + _build_turns(identity, rng)}
    if identity.tools is not None:
        body["tools"] = [{"type": "function", "function": {"name": identity.tools, "parameters": _schema_for(identity)}}]
    if identity.form == "object":
        body["response_format"] = {"type": "json_object"}
    elif identity.form is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    return body


def _build_messages(identity: Identity, rng: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": _build_turns(identity, rng), "max_tokens": 50}
    if identity.system is not None:
        body["system"] = _pad_white_space(identity.system, rng)
    if identity.tools is not None:
        body["tools"] = [{"name": identity.tools, "input_schema": _schema_for(identity)}]
    if identity.form is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": {"type": "object", "title": identity.form}}}
    return body


def _build_responses(identity: Identity, rng: Random) -> dict[str, Any]:
    body: dict[str, Any] = {"input": _build_turns(identity, rng)}
    if identity.parent is None and rng.random() < 0.5:
        body["input"] = _pad_white_space(identity.question, rng)
    if identity.system is not None:
        body["instructions"] = _pad_white_space(identity.system, rng)
    if identity.tools is not None:
        body["tools"] = [{"type": "function", "name": identity.tools, "parameters": _schema_for(identity), "strict": False}]
    if identity.form is not None:
        body["text"] = {"format": {"type": "json_schema", "name": identity.form, "schema": {"type": "object"}}}
    return body


_BUILDERS = {Api.CHAT: _build_chat, Api.MESSAGES: _build_messages, Api.RESPONSES: _build_responses}


@dataclass(frozen=True, slots=True)
class Isolation:
    n: int = 100_000
    n_quick: int = 10_000

    name = "isolation"
    statement = ("Of 100,000 random requests none gets an answer of the exact cache, stored or in flight, that was made for "
            "another tenant, model, system prompt, tool set, output format, conversation, sampling or dialect. Of as many "
            "others none gets such an answer of the semantic cache.")

    async def run(self, conditions: Conditions) -> ClaimResult:
        n, seed = conditions.choose(self.n, self.n_quick), conditions.seed
        conditions.report_progress(f"{n:,} requests in virtual time, with the exact cache and with the semantic one")
        exact = await run_virtual_in_thread(send_random_requests, n, seed)
        semantic = await run_virtual_in_thread(send_random_requests, n, seed, is_semantic=True)
        figures, notes = exact.figures + semantic.figures, exact.notes + semantic.notes
        conversations = read_conversations(conditions.data) if conditions.data is not None else []
        if not conversations:
            return ClaimResult(figures, (*notes, "Follow-ups were not sent: that needs --data DIR (docs/proofs.md)."))
        conditions.report_progress(f"the follow-ups of {len(conversations)} conversations")
        return ClaimResult((*figures, *await run_virtual_in_thread(send_follow_ups, conversations, seed)), notes)


async def send_random_requests(loop: SimLoop, n: int, seed: int, *, is_semantic: bool = False) -> ClaimResult:
    """Send n requests to one kind of cache. Raises SetUpFailed."""
    config, which = (SEMANTIC, "semantic cache") if is_semantic else (CacheConfig("exact"), "exact cache")
    rng, results = Random(seed), Counter[str]()
    names: dict[str, str] = {}
    recent: list[Identity] = []
    gateway = echo_gateway(names, MODELS, config, loop, seed)
    n_crossed = 0
    for first in range(0, n, AT_ONCE):
        calls, expected = [], []
        for number in range(first, min(n, first + AT_ONCE)):
            identity = rng.choice(recent) if recent and rng.random() < REPEATED else draw_identity(rng)
            if is_semantic and rng.random() < REPEATED:
                identity = msgspec.structs.replace(identity, question=rng.choice(_QUESTIONS))
            recent = [*recent[-N_RECENT:], identity]
            names[f"req_{number}"] = encode_name(msgspec.json.encode(identity))
            request = draw_request(identity, rng)
            calls.append(send_to_echo(gateway, request, Arrival(f"req_{number}", loop.now(), identity.tenant)))
            expected.append((identity, request.stream))
        for echoed, (identity, streams) in zip(await asyncio.gather(*calls), expected, strict=True):
            results[echoed.result] += 1
            n_crossed += not _is_own_answer(echoed, identity) or echoed.is_stream is not streams
        names.clear()
    figures = [Figure.count(f"{which}: answers that were made for another tenant", n_crossed),
               Figure.share(f"{which}: requests served without a call of their own",
                            sum(results[result] for result in CACHED), n, MIN_SERVED, Sense.AT_LEAST)]
    if is_semantic:
        figures.append(Figure.share(f"{which}: requests answered in other words", results["semantic"], n, MIN_SEMANTIC,
                                    Sense.AT_LEAST))
    counts = ", ".join(f"{count:,} {result}" for result, count in sorted(results.items()))
    return ClaimResult(tuple(figures), (f"{n:,} requests, {which}: {counts}.",))


def _is_own_answer(echoed: Echoed, identity: Identity) -> bool:
    """Whether an answer was made for this identity; for a semantic hit, the question may differ."""
    if echoed.result != "semantic" or not echoed.name:
        return echoed.name == encode_name(msgspec.json.encode(identity))
    made_for = msgspec.json.decode(bytes.fromhex(echoed.name), type=Identity)
    return msgspec.structs.replace(made_for, question=identity.question) == identity


class IsolatedConversation(msgspec.Struct, frozen=True, rename={
        "question": "Main Query", "answer": "Main Query Response", "follow_up": "Follow-Up Query"}):
    question: str
    answer: str
    follow_up: str


def read_conversations(folder: Path) -> list[IsolatedConversation]:
    """The distinct conversations in the FILES of a folder. Raises SetUpFailed for an invalid file."""
    found: dict[IsolatedConversation, None] = {}
    for path in [folder / name for name in FILES if (folder / name).exists()]:
        try:
            found |= dict.fromkeys(msgspec.json.decode(path.read_bytes(), type=list[IsolatedConversation]))
        except (OSError, msgspec.MsgspecError) as error:
            raise SetUpFailed(f"{path} cannot be read as conversations: {type(error).__name__}") from None
    return list(found)


async def send_follow_ups(loop: SimLoop, conversations: Sequence[IsolatedConversation], seed: int) -> list[Figure]:
    sender, rng = _FollowUps(loop, seed), Random(seed)
    n_own = n_taken = n_others = 0
    for own in conversations:
        await sender.send(own, own)
        repeated, _ = await sender.send(own, own)
        n_own += repeated in CACHED
        others = [other for other in rng.sample(conversations, min(len(conversations), N_OTHERS + 1))
                  if (other.question, other.answer) != (own.question, own.answer)]
        for other in others[:N_OTHERS]:
            result, is_new = await sender.send(other, own)
            n_others += is_new
            n_taken += is_new and result in CACHED
    return [
        Figure.count(f"follow-ups asked {n_others:,} times below others': answered from a cache", n_taken),
        Figure.count("with answers that were made below another question", sender.n_crossed),
        Figure.share("follow-ups below their own, asked again: answered from a cache", n_own, len(conversations), MIN_OWN,
                     Sense.AT_LEAST)]


class _FollowUps:
    """Sends follow-ups after first turns."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.n_crossed = 0
        self._names: dict[str, str] = {}
        self._gateway = echo_gateway(self._names, MODELS[:1], SEMANTIC, loop, seed, all_alike=False)
        self._loop = loop
        self._known: set[str] = set()
        self._n = 0

    async def send(self, first: IsolatedConversation, follow_up: IsolatedConversation) -> tuple[str, bool]:
        """Returns the cache's result, and whether this combination was sent for the first time."""
        turns = [("user", first.question), ("assistant", first.answer), ("user", follow_up.follow_up)]
        name = encode_name(msgspec.json.encode(turns))
        is_new, self._n = name not in self._known, self._n + 1
        self._known.add(name)
        self._names[f"req_{self._n}"] = name
        body = {"model": MODELS[0], "temperature": 0,
                "messages": [{"role": role, "content": text} for role, text in turns]}
        echoed = await send_to_echo(self._gateway, decode(Api.CHAT, msgspec.json.encode(body)),
                                Arrival(f"req_{self._n}", self._loop.now()))
        self.n_crossed += echoed.name != name
        await asyncio.sleep(1.0)  # until the cache has learned
        return echoed.result, is_new
