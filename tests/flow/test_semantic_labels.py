"""What a semantic cache must not learn of others, nor leave out, nor forget while its store is gone."""

from functools import partial

import pytest

from stayfast.core.types import CacheControl
from stayfast.pipeline.cache.labels import LabelRecord, Learning
from stayfast.policy.cache.calibration import CalibrateConfig
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.stores.memory import MemoryStore
from stayfast.testing import SimLoop, run
from tests.flow.semantic_rig import BAD, GOOD, NO, ONE, SAME, SAME_TOO, YES, SemanticRig, add_labels, answers_of, ask


class DictLog(dict[int, bytes]):
    """A log in memory."""

    def put(self, key: int, body: bytes) -> None:
        """Kept."""
        self[key] = body

    def delete(self, key: int) -> None:
        """Gone; it must have been there."""
        del self[key]

    def close(self) -> None:
        """Holds nothing."""


def test_semantic_labels_are_separate_by_tenant() -> None:
    """A tenant without labels is in shadow mode, whatever another tenant has proven."""
    learning = Learning(CalibrateConfig(max_error=0.05))
    add_labels(learning, "a", 600)
    assert learning.rule_of("a").reject_reason(learning.rule_of("a").probability(GOOD)) == ""
    assert learning.rule_of("b").reject_reason(1.0) == "shadow"
    add_labels(learning, "b", 10)
    assert learning.rule_of("b").reject_reason(1.0) == "shadow"
    assert (learning.n_labels, learning.is_shadow) == (610, False)
    threshold, estimate = learning.worst_estimate()
    assert threshold == learning.rule_of("a").threshold
    assert estimate is not None
    assert estimate.high <= 0.05


def test_semantic_labels_are_bounded_and_survive_a_restart() -> None:
    """The log has exactly the stored labels: the tenant that learned longest ago is dropped, and the oldest label of a
    tenant.
    """
    config, log = CalibrateConfig(max_error=0.05, min_labels=100, max_labels=300), DictLog()
    learning = Learning(config, most=700)
    for tenant, n in (("a", 400), ("b", 300), ("c", 200)):
        add_labels(learning, tenant, n, log)
    assert len(log) == 500
    assert learning.rule_of("a").reject_reason(1.0) == "shadow"
    again = Learning(config, most=700)
    again.restore(log)
    for tenant, n in (("a", 0), ("b", 300), ("c", 200)):
        assert again.rule_of(tenant).n_labels == n
        assert again.rule_of(tenant).reject_reason(again.rule_of(tenant).probability(GOOD)) == ("" if n else "shadow")
    add_labels(again, "c", 1, log)
    assert len(log) == 501


def test_semantic_audit_with_an_unstorable_answer_is_a_wrong_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit ended with a tool call, say: the answer of the hit is on probation."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        monkeypatch.setattr("stayfast.pipeline.stages.cache.lookup.storable_body", lambda request, summary, data: None)
        assert await rig.text(ask(SAME)) == YES
        await rig.finish_learning()
        assert rig.lookups[-2:] == ["audit_started", "audit_wrong"]

    run(main)


