"""A model as the judge of answers."""

import asyncio

import msgspec
import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.errors import Shed
from stayfast.core.types import Chunk, Request
from stayfast.pipeline.cache.answer_judge import MAX_CHARS
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.cache.llm_judge import AnswerVerifier, LlmJudge
from stayfast.policy.admission.priority import Urgency

ONE, OTHER = "Click the link.", "Use the link."


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
    """A gateway that says the same to everybody; without words it turns them away. And the judge that is asked before."""

    def __init__(self, words: str | None, before: bool | None = True) -> None:
        self.words = words
        self.before = before
        self.requests: list[tuple[Request, Arrival]] = []
        self.replies: list[JudgeReply] = []

    async def serve(self, request: Request, arrival: Arrival) -> JudgeReply:
        """Serve."""
        self.requests.append((request, arrival))
        if self.words is None:
            raise Shed("full", reason="queue_full")
        self.replies.append(JudgeReply(self.words))
        return self.replies[-1]

    miss_share = 0.0

    async def is_same(self, one: str, other: str) -> bool | None:
        """The judge before."""
        return self.before


def judge(model: Model, one: str = ONE, other: str = OTHER) -> bool | None:
    """What it comes to."""
    return asyncio.run(LlmJudge("small", model, model.serve, SystemClock()).is_same(one, other))


@pytest.mark.parametrize(("words", "expected"), [
    ("yes", True), ("Yes.", True), (" NO\n", False), ("no!", False), ("Yes, but", None), ("", None), (None, None)])
def test_llm_judge_accepts_one_word(words: str | None, expected: bool | None) -> None:
    """Anything else, and any failure, is no label."""
    model = Model(words)
    assert judge(model) is expected
    assert all(told.is_closed for told in model.replies)


def test_llm_judge_request_has_both_answers() -> None:
    """At temperature 0, as a batch request, for its own route."""
    model = Model("yes")
    judge(model)
    (request, arrival), = model.requests
    body = msgspec.json.decode(request.body)
    assert (request.model, body["temperature"], arrival.urgency, arrival.tenant) == ("small", 0, Urgency.BATCH, None)
    assert body["messages"][1]["content"] == f"<first>\n{ONE}\n</first>\n<second>\n{OTHER}\n</second>"


@pytest.mark.parametrize("before", [False, None])
def test_llm_judge_is_not_called_if_the_answer_is_known(before: bool | None) -> None:
    """The judge before it sees a difference or gives none, the texts are equal, or too long."""
    model = Model("yes", before)
    assert judge(model) is before
    model.before = True
    assert judge(model, ONE, ONE) is True
    assert judge(model, ONE, "a" * (MAX_CHARS + 1)) is None
    assert model.requests == []


@pytest.mark.parametrize(("words", "expected"), [
    ("yes", True), ("Yes.", True), ("no", False), ("Yes, but", False), ("", False), (None, False)])
def test_answer_verifier_accepts_only_yes(words: str | None, expected: bool) -> None:
    """A failure, more words, and an answer too long to be shown are a no; the request is not batch, since a client waits."""
    model = Model(words)
    verifier = AnswerVerifier("small", model.serve, SystemClock())
    assert asyncio.run(verifier.is_right_answer("How?", ONE)) is expected
    (request, arrival), = model.requests
    asked = msgspec.json.decode(request.body)["messages"][1]["content"]
    assert asked == f"<question>\nHow?\n</question>\n<answer>\n{ONE}\n</answer>"
    assert arrival.urgency is not Urgency.BATCH
    assert not asyncio.run(verifier.is_right_answer("How?", "a" * (MAX_CHARS + 1)))
    assert len(model.requests) == 1
