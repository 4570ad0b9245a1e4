"""Frames: what they show, and how large they get."""

import json
from typing import Any

import msgspec
import pytest

from stayfast.core.snapshot import HEAT_BOUNDS_S, LiveFinding, LiveFrame
from stayfast.observe.snapshot.frames import (
    MAX_FRAME_BYTES,
    Span,
    encode_frame_json,
    live_routes,
    live_upstreams,
    round_figures,
)
from stayfast.observe.snapshot.parts import SeriesKey, TrafficPart
from stayfast.observe.snapshot.traffic import SLOT_S
from stayfast.observe.snapshot.worker_part import PrefixGauges, UpstreamGauges, WorkerPart, merge_upstreams
from stayfast.policy.histogram import bucket_of
from tests.unit.observe.fact_rig import attempt, done
from tests.unit.observe.snapshot.traffic_rig import by_series, closed

ENGINES = {"u": {"running": 3.0, "max_running": 4.0, "kv_hit_ratio": 0.75, "decode_tokens_per_s": 812.0, "age_s": 2.0},
           "without-counters": {"running": 1.0}}


def frame_of(parts: dict[SeriesKey, TrafficPart], states: list[UpstreamGauges], **fields: Any) -> Any:
    """A frame as its reader has it."""
    heat, n = {key: part.ttft_s for key, part in parts.items()}, {key: part.n for key, part in parts.items()}
    span = Span(SLOT_S, parts, heat, n)
    data = encode_frame_json(LiveFrame(1e9, 7, routes=tuple(live_routes(span, lambda route: (2.0, 0.95))),
                                       upstreams=tuple(live_upstreams(span, states, {"u": 0.5}, {"u": "memory"}, ENGINES)),
                                       **fields))
    assert len(data) <= MAX_FRAME_BYTES
    msgspec.json.decode(data, type=LiveFrame)
    return json.loads(data)


def test_frame_shows_rates_shares_and_heat() -> None:
    """Ten requests in 5 s: two failed, one without a first token; a hedge; one hit."""
    facts = [done()] * 6 + [done(status=503, ttft_s=None), done(status=503), done(cache="hit"),
                            done(attempts=(attempt(), attempt(is_hedge=True, role="hedge")))]
    state = UpstreamGauges("u", in_flight=3, limit=9.0, breaker="open", breaker_why="why")
    frame = frame_of(by_series(closed(facts)), [state])
    (route,) = frame["routes"]
    assert (route["rps"], route["failed_ratio"], route["cached_ratio"], route["hedged_ratio"]) == (2.0, 0.2, 0.1, 0.1)
    assert (route["n"], route["n_heat_failed"], route["promise_s"], route["promise_share"]) == (10, 1, 2.0, 0.95)
    ((row, n),) = route["heat"]
    assert n == 9
    assert HEAT_BOUNDS_S[row - 1] < 0.2 <= HEAT_BOUNDS_S[row]
    (upstream,) = frame["upstreams"]
    assert (upstream["in_flight"], upstream["limit"], upstream["why"], upstream["quota_left"]) == (3, 9.0, "why", 0.5)
    assert upstream["ttft_s"]["n"] == 11


def test_frame_shows_engines() -> None:
    """By the engine's counters, else by usage; what is unknown is absent, and an upstream without metrics has no engine."""
    prefix = PrefixGauges(n_input=200.0, n_cached=50.0)
    states = [UpstreamGauges("u", prefix=prefix), UpstreamGauges("without-counters", prefix=prefix), UpstreamGauges("other")]
    rows = {row["name"]: row.get("engine") for row in frame_of({}, states)["upstreams"]}
    assert rows == {"u": {"running": 3.0, "max_running": 4.0, "hit_ratio": 0.75, "tokens_per_s": 812.0, "age_s": 2.0},
                    "without-counters": {"running": 1.0, "hit_ratio": 0.25, "age_s": 0.0}, "other": None}


@pytest.mark.parametrize("name", ["route-%d", "route-%d-" + "x" * 190])
def test_frame_of_300_routes_is_bounded(name: str) -> None:
    """The busiest have rows, the sums are whole."""
    times = {bucket_of(0.01 * 1.3**n): 3 for n in range(30)}
    parts = {(name % n, f"up-{n}" + name[8:]): TrafficPart(
        n=100 + n, ttft_s=times, e2e_s=times, attempt_s=times, n_attempts=100 + n, n_output_tokens=12_345 + n,
        cost_usd={"first": 1.2345678}) for n in range(300)}
    states = [UpstreamGauges(f"up-{n}" + name[8:], limit=10.0, limit_why="w" * 300, in_flight=n) for n in range(300)]
    findings = tuple(LiveFinding(f"a.finding_{n}", "warn", "route " + "x" * 90, "s" * 160, 1e9) for n in range(40))
    frame = frame_of(parts, states, findings=findings)
    assert len(frame["findings"]) == 10
    for kind, field in (("routes", "route"), ("upstreams", "name")):
        rows = frame[kind]
        assert rows[-1][field] == "(other)"
        assert 5 <= len(rows) <= 25
        assert sum(row["rps"] for row in rows) == pytest.approx(sum(100 + n for n in range(300)) / SLOT_S, rel=0.01)
        assert rows[0]["rps"] == pytest.approx(399 / SLOT_S, rel=0.01)
    assert sum(row["n"] for row in frame["routes"]) == sum(100 + n for n in range(300))


def test_states_of_workers_are_merged_by_their_meaning() -> None:
    """Requests add up; the largest limit and the worst breaker count, each with its reason."""
    one = UpstreamGauges("u", in_flight=2, waiting=1, limit=8.0, limit_why="grown", breaker="half_open", breaker_why="probe")
    other = UpstreamGauges("u", is_proven=True, in_flight=3, limit=9.0, limit_why="full", breaker="open",
                           breaker_why="5 of 5", n_breaker_changes_1h=4, suspended_s=2.0, suspended_why="429")
    expected = UpstreamGauges("u", True, 5, 1, 9.0, "full", "open", "5 of 5", 4, 2.0, "429")
    for parts in ([one, other], [other, one]):
        assert merge_upstreams([WorkerPart(n, upstreams=[part]) for n, part in enumerate(parts)]) == [expected]


def test_reason_of_an_open_breaker_is_that_of_the_worker_which_opened_it() -> None:
    one = UpstreamGauges("u", breaker="open", breaker_why="4 failures in a row")
    other = UpstreamGauges("u", breaker="open", breaker_why="opened in another worker")
    for parts in ([one, other], [other, one]):
        [merged] = merge_upstreams([WorkerPart(n, upstreams=[part]) for n, part in enumerate(parts)])
        assert merged.breaker_why == "4 failures in a row"


def test_figures_are_rounded_and_instants_are_not() -> None:
    """Three significant digits; milliseconds of the clock."""
    assert round_figures({"a": [1.23456, 0.000123456], "at": 1795457601.08512}) == {
        "a": [1.23, 0.000123], "at": 1795457601.085}
