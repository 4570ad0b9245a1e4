"""The phases of a replica: what moves it, and the share that it gets."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.warm.config import ReplicaConfig, ReplicaPoolConfig
from stayfast.policy.warm.phases import N_COMPARED, RULES, Phase, Replica, ReplicaEvent


def started(slow_start_s: float = 30.0) -> Replica:
    """A replica that was refused at 0 s and sent a token at 40 s."""
    replica = Replica(ReplicaConfig(slow_start_s=slow_start_s))
    replica.note_refused(0.0, "it refuses connections")
    replica.note_token(0.1, 40.0)
    return replica


def test_replica_unobserved_counts_as_ready_and_starts_at_full_share() -> None:
    """So that a restart of the gateway moves no request."""
    replica = Replica(ReplicaConfig())
    assert (replica.phase, replica.share(0.0), replica.is_ready) == (Phase.WARMING, 1.0, True)
    replica.note_token(0.1, 5.0)
    assert (replica.phase, replica.share(5.0)) == (Phase.READY, 1.0)


def test_replica_listening_is_not_ready_before_its_token() -> None:
    replica = Replica(ReplicaConfig())
    replica.note_refused(0.0, "it refuses connections")
    assert (replica.phase, replica.share(0.0)) == (Phase.LOADING, 0.0)
    replica.note_listening(20.0)
    assert (replica.phase, replica.share(20.0), replica.is_ready) == (Phase.WARMING, 0.0, False)
    replica.note_token(0.1, 40.0)
    assert (replica.phase, replica.loads.n_starts, replica.cold_start_s) == (Phase.READY, 1, 60.0)


def test_replica_ready_by_health_needs_no_token() -> None:
    replica = Replica(ReplicaConfig(ready_by="health"))
    replica.note_refused(0.0, "it refuses connections")
    replica.note_listening(20.0)
    assert replica.phase is Phase.READY


def test_slow_start_grows_from_a_tenth_to_the_whole() -> None:
    replica = started()
    assert [round(replica.share(at), 3) for at in (40.0, 55.0, 70.0, 90.0)] == [0.1, 0.55, 1.0, 1.0]
    assert started(0.0).share(40.0) == 1.0


def test_slow_start_ends_when_it_keeps_up_with_siblings() -> None:
    replica = started()
    for n in range(N_COMPARED):
        replica.note_token(0.30, 41.0 + n / 10)
    replica.compare([0.19])
    assert replica.share(42.0) < 0.2
    replica.compare([0.21])
    assert replica.share(42.0) == 1.0


def test_ready_replica_one_refusal_moves_nothing_two_in_a_row_do() -> None:
    replica = started()
    for at in (50.0, 52.0):
        replica.note_refused(at, "it refuses connections")
        replica.note_token(0.1, at + 1)
    assert replica.is_ready
    replica.note_refused(60.0, "it refuses connections")
    replica.note_refused(60.1, "it refuses connections")
    assert replica.phase is Phase.LOADING


def test_sleeping_replica_is_woken_once_it_is_needed_and_learns_its_wakes_apart() -> None:
    calls: list[str] = []
    replica = Replica(ReplicaConfig(wake=True))
    replica.on_wake = lambda: calls.append("wake")
    replica.request_wake()
    replica.note_sleep(0.0, is_asleep=True)
    assert replica.left_s(0.0) == 60.0
    replica.request_wake()
    replica.note_woken(1.0)
    replica.request_wake()
    replica.note_token(0.1, 4.0)
    assert (calls, replica.wakes.n_starts, replica.loads.n_starts) == (["wake"], 1, 0)


def test_sleeping_replica_that_may_not_be_woken_is_not_waited_for() -> None:
    replica = Replica(ReplicaConfig())
    replica.note_sleep(0.0, is_asleep=True)
    assert replica.left_s(0.0) is None


def test_drained_replica_needs_a_token_to_return() -> None:
    replica = started()
    replica.drain(80.0)
    replica.note_token(0.1, 81.0)
    assert (replica.phase, replica.share(81.0)) == (Phase.DRAINING, 0.0)
    replica.undrain(90.0)
    assert replica.share(90.0) == 0.0
    replica.note_token(0.1, 91.0)
    assert replica.share(91.0) == pytest.approx(0.1)


def test_reloaded_replica_keeps_its_phase() -> None:
    replica, before = Replica(ReplicaConfig(check_s=1.0)), started()
    before.drain(50.0)
    replica.adopt(before)
    assert (replica.phase, replica.is_ready, replica.loads.n_starts) == (Phase.DRAINING, False, 1)


EVENTS = st.sampled_from(["token", "refused", "listening", "asleep", "awake", "woken", "drain", "undrain"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 100)), max_size=60))
def test_replica_any_history_keeps_shares_and_rules(history: list[tuple[str, float]]) -> None:
    """Every change is one of the table; shares are from 0 to 1; only a token leads to ready."""
    replica, now = Replica(ReplicaConfig(wake=True)), 0.0
    for event, seconds in history:
        now += seconds
        before = replica.phase
        match event:
            case "token":
                replica.note_token(0.1, now)
            case "refused":
                replica.note_refused(now, "")
            case "listening":
                replica.note_listening(now)
            case "asleep" | "awake":
                replica.note_sleep(now, is_asleep=event == "asleep")
            case "woken":
                replica.note_woken(now)
            case "drain":
                replica.drain(now)
            case _:
                replica.undrain(now)
        after = replica.phase
        assert after is before or after in RULES[before].ends_by.values()
        assert after is not Phase.READY or before is Phase.READY or event == "token"
        assert 0.0 <= replica.share(now) <= 1.0
        assert (left_s := replica.left_s(now)) is None or 0.0 <= left_s < inf


def test_rules_draining_ends_by_the_operator_only() -> None:
    assert RULES[Phase.DRAINING].ends_by == {ReplicaEvent.UNDRAIN: Phase.WARMING}


@pytest.mark.parametrize("wrong", [{"scale_to_zero": True}, {"min_warm": 11}])
def test_pool_contradictions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="min_warm"):
        ReplicaPoolConfig(**wrong)
