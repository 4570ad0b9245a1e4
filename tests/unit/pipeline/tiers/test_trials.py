"""Advice, the sample that is compared, and what is learned from it; all calls are scripted."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from stayfast.core.deadline import Deadline
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Chunk, Request, Usage
from stayfast.pipeline.tiers.answer_verifier import CheckedAnswers
from stayfast.pipeline.tiers.evidence_book import EvidenceBook
from stayfast.pipeline.tiers.tier_comparison import EqualTexts
from stayfast.pipeline.tiers.trials import TierTrials, TrialReply
from stayfast.pipeline.tiers.verification import TierFacts
from stayfast.policy.tiers.enough import EnoughConfig
from stayfast.testing.simloop import SimLoop, run

FACTS = TierFacts("r", "t", ("small", "large"), "large", Deadline(10.0))
SHADOWED = msgspec.structs.replace(FACTS, role="shadow small")
REQUEST = Request(Api.CHAT, "r", False, b'{"model":"r","messages":[{"role":"user","content":"q"}]}')


def body(text: str) -> bytes:
    return msgspec.json.encode({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})


def whole() -> AnswerSummary:
    summary = AnswerSummary()
    summary.is_complete, summary.finish_reason = True, "stop"
    summary.usage = Usage(10, 5)
    return summary


class ScriptedReply:
    """A whole answer."""

    def __init__(self, text: str) -> None:
        self.summary = whole()
        self.degraded: str | None = None
        self._parts = [Chunk(body(text), 1)]

    async def next(self) -> Chunk | None:
        return self._parts.pop() if self._parts else None

    async def aclose(self) -> None:
        """Holds nothing."""


class Scene:
    """Trials whose other tier answers `text`, or fails."""

    def __init__(self, loop: SimLoop, text: str = "yes", *, fails: bool = False, **enough: Any) -> None:
        self.calls: list[str] = []
        self.text, self.fails = text, fails
        config = make_config(enough)
        self.trials = TierTrials(
            "r", config, EvidenceBook(config), checks=CheckedAnswers(config, holds_streams=False),
            comparison=EqualTexts(by_words=False), serve=self.serve, vector_of=None, holds_streams=False, clock=loop,
            rng=Random(1))

    async def serve(self, request: Request, tier: str) -> TrialReply:
        self.calls.append(tier)
        if self.fails:
            raise UpstreamFailed("a", Fault.TIMEOUT, "no answer")
        return ScriptedReply(self.text)

    async def give(self, text: str, served: str = "large", facts: TierFacts = FACTS, n: int = 1) -> None:
        """Clients get `text` from a tier."""
        for _ in range(n):
            on_answer = self.trials.observe(REQUEST, facts, served, served)
            if on_answer is not None:
                on_answer(body(text), whole())
            await settle(self.trials)


async def settle(trials: TierTrials) -> None:
    while trials.budget.n_running:
        await asyncio.sleep(0.01)


def make_config(fields: dict[str, Any]) -> EnoughConfig:
    return EnoughConfig(**{"mode": "cascade", "share": 1.0, "audit": 1.0, "compare": "exact", "min_labels": 60, **fields})


def play(script: Callable[[SimLoop], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        await script(loop)

    run(main)


def test_small_tier_is_advised_once_it_is_proven() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop)
        assert scene.trials.advise(REQUEST, FACTS) is None
        await scene.give("Yes ", n=120)
        assert set(scene.calls) == {"small"}
        assert scene.trials.explain(REQUEST, FACTS) == ("small", "small is enough: 120 of 120 like it, at least 0.97")
        assert scene.trials.advise(REQUEST, msgspec.structs.replace(FACTS, tenant="other")) is None

    play(script)


def test_different_answers_prove_nothing() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, "no")
        await scene.give("yes", n=150)
        assert scene.trials.advise(REQUEST, FACTS) is None
        assert scene.trials.counts == {("small", "not_enough"): 150}

    play(script)


def test_audits_of_the_small_tier_end_its_advice() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop)
        await scene.give("yes", n=150)
        scene.text = "no"
        await scene.give("yes", "small", n=5)
        assert scene.calls[-1] == "large"
        assert scene.trials.advise(REQUEST, FACTS) is None
        assert scene.trials.counts["small", "dropped"] == 1

    play(script)


def test_trusted_checks_advise_at_once_until_audits_reject() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, "no", trust_checks=True)
        assert scene.trials.advise(REQUEST, FACTS) == "small"
        await scene.give("yes", "small", n=5)
        assert scene.trials.advise(REQUEST, FACTS) is None

    play(script)


def test_shadow_changes_nothing_and_background_calls_go_where_they_are_sent() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, mode="shadow")
        await scene.give("yes", n=150)
        assert scene.trials.advise(REQUEST, FACTS) is None
        assert scene.trials.counts == {("small", "enough"): 150}
        assert scene.trials.advise(REQUEST, SHADOWED) == "small"
        assert scene.trials.observe(REQUEST, SHADOWED, "small", "small") is None

    play(script)


def test_failed_calls_are_no_labels() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, fails=True)
        await scene.give("yes", n=10)
        assert scene.trials.counts == {("small", "failed"): 10}

    play(script)


def test_requests_that_may_not_be_sent_twice_are_not_compared() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop)
        for name in ("is_stateful", "is_stored", "is_background"):
            changed: dict[str, Any] = {name: True}
            request = msgspec.structs.replace(REQUEST, **changed)
            assert scene.trials.observe(request, FACTS, "large", "large") is None
        assert scene.trials.observe(REQUEST, FACTS, "small", "large") is None

    play(script)


def test_spent_tokens_end_comparisons_until_they_return() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, tokens_per_hour=30)
        await scene.give("yes", n=10)
        assert len(scene.calls) == 2  # of 15 tokens each

    play(script)


def test_streams_of_a_cascade_have_no_advice_unless_they_are_held() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, trust_checks=True)
        assert scene.trials.advise(msgspec.structs.replace(REQUEST, stream=True), FACTS) is None

    play(script)


def test_tiers_above_the_start_are_never_advised() -> None:
    async def script(loop: SimLoop) -> None:
        scene = Scene(loop, trust_checks=True)
        assert scene.trials.advise(REQUEST, msgspec.structs.replace(FACTS, start="small")) is None

    play(script)
