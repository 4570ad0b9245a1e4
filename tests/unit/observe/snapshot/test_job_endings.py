"""Jobs and batches that ended, over all processes."""

from stayfast.core.events import BatchEnded, JobEnded
from stayfast.core.snapshot import JobRow
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.snapshot.job_endings import complete_jobs
from stayfast.observe.snapshot.probes import WorkerProbes
from tests.unit.observe.fact_rig import FrozenClock


def test_job_rows_have_what_ended_in_the_last_hour() -> None:
    """Of two workers; the queue's own figures stay; a route with an empty queue has a row; an hour later nothing is left."""
    clock = FrozenClock(0.0)
    one, other = (WorkerProbes(number, clock, lambda: ("info", 0)) for number in range(2))
    handle_facts(one, [JobEnded("m", "job", "done", 4.0, 10.0), BatchEnded("m", 5, 30.0)])
    handle_facts(other, [JobEnded("m", "job", "failed", 4.0, 10.0), JobEnded("n", "batch", "done", 1.0, 2.0)])
    parts = [probes.collect().jobs for probes in (one, other)]
    m, n = complete_jobs([JobRow("m", queued=7)], parts)
    assert (m.queued, m.n_ended, m.wait_s.n, m.batch_s.p50) == (7, {"done": 1, "failed": 1}, 2, 30.0)
    assert m.run_s.p50 is not None
    assert abs(m.run_s.p50 - 10.0) < 0.2
    assert (n.route, n.n_ended, n.batch_s.n) == ("n", {"done": 1}, 0)
    clock.now_s = 4000.0
    assert complete_jobs([JobRow("m")], [probes.collect().jobs for probes in (one, other)]) == (JobRow("m"),)
