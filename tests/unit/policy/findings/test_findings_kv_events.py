"""policy/findings/kv_events: events that do not arrive, or not all."""

import pytest

from stayfast.policy.findings.kv_events import MIN_FAILED, MIN_LOST_S, KvEventsState, find_kv_events

FINE = KvEventsState("a", None, 0, 0, has_replay=True, has_events=True, n_learned=9, n_failed=0)


@pytest.mark.parametrize("state", [
    FINE, FINE._replace(lost_s=MIN_LOST_S - 1), FINE._replace(n_malformed=3), FINE._replace(n_failed=50),
    FINE._replace(n_learned=0, n_failed=MIN_FAILED - 1)])
def test_find_kv_events_healthy_reader_has_no_finding(state: KvEventsState) -> None:
    assert find_kv_events(state) is None


@pytest.mark.parametrize(("state", "summary", "advice"), [
    (FINE._replace(lost_s=90.0), "No KV events of a", "tcp://*:5557"),
    (FINE._replace(n_gaps_1h=2), "2 gaps in the KV events of a", "buffer_steps"),
    (FINE._replace(n_gaps_1h=2, has_replay=False), "2 gaps", "kv_events.replay"),
    (FINE._replace(n_malformed=3, has_events=False), "not readable", "endpoint"),
    (FINE._replace(n_learned=0, n_failed=MIN_FAILED), "tokenized", "/tokenize")])
def test_find_kv_events_names_cause_and_change(state: KvEventsState, summary: str, advice: str) -> None:
    found = find_kv_events(state)
    assert found is not None
    assert (found.id, found.where.upstream) == ("engine.kv_events_lost", "a")
    assert summary in found.summary
    assert advice in found.do[0].effect