def test_semantic_audit_weights_include_lost_audits() -> None:
    """Of a hundred audits, four in five are lost: the others stand for nearly all, also after a restart."""
    config, log = CalibrateConfig(max_error=0.1, audit=0.1), DictLog()
    lossy, whole, again = (Learning(config) for _ in range(3))
    weights: dict[int, list[float]] = {20: [], 100: []}
    for learning, n_judged in ((lossy, 20), (whole, 100)):
        add_labels(learning, "a", 600, log if learning is lossy else None)
        for n in range(100):
            learning.note_audit_started("a")
            if n % (100 // n_judged) == 0:
                n_audits = learning.note_audit_judged("a")
                weights[n_judged].append(n_audits)
                label = LabelRecord(GOOD, n % 50 != 0, True, "a", n_audits=n_audits)
                learning.learn(label, log if learning is lossy else None)
    again.restore(log)
    assert again.worst_estimate() == lossy.worst_estimate()
    for learning, n_judged in ((lossy, 20), (whole, 100), (again, 20)):
        rule = learning.rule_of("a")
        assert sum(weights[n_judged]) == pytest.approx(100, rel=0.2)
        assert rule.audit_counts() == (2, n_judged)
        assert learning.note_audit_judged("nobody") == 1.0


def test_semantic_audit_that_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is late at the comparison: no verdict, and the next audit stands for both."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        learning = rig.semantic.learning
        add_labels(learning, "a", 60)
        await rig.text(ask(ONE), tenant="a")
        await rig.finish_learning()
        ask_store, n_asked = MemoryStore.find, 0

        async def late(self: MemoryStore, key: bytes, until: float) -> tuple[object, bool]:
            """The look-up's own is in time, the comparison's not."""
            nonlocal n_asked
            n_asked += 1
            return await ask_store(self, key, until) if n_asked == 1 else (None, False)

        with monkeypatch.context() as slow:
            slow.setattr(MemoryStore, "find", late)
            assert await rig.text(ask(SAME), tenant="a") == YES
            await rig.finish_learning()
        assert rig.lookups[-1] == "audit_started"
        assert await rig.text(ask(SAME_TOO), tenant="a") == YES
        await rig.finish_learning()
        assert rig.lookups[-1] == "audit_right"
        learning.note_audit_started("a")
        assert learning.note_audit_judged("a") == 1.5  # three audits started, two were judged

    run(main)


def test_semantic_cache_store_outage_loses_nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the outage all requests are misses; after it, the same answer is a hit."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES, NO))
        await rig.text(ask(ONE))
        await rig.finish_learning()

        async def gone(self: MemoryStore, key: bytes, until: float) -> tuple[None, bool]:
            """Nobody knows."""
            return None, False

        with monkeypatch.context() as outage:
            outage.setattr(MemoryStore, "find", gone)
            assert await rig.text(ask(SAME)) == NO
        assert rig.lookups[-1] == "gone"
        assert await rig.text(ask(SAME_TOO)) in {YES, NO}
        assert rig.lookups[-1] == "hit"

    run(main)


def test_semantic_labels_restored_under_an_unmeasured_judge_prove_nothing() -> None:
    """The log proves a threshold only for a judge that misses few differences."""
    config, log = CalibrateConfig(max_error=0.05), DictLog()
    add_labels(Learning(config), "a", 600, log)
    for miss_share, why in ((0.0, ""), (0.9, "shadow")):
        again = Learning(config, miss_share=partial(float, miss_share))
        again.restore(log)
        assert again.rule_of("a").reject_reason(again.rule_of("a").probability(GOOD)) == why


def test_semantic_labels_of_another_calibration_are_deleted() -> None:
    """Also from the log, so that a restart does not bring them back; new labels are newer than the deleted ones."""
    log = DictLog()
    learning = Learning(CalibrateConfig(max_error=0.05))
    add_labels(learning, "a", 600, log)
    oldest = min(log)
    fresh = learning.restarted(CalibrateConfig(max_error=0.01), log)
    assert (len(log), fresh.n_labels) == (0, 0)
    add_labels(fresh, "a", 3, log)
    assert max(log) < oldest


def test_semantic_hits_are_tested_by_what_would_have_been_hits_only() -> None:
    """A miss far below the threshold says nothing about hits."""
    learning, now = Learning(CalibrateConfig(max_error=0.05)), 0.0
    add_labels(learning, "a", 900)
    assert learning.reject_reason("a", b"", now) == ""
    for _ in range(300):
        learning.record_hit("a", now)
    now += 100.0
    assert learning.reject_reason("a", b"", now) == "untested"
    learning.learn(LabelRecord(BAD, True, False, "a"), None)
    assert learning.reject_reason("a", b"", now) == "untested"
    learning.learn(LabelRecord(GOOD, True, False, "a"), None)
    assert learning.reject_reason("a", b"", now) == ""


def test_semantic_labels_unknown_scope_is_not_trusted() -> None:
    """Whatever the tenant has proven in another."""
    learning = Learning(CalibrateConfig(max_error=0.05))
    add_labels(learning, "a", 900)
    assert learning.reject_reason("a", b"other", 0.0) == "new_scope"
    assert learning.reject_reason("b", b"", 0.0) == "shadow"


def test_semantic_repeated_question_does_not_end_probation() -> None:
    """Its phrasing is replaced, and its answer with its record stays."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *answers_of(YES), semantic=SemanticConfig(threshold=0.9))
        await rig.text(ask(ONE))
        await rig.finish_learning()
        scope, = rig.semantic.index.scopes.values()
        answer, = scope.keys
        scope.votes.record_judgement(answer, is_right=False, was_given=True)
        await rig.text(ask(ONE), CacheControl(max_age_s=1))
        await rig.finish_learning()
        assert rig.semantic.stats().n_phrasings == 1
        assert scope.votes.is_on_probation(answer)

    run(main)
