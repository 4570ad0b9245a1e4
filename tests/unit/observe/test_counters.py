"""observe.metrics.counters: counts of several processes add up, and Prometheus can read them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stayfast.core.events import LoopLag, TokenGaps
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.counters import Histogram, MetricsSnapshot, Totals
from tests.unit.observe.fact_rig import attempt, counting, done

BOUNDS = (0.1, 0.2, 0.4)
VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=50)


def sent(metrics: MetricsSink) -> MetricsSnapshot:
    """A snapshot as it arrives in another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(metrics.snapshot()), type=MetricsSnapshot)


def whole_of(*parts: MetricsSink, **how: Any) -> Totals:
    """All of them together."""
    whole = Totals(parts[0].totals.bounds_s)
    for part in parts:
        whole.add(sent(part), **how)
    return whole


def read(totals: Totals) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The exposition, parsed by Prometheus's own reader."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families("".join(totals.exposition())) for sample in family.samples}


@given(VALUES, VALUES)
def test_histogram_add_all_equals_add(values: list[float], more: list[float]) -> None:
    """A batch goes where its values would."""
    one, many = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in (*values, *more):
        one.add(value)
    many.add_all(values)
    many.add_all(more)
    assert many.counts == one.counts
    assert many.sum_s == pytest.approx(one.sum_s)


def test_histogram_bound_is_inclusive() -> None:
    """le means at most, in both ways of adding."""
    one, many = Histogram(BOUNDS), Histogram(BOUNDS)
    one.add(0.2)
    many.add_all([0.2, 0.2])
    assert (one.counts, many.counts) == ([0, 1, 0, 0], [0, 2, 0, 0])


@given(VALUES)
def test_histogram_merge_other_bounds_rounds_up(values: list[float]) -> None:
    """A worker with newer settings: what it counted stays counted, in a bucket that is not too low."""
    exact, theirs, ours = Histogram(BOUNDS), Histogram((0.15, 0.4)), Histogram(BOUNDS)
    for value in values:
        exact.add(value)
        theirs.add(value)
    ours.merge(theirs.bounds_s, theirs.counts, theirs.sum_s)
    assert sum(ours.counts) == len(values)
    for n_buckets in range(1, len(BOUNDS) + 1):
        assert sum(ours.counts[:n_buckets]) <= sum(exact.counts[:n_buckets])


def test_totals_sum_workers() -> None:
    """Counters, histograms and requests in flight of two processes are those of one that had seen everything."""
    facts = [done(), attempt(), TokenGaps("m", "u", [0.02, 0.3]), LoopLag(0.001), done(status=502)]
    apart = whole_of(counting(*facts[:2], in_flight=lambda: [("u", 2)]), counting(*facts[2:], in_flight=lambda: [("u", 3)]))
    together = whole_of(counting(*facts, in_flight=lambda: [("u", 5)]))
    assert read(apart) == read(together)
    assert read(apart)["stayfast_in_flight", (("upstream", "u"),)] == 5


def test_totals_ended_worker_adds_counts_without_gauges() -> None:
    """What it counted stays; its requests in flight and its live percentiles do not."""
    gone = counting(*[done()] * 40, in_flight=lambda: [("u", 2)])
    found = read(whole_of(gone, is_of_now=False))
    assert found["stayfast_requests_total", (("api", "chat"), ("route", "m"), ("status", "200"))] == 40
    assert not [name for name, _ in found if name in ("stayfast_in_flight", "stayfast_spike_factor")]


def test_metrics_resume_from_ended_worker() -> None:
    """Its counts are the sum of both lives."""
    first, second = counting(done(), done(), lost=lambda: [("spans", 3)]), counting(done(), lost=lambda: [("spans", 4)])
    second.resume_from(sent(first))
    found = read(whole_of(second))
    assert found["stayfast_requests_total", (("api", "chat"), ("route", "m"), ("status", "200"))] == 3
    assert found["stayfast_telemetry_lost_total", (("kind", "spans"),)] == 7
    assert found["stayfast_ttft_seconds_count", (("outcome", "ok"), ("route", "m"), ("upstream", "u"))] == 3


def test_buckets_are_cumulative_and_end_in_inf() -> None:
    """Classic histograms as Prometheus wants them."""
    found = read(whole_of(counting(*(done(ended_at=ended_at) for ended_at in (1.005, 1.1, 500.0)))))
    by_bound = {float(dict(labels)["le"]): n for (name, labels), n in found.items() if name == "stayfast_e2e_seconds_bucket"}
    bounds = sorted(by_bound)
    assert [by_bound[bound] for bound in bounds] == sorted(by_bound.values())
    assert (by_bound[bounds[0]], by_bound[float("inf")]) == (1, 3)
    assert len(bounds) == len(known.LATENCY_BOUNDS_S) + 1


def test_the_spike_factor_is_p99_over_p50_of_all_workers() -> None:
    """98 answers at 0.2 s and 2 at 2 s, in two processes: 10, within the histogram's error; too few answers have none."""
    quick, slow = counting(*[done()] * 98), counting(*[done(ttft_s=2.0)] * 2)
    assert read(whole_of(quick, slow))["stayfast_spike_factor", (("route", "m"),)] == pytest.approx(10, rel=0.025)
    assert ("stayfast_spike_factor", (("route", "m"),)) not in read(whole_of(slow))


@given(st.text(max_size=20))
def test_labels_are_escaped(name: str) -> None:
    """Quotes, line ends and backslashes in a route's name come back as they were."""
    found = read(whole_of(counting(done(route=name))))
    routes = {dict(labels).get("route") for (metric, labels) in found if metric == "stayfast_requests_total"}
    assert routes == {name or "none"}


def test_exposition_has_help_and_type_of_all_metrics() -> None:
    """HELP and TYPE for each, also before anything was counted."""
    text = "".join(whole_of(counting()).exposition())
    for family in known.FAMILIES:
        assert f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n" in text
