"""Rows of a snapshot by route and upstream."""

from stayfast.core.snapshot import UpstreamRow
from stayfast.policy.findings.rows import route_row, rows_of_upstream, share_of, upstream_names, upstreams_of
from tests.unit.policy.findings.check_rig import snapshot, traffic


def test_upstreams_of_a_route_are_of_its_settings_and_of_its_traffic() -> None:
    observed = snapshot(traffic=(traffic(upstream="fallback"), traffic(route="own", upstream="gpu")),
                        upstreams=(UpstreamRow("fallback"), UpstreamRow("gpu")))
    assert upstream_names(observed, "chat") == {"north", "south", "fallback"}
    assert [row.name for row in upstreams_of(observed, "chat")] == ["fallback"]
    assert [row.route for row in rows_of_upstream(observed, "gpu", 3600.0)] == ["own"]


def test_route_without_traffic_has_an_empty_row() -> None:
    assert route_row(snapshot(), "chat", 300.0).n == 0


def test_share_of_nothing_is_zero() -> None:
    assert (share_of(1, 4), share_of(3, 0)) == (0.25, 0.0)
