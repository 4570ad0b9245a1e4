"""Counts facts about jobs."""

from collections.abc import Sequence

from stayfast.core.events import BatchEnded, JobEnded, JobLeaseLost, JobReturned, JobsSwept, JobStoreCalled
from stayfast.observe.fact_batch import FactHandlers
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

    @property
    def handlers(self) -> FactHandlers:
        return {JobStoreCalled: self._count_calls, JobEnded: self._count_ended, BatchEnded: self._count_batches,
                JobReturned: self._count_returned, JobLeaseLost: self._count_lost, JobsSwept: self._count_swept}

    def _count_calls(self, facts: Sequence[JobStoreCalled]) -> None:
        for fact in facts:
            self._calls[fact.what, fact.result] += 1
            self._call_s[(fact.what,)].add(fact.seconds)

    def _count_ended(self, facts: Sequence[JobEnded]) -> None:
        for fact in facts:
            self._ended[fact.route, fact.door, fact.state] += 1
            self._wait_s[(fact.route,)].add(fact.waited_s)
            self._run_s[(fact.route,)].add(fact.run_s)

    def _count_batches(self, facts: Sequence[BatchEnded]) -> None:
        for fact in facts:
            self._batch_s[(fact.route,)].add(fact.seconds)
            self._batch_squares[(fact.route,)] += fact.seconds**2

    def _count_returned(self, facts: Sequence[JobReturned]) -> None:
        for fact in facts:
            self._returned[fact.route, "failed" if fact.is_failure else "refused"] += 1

    def _count_lost(self, facts: Sequence[JobLeaseLost]) -> None:
        for fact in facts:
            self._lost[(fact.route,)] += 1

    def _count_swept(self, facts: Sequence[JobsSwept]) -> None:
        for fact in facts:
            for what, n in (("recovered", fact.n_recovered), ("dead", fact.n_dead), ("expired", fact.n_expired)):
                if n:
                    self._swept[(what,)] += n
