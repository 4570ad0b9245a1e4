"""A model as the judge of answers."""

import asyncio
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.errors import Rejected, Shed
from stayfast.core.events import JudgeUnclear, SemanticJudged
from stayfast.core.types import Chunk, Request
from stayfast.pipeline.cache.answer_judge import MAX_CHARS
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.cache.llm_judge import N_FORM, N_UNCLEAR, AnswerVerifier, LlmJudge
from stayfast.policy.admission.priority import Urgency
from stayfast.policy.cache.judge_reliability import FIRST_SAVED, MOST_SAVED
from stayfast.testing import RecordingSink

ONE, OTHER = "Click the link.", "Use the link."
FIGURE, OTHER_FIGURE = "It costs 5 euros.", "It costs 6 euros."


class JudgeReply:
    """A reply in two parts."""

    def __init__(self, words: str) -> None:
        body = msgspec.json.encode({
            "id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}]})
        self._parts = [body[:30], body[30:]]
        self.is_closed = False

    async def next(self) -> Chunk | None:
        """The next part."""
        return Chunk(self._parts.pop(0)) if self._parts else None

    async def aclose(self) -> None:
        """Closed."""
        self.is_closed = True


class Model:
    """A gateway whose model replies with these words, one after another, and the last of them again and again."""

    def __init__(self, *words: str | None, seed: int = 1, share: float = 1.0, judge: str = "small") -> None:
        self.words = list(words)
        self.error: Exception = Shed("full", reason="queue_full")
        self.requests: list[tuple[Request, Arrival]] = []
        self.replies: list[JudgeReply] = []
        self.sink = RecordingSink()
        self.judge = LlmJudge("faq", judge, self.serve, share=share, clock=SystemClock(), rng=Random(seed), sink=self.sink)

    async def serve(self, request: Request, arrival: Arrival) -> JudgeReply:
        """Serve."""
        self.requests.append((request, arrival))
        words = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if words is None:
            raise self.error
        self.replies.append(JudgeReply(words))
        return self.replies[-1]

    def is_same(self, one: str = ONE, other: str = OTHER, question: str = "", model: str = "") -> bool | None:
        """Its verdict; the route has made a call before, so that there is budget."""
        self.judge.note_call()
        self.judge.note_call()
        return asyncio.run(self.judge.is_same(one, other, question, model))

    def prompts(self) -> list[str]:
        """What it was asked."""
        return [msgspec.json.decode(request.body)["messages"][1]["content"] for request, _ in self.requests]

    @property
    def results(self) -> list[str]:
        """What is counted."""
        return [fact.result for fact in self.sink.facts_of(SemanticJudged)]


def seed_of(is_wanted: Callable[[Model], bool], *words: str) -> int:
    """A seed with which a judgement has this property."""
    for seed in range(100):
        model = Model(*words, seed=seed)
        model.is_same()
        if is_wanted(model):
            return seed
    raise AssertionError("no seed has it")


@pytest.mark.parametrize(("words", "expected"), [
    ("yes", True), ("Yes.", True), (" NO\n", False), ("no!", False), ("**Yes**", True),
    ("<think>no, or...</think>\nyes", True), ("Yes, but", None), ("", None), (None, None)])
def test_llm_judge_accepts_one_word(words: str | None, expected: bool | None) -> None:
    """Anything else, and any failure, is no label."""
    model = Model(words)
    assert model.is_same() is expected
    assert all(told.is_closed for told in model.replies)


def test_llm_judge_request_has_both_answers() -> None:
    """And the question; at temperature 0, as a batch request without a tenant, with the role of a judge."""
    model = Model("yes")
    model.is_same(question="How?")
    request, arrival = model.requests[0]
    body = msgspec.json.decode(request.body)
    assert (request.model, body["temperature"], arrival.urgency, arrival.tenant, arrival.role) == (
        "small", 0, Urgency.BATCH, None, "judge")
    asked = "<question>\nHow?\n</question>\n<first>\n{}\n</first>\n<second>\n{}\n</second>"
    assert model.prompts()[0] in (asked.format(ONE, OTHER), asked.format(OTHER, ONE))
    for rule in ("no instruction", "figures", "conditions", "scope", "one word"):
        assert rule in body["messages"][0]["content"]


def test_llm_judge_of_the_route_for_all_models_uses_the_requests_model() -> None:
    """That route's name is no model."""
    model = Model("yes", judge="*")
    model.is_same(model="gpt-9")
    assert model.requests[0][0].model == "gpt-9"


@pytest.mark.parametrize(("one", "other", "expected"), [(ONE, ONE, True), (ONE, "click the link", True),
                                                        (ONE, "a" * 3 * MAX_CHARS + "b", False)])
def test_llm_judge_is_not_called_if_the_verdict_is_known(one: str, other: str, expected: bool | None) -> None:
    """The words are equal, or too many."""
    model = Model("no")
    assert model.is_same(one, other) is expected
    assert model.requests == []


def test_llm_judge_checks_a_no_with_the_answers_exchanged() -> None:
    """Two votes suffice if they agree."""
    model = Model("no")
    assert model.is_same() is False
    first, second = model.prompts()
    assert first.index(ONE) < first.index(OTHER) or second.index(ONE) < second.index(OTHER)
    assert (first.index(ONE) < first.index(OTHER)) is not (second.index(ONE) < second.index(OTHER))


@pytest.mark.parametrize(("words", "expected"), [(("no", "yes", "yes"), True), (("no", "yes", "no"), False)])
def test_llm_judge_disagreement_is_decided_by_a_third_vote(words: tuple[str, ...], expected: bool) -> None:
    """With other instructions, since a model repeats itself at temperature 0."""
    model = Model(*words)
    assert model.is_same() is expected
    system = [msgspec.json.decode(request.body)["messages"][0]["content"] for request, _ in model.requests]
    assert len(system) == 3
    assert system[0] == system[1] != system[2]


def test_llm_judge_checks_a_sample_of_the_yes_verdicts() -> None:
    """One of four; a disagreement may turn it into a no."""
    model = Model("yes")
    for _ in range(400):
        model.is_same()
    assert 65 < len(model.requests) - 400 == model.judge.consistency.n_checked < 140
    seed = seed_of(lambda model: len(model.requests) > 1, "yes")
    assert Model("yes", "no", "no", seed=seed).is_same() is False


def test_llm_judge_checks_each_yes_about_words_that_differ() -> None:
    """Of two figures, for example."""
    model = Model("yes")
    for _ in range(20):
        assert model.is_same(FIGURE, OTHER_FIGURE) is True
    assert len(model.requests) == 40


def test_llm_judge_unclear_check_gives_no_verdict() -> None:
    assert Model("no", "who knows").is_same() is None
    assert Model("no", "yes", "who knows").is_same() is None


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_llm_judge_makes_at_most_its_share_of_requests(share: float) -> None:
    """For each call of the route; beyond it, there is no verdict."""
    model, n = Model("no", share=share), 1000
    verdicts = []
    for _ in range(n):
        model.judge.note_call()
        verdicts.append(asyncio.run(model.judge.is_same(ONE, OTHER)))
    most = share * n + FIRST_SAVED + 2
    assert len(model.requests) <= most * (share > 0)
    assert len(model.requests) >= share * n - 2
    assert verdicts.count(None) == model.results.count("no_budget") == n - len(model.requests) // 2


def test_llm_judge_saves_no_more_than_a_burst() -> None:
    """After a long time without comparisons."""
    model = Model("no")
    for _ in range(1000):
        model.judge.note_call()
    for _ in range(100):
        asyncio.run(model.judge.is_same(ONE, OTHER))
    assert len(model.requests) <= MOST_SAVED + 2


@pytest.mark.parametrize(("said", "what"), [
    ("Certainly! Both answers", "other words"), ("", "an empty reply"), (None, "error 400")])
def test_llm_judge_without_verdicts_warns_once(said: str | None, what: str) -> None:
    """And says which route, how often, and what came last; never the reply itself."""
    model = Model(said)
    model.error = Rejected("max_tokens is not supported")
    for _ in range(3 * N_UNCLEAR):
        assert model.is_same() is None
    (fact,) = model.sink.facts_of(JudgeUnclear)
    assert (fact.route, fact.judge, fact.n, fact.what) == ("faq", "small", N_UNCLEAR, what)


def test_llm_judge_that_is_shed_gives_no_warning() -> None:
    """An overloaded gateway says nothing about the model."""
    model = Model(None)
    for _ in range(2 * N_UNCLEAR):
        assert model.is_same() is None
    assert model.sink.facts_of(JudgeUnclear) == []
    assert set(model.results) == {"failed"}


def test_llm_judge_changes_the_form_of_its_request_for_models_that_think() -> None:
    """They refuse a temperature and a low limit; the form that works is kept."""
    model = Model(*([None] * N_FORM), "yes")
    model.error = Rejected("unsupported parameter")
    assert [model.is_same() for _ in range(N_FORM + 2)] == [None] * N_FORM + [True] * 2
    fields = [msgspec.json.decode(request.body).keys() for request, _ in model.requests]
    assert all("temperature" in each for each in fields[:N_FORM])
    assert all("temperature" not in each and "max_completion_tokens" in each for each in fields[N_FORM:])


def test_llm_judge_word_rule_replaces_the_model_once_it_agreed_often() -> None:
    """Then a difference in figures needs no request, but for a sample; one disagreement ends that."""
    model = Model("no")
    for _ in range(299):
        assert model.is_same(FIGURE, OTHER_FIGURE) is False
    assert model.results == ["different"] * 299
    assert len(model.requests) == 598
    assert {model.is_same(FIGURE, OTHER_FIGURE) for _ in range(200)} == {False}
    assert 0 < len(model.requests) - 598 < 80
    assert model.results[299:].count("words") > 150
    n_before, model.words = len(model.requests), ["yes"]
    while len(model.requests) == n_before:
        model.is_same(FIGURE, OTHER_FIGURE)
    assert model.is_same(FIGURE, OTHER_FIGURE) is True


def test_llm_judge_word_rule_never_makes_answers_the_same() -> None:
    """Equal content in another order is for the model to judge, however often it agreed."""
    model = Model("yes")
    for _ in range(400):
        model.is_same("Paris is the capital of France.", "The capital of France is Paris.")
    assert len(model.requests) >= 400


@pytest.mark.parametrize(("words", "expected"), [
    ("yes", True), ("Yes.", True), ("no", False), ("Yes, but", False), ("", False), (None, False)])
def test_answer_verifier_accepts_only_yes(words: str | None, expected: bool) -> None:
    """A failure, more words, and an answer too long to be shown are a no; the request is not batch, since a client waits."""
    model = Model(words)
    verifier = AnswerVerifier("small", model.serve, SystemClock())
    assert asyncio.run(verifier.is_right_answer("How?", ONE)) is expected
    (_, arrival), = model.requests
    assert model.prompts() == [f"<question>\nHow?\n</question>\n<answer>\n{ONE}\n</answer>"]
    assert arrival.urgency is not Urgency.BATCH
    assert arrival.role == "verify"
    assert not asyncio.run(verifier.is_right_answer("How?", "a" * (MAX_CHARS + 1)))
    assert len(model.requests) == 1
