"""What a semantic cache must not learn of others, nor leave out, nor forget while its store is gone."""

import pytest

from stayfast.pipeline.cache import semantic_index as phrasings
from stayfast.pipeline.cache.labels import LabelRecord, Learning
from stayfast.policy.cache.calibration import CalibrateConfig
from stayfast.policy.cache.similarity import N_FEATURES, SemanticConfig
from stayfast.stores.memory import MemoryStore
from stayfast.testing import SimLoop, run
from tests.flow.semantic_rig import NO, ONE, SAME, SAME_TOO, YES, SemanticRig, ask, saying

GOOD, BAD = (0.9,) * N_FEATURES, (0.5,) * N_FEATURES


class Log(dict[int, bytes]):
    """A log in memory."""

    def put(self, key: int, body: bytes) -> None:
        """Kept."""
        self[key] = body

    def delete(self, key: int) -> None:
        """Gone; it must have been there."""
        del self[key]

    def close(self) -> None:
        """Holds nothing."""


def taught(learning: Learning, tenant: str, n: int, log: phrasings.LabelLog | None = None) -> None:
    """So many clear labels of both classes."""
    for number in range(n):
        is_right = number % 3 != 0
        learning.learn(LabelRecord(GOOD if is_right else BAD, is_right, False, tenant), log)


def test_no_tenant_is_judged_by_anothers_labels() -> None:
    """One that has taught nothing is in shadow, whatever the other has proven."""
    learning = Learning(CalibrateConfig(max_error=0.05))
    taught(learning, "a", 600)
    assert learning.rule_of("a").reject_reason(learning.rule_of("a").probability(GOOD)) == ""
    assert learning.rule_of("b").reject_reason(1.0) == "shadow"
    taught(learning, "b", 10)
    assert learning.rule_of("b").reject_reason(1.0) == "shadow"
    assert (learning.n_labels, learning.is_shadow) == (610, False)
    threshold, estimate = learning.worst_estimate()
    assert threshold == learning.rule_of("a").threshold
    assert estimate is not None
    assert estimate.high <= 0.05


def test_labels_are_bounded_and_outlive_a_restart_with_their_tenant() -> None:
    """The log has what is kept and no more: who learned longest ago begins again, and a tenant's oldest label goes."""
    config, log = CalibrateConfig(max_error=0.05, min_labels=100, max_labels=300), Log()
    learning = Learning(config, most=700)
    for tenant, n in (("a", 400), ("b", 300), ("c", 200)):
        taught(learning, tenant, n, log)
    assert len(log) == 500
    assert learning.rule_of("a").reject_reason(1.0) == "shadow"
    again = Learning(config, most=700)
    again.restore(log)
    for tenant, n in (("a", 0), ("b", 300), ("c", 200)):
        assert again.rule_of(tenant).n_labels == n
        assert again.rule_of(tenant).reject_reason(again.rule_of(tenant).probability(GOOD)) == ("" if n else "shadow")
    taught(again, "c", 1, log)
    assert len(log) == 501


def test_an_audit_whose_answer_cannot_be_kept_found_the_hit_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came to a clean end and was a call of a tool, say: the answer that was given is on probation."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *saying(YES, NO), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        await rig.text(ask(ONE))
        await rig.settled()
        monkeypatch.setattr("stayfast.pipeline.stages.cache.lookup.storable_body", lambda request, summary, data: None)
        assert await rig.text(ask(SAME)) == YES
        await rig.settled()
        assert rig.lookups[-2:] == ["audit_started", "audit_wrong"]

    run(main)


def test_audits_that_came_to_nothing_count_as_much_as_those_that_did_not() -> None:
    """Of a hundred audits, four in five lost: those that were judged stand for nearly all, also after a restart."""
    config, log = CalibrateConfig(max_error=0.1, audit=0.1), Log()
    lossy, whole, again = (Learning(config) for _ in range(3))
    for learning, n_judged in ((lossy, 20), (whole, 100)):
        taught(learning, "a", 600, log if learning is lossy else None)
        for n in range(100):
            learning.note_audit_started("a")
            if n % (100 // n_judged) == 0:
                n_audits = learning.note_audit_judged("a")
                label = LabelRecord(GOOD, n % 50 != 0, True, "a", n_audits=n_audits)
                learning.learn(label, log if learning is lossy else None)
    again.restore(log)
    for learning, n_judged in ((lossy, 20), (whole, 100), (again, 20)):
        rule = learning.rule_of("a")
        assert sum(label.weight for label in rule._labels[600:]) == pytest.approx(1000, rel=0.2)
        assert rule.audit_counts() == (2, n_judged)
        assert learning.note_audit_judged("nobody") == 1.0


def test_an_audit_that_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is late when the answers are to be compared: no verdict, and the next one stands for both."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *saying(YES), semantic=SemanticConfig(threshold=0.9, audit_share=1.0))
        learning = rig.semantic.learning
        taught(learning, "a", 60)
        await rig.text(ask(ONE), tenant="a")
        await rig.settled()
        ask_store, n_asked = MemoryStore.find, 0

        async def late(self: MemoryStore, key: bytes, until: float) -> tuple[object, bool]:
            """The look-up's own is in time, the comparison's not."""
            nonlocal n_asked
            n_asked += 1
            return await ask_store(self, key, until) if n_asked == 1 else (None, False)

        with monkeypatch.context() as slow:
            slow.setattr(MemoryStore, "find", late)
            assert await rig.text(ask(SAME), tenant="a") == YES
            await rig.settled()
        assert rig.lookups[-1] == "audit_started"
        assert await rig.text(ask(SAME_TOO), tenant="a") == YES
        await rig.settled()
        assert rig.lookups[-1] == "audit_right"
        own = learning._own["a"]
        assert (own.n_started, own.n_judged) == (2, 1)

    run(main)


def test_a_store_that_cannot_be_asked_costs_nothing_that_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is gone all is a miss; once it is back, the same answer is given."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, *saying(YES, NO))
        await rig.text(ask(ONE))
        await rig.settled()

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
