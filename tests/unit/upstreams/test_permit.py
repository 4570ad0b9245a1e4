"""upstreams.state.permit: what the outcome of an attempt teaches."""

from random import Random
from types import SimpleNamespace
from typing import cast

from stayfast.core.types import Outcome
from stayfast.policy.resilience.breaker import BreakerState
from stayfast.policy.resilience.cross_process import SharedLimit
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.routing.load_balancing import PrefillBacklog
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.state.permit import Permit, acquire_permit
from stayfast.upstreams.state.upstream_state import UpstreamState


def member(limit: LimitConfig | None = None) -> UpstreamState:
    """One of which it is known that a first token takes a second: at 100 s, with nothing in flight."""
    made = UpstreamState(cast("Upstream", SimpleNamespace(name="up")), limit, rng=Random(1))
    for _ in range(20):
        place = enter(made, 0.0)
        place.record_first_token(1.0)
        place.release(Outcome.SUCCESS, 1.0)
    enter(made, 100.0).release(Outcome.IGNORED, 100.0)
    return made


def enter(of: UpstreamState, now: float) -> Permit:
    """A call begins."""
    return acquire_permit(of, of.baselines.baseline_for("m", 20, False), now)


def test_upstream_state_cancelled_calls_are_no_samples() -> None:
    """A storm of hang-ups, after two seconds or, when each was a slow call, after four."""
    for left_after_s in (2.0, 4.0):
        made = member()
        places = [enter(made, 100.0) for _ in range(50)]
        for place in places:
            place.release(Outcome.IGNORED, 100.0 + left_after_s)
        enter(made, 110.0)
        assert (made.breaker.state, made.limit.value) == (BreakerState.CLOSED, 10_000)


def test_upstream_state_cancelled_slow_call_at_normal_concurrency_is_a_sample() -> None:
    """One after another: after two seconds nothing is known, after nine each was slow with nobody beside it."""
    for left_after_s, state in ((2.0, BreakerState.CLOSED), (9.0, BreakerState.OPEN)):
        made = member()
        for number in range(12):
            enter(made, 100.0 + 10 * number).release(Outcome.IGNORED, 100.0 + 10 * number + left_after_s)
        enter(made, 230.0)
        assert made.breaker.state is state


def test_upstream_state_late_loss_to_hedge_counts_as_slow() -> None:
    """At 1.6 times the usual, not at 1.2."""
    for lost_after_s, state in ((1.2, BreakerState.CLOSED), (1.7, BreakerState.OPEN)):
        made = member()
        for place in [enter(made, 100.0) for _ in range(50)]:
            place.record_slower_than_hedge(100.0 + lost_after_s)
            place.release(Outcome.IGNORED, 100.0 + lost_after_s)
        enter(made, 110.0)
        assert made.breaker.state is state


def test_upstream_state_late_broken_answer_counts_as_drop() -> None:
    """Sixty calls were answered in time, judged, and then cut in the middle."""
    made = member()
    places = [enter(made, 100.0 + number / 60) for number in range(60)]
    for place in places:
        place.record_first_token(place.began_at + 1.0)
    enter(made, 110.0).release(Outcome.IGNORED, 110.0)
    assert made.limit.value == 10_000
    for place in places:
        place.release(Outcome.DROPPED, 111.0, is_endpoint=False)
    for now in (112.0, 113.0):
        enter(made, now).release(Outcome.IGNORED, now)
    assert made.limit.value < 10_000


def test_permit_second_answer_or_release_is_ignored() -> None:
    """Whoever comes first has said it."""
    made = member()
    place = enter(made, 100.0)
    place.record_first_token(101.0)
    place.record_first_token(150.0)
    place.record_slower_than_hedge(150.0)
    place.release(Outcome.SUCCESS, 150.0)
    place.release(Outcome.DROPPED, 150.0)
    assert (made.n_in_flight, len(made.pending), made.n_failed_in_row) == (0, 0, 0)


def test_upstream_state_prefill_backlog_raises_load_until_first_token() -> None:
    """However its call goes on or ends, once; and it is no more than one request from then on."""
    for end in ("answered", "lost", *Outcome):
        made = member()
        made.backlog = PrefillBacklog()
        norm = made.baselines.baseline_for("m", 20, False)
        for _ in range(20):
            acquire_permit(made, norm, 100.0, "m", n_tokens=20).release(Outcome.IGNORED, 100.0)
        before = made.load_of(100.0).seconds
        place = acquire_permit(made, norm, 100.0, "m", n_tokens=2000)
        assert made.load_of(100.0).seconds > 50 * before
        if end == "answered":
            place.record_first_token(101.0)
            assert made.backlog.work == 0
        if end == "lost":
            place.record_slower_than_hedge(102.0)
        place.release(end if isinstance(end, Outcome) else Outcome.IGNORED, 102.0)
        place.release(Outcome.DROPPED, 103.0)
        assert (made.backlog.work, made.n_in_flight) == (0, 0)


def test_upstream_state_aimd_classifies_after_its_bound() -> None:
    """A bound of five seconds where three are slow: calls of four seconds are none of its business, those of six are."""
    for seconds, is_cut in ((4.0, False), (6.0, True)):
        made = member(LimitConfig("aimd", max=500, p95_low_s=2.0, p95_high_s=5.0))
        for number in range(120):
            now = 100.0 + number / 20
            place = enter(made, now)
            if number >= 60:
                place.release(Outcome.IGNORED, now)
                continue
            place.record_first_token(now + seconds)
            place.release(Outcome.SUCCESS, now + seconds)
        for now in (115.0, 120.0):
            enter(made, now).release(Outcome.IGNORED, now)
        assert (made.limit.value < 500) is is_cut


def test_upstream_state_counts_calls_of_other_processes() -> None:
    """Ten here and ninety elsewhere are a hundred: slow beside so many is no sign that they would be with few."""
    for n_elsewhere, is_cut in ((90, True), (10, False)):
        made = member()
        cells = [0.0, 0.0, 10.0, 0.0]
        made.whole_limiter.shared_limit = SharedLimit(cells, (0, 1), [(2, 3)])
        now = 100.0
        for is_slow, n_others in ((False, 10), (True, n_elsewhere)):
            cells[2] = float(n_others)
            for _ in range(120):
                place = enter(made, now)
                if is_slow:
                    place.record_slower_than_hedge(now + 2.9)
                else:
                    place.record_first_token(now + 1.0)
                place.release(Outcome.IGNORED, now + 2.9)
                now += 1 / 30
            now += 10.0
            enter(made, now).release(Outcome.IGNORED, now)
        assert (made.limit.value < 10_000) is is_cut


def test_upstream_state_lanes_learn_separately() -> None:
    """What long prompts are refused cuts the long lane's limit, and no other; a fixed limit is not divided."""
    made = member()
    made.split_by_lane(("short", "long"))
    assert made.lanes is not None
    norm, now = made.baselines.baseline_for("m", 20, False), 101.0
    for _ in range(400):
        now += 0.02
        quick = acquire_permit(made, norm, now, lane="short")
        acquire_permit(made, norm, now, lane="long").release(Outcome.DROPPED, now, is_endpoint=False)
        quick.record_first_token(now)
        quick.release(Outcome.SUCCESS, now)
    assert made.lanes["long"].limit.value < 100
    assert (made.lanes["short"].limit.value, made.limit.value) == (10_000, 10_000)
    assert [limited.n_in_flight for limited in made.all_limiters] == [0, 0, 0]
    fixed = member(LimitConfig("fixed", 1, 5))
    fixed.split_by_lane(("short", "long"))
    assert fixed.lanes is None
