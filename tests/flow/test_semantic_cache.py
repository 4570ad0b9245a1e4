"""Answers to the same question in other words, on virtual time: what is served, and what never."""

import asyncio
from typing import Any

import msgspec
import pytest

from stayfast.compose.cache_reports import Caches, PurgedStore
from stayfast.core.errors import Shed
from stayfast.core.events import RequestDone
from stayfast.core.types import CacheControl
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.server.backend import PurgeFilter
from stayfast.testing import SendText, SimLoop, Wait, run
from tests.flow.rig import chat, read, text_of
from tests.flow.semantic_rig import NO, ONE, OTHER, SAME, SAME_TOO, YES, SemanticRig, answers_of, ask


def test_semantic_cache_paraphrase_is_a_hit() -> None:
    """A hit makes no call; header, notes and facts have its kind."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES))
        assert await rig.text(ask(ONE)) == YES
        await rig.finish_learning()
        reply = await rig.serve_request(ask(SAME))
        assert reply.cache is not None
        kind, sim, p, age, key = reply.cache.removeprefix("hit; ").split("; ")
        assert (kind, age) == ("kind=semantic", "age=30")
        assert 0.9 <= float(sim.removeprefix("sim=")) < 1
        assert p.startswith("p=")
        assert text_of(await read(reply)) == YES
        assert (rig.n_calls, rig.results, rig.lookups) == (1, ["miss", "semantic"], ["no_neighbour", "hit"])
        made, done = rig.sink.facts_of(RequestDone)
        assert made.cache_key is not None
        assert (done.cache_key, key) == (made.cache_key, f"key={made.cache_key.hex()}")
        assert done.attempts == ()
        assert done.notes[0].startswith("similar question 30 s ago: cosine 0.9")
        assert "passphrase" not in repr(done)
        rig.check_clean()

    run(main)


def test_semantic_cache_purge_by_the_key_of_a_hit() -> None:
    """With the answer go all phrasings of it: the next request makes a call."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME)) == YES
        key = rig.sink.facts_of(RequestDone)[1].cache_key
        assert key is not None
        caches = Caches(lambda: rig.router.routes)
        assert await caches.purge(PurgeFilter(key=bytes(32))) == [PurgedStore(0)]
        assert await caches.purge(PurgeFilter(key=key)) == [PurgedStore(1)]
        assert await caches.inspect_answer(key) is None
        assert await rig.text(ask(SAME)) == NO
        assert rig.lookups == ["no_neighbour", "hit", "gone"]

    run(main)


@pytest.mark.parametrize(("new_word_cosine", "answer", "lookups"), [
    (0.0, YES, ["no_neighbour", "hit"]), (0.99, NO, ["no_neighbour", "new_word"])])
def test_semantic_cache_new_word_is_a_miss_where_the_route_checks_it(new_word_cosine: float, answer: str,
                                                                     lookups: list[str]) -> None:
    async def main(loop: SimLoop) -> None:
        config = SemanticConfig(threshold=0.9, new_word_cosine=new_word_cosine, audit_share=0.001)
        rig = SemanticRig(loop, *answers_of(YES, NO), semantic=config)
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME)) == answer
        assert rig.lookups == lookups

    run(main)


def test_semantic_cache_unlike_question_is_a_miss() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(OTHER)) == NO
        assert rig.lookups == ["no_neighbour", "unlike"]
        assert rig.sink.facts_of(RequestDone)[1].notes == ("no answer in other words: unlike",)

    run(main)


