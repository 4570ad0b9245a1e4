"""What one replica learned in other words, another one knows: gateways and one shared store, on virtual time."""

import asyncio
from collections import Counter
from functools import partial
from random import Random

import msgspec
import pytest

from stayfast.core.events import StoreCallDone
from stayfast.pipeline.cache.labels import LabelRecord
from stayfast.pipeline.cache.semantic_index import LabelLog, Logged
from stayfast.policy.cache.lexical import parse_wording
from stayfast.policy.cache.similarity import N_FEATURES, SemanticConfig
from stayfast.stores.batched_embedder import vector_from_bytes
from stayfast.stores.journal import POLL_MAX_S
from stayfast.stores.remote_store import RemoteStore, SharedConfig
from stayfast.testing import RecordingSink, SimLoop, run
from tests.flow.semantic_rig import N_DIMS, NO, ONE, OTHER, SAME, SAME_TOO, YES, SemanticRig, add_labels, answers_of, ask
from tests.unit.stores.fake_door import FakeDoor, Place

FIXED = SemanticConfig(threshold=0.9)
REFUSED = "another (embedder|version)|truncated|malformed|Expected|extra bytes"


class Replica(SemanticRig):
    """A gateway, and its door to what all share."""

    def __init__(self, loop: SimLoop, place: Place, seed: int, *texts: str, semantic: SemanticConfig = FIXED) -> None:
        self.door, self.store_facts = FakeDoor(place, loop), RecordingSink()
        self.shared = RemoteStore("hot", self.door, SharedConfig(local_bytes=0), loop, self.store_facts, rng=Random(seed))
        super().__init__(loop, *answers_of(*texts), semantic=semantic, store=self.shared, seed=seed)
        hear = partial(self.semantic.receive_logged, floats=vector_from_bytes)

        def log(who: bytes) -> LabelLog:
            journal = self.shared.open_journal("abc", 1000, who)
            journal.start(hear)
            return journal

        self.semantic.share(log, Random(seed).randbytes(8))

    @property
    def n_log_reads(self) -> Counter[str]:
        """What came of what others told."""
        return Counter(fact.result for fact in self.store_facts.facts_of(StoreCallDone) if fact.what == "read_log")


def test_semantic_shared_phrasing_of_one_replica_is_a_hit_at_another() -> None:
    """Both ways; an answer has the same number at both, and a replica that starts later reads all of it."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, 1, YES), Replica(loop, place, 2, NO)
        assert await one.text(ask(ONE)) == YES
        await one.finish_learning()
        assert await other.text(ask(SAME)) == YES
        assert await other.text(ask(OTHER)) == NO
        await other.finish_learning()
        assert await one.text(ask("Where can I export the last bill as a file?")) == NO
        assert (one.results, other.results) == (["miss", "semantic"], ["semantic", "miss"])
        late = Replica(loop, place, 3, "-")
        await late.finish_learning()
        assert await late.text(ask(SAME_TOO)) == YES
        assert late.results == ["semantic"]
        answers = [{answer for its in rig.semantic.index.scopes.values() for answer in its.keys}
                   for rig in (one, other, late)]
        assert answers[0] == answers[1] == answers[2]
        assert len(answers[0]) == 2
        for rig in (one, other, late):
            assert rig.semantic.stats().n_phrasings == 2
            await rig.shared.close()
            rig.check_clean()

    run(main)


def test_semantic_shared_tenants_and_scopes_are_separate() -> None:
    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, 1, YES), Replica(loop, place, 2, NO)
        assert await one.text(ask(ONE, system="Be brief."), tenant="acme") == YES
        await one.finish_learning()
        assert await other.text(ask(SAME, system="Be brief."), tenant="globex") == NO
        assert await other.text(ask(SAME), tenant="acme") == NO
        assert await other.text(ask(SAME, system="Be brief."), tenant="acme") == YES
        await one.shared.close()
        await other.shared.close()

    run(main)


def test_semantic_shared_concurrent_phrasing_ends_as_one() -> None:
    """Both learn the same question before either reads the log: both keep the answer that was written last."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        rigs = Replica(loop, place, 1, YES), Replica(loop, place, 2, YES)
        await asyncio.gather(*[rig.text(ask(ONE)) for rig in rigs])
        await rigs[0].finish_learning()
        assert [rig.semantic.stats().n_phrasings for rig in rigs] == [1, 1]
        answers = [next(iter(its.keys)) for rig in rigs for its in rig.semantic.index.scopes.values()]
        assert answers[0] == answers[1]
        assert await rigs[0].text(ask(SAME)) == await rigs[1].text(ask(SAME_TOO)) == YES
        for rig in rigs:
            assert rig.results[-1] == "semantic"
            await rig.shared.close()

    run(main)


