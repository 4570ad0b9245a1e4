"""The route's own model judges the answers of its semantic cache, on virtual time."""

import asyncio
import re
from functools import partial
from itertools import product
from random import Random

import msgspec

from stayfast.core.events import AttemptDone, JudgeUnclear, RequestDone, SemanticJudged, SemanticLookup
from stayfast.core.types import Api, Outcome, Request
from stayfast.lab.workloads.in_memory import BodyStream
from stayfast.pipeline.attempts.hedge_plans import Hedging
from stayfast.pipeline.cache.route_cache import RouteCache
from stayfast.pipeline.cache.semantic import SemanticCache
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.pipeline.stages.cache.llm_judge import N_UNCLEAR, LlmJudge
from stayfast.pipeline.stages.relay import Reply
from stayfast.policy.admission.overload import AdmissionConfig
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.judge_reliability import FIRST_SAVED
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.stores.embedder import Embedders
from stayfast.stores.memory import MemoryStore
from stayfast.stores.vectors import Vectors
from stayfast.testing import SimLoop, run
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.local_answers import render_text_answer
from tests.flow.rig import MODEL, Rig, chat, read
from tests.flow.semantic_rig import WordEmbedder

PLACES = {
    ("renew", "passport"): "the town hall", ("translate", "passport"): "a sworn interpreter",
    ("cancel", "passport"): "the police", ("renew", "contract"): "our notary",
    ("translate", "contract"): "the lawyers upstairs", ("cancel", "contract"): "a signed letter",
    ("renew", "calendar"): "the wheel on top", ("translate", "calendar"): "the language page",
    ("cancel", "calendar"): "the group tab", ("renew", "prescription"): "the doctor's desk",
    ("translate", "prescription"): "any pharmacy",
    ("cancel", "prescription"): "the front counter"}
WORDINGS = ("Use {} for that.", "It is {} that does it.", "For this purpose, turn to {} please.", "You will want {}.",
            "Go by way of {}, and it is done.", "The right place is {}.")
FORMS = ("how can a customer {} the {}", "where does one {} the {}", "please explain how to {} the {}",
         "which steps are there to {} the {}", "is there a way to {} the {}", "what must somebody do to {} the {}")
TAILS = ("", " at once", " by phone", " in the app", " on site", " for a friend", " at the desk", " as a guest", " by mail",
         " in the evening")
PAIR = re.compile(r"<first>\n(.*)\n</first>\n<second>\n(.*)\n</second>", re.DOTALL)
JUDGE_ERROR = 0.03


def is_right(one: str, other: str) -> bool:
    """Whether two answers name the same place."""
    return [place in one for place in PLACES.values()] == [place in other for place in PLACES.values()]


class VaryingModel:
    """Answers each question in one of six wordings, and judges pairs of answers with seeded errors of both kinds."""

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, seed: int, verdict: str = "") -> None:
        self.name = name
        self._rng = Random(seed)
        self._verdict = verdict
        self.delay_s = 0.2
        self.n_judged = 0

    def can_serve(self, api: Api) -> bool:
        """Chats."""
        return api.can_stream

    async def open(self, call: Call) -> AnswerStream:
        """After a fifth of a second."""
        await asyncio.sleep(self.delay_s)
        messages = msgspec.json.decode(call.request.body)["messages"]
        asked = messages[-1]["content"]
        pair = PAIR.search(asked)
        if pair is None:
            verb, thing = next(each for each in PLACES if each[0] in asked and each[1] in asked)
            said = self._rng.choice(WORDINGS).format(PLACES[verb, thing])
        else:
            self.n_judged += 1
            is_yes = is_right(pair[1], pair[2]) is (self._rng.random() >= JUDGE_ERROR)
            said = self._verdict or ("yes" if is_yes else "no")
        body = render_text_answer(call.request, said, answer_id="a", created_at=0)
        return BodyStream(call, body, self.name, source_streams=call.request.stream)

    def close(self) -> None:
        """Holds nothing."""


