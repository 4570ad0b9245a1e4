"""What metrics and the log make of answers that came from a cache."""

from dataclasses import dataclass

import msgspec

from stayfast.core.types import FROM_CACHE
from stayfast.observe.log import _request_line
from stayfast.observe.metrics.collector import MetricsSink
from tests.unit.observe.test_metrics import done


@dataclass
class Still:
    """A clock that stands."""

    def now(self) -> float:
        return 100.0

    def wall(self) -> float:
        return 100.0

    def cpu(self) -> float:
        """None."""
        return 0.0


def test_results_are_counted_by_route() -> None:
    """Only where a route has a cache."""
    metrics = MetricsSink(Still())
    facts = [msgspec.structs.replace(done(), cache=result) for result in ("hit", "hit", "miss", None)]
    metrics.consume(facts)
    route = facts[0].route
    counted = metrics.totals.counters["stayfast_cache_requests_total"]
    assert dict(counted) == {(route, "hit"): 2, (route, "miss"): 1}


def test_hits_are_not_in_baseline_times() -> None:
    """They would make every miss look like a spike."""
    metrics = MetricsSink(Still())
    call = msgspec.structs.replace(done(), ended_at=99.0, ttft_s=1.0)
    hits = [msgspec.structs.replace(call, upstream=FROM_CACHE, cache="hit", ttft_s=0.0001)] * 9
    metrics.consume([call, *hits])
    assert metrics.first_tokens(call.route, 300.0).n == 1


def test_coalesced_request_has_no_overhead() -> None:
    """A coalesced request has no attempt of its own, and did not wait for the gateway."""
    fact = msgspec.structs.replace(done(), attempts=(), ttft_s=2.0)
    assert fact.own_s == 2.0
    assert msgspec.structs.replace(fact, cache="coalesced").own_s is None


def test_log_line_has_cache_result() -> None:
    """One word; nothing where the route has no cache."""
    line = msgspec.json.decode(msgspec.json.encode(_request_line(msgspec.structs.replace(done(), cache="hit"))))
    assert line["cache"] == "hit"
    assert "cache" not in msgspec.json.decode(msgspec.json.encode(_request_line(done())))