def test_semantic_shared_labels_are_counted_once() -> None:
    """Together they prove a threshold, each tenant its own; a restarted replica reads them."""

    async def main(loop: SimLoop) -> None:
        place, config = Place(), SemanticConfig("5%")
        rigs = [Replica(loop, place, seed, YES, semantic=config) for seed in (1, 2)]
        for rig in rigs:
            add_labels(rig.semantic.learning, "acme", 300, rig.semantic.index.log)
        await rigs[0].finish_learning()
        rigs.append(Replica(loop, place, 3, YES, semantic=config))
        await rigs[0].finish_learning()
        for rig in rigs:
            its = rig.semantic.learning
            assert its.n_labels == 600
            assert its.rule_of("acme").reject_reason(its.rule_of("acme").probability((0.9,) * N_FEATURES)) == ""
            assert its.rule_of("globex").reject_reason(1.0) == "shadow"
            await rig.shared.close()

    run(main)


def test_semantic_shared_wrong_audit_is_probation_at_all_replicas() -> None:
    """Also with a fixed threshold."""

    async def main(loop: SimLoop) -> None:
        place, config = Place(), SemanticConfig(threshold=0.9, audit_share=1.0)
        one, other = Replica(loop, place, 1, YES, semantic=config), Replica(loop, place, 2, NO, semantic=config)
        assert await one.text(ask(ONE)) == YES
        await one.finish_learning()
        assert await other.text(ask(SAME)) == YES
        await other.finish_learning()
        assert other.lookups[-2:] == ["audit_started", "audit_wrong"]
        for rig in (one, other):
            (its,) = rig.semantic.index.scopes.values()
            assert [its.votes.is_on_probation(answer) for answer in sorted(its.keys)].count(True) == 1
            await rig.finish_learning()
        await one.shared.close()
        await other.shared.close()

    run(main)


def test_semantic_shared_store_outage_delays_no_request() -> None:
    """Misses meanwhile, at the usual pace; what one replica learned is written after the outage."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one, other = Replica(loop, place, 1, YES), Replica(loop, place, 2, NO)
        one.door.is_gone = other.door.is_gone = True
        began_at = loop.now()
        assert await one.text(ask(ONE)) == YES
        assert loop.now() - began_at < 0.1
        await one.finish_learning()
        assert await other.text(ask(SAME, user="u")) == NO
        assert other.lookups == ["no_neighbour"]
        one.door.is_gone = other.door.is_gone = False
        await asyncio.sleep(3 * POLL_MAX_S)
        assert other.n_log_reads["unavailable"] > 1
        assert other.n_log_reads["read"] == 1
        assert other.semantic.stats().n_phrasings == 2
        await one.shared.close()
        await other.shared.close()

    run(main)


def test_semantic_shared_bound_includes_remote_phrasings() -> None:
    async def main(loop: SimLoop) -> None:
        place = Place()
        one = Replica(loop, place, 1, YES)
        other = Replica(loop, place, 2, YES, semantic=SemanticConfig(threshold=0.9, max_questions=10))
        for number in range(15):
            await one.text(ask(ONE, system=f"You are number {number}."))
        await one.finish_learning()
        assert (one.semantic.stats().n_phrasings, other.semantic.stats().n_phrasings) == (15, 10)
        assert await other.text(ask(SAME, system="You are number 14.")) == YES
        assert other.results == ["semantic"]
        await one.shared.close()
        await other.shared.close()

    run(main)


def test_semantic_shared_removed_phrasing_does_not_return() -> None:
    """An answer that the store has lost does not come back by the log of the replica itself."""

    async def main(loop: SimLoop) -> None:
        place = Place()
        one = Replica(loop, place, 1, YES)
        assert await one.text(ask(ONE)) == YES
        await asyncio.sleep(0.2)
        await one.shared.purge()
        assert await one.text(ask(SAME, stream=True), None) == YES
        assert one.lookups[-1] == "gone"
        await one.finish_learning()
        assert one.semantic.stats().n_phrasings == 1
        await one.shared.close()

    run(main)


@pytest.mark.parametrize("body", [
    b"", b"nonsense", msgspec.msgpack.encode(Logged(b"s" * 32, 1, b"k" * 32, parse_wording(ONE), bytes(8))),
    msgspec.msgpack.encode([b"s" * 32, 1]), msgspec.msgpack.encode(LabelRecord((0.5,) * N_FEATURES, True, False))])
def test_semantic_shared_invalid_phrasing_is_refused(body: bytes) -> None:
    """Of another form, or of another embedder: nothing is learned."""

    async def main(loop: SimLoop) -> None:
        one = Replica(loop, Place(), 1, YES)
        with pytest.raises(ValueError, match=REFUSED):
            one.semantic.receive_logged(1, body, False, floats=vector_from_bytes)
        assert one.semantic.stats().n_phrasings == 0
        await one.shared.close()

    run(main)


@pytest.mark.parametrize("body", [b"", b"nonsense",
                                  msgspec.msgpack.encode(LabelRecord((0.5,) * (N_FEATURES - 1), True, False)),
                                  msgspec.msgpack.encode(Logged(b"s", 1, b"k", parse_wording(ONE), bytes(4 * N_DIMS)))])
def test_semantic_shared_invalid_label_is_refused(body: bytes) -> None:
    async def main(loop: SimLoop) -> None:
        one = Replica(loop, Place(), 1, YES, semantic=SemanticConfig("5%"))
        with pytest.raises(ValueError, match=REFUSED):
            one.semantic.receive_logged(-1, body, False, floats=vector_from_bytes)
        assert one.semantic.stats().n_labels == 0
        await one.shared.close()

    run(main)