class CheckedJudge:
    """The judge, whose verdicts are compared with the truth."""

    def __init__(self, judge: LlmJudge) -> None:
        self.judge = judge
        self.verdicts: list[tuple[bool | None, bool]] = []

    @property
    def miss_share(self) -> float:
        """Its own."""
        return self.judge.miss_share

    def note_call(self) -> None:
        """Passed on."""
        self.judge.note_call()

    async def is_same(self, one: str, other: str, question: str = "", model: str = "") -> bool | None:
        """Its verdict."""
        verdict = await self.judge.is_same(one, other, question, model)
        self.verdicts.append((verdict, is_right(one, other)))
        return verdict


class JudgedRig(Rig):
    """A route whose model judges its own answers."""

    def __init__(self, loop: SimLoop, *, seed: int = 1, share: float = 1.0, verdict: str = "",
                 admit: Admission | None = None) -> None:
        self.model, self.second = VaryingModel("first", seed, verdict), VaryingModel("second", seed, verdict)
        super().__init__(loop, upstreams=[self.model, self.second], in_turn=True, admit=admit)
        config = CacheConfig("semantic", max_temperature=1.0, semantic=SemanticConfig(
            "5%", eligible=EligibleConfig(allow_personal=True)))
        embedder = WordEmbedder()
        judge = LlmJudge(MODEL, MODEL, self.serve_judge, share=share, clock=loop, rng=Random(seed), sink=self.sink)
        self.checked = CheckedJudge(judge)
        store = MemoryStore(1 << 26)
        self.semantic = SemanticCache(
            config.semantic, MODEL, store=store, embedding=Embedders(embedder, embedder), index=Vectors,
            sameness=self.checked, verifier=None, clock=loop, rng=Random(seed), sink=self.sink)
        self.change_policy(cache=RouteCache(config, MODEL, store, self.semantic))

    async def serve_judge(self, request: Request, arrival: Arrival) -> Reply:
        """By the gateway of now."""
        return await self.gateway.serve(request, arrival)

    @property
    def n_judged(self) -> int:
        """Requests to the judge, as the upstreams count them."""
        return self.model.n_judged + self.second.n_judged

    @property
    def lookups(self) -> list[str]:
        """What came of each look-up and audit."""
        return [fact.result for fact in self.sink.facts_of(SemanticLookup)]

    async def ask(self, text: str, tenant: str | None = None) -> str | None:
        """Ask, and wait until the answer is learned. What the cache says."""
        request = chat(stream=False, messages=[{"role": "user", "content": text}])
        reply = await self.gateway.serve(request, Arrival("req_1", self.loop.now(), tenant))
        await read(reply)
        reply.close()
        while self.semantic.n_pending:
            await asyncio.sleep(0.1)
        return reply.cache


def questions(seed: int) -> list[str]:
    """Seven hundred and twenty, in any order."""
    asked = [form.format(*of) + tail + "?" for form, tail, of in product(FORMS, TAILS, PLACES)]
    Random(seed).shuffle(asked)
    return asked


def test_semantic_llm_judge_labels_answers_in_other_words() -> None:
    """Each right answer has six wordings, and the model errs in 3 % of its verdicts either way. In three runs, at least 97 %
    of the verdicts are right, the share of missed differences is below its bound, and the requests are within the share.
    """
    n_wrong = n_verdicts = 0

    async def main(loop: SimLoop, seed: int) -> None:
        nonlocal n_wrong, n_verdicts
        rig = JudgedRig(loop, seed=seed)
        caches = [await rig.ask(question) for question in questions(seed)]
        n_hits = sum("semantic" in (cache or "") for cache in caches)
        verdicts = [each for each in rig.checked.verdicts if each[0] is not None]
        assert len(verdicts) > 300
        n_wrong += sum(verdict is not is_same for verdict, is_same in verdicts)
        n_verdicts += len(verdicts)
        missed = [verdict for verdict, is_same in verdicts if not is_same]
        assert missed.count(True) / len(missed) < rig.checked.miss_share < 0.15
        assert rig.checked.miss_share > JUDGE_ERROR + JUDGE_ERROR**2
        n_calls = len(caches) - n_hits + rig.lookups.count("audit_started")
        assert rig.n_judged <= n_calls + FIRST_SAVED + 2

    for seed in (1, 2, 3):
        run(partial(main, seed=seed))
    assert n_wrong <= 0.03 * n_verdicts, (n_wrong, n_verdicts)