@pytest.mark.parametrize("other", [
    {"system": "You answer in French."},
    {"response_format": {"type": "json_object"}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    {"max_tokens": 5},
    {"user": "another"},
    {"model": "m", "temperature": 0.1},
], ids=["system_prompt", "output_format", "tools", "length", "user", "sampling"])
def test_semantic_cache_scope_is_the_rest_of_the_request(other: dict[str, Any]) -> None:
    """System prompt, output format, tools, parameters: the same words there are another question."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME, **other)) == NO
        assert "semantic" not in rig.results

    run(main)


def test_semantic_cache_tenants_are_separate() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE), tenant="a")
        await rig.finish_learning()
        assert await rig.text(ask(SAME), tenant="b") == NO
        await rig.finish_learning()
        assert await rig.text(ask(SAME_TOO), tenant="a") == YES

    run(main)


def test_semantic_cache_follow_up_under_another_parent_is_a_miss() -> None:
    """Earlier turns are in the scope to the letter; under the same parent the follow-up is a hit."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        parents = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Sure."}]
                   for text in ("Tell me about accounts", "Tell me about invoices")]
        await rig.text(ask(ONE, before=parents[0]))
        await rig.finish_learning()
        assert await rig.text(ask(SAME, before=parents[1])) == NO
        await rig.finish_learning()
        assert await rig.text(ask(SAME, before=parents[0])) == YES
        assert rig.results == ["miss", "miss", "semantic"]

    run(main)


def test_semantic_cache_hit_of_a_stream_as_json_and_back() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        whole = msgspec.json.decode(await read(await rig.serve_request(ask(SAME, stream=False))))
        assert whole["choices"][0]["message"]["content"] == YES
        streamed = await read(await rig.serve_request(ask(SAME_TOO)))
        assert streamed.startswith(b"data: {")
        assert streamed.endswith(b"data: [DONE]\n\n")
        assert rig.results == ["miss", "semantic", "semantic"]

    run(main)


@pytest.mark.parametrize(("messages", "why"), [
    ([{"role": "user", "content": ONE}, {"role": "user", "content": ""}], "no_question"),
    ([{"role": "user", "content": "  "}], "no_question"),
    ([{"role": "user", "content": ONE}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "42"}, {"role": "user", "content": SAME}], "tool_results"),
    ([{"role": "user", "content": [{"type": "text", "text": ONE},
                                   {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}], "media"),
], ids=["empty", "blank", "tool_results", "media"])
def test_semantic_cache_ineligible_message_is_a_bypass(messages: list[dict[str, Any]], why: str) -> None:
    """Empty text, tool results, media: nothing is embedded, nothing is stored."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES))
        for _ in range(2):
            reply = await rig.serve_request(chat(messages=messages))
            assert reply.cache == f"bypass; why={why}"
            await read(reply)
        await rig.finish_learning()
        assert (rig.words.embedded, rig.semantic.stats().n_phrasings) == ([], 0)

    run(main)


@pytest.mark.parametrize(("text", "why"), [
    ("what about you?", "short"), ("It also resets the password of accounts, right?", "pointing"),
    ("Why was my password reset at this bank?", "personal"), ("What is the latest price of an account?", "volatile"),
    ("How can I reset the account jo@example.org please?", "private"), (ONE * 300, "long"),
    ([{"type": "text", "text": ONE}] * 2, "not_text"),
], ids=["short", "pointing", "personal", "volatile", "private", "long", "parts"])
def test_semantic_cache_context_dependent_question_uses_the_exact_cache(text: Any, why: str) -> None:
    """It is neither looked up nor learned by its meaning."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(text))
        await rig.finish_learning()
        assert await rig.text(ask(text)) == YES
        assert rig.results == ["miss", "hit"]
        assert (rig.lookups, rig.words.embedded) == ([why], [])

    run(main)


@pytest.mark.parametrize(("one", "other", "why"), [
    ("How can I reset 2 passwords of an account?", "How can I reset 3 passwords of an account?", "numbers"),
    ("How can I convert euros to dollars there?", "How can I convert dollars to euros there?", "order"),
    ("How can I enable the reset of a password?", "How can I disable the reset of a password?", "opposites"),
])
def test_semantic_cache_words_that_change_the_meaning_make_a_miss(one: str, other: str, why: str) -> None:
    """However near the vectors are."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO), semantic=SemanticConfig(threshold=0.5))
        await rig.text(ask(one))
        await rig.finish_learning()
        assert await rig.text(ask(other)) == NO
        assert rig.lookups[1] == why

    run(main)


def test_semantic_cache_late_embedding_is_a_miss() -> None:
    """After lookup_timeout_s; the answer is learned."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, [Wait(1), SendText(YES)], semantic=SemanticConfig(threshold=0.9, lookup_timeout_s=0.05))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        rig.words.slow_s = 5
        began_at = loop.now()
        assert await rig.text(ask(SAME)) == YES
        assert loop.now() - began_at == pytest.approx(1.05)
        assert rig.lookups == ["no_neighbour", "timeout"]
        await rig.finish_learning()
        assert rig.semantic.stats().n_phrasings == 2

    run(main)


def test_semantic_cache_stage_budget_bounds_the_lookup() -> None:
    """A miss, and not a failed request."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), budget=BudgetConfig(cache="0.02"))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        rig.words.slow_s = 5
        began_at = loop.now()
        assert await rig.text(ask(SAME)) == YES
        assert loop.now() - began_at == pytest.approx(0.018)
        assert (rig.results, rig.lookups) == (["miss", "miss"], ["no_neighbour", "timeout"])
        assert rig.sink.facts_of(RequestDone)[1].over_stage is None

    run(main)


@pytest.mark.parametrize("why", ["failed", "no_time", "not_ready", "long"])
def test_semantic_cache_without_a_vector_is_a_miss(why: str) -> None:
    """The embedder fails, is known to be too slow, is not loaded yet, or does not read all of the text."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        rig.words.is_broken, rig.words.has_time = why == "failed", why != "no_time"
        if why == "not_ready":
            rig.embedding.foreground = None
        assert await rig.text(ask(SAME + " please" * 40 * (why == "long"))) == NO
        assert rig.lookups == ["no_neighbour", why]
        await rig.finish_learning()
        rig.check_clean()

    run(main)


def test_semantic_cache_embedder_not_loaded_is_reported_for_the_first_question() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES))
        rig.embedding.foreground = None
        await rig.text(ask(ONE))
        assert rig.lookups == ["not_ready"]
        await rig.finish_learning()
        rig.check_clean()

    run(main)


