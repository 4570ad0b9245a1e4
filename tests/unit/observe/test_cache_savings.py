"""The metrics of tokens and costs saved by caches."""

import msgspec
import pytest

from stayfast.core.events import Renewed, RequestDone
from stayfast.core.types import FROM_CACHE
from tests.unit.observe.fact_rig import FrozenClock, counting, done

SECONDS, USD = "stayfast_cache_saved_seconds_total", "stayfast_cache_saved_usd_total"


def hit(result: str = "hit") -> RequestDone:
    """A request that a cache answered."""
    return msgspec.structs.replace(done(), ended_at=99.0, upstream=FROM_CACHE, cache=result, ttft_s=0.001, saved_usd=0.002)


def test_hits_save_what_the_median_request_waits() -> None:
    """The route's own calls say how long that is; shared calls and misses save nothing here."""
    metrics = counting(*[msgspec.structs.replace(done(), ended_at=99.0, ttft_s=seconds) for seconds in (0.4, 0.5, 9.0)],
                       hit(), hit("stale"), hit("semantic"), hit("coalesced"), hit("miss"), clock=FrozenClock(100.0, 100.0))
    counters, route = metrics.totals.counters, done().route or ""
    assert counters[SECONDS][route, "exact"] == pytest.approx(2 * 0.499, rel=0.05)
    assert counters[SECONDS][route, "semantic"] == pytest.approx(0.499, rel=0.05)
    assert dict(counters[USD]) == {(route, "exact"): pytest.approx(0.004), (route, "semantic"): pytest.approx(0.002)}


def test_hits_without_baseline_save_nothing() -> None:
    """Without a call to compare with, without a price, and of a request that failed."""
    metrics = counting(msgspec.structs.replace(hit(), saved_usd=None), msgspec.structs.replace(hit(), status=499))
    assert not metrics.totals.counters[SECONDS]
    assert not metrics.totals.counters[USD]


def test_cache_refreshes_are_counted_by_result() -> None:
    """By what came of it."""
    metrics = counting(Renewed("chat", "refreshed", 0.5), Renewed("chat", "failed", 0.5), Renewed("chat", "refreshed", 0.5))
    counts = dict(metrics.totals.counters["stayfast_cache_refreshes_total"])
    assert counts == {("chat", "refreshed"): 2, ("chat", "failed"): 1}
