"""Counts facts about requests that were passed to an upstream."""

from stayfast.core.passthrough import PassedThrough
from stayfast.observe.fact_batch import FactHandlers, one_by_one
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals


class PassThroughMetrics:
    """Counts into `totals`. For one event loop."""

    def __init__(self, totals: Totals) -> None:
        counters, histograms = totals.counters, totals.histograms
        self._requests, self._bytes = counters[known.PASSED.name], counters[known.PASSED_BYTES.name]
        self._broken = counters[known.PASSED_BROKEN.name]
        self._head_s, self._seconds = histograms[known.PASSED_HEAD.name], histograms[known.PASSED_SECONDS.name]

    @property
    def handlers(self) -> FactHandlers:
        return {PassedThrough: one_by_one(self._add)}

    def _add(self, fact: PassedThrough) -> None:
        where = (fact.upstream, fact.path)
        self._requests[*where, str(fact.status)] += 1
        self._bytes[*where, "up"] += fact.n_bytes_up
        self._bytes[*where, "down"] += fact.n_bytes_down
        self._seconds[where].add(fact.seconds)
        if fact.head_s is not None:
            self._head_s[where].add(fact.head_s)
            if fact.error is not None:
                self._broken[*where, fact.error] += 1
