"""lab.plan.traffic: reads logs and reports, and refuses too little."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.lab.plan.traffic import LEAST_REQUESTS, TooLittleTraffic, pick_route, read_log, read_report
from stayfast.observe.traffic_rows import TrafficLine, TrafficReport
from tests.unit.lab.plan.plan_rig import rows, world

LINE = {"ts": 1000.5, "event": "request", "request_id": "r", "status": 200, "ms": 500.0, "api": "chat", "route": "m",
        "upstream": "u", "stream": True, "attempts": 1, "ttft_ms": 120.0, "tpot_ms": 10.0, "input_tokens": 30,
        "output_tokens": 20, "cached_tokens": 5, "cost_usd": 0.1, "tenant": "acme", "mark": "0000abcd",
        "stages_ms": {"admit": 1.0, "cache": 2.0, "call": 120.0}}


def line(**fields: object) -> bytes:
    return msgspec.json.encode(LINE | fields)


def test_read_log_line_becomes_a_row() -> None:
    """The arrival is the end less the duration; the time before the call is the sum of the stages before it."""
    (row,), n_unreadable = read_log([line()])
    assert n_unreadable == 0
    assert (row.arrived_at, row.n_input, row.n_cached, row.n_output, row.body_mark) == (1000.0, 30, 5, 20, "0000abcd")
    assert row.ttft_s == pytest.approx(0.12)
    assert row.own_s == pytest.approx(0.003)
    assert len(row.tenant) == 8
    assert "acme" not in row.tenant


def test_read_log_tries_become_trials() -> None:
    tries = [{"upstream": "u", "ms": 400.0, "lost": True}, {"upstream": "v", "ms": 100.0, "ttft_ms": 50.0, "role": "hedge"}]
    (row,), _ = read_log([line(tries=tries)])
    assert [(trial.upstream, trial.role, trial.is_lost) for trial in row.trials] == [("u", "first", True),
                                                                                     ("v", "hedge", False)]


def test_read_log_other_lines_are_skipped_and_broken_ones_counted() -> None:
    others = [line(event="breaker"), line(api="embeddings"), line(route=None)]
    found, n_unreadable = read_log([*others, b"text\n", b"\n", line()])
    assert (len(found), n_unreadable) == (1, 1)


@given(st.lists(st.binary(max_size=60)))
def test_read_log_any_bytes_raise_nothing(lines: list[bytes]) -> None:
    read_log(lines)


def test_read_report_rows_are_sorted_by_arrival() -> None:
    newest_first = [TrafficLine(2.0, "m"), TrafficLine(1.0, "m")]
    assert [row.arrived_at for row in read_report(msgspec.json.encode(TrafficReport(newest_first)))] == [1.0, 2.0]


def test_pick_route_few_requests_are_refused_with_a_reason() -> None:
    with pytest.raises(TooLittleTraffic, match="199 requests of the route 'm' are too few"):
        pick_route(rows(LEAST_REQUESTS - 1))


def test_pick_route_unknown_name_lists_the_routes() -> None:
    with pytest.raises(TooLittleTraffic, match="there are: m"):
        pick_route(rows(300), "chat")


def test_pick_route_takes_the_busiest() -> None:
    other = [msgspec.structs.replace(row, route="x") for row in rows(250)]
    traffic = pick_route([*other, *rows(300)])
    assert (traffic.route, len(traffic.rows), traffic.n_all) == ("m", 300, 550)
    assert traffic.upstreams == ("u",)


def test_read_log_real_lines_have_marks_of_repeats() -> None:
    """A gateway's own lines: bodies that repeat have equal marks, and no others."""
    drawn, lines = world("hosted", 5, 400)
    marks = [row.body_mark for row in read_log(lines)[0]]
    contents = [(one.content, one.n_input, one.n_output, one.is_stream) for one in drawn.requests]
    assert len(set(marks)) == len(set(contents))
