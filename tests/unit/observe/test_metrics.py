"""observe.metrics.collector: the counters and histograms that each fact changes."""

from itertools import pairwise
from typing import Any

import pytest

from stayfast.core.events import (
    ConnectionOpened,
    ConnectionReused,
    LoopLag,
    Stall,
    TokenGaps,
)
from stayfast.core.stage_times import StageDone
from stayfast.core.types import Outcome, Stage
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.collector import outcome_of
from tests.unit.observe.fact_rig import attempt, counted, counting, done

OK = ("m", "u", "ok")


def test_a_request_is_counted_once_everywhere() -> None:
    """One fact: a request and its latencies."""
    metrics = counting(done())
    assert counted(metrics, known.REQUESTS) == {("m", "chat", "200"): 1}
    for family in (known.TTFT, known.USABLE, known.E2E, known.TPOT):
        assert counted(metrics, family) == {OK: 1}
    assert counted(metrics, known.QUEUE_WAIT) == counted(metrics, known.OVERHEAD) == {("m",): 1}
    assert counted(metrics, known.STAGE) == {("m", "call"): 1}
    assert metrics.totals.histograms[known.TTFT.name][OK].sum_s == 0.2
    assert metrics.totals.histograms[known.E2E.name][OK].sum_s == 0.5


def test_tokens_and_cost_are_the_attempts() -> None:
    """Two attempts for one answer cost twice; the second is a retry."""
    metrics = counting(attempt(fault="reset", outcome=Outcome.DROPPED, upstream="v"), attempt(n_attempt=2, role="retry"))
    assert counted(metrics, known.COST) == {("m", "v", "first", "own"): 0.25, ("m", "u", "retry", "own"): 0.25}
    assert counted(metrics, known.TOKENS)["m", "u", "output"] == 20
    assert counted(metrics, known.UNPRICED) == {}
    assert counted(metrics, known.RETRIES) == {("m", "u"): 1}
    assert counted(metrics, known.ATTEMPTS) == {("m", "v", "dropped", "reset", ""): 1, ("m", "u", "success", "", ""): 1}


def test_cost_is_by_source_and_unpriced_attempts_are_counted() -> None:
    """An attempt without a known price is in no sum of USD."""
    metrics = counting(attempt(price="table"), attempt(), attempt(price="unpriced", cost_usd=None))
    assert counted(metrics, known.COST) == {("m", "u", "first", "table"): 0.25, ("m", "u", "first", "own"): 0.25}
    assert counted(metrics, known.UNPRICED) == {("m", "u"): 1}


@pytest.mark.parametrize(("changes", "n"), [
    ({"status": 502, "error": "upstream_truncated", "n_chunks": 2}, 1),
    ({"status": 504, "error": "idle_s_exceeded", "n_chunks": 1}, 1),
    ({"status": 502, "error": "upstream_reset", "n_chunks": 0}, 0),
    ({"status": 499, "error": "client_left", "n_chunks": 2}, 0),
    ({"status": 502, "error": "upstream_reset", "n_chunks": 1, "stream": False}, 0),
    ({"degraded": "partial", "n_chunks": 2}, 0)])
def test_a_stream_that_breaks_off_is_counted_as_truncated(changes: dict[str, Any], n: int) -> None:
    """Whatever broke it: its client has a part of it. One that nobody has seen anything of does not count."""
    metrics = counting(done(**{"stream": True, **changes}))
    assert counted(metrics, known.TRUNCATED) == ({("u",): n} if n else {})


def test_attempts_are_counted_by_fault_and_status() -> None:
    """429 is told from 500; stalls have a counter of their own."""
    metrics = counting(attempt(fault="status", outcome=Outcome.DROPPED, upstream_status=429, usage=None),
                       attempt(fault="truncated", outcome=Outcome.DROPPED, stalls=(Stall(1.2, 1.5), Stall(3.0, 2.0))))
    assert ("m", "u", "dropped", "status", "429") in counted(metrics, known.ATTEMPTS)
    assert counted(metrics, known.STALLS) == {("m", "u"): 2}


@pytest.mark.parametrize(("changes", "outcome"), [
    ({}, "ok"), ({"degraded": "template"}, "degraded"), ({"status": 499}, "client_left"), ({"status": 502}, "failed"),
    ({"status": 504, "error": "total_s_exceeded"}, "failed"), ({"status": 429}, "failed"), ({"status": 404}, "rejected")])
def test_every_request_has_an_end_to_end_time_by_outcome(changes: dict[str, object], outcome: str) -> None:
    """So a failed one can be counted as bad in every promise about latency: it is in the total, never in `ok`."""
    assert outcome_of(done(**changes)) == outcome
    metrics = counting(done(**changes, ttft_s=None, tpot_s=None))
    assert counted(metrics, known.E2E) == {("m", "u", outcome): 1}
    assert counted(metrics, known.TTFT) == counted(metrics, known.USABLE) == {}


def test_usable_time_is_first_token_or_end() -> None:
    """A stream can be read from its first token on, a whole answer when it is there, a failed one never."""
    metrics = counting(done(), done(stream=False), done(stream=False, status=502))
    usable = metrics.totals.histograms[known.USABLE.name][OK]
    assert sum(usable.counts) == 2
    assert usable.sum_s == pytest.approx(0.2 + 0.5)
    assert ("m", "u", "failed") not in counted(metrics, known.USABLE)


