"""Which places have something in common."""

import pytest

from stayfast.core.findings import Finding, FindingSite
from stayfast.core.snapshot import Snapshot, StoreRow, TrafficRow
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.diagnose import diagnose
from stayfast.policy.findings.places import Places

SNAPSHOT = Snapshot(
    0.0, traffic=(TrafficRow("chat", "by-model", 300.0, 9),),
    stores=(StoreRow("redis", "redis", ("cache",)), StoreRow("state", "redis", ("cache", "jobs"))),
    settings={"routes": {"chat": {"upstreams": ["a"], "on_overrun": {"fallback": {"upstreams": ["spare"]}}},
                         "docs": {"upstreams": ["b"], "cache": {"store": "redis"}}}})


@pytest.mark.parametrize(("route", "site", "do_meet"), [
    ("chat", FindingSite(upstream="a"), True), ("chat", FindingSite(upstream="spare"), True),
    ("chat", FindingSite(upstream="by-model"), True), ("chat", FindingSite(upstream="b"), False),
    ("unknown", FindingSite(upstream="b"), True), ("chat", FindingSite(), True), ("chat", FindingSite(worker=1), True),
    ("docs", FindingSite(store="redis"), True), ("chat", FindingSite(store="redis"), False),
    ("chat", FindingSite(store="state"), True), ("chat", FindingSite(route="docs"), False),
])
def test_places_meet_where_a_route_uses_them(route: str, site: FindingSite, do_meet: bool) -> None:
    places, where = Places(SNAPSHOT), FindingSite(route=route)
    assert (places.meet(site, where), places.meet(where, site)) == (do_meet, do_meet)


def test_open_breaker_hides_no_missed_promise_of_a_route_without_its_upstream() -> None:
    """An upstream that chat never calls is no cause of what chat's users suffer."""
    def found(upstream: str) -> list[str]:
        breaker = Finding("a.breaker", "warn", FindingSite(upstream=upstream), "One.", "Two.")
        promise = Finding("a.promise", "act", FindingSite(route="chat"), "One.", "Two.")
        checks = (Check("a.breaker", "", lambda _: [breaker], ("a.promise",)), Check("a.promise", "", lambda _: [promise]))
        return [f"{one.id} {one.severity} {one.hidden_by}" for one in diagnose(SNAPSHOT, checks)]

    assert found("a") == ["a.breaker act ", "a.promise act a.breaker"]
    assert found("b") == ["a.promise act ", "a.breaker warn "]
