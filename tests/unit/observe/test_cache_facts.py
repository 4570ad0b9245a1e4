"""Metrics and log lines of answers from a cache."""

from pathlib import Path

import msgspec

from stayfast.core.types import FROM_CACHE
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from tests.unit.observe.fact_rig import FrozenClock, counting, done


def test_results_are_counted_by_route() -> None:
    """Only where a route has a cache."""
    facts = [msgspec.structs.replace(done(), cache=result) for result in ("hit", "hit", "miss", None)]
    metrics = counting(*facts)
    route = facts[0].route
    counted = metrics.totals.counters["stayfast_cache_requests_total"]
    assert dict(counted) == {(route, "hit"): 2, (route, "miss"): 1}


def test_hits_are_not_in_baseline_times() -> None:
    """They would make every miss look like a spike."""
    call = msgspec.structs.replace(done(), ended_at=99.0, ttft_s=1.0)
    hits = [msgspec.structs.replace(call, upstream=FROM_CACHE, cache="hit", ttft_s=0.0001)] * 9
    metrics = counting(call, *hits, clock=FrozenClock(100.0, 100.0))
    assert metrics.first_tokens(call.route, 300.0).n == 1


def test_coalesced_request_has_no_overhead() -> None:
    """A coalesced request has no attempt of its own, and did not wait for the gateway."""
    fact = msgspec.structs.replace(done(), attempts=(), ttft_s=2.0)
    assert fact.own_s == 2.0
    assert msgspec.structs.replace(fact, cache="coalesced").own_s is None


def test_log_line_has_cache_result(tmp_path: Path) -> None:
    """A request of a route without a cache has no such field."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        config = LogConfig(fd=file.fileno())
        writer = LineWriter(config)
        writer.start()
        sink = LogSink(config, writer, FrozenClock(100.0, 100.0))
        handle_facts(sink, [msgspec.structs.replace(done(), cache="hit"), done()])
        writer.close()
    hit, uncached = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert hit["cache"] == "hit"
    assert "cache" not in uncached