def test_semantic_llm_judge_requests_are_no_requests_of_clients() -> None:
    """They are neither counted nor looked up nor judged. Their attempts have a role, by which their cost is counted, and
    no client's usage changes.
    """
    async def main(loop: SimLoop, share: float = 1.0) -> None:
        admission = Admission(AdmissionConfig(10), {}, loop, Random(3))
        rig = JudgedRig(loop, admit=admission, share=share)
        asked = [form.format("renew", "passport") + "?" for form in FORMS]
        for question in asked:
            await rig.ask(question)
        attempts = rig.sink.facts_of(AttemptDone)
        judged = [done for done in attempts if done.role == "judge"]
        assert len(judged) == rig.n_judged
        assert {done.outcome for done in judged} == ({Outcome.SUCCESS} if share else set())
        assert len(attempts) - len(judged) == len(rig.sink.facts_of(RequestDone)) == len(asked)
        assert len(rig.lookups) == len(asked)
        usual.append(admission.tenants.get(None, loop.now()).usual_output)

    usual: list[float] = []
    run(main)
    run(partial(main, share=0.0))
    assert usual[0] == usual[1]


def test_semantic_llm_judge_is_not_hedged() -> None:
    """Although the route always hedges."""
    async def main(loop: SimLoop) -> None:
        rig = JudgedRig(loop)
        rig.change_route(hedging=Hedging(HedgeConfig("race", race_after_s=0.05), RetryConfig()))
        for form in FORMS:
            await rig.ask(form.format("renew", "passport") + "?")
        assert rig.n_judged > 0
        roles = [done.role for done in rig.sink.facts_of(AttemptDone)]
        assert roles.count("hedge") == len(FORMS)  # of the clients' requests
        assert rig.n_judged == roles.count("judge")

    run(main)


def test_semantic_llm_judge_gives_way_to_clients() -> None:
    """With one place in the gateway, which a client wants too, the judge waits or is rejected; the client is first."""
    async def main(loop: SimLoop) -> None:
        rig = JudgedRig(loop, admit=Admission(AdmissionConfig(1), {}, loop, Random(3)))
        await rig.ask("how can a customer renew the passport?")
        began_at = loop.now()
        async with asyncio.TaskGroup() as group:
            for form in FORMS[1:4]:
                group.create_task(rig.ask(form.format("renew", "passport") + "?"))
        clients = [done for done in rig.sink.facts_of(RequestDone) if done.accepted_at >= began_at]
        assert [done.status for done in clients] == [200] * 3
        assert max(done.ended_at for done in clients) - began_at < 4 * rig.model.delay_s + 0.01

    run(main)


def test_semantic_llm_judge_without_verdicts_learns_nothing_and_warns() -> None:
    """A model that replies in sentences."""
    async def main(loop: SimLoop) -> None:
        rig = JudgedRig(loop, verdict="Both answers are about the same place.")
        for question in questions(1)[:100]:
            await rig.ask(question)
        assert rig.semantic.stats().n_labels == 0
        (fact,) = rig.sink.facts_of(JudgeUnclear)
        assert (fact.n, fact.what) == (N_UNCLEAR, "other words")

    run(main)


def test_semantic_llm_judge_without_budget_is_not_called() -> None:
    async def main(loop: SimLoop) -> None:
        rig = JudgedRig(loop, share=0.0)
        for question in questions(1)[:30]:
            await rig.ask(question)
        assert (rig.n_judged, rig.semantic.stats().n_labels) == (0, 0)
        assert {fact.result for fact in rig.sink.facts_of(SemanticJudged)} == {"no_budget"}

    run(main)
