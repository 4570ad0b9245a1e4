"""Metrics and log lines of passed requests."""

import os
from pathlib import Path

import msgspec

from stayfast.core.clock import SystemClock
from stayfast.core.passthrough import PassedThrough
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.observe.metrics import definitions as known
from stayfast.observe.metrics.counters import Totals
from stayfast.observe.metrics.passthrough_metrics import PassThroughMetrics

WHOLE = PassedThrough("r1", 1.5, "POST", "/v1/images", "u", 200, 2.0, head_s=1.5, n_bytes_up=10, n_bytes_down=20)
CUT = PassedThrough("r2", 1.5, "GET", "other", "u", 200, 0.5, error="upstream_reset", tenant="a", head_s=0.25,
                    n_bytes_down=5, upstream_request_id="req_u")
LATE = PassedThrough("r3", 1.5, "POST", "/v1/images", "u", 504, 4.0, error="total_s_exceeded")


def test_passed_facts_are_counted() -> None:
    """By upstream and path; what failed before its head has not broken off."""
    totals = Totals(known.bounds_of({}))
    handle_facts(PassThroughMetrics(totals), [WHOLE, CUT, LATE])
    counters = totals.counters
    assert counters[known.PASSED.name] == {("u", "/v1/images", "200"): 1, ("u", "other", "200"): 1,
                                           ("u", "/v1/images", "504"): 1}
    assert counters[known.PASSED_BYTES.name]["u", "/v1/images", "up"] == 10
    assert counters[known.PASSED_BYTES.name]["u", "other", "down"] == 5
    assert counters[known.PASSED_BROKEN.name] == {("u", "other", "upstream_reset"): 1}


def test_passed_fact_has_log_line(tmp_path: Path) -> None:
    """Of severity warning from 500; other levels write only these."""
    out = tmp_path / "log"
    fd = os.open(out, os.O_CREAT | os.O_WRONLY)
    for level in ("info", "warning"):
        config = LogConfig(level=level, fd=fd)
        writer = LineWriter(config)
        writer.start()
        handle_facts(LogSink(config, writer, SystemClock()), [CUT, LATE])
        writer.close()
    os.close(fd)
    cut, late, only = [msgspec.json.decode(line) for line in out.read_bytes().splitlines()]
    assert cut == {"ts": 1.5, "event": "request", "request_id": "r2", "status": 200, "ms": 500.0, "api": "passthrough",
                   "method": "GET", "path": "other", "upstream": "u", "bytes_up": 0, "bytes_down": 5, "head_ms": 250.0,
                   "error": "upstream_reset", "tenant": "a", "upstream_request_id": "req_u"}
    assert late["status"] == only["status"] == 504
