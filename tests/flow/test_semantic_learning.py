"""What a semantic cache learns from misses and audits, and what it forgets, on virtual time."""

import asyncio
from random import Random

from stayfast.core.events import Renewed
from stayfast.core.types import CacheControl
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.stores.base import CachedAnswer
from stayfast.stores.batched_embedder import vector_from_bytes
from stayfast.testing import SimLoop, run
from tests.flow.semantic_rig import NO, ONE, OTHER, SAME, SAME_TOO, YES, SemanticRig, answers_of, ask


def test_semantic_learning_shadow_mode_gives_no_hits() -> None:
    """All requests are misses that label; with enough labels hits start, and some of them are audited."""
    topics = ("account", "invoice", "contract", "shipment", "coupon", "voucher")
    texts = [(f"{begins} {verb} the {word} of {of} {topic}?", topic) for topic in topics
             for begins in ("How can I", "Where do I", "How does one", "How would people", "When should I")
             for verb in ("reset", "restore", "recover") for word in ("password", "passphrase")
             for of in ("an", "the first", "any old", "one good")]
    Random(3).shuffle(texts)

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig("10%", audit_share=0.2, min_labels=50))
        n_labels_at_first_hit, n_wrong = 0, 0
        for text, topic in texts:
            rig.scripted[0].scripts = answers_of(f"All about the {topic} stands in the chapter of the {topic}.")
            n_wrong += topic not in await rig.text(ask(text))
            if rig.results[-1] == "semantic" and not n_labels_at_first_hit:
                n_labels_at_first_hit = rig.semantic.stats().n_labels
            await asyncio.sleep(1)
        stats = rig.semantic.stats()
        n_hits = rig.lookups.count("hit")
        assert n_labels_at_first_hit >= 50
        assert n_hits > 200
        assert n_wrong / n_hits <= 0.1
        assert rig.lookups.count("shadow") > 40
        assert stats.n_audits == rig.lookups.count("audit_right") + rig.lookups.count("audit_wrong")
        assert 0.1 < stats.n_audits / n_hits < 0.3
        assert not stats.is_shadow
        assert stats.estimate is not None
        assert stats.estimate.high <= 0.1
        rig.check_clean()

    run(main)


def test_semantic_learning_purged_answer_is_forgotten_with_its_phrasings() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        await rig.route_cache.store.purge()
        assert await rig.text(ask(SAME)) == NO
        assert rig.lookups == ["no_neighbour", "gone"]
        await rig.finish_learning()
        assert await rig.text(ask(SAME_TOO)) == NO
        assert rig.results == ["miss", "miss", "semantic"]

    run(main)


def test_semantic_learning_equal_answers_share_their_phrasings() -> None:
    """A different answer starts an answer of its own."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, YES, NO), semantic=SemanticConfig(threshold=1.0))
        for text in (ONE, SAME, OTHER):
            await rig.text(ask(text))
            await rig.finish_learning()
        stats = rig.semantic.stats()
        assert (stats.n_phrasings, stats.n_answers, stats.n_scopes) == (3, 2, 1)

    run(main)


def test_semantic_learning_repeated_question_is_one_phrasing() -> None:
    """When its answer is made anew, that one is served."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO), semantic=SemanticConfig(threshold=0.9, semantic_ttl_s=60))
        await rig.text(ask(ONE))
        await asyncio.sleep(100)
        await rig.route_cache.store.purge()
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert rig.semantic.stats().n_phrasings == 1
        assert await rig.text(ask(SAME)) == NO
        assert rig.results == ["miss", "miss", "semantic"]

    run(main)


