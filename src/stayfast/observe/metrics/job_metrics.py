"""Counts facts about jobs."""

from collections.abc import Sequence

from stayfast.core.events import BatchEnded, Fact, JobEnded, JobLeaseLost, JobReturned, JobsSwept, JobStoreCalled
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals


class JobMetrics:
    """Counts into `totals`. For one event loop."""

    def __init__(self, totals: Totals) -> None:
        counters, histograms = totals.counters, totals.histograms
        self._ended, self._returned = counters[known.JOBS_ENDED.name], counters[known.JOBS_RETURNED.name]
        self._lost, self._swept = counters[known.JOB_LEASES_LOST.name], counters[known.JOBS_SWEPT.name]
        self._calls = counters[known.JOB_STORE_CALLS.name]
        self._wait_s, self._run_s = histograms[known.JOB_WAIT.name], histograms[known.JOB_RUN.name]
        self._batch_s, self._batch_squares = histograms[known.BATCH_SECONDS.name], counters[known.BATCH_SQUARES.name]
        self._call_s = histograms[known.JOB_STORE_SECONDS.name]

    def consume(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, JobStoreCalled):
                self._calls[fact.what, fact.result] += 1
                self._call_s[(fact.what,)].add(fact.seconds)
            elif isinstance(fact, JobEnded):
                self._ended[fact.route, fact.door, fact.state] += 1
                self._wait_s[(fact.route,)].add(fact.waited_s)
                self._run_s[(fact.route,)].add(fact.run_s)
            elif isinstance(fact, BatchEnded):
                self._batch_s[(fact.route,)].add(fact.seconds)
                self._batch_squares[(fact.route,)] += fact.seconds**2
            elif isinstance(fact, JobReturned):
                self._returned[fact.route, "failed" if fact.is_failure else "refused"] += 1
            elif isinstance(fact, JobLeaseLost):
                self._lost[(fact.route,)] += 1
            elif isinstance(fact, JobsSwept):
                for what, n in (("recovered", fact.n_recovered), ("dead", fact.n_dead), ("expired", fact.n_expired)):
                    if n:
                        self._swept[(what,)] += n
