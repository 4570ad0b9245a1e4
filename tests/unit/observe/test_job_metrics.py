"""Metrics of jobs."""

from stayfast.compose.jobs import depth_rows
from stayfast.core.events import JobEnded, JobLeaseLost, JobReturned, JobsSwept, JobStoreCalled
from stayfast.core.jobs import QueueDepth
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals
from stayfast.observe.metrics.job_metrics import JobMetrics


def test_job_facts_are_counted() -> None:
    """By route, door, state, reason and operation."""
    totals = Totals(known.bounds_of({}))
    handle_facts(JobMetrics(totals), [
        JobEnded("m", "batch", "completed", 2.0, 1.0), JobEnded("m", "jobs", "dead", 2.0, 1.0),
        JobReturned("m", "upstream_status", is_failure=True), JobReturned("m", "requests", is_failure=False),
        JobLeaseLost("m"), JobsSwept(2, 0, 1), JobStoreCalled("claim", "ok", 0.002), JobStoreCalled("finish", "full", 0.1)])
    counters = totals.counters
    assert counters[known.JOBS_ENDED.name] == {("m", "batch", "completed"): 1, ("m", "jobs", "dead"): 1}
    assert counters[known.JOBS_RETURNED.name] == {("m", "failed"): 1, ("m", "refused"): 1}
    assert counters[known.JOB_LEASES_LOST.name] == {("m",): 1}
    assert counters[known.JOBS_SWEPT.name] == {("recovered",): 2, ("expired",): 1}
    assert counters[known.JOB_STORE_CALLS.name] == {("claim", "ok"): 1, ("finish", "full"): 1}


def test_depth_rows_add_up_the_models_of_a_route_to_any_model() -> None:
    """Clients choose their names, and must not add series."""
    rows = depth_rows([QueueDepth("m", 3, 1, 2, oldest_at=90.0, earliest_deadline_at=150.0), QueueDepth("x", 1, 0),
                       QueueDepth("y", 2, 1, oldest_at=40.0, earliest_deadline_at=95.0)], {"m"}, 100.0)
    assert dict(rows[known.JOBS.name]) == {("m", "queued"): 3, ("m", "deferred"): 2, ("m", "running"): 1,
                                           ("*", "queued"): 3, ("*", "deferred"): 0, ("*", "running"): 1}
    assert dict(rows[known.JOBS_OLDEST.name]) == {("m",): 10.0, ("*",): 60.0}
    assert dict(rows[known.JOBS_OVERDUE.name]) == {("m",): -50.0, ("*",): 5.0}