def test_semantic_learning_old_answers_are_not_served() -> None:
    """Older than semantic_ttl_s, or than the max-age of the client."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig(threshold=0.9, semantic_ttl_s=100))
        await rig.text(ask(ONE))
        await asyncio.sleep(50)
        assert (await rig.serve_request(ask(SAME), CacheControl(max_age_s=40))).cache == "miss; kind=exact"
        assert await rig.text(ask(SAME_TOO), CacheControl(max_age_s=60)) == YES
        await asyncio.sleep(101)
        await rig.text(ask("How can I recover the passphrase of a profile?"))
        assert rig.lookups == ["no_neighbour", "old", "hit", "old"]

    run(main)


def test_semantic_learning_wrong_audit_puts_the_answer_on_probation() -> None:
    """The client has its hit; the answer is not served again until it proves right."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME)) == YES
        await rig.finish_learning()
        assert rig.lookups == ["no_neighbour", "hit", "audit_started", "audit_wrong"]
        assert rig.results == ["miss", "semantic"]
        assert [fact.result for fact in rig.sink.facts_of(Renewed)] == ["refreshed"]
        assert await rig.text(ask(SAME)) == NO  # by the exact cache: its own answer is kept
        await rig.text(ask(SAME_TOO))
        assert "probation" in rig.lookups
        await rig.finish_learning()
        rig.check_clean()

    run(main)


def test_semantic_learning_right_audit_adds_a_phrasing() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        await rig.text(ask(SAME))
        await rig.finish_learning()
        stats = rig.semantic.stats()
        assert rig.lookups == ["no_neighbour", "hit", "audit_started", "audit_right"]
        assert (stats.n_phrasings, stats.n_answers) == (2, 1)

    run(main)


def test_semantic_learning_oldest_question_is_dropped_at_the_bound() -> None:
    """Of 12 questions in 12 scopes the last 10 are stored."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig(threshold=0.9, max_questions=10))
        for number in range(12):
            await rig.text(ask(ONE, system=f"You are number {number}."))
            await rig.finish_learning()
        stats = rig.semantic.stats()
        assert (stats.n_phrasings, stats.n_scopes) == (10, 10)
        await rig.text(ask(SAME, system="You are number 1."))
        await rig.text(ask(SAME, system="You are number 2."))
        assert rig.results[-2:] == ["miss", "semantic"]

    run(main)


class DictLog(dict[int, bytes]):
    """A log in memory."""

    def put(self, key: int, body: bytes) -> None:
        """The last one of its key, at the end."""
        self.pop(key, None)
        self[key] = body

    def delete(self, key: int) -> None:
        """Gone."""
        self.pop(key, None)

    def close(self) -> None:
        """Holds nothing."""


def test_semantic_learning_survives_a_restart() -> None:
    """Questions, votes and labels; not what was removed before."""
    log = DictLog()

    async def before(loop: SimLoop) -> dict[bytes, CachedAnswer]:
        rig = SemanticRig(loop, *answers_of(YES, YES, NO, NO), semantic=SemanticConfig("10%", min_labels=50))
        rig.semantic.index.log = log
        for text in (ONE, SAME, OTHER, "How can I export the last invoice as a file?"):
            await rig.text(ask(text))
            await rig.finish_learning()
        rig.semantic.index.remove(4)
        assert [key for key in log if key > 0] == [1, 2, 3]
        return {its.keys[answer]: kept for its in rig.semantic.index.scopes.values() for answer in its.keys
                if (kept := await rig.route_cache.store.get(its.keys[answer])) is not None}

    async def after(loop: SimLoop) -> None:
        await asyncio.sleep(60.0)  # later than what was stored before
        rig = SemanticRig(loop, *answers_of(NO), semantic=SemanticConfig(threshold=0.9))
        for key, kept in answers.items():
            await rig.route_cache.store.put(key, kept)
        rig.semantic.is_ready = False
        assert await rig.text(ask(SAME_TOO, user="other")) == NO
        rig.semantic.restore_logged(log, vector_from_bytes)
        rig.semantic.is_ready = True
        stats = rig.semantic.stats()
        assert (stats.n_phrasings, stats.n_answers, stats.n_scopes) == (3, 2, 1)
        assert await rig.text(ask(SAME_TOO)) == YES
        assert rig.lookups == ["not_ready", "hit"]

    async def labels(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(NO), semantic=SemanticConfig("10%", min_labels=50))
        rig.semantic.restore_logged(log, vector_from_bytes)
        assert rig.semantic.stats().n_labels == len([key for key in log if key < 0]) == 2  # OTHER is too unlike to be one

    answers = run(before)
    run(after)
    run(labels)
