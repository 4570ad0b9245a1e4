"""What metrics and the log make of shared stores."""

from pathlib import Path

import msgspec

from stayfast.core.events import StoreCallDone, StoreChanged
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from tests.unit.observe.fact_rig import FrozenClock, counting

FACTS = [StoreCallDone("hot", "get", "hit", 0.001), StoreCallDone("hot", "get", "local_hit", 0.0),
         StoreCallDone("hot", "put", "stored", 0.5), StoreCallDone("hot", "get", "timeout", 0.02)]


def test_store_results_are_counted_and_lookups_timed() -> None:
    """What memory answered, and what nobody waited for, is no wait."""
    metrics = counting(*FACTS)
    assert dict(metrics.totals.counters["stayfast_cache_store_requests_total"]) == {
        ("hot", "get", "hit"): 1, ("hot", "get", "local_hit"): 1, ("hot", "put", "stored"): 1, ("hot", "get", "timeout"): 1}
    waits = metrics.totals.histograms["stayfast_cache_store_seconds"][("hot",)]
    assert (sum(waits.counts), waits.sum_s) == (2, 0.021)


def test_store_state_change_writes_log_line(tmp_path: Path) -> None:
    """One that is left alone is a warning."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        config = LogConfig(fd=file.fileno())
        writer = LineWriter(config)
        writer.start()
        sink = LogSink(config, writer, FrozenClock(100.0, 100.0))
        handle_facts(sink, [*FACTS, StoreChanged("hot", "open", "5 failures in a row: TimeoutError"),
                            StoreChanged("hot", "closed", "")])
        writer.close()
    said = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert said[0] == {"ts": 100.0, "event": "cache_store", "level": "warning", "store": "hot", "state": "open",
                       "detail": "5 failures in a row: TimeoutError"}
    assert [line["level"] for line in said] == ["warning", "info"]