def test_semantic_cache_only_if_cached_accepts_a_paraphrase() -> None:
    """Without a similar question it is a 504."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME), CacheControl(only_if_cached=True)) == YES
        await rig.finish_learning()
        assert rig.n_calls == 1  # nor one to audit it
        with pytest.raises(Shed, match="only-if-cached"):
            await rig.serve_request(ask(OTHER), CacheControl(only_if_cached=True))

    run(main)


def test_semantic_cache_verifier_can_refuse_a_hit() -> None:
    """It is called for hits only, with the question and the answer."""

    class Never:
        """Refuses all."""

        def __init__(self) -> None:
            self.asked: list[tuple[str, str]] = []

        async def is_right_answer(self, question: str, answer: str) -> bool:
            """No."""
            self.asked.append((question, answer))
            return False

    async def main(loop: SimLoop) -> None:
        verifier = Never()
        rig = SemanticRig(loop, *answers_of(YES, NO), verifier=verifier)
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME)) == NO
        assert verifier.asked == [(SAME, YES)]
        assert rig.lookups[1] == "refused"

    run(main)


def test_semantic_cache_thousand_lookups_make_one_call() -> None:
    """While the look-ups wait there is no call; then one is made for all."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, [Wait(1), SendText(NO)])
        await rig.text(ask(ONE))
        await rig.finish_learning()
        rig.words.slow_s = 0.01
        assert set(await asyncio.gather(*[rig.text(ask(OTHER)) for _ in range(1000)])) == {NO}
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


def test_semantic_cache_client_that_leaves_the_lookup_leaves_nothing() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        rig.words.slow_s = 0.04
        task = asyncio.ensure_future(rig.serve_request(ask(SAME)))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rig.n_calls == 1
        rig.check_clean()

    run(main)
