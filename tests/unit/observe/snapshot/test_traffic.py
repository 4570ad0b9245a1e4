"""Counts of requests by route and upstream."""

import sys
from collections import Counter
from random import Random

import pytest

from stayfast.core.events import BreakerChanged, Hedged, Stall
from stayfast.core.stage_times import StageDone
from stayfast.core.types import FROM_CACHE, JOB, Outcome, Stage, Usage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.snapshot.parts import TrafficPart, bucket_at, spread_of, stages_near
from stayfast.observe.snapshot.traffic import MAX_SERIES, TrafficSink
from tests.unit.observe.fact_rig import SLOW_RETRIED_REQUEST, FrozenClock, all_stages, attempt, done
from tests.unit.observe.snapshot.traffic_rig import by_series, closed


def only(*facts: object) -> TrafficPart:
    """The part of the only series."""
    (part,) = by_series(closed(facts)).values()
    return part


def test_request_is_counted_under_its_route_and_upstream() -> None:
    """All fields of a plain answer."""
    part = only(done(gap_max_s=0.25))
    assert (part.n, part.n_streamed, part.n_attempts, part.n_failed) == (1, 1, 1, 0)
    assert (part.n_input_tokens, part.n_cached_tokens, part.n_output_tokens) == (10, 5, 20)
    assert part.cost_usd == {"first": 0.25}
    for counts, value in ((part.ttft_s, 0.2), (part.e2e_s, 0.5), (part.usable_s, 0.2), (part.tpot_s, 0.015),
                          (part.gap_most_s, 0.25), (part.queue_s, 0.001), (part.own_s, 0.1), (part.attempt_s, 0.1),
                          (part.stages_s["call"], 0.2)):
        assert spread_of(counts).p50 == pytest.approx(value, rel=0.012)


def test_requests_of_jobs_are_not_counted() -> None:
    """No client waits for them."""
    assert closed([done(role=JOB)]) == []


@pytest.mark.parametrize(("changes", "name"), [
    ({"status": 503}, "n_failed"), ({"status": 429}, "n_failed"), ({"status": 400}, "n_rejected"),
    ({"status": 499}, "n_left"),
    ({"status": 503, "shed": "queue_full"}, "n_shed"), ({"degraded": "fallback"}, "n_degraded"),
    ({"status": 504, "error": "total_s_exceeded"}, "n_deadline"), ({"is_client_retry": True}, "n_client_retries"),
    ({"error": "upstream_broke", "status": 502, "n_chunks": 3}, "n_truncated"),
])
def test_result_of_request_is_counted(changes: dict[str, object], name: str) -> None:
    """Each once."""
    assert getattr(only(done(**changes)), name) == 1
    assert getattr(only(done()), name) == 0


def test_late_requests_include_failures_without_a_first_token() -> None:
    """The promise is 0.3 s; a route without one has no late requests."""
    facts = [done(), done(ttft_s=0.4), done(ttft_s=None, status=503), done(ttft_s=None, status=499)]
    (part,) = by_series(closed(facts, promise_s=lambda route: 0.3)).values()
    assert part.n_late == 2
    assert only(*facts).n_late == 0


def test_figures_of_attempts_belong_to_the_upstream_that_was_called() -> None:
    """The first attempt failed at u, v answered after a stall."""
    parts = by_series(closed([SLOW_RETRIED_REQUEST]))
    assert (parts["m", "u"].n, parts["m", "u"].faults, parts["m", "u"].n_attempts) == (0, {"503": 1}, 1)
    assert (parts["m", "v"].n, parts["m", "v"].n_stalls, parts["m", "v"].faults) == (1, 1, {})
    assert parts["m", "v"].over_stages == {"call": 1}


def test_hedges_and_fallbacks_are_counted_by_role() -> None:
    """One hedge won, one fallback, one hedge was not sent."""
    calls = (attempt(ttft_s=None, outcome=Outcome.IGNORED, usage=Usage(1, 1), cost_usd=None),
             attempt(is_hedge=True, role="hedge"), attempt(role="fallback"))
    part = only(done(attempts=calls), Hedged("m", "u", 1.0, refused="budget"))
    assert (part.n_hedges, part.n_hedges_won, part.n_fallbacks, part.n_hedges_refused, part.n_unpriced) == (1, 1, 1, 1, 1)


def test_answers_from_the_cache_have_their_own_series() -> None:
    """First tokens of the route are without them."""
    clock = FrozenClock()
    sink = TrafficSink(clock)
    handle_facts(sink, [done(), done(upstream=FROM_CACHE, cache="hit", saved_usd=0.5, ttft_s=0.001, attempts=())])
    assert sink.first_tokens("m", 60.0).n == 1
    clock.now_s += 5
    parts = by_series(sink.closed_since(-1))
    assert (parts["m", FROM_CACHE].cache, parts["m", FROM_CACHE].saved_usd) == ({"hit": 1}, 0.5)
    assert sink.first_tokens("m", 60.0).n == 1


