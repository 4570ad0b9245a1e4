"""What is learned of the tiers of a route."""

import pytest

from stayfast.core.events import AttemptDone
from stayfast.core.types import Outcome, Usage
from stayfast.pipeline.tiers.ladder import N_SERVED, RouteTier, TierLearner, TierSpeeds

LARGE, FAST = RouteTier("large", 1, "standard", {}), RouteTier("fast", 1, "fast", {})


def done(ttft_s: float | None = 1.0, *, tier: str = "", last_s: float = 2.0, outcome: Outcome = Outcome.SUCCESS,
         fault: str | None = None, at: float = 10.0) -> AttemptDone:
    return AttemptDone("m", "up", at, at + last_s, outcome, ttft_s, fault, usage=Usage(100, 11, tier=tier), last_s=last_s)


def test_learner_records_the_first_token_and_the_time_per_token() -> None:
    speeds = TierSpeeds()
    for _ in range(3):
        TierLearner(speeds, LARGE).learn(done(), 400, is_incremental=True)
    found = speeds.predict(LARGE, 400, None, 20.0, 0.9)
    assert found is not None
    assert found.first_s == 1.0
    assert found.end_s == pytest.approx(1.0 + 11 * 0.1)


def test_learner_records_a_timeout_as_twice_its_wait_and_no_other_failure() -> None:
    speeds = TierSpeeds()
    learner = TierLearner(speeds, LARGE)
    for _ in range(3):
        learner.learn(done(None, outcome=Outcome.DROPPED, fault="status"), 400, is_incremental=True)
    assert speeds.predict(LARGE, 400, None, 20.0, 0.9) is None
    for _ in range(3):
        learner.learn(done(None, outcome=Outcome.DROPPED, fault="timeout"), 400, is_incremental=True)
    found = speeds.predict(LARGE, 400, None, 20.0, 0.9)
    assert found is not None
    assert found.first_s == 4.0


def test_tier_often_served_at_another_speed_is_predicted_by_the_slower_one() -> None:
    speeds = TierSpeeds()
    fast, standard = TierLearner(speeds, FAST), TierLearner(speeds, LARGE)
    for _ in range(N_SERVED):
        fast.learn(done(0.2, tier="priority", last_s=0.4), 400, is_incremental=True)
        standard.learn(done(3.0, tier="default", last_s=5.0), 400, is_incremental=True)
    alone = speeds.predict(FAST, 400, None, 20.0, 0.9)
    fast.learn(done(3.0, tier="default", last_s=5.0), 400, is_incremental=True)
    once = speeds.predict(FAST, 400, None, 20.0, 0.9)
    fast.learn(done(3.0, tier="default", last_s=5.0), 400, is_incremental=True)
    twice = speeds.predict(FAST, 400, None, 20.0, 0.9)
    assert alone is not None
    assert once is not None
    assert twice is not None
    assert (alone.first_s, once.first_s, twice.first_s) == (0.2, 0.2, 3.0)
