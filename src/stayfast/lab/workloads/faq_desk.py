"""A bank's help desk in virtual time: visitors, a gateway made by production's composition, and a simulated model.

The model knows each question's topic, and answers in words that it never used before. It also judges: another request has
two answers, and the reply is yes if their topics are the same, wrong with the probability JUDGE_ERROR. The harness knows the
topic of each answer by its words, so it knows which of the cache's answers were wrong.

Computation takes no virtual time. The vectors of questions are those of the model that a gateway uses, computed beforehand.
All answers have the same vector: nothing but the judge tells them apart.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stayfast.compose.caching import explain_missing_packages
from stayfast.compose.current import Running
from stayfast.compose.system import Observers, System, build
from stayfast.core.errors import Shed, StayfastError
from stayfast.core.types import Api
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.virtual import serve_and_read
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.workloads.faq_answers import AnswerBook, Topic
from stayfast.lab.workloads.in_memory import BodyStream, MemoryEmbedder, cache_result
from stayfast.pipeline.exchange import Arrival, Exchange
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.plan import Admitted
from stayfast.pipeline.stages.admit.admission import Admit
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import LogSettings, MetricsSettings, RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.request_body import decode

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

FAQ: Final = "faq"
SYSTEM: Final = "You are the help desk of a bank. Answer the customer in a few friendly sentences."
MODEL: Final = "model"
JUDGE_ERROR: Final = 0.02
EMBED_S: Final = 0.003
RATE_RPS: Final = 10.0
_ANSWER_S: Final = (0.5, 2.0)
_VERDICT_S: Final = (0.15, 0.4)
_CHARS_PER_TOKEN: Final = 4
_FIRST: Final = re.compile(r"<first>\s*(.*?)\s*</first>", re.DOTALL)
_SECOND: Final = re.compile(r"<second>\s*(.*?)\s*</second>", re.DOTALL)


class FaqVisit(NamedTuple):
    """One question. demand: of `Topic`. phase: a label for the figures."""

    text: str
    subject: str
    system: str = SYSTEM
    phase: str = ""
    demand: str = ""

    @property
    def topic(self) -> Topic:
        return Topic(self.subject, self.system, self.demand)


class VisitResult(NamedTuple):
    """kind: the cache's result. topic: of the answer; None: no answer."""

    visit: FaqVisit
    kind: str
    topic: Topic | None

    @property
    def is_hit(self) -> bool:
        """Whether the answer to another question was returned."""
        return self.kind == "semantic"

    @property
    def is_wrong(self) -> bool:
        return self.topic != self.visit.topic


@dataclass(slots=True)
class FaqOutcomes:
    """The results in the order of the visits, and what the model was called for."""

    results: list[VisitResult]
    n_answers: int = 0  # made by the model, for misses and audits
    n_verdicts: int = 0
    n_refused: int = 0  # background calls

    def hits(self, phase: str | None = None) -> list[VisitResult]:
        return [one for one in self.results if one.is_hit and (phase is None or one.visit.phase == phase)]

    def phase(self, phase: str) -> list[VisitResult]:
        return [one for one in self.results if one.visit.phase == phase]


class _Message(msgspec.Struct):
    role: str
    content: str


class _ChatBody(msgspec.Struct):
    messages: list[_Message]


_decode_chat = msgspec.json.Decoder(_ChatBody).decode
_encode = msgspec.json.Encoder().encode


class _ReplyMessage(msgspec.Struct):
    content: str


class _ReplyChoice(msgspec.Struct):
    message: _ReplyMessage


class _ReplyBody(msgspec.Struct):
    choices: list[_ReplyChoice]


_decode_reply = msgspec.json.Decoder(_ReplyBody).decode


class FaqModel:
    """An upstream. topics: of all questions, under any instructions."""

    name = MODEL
    kind = "simulated"
    always_streams = False

    def __init__(self, topics: Mapping[str, Topic], seed: int, judge_error: float = JUDGE_ERROR) -> None:
        self.book = AnswerBook(seed)
        self.n_answers = self.n_verdicts = 0
        self._topics = topics
        self._judge_error = judge_error
        self._rng = Random(seed)

    def can_serve(self, api: Api) -> bool:
        return api is Api.CHAT

    async def open(self, call: Call) -> AnswerStream:
        messages = _decode_chat(call.request.body).messages
        system = next((each.content for each in messages if each.role == "system"), "")
        question, rng = messages[-1].content, self._rng
        topic = self._topics.get(question)
        if topic is None:  # two answers
            self.n_verdicts += 1
            await asyncio.sleep(rng.uniform(*_VERDICT_S))
            text = "yes" if self._compare(question) else "no"
        else:
            self.n_answers += 1
            await asyncio.sleep(rng.uniform(*_ANSWER_S))
            text = self.book.write_answer(topic._replace(system=system))
        return BodyStream(call, _render_chat(call, text, len(system) + len(question)), MODEL)

    def _compare(self, prompt: str) -> bool:
        """The verdict on two answers, with its errors."""
        first, second = _FIRST.search(prompt), _SECOND.search(prompt)
        topics = [self.book.topic_of(found[1]) for found in (first, second) if found is not None]
        is_same = len(topics) == 2 and topics[0] is not None and topics[0] == topics[1]
        return is_same != (self._rng.random() < self._judge_error)

    def close(self) -> None:
        pass