def test_series_beyond_the_limit_are_summed() -> None:
    """Memory is bounded."""
    parts = by_series(closed(done(route=f"r{n}", upstream=None, attempts=()) for n in range(MAX_SERIES + 5)))
    assert len(parts) == MAX_SERIES + 1
    assert parts["(other)", "(other)"].n == 5


def test_idle_series_make_room_after_an_hour() -> None:
    """Routes of earlier settings do not fill the table."""
    clock = FrozenClock()
    sink = TrafficSink(clock)
    handle_facts(sink, [done(route=f"r{n}", attempts=()) for n in range(MAX_SERIES)])
    clock.now_s += 4000.0
    handle_facts(sink, [done(route="new", attempts=())])
    sink.roll(clock.now_s + 5.0)
    handle_facts(sink, [done(route="newer", attempts=())])
    assert {"new", "newer"} <= sink.routes()


def test_busy_series_sample_details_without_bias() -> None:
    """10,000 requests in a slot: all are counted; details are about 10,000 too, with the same percentiles."""
    rng = Random(1)
    part = only(*(done(ttft_s=(ttft_s := rng.lognormvariate(-1, 0.5)), ended_at=1.0 + ttft_s) for _ in range(10_000)))
    exact, sampled = spread_of(part.ttft_s), spread_of(part.usable_s)
    assert (part.n, exact.n) == (10_000, 10_000)
    assert sampled.n == pytest.approx(10_000, rel=0.02)
    assert exact.p50 is not None
    assert exact.p95 is not None
    assert sampled.p50 == pytest.approx(exact.p50, rel=0.06)
    assert sampled.p95 == pytest.approx(exact.p95, rel=0.12)


def test_stages_at_the_p99_are_of_slow_requests() -> None:
    """98 of 100 wait for the call, the slowest two in admission."""
    usual = [done(ttft_s=0.2, stages=(StageDone(Stage.CALL, 1.0, 1.2, 9.0),))] * 98
    slow = [done(ttft_s=2.0, stages=(StageDone(Stage.ADMIT, 1.0, 2.75, 9.0), StageDone(Stage.CALL, 2.75, 3.0, 9.0)))] * 2
    part = only(*usual, *slow)
    assert stages_near(part.by_ttft, bucket_at(part.ttft_s, 0.99)) == pytest.approx({"admit": 1.75, "call": 0.25})
    assert stages_near(part.by_ttft, bucket_at(part.ttft_s, 0.5)) == pytest.approx({"call": 0.2})


def test_heat_is_of_the_last_whole_second() -> None:
    """A tick is shown for one second, and the open slot holds all of them."""
    clock = FrozenClock(100.5)
    sink = TrafficSink(clock)
    handle_facts(sink, [done(), done(ttft_s=None, status=503)])
    (series,) = sink.live()
    assert (series.n_tick, series.heat, series.open.n) == (0, {}, 2)
    clock.now_s = 101.1
    (series,) = sink.live()
    assert (series.n_tick, sum(series.heat.values()), series.open.n) == (2, 1, 2)
    assert sum(series.open.ttft_s.values()) == 1
    clock.now_s = 103.1
    (series,) = sink.live()
    assert (series.n_tick, series.heat, series.open.n) == (0, {}, 2)


def test_unfetched_slots_are_bounded() -> None:
    """Worker 0 may be away for long."""
    clock = FrozenClock(0.0)
    sink = TrafficSink(clock)
    for _ in range(100):
        handle_facts(sink, [done()])
        clock.now_s += 5.0
    assert [slot.number for slot in sink.closed_since(-1)] == list(range(76, 100))
    assert [slot.number for slot in sink.closed_since(98)] == [99]


def test_request_in_a_busy_slot_runs_few_functions() -> None:
    """Details are what is dear: in an empty slot all requests have them, of 20,000 about one in fifty."""
    batch = [done(stages=all_stages(lambda: 0.01))] * 21
    sink, counts = TrafficSink(FrozenClock()), Counter[str]()

    def consume(n_batches: int) -> float:
        counts.clear()
        sys.setprofile(lambda frame, event, argument: counts.update((event,)))
        try:
            for _ in range(n_batches):
                handle_facts(sink, batch)
        finally:
            sys.setprofile(None)
        return counts["call"] / (n_batches * len(batch))

    quiet = consume(6)
    consume(1000)
    assert consume(50) < quiet / 7


def test_breaker_changes_are_not_requests() -> None:
    """A refused hedge alone makes a series; a stall of an attempt counts once."""
    part = only(done(attempts=(attempt(stalls=(Stall(1.2, 0.3),)),)))
    assert part.n_stalls == 1


def test_breaker_that_opens_and_closes_changed_twice_whatever_its_probes() -> None:
    sink = TrafficSink(FrozenClock())
    handle_facts(sink, [BreakerChanged("u", state, "") for state in ("open", "half_open", "open", "half_open", "closed")])
    assert sink.breaker_changes(3600.0) == {"u": 2}
