"""observe.log: one JSON line per request, written by another thread that never blocks the loop."""

import os
import select
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.events import RequestDone, Stall
from stayfast.core.stage_times import StageDone
from stayfast.core.types import Outcome, Stage
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from tests.unit.observe.fact_rig import attempt, done


def test_log_writes_one_line_per_request(tmp_path: Path) -> None:
    """The line says what on-call asks for, in milliseconds."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    writer = LineWriter(LogConfig(fd=fd))
    writer.start()
    handle_facts(LogSink(LogConfig(fd=fd), writer, SystemClock()), [done(finish_reason="stop")])
    writer.close()
    os.close(fd)
    (line,) = path.read_bytes().splitlines()
    fields = msgspec.json.decode(line)
    assert fields["event"] == "request"
    assert (fields["status"], fields["ms"], fields["ttft_ms"], fields["finish"]) == (200, 500.0, 200.0, "stop")
    assert fields["stages_ms"] == {"call": 200.0}
    assert (fields["input_tokens"], fields["output_tokens"], fields["cached_tokens"]) == (10, 20, 5)


def test_log_requests_false_writes_no_request_lines(tmp_path: Path) -> None:
    """`log.requests: false` keeps the gateway's own lines only."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    config = LogConfig(requests=False, fd=fd)
    writer = LineWriter(config)
    writer.start()
    sink = LogSink(config, writer, SystemClock())
    handle_facts(sink, [done()])
    sink.write_event("started", port=8090)
    writer.close()
    os.close(fd)
    assert [msgspec.json.decode(line)["event"] for line in path.read_bytes().splitlines()] == ["started"]


def test_log_writes_whole_lines_up_to_pipe_buf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes of up to PIPE_BUF bytes are atomic, so lines of several workers on one pipe do not interleave."""
    written: list[bytes] = []

    def write(_fd: int, data: memoryview) -> int:
        written.append(bytes(data))
        return len(data)

    writer = LineWriter(LogConfig())
    lines = [b"%d %s\n" % (number, b"x" * (number * 37 % 900)) for number in range(60)]
    for line in lines:
        writer.write(line)
    monkeypatch.setattr(os, "write", write)
    writer.start()
    writer.close()
    assert b"".join(written) == b"".join(lines)
    assert all(len(piece) <= select.PIPE_BUF for piece in written)
    assert all(piece.endswith(b"\n") for piece in written)


def test_log_blocked_reader_drops_lines() -> None:
    """A full pipe: lines are dropped and counted, the writer's caller never blocks, memory stays bounded."""
    read_fd, write_fd = os.pipe()
    config = LogConfig(fd=write_fd, max_pending_bytes=100_000, flush_every_s=0.001)
    writer = LineWriter(config)
    writer.start()
    line = b"x" * 999 + b"\n"
    for _ in range(2_000):
        writer.write(line)
    assert writer.n_dropped > 1_000
    os.close(read_fd)  # the blocked write fails, the thread ends
    writer.close()
    os.close(write_fd)


def line_of(tmp_path: Path, fact: RequestDone) -> dict[str, Any]:
    """The line that a request leaves, decoded."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    writer = LineWriter(LogConfig(fd=fd))
    writer.start()
    handle_facts(LogSink(LogConfig(fd=fd), writer, SystemClock()), [fact])
    writer.close()
    os.close(fd)
    fields: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return fields


def test_log_line_has_error_fields(tmp_path: Path) -> None:
    """The stage that broke its budget, what was done instead, and each attempt with what it did and cost."""
    failed = {"ttft_s": None, "outcome": Outcome.DROPPED, "usage": None, "cost_usd": None}
    attempts = (attempt(fault="status", upstream_status=429, **failed),
                attempt(upstream="v", n_attempt=2, stalls=(Stall(1.2, 1.5),)))
    fields = line_of(tmp_path, done(over_stage=Stage.CALL, degraded="fallback", attempts=attempts, gap_max_s=1.5))
    assert (fields["over_stage"], fields["degraded"], fields["cost_usd"]) == ("call", "fallback", 0.25)
    assert (fields["tpot_ms"], fields["gap_max_ms"], fields["queue_ms"]) == (15.0, 1500.0, 1.0)
    assert fields["tries"] == [
        {"upstream": "u", "ms": 400.0, "fault": "status", "status": 429},
        {"upstream": "v", "ms": 400.0, "ttft_ms": 100.0, "input_tokens": 10, "output_tokens": 20, "cost_usd": 0.25,
         "stalls_ms": [1500.0]}]


def test_log_line_has_allowances(tmp_path: Path) -> None:
    """The deadline; of the stages those that might not use all that was left until then."""
    stages = (StageDone(Stage.ADMIT, 1.0, 1.1, 0.5), StageDone(Stage.CALL, 1.1, 1.3, 2.0),
              StageDone(Stage.RELAY, 1.3, 1.5, 2.7))
    fields = line_of(tmp_path, done(stages=stages, total_s=3.0))
    assert (fields["deadline_ms"], fields["allowed_ms"]) == (3000.0, {"admit": 500.0, "call": 2000.0})
    assert "allowed_ms" not in line_of(tmp_path, done(stages=stages[2:], total_s=3.0))


def test_log_line_has_cost_by_role(tmp_path: Path) -> None:
    """Where it is not all the first attempt's; the parts are the whole."""
    attempts = (attempt(is_lost=True, is_estimated=True, cost_usd=0.125), attempt(role="hedge", is_hedge=True, n_attempt=2))
    fields = line_of(tmp_path, done(attempts=attempts))
    assert fields["cost_usd_by"] == {"first": 0.125, "hedge": 0.25}
    assert fields["cost_usd"] == 0.375
    assert [one.get("role") for one in fields["tries"]] == [None, "hedge"]
    assert fields["tries"][0]["estimated"] is True
    assert "cost_usd_by" not in line_of(tmp_path, done())


def test_log_line_omits_empty_fields(tmp_path: Path) -> None:
    """One attempt without a stall is in the line's own fields."""
    assert {"tries", "over_stage", "degraded", "error"}.isdisjoint(line_of(tmp_path, done()))