def test_overhead_is_the_time_without_an_attempt() -> None:
    """0.1 s before the first attempt, a failed one, 0.05 s of back-off, then 0.1 s to the token: 0.15 s are ours."""
    attempts = (attempt(ttft_s=None, ended_at=1.2, fault="reset"), attempt(began_at=1.25, ended_at=2.0, n_attempt=2))
    assert done(ttft_s=0.35, attempts=attempts).own_s == pytest.approx(0.15)
    racing = (attempt(began_at=1.1, ended_at=1.4, ttft_s=None), attempt(began_at=1.2, ended_at=2.0, ttft_s=0.1))
    assert done(ttft_s=0.3, attempts=racing).own_s == pytest.approx(0.1), "attempts side by side count once"
    assert done(ttft_s=None).own_s is None


def test_unknown_models_add_no_series() -> None:
    """A client that makes up model names cannot grow the metrics."""
    metrics = counting(*(done(route=None, model=f"made-up-{n}", status=404, upstream=None, ttft_s=None) for n in range(50)))
    assert counted(metrics, known.REQUESTS) == {("none", "chat", "404"): 50}
    assert len(metrics.totals.histograms[known.E2E.name]) == 1


def test_disconnects_and_time_limits_are_counted() -> None:
    """Who gave up waiting, and when; which limit ended a request and in which stage; an upstream's own 504 is none."""
    stages = (*done().stages, StageDone(Stage.RELAY, 1.2, 1.5, 1.0), StageDone(Stage.SETTLE, 1.5, 1.5, 1.0))
    metrics = counting(done(status=499, ttft_s=None), done(status=499), done(status=504, error="whatever it said"),
                       done(status=504, error="idle_s_exceeded", stages=stages))
    assert counted(metrics, known.CLIENT_LEFT) == {("m", "before_first_token"): 1, ("m", "mid_answer"): 1}
    assert counted(metrics, known.DEADLINE_EXCEEDED) == {("m", "relay", "idle_s_exceeded"): 1}


def test_stage_overruns_and_degraded_answers_are_counted() -> None:
    """By stage, and by what was done instead."""
    metrics = counting(done(over_stage=Stage.CALL), done(over_stage=Stage.CALL, degraded="fallback"))
    assert counted(metrics, known.STAGE_OVERRUNS) == {("m", "call"): 2}
    assert counted(metrics, known.DEGRADED) == {("m", "fallback"): 1}


def test_answers_that_a_limit_ended_are_counted_by_its_owner() -> None:
    metrics = counting(done(cut_by="client"), done(cut_by="deadline", degraded="capped"), done())
    assert counted(metrics, known.CUT_ANSWERS) == {("m", "client"): 1, ("m", "deadline"): 1}
    assert counted(metrics, known.DEGRADED) == {("m", "capped"): 1}


def test_connections_gaps_and_lag() -> None:
    """Handshakes paid and saved; every gap of a batch; the loop's lateness."""
    metrics = counting(ConnectionOpened("u", 0.01, "1.1", tls=True, tls_resumed=True), ConnectionOpened("u", 0.01, "2"),
                       ConnectionReused("u"), TokenGaps("m", "u", [0.3, 0.0005, 5.0]), LoopLag(0.2))
    assert counted(metrics, known.OPENED) == {("u", "1.1", "resumed"): 1, ("u", "2", "none"): 1}
    assert counted(metrics, known.REUSED) == {("u",): 1}
    gaps = metrics.totals.histograms[known.GAP.name]["m", "u"]
    assert (sum(gaps.counts), gaps.counts[0], gaps.counts[-1]) == (3, 1, 1)
    assert gaps.sum_s == pytest.approx(5.3005)
    assert counted(metrics, known.LOOP_LAG) == {(): 1}


def test_slo_bounds_are_exact_buckets() -> None:
    """0.45 s and 0.033 s are bounds of their families only; a wrong family is refused."""
    metrics = counting(done(ttft_s=0.45), done(ttft_s=0.45001), slo_bounds_s={"ttft": [0.45, 0.45], "tpot": (0.033,)})
    histogram = metrics.totals.histograms[known.TTFT.name][OK]
    at = histogram.bounds_s.index(0.45)
    assert (sum(histogram.counts[:at + 1]), histogram.bounds_s.count(0.45)) == (1, 1)
    assert list(histogram.bounds_s) == sorted(histogram.bounds_s)
    assert 0.033 in metrics.totals.bounds_s[known.TPOT.name]
    assert 0.45 not in metrics.totals.bounds_s[known.E2E.name]
    with pytest.raises(ValueError, match="nonsense"):
        counting(slo_bounds_s={"nonsense": [1.0]})


def test_latency_buckets_hold_the_usual_promises_without_more_series() -> None:
    """0.1, 0.5, 1, 2, 5, 10 and 30 s are counted exactly; as many buckets as before, none far from the next."""
    usual = {0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0}
    assert usual <= set(known.LATENCY_BOUNDS_S) & set(known.JOB_BOUNDS_S)
    for bounds, n, widest in ((known.LATENCY_BOUNDS_S, 29, 1.7), (known.JOB_BOUNDS_S, 21, 2.6)):
        assert len(bounds) == n
        assert list(bounds) == sorted(bounds)
        assert max(above / below for below, above in pairwise(bounds)) < widest