def _render_chat(call: Call, text: str, n_prompt_chars: int) -> bytes:
    n_in, n_out = n_prompt_chars // _CHARS_PER_TOKEN, len(text) // _CHARS_PER_TOKEN + 1
    return _encode({
        "id": call.request_id, "object": "chat.completion", "created": 0, "model": call.model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}})


class QuestionVectors:
    """The vectors of questions, computed once. All other texts have one vector in common."""

    def __init__(self, model: Any) -> None:
        """model: as `stores.onnx_embedder.OnnxEncoder`."""
        self.id: str = model.id
        self._model = model
        self._known: dict[str, Floats] = {}
        self._other: Floats = model.embed_all(["An answer."])[0]

    def prepare(self, texts: Iterable[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known |= zip(new, self._model.embed_all(new), strict=True)

    def embed_text(self, text: str) -> "Floats":
        return self._known.get(text, self._other)

    def make_embedder(self) -> MemoryEmbedder:
        return MemoryEmbedder(self.id, len(self._other), self.embed_text, EMBED_S)


class RefuseBackground:
    """Instead of admission: while `is_refusing`, batch requests are shed."""

    def __init__(self, admit: Admit) -> None:
        self.is_refusing = False
        self.n_refused = 0
        self._admit = admit

    async def admit(self, ex: Exchange) -> Admitted:
        if self.is_refusing and ex.arrival.urgency is Urgency.BATCH:
            self.n_refused += 1
            raise Shed("no background calls now", reason="overload")
        return await self._admit.admit(ex)


class _Desk(NamedTuple):
    """A gateway with the route FAQ."""

    gateway: Gateway
    model: FaqModel
    background: RefuseBackground


def _make_desk(loop: SimLoop, topics: Mapping[str, Topic], route: RouteSettings, vectors: QuestionVectors,
               seed: int) -> _Desk:
    """Raises SetUpFailed if a package is missing."""
    upstream = SimulatedUpstream(probe=False, limit=LimitConfig("off"), breaker=BreakerConfig(enabled=False))
    quiet = Settings(upstreams={MODEL: upstream}, log=LogSettings(level="error", requests=False),
                     metrics=MetricsSettings(enabled=False), routes={FAQ: route})
    if lacking := explain_missing_packages(quiet):
        raise SetUpFailed(lacking)
    observers = Observers(quiet, loop)
    system = build(quiet, observers, {}, loop, Random(seed))
    model = FaqModel(topics, seed)
    system.registry[MODEL].upstream = model
    if system.embedding is not None:
        system.embedding.foreground = system.embedding.background = vectors.make_embedder()
    return _refuse_background(system, observers, model)


def _refuse_background(system: System, observers: Observers, model: FaqModel) -> _Desk:
    """The same gateway with `RefuseBackground`, for the clients' requests and for its own."""
    background = RefuseBackground(system.gateway.admit)
    gateway = replace(system.gateway, admit=background)
    observers.current.swap(Running(gateway, system.registry, system.stores, {}, {}, {}))
    return _Desk(gateway, model, background)


async def visit_desk(loop: SimLoop, visits: Sequence[FaqVisit], route: RouteSettings, vectors: QuestionVectors, seed: int,
                     *, rate_rps: float = RATE_RPS, refused: range = range(0)) -> FaqOutcomes:
    """Poisson arrivals. refused: the visits during which background calls are refused. The vectors are prepared."""
    desk = _make_desk(loop, {visit.text: visit.topic for visit in visits}, route, vectors, seed)
    rng = Random(seed)
    results: list[VisitResult | None] = [None] * len(visits)

    async def send(number: int, visit: FaqVisit) -> None:
        body = b'{"model":"%b","temperature":0,"messages":[{"role":"system","content":%b},{"role":"user","content":%b}]}' % (
            FAQ.encode(), _encode(visit.system), _encode(visit.text))
        try:
            served = await serve_and_read(desk.gateway, decode(Api.CHAT, body), Arrival(f"req_{number:x}", loop.now()),
                                          loop)
        except StayfastError:
            results[number] = VisitResult(visit, "failed", None)
        else:
            topic = desk.model.book.topic_of(_decode_reply(served.body).choices[0].message.content)
            results[number] = VisitResult(visit, cache_result(served.reply.cache), topic)

    at = loop.now()
    async with asyncio.TaskGroup() as group:
        for number, visit in enumerate(visits):
            at += rng.expovariate(rate_rps)
            await asyncio.sleep(at - loop.now())
            desk.background.is_refusing = number in refused
            group.create_task(send(number, visit))
    model = desk.model
    return FaqOutcomes([one for one in results if one is not None], model.n_answers, model.n_verdicts,
                       desk.background.n_refused)
