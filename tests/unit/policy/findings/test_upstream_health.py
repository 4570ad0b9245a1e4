"""Checks of breakers, fallbacks and broken streams."""

from stayfast.core.snapshot import Snapshot, Spread, TrafficRow, UpstreamRow
from stayfast.policy.findings.upstream_health import CHECKS

FIND = {check.id: check.find for check in CHECKS}
ROUTES = {"routes": {"chat": {"upstreams": ["a"]}}}


def test_open_breaker_of_the_only_upstream_is_urgent_and_gets_a_fallback() -> None:
    upstreams = (UpstreamRow("a", "openai", breaker="open"), UpstreamRow("b", "openai"))
    [found] = FIND["breaker.open"](Snapshot(0.0, upstreams=upstreams, settings=ROUTES))
    assert found.severity == "act"
    assert 'upstreams: ["b"]' in found.do[0].patch
    both = {"routes": {"chat": {"upstreams": ["a", "b"]}}}
    [found] = FIND["breaker.open"](Snapshot(0.0, upstreams=upstreams, settings=both))
    assert found.severity == "warn"


def test_open_breakers_of_a_route_with_a_fallback_are_named_with_what_answers() -> None:
    upstreams = (UpstreamRow("a", "vllm", breaker="open"), UpstreamRow("b", "vllm", breaker="open"),
                 UpstreamRow("c", "openai"))

    def summary(route: dict[str, object]) -> str:
        first, _ = FIND["breaker.open"](Snapshot(0.0, upstreams=upstreams, settings={"routes": {"chat": route}}))
        return first.summary

    both = "The breaker of a is open, like those of all upstreams of chat"
    assert summary({"upstreams": ["a", "b"]}) == f"{both}."
    fallback = {"fallback": {"upstreams": ["c"]}}
    assert summary({"upstreams": ["a", "b"], "on_overrun": fallback}) == f"{both}; the fallback answers."


def test_flapping_breaker_is_slowed_down() -> None:
    settings = {"upstreams": {"a": {"breaker": {"open_s": 10.0, "min_calls": 10}}}}
    upstreams = (UpstreamRow("a", n_breaker_changes_1h=6),)
    [found] = FIND["breaker.flapping"](Snapshot(0.0, upstreams=upstreams, settings=settings))
    assert "open_s: 20" in found.do[0].patch
    assert not list(FIND["breaker.flapping"](Snapshot(0.0, upstreams=(UpstreamRow("a", n_breaker_changes_1h=5),))))


def test_late_fallback_is_compared_with_the_route_itself() -> None:
    def found(fallback_s: float) -> list[float | None]:
        rows = (TrafficRow("chat", "", 300.0, 1000),
                TrafficRow("chat", "a", 300.0, 900, ttft_s=Spread(900, 0.4, 0.6, 0.7, 0.8)),
                TrafficRow("chat", "b", 300.0, 100, ttft_s=Spread(100, fallback_s, 6.0, 6.0, 6.0)))
        settings = {"routes": {"chat": {"upstreams": ["a"], "on_overrun": {"fallback": {"upstreams": ["b"]}}}}}
        return [one.do[0].saves_s for one in FIND["fallback.late"](Snapshot(0.0, traffic=rows, settings=settings))]

    [saves_s] = found(5.6)
    assert saves_s is not None
    assert abs(saves_s - 4.0) < 1e-9
    assert found(0.9) == []


def test_stalls_are_rescued_where_another_upstream_can_continue() -> None:
    row = TrafficRow("chat", "a", 300.0, 1000, 1000, n_stalls=200, gap_most_s=Spread(1000, 0.1, 2.0, 5.0, 9.0))
    [found] = FIND["streams.stalls"](Snapshot(0.0, traffic=(row,)))
    assert "idle_s: 10" in found.do[0].patch
    settings = {"routes": {"chat": {"upstreams": ["a", "b"]}}, "upstreams": {"b": {"supports_continuation": True}}}
    [found] = FIND["streams.stalls"](Snapshot(0.0, traffic=(row,), settings=settings))
    assert "on_stall: rescue" in found.do[0].patch


def test_broken_streams_are_urgent_above_one_in_a_hundred() -> None:
    def found(n: int) -> list[str]:
        row = TrafficRow("chat", "a", 300.0, 1000, 1000, n_truncated=n, faults={"truncated": n})
        return [one.severity for one in FIND["streams.truncated"](Snapshot(0.0, traffic=(row,)))]

    assert found(30) == ["act"]
    assert found(10) == []
